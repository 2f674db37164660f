"""When a leader is suspected: its signs of life, what silence is normal here, and a second witness; L: of readings."""

from dataclasses import replace

import pytest

from tests.fixtures.guards import (
    BOTH,
    KNOWS,
    LOCK,
    POLICY,
    alive,
    answers,
    gone,
    receiver,
    seen,
    silent,
    standbys,
    watching,
    with_signs,
)
from walproof.guarding.decide import Act, Memory, Sight, State, turn
from walproof.guarding.suspicion import Silences, last_sign, witness
from walproof.model.takeover import MemberSigns, Receiver

CANNOT_REACH = "its standbys cannot reach it"


@pytest.mark.parametrize(
    ("who", "sign"),
    [
        ("Patroni's REST alone is frozen", {"n1": MemberSigns(99.0, 101.9)}),
        ("PostgreSQL has no free connection", {"n1": MemberSigns(101.9, None)}),
        ("one walreceiver still hears it", {"n2": MemberSigns(101.9, 101.9, receivers=(receiver(101.9),))}),
        # A planned stop: REST ends first, sessions next, and the checkpoint takes seconds, with nothing to stream.
        ("it shuts down and refuses", {"n1": MemberSigns(100.0, 100.0, refused_at=101.9)}),
    ],
)
def test_any_sign_of_life_is_enough(who: str, sign: dict[str, MemberSigns]) -> None:
    sight = silent(102.0)
    memory, action = turn(watching(), replace(sight, signs={**sight.signs, **sign}), POLICY)
    assert (action.act, memory.suspicions) == (Act.NONE, 0), who


def test_a_lease_that_is_renewed_is_a_sign_of_life() -> None:
    assert last_sign(replace(LOCK, at=102.0, lease_age_s=0.5), gone(100.0, 102.0)) == 101.5
    assert turn(watching(), silent(102.0, lease_age_s=0.5), POLICY)[1].act is Act.NONE


def test_a_walreceiver_that_ended_is_no_sign_of_life() -> None:
    ended = MemberSigns(102.0, 102.0, receivers=(receiver(102.0, running=False),) * 2)
    assert last_sign(replace(LOCK, lease_age_s=None), {"n2": ended}) == 0.0


def test_a_suspicion_that_was_wrong_says_what_it_heard() -> None:
    memory, _ = turn(watching(), silent(101.05, at=100.9), POLICY)
    assert memory.state is State.SUSPECTING
    memory, _ = turn(memory, silent(101.2, lease_age_s=0.1), POLICY)
    assert (memory.state, memory.lines) == (State.WATCHING, ("n1 lives after all, by lease",))


def test_a_standbys_clock_that_is_set_back_is_no_sign_of_life_to_come() -> None:
    early = (receiver(100.0), receiver(100.1, silent_s=-3600.0))
    signs = {**alive(100.1), "n2": MemberSigns(100.1, 100.1, early, fit_at=100.1)}
    memory, _ = turn(watching(), seen(100.1, replace(LOCK, lease_age_s=0.0), signs), POLICY)
    assert memory.last_sign == 100.1


def test_a_guard_that_did_not_run_itself_suspects_nobody_and_only_what_it_hears_from_then_on_counts() -> None:
    memory, action = turn(watching(), replace(silent(130.0), stalled=True), POLICY)
    assert (action.act, memory.last_sign, memory.silences.allowed_s(1.0)) == (Act.NONE, 130.0, 1.0)
    assert memory.lines[0] == "this guard did not run for a while: what it did not hear meanwhile does not count"
    memory, action = turn(memory, silent(130.1), POLICY)
    assert (memory.last_sign, action.act) == (130.0, Act.NONE)


def test_the_silence_of_a_slow_link_is_learned_and_forgotten() -> None:
    learned = Silences().with_one(100.0, 0.9).with_one(130.0, 0.2)
    assert learned.allowed_s(1.0) == pytest.approx(1.35)
    assert learned.with_one(800.0, 0.1).allowed_s(1.0) == 1.0


def test_the_guards_own_pause_is_not_learned_as_the_leaders_silence() -> None:
    memory, _ = turn(watching(), seen(103.0, replace(LOCK, lease_age_s=0.0), alive(103.0)), POLICY)
    assert memory.silences.allowed_s(1.0) == 1.0


def _heard_again(after_s: float, *, led_s: float = 10.0, stalled: bool = False) -> Memory:
    """A guard that watched n1 ten times a second, heard nothing for so long, and then heard it again."""
    memory = Memory()
    since = 110.0 - led_s
    for tenth in range(round(10 * (led_s + after_s)) + 1):
        now = since + tenth / 10
        again = now >= 109.9 + after_s
        signs = alive(now) if now < 110.0 or again else gone(109.9, now)
        sight = replace(seen(now, replace(LOCK, lease_age_s=None), signs), stalled=stalled and again)
        memory, _ = turn(memory, sight, POLICY)
    return memory


def test_a_silence_that_ended_by_itself_may_come_again() -> None:
    assert _heard_again(0.8).silences.allowed_s(1.0) == pytest.approx(1.5 * 0.8, abs=0.16)
    assert _heard_again(0.8).last_sign == pytest.approx(110.7, abs=0.11)
    assert _heard_again(0.8, led_s=3.0).silences.seen == ()
    assert _heard_again(0.8, stalled=True).silences.allowed_s(1.0) == 1.0


def test_the_leader_a_standby_streams_from_is_not_known_at_first() -> None:
    assert _heard_again(0.1, led_s=4.5).followed == frozenset()
    assert _heard_again(0.1, led_s=5.5).followed == BOTH


def test_a_voter_that_never_streamed_from_this_leader_is_not_counted() -> None:
    """It may have forked off its predecessor and be ahead with WAL that nobody else has: not rewound yet."""
    memory = KNOWS
    for tenth in range(100):
        now = 92.0 + tenth / 10
        forked = with_signs(
            alive(now), "n3", receiver={"running": False, "silent_s": None, "position": 900, "asked_at": now}
        )
        memory, _ = turn(memory, seen(now, replace(LOCK, lease_age_s=0.0), forked), POLICY)
    assert memory.followed == {"n2"}
    assert memory.why_not == "1 of 2 synchronous standbys answer and follow, 2 are needed"


def test_a_partitioned_leader_that_serves_clients_is_left_alone_and_named_once() -> None:
    sight = silent(115.0)
    signs = {**sight.signs, "n1": MemberSigns(115.0, 115.0)}
    heard = {"n2": replace(signs["n2"], receivers=(replace(receiver(115.2), named="n2"),))}
    renewed = replace(sight.lock, at=115.4, lease_age_s=0.0)
    memory, named = watching(), []
    for now, lock, shown in (
        (115.0, sight.lock, signs),
        (115.1, sight.lock, signs),
        (115.2, sight.lock, {**signs, **heard}),
        (115.3, sight.lock, signs),
        (115.4, renewed, signs),
        (115.5, sight.lock, signs),
    ):
        memory, action = turn(memory, Sight(now, lock, shown), POLICY)
        assert action.act is Act.NONE
        named += [now] if any("answers SQL" in line for line in memory.lines) else []
    assert named == [115.0, 115.5]


def idle(now: float, cut_at: float, *, lease_age_s: float) -> Sight:
    """An idle, healthy leader that this guard alone cannot reach since `cut_at`: nothing was streamed for 20 s.

    It answers its standbys, which ask after 30 s.
    """
    waiting = tuple(Receiver(t, True, True, 100, (t - 80.0) % 30.0) for t in (now - 0.1, now))
    lock = replace(LOCK, at=now, lease_age_s=lease_age_s)
    return Sight(now, lock, {"n1": MemberSigns(cut_at, cut_at), **standbys(now, waiting)})


def test_l4_a_guard_cut_off_from_an_idle_healthy_leader_suspects_nobody() -> None:
    """Cut for a minute; the leader renews its lease every ten seconds."""
    memory = KNOWS
    for tenth in range(700):
        now = 90.0 + tenth / 10
        memory, action = turn(memory, idle(now, min(now, 100.0), lease_age_s=now % 10.0), POLICY)
        assert action.act is Act.NONE and (now < 100.0 or memory.state is State.WATCHING)
    assert memory.suspicions == 0


def test_l4_a_lease_that_is_overdue_and_standbys_cut_off_too_are_second_witnesses() -> None:
    sight = idle(112.5, 100.0, lease_age_s=12.5)
    assert turn(watching(), sight, POLICY)[1].act is Act.SEAL
    assert witness(sight.lock, sight.signs, 112.5) == "its lease is overdue"
    broken = tuple(Receiver(t, False, True, 100) for t in (112.4, 112.5))
    one = {**sight.signs, "n3": replace(sight.signs["n3"], receivers=broken)}
    both = {**one, "n2": one["n3"]}
    late = {**both, "n3": replace(one["n3"], sql_at=111.0)}
    fresh = replace(sight.lock, lease_age_s=2.0)
    for lock, signs, seen_by in (
        (fresh, sight.signs, ""),
        (fresh, one, ""),  # the way of that standby may be cut, and this guard's
        (fresh, both, CANNOT_REACH),
        (fresh, with_signs(both, "n3", receiver={"streamed": False}), ""),
        (fresh, late, ""),  # the leader may still have its commits acknowledged by n3
        (fresh, {name: replace(s, sql_at=111.0) for name, s in both.items()}, ""),
        (replace(fresh, quorum=0), late, CANNOT_REACH),
        (replace(fresh, quorum=0), {**both, "n3": MemberSigns()}, CANNOT_REACH),
        # A leader that is cut off from etcd alone goes on with failsafe_mode, by the consent of every member.
        (replace(sight.lock, failsafe=True), sight.signs, ""),
        (replace(sight.lock, failsafe=True), both, CANNOT_REACH),
    ):
        assert witness(lock, signs, 112.5) == seen_by


def test_a_standby_that_answers_slowly_and_follows_keeps_its_leader() -> None:
    """One stream is cut, and the guard's way: an answer of 0.8 s ago counts for taking the lock, so for this too."""
    sight = idle(112.5, 100.0, lease_age_s=2.0)
    signs = {**sight.signs, "n2": answers(112.4, 112.5, connects=True)}
    for quorum in (0, 1):
        for ago in (0.1, 0.8):
            slow = with_signs(signs, "n3", sql_at=112.5 - ago)
            assert witness(replace(sight.lock, quorum=quorum), slow, 112.5) == "", (quorum, ago)


def test_l4_a_silent_stream_is_a_witness_once_the_standby_asked_and_got_no_answer() -> None:
    """Clients and guard may have lost their way together: then nobody writes, and the leader is well."""
    fresh = replace(LOCK, at=102.0, lease_age_s=0.5)
    for silent_s, asks_after_s, expected in ((2.7, 2.5, ""), (2.9, 2.5, CANNOT_REACH), (2.9, float("inf"), "")):
        streams = tuple(Receiver(t, True, True, 100, silent_s, asks_after_s=asks_after_s) for t in (101.9, 102.0))
        assert witness(fresh, standbys(102.0, streams), 102.0) == expected
