"""The SQL of lost rows on a second database: whatever types and constraints are, psql does what they say.

Names, and every byte of values: test_salvage_new_primary."""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import sql

from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, wheel_bin
from tests.fixtures.salvaged import SALVAGER, dsn, files, on, psql
from walproof.salvaging.catalog import tables
from walproof.salvaging.changes import Row, Table, TableLoss, changes
from walproof.salvaging.plan import new_session
from walproof.salvaging.rows import _select
from walproof.salvaging.trial import tried

__all__ = ["own_folder"]
pytestmark = [pytest.mark.lab, pytest.mark.nightly]


@pytest.fixture(scope="module")
def pair() -> Iterator[PlainPair]:
    with plain_pair(wheel_bin()) as made:
        applier = SALVAGER.replace("salvager", "applier").replace("REPLICATION", "")
        on(made, "n1", [SALVAGER.replace(", pg_write_all_data", ""), applier])
        yield made


def _rows(to: str) -> list[tuple[Table, list[Row]]]:
    with new_session(to) as session:
        return [(table, [tuple(row) for row in _select(session, table, "", sql.SQL("true"))])
                for table in tables(session, 0)]  # fmt: skip


def _there(to: str) -> dict[str, set[Row]]:
    return {table.name: set(rows) for table, rows in _rows(to)}


def _parted(
    pair: PlainPair, name: str, made: Sequence[str], lost: Sequence[str], since: Sequence[str]
) -> tuple[str, str, list[TableLoss]]:
    """A database with what was lost, and one as the new primary has it; the lost rows, of tables as that has them."""
    ours, theirs = (dsn(pair, "n1", database=f"{name}_{side}") for side in ("lost", "new"))
    at_fork: dict[str, set[Row]] = {}
    for side, more in (("lost", lost), ("new", since)):
        pair.sql("n1", f"CREATE DATABASE {name}_{side} TEMPLATE template0 ENCODING 'UTF8'")
        on(pair, "n1", made, f"{name}_{side}")
        at_fork = at_fork or _there(ours)
        on(pair, "n1", more, f"{name}_{side}")
    losses, of = [], {table.name: table for table, _ in _rows(theirs)}
    for table, rows in _rows(ours):
        gone, came = at_fork[table.name] - set(rows), set(rows) - at_fork[table.name]
        loss = TableLoss(table, changes(table, sorted(came, key=str), [], sorted(gone, key=str)))
        loss.table = replace(table, oid=of[table.name].oid, references=of[table.name].references)
        losses.append(loss)
    return ours, theirs, losses


TYPED = (
    ("e", "colour PRIMARY KEY", "'it''s red'", "'it''s red'"),
    ("b", "bytea", "'\\x00ff27'", "'\\x'"),
    ("j", "json", "'{\"a\": 1}'", "'{\"a\":1}'"),
    ("f", "float8", "0.1::float8 + 0.2", "'NaN'"),
    ("t", "timestamptz", "'2026-01-01 00:00:00.000001+03'", "'infinity'"),
    ("c", "char(5)", "'a '", "'ab'"),
    ("o", "bool", "true", "false"),
    ("n", "numeric", "1.00", "1.0"),
    ("i", "inet", "'10.0.0.1'", "'10.0.0.1/8'"),
    ("a", "text[]", "ARRAY['a,\"', NULL, '\\']", "'{}'"),
    ("r", "pair", "ROW(NULL, NULL)", "ROW('a,\"', '\\')"),
    ("p", "point", "'(1,2)'", "NULL"),
    ("d", "interval", "'1 day 25:00:00'", "'-1 mon'"),
)
"""Columns, each with a value at the fork and another at the end."""
MADE = (
    "CREATE TYPE pair AS (x text, y text)",
    "CREATE TYPE colour AS ENUM ('it''s red', '\\')",
    f"CREATE TABLE typed ({', '.join(f'{name} {kind}' for name, kind, _, _ in TYPED)})",
    f"INSERT INTO typed VALUES ({', '.join(before for _, _, before, _ in TYPED)})",
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, p int REFERENCES parent,"
    " up int REFERENCES child, g int GENERATED ALWAYS AS (p + 1) STORED)",
    "CREATE TABLE keyless (v text)",
    "INSERT INTO parent VALUES (1), (2)",
    "INSERT INTO child (p) VALUES (1), (1)",
    "CREATE TABLE there (id int PRIMARY KEY, v text)",
    "INSERT INTO there VALUES (100, 'a'), (200, 'a'), (300, 'a')",
)
MADE_LOST = (
    f"UPDATE typed SET {', '.join(f'{name} = {after}' for name, _, _, after in TYPED)}",
    "INSERT INTO typed (e) VALUES ('\\')",
    "INSERT INTO parent VALUES (3)",
    "INSERT INTO child (p, up) VALUES (3, 4), (3, NULL)",
    "DELETE FROM child WHERE p = 1",
    "DELETE FROM parent WHERE id = 1",
    "INSERT INTO keyless VALUES ('\\! touch ran')",
    "INSERT INTO there VALUES (0, 'lost'), (1, 'lost')",
    "UPDATE there SET v = 'lost' WHERE id IN (100, 300)",
    "DELETE FROM there WHERE id = 200",
)
MADE_SINCE = ("UPDATE there SET v = 'there' WHERE id < 300", "INSERT INTO there VALUES (0, 'there')")


def test_values_of_every_type_arrive_as_they_were_beside_what_is_there(
    pair: PlainPair, tmp_path: Path, own_folder: Path
) -> None:
    ours, theirs, losses = _parted(pair, "typed", MADE, MADE_LOST, MADE_SINCE)
    written = [one.path for one in files(ours, own_folder, losses)]
    paths = sorted((own_folder / "rows").iterdir())
    assert written == [path for path in paths if path.suffix == ".sql"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert stat.S_IMODE((own_folder / "rows").stat().st_mode) == 0o700
    applier = dsn(pair, "n1", "applier", "typed_new")
    done = psql(applier, written, "-1", "-v", "ON_ERROR_STOP=1", here=tmp_path)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])
    kept = {("0", "there"), ("100", "there"), ("200", "there"), ("1", "lost"), ("300", "lost")}
    assert _there(theirs) == _there(ours) | {"there": kept}
    again = psql(applier, [path for path in written if "keyless" not in path.name], "-1", here=tmp_path)
    updates = {line for line in again.stdout.splitlines() if line.startswith("UPDATE")}
    assert (again.returncode, updates) == (0, {"UPDATE 0"})


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


def test_a_delete_takes_nothing_that_the_new_primary_wrote(pair: PlainPair, tmp_path: Path, own_folder: Path) -> None:
    """Unique values go from row to row, rows that others named are deleted, and what names them now stays."""
    ours, theirs, losses = _parted(pair, "shared", SHARED, LOST, SINCE)
    written = files(ours, own_folder, losses)
    pair.sql("n1", "GRANT pg_write_all_data TO salvager")
    assert tried(theirs, {"load"}, "shared_new", losses, written, planned=None) == [
        "not tried: it would run reply: counts, public.counts: --allow load,existing-tables consents"
    ]
    # Nothing was compared before: what keeps a row as it is on the new primary is seen here.
    kept = {"team": (1, 5), "later1": (1, 2), "blank": (2, 2), "node": (1, 2), "tree1": (1, 2)}
    assert set(tried(theirs, {"load", "existing-tables"}, "shared_new", losses, written, planned=None)) == {
        f"public.{name}: {left} of {of} rows would not be as they were lost" for name, (left, of) in kept.items()
    }
    assert _there(theirs)["team"] == {("1", "a"), ("2", "b"), ("4", "d")}
    applier = dsn(pair, "n1", "applier", "shared_new")
    done = psql(applier, [one.path for one in written], "-1", "-v", "ON_ERROR_STOP=1", here=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert _there(theirs) == {
        "team": {("1", "a"), ("3", "b"), ("5", "e")}, "player": {("9", "1"), ("4", "5")}, "reply": {("1", "r")},
        "later1": {("2", "y")}, "named": {("2",)}, "node": {("2", "2"), ("3", "3"), ("9", "2")},
        "tree1": {("2", "2"), ("3", "3"), ("9", "2")}, "mail": {("1", "y"), ("2", "x")},
        "blank": {("1", None, "0"), ("2", None, "0")},
    }  # fmt: skip
    assert {(loss.table.name, loss.table.warnings) for loss in losses if loss.table.warnings} == {
        ("reply", ("the SQL fires its trigger counts",))
    }
