"""What another role prepared beforehand is never entered, run or reused: issue 51's H1, and attempts of its kind."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair
from walproof.errors import MachineError
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder
from walproof.model.topology import Endpoint, Route
from walproof.model.waiting import Wait, wait_for
from walproof.targets.external import own_database
from walproof.targets.sql.ledger import SqlLedger
from walproof.watching.canary import MARK, Canary, Probe

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]
OLD = "walproof_own"
TRAP = """
CREATE FUNCTION public.rise() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN EXECUTE ''ALTER ROLE thief SUPERUSER''; RETURN NULL; END';
"""
PREPARED = f"""
CREATE SCHEMA walproof;
{TRAP}
CREATE TABLE walproof.inserted (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client int NOT NULL,
                                value bigint NOT NULL, filler text NOT NULL);
CREATE TABLE walproof.walproof_ledger (drill int NOT NULL, writer int NOT NULL, number bigint NOT NULL,
                                       stated bigint NOT NULL, payload bytea NOT NULL);
COMMENT ON TABLE walproof.inserted IS 'written by walproof; safe to drop';
COMMENT ON TABLE walproof.walproof_ledger IS 'written by walproof; safe to drop';
CREATE TRIGGER t AFTER TRUNCATE ON walproof.inserted FOR EACH STATEMENT EXECUTE FUNCTION public.rise();
CREATE TRIGGER i AFTER INSERT ON walproof.inserted FOR EACH STATEMENT EXECUTE FUNCTION public.rise();
CREATE TRIGGER t AFTER TRUNCATE ON walproof.walproof_ledger FOR EACH STATEMENT EXECUTE FUNCTION public.rise();
"""


def run(pair: PlainPair, text: str, database: str = "postgres", user: str = "postgres") -> list[tuple[object, ...]]:
    """Statements there as that role; the rows of the last."""
    words = pair.member_endpoint("n1").client_conninfo(dbname=database)
    with psycopg.connect(words, autocommit=True) as connection:
        connection.execute(f"SET SESSION AUTHORIZATION {user}".encode())
        cursor = connection.execute(text.encode())
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def is_superuser(pair: PlainPair) -> bool:
    return run(pair, "SELECT rolsuper FROM pg_roles WHERE rolname = 'thief'") == [(True,)]


@pytest.fixture
def thief(pair: PlainPair) -> Iterator[PlainPair]:
    """The pair with a role that may create databases and is no superuser, and never becomes one."""
    run(pair, "CREATE ROLE thief LOGIN CREATEDB")
    yield pair
    for (name,) in run(pair, "SELECT datname FROM pg_database WHERE pg_get_userbyid(datdba) = 'thief'"):
        run(pair, f"DROP DATABASE {name}")
    stole = is_superuser(pair)
    run(pair, "DROP OWNED BY thief CASCADE")
    run(pair, "DROP ROLE thief")
    assert not stole
    assert run(pair, "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'") == []


@pytest.mark.parametrize("words", [
    "prove --fault none --levels local --writers 1",
    pytest.param("price --workload insert --levels local --clients 2 --budget 2s", marks=pytest.mark.nightly),
])  # fmt: skip
def test_a_role_that_makes_the_database_of_earlier_versions_beforehand_becomes_no_superuser(
    thief: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """Issue 51, H1: by its comment the database was taken for walproof's, and the triggers ran as postgres."""
    run(thief, f"CREATE DATABASE {OLD}", user="thief")
    run(thief, f"COMMENT ON DATABASE {OLD} IS 'made by walproof; safe to drop'", user="thief")
    run(thief, PREPARED, OLD, "thief")
    target = ("--target", str(pair_file(thief, tmp_path)), "--record", str(tmp_path / "record"))
    code, _, err = ended(capsys, [*words.split(), "--allow", "load", *target])
    assert code == 0, err
    assert not is_superuser(thief)
    assert run(thief, "SELECT count(*) FROM walproof.inserted", OLD) == [(0,)]


@pytest.mark.nightly
def test_the_trap_does_spring(thief: PlainPair) -> None:
    run(thief, f"CREATE DATABASE {OLD}", user="thief")
    run(thief, PREPARED, OLD, "thief")
    run(thief, "TRUNCATE walproof.inserted", OLD)
    assert is_superuser(thief)
    run(thief, "ALTER ROLE thief NOSUPERUSER")


def enters(pair: PlainPair, database: str) -> bool:
    """Whether thief can log in there, by a password: session_authorization would ask for its maker's right."""
    words = pair.member_endpoint("n1").client_conninfo(dbname=database, user="thief", passfile="/", password="thief")
    try:
        psycopg.connect(words).close()
    except psycopg.OperationalError:
        return False
    return True


def test_no_other_role_can_enter_at_any_moment(thief: PlainPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries after each statement that walproof sends, as soon as it sees the name in pg_database."""
    run(thief, "ALTER ROLE thief PASSWORD 'thief'")
    assert enters(thief, "postgres")
    real, tried = psycopg.Connection.execute, list[bool]()
    names = "SELECT datname FROM pg_database WHERE datname ~ '^walproof_'"

    def execute(self: psycopg.Connection, query: object, *more: object, **words: object) -> object:
        done = real(self, query, *more, **words)  # type: ignore[call-overload]
        with psycopg.connect(thief.member_endpoint("n1").client_conninfo(), autocommit=True) as watching:
            tried.extend(enters(thief, str(name)) for (name,) in real(watching, names).fetchall())
        return done

    with opened(pair_dsn(thief, "n1", "n2")) as target:
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        target.open_database()
        monkeypatch.undo()
        assert re.fullmatch(r"walproof_[0-9a-f]{32}", target.member_endpoint(target.leader()).database)
        run(thief, "GRANT pg_read_all_data TO thief")
        assert not enters(thief, target.member_endpoint(target.leader()).database)
    assert len(tried) >= 5 and not any(tried)


@contextmanager
def planted(pair: PlainPair, text: str) -> Iterator[None]:
    """What thief made in template1, where PostgreSQL 14 lets every role create; removed afterwards."""
    run(pair, "GRANT CREATE ON SCHEMA public TO PUBLIC; GRANT CREATE ON DATABASE template1 TO thief", "template1")
    run(pair, text, "template1", "thief")
    try:
        yield
    finally:
        run(pair, "DROP OWNED BY thief; REVOKE CREATE ON SCHEMA public FROM PUBLIC", "template1")
        run(pair, "REVOKE CREATE ON DATABASE template1 FROM thief")


@pytest.mark.nightly
@pytest.mark.parametrize("text", [
    "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA walproof",
    "CREATE TABLE public.pgbench_accounts (aid int)",
    "CREATE OPERATOR public.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = pg_catalog.texteq)",
    "CREATE TYPE public.mood AS ENUM ('ok')",
    "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC",
    "CREATE VIEW public.pg_stat_activity AS SELECT 1",
    "SELECT lo_create(0)",
])  # fmt: skip
def test_what_another_role_made_in_template1_is_not_in_walproofs_database(text: str, thief: PlainPair) -> None:
    run(thief, "CREATE FUNCTION public.of_an_administrator() RETURNS int LANGUAGE sql AS 'SELECT 1'", "template1")
    known = "SELECT to_regproc('public.of_an_administrator') IS NOT NULL"
    strangers = "SELECT count(*) FROM pg_shdepend WHERE refobjid = 'thief'::regrole"
    strangers += " AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    try:
        with planted(thief, text), opened(pair_dsn(thief, "n1", "n2")) as target:
            target.open_database()
            inside = target.member_endpoint(target.leader()).database
            assert run(thief, strangers, "template1") != [(0,)]
            assert run(thief, strangers, inside) == [(0,)]
            assert run(thief, known, inside) == [(False,)], "it is template0's"
        with opened(pair_dsn(thief, "n1", "n2")) as target:
            target.open_database()
            assert run(thief, known, target.member_endpoint(target.leader()).database) == [(True,)]
    finally:
        run(thief, "DROP FUNCTION public.of_an_administrator", "template1")


@pytest.mark.nightly
def test_what_a_member_of_pg_monitor_made_in_template1_in_its_name_never_runs(
    thief: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pg_shdepend lists nothing that pg_monitor owns; with one argument it made the check of data fail."""
    near = "public.verify_heapam(regclass)"
    trap = f"""CREATE FUNCTION {near} RETURNS TABLE (blkno bigint, offnum int, attnum int, msg text) LANGUAGE plpgsql AS
        'BEGIN IF NOT pg_is_in_recovery() THEN EXECUTE ''ALTER ROLE thief SUPERUSER''; END IF; END'"""
    run(thief, "CREATE EXTENSION amcheck SCHEMA public; GRANT CREATE ON SCHEMA public TO PUBLIC", "template1")
    run(thief, "GRANT pg_monitor TO thief")
    try:
        run(thief, f"SET ROLE pg_monitor; {trap}", "template1", "thief")
        target = ("--target", str(pair_file(thief, tmp_path)), "--record", str(tmp_path / "record"))
        drill = "prove --fault none --levels local --writers 1 --allow load"
        code, _, err = ended(capsys, [*drill.split(), *target])
        assert code == 0 and not is_superuser(thief), err
        with opened(pair_dsn(thief, "n1", "n2")) as alone:
            alone.open_database()
            inside = alone.member_endpoint(alone.leader()).database
            assert run(thief, f"SELECT to_regprocedure('{near}') IS NULL", inside) == [(True,)]
    finally:
        run(thief, f"DROP FUNCTION {near}; DROP EXTENSION amcheck", "template1")
        run(thief, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "template1")


@pytest.mark.nightly
def test_a_session_in_template1_keeps_nobody_from_a_database_of_template0(thief: PlainPair) -> None:
    words = thief.member_endpoint("n1").client_conninfo(dbname="template1")
    with psycopg.connect(words), opened(pair_dsn(thief, "n1", "n2")) as target:
        target.open_database()


TABLE = f"""
CREATE TABLE walproof.walproof_canary (level text PRIMARY KEY, at timestamptz);
COMMENT ON TABLE walproof.walproof_canary IS '{MARK}';
"""
OF_US = f"CREATE SCHEMA walproof; {TABLE}"


ANOTHERS = [
    ("CREATE SCHEMA walproof; GRANT CREATE ON SCHEMA walproof TO thief", "other roles may create in it"),
    ("CREATE SCHEMA walproof; GRANT CREATE ON SCHEMA walproof TO PUBLIC", "other roles may create in it"),
    ("CREATE SCHEMA walproof AUTHORIZATION thief", "its owner is thief"),
    (f"{OF_US}; GRANT TRIGGER ON walproof.walproof_canary TO thief", "other roles may give it a trigger"),
    (f"{OF_US}; GRANT ALL ON walproof.walproof_canary TO PUBLIC", "other roles may give it a trigger"),
    (f"{OF_US}; GRANT REFERENCES (level) ON walproof.walproof_canary TO thief", "other roles may give it a"),
    (f"{OF_US}; {TRAP} CREATE TRIGGER t AFTER INSERT ON walproof.walproof_canary EXECUTE FUNCTION public.rise()",
     "it has a trigger"),
    (f"{OF_US}; CREATE RULE r AS ON INSERT TO walproof.walproof_canary DO ALSO SELECT 1", "it has a rule"),
    (f"{OF_US}; ALTER TABLE walproof.walproof_canary ENABLE ROW LEVEL SECURITY", "it has row security"),
    (f"{OF_US}; CREATE POLICY p ON walproof.walproof_canary USING (true)", "it has row security"),
    (f"{OF_US}; CREATE TABLE public.child () INHERITS (walproof.walproof_canary)", "it inherits"),
    (f"{OF_US}; {TRAP} ALTER TABLE walproof.walproof_canary ALTER at SET DEFAULT public.now()",
     "functions or types of users"),
    (f"{OF_US}; ALTER TABLE walproof.walproof_canary ADD CHECK (public.fine(level))", "functions or types"),
    (f"{OF_US}; CREATE INDEX ON walproof.walproof_canary (public.plain(level))", "functions or types of users"),
    (f"{OF_US}; ALTER TABLE walproof.walproof_canary OWNER TO thief", "its owner is thief"),
    ("CREATE SCHEMA walproof; CREATE VIEW walproof.walproof_canary AS SELECT 1", "it is no plain table"),
    ("CREATE SCHEMA walproof; CREATE TABLE walproof.walproof_canary (level text)", "its comment is"),
    ("CREATE PUBLICATION p FOR ALL TABLES", "publication p sends it to subscribers"),
    (f"{OF_US}; CREATE PUBLICATION p FOR TABLE walproof.walproof_canary", "publication p sends it to subscribers"),
    ("CREATE SCHEMA walproof; CREATE PUBLICATION p FOR TABLES IN SCHEMA walproof", "publication p sends it"),
]  # fmt: skip
"""What somebody made in the DSN's database, and why no canary writes there."""


@pytest.mark.parametrize(("made", "why"), ANOTHERS)
def test_a_canary_writes_to_no_table_that_another_role_made_could_change_or_subscribes_to(
    made: str, why: str, thief: PlainPair
) -> None:
    """In the DSN's database, which is another's. Nothing there is changed."""
    run(thief, "CREATE DATABASE app OWNER thief")
    run(thief, "GRANT CREATE ON SCHEMA public TO thief", "app")
    run(
        thief,
        "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.now()';"
        "CREATE FUNCTION public.fine(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
        "CREATE FUNCTION public.plain(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1'",
        "app",
        "thief",
    )
    run(thief, made.replace(" EXECUTE FUNCTION", " FOR EACH ROW EXECUTE FUNCTION"), "app")
    there = "SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('walproof') ORDER BY 1"
    before = run(thief, there, "app")
    with (
        opened(f"{pair_dsn(thief, 'n1')} dbname=app") as target,
        pytest.raises(MachineError, match=f"not walproof's.*: {why}"),
    ):
        Canary(target, (Level.LOCAL,), print)
    assert run(thief, there, "app") == before
    run(thief, "DROP DATABASE app WITH (FORCE)")


@pytest.mark.nightly
def test_default_privileges_give_no_other_role_a_right_on_the_canarys_table(thief: PlainPair) -> None:
    run(thief, "CREATE DATABASE app OWNER thief")
    run(
        thief,
        "ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON TABLES TO thief, PUBLIC;"
        "ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON SCHEMAS TO thief",
        "app",
    )
    probes: list[Probe] = []
    with opened(f"{pair_dsn(thief, 'n1')} dbname=app") as target:
        canary = Canary(target, (Level.LOCAL,), probes.append)
        wait_for(Wait.PROGRAM_READY, lambda: bool(probes), target.clock)
        for text in (
            f"{TRAP} CREATE TRIGGER t AFTER INSERT ON walproof.walproof_canary EXECUTE FUNCTION public.rise()",
            "CREATE TABLE walproof.mine ()",
            "TABLE walproof.walproof_canary",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                run(thief, text, "app", "thief")
        canary.close()
    assert probes[0].acknowledged
    assert run(thief, "SELECT FROM pg_namespace WHERE nspname = 'walproof'", "app") == []


@pytest.mark.nightly
def test_a_table_that_is_swapped_while_it_is_looked_at_is_refused(thief: PlainPair) -> None:
    """Its look is repeated under the lock: a trigger that came between is seen."""
    run(thief, "CREATE DATABASE app OWNER thief")
    run(thief, OF_US, "app")
    real = psycopg.Connection.execute
    added: list[str] = []

    def execute(self: psycopg.Connection, query: object, *more: object, **words: object) -> object:
        if isinstance(query, sql.Composed) and query.as_string(self).startswith("LOCK") and not added:
            added.append(TRAP)
            create = "CREATE TRIGGER t BEFORE INSERT ON walproof.walproof_canary FOR EACH ROW"
            run(thief, f"{TRAP} {create} EXECUTE FUNCTION public.rise()", "app")
        return real(self, query, *more, **words)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patched, opened(f"{pair_dsn(thief, 'n1')} dbname=app") as target:
        patched.setattr(psycopg.Connection, "execute", execute)
        with pytest.raises(MachineError, match="it has a trigger"):
            Canary(target, (Level.LOCAL,), print)
    assert added


@pytest.mark.nightly
def test_the_ledger_of_a_plain_target_keeps_to_the_same_rule(thief: PlainPair) -> None:
    """Where there is no database of its own, as in a lab."""

    class Plain:
        def endpoint(self, route: str) -> Endpoint:
            return thief.endpoint()

        def routes(self) -> tuple[Route, ...]:
            return (Route("multi-host"),)

    run(thief, PREPARED)
    run(thief, "ALTER SCHEMA walproof OWNER TO thief")
    try:
        ledger = SqlLedger(Plain())  # type: ignore[arg-type]
        with pytest.raises(MachineError, match="its owner is thief"):
            ledger.open_ledger(LedgerOrder(Level.LOCAL, 1))
    finally:
        run(thief, "DROP SCHEMA walproof CASCADE; DROP FUNCTION public.rise")


@pytest.fixture
def dba(thief: PlainPair) -> Iterator[str]:
    """A DSN of a superuser that asks for the role dba, of which nobody is member yet."""
    run(thief, "CREATE ROLE dba CREATEDB; GRANT CREATE ON DATABASE postgres TO dba")
    yield f"{pair_dsn(thief, 'n1')} options='-c role=dba'"
    run(thief, "DROP OWNED BY dba CASCADE; DROP ROLE dba")


@pytest.mark.nightly
def test_a_database_is_made_by_the_role_that_logs_in_and_by_no_other(thief: PlainPair, dba: str) -> None:
    """Also where the DSN asks for another role, which then owns it."""
    with opened(dba) as target:
        target.open_database()
        name = target.member_endpoint(target.leader()).database
        with own_database._session(target.member_endpoint(target.leader())) as connection:
            row = own_database._row(connection, name)
        assert row is not None and (row["owner"], row["me"]) == ("dba", "dba")


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["dba", "thief"])
def test_nothing_is_made_as_a_role_that_others_may_become(role: str, thief: PlainPair, dba: str) -> None:
    """They would own it, and could give it triggers, which run in sessions of the superuser who has logged in."""
    run(thief, "GRANT dba TO thief; GRANT CREATE ON DATABASE postgres TO thief")
    with opened(dba.replace("dba", role)) as target:
        with pytest.raises(MachineError, match=f"thief may act as {role}, .* with the rights of postgres"):
            target.open_database()
        with pytest.raises(MachineError, match=f"thief may act as {role}"):
            Canary(target, (Level.LOCAL,), print)
    assert run(thief, "SELECT FROM pg_namespace WHERE nspname = 'walproof'") == []


@pytest.mark.nightly
def test_before_16_who_can_be_a_role_with_createrole_may_become_any_other(debian: PlainPair) -> None:
    roles = ("CREATE ROLE dba CREATEDB", "CREATE ROLE maker CREATEROLE", "CREATE ROLE thief LOGIN IN ROLE maker")
    run(debian, "; ".join(roles))
    try:
        with opened(f"{pair_dsn(debian, 'n1')} options='-c role=dba'") as target:
            with pytest.raises(MachineError, match="thief may act as dba"):
                target.open_database()
            run(debian, "DROP ROLE thief")
            target.open_database()
    finally:
        run(debian, "DROP ROLE IF EXISTS thief, maker, dba")
