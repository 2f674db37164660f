"""The SQL of lost rows on a second database: whatever names and values are, psql does what they say."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures import hostile_rows
from tests.fixtures.plain_pair import PlainPair, plain_pair, wheel_bin
from walproof.salvaging.plan import new_session
from walproof.salvaging.recovered import write
from walproof.salvaging.rows import Row, Table, TableLoss, _select, changes, tables

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[PlainPair, str]]:
    """Databases `lost`, with the final state, `fork`, with that at the fork, and the DSN of a role that reads both."""
    with plain_pair(wheel_bin()) as pair:
        pair.sql("n1", "CREATE ROLE salvager LOGIN PASSWORD 'salvager' IN ROLE pg_read_all_data")
        for database in ("lost", "fork"):
            pair.sql("n1", f"CREATE DATABASE {database} TEMPLATE template0 ENCODING 'UTF8'")
            with psycopg.connect(_dsn(pair, database), autocommit=True) as connection:
                for text in (*hostile_rows.setup(), *hostile_rows.fork()):
                    connection.execute(text)
        yield pair, make_conninfo(_dsn(pair, "lost"), user="salvager", password="salvager")


def _dsn(pair: PlainPair, database: str) -> str:
    return make_conninfo(pair.member_endpoint("n1").client_conninfo(), dbname=database)


def _rows(dsn: str) -> list[tuple[Table, list[Row]]]:
    with new_session(dsn) as session:
        found = tables(session, 0, None)
        return [
            (table, [tuple(row) for row in _select(session, table, "", psycopg.sql.SQL("true"))]) for table in found
        ]


def _psql(pair: PlainPair, folder: Path, *files: Path) -> "subprocess.CompletedProcess[str]":
    """psql as a person starts it: one transaction, the first error ends it, an encoding of its own."""
    argv = [str(wheel_bin() / "psql"), "-X", "-1", "-v", "ON_ERROR_STOP=1", "-v", "v=evil", "-d", _dsn(pair, "fork")]
    typed = [word for path in files for word in ("-f", str(path))]
    environment = {"PATH": os.environ["PATH"], "PGCLIENTENCODING": "SJIS"}
    return subprocess.run([*argv, *typed], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_hostile_names_and_values_arrive_as_they_were(server: tuple[PlainPair, str], tmp_path: Path) -> None:
    pair, dsn = server
    before = dict((table.oid, rows) for table, rows in _rows(dsn))
    with psycopg.connect(_dsn(pair, "lost"), autocommit=True) as connection:
        for text in hostile_rows.lost():
            connection.execute(text)
    after = _rows(dsn)
    losses = []
    for table, rows in after:
        gone, came = set(before[table.oid]) - set(rows), set(rows) - set(before[table.oid])
        losses.append(TableLoss(table, changes(table, sorted(came, key=str), [], sorted(gone, key=str))))
    with new_session(dsn) as session:
        written = write(tmp_path / "rows", session, losses, [])
    paths = sorted((tmp_path / "rows").iterdir())
    assert written == [path for path in paths if path.suffix == ".sql"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o700
    with psycopg.connect(_dsn(pair, "fork"), autocommit=True) as connection:
        name = psycopg.sql.Identifier(hostile_rows.NAMES[0])
        update = psycopg.sql.SQL("UPDATE {0}.{0} SET {0} = 'there' WHERE id IN (100, 200)")
        for there in (update, psycopg.sql.SQL("INSERT INTO {0}.{0} VALUES (0, 'there')")):
            connection.execute(there.format(name))
    files = [path for path in paths if path.suffix == ".sql"]
    (tmp_path / "here").mkdir()
    done = _psql(pair, tmp_path / "here", *files)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "here").iterdir()) == []
    theirs = {(table.schema, table.name): set(rows) for table, rows in _rows(make_conninfo(dsn, dbname="fork"))}
    ours = {(table.schema, table.name): set(rows) for table, rows in after}
    hostile = (hostile_rows.NAMES[0],) * 2
    kept = {("100", "there"), ("200", "there"), ("0", "there")}
    assert kept <= theirs[hostile]
    assert theirs[hostile] - kept == {row for row in ours[hostile] if row[0] not in ("0", "100")}
    assert {**theirs, hostile: None} == {**ours, hostile: None}
    again = _psql(pair, tmp_path / "here", *(path for path in files if "keyless" not in path.name))
    assert (again.returncode, {line for line in again.stdout.splitlines() if line.startswith("UPDATE")}) == (
        0,
        {"UPDATE 0"},
    )
