"""Canaries of one database: none takes another's table away, and what was killed with -9 leaves nothing for good.

Where commits are not answered, each has few sessions there, and none once it has ended."""

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tests.fixtures.external_cluster import opened, pair_dsn
from tests.fixtures.plain_pair import PlainPair, plain_pair, promote
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.load import NO_LIMITS
from walproof.model.ports import Target
from walproof.model.topology import Endpoint, Route
from walproof.model.waiting import Wait, wait_for
from walproof.watching import canary as canaries
from walproof.watching.canary import _ONE_AT_A_TIME, TABLE, Canary, Probe

pytestmark = pytest.mark.lab
LEVELS = (Level.OFF, Level.LOCAL)

_heard: list[Canary] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """A test that fails leaves no canary to the next."""
    yield
    while _heard:
        _heard.pop()._closed.set()


class Heard:
    """A canary, and what it reported."""

    def __init__(self, target: Target, levels: Sequence[Level] = LEVELS) -> None:
        self.probes: list[Probe] = []
        self.levels = levels
        self.canary = Canary(target, levels, self.probes.append, pace_s=0.02)
        _heard.append(self.canary)

    def goes_on(self, probes: int = 3) -> bool:
        """Whether it commits that often at each level, and nothing else."""
        self.probes.clear()
        wait_for(
            Wait.PROGRAM_READY,
            lambda: min(Counter(p.level for p in self.probes).get(one, 0) for one in self.levels) >= probes,
            self.canary._target.clock,
        )
        return {p.outcome_name for p in self.probes} == {"acknowledged"}

    def recovers(self) -> bool:
        """Whether it commits at each level again, and then nothing else."""
        self.probes.clear()
        wait_for(
            Wait.PROGRAM_READY,
            lambda: {p.level for p in self.probes.copy() if p.acknowledged} == set(self.levels),
            self.canary._target.clock,
        )
        return self.goes_on()


@pytest.fixture
def target(pair: PlainPair) -> Iterator[Target]:
    with opened(pair_dsn(pair, "n1")) as target:
        yield target


def left(pair: PlainPair) -> list[tuple[object, ...]]:
    return pair.sql("n1", "SELECT nspname FROM pg_namespace WHERE nspname = 'walproof'")


@pytest.mark.nightly
def test_the_one_that_ends_leaves_the_table_to_the_other(pair: PlainPair, target: Target) -> None:
    """It dropped it, and the exporter counted a refused commit a second for ever."""
    exporter, page = Heard(target), Heard(target)
    assert exporter.goes_on() and page.goes_on()
    oid = pair.sql("n1", f"SELECT '{TABLE}'::regclass::oid")
    page.canary.close()
    assert exporter.goes_on()
    assert pair.sql("n1", f"SELECT '{TABLE}'::regclass::oid") == oid
    exporter.canary.close()
    assert left(pair) == []


@pytest.mark.nightly
def test_a_table_that_is_gone_is_no_refused_commit(pair: PlainPair, target: Target) -> None:
    heard = Heard(target)
    assert heard.goes_on()
    pair.sql("n1", "DROP SCHEMA walproof CASCADE")
    assert heard.goes_on()
    heard.canary.close()
    assert left(pair) == []


def test_what_a_killed_one_left_is_removed_by_the_next(pair: PlainPair, target: Target) -> None:
    killed = Heard(target)
    assert killed.goes_on()
    killed.canary._closed.set()
    for thread in killed.canary._threads:
        thread.join()
    following = Heard(target)
    assert following.goes_on()
    pair.sql("n1", f"UPDATE {TABLE} SET at = at - interval '1 minute' WHERE level LIKE '% {killed.canary._name}'")
    following.canary.close()
    assert left(pair) == []


@pytest.mark.nightly
def test_a_lock_that_another_role_keeps_stops_none(pair: PlainPair, target: Target) -> None:
    """An advisory lock is for whoever may connect to take."""
    with psycopg.connect(pair.member_endpoint("n1").conninfo()) as other:
        other.execute(*_ONE_AT_A_TIME)
        heard = Heard(target)
        assert heard.goes_on()
        heard.canary.close()
    assert left(pair) == []


@pytest.mark.nightly
def test_a_schema_that_was_there_or_is_used_stays(pair: PlainPair, target: Target) -> None:
    pair.sql("n1", "CREATE SCHEMA walproof")
    Heard(target).canary.close()
    assert left(pair) == [("walproof",)]
    pair.sql("n1", "DROP SCHEMA walproof")
    heard = Heard(target)
    pair.sql("n1", "CREATE TABLE walproof.of_the_owner ()")
    heard.canary.close()
    assert pair.sql("n1", "SELECT relname FROM pg_class WHERE relnamespace = 'walproof'::regnamespace") == [
        ("of_the_owner",)
    ]
    pair.sql("n1", "DROP SCHEMA walproof CASCADE")


@pytest.mark.nightly
def test_those_that_begin_and_end_at_once_disturb_neither_one_another_nor_one_that_stays(
    pair: PlainPair, target: Target
) -> None:
    stays, wrong = Heard(target), list[Exception]()
    assert stays.goes_on()

    def comes_and_goes() -> None:
        try:
            for _ in range(5):
                Heard(target).canary.close()
        except Exception as odd:  # noqa: BLE001
            wrong.append(odd)

    threads = [threading.Thread(target=comes_and_goes) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and stays.goes_on()
    stays.canary.close()
    assert left(pair) == []


REMOTE = (Level.REMOTE_WRITE, Level.ON)
MOST = 3
"""Sessions of a level: one at work, one that asks for it, and one that ends just now."""


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long canaries wait for answers, s."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(canaries, "ANSWER_TIMEOUT_S", seconds)
        monkeypatch.setattr(canaries, "GRACE_S", min(seconds, 2.0))

    return set_to


@contextmanager
def no_standby(pair: PlainPair) -> Iterator[None]:
    """Commits on n1 wait for a standby that is gone."""
    for statement in ("ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()"):
        pair.sql("n1", statement)
    try:
        yield
    finally:
        for statement in ("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"):
            pair.sql("n1", statement)


def at_work(pair: PlainPair, what: str = "true") -> list[int]:
    """Process ids of the canary's sessions on n1."""
    of_canaries = f"application_name LIKE 'walproof canary%' AND {what}"
    rows = pair.sql("n1", f"SELECT pid FROM pg_stat_activity WHERE {of_canaries}")
    return [int(str(pid)) for (pid,) in rows]


def most_at_work(pair: PlainPair, heard: Heard, probes: int = 6) -> int:
    """How many sessions there are at most, while so many commits at each level stay unanswered."""
    most, seen = 0, heard.probes.copy()

    def enough() -> bool:
        nonlocal most
        most = max(most, len(at_work(pair)))
        new = Counter(p.level for p in heard.probes[len(seen) :])
        return min(new.get(level, 0) for level in heard.levels) >= probes

    wait_for(Wait.FIRST_LEADER, enough, heard.canary._target.clock, pace_s=0.02)
    assert {p.outcome_name for p in heard.probes[len(seen) + len(heard.levels) :]} == {"unknown"}
    return most


def is_gone(pair: PlainPair) -> bool:
    """Whether nothing of a canary is left on n1: a session that was ended needs a moment."""
    wait_for(Wait.PROGRAM_GONE, lambda: at_work(pair) == [], RealClock())
    return left(pair) == []


@pytest.mark.nightly
def test_commits_that_wait_for_a_standby_that_is_gone_do_not_pile_up(
    pair: PlainPair, target: Target, patience: Callable[[float], None]
) -> None:
    """Each left its session waiting in the server: thirty in a minute, for good."""
    heard = Heard(target, REMOTE)
    assert heard.goes_on()
    with no_standby(pair):
        patience(0.3)
        assert most_at_work(pair, heard) <= MOST * len(REMOTE)
        patience(5)
    assert heard.recovers()
    assert heard.canary.close() == ""
    assert is_gone(pair)


@pytest.mark.nightly
def test_one_that_ends_while_its_commits_wait_leaves_nothing(pair: PlainPair, target: Target) -> None:
    heard = Heard(target, REMOTE)
    assert heard.goes_on()
    with no_standby(pair):
        waits = "wait_event = 'SyncRep'"
        wait_for(Wait.PROGRAM_READY, lambda: len(at_work(pair, waits)) == len(REMOTE), target.clock)
        assert heard.canary.close() == ""
        assert is_gone(pair)


@pytest.mark.nightly
def test_a_row_that_another_holds_keeps_few_sessions(
    pair: PlainPair, target: Target, patience: Callable[[float], None]
) -> None:
    heard = Heard(target)
    assert heard.goes_on()
    with psycopg.connect(pair.member_endpoint("n1").conninfo()) as other:
        other.execute(f"UPDATE {TABLE} SET at = at".encode())
        patience(0.3)
        assert most_at_work(pair, heard) <= MOST * len(LEVELS)
        patience(5)
        said = heard.canary.close()
        assert said.startswith(f"the canary's table {TABLE} stays") and "lock timeout" in said
        other.rollback()
    pair.sql("n1", "DROP SCHEMA walproof CASCADE")
    assert is_gone(pair)


@contextmanager
def stuck(pair: PlainPair, heard: Heard) -> Iterator[int]:
    """The process of a commit that waits, and can be neither cancelled nor ended, as where a disk stalls."""
    pid = 0

    def is_stopped() -> bool:
        nonlocal pid
        for pid in at_work(pair, "wait_event = 'SyncRep'")[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                if pid in at_work(pair, "wait_event = 'SyncRep'"):
                    return True
                os.kill(pid, signal.SIGCONT)  # it was cancelled meanwhile
        return False

    wait_for(Wait.PROGRAM_READY, is_stopped, heard.canary._target.clock, pace_s=0.02)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["dba"])
def test_no_commit_is_piled_on_one_that_cannot_be_cancelled(
    role: str, pair: PlainPair, patience: Callable[[float], None]
) -> None:
    """Nor where the DSN asks for a role that does not see what the login's sessions do."""
    if role == "dba" and not pair.sql("n1", "SELECT 1 FROM pg_roles WHERE rolname = 'dba'"):
        pair.sql("n1", "CREATE ROLE dba")
        pair.sql("n1", "GRANT CREATE ON DATABASE postgres TO dba")
    with opened(f"{pair_dsn(pair, 'n1')} options='-c role={role}'") as target:
        heard = Heard(target, (Level.ON,))
        assert heard.goes_on()
        with no_standby(pair):
            patience(0.3)
            with stuck(pair, heard) as pid:
                assert most_at_work(pair, heard) <= MOST
                assert at_work(pair, "wait_event = 'SyncRep'") == [pid]
            assert most_at_work(pair, heard) <= MOST
            patience(5)
        assert heard.recovers()
        assert heard.canary.close() == ""
    assert is_gone(pair)


@pytest.mark.nightly
def test_what_stays_is_said(pair: PlainPair, target: Target) -> None:
    heard = Heard(target, (Level.ON,))
    assert heard.goes_on()
    with no_standby(pair), stuck(pair, heard) as pid:
        said = heard.canary.close()
        assert said.startswith(f"the canary's table {TABLE} stays") and f"pid {pid} " in said
    pair.sql("n1", "DROP SCHEMA IF EXISTS walproof CASCADE")
    assert is_gone(pair)


@pytest.mark.nightly
def test_after_a_failover_it_goes_on_though_a_commit_is_stuck_where_it_was(patience: Callable[[float], None]) -> None:
    with plain_pair() as own, opened(pair_dsn(own, "n2", "n1")) as target:
        heard = Heard(target, (Level.ON,))
        assert heard.goes_on()
        with no_standby(own), stuck(own, heard):
            patience(0.3)
            assert most_at_work(own, heard, 2) <= MOST
            patience(5)
            promote(own)
            assert heard.recovers()
            assert heard.canary.close() == ""
            assert own.sql("n2", "SELECT nspname FROM pg_namespace WHERE nspname = 'walproof'") == []


class Asked:
    """As much of a target as a canary asks for; its server accepts connections, and never answers."""

    clock = RealClock()

    def __init__(self, port: int) -> None:
        self.port = port

    def capabilities(self) -> SimpleNamespace:
        return SimpleNamespace(limits=NO_LIMITS)

    def routes(self) -> tuple[Route, ...]:
        return (Route("multi-host"),)

    def endpoint(self, _route: str) -> Endpoint:
        return Endpoint((("127.0.0.1", self.port),))


@pytest.mark.nightly
def test_logins_that_hang_in_the_server_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level tried one after another: of each a process stayed, where a stalled disk stops those that log in."""
    monkeypatch.setattr(canaries, "_create_table", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        began = monotonic()
        canary = Canary(cast(Any, Asked(silent.getsockname()[1])), tuple(Level), print)
        kept = [silent.accept() for _ in range(3)]
        assert monotonic() - began >= 5.5  # 2 s each, and a pause before the third that is longer than the first
        canary._closed.set()
        for thread in canary._threads:
            thread.join()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()
        for connection, _ in kept:
            connection.close()
