"""Storms on the simulated cluster: overlapping, replayed by their seed, every lie noticed, shrunk where they break."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.tiers import each
from walproof.errors import MachineError, PartlyDone, TargetError
from walproof.model.drill import Capability, Drill, Verdict, Victim
from walproof.model.event import Event, FaultChanged, Note
from walproof.model.guarantee import Level, Loss
from walproof.model.ports import Capabilities
from walproof.proving.campaign import PlannedDrill, Strike, fewest, planned
from walproof.proving.fault_happened import loss_in_fact
from walproof.proving.faults import CATALOGUE, STORM
from walproof.proving.history import decode, history_name
from walproof.proving.options import parse_options
from walproof.proving.run import Shell, run_drills, shrink_storms
from walproof.targets.simulated.target import Simulated, simulated

KILL = Strike("kill", Victim.LEADER, 1.0, False, 3.0)


def shell(address: str, events: list[Event] | None = None) -> Shell:
    target: Simulated = simulated(address)
    return Shell(target, lambda e: events.append(e) if events is not None else None, lambda _n, _c: None)


def plan_of(seed: int, faults: int = 5) -> PlannedDrill:
    raw = {"storm": "1", "storm_faults": str(faults), "levels": "on", "seed": str(seed), "writers": "4"}
    return planned(parse_options(raw))[0]


def stormed(address: str, seed: int, events: list[Event] | None = None) -> Drill:
    return run_drills(shell(address, events), [plan_of(seed)], enough=lambda _: False)[0]


@each(range(1, 9))
def test_an_honest_cluster_holds_in_storms_and_the_seed_replays_them(seed: int) -> None:
    drill = stormed(f"sim?sync=strict&slowness=15&seed={seed}", seed)
    assert drill.verdict in (Verdict.HELD, Verdict.UNDECIDED), drill.why
    assert drill.findings.lost == 0
    assert stormed(f"sim?sync=strict&slowness=15&seed={seed}", seed) == drill


def test_a_fault_of_the_leader_that_no_member_takes_over_from_awaits_no_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As CloudNativePG's fence: to wait for commits before it is undone would measure the wait."""
    fence = "writes stop for as long as it is fenced; no instance takes over"
    able = Simulated.capabilities
    monkeypatch.setattr(
        Simulated, "capabilities", lambda self: replace(able(self), no_takeover={Capability.STOP: fence})
    )
    one, strike = shell("sim?sync=strict&seed=3"), Strike("stop", Victim.LEADER, 1.0, False, 3.0)
    plan = PlannedDrill(1, CATALOGUE["stop"], Victim.LEADER, Level.ON, writers=4)
    (drill,) = run_drills(one, [plan], enough=lambda _: False)
    begun, cleared = (next(m.at for m in drill.marks if m.what == what) for what in ("stop", "fault cleared"))
    assert drill.rto_s is None and f"no RTO: {fence}" in drill.why
    assert 10.0 <= cleared - begun < 15.0
    (storm,) = run_drills(one, [replace(plan_of(1), storm=(strike,))], enough=lambda _: False)
    assert storm.rto_s is not None and str(storm.leader_before) not in storm.strikes[0], (
        "in a storm it falls on a standby"
    )


def test_faults_overlap_and_one_member_is_left_alone() -> None:
    most = 0
    for seed in range(1, 12):
        events: list[Event] = []
        drill = stormed(f"sim?sync=strict&slowness=15&seed={seed}", seed, events)
        assert len(drill.strikes) == 5
        in_effect: list[tuple[str, str]] = []
        for event in events:
            if isinstance(event, FaultChanged) and event.fault != "storm":
                if event.cleared:
                    in_effect.remove((event.members[0], event.fault))
                else:
                    in_effect.append((event.members[0], event.fault))
                harmed = {name for name, fault in in_effect if not CATALOGUE[fault].leaves_serving}
                most = max(most, len(harmed))
        assert not in_effect
    assert most == 2


@each([
        "kill", "freeze", "partition", "power-cut", "stop", "slow-disk", "restart",
        "crash-restart", "partition-wal", "partition-acks", "pause-replay",
    ])  # fmt: skip
def test_a_fault_that_a_lie_replaces_by_nothing_is_noticed_in_a_storm(fault: str) -> None:
    strikes = (replace(KILL, fault="isolate"), replace(KILL, fault=fault, after_s=0.5, victim=Victim.STANDBY))
    plan = replace(plan_of(1), storm=strikes)
    drill = run_drills(shell(f"sim?lie=no-{fault}&sync=strict&slowness=15"), [plan], enough=lambda _: False)[0]
    assert drill.verdict is Verdict.UNDECIDED
    assert f"{fault} did not happen" in drill.why


def test_a_broken_storm_is_shrunk_and_the_fewest_faults_are_printed() -> None:
    lying = shell("sim?lie=two-leaders&sync=strict&slowness=15")
    plan = replace(plan_of(1), storm=(*(replace(KILL, fault="slow-disk"),) * 3, KILL, replace(KILL, fault="restart")))
    drills = run_drills(lying, [plan], enough=lambda _: False)
    assert drills[0].verdict is Verdict.BROKEN
    tried = shrink_storms(lying, [plan], drills, 10)
    assert len(tried) <= 10
    assert {drill.fault for drill in tried} == {"shrunk storm"}
    assert [drill.number for drill in tried] == list(range(2, 2 + len(tried)))
    text = fewest([*drills, *tried])
    assert text.startswith(f"fewest faults that still break, of {1 + len(tried)} storms (drill ")
    assert text.count("\n") <= 2
    assert "kill of n" in text
    assert fewest([d for d in tried if d.verdict is not Verdict.BROKEN]) == ""
    assert shrink_storms(lying, [plan], [d for d in tried if d.verdict is not Verdict.BROKEN], 5) == []


def test_a_fault_that_the_target_refuses_is_named_and_the_storm_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = shell("sim?sync=strict&slowness=15")
    assert isinstance(one.target, Simulated)

    def refuse(_to: str | None = None) -> None:
        raise TargetError("no standby can take over")

    monkeypatch.setattr(one.target.faults, "switch_over", refuse)
    plan = replace(plan_of(1), storm=(replace(KILL, fault="switchover"), KILL))
    drill = run_drills(one, [plan], enough=lambda _: False)[0]
    assert drill.verdict is Verdict.HELD, drill.why
    assert "switchover of n1 not done: no standby can take over" in drill.strikes[0]
    assert drill.victims == ("n1",)


def test_a_fault_that_cannot_be_undone_is_not_called_cleared_and_its_member_stays_harmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the cluster is recovered at the end; nothing waits for it for ever."""
    able = Simulated.capabilities

    class Stays:
        def __init__(self, target: Simulated) -> None:
            self.inject = able(target).faults[Capability.ISOLATE].inject

        def undo(self, member: str) -> None:
            raise TargetError(f"{member} does not answer")

    def capabilities(self: Simulated) -> Capabilities:
        return replace(able(self), faults={**able(self).faults, Capability.ISOLATE: Stays(self)})

    monkeypatch.setattr(Simulated, "capabilities", capabilities)
    events: list[Event] = []
    isolate = replace(KILL, fault="isolate", victim=Victim.STANDBY, lasts_s=1.0)
    slow = replace(KILL, fault="slow-disk", after_s=15.0)
    storm = (isolate, replace(isolate, pick=0.5, after_s=2.0), slow, KILL)
    plan = replace(plan_of(1), storm=storm)
    (drill,) = run_drills(shell("sim?sync=strict&slowness=15", events), [plan], enough=lambda _: False)
    changes = [(e.fault, e.cleared) for e in events if isinstance(e, FaultChanged) and e.fault != "storm"]
    assert changes.count(("isolate", False)) == 2
    assert ("isolate", True) not in changes
    assert ("slow-disk", True) in changes
    assert "would have left none unharmed" in drill.strikes[3] and ("kill", False) not in changes
    notes = [e.text for e in events if isinstance(e, Note)]
    assert len([text for text in notes if "could not be cleared yet" in text]) == 4, "each twice"


def failing(monkeypatch: pytest.MonkeyPatch, capability: Capability, error: Exception) -> None:
    """That fault of the simulated cluster takes effect and then fails."""
    able = Simulated.capabilities

    class Fails:
        def __init__(self, target: Simulated) -> None:
            self.one = able(target).faults[capability]
            self.undo = self.one.undo

        def inject(self, member: str) -> None:
            self.one.inject(member)
            raise error

    def capabilities(self: Simulated) -> Capabilities:
        return replace(able(self), faults={**able(self).faults, capability: Fails(self)})

    monkeypatch.setattr(Simulated, "capabilities", capabilities)


@each([
    (MachineError("no answer"), True),
    (OSError("full"), True),
    (TargetError("refused"), False),
    (PartlyDone("cut off"), True),
])  # fmt: skip
def test_a_fault_that_fails_half_way_is_undone_and_counts_as_perhaps_done(
    error: Exception, partly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, Capability.POWER_CUT, error)
    plan = replace(plan_of(1), storm=(replace(KILL, fault="power-cut"), replace(KILL, after_s=20.0)))
    kept = dict[str, Any]()
    one = replace(shell("sim?sync=strict&slowness=15"), keep=lambda name, data: kept.update({name: data}))
    (drill,) = run_drills(one, [plan], enough=lambda _: False)
    assert "power-cut of n1 not done" in drill.strikes[0]
    run = decode(kept[history_name(1)]).run
    assert run.struck[0].partly is partly
    power = loss_in_fact(STORM, Victim.CLUSTER, run) in (Loss.LEADER_AND_STANDBY_POWER, Loss.POWER_CUT)
    assert power is partly


def test_what_starts_a_member_anew_ends_its_other_faults_in_the_record_too() -> None:
    slow = replace(KILL, fault="slow-disk", victim=Victim.STANDBY, lasts_s=30.0)
    plan = replace(plan_of(1), storm=(slow, replace(KILL, fault="kill-member", victim=Victim.STANDBY, lasts_s=2.0)))
    (drill,) = run_drills(shell("sim?sync=strict&slowness=15"), [plan], enough=lambda _: False)
    lasted = [float(one.rpartition("after ")[2].removesuffix(" s")) for one in drill.strikes]
    assert drill.strikes[0].split(" of ")[1][:2] == drill.strikes[1].split(" of ")[1][:2], "one member, both faults"
    assert lasted[0] < 15.0
