"""What two sceptical readers made the guard do, one with the sources of Patroni, one who wants to break it: tests."""

from dataclasses import replace

import pytest

from tests.unit.test_guarding import (
    BOTH,
    KNOWS,
    LOCK,
    POLICY,
    SEALED,
    alive,
    answers,
    disconnected,
    gone,
    receiver,
    sealing,
    silent,
    watching,
)
from tests.unit.test_leader_lock import entries, entry
from walproof.guarding.decide import Act, Memory, Sight, State, handed_over, not_known, taken, turn
from walproof.guarding.leader_lock import state_of
from walproof.guarding.seal_quorum import connected, sealed, successor, why_not
from walproof.guarding.suspicion import Silences, witness
from walproof.model.takeover import MemberSigns, Receiver


def _both(now: float) -> dict[str, MemberSigns]:
    return disconnected(now, {"n2": 100, "n3": 100})


def test_the_silence_of_a_slow_link_is_learned_and_forgotten() -> None:
    learned = Silences().with_one(100.0, 0.9).with_one(130.0, 0.2)
    assert learned.allowed_s(1.0) == pytest.approx(1.35)
    assert learned.with_one(800.0, 0.1).allowed_s(1.0) == 1.0


def test_the_guards_own_pause_is_not_learned_as_the_leaders_silence() -> None:
    memory = watching()
    late = 103.0
    memory, _ = turn(memory, Sight(late, replace(LOCK, at=late, lease_age_s=0.0), alive(late)), POLICY)
    assert memory.silences.allowed_s(1.0) == 1.0


def test_a_voter_that_never_streamed_from_this_leader_is_not_counted() -> None:
    """It may have forked off its predecessor and be ahead with WAL that nobody else has: not rewound yet."""
    forked = tuple(Receiver(t, False, True, 900, named="n3") for t in (101.9, 102.0))
    memory = KNOWS
    for tenth in range(100):
        now = 92.0 + tenth / 10
        forked = tuple(replace(r, asked_at=now) for r in forked)
        signs = {**alive(now), "n3": MemberSigns(now, now, forked, fit_at=now)}
        memory, _ = turn(memory, Sight(now, replace(LOCK, at=now, lease_age_s=0.0), signs), POLICY)
    assert memory.followed == {"n2"}
    assert memory.why_not == "1 of 2 synchronous standbys answer and follow, 2 are needed"


def test_a_voter_on_another_timeline_is_not_counted_though_it_connected_for_a_moment() -> None:
    """A walreceiver that asks for a timeline the leader left shows a message for 20 ms before it is refused."""
    forked = {**LOCK.candidates, "n3": replace(LOCK.candidates["n3"], timeline=2)}
    lock = replace(LOCK, at=102.0, candidates=forked)
    assert why_not(lock, alive(102.0), 102.0, BOTH) == "1 of 2 synchronous standbys answer and follow, 2 are needed"


def test_an_old_answer_is_no_connection() -> None:
    old = {**alive(102.0), "n3": replace(alive(102.0)["n3"], sql_at=80.0)}
    assert connected(replace(LOCK, at=102.0), old, 102.0, BOTH) == ("n2",)


def test_one_server_that_answers_under_two_names_is_not_two() -> None:
    """A wrong connect_address: n3's leads to n2, which follows as n2."""
    signs = {**alive(102.0), "n3": alive(102.0)["n2"]}
    assert connected(replace(LOCK, at=102.0), signs, 102.0, BOTH) == ("n2",)


def test_a_member_of_that_name_in_another_cluster_is_not_taken_for_it() -> None:
    """Two clusters of n1 to n3 in one etcd, and the scope of the other in the target file."""
    signs = {n: replace(s, address="10.9.9.9:5432") for n, s in alive(102.0).items()}
    assert connected(replace(LOCK, at=102.0), signs, 102.0, BOTH) == ()


def test_two_answers_at_one_instant_are_one() -> None:
    once = tuple(replace(r, asked_at=101.3) for r in answers().receivers)
    assert sealed(("n2",), {"n2": MemberSigns(101.3, 101.3, once)}, 101.1, 101.4) == {}


def test_living_guards_do_not_relieve_one_another_of_a_fresh_seal() -> None:
    memory = watching()
    for tenth in range(100):
        now = 101.0 + tenth / 10
        version = 20 + int(now)  # a new seal each second
        theirs = replace(SEALED, at=now, holder="walproof-guard-2", holder_version=version, sync_version=version)
        memory, action = turn(memory, Sight(now, theirs, gone(100.0, now)), POLICY)
        assert action.act is Act.NONE


def test_an_old_reading_after_a_takeover_is_no_new_seal() -> None:
    memory, _ = turn(sealing(), Sight(101.5, replace(SEALED, at=101.5), _both(101.5)), POLICY)
    memory = handed_over(memory, 101.6)
    leads = {**alive(101.9), "n2": MemberSigns(101.9, 101.9)}
    for now in (101.9, 102.0, 102.1):
        memory, action = turn(memory, Sight(now, replace(SEALED, at=101.5), leads), POLICY)
        assert (action.act, memory.takeovers) == (Act.NONE, 1)
    assert memory.state is not State.SEALED


@pytest.mark.parametrize("unknown", [0, 2])
def test_keys_without_a_timeline_compare_with_nothing(unknown: int) -> None:
    lock = replace(LOCK, at=102.0, candidates={n: replace(c, timeline=0) for n, c in LOCK.candidates.items()})
    assert connected(lock, alive(102.0), 102.0, BOTH) == ()
    one = {**LOCK.candidates, "n3": replace(LOCK.candidates["n3"], timeline=unknown)}
    assert connected(replace(LOCK, at=102.0, candidates=one), alive(102.0), 102.0, BOTH) == ("n2",)


def test_a_standby_that_may_never_wait_is_named_before_anything_is_sealed() -> None:
    """With a restore_command of 0.3 s and an interval of 0.5 s none of 119 answers found it waiting."""
    slow = tuple(replace(r, hinders="restore_command is set") for r in alive(102.0)["n3"].receivers)
    signs = {**gone(100.0, 102.0), "n3": replace(alive(102.0)["n3"], receivers=slow)}
    memory, action = turn(watching(), replace(silent(102.0), signs=signs), POLICY)
    assert action.act is Act.NONE
    assert memory.why_not.endswith("2 are needed; not counted: n3 (restore_command is set)")


def test_nothing_is_sealed_that_could_be_handed_to_nobody() -> None:
    """With failsafe_mode and two members the cluster would have no leader until somebody came."""
    for unable, why in (
        ({"unfit": "its watchdog is required and cannot be used"}, "nobody could be handed the lock"),
        ({"fit_at": 90.0}, "0 of 2 synchronous standbys answer and follow, 2 are needed; not counted: n2 (its Patroni"),
    ):
        signs = {n: replace(s, **unable) for n, s in gone(100.0, 102.0).items()}
        memory, action = turn(watching(), replace(silent(102.0), signs=signs), POLICY)
        assert (action.act, memory.why_not.startswith(why)) == (Act.NONE, True)
    lagging = silent(102.0, least_position=101)
    assert turn(watching(), lagging, POLICY)[1].act is Act.NONE


@pytest.mark.parametrize("version", [(), (2, 1, 4), (3, 0, 2)])
def test_a_patroni_that_writes_the_lock_without_comparing_is_not_guarded(version: tuple[int, ...]) -> None:
    old = {**LOCK.candidates, "n1": replace(LOCK.candidates["n1"], version=version)}
    reason = why_not(replace(LOCK, at=102.0, candidates=old), alive(102.0), 102.0, BOTH)
    assert reason == "Patroni of n1 is older than 3.0.3, or does not say its version"


def test_a_leader_that_shuts_down_refuses_and_so_lives() -> None:
    """A planned stop: REST ends first, sessions next, and the checkpoint takes seconds, with nothing to stream."""
    signs = {**gone(100.0, 102.0), "n1": MemberSigns(100.0, 100.0, refused_at=101.9)}
    memory, action = turn(watching(), replace(silent(102.0), signs=signs), POLICY)
    assert (memory.state, action.act) == (State.WATCHING, Act.NONE)


def test_no_seal_within_a_ttl_of_a_change_of_the_configuration() -> None:
    """The leader may still be in a cycle that began under the former one: synchronous_mode off, and on again."""
    changed = silent(102.0, config_version=4)
    memory, action = turn(watching(), changed, POLICY)
    assert (action.act, memory.why_not) == (Act.NONE, "the configuration may have been changed less than 20 s ago")


def test_a_member_that_lags_more_than_patroni_allows_is_handed_nothing() -> None:
    status = entry("status", {"optime": 10_000_000}, 9)
    state = state_of({**entries(), "status": status}, 0.0)
    assert state.least_position == 10_000_000 - 1048576
    lagging = replace(LOCK, least_position=100)
    assert successor(lagging, {"n2": 99, "n3": 99}, alive(100.0), 100.0) is None
    assert successor(lagging, {"n2": 99, "n3": 100}, alive(100.0), 100.0) == "n3"


def test_a_standbys_clock_that_is_set_back_is_no_sign_of_life_to_come() -> None:
    memory = watching()
    early = (receiver(100.0), receiver(100.1, silent_s=-3600.0))
    signs = {**alive(100.1), "n2": MemberSigns(100.1, 100.1, early, fit_at=100.1)}
    memory, _ = turn(memory, Sight(100.1, replace(LOCK, at=100.1, lease_age_s=0.0), signs), POLICY)
    assert memory.last_sign == 100.1


def test_a_guard_that_was_relieved_goes_on_where_the_other_dies() -> None:
    theirs = replace(SEALED, holder="walproof-guard-2", holder_version=21, sync_version=21)
    memory, acted = sealing(), []
    for tenth in range(60):
        now = 101.5 + tenth / 10
        memory, action = turn(memory, Sight(now, replace(theirs, at=now), _both(now)), POLICY)
        acted.append(action.act)
    assert Act.SEAL in acted


def test_the_same_member_may_lead_another_term() -> None:
    memory = replace(watching(), followed=BOTH)
    again = replace(LOCK, at=160.0, holder_version=50, sync_version=51, lease_age_s=0.0)
    memory, _ = turn(memory, Sight(160.0, again, alive(160.0)), POLICY)
    assert (memory.followed, memory.leader_since) == (frozenset(), 160.0)


def test_after_an_unknown_outcome_the_lock_is_read_again() -> None:
    memory, action = turn(watching(), silent(101.05), POLICY)
    assert action.act is Act.SEAL
    memory = not_known(memory, 101.5)
    assert turn(memory, replace(silent(101.05), now=101.55), POLICY)[1].act is Act.NONE
    assert turn(memory, silent(101.6), POLICY)[1].act is Act.SEAL


def test_a_guard_that_never_was_ready_says_why_once_it_has_learned_and_when_the_leader_is_silent() -> None:
    memory, lines = Memory(), []
    lock = replace(LOCK, synchronous=False)
    for at in (90.0 + quarter / 4 for quarter in range(60)):
        seen = replace(lock, at=at, lease_age_s=0.0 if at <= 100 else at - 100)
        memory, _ = turn(memory, Sight(at, seen, alive(at) if at <= 100 else gone(100.0, at)), POLICY)
        lines += [(at, line) for line in memory.lines]
    why = "not ready: synchronous_mode is off: a takeover before the ttl could lose acknowledged commits"
    assert lines == [(95.0, why), (101.0, why)]


def test_a_guard_just_started_does_not_know_that_the_configuration_was_just_changed() -> None:
    """The leader may be in the middle of a cycle that read synchronous_mode off (ha.py)."""
    memory = Memory()
    for quarter in range(100):
        now = 75.25 + quarter / 4
        lock = replace(LOCK, at=now, lease_age_s=0.0)
        memory, _ = turn(memory, Sight(now, lock, alive(now)), POLICY)
        ready = memory.state is State.WATCHING
        assert ready is (now - 75.25 >= LOCK.ttl_s), f"{now}: {memory.why_not}"


def test_with_failsafe_mode_a_lease_that_is_overdue_is_no_witness() -> None:
    """A leader that is cut off from etcd alone goes on, by the consent of every member."""
    overdue, lost = silent(112.5), answers(running=False, connects=True, streamed=True)
    assert witness(overdue.lock, overdue.signs, 112.5) == "its lease is overdue"
    failsafe = replace(overdue.lock, failsafe=True)
    assert witness(failsafe, alive(112.5), 112.5) == ""
    signs = {name: replace(lost, sql_at=112.5) for name in ("n2", "n3")}
    assert witness(failsafe, signs, 112.5) == "its standbys cannot reach it"


def test_a_guard_that_is_too_slow_to_hear_anything_says_so() -> None:
    memory, _ = turn(watching(), replace(silent(102.0), stalled=True), POLICY)
    assert memory.lines[0] == "this guard did not run for a while: what it did not hear meanwhile does not count"


def _heard_again(after_s: float, *, led_s: float = 10.0, stalled: bool = False) -> Memory:
    """A guard that watched n1 ten times a second, heard nothing for so long, and then heard it again."""
    memory = Memory()
    since = 110.0 - led_s
    for tenth in range(round(10 * (led_s + after_s)) + 1):
        now = since + tenth / 10
        signs = alive(now) if now < 110.0 or now >= 109.9 + after_s else gone(109.9, now)
        heard = replace(LOCK, at=now, lease_age_s=None)
        memory, _ = turn(memory, Sight(now, heard, signs, stalled and now >= 109.9 + after_s), POLICY)
    return memory


def test_a_silence_that_ended_by_itself_may_come_again() -> None:
    assert _heard_again(0.8).silences.allowed_s(1.0) == pytest.approx(1.5 * 0.8, abs=0.16)
    assert _heard_again(0.8).last_sign == pytest.approx(110.7, abs=0.11)
    assert _heard_again(0.8, led_s=3.0).silences.seen == ()
    assert _heard_again(0.8, stalled=True).silences.allowed_s(1.0) == 1.0


def test_the_leader_a_standby_streams_from_is_not_known_at_first() -> None:
    assert _heard_again(0.1, led_s=4.5).followed == frozenset()
    assert _heard_again(0.1, led_s=5.5).followed == BOTH


def test_a_member_that_nobody_has_asked_yet_is_no_standby_that_answers() -> None:
    lock = replace(LOCK, at=102.0)
    known = {"n2": alive(102.0)["n2"]}
    for signs in (known, {**known, "n3": MemberSigns()}):
        assert str(why_not(lock, signs, 102.0, BOTH)).startswith("1 of 2 synchronous standbys answer")


def test_without_the_leaders_own_key_its_timeline_is_not_known() -> None:
    keyless = replace(LOCK, at=102.0, candidates={n: c for n, c in LOCK.candidates.items() if n != "n1"})
    assert connected(keyless, alive(102.0), 102.0, BOTH) == ()


def test_two_answers_of_almost_one_moment_are_one() -> None:
    close = MemberSigns(101.3, 101.3, receivers=tuple(receiver(t, running=False) for t in (101.2, 101.25)))
    assert sealed(("n2", "n3"), {"n2": close, "n3": answers()}, 101.1, 101.4) == {"n3": 100}


def test_a_lock_whose_taking_is_not_known_is_read_again_first() -> None:
    memory, action = turn(watching(), silent(101.05), POLICY)
    assert action.act is Act.SEAL
    memory = not_known(memory, 101.4)
    assert turn(memory, Sight(101.5, silent(101.1).lock, gone(100.0, 101.5)), POLICY)[1].act is Act.NONE
    ours = replace(SEALED, at=101.6)
    memory, _ = turn(memory, Sight(101.6, ours, gone(100.0, 101.6)), POLICY)
    assert (memory.state, memory.steps.last_sign, memory.steps.suspected) == (State.SEALED, 100.0, 101.05)


def test_a_second_takeover_remembers_nothing_of_the_first() -> None:
    first = replace(sealing(), enough_since=101.3, successor="n2")
    second = taken(first, silent(151.0).lock, 151.1)
    assert (second.enough_since, second.successor, second.sealed_until) == (None, "", 171.1)


def test_a_guard_that_relieves_another_waits_again_where_it_fails() -> None:
    theirs = replace(SEALED, holder="walproof-guard-2")
    memory = replace(watching(), state=State.SUSPECTING)
    acts = []
    for now in (101.0, 103.1, 103.2):
        memory, action = turn(memory, Sight(now, replace(theirs, at=now), gone(100.0, now)), POLICY)
        acts.append(action.act)
        assert memory.state is State.NOT_READY
    assert acts == [Act.NONE, Act.SEAL, Act.NONE]


@pytest.mark.parametrize("answer", [MemberSigns(), MemberSigns(101.5, 101.5)])
def test_a_successor_that_did_not_answer_since_the_hand_over_does_not_lead_yet(answer: MemberSigns) -> None:
    memory = handed_over(replace(sealing(), successor="n3"), 101.6)
    memory, _ = turn(memory, Sight(101.7, replace(LOCK, at=101.7, holder="n3"), {"n3": answer}), POLICY)
    assert memory.state is State.HANDED_OVER


def test_a_sign_that_was_heard_is_not_forgotten_for_an_older_one() -> None:
    """After a stall of the guard itself only what it hears from then on counts."""
    stalled, _ = turn(watching(), replace(silent(130.0), stalled=True), POLICY)
    memory, action = turn(stalled, silent(130.1), POLICY)
    assert (memory.last_sign, action.act) == (130.0, Act.NONE)


def test_a_seal_that_ended_is_not_handed_over_to_nobody() -> None:
    ended = replace(SEALED, at=101.5, holder="", holder_version=0, seal=None)
    memory, action = turn(sealing(), Sight(101.5, ended, gone(100.0, 101.5)), POLICY)
    assert (memory.state, memory.takeovers, action.act) == (State.NOT_READY, 0, Act.NONE)
    assert memory.lines == ("the lock is no longer ours: left alone",)


def test_where_the_lease_is_no_witness_and_a_standby_asks_too_late_it_is_not_ready() -> None:
    """Nothing would tell that the leader is gone before Patroni elects: each standby that answers is a witness."""
    only = "only standbys tell in time that a leader is gone: set wal_receiver_timeout of"
    failsafe, seldom = replace(LOCK, at=101.0, failsafe=True), replace(LOCK, at=101.0, loop_wait_s=18.0)

    def asking(n2: float, n3: float) -> dict[str, MemberSigns]:
        signs = alive(101.0)
        for name, asks_after_s in (("n2", n2), ("n3", n3)):
            receivers = tuple(replace(r, asks_after_s=asks_after_s) for r in signs[name].receivers)
            signs[name] = replace(signs[name], receivers=receivers)
        return signs

    for lock, signs, reason in (
        (failsafe, asking(1.0, 9.9), None),
        (failsafe, asking(1.0, 10.0), f"with failsafe_mode {only} n3 to a few seconds"),
        (failsafe, asking(30.0, 30.0), f"with failsafe_mode {only} n2, n3 to a few seconds"),
        (replace(seldom, loop_wait_s=17.0), asking(30.0, 30.0), None),
        (seldom, asking(1.0, 1.9), None),
        (seldom, asking(1.0, 30.0), f"with loop_wait at 18 s {only} n3 to a few seconds"),
    ):
        assert why_not(lock, signs, 101.0, BOTH) == reason
    # What has not answered for a second is no witness.
    late = {**asking(1.0, 30.0), "n3": replace(asking(1.0, 30.0)["n3"], sql_at=99.0)}
    assert why_not(replace(failsafe, quorum=0), late, 101.0, BOTH) is None


def test_an_answer_from_before_the_seal_says_nothing_of_it() -> None:
    assert sealed(("n2",), {"n2": answers()}, 101.1, 101.4) == {"n2": 100}
    assert sealed(("n2",), {"n2": answers()}, 101.25, 101.4) == {}
