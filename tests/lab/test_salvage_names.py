"""Names in the SQL of lost rows: on the new primary something else may have them by the time that it is run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.own_folder import own_folder
from tests.fixtures.owned import PUBLIC_ANEW, dsn, inserts, owned, ran, root
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.salvaged import files, psql
from tests.fixtures.tiers import every
from walproof.errors import Error
from walproof.salvaging import trial
from walproof.salvaging.catalog import sequences, tables
from walproof.salvaging.changes import Change, Table, TableLoss
from walproof.salvaging.plan import identity, new_session
from walproof.salvaging.trial import tried

__all__ = ["own_folder", "owned"]
pytestmark = [pytest.mark.lab, pytest.mark.nightly]
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


def test_no_name_in_the_sql_stands_for_another_thing_than_was_read(
    owned: PlainPair, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there = trial._is_there

    def is_refused(name: str) -> None:
        named = "CREATE TABLE named (id int PRIMARY KEY, v text); INSERT INTO named VALUES (3, 'x')"
        root(owned, *PUBLIC_ANEW, named, "CREATE TABLE naming (id int REFERENCES named)")
        with new_session(dsn(owned)) as session:
            (table,) = (one for one in tables(session, 0) if one.name == "named")
        loss = TableLoss(table, [Change("delete", None, ("3", "x"), state="clean")])
        written, before, looks = files(dsn(owned), own_folder / name, [loss]), ran(owned), list[bool]()
        assert tried(dsn(owned), {"load"}, "app", [loss], written, planned=None) == []

        def meanwhile(session: Any, loss: TableLoss) -> bool:
            looks.append(is_there(session, loss))
            for text in NAMING[name].split("; ") if len(looks) == 1 else ():
                root(owned, text.replace("!", ";"))
            return looks[-1]

        with monkeypatch.context() as patched:
            patched.setattr(trial, "_is_there", meanwhile)
            (said,) = tried(dsn(owned), {"load", "existing-tables"}, "app", [loss], written, planned=None)
        assert said.startswith("public.named: ") and said.endswith("was replaced meanwhile: its files were not tried")
        done = psql(dsn(owned), [one.path for one in written], "-1")
        assert done.returncode != 0 and "ERROR:" in done.stderr and ran(owned) == before, done.stderr

    every(NAMING, is_refused)


def test_a_session_of_another_server_than_was_planned_with_is_refused(owned: PlainPair, own_folder: Path) -> None:
    """The old primary was back at a host of --new: every lost row was "already there", and its SQL tried on it."""
    system, timeline, _ = identity(dsn(owned))
    for reads_only in (True, False):
        with new_session(dsn(owned), planned=(system, timeline), reads_only=reads_only) as session:
            assert session.execute("SELECT 1").fetchall() == [(1,)]
        for planned in ((system, timeline + 1), (system + 1, timeline)):
            another = new_session(dsn(owned), planned=planned, reads_only=reads_only)
            with pytest.raises(Error, match="another server answers as --new"), another:
                pass
    table = Table((0, 0, 0), None, "", 0, "public", "none", ("id",), (0,), 0)
    loss = TableLoss(table, [Change("insert", ("1",), None, state="clean")])
    written = files(dsn(owned), own_folder, [loss])
    (said, *_) = tried(dsn(owned), {"load"}, "app", [loss], written, planned=(system, timeline + 1))
    assert said.startswith("not tried to the end") and "another server answers as --new" in said


def test_a_view_that_takes_a_sequences_name_is_not_asked(owned: PlainPair, own_folder: Path) -> None:
    root(owned, *PUBLIC_ANEW, "CREATE TABLE beside (id int)", "CREATE SEQUENCE counts", "SELECT nextval('counts')")
    with new_session(dsn(owned)) as session:
        (one,) = (one for one in sequences(session) if one.name == "counts")
    files(dsn(owned), own_folder, [inserts(owned, "beside")], [replace(one, last=7)])
    path, before = next((own_folder / "rows").glob("*_sequences.sql")), ran(owned)
    root(owned, "ALTER DATABASE app SET default_transaction_isolation = 'repeatable read'")
    assert "as read committed" in psql(dsn(owned), [path], "-1").stderr
    root(owned, "ALTER DATABASE app RESET default_transaction_isolation")
    assert psql(dsn(owned), [path], "-1").returncode == 0
    assert root(owned, "SELECT last_value FROM counts") == [(7,)]
    view = "CREATE VIEW counts AS SELECT trap(1)::int8 AS last_value"
    root(owned, "ALTER SEQUENCE counts RENAME TO counts_was", view)
    done = psql(dsn(owned), [path], "-1")
    assert done.returncode != 0 and "is not what was read" in done.stderr and ran(owned) == before, done.stderr
