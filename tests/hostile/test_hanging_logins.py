"""Servers whose logins hang, as where a disk stalls or a catalog is locked: each may leave a process there for good."""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tests.fixtures.served_sockets import serving
from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.load import repeated_logins
from walproof.load.repeated_logins import first_answer
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.load import NO_LIMITS
from walproof.model.topology import Endpoint, Route
from walproof.model.waiting import Wait, wait_for
from walproof.targets.external.target_file import TargetFile
from walproof.targets.postgres.target import Servers
from walproof.targets.sql.observe import SqlMemberStates, SqlPoller, rows_of
from walproof.watching import canary as canaries
from walproof.watching.canary import Canary

N1, N2 = Endpoint((("n1", 5432),)), Endpoint((("n2", 5432),))
LIST = Endpoint((*N1.hosts, *N2.hosts))
HANGS = 2.0, psycopg.OperationalError("connection timeout expired")


class Clock:
    time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The rule's own time, which passes as a test says."""
    made = Clock()
    monkeypatch.setattr(repeated_logins, "monotonic", made)
    monkeypatch.setattr(repeated_logins, "_silent", {})
    return made


class Logins:
    """Logins, and how many of them reached each server."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.made = clock, Counter[Endpoint]()

    def tried(self, server: Endpoint, takes_s: float = 0.0, wrong: Exception | None = None) -> bool:
        """Whether it reached the server, where it took so long and ended so."""
        before = self.made[server]
        with suppress(psycopg.Error), first_answer(server):
            self.made[server] += 1
            self.clock.time += takes_s
            if wrong is not None:
                raise wrong
        return self.made[server] > before


def test_ever_fewer_logins_go_where_none_is_answered(clock: Clock) -> None:
    """41 processes a minute were left, and the server was full after two and a half; the other one is not held up."""
    logins, began = Logins(clock), clock.time
    while clock.time < began + 3600:
        logins.tried(N1, *HANGS)
        assert logins.tried(N2)
        clock.time += 1.0
    assert logins.made[N1] < 40
    clock.time += 300
    assert all(logins.tried(N1) for _ in range(9)), "at its usual pace as soon as one is answered"


ANSWERS: dict[str, tuple[float, Exception | None]] = {
    "lets in late": (3.0, None),
    "refuses": (0.01, psycopg.OperationalError("connection refused")),
    "is away, says TCP": (1.6, psycopg.OperationalError("connection timed out")),
    "ends the first question": (3.0, psycopg.errors.QueryCanceled("due to statement timeout")),
    "shows a row of odd types": (3.0, ValueError("odd")),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_one_that_answers_in_any_way_is_asked_at_the_usual_pace(answer: str, clock: Clock) -> None:
    """`prove` waits for one that a fault took down, and alerts end when it is back."""
    logins = Logins(clock)
    for _ in range(9):
        with suppress(ValueError):
            assert logins.tried(N1, *ANSWERS[answer])


def test_of_several_hosts_one_that_hangs_holds_up_the_next_login(clock: Clock) -> None:
    logins = Logins(clock)
    assert [logins.tried(LIST, 2.1), logins.tried(LIST, 2.1)] == [True, False]


def test_a_silence_long_ago_is_no_part_of_one_now(clock: Clock) -> None:
    """Nor is memory filled by ever new addresses of a cluster that lies."""
    logins = Logins(clock)
    assert logins.tried(N1, *HANGS)
    clock.time += 3600
    assert logins.tried(N1, *HANGS)
    clock.time += 0.6
    assert logins.tried(N1, *HANGS)
    for port in range(9):
        clock.time += 600
        assert logins.tried(Endpoint((("n3", port),)), *HANGS)
    assert len(repeated_logins._silent) == 1


def test_while_one_is_under_way_none_joins_it(clock: Clock) -> None:
    logins = Logins(clock)
    assert logins.tried(N1, *HANGS)
    clock.time += 1.0
    with first_answer(N1):
        assert not logins.tried(N1)
    assert logins.tried(N1)


@contextmanager
def counting() -> Iterator[tuple[Endpoint, list[int]]]:
    """A server that ends every login at once, and the logins so far."""
    came: list[int] = []
    with serving(lambda connection: came.append(connection.fileno())) as port:
        plain = (("sslmode", "disable"), ("gssencmode", "disable"))
        yield Endpoint((("127.0.0.1", port),), "postgres", "u", None, plain), came


def looking(endpoint: Endpoint, who: str) -> Callable[[], object]:
    """One of those who log in again and again at its work; ends it."""
    members = {"n1": endpoint}
    if who == "poller":
        return SqlPoller(lambda: members, RealClock(), pace_s=0.02).close
    if who == "canary":
        target = SimpleNamespace(
            clock=RealClock(),
            capabilities=lambda: SimpleNamespace(limits=NO_LIMITS),
            routes=lambda: (Route("multi-host"),),
            endpoint=lambda _route: endpoint,
        )
        return Canary(cast(Any, target), (Level.ON,), print, pace_s=0.02)._closed.set
    servers = Servers(TargetFile(kind="postgres"), endpoint)
    for _ in range(2):
        with suppress(TargetError):
            rows_of(members) if who == "observing" else servers.members()
    return lambda: None


@pytest.mark.parametrize("who", ["poller", "canary", "finding members", "observing"])
def test_whoever_looks_again_and_again_keeps_to_it(who: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Endpoint] = []

    def tried(endpoint: Endpoint) -> AbstractContextManager[None]:
        tries.append(endpoint)
        return first_answer(endpoint)

    for module in ("targets.sql.connection", "targets.sql.observe", "watching.canary"):
        monkeypatch.setattr(f"walproof.{module}.first_answer", tried)
    monkeypatch.setattr(canaries, "_create_table", lambda *_: None)
    with counting() as (endpoint, came):
        with suppress(psycopg.Error), first_answer(endpoint):
            clock.time += HANGS[0]
            raise HANGS[1]
        for due in (False, True):
            clock.time += 1.0 if due else 0.0
            tries.clear()
            end = looking(endpoint, who)
            wait_for(Wait.PROGRAM_READY, lambda: len(tries) > 1, RealClock(), pace_s=0.01)
            end()
            assert bool(came) is due


def test_the_signs_of_a_fault_are_asked_for_all_the_same(clock: Clock) -> None:
    """That a member does not answer is evidence in a drill."""
    with counting() as (endpoint, came):
        repeated_logins._silent[endpoint.hosts] = clock.time, clock.time + 300
        assert [state.answers for state in SqlMemberStates(lambda: {"n1": endpoint}, RealClock()).states()] == [False]
        assert len(came) == 1


@each(["hangs", "is away"])
def test_what_leaves_a_process_is_told_from_a_host_that_is_away(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_logins, "_silent", {})
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as opened:
        for _ in range(3 if server == "is away" else 0):  # Linux drops what a full queue has no room for
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        rows_of({"n1": Endpoint((("127.0.0.1", listening.getsockname()[1]),))})
        assert bool(repeated_logins._silent) is (server == "hangs")
