"""The guard's decisions: when it suspects, what it must see before it hands the lock over, and who would fool it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from walproof.guarding.decide import (
    Act,
    Memory,
    Policy,
    Sight,
    State,
    handed_over,
    not_taken,
    seal_of,
    taken,
    turn,
)
from walproof.guarding.seal_quorum import connected, enough, sealed, successor, why_not
from walproof.guarding.suspicion import last_sign
from walproof.model.takeover import Candidate, LockState, MemberSigns, Receiver, Seal

NAME = "walproof-guard-1"
MEMBERS = ("n1", "n2", "n3")
POLICY = Policy(NAME, at_most_every_s=15.0)
LOCK = LockState(
    0.0,
    holder="n1",
    holder_version=10,
    holder_lease=77,
    lease_age_s=0.5,
    sync_leader="n1",
    voters=("n2", "n3"),
    quorum=1,
    sync_version=11,
    config_version=3,
    synchronous=True,
    ttl_s=20.0,
    candidates={
        name: Candidate(lease, True, 1, f"{name}:5432", timeline=1, version=(4, 1, 5))
        for lease, name in enumerate(MEMBERS, 77)
    },
)
KEPT = Seal(("n2", "n3"), config_version=3)
SEALED = replace(LOCK, holder=NAME, holder_version=20, sync_version=20, lease_age_s=None, seal=KEPT)

BOTH = frozenset({"n2", "n3"})
KNOWS = Memory(config=(LOCK.config_version, float("-inf")))
"""A guard that has run for longer than a ttl."""


def receiver(at: float, *, running: bool = True, position: int = 100, silent_s: float | None = 0.0) -> Receiver:
    return Receiver(at, running, running, position, silent_s if running else None, asks_after_s=0.5)


def alive(now: float) -> dict[str, MemberSigns]:
    """Everybody answers, and both standbys receive."""
    receiving = (receiver(now - 0.1), receiver(now))
    return {"n1": MemberSigns(now, now), **standbys(now, receiving)}


def standbys(now: float, receivers: tuple[Receiver, ...]) -> dict[str, MemberSigns]:
    """Both standbys, which answer the same, each under its own name."""
    return {
        name: MemberSigns(
            now, now, tuple(replace(r, named=name) for r in receivers), fit_at=now, address=f"{name}:5432"
        )
        for name in ("n2", "n3")
    }


def gone(at: float, now: float) -> dict[str, MemberSigns]:
    """The leader showed its last sign at `at`."""
    waiting = tuple(receiver(t, silent_s=t - at) for t in (now - 0.1, now))
    return {"n1": MemberSigns(at, at), **standbys(now, waiting)}


def disconnected(now: float, positions: Mapping[str, int]) -> dict[str, MemberSigns]:
    """The leader is gone; these standbys show no walreceiver and no way back, in both of their last answers."""
    left = {
        name: MemberSigns(now, now, tuple(receiver(t, running=False, position=p) for t in (now - 0.1, now)), fit_at=now)
        for name, p in positions.items()
    }
    return {**gone(0.0, now), **left}


def watching(now: float = 100.0) -> Memory:
    """A guard that has watched n1 for ten seconds, four times a second."""
    memory = KNOWS
    for at in (now - quarter / 4 for quarter in range(40, -1, -1)):
        memory, _ = turn(memory, Sight(at, replace(LOCK, at=at, lease_age_s=0.0), alive(at)), POLICY)
    assert memory.state is State.WATCHING
    return memory


def silent(now: float, **changes: object) -> Sight:
    """n1 disappeared at 100, seen at `now`; `changes` of the lock."""
    lock = replace(LOCK, at=now, lease_age_s=now - 100)
    return Sight(now, replace(lock, **changes), gone(100.0, now))  # type: ignore[arg-type]


def test_a_leader_that_is_gone_is_replaced_by_the_standby_with_the_most_wal() -> None:
    memory, action = turn(watching(), silent(101.05), POLICY)
    assert (memory.state, action.act) == (State.SUSPECTING, Act.SEAL)
    memory = taken(memory, silent(101.05).lock, 101.1)
    lock = replace(SEALED, at=101.5)
    memory, action = turn(memory, Sight(101.5, lock, disconnected(101.5, {"n2": 90, "n3": 110})), POLICY)
    assert (action.act, action.to) == (Act.HAND_OVER, "n3")
    memory = handed_over(memory, 101.6)
    leading = {**alive(101.9), "n3": MemberSigns(101.9, 101.9)}
    memory, _ = turn(memory, Sight(102.0, replace(LOCK, at=102.0, holder="n3"), leading), POLICY)
    assert "n3 leads 2.00 s after the last sign of life of its predecessor" in memory.lines
    assert list(memory.steps.durations_s) == ["suspect", "seal", "check", "promote"]
    assert memory.takeovers == 1


@pytest.mark.parametrize(
    ("who", "sign"),
    [
        ("Patroni's REST alone is frozen", {"n1": MemberSigns(99.0, 101.9)}),
        ("PostgreSQL has no free connection", {"n1": MemberSigns(101.9, None)}),
        ("one walreceiver still hears it", {"n2": MemberSigns(101.9, 101.9, receivers=(receiver(101.9),))}),
    ],
)
def test_any_sign_of_life_is_enough(who: str, sign: dict[str, MemberSigns]) -> None:
    sight = silent(102.0)
    _, action = turn(watching(), replace(sight, signs={**sight.signs, **sign}), POLICY)
    assert action.act is Act.NONE, who


def test_a_lease_that_is_renewed_is_a_sign_of_life() -> None:
    assert last_sign(replace(LOCK, at=102.0, lease_age_s=0.5), gone(100.0, 102.0)) == 101.5
    _, action = turn(watching(), silent(102.0, lease_age_s=0.5), POLICY)
    assert action.act is Act.NONE


def test_a_switchover_asked_for_after_the_seal_voids_it() -> None:
    memory = taken(watching(), silent(101.05).lock, 101.1)
    lock = replace(SEALED, at=101.5, switchover=True, failover_version=21)
    memory, action = turn(memory, Sight(101.5, lock, disconnected(101.5, {"n2": 90, "n3": 110})), POLICY)
    assert action.act is Act.NONE
    assert memory.lines[0].startswith("a switchover was asked for after the seal: left to Patroni")
    other = replace(SEALED, holder="walproof-guard-2", switchover=True)
    for at in (101.0, 110.0):
        memory, action = turn(memory, Sight(at, replace(other, at=at), alive(at)), POLICY)
        assert action.act is Act.NONE


def test_a_suspicion_that_was_wrong_says_what_it_heard() -> None:
    memory, _ = turn(watching(), replace(silent(101.05), lock=replace(silent(101.05).lock, at=100.9)), POLICY)
    assert memory.state is State.SUSPECTING
    memory, _ = turn(memory, silent(101.2, lease_age_s=0.1), POLICY)
    assert memory.state is State.WATCHING
    assert memory.lines == ("n1 lives after all, by lease",)


def test_a_walreceiver_that_ended_is_no_sign_of_life() -> None:
    ended = MemberSigns(102.0, 102.0, receivers=(receiver(102.0, running=False),) * 2)
    assert last_sign(replace(LOCK, lease_age_s=None), {"n2": ended}) == 0.0


def test_a_guard_that_did_not_run_itself_suspects_nobody() -> None:
    sight = replace(silent(130.0), stalled=True)
    memory, action = turn(watching(), sight, POLICY)
    assert action.act is Act.NONE
    assert memory.last_sign == 130.0
    assert memory.silences.allowed_s(1.0) == 1.0


def test_a_partitioned_leader_that_serves_clients_is_left_alone_and_named_once() -> None:
    sight = silent(115.0)
    signs = {**sight.signs, "n1": MemberSigns(115.0, 115.0)}
    memory, action = turn(watching(), replace(sight, signs=signs), POLICY)
    assert action.act is Act.NONE
    assert any("answers SQL" in line for line in memory.lines)
    again, _ = turn(memory, replace(sight, now=115.1, signs=signs), POLICY)
    assert again.lines == ()
    heard = {"n2": replace(signs["n2"], receivers=(replace(receiver(115.2), named="n2"),))}
    between, _ = turn(again, replace(sight, now=115.2, signs={**signs, **heard}), POLICY)
    later, _ = turn(between, replace(sight, now=115.3, signs=signs), POLICY)
    assert between.lines == later.lines == ()
    renewed = replace(sight.lock, at=115.4, lease_age_s=0.0)
    whole, _ = turn(later, replace(sight, now=115.4, lock=renewed, signs=signs), POLICY)
    second, _ = turn(whole, replace(sight, now=115.5, signs=signs), POLICY)
    assert any("answers SQL" in line for line in second.lines)


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
    ],
)
def test_where_it_would_not_be_safe_nothing_is_done(change: dict[str, object], reason: str) -> None:
    sight = silent(102.0, **change)
    memory, action = turn(watching(), sight, POLICY)
    assert action.act is Act.NONE
    assert reason in str(why_not(sight.lock, sight.signs, 102.0, BOTH))
    assert memory.state is State.NOT_READY


def test_too_few_reachable_standbys_are_not_sealed() -> None:
    sight = silent(102.0)
    signs = {**sight.signs, "n3": MemberSigns(90.0, 90.0)}
    memory, action = turn(watching(), replace(sight, signs=signs), POLICY)
    assert action.act is Act.NONE
    assert memory.why_not == "1 of 2 synchronous standbys answer and follow, 2 are needed"


def test_a_standby_that_follows_nobody_could_not_show_that_it_saw_a_seal() -> None:
    sight = silent(102.0)
    idle = MemberSigns(102.0, 102.0, receivers=(receiver(101.9, running=False), receiver(102.0, running=False)))
    assert "1 of 2" in str(why_not(sight.lock, {**sight.signs, "n3": idle}, 102.0, BOTH))


def test_a_guard_waits_between_takeovers_and_before_it_knows_a_leader() -> None:
    for limited_at, limit_s, act in ((95.0, 15.0, Act.NONE), (80.0, 15.0, Act.SEAL), (80.0, 60.0, Act.NONE)):
        limited = silent(102.0, limited_at=limited_at, limit_s=limit_s)
        assert turn(watching(), limited, POLICY)[1].act is act
    fresh, _ = turn(Memory(), Sight(100.0, replace(LOCK, at=100.0), alive(100.0)), POLICY)
    assert turn(fresh, silent(102.0), POLICY)[1].act is Act.NONE


def test_a_dry_run_only_says_what_it_would_do() -> None:
    memory, action = turn(watching(), silent(102.0), replace(POLICY, dry_run=True))
    assert action.act is Act.NONE
    assert memory.lines[-1] == "would take the leader lock from n1 (dry run)"


def test_the_lock_is_read_again_before_it_is_taken() -> None:
    memory, action = turn(watching(), silent(102.0, at=101.0, lease_age_s=1.0), POLICY)
    assert action.act is Act.NONE
    assert turn(memory, silent(102.1), POLICY)[1].act is Act.SEAL


SINCE = 101.1


def answers(**change: object) -> MemberSigns:
    both = tuple(replace(receiver(t, running=False), **change) for t in (101.2, 101.3))  # type: ignore[arg-type]
    return MemberSigns(101.3, 101.3, receivers=both)


@pytest.mark.parametrize(
    ("liar", "signs"),
    [
        ("a walreceiver runs", answers(running=True)),
        ("it may connect again", answers(connects=True)),
        ("it has nothing", answers(position=0)),
        ("it replays, is paused, delayed or stuck, and may hold more", answers(waits=False)),
        ("it may not be seen", answers(lacks="GRANT pg_monitor TO guard")),
        ("asked before the seal", answers(asked_at=101.0)),
        ("asked once", MemberSigns(101.3, 101.3, receivers=(receiver(101.3, running=False),))),
        (
            "it still receives",
            MemberSigns(
                101.3, 101.3, receivers=(receiver(101.2, running=False), receiver(101.3, running=False, position=101))
            ),
        ),
        ("it never answered", MemberSigns()),
    ],
)
def test_a_standby_is_sealed_only_when_it_can_acknowledge_nothing(liar: str, signs: MemberSigns) -> None:
    assert sealed(("n2", "n3"), {"n2": signs, "n3": answers()}, SINCE, 101.4) == {"n3": 100}, liar


def test_an_old_answer_does_not_seal() -> None:
    assert sealed(("n2",), {"n2": answers()}, SINCE, 103.0) == {}


def test_a_standby_that_was_disconnected_before_the_seal_shows_nothing() -> None:
    signs = {**alive(101.0), "n3": MemberSigns(101.0, 101.0, receivers=(receiver(101.0, running=False),))}
    assert connected(LOCK, signs, 101.0, BOTH) == ("n2",)


@pytest.mark.parametrize(("voters", "number", "needed"), [(2, 1, 2), (2, 2, 1), (4, 2, 3), (4, 1, 4), (1, 1, 1)])
def test_so_many_are_sealed_that_no_quorum_is_left(voters: int, number: int, needed: int) -> None:
    """n named, k needed: n − k + 1, which is Patroni's quorum + 1."""
    lock = replace(LOCK, quorum=voters - number)
    assert not enough(lock, dict.fromkeys(map(str, range(needed - 1)), 1))
    assert enough(lock, dict.fromkeys(map(str, range(needed)), 1))


def test_the_successor_never_holds_less_than_another_sealed_standby() -> None:
    signs = alive(100.0)
    assert successor(LOCK, {"n2": 5, "n3": 9}, signs, 100.0) == "n3"
    for unable in (Candidate(79, False), Candidate(0, True), Candidate(79, True, tagged="nofailover: True")):
        barred = replace(LOCK, candidates={**LOCK.candidates, "n3": unable})
        assert successor(barred, {"n2": 5, "n3": 9}, signs, 100.0) is None
        assert successor(barred, {"n2": 9, "n3": 9}, signs, 100.0) == "n2"


@pytest.mark.parametrize(
    "answer",
    [
        {"fit_at": None},
        {"fit_at": 97.0},
        {"unfit": "its watchdog is required and cannot be used"},
    ],
)
def test_a_member_whose_patroni_could_not_lead_is_handed_nothing(answer: dict[str, object]) -> None:
    """Patroni would release the key early, and elect with the old leader perhaps alive (G6)."""
    signs = {**alive(100.0), "n3": replace(alive(100.0)["n3"], **answer)}  # type: ignore[arg-type]
    assert successor(LOCK, {"n2": 5, "n3": 9}, signs, 100.0) is None
    assert successor(LOCK, {"n2": 9, "n3": 9}, signs, 100.0) == "n2"


def test_of_equal_standbys_the_one_with_the_higher_priority_leads() -> None:
    lock = replace(LOCK, candidates={**LOCK.candidates, "n3": replace(LOCK.candidates["n3"], priority=5)})
    assert successor(lock, {"n2": 9, "n3": 9}, alive(100.0), 100.0) == "n3"


def sealing() -> Memory:
    memory, _ = turn(watching(), silent(101.05), POLICY)
    return taken(memory, silent(101.05).lock, 101.1)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"holder": "walproof-guard-2"}, "no longer ours"),
        ({"sync_version": 21}, "/sync was changed"),
        ({"config_version": 4}, "configuration was changed"),
    ],
)
def test_what_changed_after_the_seal_voids_it(change: dict[str, object], line: str) -> None:
    lock = replace(SEALED, at=101.5, **change)  # type: ignore[arg-type]
    memory, action = turn(sealing(), Sight(101.5, lock, disconnected(101.5, {"n2": 1, "n3": 1})), POLICY)
    assert action.act is Act.NONE
    assert line in memory.lines[0]


def test_one_sealed_standby_of_two_is_not_enough_at_any_1() -> None:
    lock = replace(SEALED, at=101.5)
    memory, action = turn(sealing(), Sight(101.5, lock, disconnected(101.5, {"n2": 100})), POLICY)
    assert (memory.state, action.act) == (State.SEALED, Act.NONE)


def test_a_standby_that_was_not_connected_before_the_seal_is_never_counted() -> None:
    lock = replace(SEALED, at=101.5, seal=replace(KEPT, connected=("n2",)))
    _, action = turn(sealing(), Sight(101.5, lock, disconnected(101.5, {"n2": 100, "n3": 100})), POLICY)
    assert action.act is Act.NONE


def test_standbys_beyond_those_needed_are_waited_for_while_they_answer_half_a_second() -> None:
    """ANY 2 of 2 needs one: a successor that dies at once must not find another that still acknowledges."""
    memory = sealing()
    one = disconnected(101.5, {"n2": 100})
    memory, action = turn(memory, Sight(101.5, replace(SEALED, at=101.5, quorum=0), one), POLICY)
    assert action.act is Act.NONE
    later = disconnected(102.1, {"n2": 100})
    assert turn(memory, Sight(102.1, replace(SEALED, at=102.1, quorum=0), later), POLICY)[1].act is Act.HAND_OVER
    both = disconnected(101.6, {"n2": 100, "n3": 100})
    assert turn(memory, Sight(101.6, replace(SEALED, at=101.6, quorum=0), both), POLICY)[1].act is Act.HAND_OVER


def test_an_unverified_seal_is_kept_until_its_lease_ends_and_never_given_away() -> None:
    memory = sealing()
    for now in (102.0, 110.0, 121.0):
        memory, action = turn(memory, Sight(now, replace(SEALED, at=now), gone(100.0, now)), POLICY)
        assert (memory.state, action.act) == (State.SEALED, Act.NONE)
    memory, _ = turn(memory, Sight(121.2, replace(SEALED, at=121.2), gone(100.0, 121.2)), POLICY)
    assert "the seal's lease ends" in memory.lines[0]


def test_an_answer_that_was_lost_is_found_in_the_lock() -> None:
    memory, _ = turn(watching(), silent(101.05), POLICY)
    memory, _ = turn(memory, Sight(101.3, replace(SEALED, at=101.3), gone(100.0, 101.3)), POLICY)
    assert memory.state is State.SEALED


def test_another_guards_seal_is_left_alone_and_then_taken_over() -> None:
    theirs = replace(SEALED, holder="walproof-guard-2")
    memory, action = turn(watching(), Sight(101.0, replace(theirs, at=101.0), gone(100.0, 101.0)), POLICY)
    assert action.act is Act.NONE
    memory, action = turn(memory, Sight(102.9, replace(theirs, at=102.9), gone(100.0, 102.9)), POLICY)
    assert action.act is Act.NONE
    sight = Sight(103.1, replace(theirs, at=103.1), disconnected(103.1, {"n2": 100, "n3": 100}))
    memory, action = turn(memory, sight, POLICY)
    assert action.act is Act.SEAL
    # They lost their primary_conninfo under the first guard's seal, as its own record of the moment before says.
    assert seal_of(memory, sight, POLICY) == KEPT


def test_a_lock_that_changed_hands_meanwhile_is_left_alone() -> None:
    memory, _ = turn(watching(), silent(101.05), POLICY)
    memory = not_taken(memory)
    assert memory.state is State.NOT_READY
    new = replace(LOCK, at=101.3, holder="n2", sync_leader="n2", voters=("n3",), quorum=0)
    assert turn(memory, Sight(101.3, new, gone(100.0, 101.3)), POLICY)[1].act is Act.NONE
