"""What a guard does turn by turn: suspect, seal, check, hand over; what it does not; G, L: numbers of the readings."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.guards import (
    BOTH,
    KEPT,
    LOCK,
    POLICY,
    SEALED,
    THEIRS,
    alive,
    answers,
    disconnected,
    gone,
    sealing,
    seen,
    silent,
    watching,
)
from walproof.guarding.decide import Act, Memory, Sight, State, handed_over, not_known, not_taken, seal_of, taken, turn
from walproof.model.takeover import MemberSigns


def test_a_leader_that_is_gone_is_replaced_by_the_standby_with_the_most_wal() -> None:
    memory, action = turn(sealing(), seen(101.5, SEALED, disconnected(101.5, n2=90, n3=110)), POLICY)
    assert (action.act, action.to) == (Act.HAND_OVER, "n3")
    memory = handed_over(memory, 101.6)
    leading = {**alive(101.9), "n3": MemberSigns(101.9, 101.9)}
    memory, _ = turn(memory, seen(102.0, replace(LOCK, holder="n3"), leading), POLICY)
    assert "n3 leads 2.00 s after the last sign of life of its predecessor" in memory.lines
    assert list(memory.steps.durations_s) == ["suspect", "seal", "check", "promote"]
    assert memory.takeovers == 1


def test_g1_a_standby_that_crashed_counts_for_what_it_replayed() -> None:
    """Received is a segment's start again, 0/4000000; replayed 0/4063310, more than the other standby's 0/404A438."""
    crashed, other = answers(position=0x4063310, streamed=True), answers(position=0x404A438)
    signs = {**gone(100.0, 101.4), "n2": replace(crashed, fit_at=101.4), "n3": replace(other, fit_at=101.4)}
    _, action = turn(sealing(), Sight(101.4, replace(SEALED, at=101.5), signs), POLICY)
    assert (action.act, action.to) == (Act.HAND_OVER, "n2")


# Before the seal.


def test_a_guard_waits_between_takeovers_and_before_it_knows_a_leader() -> None:
    for limited_at, limit_s, act in ((95.0, 15.0, Act.NONE), (80.0, 15.0, Act.SEAL), (80.0, 60.0, Act.NONE)):
        limited = silent(102.0, limited_at=limited_at, limit_s=limit_s)
        assert turn(watching(), limited, POLICY)[1].act is act
    fresh, _ = turn(Memory(), seen(100.0, LOCK, alive(100.0)), POLICY)
    assert turn(fresh, silent(102.0), POLICY)[1].act is Act.NONE


def test_a_guard_just_started_does_not_know_that_the_configuration_was_just_changed() -> None:
    """The leader may be in the middle of a cycle that read synchronous_mode off (ha.py)."""
    memory = Memory()
    for quarter in range(100):
        now = 75.25 + quarter / 4
        memory, _ = turn(memory, seen(now, replace(LOCK, lease_age_s=0.0), alive(now)), POLICY)
        assert (memory.state is State.WATCHING) is (now - 75.25 >= LOCK.ttl_s), f"{now}: {memory.why_not}"


def test_a_guard_that_never_was_ready_says_why_once_it_has_learned_and_when_the_leader_is_silent() -> None:
    memory, lines = Memory(), []
    for at in (90.0 + quarter / 4 for quarter in range(60)):
        lock = replace(LOCK, synchronous=False, lease_age_s=0.0 if at <= 100 else at - 100)
        memory, _ = turn(memory, seen(at, lock, alive(at) if at <= 100 else gone(100.0, at)), POLICY)
        lines += [(at, line) for line in memory.lines]
    why = "not ready: synchronous_mode is off: a takeover before the ttl could lose acknowledged commits"
    assert lines == [(95.0, why), (101.0, why)]


def test_the_same_member_may_lead_another_term() -> None:
    again = replace(LOCK, holder_version=50, sync_version=51, lease_age_s=0.0)
    memory, _ = turn(replace(watching(), followed=BOTH), seen(160.0, again, alive(160.0)), POLICY)
    assert (memory.followed, memory.leader_since) == (frozenset(), 160.0)


def test_a_dry_run_only_says_what_it_would_do() -> None:
    memory, action = turn(watching(), silent(102.0), replace(POLICY, dry_run=True))
    assert action.act is Act.NONE
    assert memory.lines[-1] == "would take the leader lock from n1 (dry run)"


def test_the_lock_is_read_again_before_it_is_taken() -> None:
    memory, action = turn(watching(), silent(102.0, at=101.0, lease_age_s=1.0), POLICY)
    assert action.act is Act.NONE
    assert turn(memory, silent(102.1), POLICY)[1].act is Act.SEAL


def test_a_lock_whose_taking_is_not_known_is_read_again_first() -> None:
    memory, action = turn(watching(), silent(101.05), POLICY)
    assert action.act is Act.SEAL
    memory = not_known(memory, 101.4)
    assert turn(memory, Sight(101.5, silent(101.1).lock, gone(100.0, 101.5)), POLICY)[1].act is Act.NONE
    assert turn(memory, silent(101.6), POLICY)[1].act is Act.SEAL
    memory, _ = turn(memory, seen(101.6, SEALED, gone(100.0, 101.6)), POLICY)
    assert (memory.state, memory.steps.last_sign, memory.steps.suspected) == (State.SEALED, 100.0, 101.05)


def test_a_lock_that_changed_hands_meanwhile_is_left_alone() -> None:
    memory, _ = turn(watching(), silent(101.05), POLICY)
    memory = not_taken(memory)
    assert memory.state is State.NOT_READY
    new = replace(LOCK, holder="n2", sync_leader="n2", voters=("n3",), quorum=0)
    assert turn(memory, seen(101.3, new, gone(100.0, 101.3)), POLICY)[1].act is Act.NONE


def test_l5_the_time_between_takeovers_doubles_while_they_go_on() -> None:
    sights = [silent(102.0, limit_s=limit_s) for limit_s in (0.0, 15.0, 30.0, 3000.0)]
    assert [seal_of(Memory(), sight, POLICY).limit_s for sight in sights] == [15.0, 30.0, 60.0, 3600.0]
    assert seal_of(Memory(), silent(102.0), replace(POLICY, at_most_every_s=86400.0)).limit_s == 86400.0
    assert seal_of(Memory(), Sight(102.0, SEALED, {}), POLICY) == KEPT


# After the seal.


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"holder": THEIRS.holder}, "the lock is no longer ours: left alone"),
        ({"holder": "", "holder_version": 0, "seal": None}, "the lock is no longer ours: left alone"),
        ({"sync_version": 21}, "/sync was changed after the seal: left to Patroni"),
        ({"config_version": 4}, "the configuration was changed after the seal: left to Patroni"),
        ({"switchover": True, "failover_version": 21}, "a switchover was asked for after the seal: left to Patroni"),
        # Whatever the versions say nothing is done meanwhile (G5).
        ({"paused": True}, ""),
        ({"switchover": True}, ""),
        ({"synchronous": False}, ""),
        ({"voters": ()}, ""),
        # One of two is not enough at ANY 1; one that was not connected before shows nothing.
        ({"seal": replace(KEPT, connected=("n2",))}, ""),
    ],
)
def test_what_changed_after_the_seal_ends_it(change: dict[str, Any], line: str) -> None:
    memory, action = turn(sealing(), seen(101.5, replace(SEALED, **change), disconnected(101.5, n2=1, n3=1)), POLICY)
    assert (action.act, memory.state) == (Act.NONE, State.NOT_READY if line else State.SEALED)
    assert "".join(memory.lines).startswith(line) and bool(memory.lines) == bool(line)


def test_g5_a_seal_left_to_patroni_is_never_taken_up_again() -> None:
    """Seal 7.25 s, pause, void 7.30, resumed 9.35, handed over 9.45: while paused."""
    paused = replace(SEALED, paused=True, config_version=4)
    memory, action = turn(sealing(), seen(101.5, paused, disconnected(101.5)), POLICY)
    assert (memory.state, action.act) == (State.NOT_READY, Act.NONE)
    for now in (102.0, 103.6, 105.0, 110.0, 119.0):
        for lock in (paused, replace(SEALED, config_version=5), replace(THEIRS, config_version=5)):
            memory, action = turn(memory, seen(now, lock, disconnected(now)), POLICY)
            assert action.act is Act.NONE


def test_one_sealed_standby_of_two_is_not_enough_at_any_1() -> None:
    memory, action = turn(sealing(), seen(101.5, SEALED, disconnected(101.5, n2=100)), POLICY)
    assert (memory.state, action.act) == (State.SEALED, Act.NONE)


def test_standbys_beyond_those_needed_are_waited_for_while_they_answer_half_a_second() -> None:
    """ANY 2 of 2 needs one: a successor that dies at once must not find another that still acknowledges."""
    lock = replace(SEALED, quorum=0)
    memory, action = turn(sealing(), seen(101.5, lock, disconnected(101.5, n2=100)), POLICY)
    assert action.act is Act.NONE
    assert turn(memory, seen(102.1, lock, disconnected(102.1, n2=100)), POLICY)[1].act is Act.HAND_OVER
    assert turn(memory, seen(101.6, lock, disconnected(101.6)), POLICY)[1].act is Act.HAND_OVER


def test_an_unverified_seal_is_kept_until_its_lease_ends_and_never_given_away() -> None:
    memory = sealing()
    for now in (102.0, 110.0, 121.0):
        memory, action = turn(memory, seen(now, SEALED, gone(100.0, now)), POLICY)
        assert (memory.state, action.act) == (State.SEALED, Act.NONE)
    memory, _ = turn(memory, seen(121.2, SEALED, gone(100.0, 121.2)), POLICY)
    assert "the seal's lease ends" in memory.lines[0]


def test_a_second_takeover_remembers_nothing_of_the_first() -> None:
    first = replace(sealing(), enough_since=101.3, successor="n2")
    second = taken(first, silent(151.0).lock, 151.1)
    assert (second.enough_since, second.successor, second.sealed_until) == (None, "", 171.1)


# Another guard's seal.


def test_another_guards_seal_is_left_alone_and_then_taken_over() -> None:
    memory, acts = replace(watching(), state=State.SUSPECTING), []
    for now in (101.0, 102.9, 103.1, 103.2):
        memory, action = turn(memory, seen(now, THEIRS, disconnected(now)), POLICY)
        acts.append(action.act)
        assert memory.state is State.NOT_READY
    # Where it fails it waits again.
    assert acts == [Act.NONE, Act.NONE, Act.SEAL, Act.NONE]
    # They lost their primary_conninfo under the first guard's seal, as its own record of the moment before says.
    assert seal_of(memory, seen(103.1, THEIRS, disconnected(103.1)), POLICY) == KEPT


@pytest.mark.parametrize("change", [{"switchover": True}, {"paused": True}])
def test_another_guards_seal_is_not_taken_over_against_an_operator(change: dict[str, Any]) -> None:
    memory = watching()
    for now in (101.0, 110.0):
        memory, action = turn(memory, seen(now, replace(THEIRS, **change), alive(now)), POLICY)
        assert action.act is Act.NONE


def test_living_guards_do_not_relieve_one_another_of_a_fresh_seal() -> None:
    memory = watching()
    for tenth in range(100):
        now = 101.0 + tenth / 10
        version = 20 + int(now)  # a new seal each second
        theirs = replace(THEIRS, holder_version=version, sync_version=version)
        memory, action = turn(memory, seen(now, theirs, gone(100.0, now)), POLICY)
        assert action.act is Act.NONE


def test_a_guard_that_was_relieved_goes_on_where_the_other_dies() -> None:
    theirs = replace(THEIRS, holder_version=21, sync_version=21)
    memory, acted = sealing(), []
    for tenth in range(60):
        now = 101.5 + tenth / 10
        memory, action = turn(memory, seen(now, theirs, disconnected(now)), POLICY)
        acted.append(action.act)
    assert Act.SEAL in acted


# After the hand-over.


def test_an_old_reading_after_a_takeover_is_no_new_seal() -> None:
    memory, _ = turn(sealing(), seen(101.5, SEALED, disconnected(101.5)), POLICY)
    memory = handed_over(memory, 101.6)
    leads = {**alive(101.9), "n2": MemberSigns(101.9, 101.9)}
    for now in (101.9, 102.0, 102.1):
        memory, action = turn(memory, Sight(now, replace(SEALED, at=101.5), leads), POLICY)
        assert (action.act, memory.takeovers) == (Act.NONE, 1)
    assert memory.state is not State.SEALED


def test_a_hand_over_whose_answer_was_lost_is_counted() -> None:
    memory, action = turn(sealing(), seen(101.5, SEALED, disconnected(101.5)), POLICY)
    assert action.act is Act.HAND_OVER
    theirs = replace(LOCK, holder=action.to, holder_version=30)
    memory, _ = turn(memory, seen(101.8, theirs, disconnected(101.8)), POLICY)
    assert (memory.state, memory.takeovers) == (State.HANDED_OVER, 1)


@pytest.mark.parametrize("answer", [MemberSigns(), MemberSigns(101.5, 101.5)])
def test_a_successor_that_did_not_answer_since_the_hand_over_does_not_lead_yet(answer: MemberSigns) -> None:
    memory = handed_over(replace(sealing(), successor="n3"), 101.6)
    memory, _ = turn(memory, seen(101.7, replace(LOCK, holder="n3"), {"n3": answer}), POLICY)
    assert memory.state is State.HANDED_OVER
