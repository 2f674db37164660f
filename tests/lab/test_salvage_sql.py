"""The SQL of lost rows on a second database: whatever names and values are, psql does what they say."""

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures import hostile_rows
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, wheel_bin
from walproof.salvaging.catalog import tables
from walproof.salvaging.changes import Row, Table, TableLoss, changes
from walproof.salvaging.plan import new_session
from walproof.salvaging.private_folder import private_folder
from walproof.salvaging.recovered import SqlFile, write
from walproof.salvaging.rows import _select
from walproof.salvaging.trial import tried

__all__ = ["own_folder"]
pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[PlainPair, str]]:
    """Databases `lost`, with the final state, `fork`, with that at the fork, and the DSN of a role that reads both."""
    with plain_pair(wheel_bin()) as pair:
        pair.sql("n1", "CREATE ROLE salvager LOGIN PASSWORD 'salvager' IN ROLE pg_read_all_data")
        pair.sql("n1", "CREATE ROLE applier LOGIN PASSWORD 'applier' IN ROLE pg_read_all_data, pg_write_all_data")
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
        found = tables(session, 0)
        return [
            (table, [tuple(row) for row in _select(session, table, "", psycopg.sql.SQL("true"))]) for table in found
        ]


def _psql(pair: PlainPair, folder: Path, *files: Path, database: str = "fork") -> "subprocess.CompletedProcess[str]":
    """psql as a person starts it: one transaction, the first error ends it, an encoding of its own."""
    argv = [str(wheel_bin() / "psql"), "-X", "-1", "-v", "ON_ERROR_STOP=1", "-v", "v=evil"]
    argv += ["-d", make_conninfo(_dsn(pair, database), user="applier", password="applier")]
    typed = [word for path in files for word in ("-f", str(path))]
    environment = {"PATH": os.environ["PATH"], "PGCLIENTENCODING": "SJIS"}
    return subprocess.run([*argv, *typed], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _of(dsn: str, losses: list[TableLoss]) -> None:
    """The tables as that database has them; on a primary they are the same: it is a copy of the old one."""
    theirs = {(table.schema, table.name): table for table, _ in _rows(dsn)}
    for loss in losses:
        there = theirs[loss.table.schema, loss.table.name]
        loss.table = replace(loss.table, oid=there.oid, references=there.references)


def _written(dsn: str, folder: Path, losses: list[TableLoss]) -> list[SqlFile]:
    with private_folder(folder) as opened, new_session(dsn) as session:
        return write(opened, "rows", session, losses, [], "false")


def test_hostile_names_and_values_arrive_as_they_were(
    server: tuple[PlainPair, str], tmp_path: Path, own_folder: Path
) -> None:
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
    _of(make_conninfo(dsn, dbname="fork"), losses)
    written = [one.path for one in _written(dsn, own_folder, losses)]
    paths = sorted((own_folder / "rows").iterdir())
    assert written == [path for path in paths if path.suffix == ".sql"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert stat.S_IMODE((own_folder / "rows").stat().st_mode) == 0o700
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


SHARED = (
    "CREATE TABLE team (id int PRIMARY KEY, name text UNIQUE)",
    "CREATE TABLE player (id int PRIMARY KEY, team bigint REFERENCES team ON DELETE CASCADE)",
    "CREATE TABLE reply (id int PRIMARY KEY, v text, UNIQUE (v) DEFERRABLE)",
    "CREATE TABLE later (id int, v text) PARTITION BY LIST (id)",
    "CREATE TABLE later1 PARTITION OF later (PRIMARY KEY (id)) FOR VALUES IN (1, 2)",
    "CREATE TABLE named (id int REFERENCES later1 ON DELETE SET NULL)",
    "CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN PERFORM nextval('counted'); RETURN NEW; END $$",
    "CREATE TABLE node (id int PRIMARY KEY, up int REFERENCES node)",
    "CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree) PARTITION BY LIST (id)",
    "CREATE TABLE tree1 PARTITION OF tree DEFAULT",
    *(f"INSERT INTO {name} VALUES (1, 1), (2, 2), (3, 3)" for name in ("node", "tree")),
    "CREATE TABLE blank (id int PRIMARY KEY, note text, n int)",
    "INSERT INTO blank VALUES (1, '', 0), (2, '', 0)",
    "CREATE TABLE mail (id int PRIMARY KEY, address text UNIQUE)",
    "INSERT INTO mail VALUES (1, 'x')",
    "CREATE SEQUENCE counted",
    "GRANT USAGE ON SEQUENCE counted TO PUBLIC",
    "CREATE TRIGGER counts AFTER INSERT ON reply FOR EACH ROW EXECUTE FUNCTION counts()",
    "INSERT INTO team VALUES (1, 'a'), (2, 'b'), (4, 'd')",
    "INSERT INTO player VALUES (1, 1), (4, 4)",
    "INSERT INTO later VALUES (1, 'x'), (2, 'y')",
)
LOST = (
    "DELETE FROM team WHERE id IN (1, 2)",
    "INSERT INTO team VALUES (3, 'b'), (5, 'e')",
    "UPDATE player SET team = 5 WHERE id = 4",
    "DELETE FROM team WHERE id = 4",
    "INSERT INTO reply VALUES (1, 'r')",
    "DELETE FROM later",
    "DELETE FROM blank WHERE id = 1",
    "UPDATE blank SET n = 5 WHERE id = 2",
    "UPDATE mail SET address = 'y'",
    "INSERT INTO mail VALUES (2, 'x')",
    *(f"DELETE FROM {name} WHERE id < 3" for name in ("node", "tree")),
)
SINCE = (
    "INSERT INTO player VALUES (9, 1)",
    "INSERT INTO named VALUES (2)",
    "UPDATE blank SET note = NULL",
    *(f"INSERT INTO {name} VALUES (9, 2)" for name in ("node", "tree")),
)


def test_a_delete_takes_nothing_that_the_new_primary_wrote(
    server: tuple[PlainPair, str], tmp_path: Path, own_folder: Path
) -> None:
    """Unique values go from row to row, rows that others named are deleted, and what names them now stays."""
    pair, dsn = server
    dsns: dict[str, str] = {}
    for database, more in (("lost2", LOST), ("fork2", SINCE)):
        pair.sql("n1", f"CREATE DATABASE {database} TEMPLATE template0 ENCODING 'UTF8'")
        dsns[database] = make_conninfo(dsn, dbname=database)
        with psycopg.connect(_dsn(pair, database), autocommit=True) as connection:
            for text in SHARED:
                connection.execute(text)
            before = _rows(dsns[database])
            for text in more:
                connection.execute(text)
    losses = []
    at_fork = {table.name: set(rows) for table, rows in before}
    for table, rows in _rows(dsns["lost2"]):
        gone, came = at_fork[table.name] - set(rows), set(rows) - at_fork[table.name]
        losses.append(TableLoss(table, changes(table, sorted(came, key=str), [], sorted(gone, key=str))))
    _of(dsns["fork2"], losses)
    written = _written(dsns["lost2"], own_folder, losses)
    pair.sql("n1", "GRANT pg_write_all_data TO salvager")
    assert tried(dsns["fork2"], {"load"}, "fork2", losses, written, planned=None) == [
        "not tried: it would run reply: counts, public.counts: --allow load,existing-tables consents"
    ]
    # Nothing was compared before: what keeps a row as it is on the new primary is seen here.
    kept = {"team": (1, 5), "later1": (1, 2), "blank": (2, 2), "node": (1, 2), "tree1": (1, 2)}
    assert set(tried(dsns["fork2"], {"load", "existing-tables"}, "fork2", losses, written, planned=None)) == {
        f"public.{name}: {left} of {of} rows would not be as they were lost" for name, (left, of) in kept.items()
    }
    assert dict((t.name, set(rows)) for t, rows in _rows(dsns["fork2"]))["team"] == {("1", "a"), ("2", "b"), ("4", "d")}
    done = _psql(pair, tmp_path, *(one.path for one in written), database="fork2")
    assert (done.returncode, done.stderr) == (0, "")
    assert {table.name: set(rows) for table, rows in _rows(dsns["fork2"])} == {
        "team": {("1", "a"), ("3", "b"), ("5", "e")}, "player": {("9", "1"), ("4", "5")}, "reply": {("1", "r")},
        "later1": {("2", "y")}, "named": {("2",)}, "node": {("2", "2"), ("3", "3"), ("9", "2")},
        "tree1": {("2", "2"), ("3", "3"), ("9", "2")}, "mail": {("1", "y"), ("2", "x")},
        "blank": {("1", None, "0"), ("2", None, "0")},
    }  # fmt: skip
    assert {(loss.table.name, loss.table.warnings) for loss in losses if loss.table.warnings} == {
        ("reply", ("the SQL fires its trigger counts",))
    }
