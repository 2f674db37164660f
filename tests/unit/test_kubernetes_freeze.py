"""What a guard of CloudNativePG decides about a frozen primary, turn by turn: each condition, each way to stop."""

from dataclasses import replace
from typing import Any

import pytest

from walproof.guarding.kubernetes_freeze import Act, Action, Memory, Policy, State, done, not_known, refused, turn
from walproof.guarding.kubernetes_sight import (
    HEALTHY,
    PENDING,
    ClusterSeen,
    LeaseSeen,
    PodSeen,
    Sight,
    StandbySeen,
    Way,
    why_never,
)

POLICY = Policy("g1")


def sight(now: float, *, frozen_at: float = float("inf"), renewals: float | None = None, **changes: Any) -> Sight:
    """Of pg-1 with two standbys, frozen since then; its manager renews every two seconds, until `renewals`."""
    silent = now - frozen_at if now > frozen_at else 0.0
    way = Way(min(now, frozen_at), frozen_at if silent else None)
    renewed = str(min(now, renewals if renewals is not None else now) // 2)
    cluster = ClusterSeen(now, f"c{now}", "pg-1", "pg-1", HEALTHY, ("pg-1", "pg-2", "pg-3"), "required", 1, 1)
    standby = StandbySeen(now, 100, min(now, frozen_at), not silent)
    seen = Sight(
        now, cluster, PodSeen(now, "u1", True, False, True), LeaseSeen(now, f"l{renewed}", "pg-1", renewed),
        way, way, Way(now), {"pg-2": standby, "pg-3": standby},
    )  # fmt: skip
    for name, change in changes.items():
        part, _, field = name.partition("_")
        seen = replace(seen, **{part: replace(getattr(seen, part), **{field: change}) if field else change})
    return seen


def watched(renewals: float | None = None) -> Memory:
    memory = Memory()
    for tick in range(201):
        memory, action = turn(memory, sight(tick / 10, renewals=renewals), POLICY)
        assert action.act is Act.NONE
    assert memory.state is State.WATCHING and memory.followed == {"pg-2", "pg-3"}
    return memory


def from_then(memory: Memory, at: float, until: float, **changes: Any) -> tuple[Memory, Action]:
    """Turns every 0.1 s until one acts."""
    for tick in range(round((until - at) * 10)):
        memory, action = turn(memory, sight(at + tick / 10, **{"frozen_at": 20.0, **changes}), POLICY)
        if action.act is not Act.NONE:
            return memory, action
    return memory, action


def claims() -> tuple[Memory, Action]:
    return from_then(watched(), 20.1, 30.0)


def deleted() -> Memory:
    memory, action = claims()
    memory, action = from_then(done(memory, action, 21.8), 21.9, 23.0, cluster_taken_by="g1", cluster_taken_at=21.8)
    assert action == Action(Act.DELETE_POD, "u1", action.until)
    return done(memory, action, 22.0)


GONE: dict[str, Any] = {"pod_uid": "", "pod_running": False, "renewals": 24.0}
NAMED: dict[str, Any] = {**GONE, "cluster_target": "pg-2", "cluster_phase": "Failing over"}


def dead() -> Memory:
    memory, action = from_then(deleted(), 22.1, 24.0, pod_ending=True)
    assert memory.state is State.DELETED and action.act is Act.NONE
    memory, _ = from_then(memory, 24.1, 24.4, **GONE, cluster_target=PENDING)
    assert memory.state is State.DEAD
    return memory


def test_a_frozen_primary_is_announced_deleted_proven_dead_and_its_lease_emptied() -> None:
    memory, action = claims()
    assert action.act is Act.CLAIM and 1.5 <= float(action.onto[1:]) - 20.0 < 2.0
    memory, action = from_then(dead(), 24.5, 40.0, **NAMED)
    assert action.act is Act.EMPTY_LEASE and action.onto == "l12.0"
    memory = done(memory, action, 27.1)
    memory, action = turn(memory, sight(30.0, frozen_at=20.0, cluster_primary="pg-2", cluster_target="pg-2"), POLICY)
    assert (memory.state, memory.takeovers, action.act) == (State.NOT_READY, 1, Act.NONE)
    assert memory.lines == ("pg-2 leads 10.00 s after the last sign of life of pg-1",)


NEVER = {
    "a switchover": {"cluster_target": "pg-2"},
    "a failover": {"cluster_target": PENDING},
    "a rolling update": {"cluster_phase": "Upgrading cluster"},
    "a standby is made": {"cluster_phase": "Creating a new replica"},
    "fencing": {"cluster_fenced": ("pg-2",)},
    "hibernation": {"cluster_hibernated": True},
    "a restore": {"cluster_restoring": True},
    "paused": {"cluster_paused": True},
    "preferred": {"cluster_durability": "preferred"},
    "asynchronous": {"cluster_durability": "", "cluster_number": 0, "cluster_in_effect": 0},
    "ALTER SYSTEM": {"cluster_in_effect": 0},
    "another spec": {"cluster_unsuitable": "it follows another Cluster"},
    "no standby": {"cluster_instances": ("pg-1",)},
    "node not Ready": {"pod_node_ready": False},
    "no pod": {"pod_uid": ""},
    "pod pending": {"pod_running": False},
    "pod being deleted": {"pod_ending": True},
    "free lease": {"lease_holder": ""},
    "another's lease": {"lease_holder": "pg-2"},
    "manager silent": {"manager": Way(20.0, 20.0)},
    "SQL by the service": {"service": Way(30.0)},
    "SQL by the pod": {"direct": Way(30.0)},
    "a way not tried": {"direct": Way(20.0)},
    "a standby hears it": {"standbys": {"pg-2": StandbySeen(99.0, 1, 99.0, True), "pg-3": StandbySeen(99.0, 1)}},
    "a standby is missing": {"standbys": {"pg-2": StandbySeen(99.0, 1)}},
    "a standby is not ready": {"standbys": {"pg-2": StandbySeen(99, 9, ready=False), "pg-3": StandbySeen(99, 8)}},
    "taken over just now": {"cluster_taken_at": 15.0, "cluster_taken_by": "g2"},
    "taken over by this name": {"cluster_taken_at": 15.0, "cluster_taken_by": "g1"},
    "another guard's clock is ahead": {"cluster_taken_at": 90.0, "cluster_taken_by": "g2"},
    "old reading of the Cluster": {"cluster_at": 15.0},
    "old reading of the pod": {"pod_at": 15.0},
    "old reading of the Lease": {"lease_at": 15.0},
    "it was stalled": {"stalled": True},
}


@pytest.mark.parametrize("changes", NEVER.values(), ids=NEVER)
def test_nothing_is_done(changes: dict[str, Any]) -> None:
    memory, action = from_then(watched(), 20.1, 33.0, **changes)
    assert action.act is Act.NONE and memory.takeovers == 0


@pytest.mark.parametrize("changes", NEVER.values(), ids=NEVER)
def test_nothing_is_deleted_after_the_announcement(changes: dict[str, Any]) -> None:
    memory, action = claims()
    changes = {"cluster_taken_by": "g1", "cluster_taken_at": 21.8, **changes}
    memory, action = from_then(done(memory, action, 21.8), 21.9, 33.0, **changes)
    ours = changes["cluster_taken_by"] == "g1" and {"cluster_taken_at", "cluster_taken_by"} >= changes.keys()
    assert action.act is (Act.DELETE_POD if ours else Act.NONE)
    if not ours:
        assert memory.state is State.NOT_READY


@pytest.mark.parametrize(("renewals", "acts"), [(14.0, Act.NONE), (16.0, Act.NONE), (20.0, Act.CLAIM)])
def test_a_manager_that_renews_no_more_is_not_this_guards_case(renewals: float, acts: Act) -> None:
    assert from_then(watched(renewals), 20.1, 40.0, renewals=renewals)[1].act is acts


@pytest.mark.parametrize("what", ["cluster_number", "cluster_instances", "cluster_in_effect"])
def test_a_configuration_that_just_changed_is_waited_for(what: str) -> None:
    memory = watched()
    before: Any = {"cluster_number": 2, "cluster_instances": ("pg-1", "pg-2"), "cluster_in_effect": 2}[what]
    memory, _ = turn(memory, sight(20.0, **{what: before}), POLICY)
    memory, action = from_then(memory, 20.1, 29.9)
    assert action.act is Act.NONE and "changed" in memory.why_not
    assert from_then(memory, 29.9, 32.0)[1].act is Act.CLAIM


def test_a_guard_learns_first_and_anew_with_each_pod() -> None:
    memory, action = from_then(Memory(), 20.1, 40.0)
    assert action.act is Act.NONE, "it never saw a standby follow"
    memory, action = from_then(watched(), 20.1, 40.0, pod_uid="u2")
    assert action.act is Act.NONE and memory.uid == "u2"


def test_silences_of_an_idle_cluster_are_its_normal_ones() -> None:
    memory = Memory()
    for tick in range(200):
        heard = StandbySeen(tick / 10, 100, tick // 25 * 2.5, True)
        memory, _ = turn(memory, sight(tick / 10, standbys={"pg-2": heard, "pg-3": heard}), POLICY)
    memory, action = from_then(memory, 20.1, 30.0)
    assert action.act is Act.CLAIM and 3.7 <= float(action.onto[1:]) - 20.0 < 4.2


@pytest.mark.parametrize("policy", [replace(POLICY, dry_run=True)])
def test_a_dry_run_only_suspects(policy: Policy) -> None:
    memory = watched()
    for tick in range(201, 300):
        memory, action = turn(memory, sight(tick / 10, frozen_at=20.0), policy)
        assert action.act is Act.NONE
    assert (memory.state, memory.suspicions) == (State.SUSPECTING, 1)


STOPS = {
    "node not Ready": {"pod_node_ready": False},
    "made anew": {"pod_uid": "u2", "pod_running": True},
    "promoted already": {"pod_uid": "", "cluster_primary": "pg-3"},
    "fenced": {"pod_uid": "", "cluster_fenced": ("pg-1",)},
}


@pytest.mark.parametrize("changes", STOPS.values(), ids=STOPS)
def test_it_stops_and_says_so_while_it_waits_for_the_end(changes: dict[str, Any]) -> None:
    memory, action = from_then(deleted(), 22.1, 23.0, **changes)
    assert memory.state is State.NOT_READY and action.act is Act.NONE and memory.why_not


def test_a_pod_whose_end_is_not_confirmed_in_twenty_seconds_is_left() -> None:
    memory, action = from_then(deleted(), 22.1, 41.9, pod_ending=True)
    assert memory.state is State.DELETED
    memory, action = turn(memory, sight(42.1, frozen_at=20.0, pod_ending=True), POLICY)
    assert memory.state is State.NOT_READY and action.act is Act.NONE
    assert "no more was seen within 20 s" in memory.lines[-1]


LEFT = {
    "the lease is another's": {**NAMED, "lease_holder": "pg-3"},
    "the chosen one has less": {**NAMED, "standbys": {"pg-2": StandbySeen(99, 7), "pg-3": StandbySeen(99, 8)}},
    "the chosen one is silent": {**NAMED, "standbys": {"pg-1": StandbySeen(99, 9), "pg-3": StandbySeen(99, 8)}},
    "the pod was made anew": {**NAMED, "pod_uid": "u2"},
    "the node is lost": {**NAMED, "pod_node_ready": False},
    "hibernated": {**NAMED, "cluster_hibernated": True},
}


@pytest.mark.parametrize("changes", LEFT.values(), ids=LEFT)
def test_the_lease_is_left_alone_for_good(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 24.5, 90.0, **changes)
    assert memory.state is State.NOT_READY and action.act is Act.NONE and memory.why_not


WAITED = {
    "no target yet": {**GONE, "cluster_target": PENDING},
    "the target is the dead one": {**GONE, "cluster_target": "pg-1"},
    "the lease is renewed": {**NAMED, "renewals": 1e9},
    "one standby does not answer": {**NAMED, "standbys": {"pg-2": StandbySeen(99.0, 9)}},
    "an answer of before the death": {**NAMED, "standbys": {n: StandbySeen(23.0, 9) for n in ("pg-2", "pg-3")}},
    "old readings": {**NAMED, "lease_at": 24.0},
    "the API does not answer": {**NAMED, "cluster_at": 24.45, "pod_at": 24.45, "lease_at": 24.45},
}


@pytest.mark.parametrize("changes", WAITED.values(), ids=WAITED)
def test_the_lease_is_not_emptied_yet(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 24.5, 40.0, **changes)
    assert memory.state is State.DEAD and action.act is Act.NONE
    assert from_then(memory, 40.0, 100.0, **changes)[0].state is State.NOT_READY, "it does not wait for ever"


def test_a_standby_that_forked_before_does_not_count() -> None:
    memory = replace(dead(), followed=frozenset({"pg-3"}))
    assert from_then(memory, 24.5, 40.0, **NAMED)[1].act is Act.NONE


@pytest.mark.parametrize("changes", [{"lease_holder": ""}, {"lease_holder": "pg-2"}])
def test_a_lease_that_is_free_already_is_not_emptied(changes: dict[str, Any]) -> None:
    memory, action = from_then(dead(), 24.5, 40.0, **{**NAMED, **changes})
    assert memory.state is State.EMPTIED and action.act is Act.NONE


def test_what_is_refused_or_not_known() -> None:
    memory, action = claims()
    assert {answer(memory, action, 22.0).state for answer in (refused, not_known)} == {State.NOT_READY}
    delete = Action(Act.DELETE_POD, "u1", 24.0)
    assert refused(memory, delete, 22.0).state is State.NOT_READY
    assert not_known(memory, delete, 22.0).state is State.DELETED, "only its end is waited for"
    memory, empty = from_then(dead(), 24.5, 40.0, **NAMED)
    for answer in (refused, not_known):
        tried = answer(memory, empty, 27.0)
        assert turn(tried, sight(27.0, frozen_at=20.0, **NAMED), POLICY)[1].act is Act.NONE, "read again first"
        assert turn(tried, sight(27.1, frozen_at=20.0, **NAMED), POLICY)[1].act is Act.EMPTY_LEASE


@pytest.mark.parametrize("durability", ["preferred", ""])
def test_why_never(durability: str) -> None:
    assert "dataDurability" in why_never(replace(sight(0.0).cluster, durability=durability))
