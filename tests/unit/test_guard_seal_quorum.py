"""When taking the lock is safe, which standbys are sealed, who may be handed it; G, L: numbers of the readings."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.guards import (
    BOTH,
    LOCK,
    POLICY,
    SEALED,
    alive,
    answers,
    disconnected,
    gone,
    receiver,
    sealing,
    seen,
    silent,
    watching,
    with_member,
    with_signs,
)
from walproof.guarding.decide import Act, State, turn
from walproof.guarding.seal_quorum import connected, enough, sealed, successor, why_not, why_void
from walproof.guarding.signs_of_life import why_unfit
from walproof.model.takeover import Candidate, LockState, MemberSigns, Signs

TOO_FEW = "1 of 2 synchronous standbys answer and follow, 2 are needed"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"synchronous": False}, "synchronous_mode is off"),
        ({"standby_cluster": True}, "standby cluster"),
        ({"paused": True}, "paused"),
        ({"switchover": True}, "switchover is asked for"),
        ({"holder": ""}, "nobody holds"),
        ({"sync_leader": "n2"}, "does not name n1"),
        ({"voters": ()}, "no standby is synchronous"),
        ({"at": 90.0}, "no majority"),
        ({"least_position": 101}, "nobody could be handed the lock"),
        # The leader may still be in a cycle that began under the former one: synchronous_mode off, and on again.
        ({"config_version": 4}, "the configuration may have been changed less than 20 s ago"),
    ],
)
def test_where_it_would_not_be_safe_nothing_is_done(change: dict[str, Any], reason: str) -> None:
    memory, action = turn(watching(), silent(102.0, **change), POLICY)
    assert (memory.state, action.act) == (State.NOT_READY, Act.NONE)
    assert reason in memory.why_not


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        ({"sql_at": 90.0}, TOO_FEW),
        ({"receiver": {"lacks": "GRANT pg_monitor"}}, "this guard may not see the walreceiver of n3: GRANT pg_monitor"),
        # With a restore_command of 0.3 s and an interval of 0.5 s none of 119 answers found it waiting.
        ({"receiver": {"hinders": "restore_command is set"}}, f"{TOO_FEW}; not counted: n3 (restore_command is set)"),
        # With failsafe_mode and two members the cluster would have no leader until somebody came.
        ({"fit_at": 90.0}, f"{TOO_FEW}; not counted: n3 (its Patroni does not answer)"),
    ],
)
def test_too_few_standbys_that_count_are_not_sealed(signs: dict[str, Any], reason: str) -> None:
    sight = silent(102.0)
    memory, action = turn(watching(), replace(sight, signs=with_signs(sight.signs, "n3", **signs)), POLICY)
    assert (action.act, memory.why_not) == (Act.NONE, reason)


def test_nothing_is_sealed_that_could_be_handed_to_nobody() -> None:
    unable = {n: replace(s, unfit="its watchdog is required") for n, s in gone(100.0, 102.0).items()}
    memory, action = turn(watching(), replace(silent(102.0), signs=unable), POLICY)
    assert (action.act, memory.why_not.partition(":")[0]) == (Act.NONE, "nobody could be handed the lock")


@pytest.mark.parametrize("version", [(), (2, 1, 4), (3, 0, 2)])
def test_a_patroni_that_writes_the_lock_without_comparing_is_not_guarded(version: tuple[int, ...]) -> None:
    reason = why_not(with_member("n1", version=version), alive(102.0), 102.0, BOTH)
    assert reason == "Patroni of n1 is older than 3.0.3, or does not say its version"


def test_g4_a_voter_that_follows_another_member_is_neither_counted_nor_heard() -> None:
    tagged = with_member("n3", tagged="replicatefrom: n1")
    assert why_not(tagged, alive(102.0), 102.0, BOTH) == f"{TOO_FEW}; not counted: n3 (replicatefrom: n1)"
    lock = replace(SEALED, candidates=tagged.candidates)
    assert turn(sealing(), seen(101.5, lock, disconnected(101.5, n2=90, n3=110)), POLICY)[1].act is Act.NONE


WELL = alive(102.0)
HERE = replace(LOCK, at=102.0)


@pytest.mark.parametrize(
    ("lock", "signs", "counted"),
    [
        (HERE, WELL, ("n2", "n3")),
        (HERE, with_signs(WELL, "n3", sql_at=80.0), ("n2",)),
        (HERE, with_signs(WELL, "n3", receiver={"running": False, "connects": False}), ("n2",)),
        (HERE, {n: s for n, s in WELL.items() if n != "n3"}, ("n2",)),
        (HERE, {**WELL, "n3": MemberSigns()}, ("n2",)),
        # A wrong connect_address: n3's leads to n2, which follows as n2.
        (HERE, {**WELL, "n3": WELL["n2"]}, ("n2",)),
        # Two clusters of n1 to n3 in one etcd, and the scope of the other in the target file.
        (HERE, {n: replace(s, address="10.9.9.9:5432") for n, s in WELL.items()}, ()),
        # A walreceiver that asks for a timeline the leader left shows a message for 20 ms before it is refused.
        (with_member("n3", timeline=2), WELL, ("n2",)),
        (with_member("n3", timeline=0), WELL, ("n2",)),
        (replace(HERE, candidates={n: replace(c, timeline=0) for n, c in LOCK.candidates.items()}), WELL, ()),
        (replace(HERE, candidates={n: c for n, c in LOCK.candidates.items() if n != "n1"}), WELL, ()),
    ],
)
def test_a_voter_is_counted_that_answers_as_itself_and_follows_on_the_leaders_timeline(
    lock: LockState, signs: Signs, counted: tuple[str, ...]
) -> None:
    assert connected(lock, signs, 102.0, BOTH) == counted


SINCE = 101.1


@pytest.mark.parametrize(
    ("liar", "signs"),
    [
        ("a walreceiver runs", answers(running=True)),
        ("it may connect again", answers(connects=True)),
        ("it has nothing", answers(position=0)),
        ("it replays, is paused, delayed or stuck, and may hold more", answers(waits=False)),
        ("it may not be seen", answers(lacks="GRANT pg_monitor TO guard")),
        ("asked before the seal", answers(101.0, 101.05)),
        ("asked before the seal and after it", answers(101.0, 101.3)),
        ("asked once", answers(101.3)),
        ("asked twice at one instant", answers(101.3, 101.3)),
        ("asked twice at almost one moment", answers(101.25, 101.3)),
        (
            "it still receives",
            replace(answers(), receivers=(receiver(101.2, running=False), receiver(101.3, running=False, position=1))),
        ),
        ("it never answered", MemberSigns()),
    ],
)
def test_a_standby_is_sealed_only_when_it_can_acknowledge_nothing(liar: str, signs: MemberSigns) -> None:
    assert sealed(("n2", "n3"), {"n2": signs, "n3": answers()}, SINCE, 101.4) == {"n3": 100}, liar
    assert sealed(("n3",), {"n3": answers()}, SINCE, 103.0) == {}


@pytest.mark.parametrize(("voters", "number", "needed"), [(2, 1, 2), (2, 2, 1), (4, 2, 3), (4, 1, 4), (1, 1, 1)])
def test_so_many_are_sealed_that_no_quorum_is_left(voters: int, number: int, needed: int) -> None:
    """n named, k needed: n − k + 1, which is Patroni's quorum + 1."""
    lock = replace(LOCK, quorum=voters - number)
    assert not enough(lock, dict.fromkeys(map(str, range(needed - 1)), 1))
    assert enough(lock, dict.fromkeys(map(str, range(needed)), 1))


UNABLE = [
    (replace(HERE, candidates={**LOCK.candidates, "n3": unable}), WELL)
    for unable in (Candidate(79, False), Candidate(0, True), Candidate(79, True, tagged="nofailover: True"))
]
"""By the member's own key; below by its Patroni, which would release the key early, and elect (G6)."""
UNABLE += [(HERE, with_signs(WELL, "n3", **answer)) for answer in ({"fit_at": None}, {"fit_at": 99.0}, {"unfit": "x"})]


@pytest.mark.parametrize(("lock", "signs"), UNABLE)
def test_the_successor_can_lead_and_never_holds_less_than_another_sealed_standby(lock: LockState, signs: Signs) -> None:
    assert successor(HERE, {"n2": 5, "n3": 9}, WELL, 102.0) == "n3"
    assert successor(lock, {"n2": 5, "n3": 9}, signs, 102.0) is None
    assert successor(lock, {"n2": 9, "n3": 9}, signs, 102.0) == "n2"


def test_of_equal_standbys_the_one_with_the_higher_priority_leads() -> None:
    assert successor(with_member("n3", priority=5), {"n2": 9, "n3": 9}, WELL, 102.0) == "n3"


def test_a_member_that_lags_more_than_patroni_allows_is_handed_nothing() -> None:
    lagging = replace(HERE, least_position=100)
    assert successor(lagging, {"n2": 99, "n3": 99}, WELL, 102.0) is None
    assert successor(lagging, {"n2": 99, "n3": 100}, WELL, 102.0) == "n3"


@pytest.mark.parametrize(
    "change", [{"config_version": 4}, {"failover_version": 9}, {"sync_version": 21}, {"seal": None}]
)
def test_g5_what_ended_a_seal_ends_it_for_every_guard(change: dict[str, Any]) -> None:
    void = replace(SEALED, holder="walproof-guard-2", **change)
    assert why_void(void) and not why_void(SEALED)
    memory = watching()
    for now in (103.0, 106.0, 109.0):
        memory, action = turn(memory, seen(now, void, disconnected(now, n2=1, n3=1)), POLICY)
        assert action.act is Act.NONE


def test_g6_patronis_own_answer_says_whether_a_member_can_lead() -> None:
    assert why_unfit({"state": "running"}) == ""
    assert why_unfit({"state": "running", "watchdog_failed": True}) == "its watchdog is required and cannot be used"
    assert why_unfit({"state": "running", "pause": True}) == "its Patroni is paused"
    nonsense: tuple[object, ...] = ({"state": "starting"}, [], "running", None)
    assert all(why_unfit(one) for one in nonsense)


def test_where_the_lease_is_no_witness_and_a_standby_asks_too_late_it_is_not_ready() -> None:
    """Nothing would tell that the leader is gone before Patroni elects: each standby that answers is a witness."""
    only = "only standbys tell in time that a leader is gone: set wal_receiver_timeout of"
    failsafe, seldom = replace(LOCK, at=101.0, failsafe=True), replace(LOCK, at=101.0, loop_wait_s=18.0)

    def asking(n2: float, n3: float) -> dict[str, MemberSigns]:
        signs = with_signs(alive(101.0), "n2", receiver={"asks_after_s": n2})
        return with_signs(signs, "n3", receiver={"asks_after_s": n3})

    for lock, signs, reason in (
        (failsafe, asking(1.0, 9.9), None),
        (failsafe, asking(1.0, 10.0), f"with failsafe_mode {only} n3 to a few seconds"),
        (failsafe, asking(30.0, 30.0), f"with failsafe_mode {only} n2, n3 to a few seconds"),
        (replace(seldom, loop_wait_s=17.0), asking(30.0, 30.0), None),
        (seldom, asking(1.0, 1.9), None),
        (seldom, asking(1.0, 30.0), f"with loop_wait at 18 s {only} n3 to a few seconds"),
        # What has not answered for a second is no witness.
        (replace(failsafe, quorum=0), with_signs(asking(1.0, 30.0), "n3", sql_at=99.0), None),
    ):
        assert why_not(lock, signs, 101.0, BOTH) == reason
