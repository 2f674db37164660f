"""Storms: drawn from a seed, carried out so that they overlap, judged fault by fault, shrunk where they break."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.tiers import each
from tests.unit.test_proving_conclude import attempts, history
from tests.unit.test_proving_happened import BACK, ORDERLY, run, silent, state, view
from walproof.model.drill import Drill, Recovery, Verdict, Victim
from walproof.model.guarantee import Level, Loss
from walproof.proving.campaign import PlannedDrill, Strike, Struck, drawn, moves_the_leader, shrunk
from walproof.proving.fault_happened import fault_signs, loss_in_fact
from walproof.proving.faults import CATALOGUE, IN_STORMS, SHRUNK, STORM
from walproof.proving.history import DrillRun, History, decode, encode
from walproof.proving.judge import judge
from walproof.proving.level_in_effect import before_named

KILL = Strike("kill", Victim.LEADER, 1.0, False, 3.0)


def storms(count: int = 200, faults: int = 5) -> list[tuple[Strike, ...]]:
    return [drawn(np.random.default_rng(seed), IN_STORMS, faults) for seed in range(count)]


def test_many_faults_come_just_after_a_takeover_that_the_one_before_causes() -> None:
    pairs = [(a, b) for one in storms() for a, b in itertools.pairwise(one)]
    just_after = [(a, b) for a, b in pairs if b.after_takeover]
    assert all(moves_the_leader(a) and b.after_s <= 0.3 for a, b in just_after)
    caused = [b for a, b in pairs if moves_the_leader(a)]
    assert 0.6 < len(just_after) / len(caused) < 0.8


def test_faults_last_longer_than_the_pauses_between_them_and_fall_on_leaders_most() -> None:
    every = [strike for one in storms() for strike in one]
    assert {strike.fault for strike in every} == set(IN_STORMS)
    assert np.median([s.lasts_s for s in every]) > 2 * np.median([s.after_s for s in every])
    assert 0.55 < np.mean([s.victim is Victim.LEADER for s in every]) < 0.75
    assert all(0 <= s.pick < 1 for s in every)
    assert all(s.victim is Victim.LEADER for s in every if s.fault == "switchover")
    assert all(s.victim is Victim.STANDBY for s in every if Victim.LEADER not in CATALOGUE[s.fault].victims)
    only = [
        drawn(np.random.default_rng(seed), [name], 5) for seed in range(20) for name in ("pause-replay", "switchover")
    ]
    assert {(s.fault, s.victim) for one in only for s in one} == {
        ("pause-replay", Victim.STANDBY),
        ("switchover", Victim.LEADER),
    }
    assert not any(one[0].after_takeover for one in storms())


def test_shrinking_asks_no_more_often_than_allowed_and_keeps_what_breaks() -> None:
    asked: list[int] = []

    def breaks(some: tuple[Strike, ...]) -> bool:
        asked.append(len(some))
        return any(one.fault == "freeze" for one in some)

    one = tuple(replace(KILL, fault=name) for name in ("kill", "stop", "freeze", "stop", "isolate", "kill", "stop"))
    assert [s.fault for s in shrunk(one, breaks, 30)] == ["freeze"]
    asked.clear()
    assert any(s.fault == "freeze" for s in shrunk(one, breaks, 3))
    assert len(asked) == 3
    assert shrunk(one, lambda _: False, 50) == one


def test_a_smaller_storm_waits_for_no_takeover_that_nothing_causes() -> None:
    after = replace(KILL, after_takeover=True)
    tried: list[tuple[Strike, ...]] = []

    def holds(some: tuple[Strike, ...]) -> bool:
        tried.append(some)
        return False

    shrunk((KILL, after, replace(after, fault="slow-disk"), after), holds, 20)
    assert all(not some[0].after_takeover for some in tried)
    assert all(moves_the_leader(a) for some in tried for a, b in itertools.pairwise(some) if b.after_takeover)


def stormy(*struck: Struck, states: tuple[object, ...] = (), leader: str = "n2", timeline: int | None = 2) -> DrillRun:
    return replace(run(*states, after=view(leader, timeline)), struck=struck)  # type: ignore[arg-type]


KILLED = Struck("kill", "n1", True, 100.0, 104.0)
AGAIN = Struck("kill", "n1", False, 110.0, 114.0)
FIRST = state(at=105.0, postmaster="8", started="tuesday", stats_reset="tuesday")
SECOND = state(at=115.0, postmaster="9", started="friday", stats_reset="friday")


def test_each_fault_of_a_storm_needs_a_sign_of_its_own() -> None:
    both = fault_signs(STORM, stormy(KILLED, AGAIN, states=(FIRST, SECOND)))
    assert [sign.seen for sign in both] == [True, True]
    same = replace(FIRST, at=115.0)
    assert [sign.seen for sign in fault_signs(STORM, stormy(KILLED, AGAIN, states=(FIRST, same)))] == [True, False]
    # What the second did is no sign of the first.
    unchanged = state(at=105.0)
    assert [s.seen for s in fault_signs(STORM, stormy(KILLED, AGAIN, states=(unchanged, SECOND)))] == [False, True]


def test_a_refused_fault_of_a_storm_needs_none() -> None:
    refused = replace(AGAIN, refused="n1 is down")
    assert len(fault_signs(STORM, stormy(KILLED, refused, states=(BACK,)))) == 1


def test_a_switchover_in_a_storm_shows_by_the_old_leader_that_follows() -> None:
    moved = Struck("switchover", "n1", True, 100.0, 104.0)
    follows, leads = replace(ORDERLY, in_recovery=True), replace(ORDERLY, in_recovery=False)
    assert [s.seen for s in fault_signs(STORM, stormy(moved, states=(follows,)))] == [True]
    assert [s.seen for s in fault_signs(STORM, stormy(moved, states=(leads,)))] == [False]
    led_at_first = replace(leads, at=101.0)
    assert [s.seen for s in fault_signs(STORM, stormy(moved, states=(led_at_first, follows)))] == [True]


def test_a_switchover_shows_by_another_leader_before_the_next_fault_though_the_old_one_leads_again() -> None:
    moved, back = Struck("switchover", "n1", True, 100.0, 106.0), Struck("switchover", "n2", True, 104.0, 108.0)
    leads, follows = state(at=110.0, in_recovery=False), state("n2", 110.0, in_recovery=True)
    led = stormy(moved, back, states=(leads, follows), leader="n1")
    between, after = replace(view("n2", 2), at=102.0), replace(view("n2", 2), at=105.0)
    assert [s.seen for s in fault_signs(STORM, replace(led, views=(between,)))] == [True, True]
    assert [s.seen for s in fault_signs(STORM, replace(led, views=(after,)))] == [False, True]
    assert [s.seen for s in fault_signs(STORM, replace(led, views=(replace(view("n1"), at=102.0),)))] == [False, True]


@each([
        ((KILLED,), "n2", 2, Loss.LEADER_AND_STANDBY_POSTGRES),
        ((KILLED,), "n2", None, Loss.LEADER_AND_STANDBY_POSTGRES),
        ((KILLED,), "n1", None, Loss.POSTGRES_CRASH),
        ((KILLED, AGAIN), "n1", 3, Loss.LEADER_AND_STANDBY_POSTGRES),
        ((KILLED, Struck("power-cut", "n3", False, 101.0, 105.0)), "n2", 2, Loss.LEADER_AND_STANDBY_POWER),
        ((KILLED, Struck("power-cut", "n3", False, 101.0, 105.0, "no images")), "n2", 2,
         Loss.LEADER_AND_STANDBY_POSTGRES),
        ((KILLED,), "n1", 1, Loss.POSTGRES_CRASH),
        ((Struck("power-cut", "n1", True, 100.0, 104.0),), "n1", 1, Loss.POWER_CUT),
        ((Struck("power-cut", "n2", False, 100.0, 104.0),), "n1", 1, None),
        ((Struck("restart", "n1", True, 100.0, 104.0),), "n1", 1, None),
    ])  # fmt: skip
def test_what_a_storm_took_at_most(
    struck: tuple[Struck, ...], leader: str, timeline: int | None, loss: Loss | None
) -> None:
    assert loss_in_fact(STORM, Victim.CLUSTER, stormy(*struck, leader=leader, timeline=timeline)) is loss


def judged_storm(drill: DrillRun, *, lost: tuple[float, float] | None = None, **more: object) -> Drill:
    one = history(drill, lost=lost)
    plan = PlannedDrill(1, STORM, Victim.CLUSTER, Level.ON, writers=2, storm=(KILL,))
    return judge(replace(one, planned=plan, **more)).drill  # type: ignore[arg-type]


def test_who_led_when_the_outage_began_is_by_the_last_view_in_a_storm_alone() -> None:
    views = (replace(view("n3", 2), at=90.0), replace(view(None), at=95.0), replace(view("n2", 3), at=101.0))
    states = (silent(postmaster="none", at=101.0), BACK)
    stormed = judged_storm(replace(stormy(KILLED, states=states), views=views))
    alone = judge(history(replace(run(*states), views=views))).drill
    first = [next(m.member for m in d.marks if m.what == "last acknowledgement") for d in (stormed, alone)]
    assert first == ["n3", "n1"]


def test_a_storm_whose_leader_cannot_be_read_is_undecided() -> None:
    drill = judged_storm(stormy(KILLED, states=(silent(postmaster="none", at=101.0), BACK)), readings=())
    assert drill.verdict is Verdict.UNDECIDED
    assert "the leader could not be read afterwards" in drill.why


def test_a_storm_is_judged_whole_and_lists_what_was_carried_out() -> None:
    drill = judged_storm(stormy(KILLED, states=(silent(postmaster="none", at=101.0), BACK)))
    assert drill.verdict is Verdict.HELD, drill.why
    assert drill.strikes == ("0.0 s: kill of n1, the leader, cleared after 4.0 s",)
    assert {"kill", "kill cleared"} <= {mark.what for mark in drill.marks}
    lost = judged_storm(stormy(KILLED, states=(BACK,)), lost=(99.0, 100.0))
    assert (lost.verdict, lost.promised) == (Verdict.BROKEN, True)


def test_a_storm_of_which_nothing_or_not_everything_happened_is_undecided() -> None:
    nothing = judged_storm(stormy(replace(KILLED, refused="n1 is down"), states=(BACK,)))
    assert nothing.verdict is Verdict.UNDECIDED
    assert "no fault of the storm could be carried out: n1 is down" in nothing.why
    assert (nothing.rto_s, nothing.unavailable_s, nothing.writers_rto_s) == (None, None, None)
    assert nothing.recovery == Recovery()
    assert not [mark for mark in nothing.marks if "kill" in mark.what]
    idle = judged_storm(stormy(KILLED, states=(state(at=110.0), state(at=125.0))))
    assert idle.verdict is Verdict.UNDECIDED
    assert "kill did not happen: n1: its postmaster is the same process as before" in idle.why


def test_what_a_new_leader_acknowledged_unnamed_counts_only_when_it_is_lost() -> None:
    tries = attempts()
    window = (tries.timeline == 2) & (tries.ended < 103.5)
    unnamed = replace(tries, names=window.astype(np.int16))
    assert before_named(unnamed, Level.ON, 1).tolist() == window.tolist()
    assert not before_named(unnamed, Level.ON, 2).any()
    assert not before_named(unnamed, Level.LOCAL, 1).any()
    drill = stormy(KILLED, states=(BACK,))
    held = judged_storm(drill, attempts=unnamed)
    assert held.verdict is Verdict.HELD, held.why
    assert "new leaders acknowledged on for 0.4" in held.why
    assert held.findings.not_in_effect_s == 0
    never = judged_storm(drill, attempts=replace(tries, names=(tries.timeline == 2).astype(np.int16)))
    assert never.verdict is Verdict.UNDECIDED
    assert "on was acknowledged for" in never.why
    assert never.findings.unnamed_after_takeover_s == pytest.approx(1.0)
    lost = judged_storm(drill, lost=(103.0, 103.3), attempts=unnamed)
    assert lost.verdict is Verdict.BROKEN
    assert "because on was acknowledged for" in lost.why
    before = judged_storm(drill, attempts=replace(tries, names=(tries.ended < 90).astype(np.int16)))
    assert before.verdict is Verdict.UNDECIDED
    assert before.findings.not_in_effect_s > 0


def test_a_storm_is_kept_in_its_history() -> None:
    plan = PlannedDrill(1, SHRUNK, Victim.CLUSTER, Level.ON, writers=2, storm=(KILL, replace(KILL, pick=0.5)))
    one: History = replace(history(stormy(KILLED, states=(BACK,))), planned=plan)
    again = decode(encode(one))
    assert (again.planned, again.run.struck) == (plan, one.run.struck)
