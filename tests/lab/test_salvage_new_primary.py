"""`walproof salvage` beside owners on the new primary: what they swap, add or hide is neither run nor believed."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, wheel_bin
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging import rows, trial
from walproof.salvaging.catalog import RanOn, sequences, tables
from walproof.salvaging.changes import Change, Table, TableLoss
from walproof.salvaging.plan import identity, new_session
from walproof.salvaging.private_folder import private_folder
from walproof.salvaging.recovered import SqlFile, write
from walproof.salvaging.rows import read_table
from walproof.salvaging.trial import tried
from walproof.salvaging.wal import LostWal

__all__ = ["own_folder"]
pytestmark = pytest.mark.lab
SIDES = ("", "a", "\n", "\\! touch ran\n")
LETTERS = [*map(chr, range(1, 256)), "\u202e", "\u3000", "\u8868", "\U0001f600"]
"""Every byte that text can hold, and letters of two to four bytes: of 表 SJIS reads the last byte as a backslash."""


@pytest.fixture(scope="module")
def pair() -> Iterator[PlainPair]:
    with plain_pair(wheel_bin()) as made:
        for text in (
            "CREATE ROLE app LOGIN PASSWORD 'app' IN ROLE pg_read_all_data, pg_write_all_data",
            "CREATE ROLE owner LOGIN PASSWORD 'owner'",
            "CREATE DATABASE app OWNER owner",
        ):
            made.sql("n1", text)
        yield made


def _dsn(pair: PlainPair, user: str = "app", database: str = "app") -> str:
    conninfo = pair.member_endpoint("n1").client_conninfo()
    login = {} if user == "postgres" else {"user": user, "password": user}
    return make_conninfo(conninfo, dbname=database, **login)


def _do(pair: PlainPair, *texts: str | sql.Composed, user: str = "owner", database: str = "app") -> list[Any]:
    with psycopg.connect(_dsn(pair, user, database), autocommit=True) as session:
        session.execute("SET lock_timeout = '200ms'")
        for text in texts:
            cursor = session.execute(text if isinstance(text, sql.Composed) else text.encode())
        return cursor.fetchall() if cursor.description else []


def _files(pair: PlainPair, folder: Path, losses: list[TableLoss], moving: list[RanOn]) -> list[SqlFile]:
    with private_folder(folder) as opened, new_session(_dsn(pair)) as session:
        return write(opened, "rows", session, losses, moving, "false")


def _psql(
    pair: PlainPair, folder: Path, paths: list[Path], *words: str, user: str = "app"
) -> "subprocess.CompletedProcess[str]":
    """psql as a careless person starts it: without any option but these, in an encoding of its own."""
    argv = [str(wheel_bin() / "psql"), "-X", "-v", "v=evil", *words, "-d", _dsn(pair, user)]
    typed = [word for path in paths for word in ("-f", str(path))]
    environment = {"PATH": os.environ["PATH"], "PGCLIENTENCODING": "SJIS"}
    folder.mkdir(exist_ok=True)
    return subprocess.run([*argv, *typed], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_every_byte_arrives_as_it_was_and_nothing_of_it_is_run(
    pair: PlainPair, own_folder: Path, conforming: str
) -> None:
    losses, moving, there = list[TableLoss](), list[RanOn](), dict[tuple[str, str, str], set[str]]()
    with psycopg.connect(_dsn(pair, "owner"), autocommit=True) as session:
        session.execute("SET client_encoding = 'UTF8'")
        session.execute(f"ALTER DATABASE app SET standard_conforming_strings = {conforming}")
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
    files = [one.path for one in _files(pair, own_folder, losses, moving)]
    moved = next((own_folder / "rows").glob("*_sequences.sql"))
    assert len(files) == len(LETTERS)
    for path in (*files, moved):
        assert set(path.read_bytes()) <= {10, *range(32, 127)}
        lines = path.read_text().splitlines()
        assert [line for line in lines if line.lstrip().startswith("\\")] == ["\\set ON_ERROR_STOP on"]
    done = _psql(pair, own_folder / "here", [*files, moved], "-1")
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr[-2000:]
    assert not list((own_folder / "here").iterdir())
    with psycopg.connect(_dsn(pair, "owner"), autocommit=True, options="-c standard_conforming_strings=on") as session:
        for names_of, wanted in there.items():
            query = sql.SQL("SELECT {2} FROM {0}.{1}").format(*map(sql.Identifier, names_of))
            assert {value for (value,) in session.execute(query)} == wanted
        for one_moved in moving:
            name = sql.Identifier(one_moved.schema, one_moved.name)
            assert session.execute(sql.SQL("SELECT last_value FROM {}").format(name)).fetchall() == [(7,)]
    refused = _psql(pair, own_folder / "here", [*files, moved], "-v", "ON_ERROR_STOP=0", user="postgres")
    assert refused.returncode != 0 and not list((own_folder / "here").iterdir())


@pytest.mark.parametrize("words", [(), ("-1",), ("-v", "ON_ERROR_STOP=0"), ("-1", "-v", "ON_ERROR_STOP=1")])
def test_the_files_refuse_who_is_or_can_become_a_superuser(
    pair: PlainPair, own_folder: Path, words: tuple[str, ...]
) -> None:
    name = f"guarded{len(words)}{len(''.join(words))}"
    _do(pair, f"CREATE TABLE {name} (id int)")
    _do(
        pair,
        "DROP ROLE IF EXISTS member; CREATE ROLE member LOGIN PASSWORD 'member' IN ROLE postgres",
        "DROP ROLE IF EXISTS runner",
        "CREATE ROLE runner LOGIN PASSWORD 'runner' IN ROLE app, pg_execute_server_program",
        "DROP ROLE IF EXISTS maker",
        "CREATE ROLE maker LOGIN CREATEROLE PASSWORD 'maker' IN ROLE app",
        user="postgres",
    )
    ((oid,),) = _do(pair, f"SELECT '{name}'::regclass::oid")
    loss = TableLoss(Table((1, 2, 3), None, "", oid, "public", name, ("id",), root=oid))
    loss.changes.append(Change("insert", ("1",), None, state="clean"))
    paths = [one.path for one in _files(pair, own_folder, [loss], [])]
    hidden = "ALTER DATABASE app SET session_authorization = app"
    for setting, users in (("SELECT 1", ("postgres", "member", "runner", "maker")), (hidden, ("postgres",))):
        _do(pair, setting, user="postgres", database="postgres")
        for user in users:
            done = _psql(pair, own_folder / "here", paths, *words, user=user)
            assert "run this file as a role that is no superuser" in done.stderr, (user, setting)
            with pytest.raises(UsageError, match="can become one"):
                identity(_dsn(pair, user))
    _do(pair, "ALTER DATABASE app RESET session_authorization", user="postgres", database="postgres")
    assert _do(pair, f"SELECT count(*) FROM {name}") == [(0,)]
    done = _psql(pair, own_folder / "here", paths, *words)
    assert (done.returncode == 0) == ("-1" in words), "only a transaction holds what the names stand for"
    assert "-1" in words or "can only be used in transaction blocks" in done.stderr
    assert _do(pair, f"SELECT count(*) FROM {name}") == [("-1" in words,)]


def test_what_the_old_servers_superuser_wrote_into_its_catalog_is_data(pair: PlainPair, own_folder: Path) -> None:
    """A function of pg_catalog that answers with a meta-command, and an operator of a foreign key called so."""
    pair.sql("n1", "CREATE DATABASE forged")
    answer = "RETURNS text LANGUAGE sql AS $$SELECT E'\\n\\\\! touch ran\\n'::text$$"
    _do(
        pair,
        "CREATE SEQUENCE s; SELECT nextval('s')",
        "CREATE TABLE named (id date PRIMARY KEY); CREATE TABLE naming (id date REFERENCES named)",
        f"CREATE FUNCTION pg_catalog.pg_sequence_last_value(oid) {answer}",
        "SET allow_system_table_mods = on",
        "UPDATE pg_operator SET oprname = E'= 1)\\n\\\\! touch ran\\n' WHERE oid = 1093",
        user="postgres",
        database="forged",
    )
    with psycopg.connect(_dsn(pair, "postgres", "forged"), autocommit=True) as session:
        session.execute("SET search_path = pg_catalog")
        assert [(one.name, one.last) for one in sequences(session)] == [("s", 1)]
        session.execute("SET allow_system_table_mods = on")
        session.execute("DELETE FROM pg_proc WHERE proname = 'pg_sequence_last_value' AND proargtypes = '2205'")
        session.execute(f"CREATE FUNCTION pg_catalog.pg_sequence_last_value(regclass) {answer}".encode())
        assert ["invalid literal" in one.unread for one in sequences(session)] == [True]
        (named,) = (one for one in tables(session, 0) if one.name == "named")
    assert "no operator: the SQL deletes no row of it" in named.warnings[0]
    loss = TableLoss(named, [Change("delete", None, ("2026-11-30",), state="clean")])
    one, _ = _files(pair, own_folder, [loss], [])
    assert one.path.read_text().count("\\") == 1 and one.path.read_text().endswith("AND false;\n")
    pair.sql("n1", "DROP DATABASE forged")


TRAP = (
    "CREATE OR REPLACE FUNCTION trap(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
    " RAISE LOG 'trap ran as %', current_user; RETURN 1; END $$",
    "CREATE OR REPLACE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " RAISE LOG 'trap ran as %', current_user; RETURN NEW; END $$",
)
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


def _lost(pair: PlainPair, name: str) -> TableLoss:
    with new_session(_dsn(pair)) as session:
        (table,) = (one for one in tables(session, 0) if one.name == name)
    keys = table.references
    table = Table(table.relation, None, "", table.oid, "public", name, ("id", "v"), (0,), table.oid, references=keys)
    value = "(1)" if name == "of_composite" else "x"
    return TableLoss(table, [Change("insert", ("1", value), None, state="clean")])


def _ran(pair: PlainPair) -> int:
    return (pair.home / "n1.log").read_text().count("trap ran as app")


@pytest.mark.parametrize("name", OWNERS)
def test_no_function_of_the_owner_is_run_without_its_own_consent(pair: PlainPair, own_folder: Path, name: str) -> None:
    _do(pair, *TRAP, *(text.format(name) for text in OWNERS[name]), user="postgres")
    loss = _lost(pair, name)
    files = _files(pair, own_folder, [loss], [])
    before = _ran(pair)
    says = tried(_dsn(pair), {"load"}, "app", [loss], files, planned=None)
    assert _ran(pair) == before
    if name in ("plain", "parted", "usual"):
        assert says == []
    else:
        assert len(says) == 1 and says[0].startswith("not tried: it would run "), says
        tried(_dsn(pair), {"load", "existing-tables"}, "app", [loss], files, planned=None)
        assert _ran(pair) > before or name in (
            "of_domain",
            "estimated",
            "ruled",
            "naming",
            "named",
            "defaulted_by_cast",
            "checked_by_json",
            "checked_by_quoting",
            "checked_by_operator",
        )


def test_a_cast_that_the_owner_of_a_type_adds_meanwhile_is_not_run(pair: PlainPair) -> None:
    """CREATE CAST takes no lock of a table: what was looked at before may have one by now."""
    _do(
        pair, "DROP TYPE IF EXISTS kind CASCADE; DROP TABLE IF EXISTS kinds",
        "CREATE TYPE kind AS ENUM ('a', 'b')", "CREATE TABLE kinds (k kind, id int, v text, PRIMARY KEY (k, id))",
        "INSERT INTO kinds VALUES ('a', 1, 'x')",
        "CREATE FUNCTION of_kind(kind) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
        " RAISE LOG 'trap ran as %', current_user; RETURN enum_out($1)::text; END $$",
        "CREATE CAST (kind AS text) WITH FUNCTION of_kind(kind) AS IMPLICIT", user="postgres",
    )  # fmt: skip
    before = _ran(pair)
    lost = [Change("insert", ("a", "1", "x"), None), Change("insert", ("b", "1", "x"), None)]
    with new_session(_dsn(pair)) as session:
        (table,) = (one for one in tables(session, 0) if one.name == "kinds")
        found = [one.state for one in rows.compared(session, table, lost, "false")]
    assert (found, _ran(pair)) == (["there", "clean"], before)


def test_a_function_that_catches_its_cancellation_is_ended_with_the_session(
    pair: PlainPair, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = "CREATE OR REPLACE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    stays += " PERFORM set_config('client_connection_check_interval', '0', false); LOOP BEGIN"
    stays += " PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$"
    trigger = "CREATE TRIGGER t BEFORE INSERT ON staying FOR EACH ROW EXECUTE FUNCTION stays()"
    _do(
        pair,
        "DROP TABLE IF EXISTS staying; CREATE TABLE staying (id int PRIMARY KEY, v text)",
        stays,
        trigger,
        user="postgres",
    )
    loss = _lost(pair, "staying")
    files = _files(pair, own_folder, [loss], [])
    monkeypatch.setattr(trial, "LONGEST_S", 0.5)
    monkeypatch.setattr(trial, "GRACE_S", 0.5)
    closed = threading.Timer(0.2, _do, (pair, "ALTER DATABASE app CONNECTION LIMIT 0"), {"user": "postgres"})
    closed.start()
    says = tried(_dsn(pair), {"load", "existing-tables"}, "app", [loss], files, planned=None)
    closed.join()
    _do(pair, "ALTER DATABASE app CONNECTION LIMIT -1", user="postgres")
    assert says
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walproof salvage' AND state = 'active'"
    wait_for(Wait.PROGRAM_GONE, lambda: _do(pair, left, user="postgres") == [(0,)], RealClock())


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


def _meanwhile(
    pair: PlainPair, monkeypatch: pytest.MonkeyPatch, module: Any, before: str, after: tuple[str, ...]
) -> list[str]:
    """The owner does this just before the table is locked, and tries that once it is; what he was refused."""
    holds: Callable[..., None] = rows.hold
    refused = list[str]()

    def hold(session: Any, schema: str, name: str) -> None:
        if before:
            _do(pair, *before.format(name).split("; "), user="postgres")
        holds(session, schema, name)
        for text in after:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                _do(pair, text.format(name), user="postgres")
            refused.append(text)

    monkeypatch.setattr(module, "hold", hold)
    return refused


@pytest.mark.parametrize("module", [rows, trial], ids=["read", "tried"])
@pytest.mark.parametrize(("before", "after"), [*((one, ()) for one in SWAPS), ("", CHANGES)])
def test_what_is_swapped_or_added_meanwhile_is_neither_run_nor_read(
    pair: PlainPair, own_folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, before: str, after: tuple[str, ...]
) -> None:
    name = "meanwhile"
    _do(
        pair, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public",
        "GRANT ALL ON SCHEMA public TO PUBLIC", *TRAP,
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", user="postgres",
    )  # fmt: skip
    loss, ran = _lost(pair, name), _ran(pair)
    files = _files(pair, own_folder, [loss], [])
    refused = _meanwhile(pair, monkeypatch, module, before, after)
    if module is trial:
        says = tried(_dsn(pair), {"load"}, "app", [loss], files, planned=None)
        assert bool(says) == bool(before) and all(name in one for one in says), says
    else:
        with psycopg.connect(_dsn(pair, "postgres"), autocommit=True) as copied, new_session(_dsn(pair)) as new:
            monkeypatch.setattr(rows, "_versions", lambda *_: ([], [], [(0, 1)], [], 0, [], []))
            monkeypatch.setattr(rows, "_at", lambda _, __, places, ___: [(at, ("1", "old")) for at in places])
            lost = LostWal(0x200, xids={9}, known_from=1, next_xid=9)
            copied.execute("SET search_path = pg_catalog")
            says = read_table(copied, "none", loss.table, lost, new).notes
        assert bool(says) == bool(before), says
    assert refused == list(after) and _ran(pair) == ran
