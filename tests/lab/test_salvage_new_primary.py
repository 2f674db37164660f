"""`walproof salvage` beside owners on the new primary: what they swap, add or hide is neither run nor believed."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.own_folder import own_folder
from tests.fixtures.owned import PUBLIC_ANEW, TRAP, do, dsn, inserts, owned, ran, root
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.salvaged import files, psql
from tests.fixtures.tiers import every
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging import rows, trial
from walproof.salvaging.catalog import RanOn, sequences, tables
from walproof.salvaging.changes import Change, Table, TableLoss
from walproof.salvaging.plan import identity, new_session
from walproof.salvaging.rows import read_table
from walproof.salvaging.trial import tried
from walproof.salvaging.wal import LostWal

__all__ = ["own_folder", "owned"]
pytestmark = [pytest.mark.lab, pytest.mark.nightly]
SIDES = ("", "a", "\n", "\\! touch ran\n")
LETTERS = [*map(chr, range(1, 256)), "\u202e", "\u3000", "\u8868", "\U0001f600"]
"""Every byte that text can hold, and letters of two to four bytes: of 表 SJIS reads the last byte as a backslash."""


def test_every_byte_arrives_as_it_was_and_nothing_of_it_is_run(owned: PlainPair, own_folder: Path) -> None:
    losses, moving, there = list[TableLoss](), list[RanOn](), dict[tuple[str, str, str], set[str]]()
    with psycopg.connect(dsn(owned, "owner"), autocommit=True) as session:
        session.execute("SET client_encoding = 'UTF8'")
        session.execute("ALTER DATABASE app SET standard_conforming_strings = off")
        for at, letter in enumerate(LETTERS):
            before, after = SIDES[at % 4], SIDES[at // 4 % 4]
            schema, table, column = (f"{one}{before}{letter}{after}" for one in ("", "t", "c"))
            values = [f"{left}{letter}{right}" for left in SIDES for right in SIDES]
            names = [sql.Identifier(one) for one in (schema, table, column)]
            session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(names[0]))
            session.execute(sql.SQL("CREATE SCHEMA {}").format(names[0]))
            session.execute(sql.SQL("CREATE TABLE {}.{} ({} text)").format(*names))
            session.execute(sql.SQL("CREATE SEQUENCE {}.{}").format(names[0], sql.Identifier(f"s{letter}")))
            found = "SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = %s"
            oids = [session.execute(found, (names[0].as_string(session), kind)).fetchall()[0][0] for kind in ("r", "S")]
            moving.append(RanOn(schema, f"s{letter}", 1, 7, 1, oids[1]))
            one = Table((1, 2, at), None, "", oids[0], schema, table, columns=(column,), root=oids[0])
            losses.append(TableLoss(one, [Change("insert", (value,), None, state="clean") for value in values]))
            there[schema, table, column] = set(values)
    paths = [one.path for one in files(dsn(owned), own_folder, losses, moving)]
    assert len(paths) == len(LETTERS)
    paths += (own_folder / "rows").glob("*_sequences.sql")
    for path in paths:
        assert set(path.read_bytes()) <= {10, *range(32, 127)}
        lines = path.read_text().splitlines()
        assert [line for line in lines if line.lstrip().startswith("\\")] == ["\\set ON_ERROR_STOP on"]
    done = psql(dsn(owned), paths, "-1", here=own_folder / "here")
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr[-2000:]
    assert not list((own_folder / "here").iterdir())
    with psycopg.connect(dsn(owned, "owner"), autocommit=True, options="-c standard_conforming_strings=on") as session:
        for names_of, wanted in there.items():
            query = sql.SQL("SELECT {2} FROM {0}.{1}").format(*map(sql.Identifier, names_of))
            assert {value for (value,) in session.execute(query)} == wanted
        for one_moved in moving:
            name = sql.Identifier(one_moved.schema, one_moved.name)
            assert session.execute(sql.SQL("SELECT last_value FROM {}").format(name)).fetchall() == [(7,)]
    root(owned, "ALTER DATABASE app RESET standard_conforming_strings")
    refused = psql(dsn(owned, "postgres"), paths, "-v", "ON_ERROR_STOP=0", here=own_folder / "here")
    assert refused.returncode != 0 and not list((own_folder / "here").iterdir())


def test_the_files_refuse_who_is_or_can_become_a_superuser(owned: PlainPair, own_folder: Path) -> None:
    in_role = {"member": "LOGIN IN ROLE postgres", "runner": "LOGIN IN ROLE app, pg_execute_server_program"}
    in_role |= {"maker": "LOGIN CREATEROLE IN ROLE app"}
    root(owned, *(f"CREATE ROLE {name} PASSWORD '{name}' {more}" for name, more in in_role.items()))
    do(owned, "CREATE TABLE guarded (id int)")
    paths = [one.path for one in files(dsn(owned), own_folder, [inserts(owned, "guarded")])]
    choices = [(), ("-1",), ("-v", "ON_ERROR_STOP=0"), ("-1", "-v", "ON_ERROR_STOP=1")]

    def refuses(user: str, *words: str) -> None:
        done = psql(dsn(owned, user), paths, *words, here=own_folder / "here")
        assert "run this file as a role that is no superuser" in done.stderr
        with pytest.raises(UsageError, match="can become one"):
            identity(dsn(owned, user))

    every([(user, *words) for user in ("postgres", *in_role) for words in choices], refuses)
    hidden = "ALTER DATABASE app SET session_authorization = app"
    do(owned, hidden, user="postgres", database="postgres")
    every([("postgres", *words) for words in choices], refuses)
    do(owned, "ALTER DATABASE app RESET session_authorization", user="postgres", database="postgres")
    assert do(owned, "SELECT count(*) FROM guarded") == [(0,)]

    def is_whole(*words: str) -> None:
        """Only a transaction holds what the names stand for."""
        do(owned, "DELETE FROM guarded")
        done = psql(dsn(owned), paths, *words, here=own_folder / "here")
        assert (done.returncode == 0) == ("-1" in words)
        assert "-1" in words or "can only be used in transaction blocks" in done.stderr
        assert do(owned, "SELECT count(*) FROM guarded") == [("-1" in words,)]

    every(choices, is_whole)


def test_what_the_old_servers_superuser_wrote_into_its_catalog_is_data(owned: PlainPair, own_folder: Path) -> None:
    """A function of pg_catalog that answers with a meta-command, and an operator of a foreign key called so."""
    owned.sql("n1", "CREATE DATABASE forged")
    answer = "RETURNS text LANGUAGE sql AS $$SELECT E'\\n\\\\! touch ran\\n'::text$$"
    do(
        owned,
        "CREATE SEQUENCE s; SELECT nextval('s')",
        "CREATE TABLE named (id date PRIMARY KEY); CREATE TABLE naming (id date REFERENCES named)",
        f"CREATE FUNCTION pg_catalog.pg_sequence_last_value(oid) {answer}",
        "SET allow_system_table_mods = on",
        "UPDATE pg_operator SET oprname = E'= 1)\\n\\\\! touch ran\\n' WHERE oid = 1093",
        user="postgres",
        database="forged",
    )
    with psycopg.connect(dsn(owned, "postgres", "forged"), autocommit=True) as session:
        session.execute("SET search_path = pg_catalog")
        assert [(one.name, one.last) for one in sequences(session)] == [("s", 1)]
        session.execute("SET allow_system_table_mods = on")
        session.execute("DELETE FROM pg_proc WHERE proname = 'pg_sequence_last_value' AND proargtypes = '2205'")
        session.execute(f"CREATE FUNCTION pg_catalog.pg_sequence_last_value(regclass) {answer}".encode())
        assert ["invalid literal" in one.unread for one in sequences(session)] == [True]
        (named,) = (one for one in tables(session, 0) if one.name == "named")
    assert "no operator: the SQL deletes no row of it" in named.warnings[0]
    loss = TableLoss(named, [Change("delete", None, ("2026-11-30",), state="clean")])
    one, _ = files(dsn(owned), own_folder, [loss])
    assert one.path.read_text().count("\\") == 1 and one.path.read_text().endswith("AND false;\n")
    owned.sql("n1", "DROP DATABASE forged")


OWNERS = {
    "keyed": ("CREATE TABLE {0}_all (id int, v text) PARTITION BY LIST ((trap(id)))",
              "CREATE TABLE {0} PARTITION OF {0}_all FOR VALUES IN (1)"),
    "defaulted": ("CREATE TABLE {0} (id int, v text); ALTER TABLE {0} ADD w int DEFAULT trap(1)",),
    "generated": ("CREATE TABLE {0} (id int, v text, w int GENERATED ALWAYS AS (trap(id)) STORED)",),
    "checked": ("CREATE TABLE {0} (id int CHECK (trap(id) = 1), v text)",),
    "indexed": ("CREATE TABLE {0} (id int, v text); CREATE INDEX ON {0} (trap(id))",),
    "primary_with": ("CREATE TABLE {0} (id int PRIMARY KEY, v text); CREATE INDEX ON {0} (id) WHERE trap(1) = 1",),
    "excluded": ("CREATE TABLE {0} (id int, v text, EXCLUDE USING btree (id WITH =) WHERE (trap(1) = 1))",),
    "estimated": ("CREATE TABLE {0} (id int, v text); CREATE STATISTICS {0}_s ON id, trap(1) FROM {0}",),
    "of_domain": ("CREATE DOMAIN {0}_d AS text", "CREATE TABLE {0} (id int, v {0}_d)"),
    "of_composite": ("CREATE DOMAIN {0}_d AS int CHECK (trap(VALUE) = 1)", "CREATE TYPE {0}_c AS (d {0}_d)",
                     "CREATE TABLE {0} (id int, v {0}_c)"),
    "ruled": ("CREATE TABLE {0} (id int, v text)", "CREATE RULE r AS ON INSERT TO {0} DO ALSO SELECT trap(1)"),
    "triggered": ("CREATE TABLE {0} (id int, v text)",
                  "CREATE TRIGGER t BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION fired()"),
    "naming": ("CREATE TABLE {0}_named (id int PRIMARY KEY); INSERT INTO {0}_named VALUES (1)",
               "CREATE INDEX ON {0}_named (id) WHERE trap(1) = 1",
               "CREATE TABLE {0} (id int REFERENCES {0}_named, v text)"),
    "named": ("CREATE TABLE {0} (id int PRIMARY KEY, v text)",
              "CREATE TABLE {0}_naming (id int REFERENCES {0}) PARTITION BY LIST (id)",
              "CREATE TABLE {0}_part PARTITION OF {0}_naming DEFAULT; CREATE INDEX ON {0}_part (id) WHERE trap(1) = 1"),
    "defaulted_by_text": ("CREATE TABLE {0} (id int, v text)",
                          "ALTER TABLE {0} ADD w xml DEFAULT query_to_xml('SELECT public.trap(1)', true, true, '')"),
    "checked_by_text": ("CREATE TABLE {0} (id int, v text,"
                        " CHECK (query_to_xml('SELECT public.trap(1)', true, true, '') IS NOT NULL))",),
    "defaulted_by_cast": ("CREATE TABLE {0} (id int, v text, j jsonb DEFAULT to_jsonb(clock_timestamp()))",),
    "checked_by_json": ("CREATE TABLE {0} (id int, v text, CHECK (JSON_ARRAY(v) IS NOT NULL))",),
    "checked_by_quoting": ("CREATE TABLE {0} (id int, v text, CHECK (quote_literal(id) <> ''))",),
    "checked_by_operator": ("CREATE TABLE {0} (id int, v text, CHECK ((v || id) <> ''))",),
    "checked_by_type": ("CREATE DOMAIN {0}_d AS int CHECK (trap(VALUE) = 1)",
                        "CREATE TABLE {0} (id int CHECK (pg_input_is_valid(id::text, 'public.{0}_d')), v text)"),
    "usual": ("CREATE TABLE {0} (id int, v text, at timestamptz DEFAULT now(), u uuid DEFAULT gen_random_uuid(),"
              " n bigserial, CHECK (date(at) > '2000-01-01'))",),
    "plain": ("CREATE TABLE {0} (id int DEFAULT 7 CHECK (id > 0) PRIMARY KEY, v text UNIQUE)",
              "CREATE INDEX ON {0} (lower(v)) WHERE id > 5"),
    "parted": ("CREATE TABLE {0}_all (id int, v text) PARTITION BY RANGE (id)",
               "CREATE TABLE {0}_trapped PARTITION OF {0}_all (CHECK (trap(id) = 1)) FOR VALUES FROM (100) TO (200)",
               "CREATE TABLE {0} PARTITION OF {0}_all FOR VALUES FROM (0) TO (100)"),
}  # fmt: skip
"""Tables by where their owner's function hangs on them; in usual, plain and parted writing to them would run none."""


def _lost(owned: PlainPair, name: str) -> TableLoss:
    with new_session(dsn(owned)) as session:
        (table,) = (one for one in tables(session, 0) if one.name == name)
    keys = table.references
    table = Table(table.relation, None, "", table.oid, "public", name, ("id", "v"), (0,), table.oid, references=keys)
    value = "(1)" if name == "of_composite" else "x"
    return TableLoss(table, [Change("insert", ("1", value), None, state="clean")])


NOT_RUN = {
    "of_domain", "estimated", "ruled", "naming", "named", "defaulted_by_cast", "checked_by_json", "checked_by_quoting",
    "checked_by_operator",
}  # fmt: skip
"""What might run, and does not for this row."""


def test_no_function_of_the_owner_is_run_without_its_own_consent(owned: PlainPair, own_folder: Path) -> None:
    def is_run(name: str) -> None:
        root(owned, *TRAP, *(text.format(name) for text in OWNERS[name]))
        loss, before = _lost(owned, name), ran(owned)
        written = files(dsn(owned), own_folder / name, [loss])
        says = tried(dsn(owned), {"load"}, "app", [loss], written, planned=None)
        assert ran(owned) == before, says
        if name in ("plain", "parted", "usual"):
            assert says == []
        else:
            assert len(says) == 1 and says[0].startswith("not tried: it would run "), says
            tried(dsn(owned), {"load", "existing-tables"}, "app", [loss], written, planned=None)
            assert ran(owned) > before or name in NOT_RUN

    every(OWNERS, is_run)


def test_a_cast_that_the_owner_of_a_type_adds_meanwhile_is_not_run(owned: PlainPair) -> None:
    """CREATE CAST takes no lock of a table: what was looked at before may have one by now."""
    root(
        owned, "CREATE TYPE kind AS ENUM ('a', 'b')",
        "CREATE TABLE kinds (k kind, id int, v text, PRIMARY KEY (k, id))",
        "INSERT INTO kinds VALUES ('a', 1, 'x')",
        "CREATE FUNCTION of_kind(kind) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
        " RAISE LOG 'trap ran as %', current_user; RETURN enum_out($1)::text; END $$",
        "CREATE CAST (kind AS text) WITH FUNCTION of_kind(kind) AS IMPLICIT",
    )  # fmt: skip
    before = ran(owned)
    lost = [Change("insert", ("a", "1", "x"), None), Change("insert", ("b", "1", "x"), None)]
    with new_session(dsn(owned)) as session:
        (table,) = (one for one in tables(session, 0) if one.name == "kinds")
        found = [one.state for one in rows.compared(session, table, lost, "false")]
    assert (found, ran(owned)) == (["there", "clean"], before)


def test_a_function_that_catches_its_cancellation_is_ended_with_the_session(
    owned: PlainPair, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = "CREATE OR REPLACE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    stays += " PERFORM set_config('client_connection_check_interval', '0', false); LOOP BEGIN"
    stays += " PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$"
    trigger = "CREATE TRIGGER t BEFORE INSERT ON staying FOR EACH ROW EXECUTE FUNCTION stays()"
    root(owned, "CREATE TABLE staying (id int PRIMARY KEY, v text)", stays, trigger)
    loss = _lost(owned, "staying")
    written = files(dsn(owned), own_folder, [loss])
    monkeypatch.setattr(trial, "LONGEST_S", 0.5)
    monkeypatch.setattr(trial, "GRACE_S", 0.5)
    closed = threading.Timer(0.2, root, (owned, "ALTER DATABASE app CONNECTION LIMIT 0"))
    closed.start()
    says = tried(dsn(owned), {"load", "existing-tables"}, "app", [loss], written, planned=None)
    closed.join()
    root(owned, "ALTER DATABASE app CONNECTION LIMIT -1")
    assert says
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walproof salvage' AND state = 'active'"
    wait_for(Wait.PROGRAM_GONE, lambda: root(owned, left) == [(0,)], RealClock())


SWAPS = (
    "ALTER TABLE {0} RENAME TO {0}_was; CREATE VIEW {0} AS SELECT id, v FROM {0}_was WHERE trap(1) = 1",
    "ALTER TABLE {0} RENAME TO {0}_was; CREATE TABLE {0} (id int PRIMARY KEY CHECK (trap(id) = 1), v text)",
    "ALTER TABLE {0} RENAME TO {0}_was;"
    " CREATE VIEW {0} AS SELECT id, v, '9'::xid AS xmin FROM {0}_was WHERE trap(1) = 1",
    "DROP TABLE {0}",
)
CHANGES = (
    "CREATE TRIGGER t BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION fired()",
    "CREATE INDEX ON {0} (id) WHERE trap(1) = 1",
    "CREATE INDEX CONCURRENTLY ON {0} (id) WHERE trap(1) = 1",
    "CREATE STATISTICS {0}_s ON id, trap(1) FROM {0}",
    "CREATE RULE r AS ON INSERT TO {0} DO ALSO SELECT trap(1)",
    "ALTER TABLE {0} ADD w int DEFAULT trap(1)",
    "ALTER TABLE {0} RENAME TO {0}_was",
    "CREATE TABLE {0}_ref (id int REFERENCES {0} ON UPDATE CASCADE)",
    "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY",
)


def test_what_is_swapped_or_added_meanwhile_is_neither_run_nor_read(
    owned: PlainPair, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner does one thing just before the table is locked, and tries others once it is."""
    holds: Callable[..., None] = rows.hold

    def is_seen(number: int, module: Any, before: str, after: tuple[str, ...]) -> None:
        root(owned, *PUBLIC_ANEW, "CREATE TABLE meanwhile (id int PRIMARY KEY, v text)")
        loss, ran_before, refused = _lost(owned, "meanwhile"), ran(owned), list[str]()
        written = files(dsn(owned), own_folder / str(number), [loss])

        def hold(session: Any, schema: str, name: str) -> None:
            if before:
                root(owned, *before.format(name).split("; "))
            holds(session, schema, name)
            for text in after:
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    root(owned, text.format(name))
                refused.append(text)

        with monkeypatch.context() as patched:
            patched.setattr(module, "hold", hold)
            says = is_tried(loss, written) if module is trial else is_read(loss, patched)
        assert bool(says) == bool(before), says
        assert refused == list(after) and ran(owned) == ran_before

    def is_tried(loss: TableLoss, written: Any) -> list[str]:
        says = tried(dsn(owned), {"load"}, "app", [loss], written, planned=None)
        assert all("meanwhile" in one for one in says), says
        return says

    def is_read(loss: TableLoss, patched: pytest.MonkeyPatch) -> list[str]:
        with psycopg.connect(dsn(owned, "postgres"), autocommit=True) as copied, new_session(dsn(owned)) as new:
            patched.setattr(rows, "_versions", lambda *_: ([], [], [(0, 1)], [], 0, [], []))
            patched.setattr(rows, "_at", lambda _, __, places, ___: [(at, ("1", "old")) for at in places])
            lost = LostWal(0x200, xids={9}, known_from=1, next_xid=9)
            copied.execute("SET search_path = pg_catalog")
            return read_table(copied, "none", loss.table, lost, new).notes

    tries = [*((one, ()) for one in SWAPS), ("", CHANGES)]
    both = [(module, *one) for module in (rows, trial) for one in tries]
    every([(number, *one) for number, one in enumerate(both)], is_seen)
