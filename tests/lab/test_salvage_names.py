"""Names in the SQL of lost rows: on the new primary something else may have them by the time that it is run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair
from tests.lab.test_salvage_new_primary import TRAP, _do, _dsn, _files, _psql, _ran, pair
from walproof.errors import Error
from walproof.salvaging import trial
from walproof.salvaging.catalog import sequences, tables
from walproof.salvaging.changes import Change, Table, TableLoss
from walproof.salvaging.plan import identity, new_session
from walproof.salvaging.trial import tried

__all__ = ["own_folder", "pair"]
pytestmark = pytest.mark.lab
NAMING = {
    "view": "ALTER TABLE naming RENAME TO naming_was; CREATE VIEW naming AS"
            " SELECT trap(1) AS id, 0::oid AS tableoid, '(0,1)'::tid AS ctid",
    "table": "ALTER TABLE naming RENAME TO naming_was; CREATE TABLE naming (id int REFERENCES named);"
             " CREATE INDEX ON naming (id) WHERE trap(1) = 1",
    "type": "ALTER TABLE naming DROP CONSTRAINT naming_id_fkey; CREATE TYPE own AS (a int);"
            " ALTER TABLE naming ALTER id TYPE own USING row(id)::own;"
            " CREATE FUNCTION cast_of(own) RETURNS int LANGUAGE sql AS 'SELECT trap(1)';"
            " CREATE CAST (own AS int) WITH FUNCTION cast_of(own) AS IMPLICIT",
    "key": "ALTER TABLE naming DROP CONSTRAINT naming_id_fkey; ALTER TABLE named DROP CONSTRAINT named_pkey;"
           " CREATE TYPE own AS (a int);"
           " ALTER TABLE named ALTER id TYPE own USING row(id)::own; ALTER TABLE named ADD PRIMARY KEY (id);"
           " CREATE FUNCTION cast_of(own) RETURNS text LANGUAGE plpgsql AS"
           " 'BEGIN PERFORM trap(1)! RETURN 3! END';"
           " CREATE CAST (own AS text) WITH FUNCTION cast_of(own) AS IMPLICIT",
    "column": "ALTER TABLE named RENAME v TO w; CREATE FUNCTION v(named) RETURNS text LANGUAGE plpgsql AS"
              " 'BEGIN PERFORM trap(1)! RETURN 4! END'",
    "attnum": "ALTER TABLE named DROP v; ALTER TABLE named ADD v text DEFAULT 'x'",
}  # fmt: skip
"""What comes to the names of a table, of one that names it and of their columns after these were read."""


@pytest.mark.parametrize("change", NAMING.values(), ids=NAMING)
def test_no_name_in_the_sql_stands_for_another_thing_than_was_read(
    pair: PlainPair, own_folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    _do(
        pair, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT ALL ON SCHEMA public TO PUBLIC", *TRAP,
        "CREATE TABLE named (id int PRIMARY KEY, v text); INSERT INTO named VALUES (3, 'x')",
        "CREATE TABLE naming (id int REFERENCES named)", user="postgres",
    )  # fmt: skip
    with new_session(_dsn(pair)) as session:
        (table,) = (one for one in tables(session, 0) if one.name == "named")
    loss = TableLoss(table, [Change("delete", None, ("3", "x"), state="clean")])
    files, ran = _files(pair, own_folder, [loss], []), _ran(pair)
    assert tried(_dsn(pair), {"load"}, "app", [loss], files, planned=None) == []
    is_there, looks = trial._is_there, list[bool]()

    def meanwhile(session: Any, loss: TableLoss) -> bool:
        looks.append(is_there(session, loss))
        for text in change.split("; ") if len(looks) == 1 else ():
            _do(pair, text.replace("!", ";"), user="postgres")
        return looks[-1]

    monkeypatch.setattr(trial, "_is_there", meanwhile)
    (said,) = tried(_dsn(pair), {"load", "existing-tables"}, "app", [loss], files, planned=None)
    assert said.startswith("public.named: ") and said.endswith("was replaced meanwhile: its files were not tried")
    done = _psql(pair, own_folder / "here", [one.path for one in files], "-1")
    assert done.returncode != 0 and "ERROR:" in done.stderr and _ran(pair) == ran, done.stderr


def test_a_session_of_another_server_than_was_planned_with_is_refused(pair: PlainPair, own_folder: Path) -> None:
    """The old primary was back at a host of --new: every lost row was "already there", and its SQL tried on it."""
    system, timeline, _ = identity(_dsn(pair))
    for trial_alone in (True, False):
        with new_session(_dsn(pair), planned=(system, timeline), reads_only=trial_alone) as session:
            assert session.execute("SELECT 1").fetchall() == [(1,)]
        for planned in ((system, timeline + 1), (system + 1, timeline)):
            with (
                pytest.raises(Error, match="another server answers as --new"),
                new_session(_dsn(pair), planned=planned, reads_only=trial_alone),
            ):
                pass
    table = Table((0, 0, 0), None, "", 0, "public", "none", ("id",), (0,), 0)
    loss = TableLoss(table, [Change("insert", ("1",), None, state="clean")])
    files = _files(pair, own_folder, [loss], [])
    (said, *_) = tried(_dsn(pair), {"load"}, "app", [loss], files, planned=(system, timeline + 1))
    assert said.startswith("not tried to the end") and "another server answers as --new" in said


def test_a_view_that_takes_a_sequences_name_is_not_asked(pair: PlainPair, own_folder: Path) -> None:
    _do(
        pair,
        *TRAP,
        "DROP TABLE IF EXISTS beside; CREATE TABLE beside (id int)",
        "CREATE SEQUENCE counts",
        user="postgres",
    )
    ((oid,),) = _do(pair, "SELECT 'beside'::regclass::oid")
    _do(pair, "SELECT nextval('counts')", user="postgres")
    with new_session(_dsn(pair)) as session:
        (one,) = (one for one in sequences(session) if one.name == "counts")
    loss = TableLoss(Table((1, 2, 3), None, "", oid, "public", "beside", ("id",), root=oid))
    loss.changes.append(Change("insert", ("1",), None, state="clean"))
    _files(pair, own_folder, [loss], [replace(one, last=7)])
    (path,) = (own_folder / "rows").glob("*_sequences.sql")
    ran, level = _ran(pair), "ALTER DATABASE app SET default_transaction_isolation = 'repeatable read'"
    _do(pair, level, user="postgres")
    assert "as read committed" in _psql(pair, own_folder / "here", [path], "-1").stderr
    _do(pair, level.replace("SET", "RESET").partition(" =")[0], user="postgres")
    assert _psql(pair, own_folder / "here", [path], "-1").returncode == 0
    assert _do(pair, "SELECT last_value FROM counts", user="postgres") == [(7,)]
    _do(
        pair,
        "ALTER SEQUENCE counts RENAME TO counts_was",
        "CREATE VIEW counts AS SELECT trap(1)::int8 AS last_value",
        user="postgres",
    )
    done = _psql(pair, own_folder / "here", [path], "-1")
    assert done.returncode != 0 and "is not what was read" in done.stderr and _ran(pair) == ran, done.stderr
