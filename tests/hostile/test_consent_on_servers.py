"""What walproof does to real servers without consent, and their databases' owners to it: nothing, as their logs say."""

import json
import re
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_dsn, pair_file
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.priced_records import PAIR, advice_file
from walproof.errors import TargetError
from walproof.load.sampler import Polled, Sampler
from walproof.machine.clock import RealClock
from walproof.model.guarantee import ConfigChange, Level
from walproof.model.waiting import Wait, wait_for
from walproof.watching.canary import Canary, Probe

pytestmark = pytest.mark.lab
WRITES = {"CREATE", "DROP", "ALTER", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "COPY", "COMMENT", "GRANT", "VACUUM"}
STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): +(?:--.*\n\s*)*(\w+)")


@pytest.fixture(scope="module", autouse=True)
def every_statement_is_logged(pair: PlainPair) -> None:
    pair.sql("n1", "ALTER SYSTEM SET log_statement = 'all'")
    pair.sql("n1", "SELECT pg_reload_conf()")


@pytest.fixture
def advice(tmp_path: Path) -> Path:
    return advice_file(tmp_path / "advice.json", cluster=PAIR)


def statements(pair: PlainPair) -> str:
    return (pair.home / "n1.log").read_text()


LINES = [
    "price --levels local --budget 2s",
    "price --levels local --budget 2s --allow config",
    "price --levels local,on --quorum any1 --budget 2s --allow load",
    "price --tune --limit 5ms --allow load",
    "prove --fault none --levels on",
    "prove --fault stop --levels on --allow load",
    "prove --fault stop --levels on --allow stop",
    "prove --fault stop --levels on --allow load,kill",
    "prove --storm 2 --levels on --allow load",
    "prove --matrix --quick --allow load,kill",
    "prove --fault switchover --levels on --allow load,kill,stop",
    "prove --fault none --levels on --writers 500 --allow load",
    "price --levels local --clients 1,500 --budget 2s --allow load",
    "study run patroni-tradeoff --quick",
    "watch --canary --terminal --duration 1s",
    "watch --canary --terminal --duration 1s --allow load",
    "watch --exporter --port 0 --duration 1s",
    "watch --canary --terminal --duration 1s --levels off,local,on,remote_write,remote_apply --allow canary",
    "apply ADVICE",
    "apply --undo",
]
"""Without the consent that it needs, or beyond the caps."""


@pytest.mark.parametrize("words", LINES)
def test_a_verb_without_consent_or_beyond_the_caps_writes_nothing(
    words: str, pair: PlainPair, advice: Path, tmp_path: Path, own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(statements(pair))
    target = ("--target", str(pair_file(pair, tmp_path)))
    code, out, err = ended(capsys, [*words.replace("ADVICE", str(advice)).split(), *target])
    assert (code, out) == (2, ""), f"exit code {code}: {err}"
    assert "hint: " in err and ("--allow" in err or "max_clients" in err), err
    asked = set(STATEMENT.findall(statements(pair)[before:]))
    # A study is refused before it even connects.
    assert asked or words.startswith("study")
    assert asked & WRITES == set(), "it wrote"
    assert not list(tmp_path.glob("records*"))


def test_a_dsn_without_a_target_file_is_capped_too(
    pair: PlainPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = len(statements(pair))
    words = ["prove", "--fault", "none", "--levels", "on", "--writers", "500", "--allow", "load", "--target"]
    code, _, err = ended(capsys, [*words, pair_dsn(pair, "n1", "n2")])
    assert (code, "max_clients = 64" in err) == (2, True)
    assert "CREATE" not in statements(pair)[before:]


@pytest.mark.nightly
def test_the_canary_slows_down_to_the_rate(pair: PlainPair, tmp_path: Path) -> None:
    file = pair_file(pair, tmp_path)
    file.write_text(file.read_text().replace("[caps]\n", "[caps]\nrate = 0.05\n"))
    probes: list[Probe] = []
    with opened(str(file)) as target:
        canary = Canary(target, (Level.OFF, Level.LOCAL), probes.append)
        wait_for(Wait.PROGRAM_READY, lambda: len(probes) >= 2, target.clock)
        canary.close()
    assert canary._pace_s == 40.0


@pytest.mark.nightly
def test_with_consent_the_writers_stay_below_the_rate(
    pair: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pair_file(pair, tmp_path)
    file.write_text(file.read_text().replace("[caps]\n", "[caps]\nrate = 20\n"))
    words = ["prove", "--fault", "none", "--levels", "local", "--writers", "4", "--allow", "load", "--json"]
    code, out, err = ended(capsys, [*words, "--target", str(file), "--record", str(tmp_path / "rec")])
    assert code == 0, err
    times = [json.loads(line) for line in (tmp_path / "rec" / "events.jsonl").read_text().splitlines()]
    drill = json.loads(out)["drills"][0]
    seconds = max(e["at"] for e in times) - min(e["at"] for e in times)
    assert 4 <= drill["acknowledged"] <= 20 * seconds + 4
    assert pair.sql("n1", "SELECT 1 FROM pg_database WHERE datname LIKE 'walproof%'") == []


_TRAPS = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.sprung(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS
    'BEGIN RAISE LOG ''sprung: % as % of %'', what, current_user, session_user; RETURN true; END';
DO $do$
DECLARE made text;
BEGIN
    FOR made IN
        SELECT format('CREATE VIEW evil.%1$I AS SELECT * FROM pg_catalog.%1$I WHERE evil.sprung(%1$L)', relname)
          FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
         UNION ALL
        SELECT format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', proname,
                      oidvectortypes(proargtypes), format_type(prorettype, NULL),
                      format('BEGIN PERFORM evil.sprung(%L); RETURN pg_catalog.%I(%s); END', proname, proname,
                             (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM generate_series(1, pronargs) n)))
          FROM pg_proc
         WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND provariadic = 0
           AND prorettype <> 'record'::regtype
           AND proname ~ '^(pg_|inet_|current_|now|clock_|host|left|lower|format|concat|substr|to_reg|has_|obj_|set_)'
         UNION ALL
        SELECT format('CREATE FUNCTION evil.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L; '
                      'CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.%I)',
                      'operator ' || oid, l, r, format_type(oprresult, NULL),
                      format('BEGIN PERFORM evil.sprung(%1$L); RETURN $1 OPERATOR(pg_catalog.%1$s) $2; END', oprname),
                      oprname, l, r, 'operator ' || oid)
          FROM pg_operator, format_type(oprleft, NULL) l, format_type(oprright, NULL) r
         WHERE oprkind = 'b' AND oprname IN ('=', '<>', '-', '||', '~~', '<', '>')
           AND l IN ('text', 'name', 'oid', 'integer', 'boolean', 'pg_lsn', 'timestamp with time zone')
    LOOP
        BEGIN
            EXECUTE made;
        EXCEPTION WHEN OTHERS THEN NULL;  -- of a pseudo-type: what cannot be made is no danger
        END;
    END LOOP;
END $do$;
ALTER DATABASE app SET search_path = evil, pg_catalog
"""


_OTHERS = "datestyle = German; ALTER DATABASE app SET role = app; ALTER DATABASE app SET session_authorization = app"


@pytest.fixture(scope="module")
def owned(pair: PlainPair) -> PlainPair:
    """A database whose owner, no superuser, has put a trap before every name that a session may look up there."""
    pair.sql("n1", "CREATE ROLE app LOGIN")
    pair.sql("n1", "CREATE DATABASE app OWNER app")
    as_owner(pair, _TRAPS)
    return pair


def as_owner(pair: PlainPair, text: str) -> None:
    words = pair.member_endpoint("n1").client_conninfo(dbname="app", options="-c session_authorization=app")
    with psycopg.connect(words, autocommit=True) as connection:
        connection.execute(text.encode())


def sprung(pair: PlainPair) -> list[str]:
    """What called code of the owner's so far, on both servers: the name, and with whose rights."""
    logs = ((pair.home / f"{member}.log").read_text() for member in pair.ports)
    return [line for log in logs for line in re.findall(r"LOG:  sprung: (.*)", log)]


@pytest.mark.parametrize("also", ["search_path = evil, pg_catalog", _OTHERS])
def test_no_code_of_a_databases_owner_runs_in_our_sessions(owned: PlainPair, also: str) -> None:
    as_owner(owned, f"ALTER DATABASE app SET {also}")
    before, clock = sprung(owned), RealClock()
    with opened(f"{pair_dsn(owned, 'n1', 'n2')} dbname=app") as target:
        ours = target.members()
        able = target.capabilities()
        assert able.inspection and able.member_states and able.configuration and able.commit_waits
        facts, states = able.inspection.facts, able.member_states.states
        seen = {("postgres", True)}
        wait_for(Wait.PROGRAM_READY, lambda: {(m.user, m.superuser) for m in facts().members} == seen, clock)
        wait_for(Wait.PROGRAM_READY, lambda: all(state.answers for state in states()), clock)
        assert target.describe().settings
        able.configuration.plan(ConfigChange(parameters={"commit_delay": "7"}))
        assert next(able.commit_waits.watch(0.1, lambda: False)).leader
        sampler = Sampler(ours, clock)
        wait_for(Wait.PROGRAM_READY, lambda: sampler.snapshot(clock.now(), ()).counters.keys() == ours.keys(), clock)
        sampler.poll(str(target.observe().leader), Polled())
        sampler.close()
        # The poller's question, of `watch` and of a drill.
        poller = target.poller()
        wait_for(Wait.PROGRAM_READY, lambda: poller.snapshot().view.leader is not None, clock)
        probes: list[Probe] = []
        canary = Canary(target, (Level.LOCAL,), probes.append)
        wait_for(Wait.PROGRAM_READY, lambda: bool(probes), clock)
        for part in (canary, poller):
            part.close()
        assert probes[0].acknowledged
        target.open_database()
    assert sprung(owned) == before
    assert owned.sql("n1", "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'") == []


def test_the_traps_do_spring(owned: PlainPair) -> None:
    as_owner(owned, "ALTER DATABASE app RESET role; ALTER DATABASE app RESET session_authorization")
    before = len(sprung(owned))
    with psycopg.connect(owned.member_endpoint("n1").client_conninfo(dbname="app"), autocommit=True) as client:
        client.execute("SELECT pid FROM pg_stat_replication WHERE state = 'streaming' AND pg_is_in_recovery()")
    found = sprung(owned)[before:]
    assert {"pg_stat_replication as postgres of postgres", "pg_is_in_recovery as postgres of postgres"} <= set(found)
    assert "= as postgres of postgres" in found


@pytest.mark.nightly
def test_a_canary_without_the_right_to_make_its_schema_says_what_helps(owned: PlainPair) -> None:
    """The role is one that the user asks for, in the DSN."""
    dsn = f"{pair_dsn(owned, 'n1')} dbname=app options='-c role=pg_monitor'"
    with opened(dsn) as target, pytest.raises(TargetError, match="permission denied for database app") as wrong:
        Canary(target, (Level.LOCAL,), print)
    assert "CREATE SCHEMA walproof AUTHORIZATION" in wrong.value.hint
