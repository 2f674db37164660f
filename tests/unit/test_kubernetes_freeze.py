"""What a guard of CloudNativePG decides about a frozen primary, turn by turn: each condition, each way to stop.

Each row stands for an act that would have replaced a living primary, or for an outage that nobody ended.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.kubernetes.sights import (
    CLAIMED,
    GONE,
    NAMED,
    POLICY,
    claims,
    dead,
    deleted,
    from_then,
    sight,
    watched,
)  # fmt: skip
from tests.fixtures.tiers import each
from walproof.guarding.kubernetes_freeze import Act, Action, Memory, State, done, not_done, turn
from walproof.guarding.kubernetes_sight import HEALTHY, PENDING, LeaseSeen, StandbySeen, Way


def test_a_frozen_primary_is_announced_deleted_proven_dead_and_its_lease_emptied() -> None:
    memory, action = claims()
    assert action.act is Act.CLAIM and 2.8 <= float(action.onto[1:]) - 20.0 < 3.2
    memory, empty = from_then(dead(), 25.5, 40.0, **NAMED)
    assert empty is not None and empty.act is Act.EMPTY_LEASE and empty.onto == "l12.0"
    memory = done(memory, empty, 27.1)
    assert (memory.state, memory.takeovers) == (State.NOT_READY, 1)
    assert memory.why_not == "Lease emptied: the chosen instance takes it"
    taken = sight(30.0, frozen_at=20.0, cluster_primary="pg-2", cluster_target="pg-2")
    assert turn(memory, taken, POLICY)[1] is None


def both(**one: Any) -> dict[str, StandbySeen]:
    return {name: StandbySeen(99.0, **one) for name in ("pg-2", "pg-3")}


NEVER: dict[str, dict[str, Any]] = {
    "a switchover": {"cluster_target": "pg-2"},
    "a failover": {"cluster_target": PENDING},
    "a rolling update": {"cluster_phase": "Upgrading cluster"},
    "a standby is made": {"cluster_phase": "Creating a new replica"},
    "fencing, hibernation …": {"cluster_hands_off": "pg-2 is fenced"},
    "ALTER SYSTEM": {"cluster_in_effect": 0},
    "no standby": {"cluster_instances": ("pg-1",)},
    "pod not ready, ending or gone": {"pod_ready": False},
    "the pod has no uid": {"pod": ""},
    "free lease": {"lease_holder": ""},
    "another's lease": {"lease_holder": "pg-2"},
    "manager silent": {"manager": Way(20.0, 20.0)},
    "SQL by the service": {"service": Way(30.0)},
    "SQL by the pod": {"direct": Way(30.0)},
    "a way not tried": {"direct": Way(20.0)},
    "a standby hears it": {"standbys": {"pg-2": StandbySeen(99.0, 99.0, True), "pg-3": StandbySeen(99.0)}},
    "a standby is missing": {"standbys": {"pg-2": StandbySeen(99.0)}},
    "a standby answered long ago": {"standbys": {"pg-2": StandbySeen(99.0), "pg-3": StandbySeen(19.0)}},
    "a standby is not ready": {"standbys": {"pg-2": StandbySeen(99, ready=False), "pg-3": StandbySeen(99)}},
    "a standby has much to replay": {"standbys": {"pg-2": StandbySeen(99, behind=True), "pg-3": StandbySeen(99)}},
    "no timeout of WAL receivers": {"standbys": both(pings_s=float("inf"))},
    "a WAL receiver of one asks late": {"standbys": {"pg-2": StandbySeen(99, pings_s=60), "pg-3": StandbySeen(99)}},
    "one of three does not answer": {
        "cluster_instances": ("pg-1", "pg-2", "pg-3", "pg-4"), "cluster_number": 2, "cluster_in_effect": 2,
    },
    "taken over just now": {"cluster_claim": ("g2", "u0", "1.0")},
    "taken over by this name": {"cluster_claim": ("g1", "u0", "1.0")},
    "an announcement without a pod": {"cluster_claim": ("somebody", "", "1.0")},
    "old reading of the API": {"read_at": 15.0},
    "it was stalled": {"stalled": True},
}  # fmt: skip


@each(NEVER.items())
def test_nothing_is_done(why: str, changes: dict[str, Any]) -> None:
    memory, action = from_then(watched(), 20.1, 33.0, **changes)
    assert action is None and memory.takeovers == 0


LIVES: dict[str, dict[str, Any]] = {
    "another guard announces one": {"cluster_claim": ("g2", "u1", "1.0")},
    "its announcement is of another pod": {"cluster_claim": ("g1", "u0", "1.0")},
    "the service is not asked": {"service": Way(20.0)},
    "the service answers": {"service": Way(23.3)},
    "the pod answers, and is asked once more": {"direct": Way(23.3, 23.4)},
    "the manager fell silent": {"manager": Way(22.9)},
    "the standbys were asked before it": {"standbys": {n: StandbySeen(23.05, 20.0) for n in ("pg-2", "pg-3")}},
}


@each((NEVER | LIVES).items())
def test_nothing_is_deleted_after_the_announcement(why: str, changes: dict[str, Any]) -> None:
    memory, action = claims()
    memory, found = from_then(done(memory, action, 23.1), 23.15, 28.0, **{**CLAIMED, **changes})
    assert found is None and memory.state is State.NOT_READY and memory.takeovers == 0


@each([("", "", ""), ("g2", "u1", "1"), ("g1", "u0", "1"), ("somebody", "", "")], whole=True)
def test_nothing_is_deleted_without_its_own_announcement_of_that_pod(claim: tuple[str, str, str]) -> None:
    memory, action = claims()
    memory, found = turn(done(memory, action, 23.1), sight(24.2, frozen_at=20.0, cluster_claim=claim), POLICY)
    assert found is None and memory.state is State.NOT_READY and "not this guard's" in memory.why_not


def test_the_silence_has_to_last_a_second_longer_than_the_announcement() -> None:
    memory, action = claims()
    memory, found = from_then(done(memory, action, 23.1), 23.15, 24.05, **CLAIMED)
    assert found is None and memory.state is State.CLAIMED
    assert from_then(memory, 24.15, 24.3, **CLAIMED)[1] is not None


def test_a_guard_learns_first_and_anew_with_each_pod_and_a_dry_run_only_suspects() -> None:
    assert from_then(Memory(), 20.1, 40.0)[1] is None, "it never saw a standby follow"
    memory, action = from_then(watched(), 20.1, 40.0, pod="u2")
    assert action is None and memory.uid == "u2"
    memory = watched()
    for tick in range(201, 300):
        memory, action = turn(memory, sight(tick / 10, frozen_at=20.0), replace(POLICY, dry_run=True))
        assert action is None
    assert (memory.state, memory.suspicions) == (State.SUSPECTING, 1)


@given(
    st.sampled_from(["g1", "g2", "somebody"]), st.sampled_from(["u0", "u1", ""]), st.floats(1.0, 720.0),
    st.floats(0.0, 8000.0), st.booleans(), st.booleans(),
)  # fmt: skip
def test_an_announcement_counts_from_when_its_last_was_seen(
    by: str, uid: str, at: float, apart_s: float, watches: bool, taken_away: bool
) -> None:
    """Ten minutes, five seconds where its pod still runs; also once kubectl replace or GitOps has taken it away."""
    memory = turn(watched() if watches else Memory(), sight(20.5 if watches else 0.5), POLICY)[0]
    for seen in (20.5 + at, last := 20.5 + at + apart_s):
        memory, _ = turn(memory, sight(seen, cluster_claim=(by, uid, str(seen))), POLICY)
    rest_s = 5.0 if uid == "u1" else 600.0
    kept: dict[str, Any] = {} if taken_away else {"cluster_claim": (by, uid, str(last))}
    for later, rests in ((last, True), (last + rest_s - 0.5, True), (last + rest_s + 0.5, False)):
        memory, _ = turn(memory, sight(later, **kept), POLICY)
        assert ("announced a takeover" in memory.why_not and f"one in {rest_s:.0f} s" in memory.why_not) is rests
    if taken_away:
        assert "announced" not in turn(Memory(), sight(last + 1.0), POLICY)[0].why_not, "it saw none"


@each([("g1", 60.0), ("g2", 599.0), ("g2", 7200.0)])
def test_ten_minutes_are_counted_on_once_another_pod_leads(by: str, apart_s: float) -> None:
    last = 21.0 + apart_s
    memory, _ = turn(watched(), sight(21.0, cluster_claim=(by, "u1", "21.0")), POLICY)
    memory, _ = turn(memory, sight(last, cluster_claim=(by, "u1", str(last))), POLICY)
    led: dict[str, Any] = {"pod": "u2", "cluster_primary": "pg-2", "cluster_target": "pg-2", "lease_holder": "pg-2"}
    for later, rests in ((last + 50.0, True), (last + 599.0, True), (last + 601.0, False)):
        standbys = {name: StandbySeen(later, later, True) for name in ("pg-1", "pg-3")}
        claim = (by, "u1", str(last))
        memory, _ = turn(memory, sight(later, **led, cluster_claim=claim, standbys=standbys), POLICY)
        assert ("one in 600 s" in memory.why_not) is rests


@each([{"pod": "u2"}, {"pod": "", "cluster_primary": "pg-3"}, {"pod": "", "cluster_hands_off": "pg-1 is fenced"}])
def test_it_stops_and_says_so_once_the_pod_is_made_anew_replaced_or_fenced(changes: dict[str, Any]) -> None:
    memory, action = from_then(deleted(), 24.6, 26.0, **{**CLAIMED, **changes})
    assert memory.state is State.NOT_READY and action is None and memory.why_not


def test_a_pod_that_is_missing_in_one_reading_alone_is_not_gone() -> None:
    """As by a proxy's page with 404."""
    memory, action = from_then(deleted(), 28.0, 28.1, **{**NAMED, "read_at": 28.0})
    memory, action = turn(memory, sight(28.1, frozen_at=20.0, **{**NAMED, "read_at": 28.0}), POLICY)
    assert (memory.state, memory.uid, action) == (State.DELETED, "", None)
    assert turn(memory, sight(28.2, frozen_at=20.0, **{**NAMED, "pod": "u1"}), POLICY)[0].state is State.NOT_READY
    assert turn(memory, sight(28.2, frozen_at=20.0, **NAMED), POLICY)[1] is not None


def test_a_pod_whose_end_is_not_confirmed_in_twenty_seconds_is_left() -> None:
    memory, action = from_then(deleted(), 24.6, 44.4, pod_ready=False, **CLAIMED)
    assert memory.state is State.DELETED
    memory, action = turn(memory, sight(44.6, frozen_at=20.0, pod_ready=False, **CLAIMED), POLICY)
    assert memory.state is State.NOT_READY and action is None
    assert "no more was seen within 20 s" in memory.why_not


@each([
    {"lease_holder": "pg-3"},
    {"lease_holder": "pg-2"},
    {"lease_holder": ""},
    {"pod": "u2"},
    {"cluster_hands_off": "it is hibernated"},
])  # fmt: skip
def test_the_lease_is_left_alone_for_good(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 25.5, 90.0, **{**NAMED, **changes})
    assert memory.state is State.NOT_READY and action is None and memory.why_not


@each(["Switchover in progress", HEALTHY, "Waiting for user action", "Upgrading cluster", ""])
def test_a_target_that_was_named_and_not_elected_is_not_given_the_lease(phase: str) -> None:
    """kubectl cnpg promote asks neither for the quorum nor for its WAL."""
    memory, action = from_then(dead(), 25.5, 25.6, **{**NAMED, "cluster_phase": phase})
    assert memory.state is State.NOT_READY and action is None
    assert f"whether pg-2 was elected or named by hand is not known: the phase is {phase}" in memory.why_not


@each([
    {**GONE, "cluster_target": PENDING},
    {**GONE, "cluster_target": "pg-1"},
    {**GONE, "cluster_target": ""},
    {**NAMED, "renewals": 1e9},
    {**NAMED, "read_at": 25.0},
])  # fmt: skip
def test_the_lease_is_not_emptied_yet(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 25.5, 40.0, **changes)
    assert memory.state is State.DELETED and action is None
    assert from_then(memory, 40.0, 100.0, **changes)[0].state is State.NOT_READY, "it does not wait for ever"


def test_a_renewal_counts_from_the_reading_that_showed_it_not_from_its_question() -> None:
    memory, renewed = dead(), LeaseSeen("l9", "pg-1", "other")
    for now, read_at in ((30.0, 28.1), (30.1, 30.05), (32.0, 31.9), (32.5, 32.4)):
        memory, action = turn(memory, sight(now, **{**NAMED, "read_at": read_at, "lease": renewed}), POLICY)
        assert action is None, now
    late = {**NAMED, "read_at": 38.0, "lease": renewed}
    assert turn(memory, sight(38.1, frozen_at=20.0, **late), POLICY)[1] is not None


def test_the_longest_time_between_renewals_is_forgotten_slowly_and_never_believed_beyond_ten_seconds() -> None:
    memory, gaps = Memory(), list[float]()
    for at in (0, 2, 8, 10, 12, 60, 62):
        memory, _ = turn(memory, sight(float(at), lease=LeaseSeen("l", "pg-1", str(at))), POLICY)
        gaps.append(memory.gap_s)
    assert gaps[2:5] == pytest.approx([6.0, 5.88, 5.7624]) and gaps[5:] == pytest.approx([10.0, 9.8])


@each([(12.0, False), (14.0, False), (20.0, True)])
def test_a_manager_that_renews_no_more_is_not_this_guards_case(renewals: float, acts: bool) -> None:
    assert (from_then(watched(renewals), 20.1, 40.0, renewals=renewals)[1] is not None) is acts


@each([2.0, 4.0, 8.0])
def test_a_manager_that_was_started_with_a_longer_period_is_given_that(every_s: float) -> None:
    memory, renewals, silent_s = Memory(), dict[str, Any](), every_s + 0.5
    for tick in range(401):
        renewals = {"lease": LeaseSeen("l", "pg-1", str(tick / 10 // every_s))}
        memory, _ = turn(memory, sight(tick / 10, **renewals), POLICY)
    memory = replace(dead(), renewed=memory.renewed, renewed_at=40.0, gap_s=memory.gap_s, step_at=40.0)
    assert from_then(memory, 40.1, 40.0 + silent_s - 0.1, **NAMED, **renewals)[1] is None
    assert from_then(memory, 40.1, 40.0 + silent_s + 0.6, **NAMED, **renewals)[1] is not None


def test_what_is_refused_or_not_known_is_not_done() -> None:
    memory, claim = claims()
    for action in (claim, Action(Act.DELETE_POD, "u1", 24.0), Action(Act.EMPTY_LEASE, "l", 24.0)):
        tried = not_done(memory, action, "409")
        assert (tried.state, tried.takeovers) == (State.NOT_READY, 0)
        assert f"could not {action.act}: 409" in tried.why_not


# Which silence is taken for a freeze, and which is not.


@each([(20.3, 1.3), (21.0, 1.5), (20.3, 3.0), (21.5, 3.0)])
def test_silence_counts_only_while_the_manager_answers_all_along(at: float, gap_s: float) -> None:
    """What hit the manager may have hit the ways to PostgreSQL too: a hiccup of the network, whose logins take long."""
    _, action = from_then(
        watched(), 20.1, 32.0, manager=lambda now: Way(min(now, at)) if now < at + gap_s else Way(now)
    )
    assert action is not None and float(action.onto[1:]) >= at + gap_s + 4.8


@each([(0.5, 21.5), (2.5, 22.8), (3.7, 24.0), (3.8, None), (30.0, None)])
def test_a_standby_is_silent_once_its_own_question_should_have_been_answered(
    pings_s: float, acts_at: float | None
) -> None:
    memory, action = from_then(
        watched(), 20.1, 40.0,
        standbys=lambda at: {n: StandbySeen(at, 20.0, pings_s=s) for n, s in (("pg-2", pings_s), ("pg-3", 0.5))},
    )  # fmt: skip
    if acts_at is None:
        assert action is None and memory.state is State.NOT_READY and "wal_receiver_timeout" in memory.why_not
    else:
        assert action is not None and acts_at <= float(action.onto[1:]) < acts_at + 0.35


@each([("pg-2", 0.3), ("pg-3", 0.3), ("pg-2", 0.9), ("pg-3", 0.9)])
def test_a_standby_is_silent_up_to_its_last_question_only(which: str, late_s: float) -> None:
    """One that answers late has been asked long ago: what it heard since is not known."""
    _, action = from_then(
        watched(), 20.1, 30.0,
        standbys=lambda at: {n: StandbySeen(at - late_s if n == which else at, 20.0) for n in ("pg-2", "pg-3")},
    )  # fmt: skip
    assert action is not None and float(action.onto[1:]) >= 22.8 + late_s


@each([
    {"service": Way(21.0)},
    {"service": Way()},
    {"direct": Way(21.0)},
    {"direct": Way(9.0, 32.0)},  # refused for long, then dropped
    {"manager": Way(21.0)},
    {"manager": Way(21.0, 21.0)},
])  # fmt: skip
def test_a_guard_that_a_place_does_not_answer_is_not_ready_and_says_which(changes: dict[str, Any]) -> None:
    memory, _ = turn(watched(), sight(32.0, **changes), POLICY)
    assert memory.state is State.NOT_READY and "did not answer" in memory.why_not


@each([("service", 22.9, True), ("direct", 22.9, True), ("service", 23.2, False), ("direct", 600.0, False)])
def test_a_way_that_waits_while_wal_comes_is_no_freeze_and_not_ready(way: str, heard_at: float, ready: bool) -> None:
    memory, waits = watched(), dict[str, Any]({way: Way(20.0, 20.1)})
    for tick in range(201, round(heard_at * 10) + 1, 1 if heard_at < 30 else 7):
        memory, _ = turn(memory, sight(tick / 10, **waits), POLICY)
    assert (memory.state is State.WATCHING) is ready
    memory, action = from_then(memory, heard_at, heard_at + 9.0, frozen_at=heard_at, **waits)
    assert (action is not None) is ready and ("WAL came without SQL" in memory.why_not) is not ready


@each([
    {"service": Way(21.0)},
    {"direct": Way(21.0)},
    {"service": Way(20.0, 21.5)},
    {"direct": Way(20.0, 21.5)},
    {"service": Way(20.0, 21.5), "direct": Way(20.0, 21.5)},
])  # fmt: skip
def test_a_way_that_waits_only_since_it_was_cut_off_shows_no_frozen_server(changes: dict[str, Any]) -> None:
    """A frozen server's sessions stay, for its kernel acknowledges."""
    memory, action = from_then(watched(), 22.2, 34.0, **changes)
    assert action is None and memory.suspicions == 0


@each([(0.0, True), (2.7, True), (2.9, False), (90.0, False)])
def test_sql_that_falls_silent_long_after_wal_is_no_freeze(later_s: float, acts: bool) -> None:
    """By then the standbys had ended for another reason, and SQL alone would be the witness."""
    memory, action = from_then(
        watched(), 20.1, 28.0 + later_s, frozen_at=20.0 + later_s,
        standbys=lambda at: {name: StandbySeen(at, 20.0) for name in ("pg-2", "pg-3")},
    )  # fmt: skip
    assert (action is not None) is acts and ("SQL came without WAL" in memory.why_not) is not acts
    assert "within the last" not in memory.why_not, "for as long as it hangs, waiting would not help"


@each([
    ("the guard stood still", {"stalled": True}),
    ("the write service or pg-1 did not answer", {"service": Way(10.0)}),
    ("the manager of pg-1 did not answer", {"manager": Way(10.0, 10.1)}),
    ("WAL came without SQL", {"direct": Way(10.0, 10.1)}),
    ("SQL came without WAL", {"standbys": {n: StandbySeen(20.1, 10.0) for n in ("pg-2", "pg-3")}}),
])  # fmt: skip
def test_what_was_otherwise_is_said_for_as_long_as_it_counts(said: str, changes: dict[str, Any]) -> None:
    memory = watched()
    if "WAL" in said:
        memory = replace(memory, heard_at=10.0 if said.startswith("SQL") else 20.0)
    memory, _ = turn(memory, sight(20.1, **changes), POLICY)
    assert memory.why_not == said
    for at, so in ((25.0, True), (25.2, False)):
        memory, _ = turn(memory, sight(at), POLICY)
        assert (memory.why_not == f"{said} within the last 5 s") is so
