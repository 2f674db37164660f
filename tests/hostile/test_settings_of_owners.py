"""Settings that a database's owner gives every session in it do not end, slow or blind walproof's own."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import ended
from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.pooler import pooler
from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.load.open_session import open_session
from walproof.load.sampler import Polled, Sampler
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.session_settings import SESSION
from walproof.model.waiting import Wait, wait_for
from walproof.targets.sql.connection import connected, session
from walproof.watching.canary import Canary, Probe

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("own_state")]
HOSTILE = {
    "statement_timeout": "1",
    "lock_timeout": "1",
    "idle_session_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "default_tablespace": "nowhere",
    "exit_on_error": "on",
    "client_min_messages": "debug5",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "intervalstyle": "iso_8601",
    "timezone": "<x>+167:59",
    "datestyle": "German",
    "jit": "on",
    "jit_above_cost": "0",
    "max_parallel_workers_per_gather": "8",
    "standard_conforming_strings": "off",
    "enable_hashjoin": "off",
    "work_mem": "64kB",
    "row_security": "off",
    "client_encoding": "SQL_ASCII",
    "lc_numeric": "C",
}
"""Values that a role may set who is no superuser."""


@pytest.fixture(scope="module")
def hostile(pair: PlainPair) -> PlainPair:
    """A database whose owner has set all of these."""
    pair.sql("n1", "CREATE ROLE thief LOGIN")
    pair.sql("n1", "CREATE DATABASE app OWNER thief")
    with psycopg.connect(pair.member_endpoint("n1").client_conninfo(), autocommit=True) as owner:
        owner.execute("SET SESSION AUTHORIZATION thief")
        assert set(SESSION) - {"local_preload_libraries"} <= set(HOSTILE)
        settings = HOSTILE | ({"transaction_timeout": "1"} if owner.info.server_version >= 170000 else {})
        for name, value in settings.items():
            owner.execute(f"ALTER DATABASE app SET {name} = '{value}'".encode())
    asked = "SELECT setconfig FROM pg_db_role_setting"
    wait_for(Wait.SETTING_IN_EFFECT, lambda: pair.sql("n2", asked) == pair.sql("n1", asked), RealClock())
    return pair


def test_doctor_observe_and_the_pollers_answer(hostile: PlainPair) -> None:
    with opened(f"{pair_dsn(hostile, 'n1', 'n2')} dbname=app") as target:
        clock, ours, able = RealClock(), target.members(), target.capabilities()
        assert able.inspection and able.member_states and able.commit_waits
        facts = able.inspection.facts()
        assert [(m.user, m.error) for m in facts.members] == [("postgres", "")] * 2
        assert all(state.answers for state in able.member_states.states())
        assert target.describe().settings
        seen = able.commit_waits.watch(0.3, lambda: False)
        assert [next(seen).polls > 0 for _ in range(3)] == [True] * 3
        sampler = Sampler(ours, clock)
        for _ in range(3):
            assert sampler.snapshot(clock.now(), ()).counters.keys() == ours.keys()
            sampler.poll(str(target.observe().leader), Polled())
            clock.pause(0.1)
        sampler.close()
        poller, probes = target.poller(pace_s=0.1), list[Probe]()
        wait_for(Wait.PROGRAM_READY, lambda: poller.snapshot().view.healthy, clock)
        canary = Canary(target, (Level.LOCAL,), probes.append, pace_s=0.1)
        wait_for(Wait.PROGRAM_READY, lambda: len(probes) > 5, clock)
        assert poller.snapshot().view.healthy
        for part in (canary, poller):
            part.close()
        assert all(probe.acknowledged for probe in probes)


@pytest.mark.nightly
@each([False, True])
def test_no_limit_of_the_owners_is_in_effect(client: bool, hostile: PlainPair) -> None:
    endpoint = hostile.member_endpoint("n1")
    with session(endpoint.at(*endpoint.hosts, dbname="app"), client=client) as connection:
        for name, value in SESSION.items():
            ((now,),) = connection.execute("SELECT current_setting(%s)", (name,)).fetchall()
            assert now == value.replace("\\", ""), name
        ((limit,),) = connection.execute("SELECT current_setting('transaction_timeout', true)").fetchall()
        assert limit in ("0", None)
        connection.execute("SELECT pg_sleep(0.2)")


@pytest.mark.nightly
def test_a_dsns_own_options_and_those_of_a_question_come_after(hostile: PlainPair) -> None:
    endpoint = hostile.member_endpoint("n1").at(*hostile.member_endpoint("n1").hosts, options="-c jit=on")
    with open_session(endpoint.conninfo(dbname="app", options="-c statement_timeout=2000")) as connection:
        row = connection.execute("SELECT current_setting('jit'), current_setting('statement_timeout')").fetchone()
        assert row == ("on", "2s")


@pytest.mark.nightly
@each([
    "price --levels local --workload insert --clients 2 --budget 2s --allow load",
    "prove --fault none --levels local --writers 1 --allow load",
])  # fmt: skip
def test_every_verb_answers(words: str, hostile: PlainPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb, *more = words.split()
    record = ["--record", str(tmp_path / "record")] if verb in ("price", "prove", "observe") else []
    target = f"{pair_dsn(hostile, 'n1', 'n2')} dbname=app"
    code, out, err = ended(capsys, [verb, *more, "--target", target, *record])
    assert code == 0 or (verb == "doctor" and code == 1 and '"members"' in out), (out, err)
    assert hostile.sql("n1", "SELECT datname FROM pg_database WHERE datname LIKE 'walproof%'") == []


@pytest.fixture
def pool(hostile: PlainPair) -> Iterator[int]:
    with pooler(hostile, "auth_type=any") as port:
        yield port


@pytest.mark.nightly
def test_no_name_is_looked_up_where_a_pooler_drops_what_a_session_is_sent(hostile: PlainPair, pool: int) -> None:
    """The owner's search_path held there: current_setting() was his function, and ran as who logs in."""
    straight = hostile.member_endpoint("n1").at(("127.0.0.1", hostile.ports["n1"]), dbname="pooled")
    pooled = straight.at(("127.0.0.1", pool), dbname="pooled")
    hostile.sql("n1", "CREATE DATABASE pooled OWNER thief")
    hostile.sql("n1", "ALTER DATABASE pooled SET search_path = pg_catalog")  # for as long as it is looked at
    try:
        with connected(straight) as inside:
            assert inside.execute("SHOW search_path").fetchall() == [{"search_path": "pg_catalog"}]
        with psycopg.connect(pooled.conninfo()) as inside:
            assert inside.execute("SHOW search_path").fetchall() == [("pg_catalog",)]
        with pytest.raises(TargetError, match="a connection pooler answers in place of the server"), connected(pooled):
            pass
    finally:
        hostile.sql("n1", "DROP DATABASE pooled WITH (FORCE)")
