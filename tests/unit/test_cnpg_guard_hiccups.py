"""What looks like a freeze for seconds, and is none: the guard of a frozen primary whole, in virtual time."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import psycopg
import pytest

from tests.fixtures.kubernetes.access import Rule
from tests.fixtures.kubernetes.virtual_guard import StillWaits, VirtualClock, World, world
from tests.fixtures.tiers import each
from walproof.errors import TargetError, UsageError
from walproof.guarding.kubernetes_freeze import State
from walproof.guarding.kubernetes_sight import Way
from walproof.targets.cnpg.guard import _RIGHTS_S, MANAGER, SERVICE, Asker, Row
from walproof.targets.cnpg.kubernetes_api import ApiError
from walproof.targets.cnpg.objects import Pod

LEARNS_S = 15.0
DELETES = ("delete", "pods/pg-1")


@dataclass
class Tcp:
    """One way to PostgreSQL: SYN at 0 and 1 s, connect_timeout 2 s, tcp_user_timeout 1 s, a login of that length."""

    passes: Callable[[float], bool]
    login_s: float
    up: bool = True
    unanswered: float | None = None
    began: float | None = None

    def ask(self, now: float, answer: Callable[[], Row]) -> Row:
        if self.up:
            if self.passes(now):
                self.unanswered = None
                return answer()
            self.unanswered = self.unanswered or now
            if now - self.unanswered < 1.0:
                raise StillWaits
            self.up, self.unanswered = False, None
            raise psycopg.OperationalError("timed out")
        self.began = self.began or now
        sent = [at for at in (self.began, self.began + 1.0) if at <= now and self.passes(at)]
        if sent and now >= sent[0] + self.login_s:
            self.up, self.began = True, None
            return answer()
        if now - self.began < 2.0:
            raise StillWaits
        self.began = None
        raise psycopg.errors.ConnectionTimeout


@dataclass
class Hiccup:
    """No packet of the primary passes for so long; its WAL comes with TCP's next retransmission."""

    w: World
    lasts_s: float
    login_s: float
    since: float = float("inf")
    ways: dict[str, Tcp] = field(default_factory=dict)

    def passes(self, at: float) -> bool:
        return not self.since <= at < self.since + self.lasts_s

    def ask(self, place: str, pod: Pod | None) -> Row:
        now, whole = self.w.clock.now_s, World.ask
        if place not in (SERVICE, MANAGER, "pg-1"):
            return whole(self.w, place, pod)
        if place == MANAGER:
            if self.passes(now):
                return whole(self.w, place, pod)
            raise StillWaits
        way = self.ways.setdefault(place, Tcp(self.passes, self.login_s))
        return way.ask(now, lambda: whole(self.w, place, pod))

    def tick(self) -> None:
        if self.since <= self.w.clock.now_s < self.since + 6.2:
            self.w.cnpg._tick()
        else:
            self.w.tick()


HICCUPS = [(2.5, 0.6), (3.1, 0.6), (3.3, 0.6), (3.5, 0.3), (3.5, 0.6), (4.2, 1.2), (5.0, 0.6)]


@each(HICCUPS)
def test_a_hiccup_of_the_network_with_slow_logins_after_it_is_no_freeze(lasts_s: float, login_s: float) -> None:
    with world() as w:
        hiccup = Hiccup(w, lasts_s, login_s)
        w.ask = hiccup.ask  # type: ignore[method-assign]
        w.clock.acts = [hiccup.tick]
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        assert guard.status().ready
        hiccup.since = w.clock.now_s
        w.cnpg.cut("pg-1")
        w.run(guard, lasts_s)
        w.cnpg.mend("pg-1")
        w.run(guard, 10.0)
        assert api.writes == []
        w.run(guard, 10.0, calm=True)
        assert guard.status().ready


@pytest.mark.parametrize("deaf", [(SERVICE, "pg-1"), (SERVICE,), ("pg-1",)])
@pytest.mark.parametrize("quiet_s", [3.6, 5.0])
def test_sql_that_is_held_for_minutes_is_not_ready_and_makes_no_quiet_stream_a_freeze(
    deaf: tuple[str, ...], quiet_s: float
) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        w.deaf.update(deaf)
        w.run(guard, 200.0, calm=True)
        assert not guard.status().ready and "WAL came without SQL" in guard.status().why_not
        w.clock.acts = [w.cnpg._tick if act == w.tick else act for act in w.clock.acts]
        w.run(guard, quiet_s)
        w.clock.acts = [w.tick if act == w.cnpg._tick else act for act in w.clock.acts]
        w.run(guard, 5.0)
        assert api.writes == [] and guard.status().suspicions == 0


def test_an_announcement_that_takes_more_than_a_second_is_no_stall() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        api.after = lambda verb, kind: slow(w, 1.2) if (verb, kind) == ("patch", "clusters") else None
        w.cnpg.freeze("pg-1")
        w.run(guard, 30.0)
        assert [one[:2] for one in api.writes][1] == DELETES and w.cnpg.state.primary != "pg-1"


def slow(w: World, seconds: float) -> None:
    w.clock.now_s += seconds


@each([[429], [403], [429, 429], [403, 429]])
def test_what_is_refused_is_tried_again_before_the_pod_is_the_operators_case(codes: list[int]) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        left = list(codes)

        def refuses(verb: str, kind: str) -> None:
            if verb == "delete" and left:
                raise ApiError("busy", code=left.pop())

        api.before = refuses
        began = w.clock.now_s
        w.cnpg.freeze("pg-1")
        w.run(guard, 19.0)
        assert DELETES in [one[:2] for one in api.writes] and w.clock.now_s - began < 20.0
        assert any("could not delete the pod: busy" in line for line in w.lines)


@each([403, 429])
def test_a_deletion_that_is_refused_is_not_announced_again_at_once(code: int) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        announced = list[float]()

        def refuses(verb: str, kind: str) -> None:
            if (verb, kind) == ("patch", "clusters"):
                announced.append(w.clock.now_s)
            if verb == "delete":
                raise ApiError("no", code=code)

        api.before = refuses
        w.cnpg.freeze("pg-1")
        while w.clock.now_s < 1031.0:
            w.clock.stride = 1
            guard.turn()
        assert len(announced) > 1
        assert all(later - at > 5.0 for at, later in itertools.pairwise(announced))


def test_after_a_takeover_ten_minutes_are_rested_whatever_was_announced_before() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        w.cnpg.freeze("pg-1")
        while guard.memory.state is not State.CLAIMED:
            w.clock.stride = 1
            guard.turn()
        w.cnpg._happens(w.cnpg.machine.thaw, "pg-1")
        w.run(guard, 12.0, calm=True)
        guard.memory = replace(guard.memory, claimed_at=guard.memory.claimed_at - 610.0)
        assert len(api.writes) == 1 and guard.status().ready
        w.cnpg.freeze("pg-1")
        w.run(guard, 45.0)
        assert len(api.writes) == 4 and w.cnpg.state.primary != "pg-1"
        w.cnpg.freeze(w.cnpg.state.primary)
        w.run(guard, 12.0, calm=True)
        assert len(api.writes) == 4


@each([0.08, 0.25, 0.35])
def test_an_api_server_that_takes_its_time_leaves_the_guard_ready(takes_s: float) -> None:
    with world() as w:
        guard, api = w.guard()
        api.takes_s = takes_s
        w.run(guard, LEARNS_S, calm=True)
        while w.clock.now_s < 1030.0:
            w.clock.stride = 4
            guard.turn()
            assert guard.status().ready, guard.status().why_not
        w.cnpg.freeze("pg-1")
        w.run(guard, 12.0)
        assert DELETES in [one[:2] for one in api.writes]


@each([0.45, 0.6, 1.5])
def test_an_api_server_that_takes_too_long_is_said_to(takes_s: float) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        api.takes_s = takes_s
        w.run(guard, 10.0, calm=True)
        assert not guard.status().ready and "no reading of the Kubernetes API within 2 s" in guard.status().why_not
        w.clock.now_s += 3.0
        assert "takes more than 2 s" in guard.status().why_not, "the turn hangs"


@pytest.mark.parametrize("name", ["..", "other-1", "pg-1/exec", "pg-", "pg-x"])
@pytest.mark.parametrize("where", ["instanceNames", "currentPrimary"])
def test_no_pod_is_asked_for_that_is_no_instance_by_its_name(name: str, where: str) -> None:
    """Who may write the status of the Cluster would have a guard delete another's pod."""
    with world() as w:
        guard, api = w.guard()
        w.run(guard, 1.0)
        names = ["pg-1", "pg-2", name] if where == "instanceNames" else name
        w.cnpg.store.modify("Cluster", "pg", lambda one: one["status"].update({where: names}))
        w.cnpg._tick = lambda: None  # type: ignore[method-assign]
        asked = list[str]()
        api.before = lambda verb, kind: asked.append(kind)
        with pytest.raises(TargetError, match="no name of the operator's"):
            guard._read()
        assert "pods" not in asked
        w.run(guard, 4.0, calm=True)
        assert not guard.status().ready and "no name of the operator's" in guard.status().why_not


@each([404, 409])
def test_a_pod_that_is_gone_at_the_deletion_is_not_said_to_be_deleted(code: int) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)

        def meanwhile(verb: str, kind: str) -> None:
            if verb == "delete":
                raise ApiError("gone, or another has its name", code=code)

        api.before = meanwhile
        w.cnpg.freeze("pg-1")
        w.run(guard, 4.6)
        assert guard.status().takeovers == 0 and [one[:2] for one in api.writes] == [("patch", "clusters/pg")]
        assert any("could not delete the pod: it is gone already, or made anew" in line for line in w.lines)


@each([("delete", "pods"), ("patch", "leases"), ("patch", "clusters")])
def test_rights_that_are_taken_away_are_noticed_within_a_minute(
    without: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _RIGHTS_S == 60.0
    monkeypatch.setattr("walproof.targets.cnpg.guard._RIGHTS_S", 6.0)
    with world() as w:
        guard, _ = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        w.account.without = (Rule((without,), (kind,)),)
        w.run(guard, 7.0, calm=True)
        assert not guard.status().ready and f"may not {without} {kind}" in guard.status().why_not
        w.account.without = ()
        w.run(guard, 10.0, calm=True)
        assert guard.status().ready


@each([(1.0, True), (5.0, True), (5.1, False), (25.0, False)])
def test_a_suspicion_that_comes_after_the_readiness_probe_is_refused(suspect_after_s: float, works: bool) -> None:
    with world() as w:
        if not works:
            with pytest.raises(UsageError, match="suspect-after"):
                w.guard(suspect_after_s=suspect_after_s)
            return
        guard, api = w.guard(suspect_after_s=suspect_after_s)
        w.run(guard, LEARNS_S, calm=True)
        w.cnpg.freeze("pg-1")
        w.run(guard, 7.0)
        assert DELETES in [one[:2] for one in api.writes], "as the least readiness probe that is let through needs it"


def test_a_lease_that_was_not_read_for_long_does_not_delay_the_end_of_a_takeover() -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)

        def away(*_asked: Any) -> None:
            raise ApiError("no answer")

        api.before = away
        w.run(guard, 45.0, calm=True)
        api.before = lambda verb, kind: None
        w.run(guard, 10.0, calm=True)
        assert guard.memory.gap_s <= 10.0 and guard.status().ready
        w.cnpg.freeze("pg-1")
        w.run(guard, 30.0)
        assert len(api.writes) == 3


ENDS = (
    psycopg.errors.ConnectionTimeout(),  # of a login, which any role can have wait: DROP DATABASE postgres
    httpx2.ReadTimeout("late"),
    psycopg.OperationalError("FATAL: too many"),
    httpx2.ConnectError("refused"),
    OSError(),
    TargetError("no pod"),
    httpx2.InvalidURL("odd"),
    ValueError(),
)


@each([*ENDS, StillWaits()])
def test_only_an_open_session_that_waits_counts_as_silence(wrong: BaseException) -> None:
    clock, raised = VirtualClock(), list[BaseException]()

    def ask() -> Row:
        if raised:
            raise raised[0]
        return Row(timeline=7)

    asker = Asker(clock, ask)
    clock.pause(0.1)
    assert (asker.way, asker.answer) == (Way(1000.1), (1000.1, Row(timeline=7)))
    raised.append(wrong)
    for _ in range(5):
        clock.pause(0.1)
    assert asker.way.answered_at == 1000.1 and asker.answer[0] == 1000.1
    waits = asker.way.waiting_since
    assert (waits is not None and abs(waits - 1000.2) < 0.01) if isinstance(wrong, StillWaits) else waits is None


def test_a_right_that_is_not_known_after_the_deletion_does_not_stop_the_takeover() -> None:
    """An authorizer that is down answers no; what is not allowed the API refuses by itself."""
    with world() as w:
        guard, api = w.guard()
        w.run(guard, LEARNS_S, calm=True)
        w.cnpg.freeze("pg-1")
        while guard.memory.state is not State.DELETED:
            w.clock.stride = 1
            guard.turn()
        guard._lacks = ApiError("this user may not patch leases", code=403)
        w.run(guard, 30.0)
        assert [verb for verb, _, _ in api.writes] == ["patch", "delete", "patch"]


def test_the_shipped_guard_deletes_where_readings_take_almost_as_long_as_they_may() -> None:
    with world() as w:
        guard, api = w.guard()
        api.takes_s = 0.39
        w.run(guard, 2 * LEARNS_S, calm=True)
        assert guard.status().ready
        w.cnpg.freeze("pg-1")
        w.run(guard, 19.0)
        assert DELETES in [one[:2] for one in api.writes]
