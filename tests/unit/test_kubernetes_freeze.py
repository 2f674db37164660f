"""What a guard of CloudNativePG decides about a frozen primary, turn by turn: each condition, each way to stop."""

from dataclasses import replace
from typing import Any

import pytest

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
)
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


NEVER = {
    "a switchover": {"cluster_target": "pg-2"},
    "a failover": {"cluster_target": PENDING},
    "a rolling update": {"cluster_phase": "Upgrading cluster"},
    "a standby is made": {"cluster_phase": "Creating a new replica"},
    "fencing, hibernation …": {"cluster_hands_off": "pg-2 is fenced"},
    "ALTER SYSTEM": {"cluster_in_effect": 0},
    "no standby": {"cluster_instances": ("pg-1",)},
    "pod not ready, ending or gone": {"pod_ready": False},
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
    "no timeout of WAL receivers": {"standbys": {n: StandbySeen(99, pings_s=float("inf")) for n in ("pg-2", "pg-3")}},
    "taken over just now": {"cluster_claim": ("g2", "u0", "1.0")},
    "taken over by this name": {"cluster_claim": ("g1", "u0", "1.0")},
    "an announcement without a pod": {"cluster_claim": ("somebody", "", "1.0")},
    "old reading of the API": {"read_at": 15.0},
    "it was stalled": {"stalled": True},
    "the pod has no uid": {"pod": ""},
    "a standby has much to replay": {"standbys": {"pg-2": StandbySeen(99, behind=True), "pg-3": StandbySeen(99)}},
    "the other one has": {"standbys": {"pg-2": StandbySeen(99), "pg-3": StandbySeen(99, behind=True)}},
    "both have": {"standbys": {n: StandbySeen(99, behind=True) for n in ("pg-2", "pg-3")}},
    "one standby is not Ready": {"standbys": {"pg-2": StandbySeen(99.0, ready=False), "pg-3": StandbySeen(99.0)}},
    "one standby is missing of two": {"cluster_number": 2, "cluster_in_effect": 2,
     "standbys": {"pg-2": StandbySeen(99)}},
    "one of two is not Ready": {"cluster_number": 2, "cluster_in_effect": 2, "standbys": {"pg-2": StandbySeen(99.0,
     ready=False), "pg-3": StandbySeen(99.0)}},
    "one of three does not answer": {"cluster_instances": ("pg-1", "pg-2", "pg-3", "pg-4"), "cluster_number": 2,
     "cluster_in_effect": 2},
    "a WAL receiver of one asks late": {"standbys": {"pg-2": StandbySeen(99, pings_s=60), "pg-3": StandbySeen(99)}},
}  # fmt: skip


@each(NEVER.values())
def test_nothing_is_done(changes: dict[str, Any]) -> None:
    memory, action = from_then(watched(), 20.1, 33.0, **changes)
    assert action is None and memory.takeovers == 0


@each(NEVER.values())
def test_nothing_is_deleted_after_the_announcement(changes: dict[str, Any]) -> None:
    memory, action = claims()
    memory, found = from_then(done(memory, action, 23.1), 23.15, 28.0, **{**CLAIMED, **changes})
    assert found is None and memory.state is State.NOT_READY and memory.takeovers == 0


def test_the_longest_time_between_renewals_is_forgotten_slowly_and_never_believed_beyond_ten_seconds() -> None:
    memory, gaps = Memory(), list[float]()
    for at in (0, 2, 8, 10, 12, 60, 62):
        lease = LeaseSeen("l", "pg-1", str(at))
        memory, _ = turn(memory, sight(float(at), lease=lease), POLICY)
        gaps.append(memory.gap_s)
    assert gaps[2:5] == pytest.approx([6.0, 5.88, 5.7624]) and gaps[5:] == pytest.approx([10.0, 9.8])


LIVES = {
    "another guard announces one": {"cluster_claim": ("g2", "u1", "1.0")},
    "its announcement is of another pod": {"cluster_claim": ("g1", "u0", "1.0")},
    "the service is not asked": {"service": Way(20.0)},
    "the service answers": {"service": Way(23.3)},
    "the pod answers, and is asked once more": {"direct": Way(23.3, 23.4)},
    "the manager fell silent": {"manager": Way(22.9)},
    "the standbys were asked before it": {"standbys": {n: StandbySeen(23.05, 20.0) for n in ("pg-2", "pg-3")}},
}


@each(LIVES.values())
def test_what_is_not_so_since_the_announcement_is_no_proof(changes: dict[str, Any]) -> None:
    memory, action = claims()
    memory, found = from_then(done(memory, action, 23.1), 23.15, 28.0, **{**CLAIMED, **changes})
    assert found is None and memory.state is State.NOT_READY


def test_the_silence_has_to_last_a_second_longer_than_the_announcement() -> None:
    memory, action = claims()
    memory, found = from_then(done(memory, action, 23.1), 23.15, 24.05, **CLAIMED)
    assert found is None and memory.state is State.CLAIMED
    assert from_then(memory, 24.15, 24.3, **CLAIMED)[1] is not None


@each([(12.0, False), (14.0, False), (20.0, True)])
def test_a_manager_that_renews_no_more_is_not_this_guards_case(renewals: float, acts: bool) -> None:
    assert (from_then(watched(renewals), 20.1, 40.0, renewals=renewals)[1] is not None) is acts


def test_a_guard_learns_first_and_anew_with_each_pod() -> None:
    assert from_then(Memory(), 20.1, 40.0)[1] is None, "it never saw a standby follow"
    memory, action = from_then(watched(), 20.1, 40.0, pod="u2")
    assert action is None and memory.uid == "u2"


def test_a_dry_run_only_suspects() -> None:
    memory = watched()
    for tick in range(201, 300):
        memory, action = turn(memory, sight(tick / 10, frozen_at=20.0), replace(POLICY, dry_run=True))
        assert action is None
    assert (memory.state, memory.suspicions) == (State.SUSPECTING, 1)


RESTS = {
    "its pod still runs": (("g2", "u1", "1.0"), 5.0),
    "its pod was deleted": (("g2", "u0", "1.0"), 600.0),
    "no pod": (("x", "", ""), 600.0),
    "by this name": (("g1", "u0", "1.0"), 600.0),
}


@pytest.mark.parametrize(("claim", "rest_s"), RESTS.values(), ids=RESTS)
@pytest.mark.parametrize("at", [1.0, 700.0])
def test_how_long_an_announcement_that_was_there_counts(claim: Any, rest_s: float, at: float) -> None:
    memory = Memory()
    for later, rests in ((at, True), (at + rest_s - 1.0, True), (at + rest_s + 1.0, False)):
        memory, _ = turn(memory, sight(later, cluster_claim=claim), POLICY)
        assert ("announced a takeover" in memory.why_not) is rests


def test_a_new_announcement_counts_from_when_it_is_seen() -> None:
    memory, _ = turn(watched(), sight(700.0), POLICY)
    memory, _ = turn(memory, sight(701.0, cluster_claim=("g2", "u0", "1.0")), POLICY)
    memory, _ = turn(memory, sight(1300.0, cluster_claim=("g2", "u0", "1.0")), POLICY)
    assert "announced a takeover 599 s ago" in memory.why_not


@pytest.mark.parametrize("by", ["g1", "g2"])
@pytest.mark.parametrize("apart_s", [60.0, 599.0, 730.0, 7200.0])
def test_ten_minutes_count_from_the_last_announcement_of_a_pod_not_from_its_first(apart_s: float, by: str) -> None:
    last = 21.0 + apart_s
    memory, _ = turn(watched(), sight(21.0, cluster_claim=(by, "u1", "21.0")), POLICY)
    memory, _ = turn(memory, sight(last, cluster_claim=(by, "u1", str(last))), POLICY)
    led: dict[str, Any] = {"pod": "u2", "cluster_primary": "pg-2", "cluster_target": "pg-2", "lease_holder": "pg-2"}
    led["cluster_claim"] = (by, "u1", str(last))
    for later, rests in ((last + 50.0, True), (last + 599.0, True), (last + 601.0, False)):
        standbys = {name: StandbySeen(later, later, True) for name in ("pg-1", "pg-3")}
        memory, _ = turn(memory, sight(later, **led, standbys=standbys), POLICY)
        assert ("one in 600 s" in memory.why_not) is rests


@pytest.mark.parametrize("by", ["g1", "g2"])
@pytest.mark.parametrize("apart_s", [6.0, 60.0, 730.0])
def test_seconds_count_from_the_last_announcement_too(apart_s: float, by: str) -> None:
    memory, last = watched(), 21.0 + apart_s
    for at in (21.0, last):
        memory, _ = turn(memory, sight(at, cluster_claim=(by, "u1", str(at))), POLICY)
        assert "one in 5 s" in memory.why_not
    for later, rests in ((last + 4.0, True), (last + 6.0, False)):
        memory, _ = turn(memory, sight(later, cluster_claim=(by, "u1", str(last))), POLICY)
        assert ("one in 5 s" in memory.why_not) is rests


STOPS = {
    "made anew": {"pod": "u2"},
    "promoted already": {"pod": "", "cluster_primary": "pg-3"},
    "fenced": {"pod": "", "cluster_hands_off": "pg-1 is fenced"},
}


@each(STOPS.values())
def test_it_stops_and_says_so_once_the_pod_is_gone(changes: dict[str, Any]) -> None:
    changes = {"cluster_claim": CLAIMED["cluster_claim"], **changes}
    memory, action = from_then(deleted(), 24.6, 26.0, **changes)
    assert memory.state is State.NOT_READY and action is None and memory.why_not


def test_a_pod_that_is_missing_in_one_reading_alone_is_not_gone() -> None:
    """As by a proxy's page with 404."""
    memory, action = from_then(deleted(), 28.0, 28.1, **{**NAMED, "read_at": 28.0})
    memory, action = turn(memory, sight(28.1, frozen_at=20.0, **{**NAMED, "read_at": 28.0}), POLICY)
    assert (memory.state, memory.uid, action) == (State.DELETED, "", None)
    assert turn(memory, sight(28.2, frozen_at=20.0, **{**NAMED, "pod": "u1"}), POLICY)[0].state is State.NOT_READY
    assert turn(memory, sight(28.2, frozen_at=20.0, **NAMED), POLICY)[1] is not None


def test_a_pod_whose_end_is_not_confirmed_in_twenty_seconds_is_left() -> None:
    ending = {"pod_ready": False, "cluster_claim": CLAIMED["cluster_claim"]}
    memory, action = from_then(deleted(), 24.6, 44.4, **ending)
    assert memory.state is State.DELETED
    memory, action = turn(memory, sight(44.6, frozen_at=20.0, **ending), POLICY)
    assert memory.state is State.NOT_READY and action is None
    assert "no more was seen within 20 s" in memory.why_not


LEFT = {
    "the lease is another's": {**NAMED, "lease_holder": "pg-3"},
    "the lease is the chosen one's": {**NAMED, "lease_holder": "pg-2"},
    "the lease is free": {**NAMED, "lease_holder": ""},
    "the pod was made anew": {**NAMED, "pod": "u2"},
    "hibernated": {**NAMED, "cluster_hands_off": "it is hibernated"},
}


@each(LEFT.values())
def test_the_lease_is_left_alone_for_good(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 25.5, 90.0, **changes)
    assert memory.state is State.NOT_READY and action is None and memory.why_not


PHASES = ("Switchover in progress", HEALTHY, "Waiting for user action", "Upgrading cluster", "")


@each(PHASES)
def test_a_target_that_was_named_and_not_elected_is_not_given_the_lease(phase: str) -> None:
    """kubectl cnpg promote asks neither for the quorum nor for its WAL."""
    memory, action = from_then(dead(), 25.5, 25.6, **{**NAMED, "cluster_phase": phase})
    assert memory.state is State.NOT_READY and action is None
    assert f"whether pg-2 was elected or named by hand is not known: the phase is {phase}" in memory.why_not


WAITED = {
    "no target yet": {**GONE, "cluster_target": PENDING},
    "the target is the dead one": {**GONE, "cluster_target": "pg-1"},
    "the target is empty": {**GONE, "cluster_target": ""},
    "the lease is renewed": {**NAMED, "renewals": 1e9},
    "old readings": {**NAMED, "read_at": 25.0},
}


@each(WAITED.values())
def test_the_lease_is_not_emptied_yet(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 25.5, 40.0, **changes)
    assert memory.state is State.DELETED and action is None
    assert from_then(memory, 40.0, 100.0, **changes)[0].state is State.NOT_READY, "it does not wait for ever"


def test_a_renewal_counts_from_the_reading_that_showed_it_not_from_its_question() -> None:
    memory = dead()
    renewed = LeaseSeen("l9", "pg-1", "other")
    memory, action = turn(memory, sight(30.0, **{**NAMED, "read_at": 28.1, "lease": renewed}), POLICY)
    assert action is None
    for now, read_at in ((30.1, 30.05), (32.0, 31.9), (32.5, 32.4)):
        memory, action = turn(memory, sight(now, **{**NAMED, "read_at": read_at, "lease": renewed}), POLICY)
        assert action is None
    late = {**NAMED, "read_at": 38.0, "lease": renewed}
    assert turn(memory, sight(38.1, frozen_at=20.0, **late), POLICY)[1] is not None


@each([(2.0, 2.5), (4.0, 4.5), (8.0, 8.5)])
def test_a_manager_that_was_started_with_a_longer_period_is_given_that(every_s: float, silent_s: float) -> None:
    memory, renewals = Memory(), dict[str, Any]()
    for tick in range(401):
        renewals = {"lease": LeaseSeen("l", "pg-1", str(tick / 10 // every_s))}
        memory, _ = turn(memory, sight(tick / 10, **renewals), POLICY)
    memory = replace(dead(), renewed=memory.renewed, renewed_at=40.0, gap_s=memory.gap_s, step_at=40.0)
    last = {**NAMED, **renewals}
    assert from_then(memory, 40.1, 40.0 + silent_s - 0.1, **last)[1] is None
    assert from_then(memory, 40.1, 40.0 + silent_s + 0.6, **last)[1] is not None


def test_what_is_refused_or_not_known_is_not_done() -> None:
    memory, claim = claims()
    for action in (claim, Action(Act.DELETE_POD, "u1", 24.0), Action(Act.EMPTY_LEASE, "l", 24.0)):
        tried = not_done(memory, action, "409")
        assert (tried.state, tried.takeovers) == (State.NOT_READY, 0)
        assert f"could not {action.act}: 409" in tried.why_not


@pytest.mark.parametrize("claim", [("", "", ""), ("g2", "u1", "1"), ("g1", "u0", "1"), ("somebody", "", "")])
def test_nothing_is_deleted_without_its_own_announcement_of_that_pod(claim: tuple[str, str, str]) -> None:
    memory, action = claims()
    memory, found = turn(done(memory, action, 23.1), sight(24.2, frozen_at=20.0, cluster_claim=claim), POLICY)
    assert found is None and memory.state is State.NOT_READY and "not this guard's" in memory.why_not


@pytest.mark.parametrize("uid", ["u0", "u1", ""])
@pytest.mark.parametrize("at", [700.0, 701.0, 705.0])
def test_an_announcement_that_is_taken_away_counts_on_for_who_saw_it(uid: str, at: float) -> None:
    """By kubectl replace or GitOps; a guard that is started afterwards sees none."""
    rest_s, claim = 5.0 if uid == "u1" else 600.0, ("g2", uid, "1.0")
    memory, _ = turn(turn(Memory(), sight(1.0), POLICY)[0], sight(at, cluster_claim=claim), POLICY)
    for later, rests in ((at + 1.0, True), (at + rest_s - 1.0, True), (at + rest_s + 1.0, False)):
        memory, _ = turn(memory, sight(later), POLICY)
        assert ("announced a takeover" in memory.why_not) is rests
    assert "announced" not in turn(Memory(), sight(at + 1.0), POLICY)[0].why_not
