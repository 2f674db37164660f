"""The sampling design of a price run, and the one place where pricing acts on a target, every step emitted.

Randomised complete blocks, seeded, time going to arms still wide. A block visits each arm once. Clients (and route,
workload) form groups; groups are shuffled, then arms within a group, so that an arm stays close in time to the baseline
it is divided by. Which arms later blocks leave out depends on the widths of intervals only, never on what the intervals
say. The bench enters scenarios and runs samples."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from walproof.errors import MachineError, NotObtained, TargetError
from walproof.machine.signals import shielded
from walproof.model.drill import Capability
from walproof.model.estimate import Estimate
from walproof.model.event import (
    Emit,
    Event,
    Note,
    Observed,
    SampleDone,
    SampleFailed,
    ScenarioEntered,
    ScenarioLeftOut,
    SearchStep,
)
from walproof.model.guarantee import Level
from walproof.model.ports import Pricing, Target
from walproof.model.sample import Arm, Sample, SampleCut, SampleResult, Scenario, Workload
from walproof.model.units import counted
from walproof.model.waiting import Wait, wait_for

WARM_BLOCK = 0
"""Number of the block whose samples warm caches and are never counted."""
AGAIN = "a/a"
"""Label of the baseline run against itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a price run asks: scenarios (outer) × arms (inner), the baseline, and when to stop.

    precision: half-width of a ratio's interval as a share of the ratio; budget_s: seconds of measuring;
    load: fractions of measured capacity to offer as open loop afterwards; cycles: whole checkpoint cycles to measure
    in place of a budget, 0 for none.
    """

    scenarios: tuple[Scenario, ...]
    arms: tuple[Arm, ...]
    baseline: Level = Level.LOCAL
    sample_s: float = 1.5
    precision: float = 0.03
    budget_s: float = 120.0
    seed: int = 1
    load: tuple[float, ...] = ()
    cycles: int = 0


def group(arm: Arm) -> Arm:
    """The arm without its level: arms of one group are divided by one baseline."""
    label = "" if arm.label == AGAIN else arm.label
    return replace(arm, level=Level.LOCAL, mix=(), label=label, rate=None)


def is_baseline(arm: Arm, baseline: Level) -> bool:
    """Whether the arm is the one its group is divided by."""
    return arm.level is baseline and not arm.mix and arm.label != AGAIN


def block(number: int, scenario: Scenario, arms: Sequence[Arm], seed: int) -> tuple[Sample, ...]:
    """One block: every arm once, in the random order of this seed and number; equal arguments give equal blocks."""
    rng = np.random.default_rng([seed, number])
    groups: dict[Arm, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(group(arm), []).append(arm)
    shuffled = list(groups.values())
    order = [shuffled[i][j] for i in rng.permutation(len(shuffled)) for j in rng.permutation(len(shuffled[i]))]
    return tuple(Sample(number, position, arm, scenario) for position, arm in enumerate(order))


def still_needed(arms: Sequence[Arm], narrow: Collection[Arm], baseline: Level) -> tuple[Arm, ...]:
    """Arms of the next block: those not narrow yet, and the baseline of every group that still has one.

    A group that holds nothing but its baseline is needed until the baseline itself is narrow.
    """
    wide = {arm for arm in arms if arm not in narrow}
    kept = []
    for arm in arms:
        others = [a for a in arms if group(a) == group(arm) and not is_baseline(a, baseline)]
        alone = not others or not is_baseline(arm, baseline)
        if (alone and arm in wide) or (not alone and any(a in wide for a in others)):
            kept.append(arm)
    return tuple(kept)


def visit_order(scenarios: Sequence[Scenario], round_number: int, seed: int) -> tuple[Scenario, ...]:
    """The scenarios in this round's random order: every round visits each once, so slow drift falls on all."""
    rng = np.random.default_rng([seed, 7919, round_number])
    return tuple(scenarios[i] for i in rng.permutation(len(scenarios)))


def sample_seconds(budget_s: float, arms: int, scenarios: int, blocks: int = 10) -> float:
    """A sample length with which about ten blocks fit the budget, between 0.5 and 1.5 s; 0.35 s goes to starting each.

    >>> sample_seconds(120, 10, 1), sample_seconds(600, 4, 1)
    (0.85, 1.5)
    """
    return round(min(1.5, max(0.5, budget_s / (blocks * max(1, arms) * max(1, scenarios)) - 0.35)), 2)


def sample_seed(seed: int, planned: Sample) -> int:
    """The seed of one sample's random numbers."""
    key = [seed, abs(planned.block), planned.position, int(planned.block < 0)]
    return int(np.random.default_rng(key).integers(1, 2**31))


FAILURES = 3
"""Samples that may fail one after another before the run ends with an error."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is, for a progress bar: seconds of its budget used, blocks complete, what is running."""

    elapsed_s: float
    budget_s: float
    blocks: int
    doing: str


OnProgress = Callable[[RunProgress], None]


def ignore_progress(_: RunProgress) -> None:
    """A callback that does nothing."""


def pricing_of(target: Target) -> Pricing:
    """What prices the target; TargetError, with the reason, where nothing can."""
    able = target.capabilities()
    if able.pricing is None:
        hint = "" if target.external else "walproof lab up"
        raise TargetError(f"{target.name} cannot be priced: {able.why_not(Capability.PRICE)}", hint)
    return able.pricing


class Bench:
    """A target under measurement: remembers the scenario in effect and every event, those of a resumed run too."""

    def __init__(self, target: Target, emit: Emit, seed: int, earlier: Sequence[Event] = ()) -> None:
        self.target = target
        self.pricing, self._rolls = pricing_of(target), target.capabilities().rolls
        self.seed = seed
        self.events: list[Event] = list(earlier)
        self._emit = emit
        self._scenario: Scenario | None = None
        self.left_out: dict[Scenario, ScenarioLeftOut] = {}
        """Scenarios that the target could not bring into effect, and why."""
        self.restarts = ""
        """What restarts of the target's servers for scenarios took, once it is left."""
        self._prepared: set[Workload] = set()
        self._failures = 0
        self._lowest_block = 0
        self._earlier = {e.result.sample: e.result for e in earlier if isinstance(e, SampleDone)}
        self._steps = {_identity(e) for e in earlier if isinstance(e, SearchStep)}

    def now(self) -> float:
        """The target's time, seconds since the epoch."""
        return self.target.clock.now()

    def emit(self, event: Event) -> None:
        """Keep an event and pass it on."""
        self.events.append(event)
        self._emit(event)

    def note(self, text: str) -> None:
        """Emit a sentence for the report."""
        self.emit(Note(self.now(), text))

    def step(self, search: str, tried: dict[str, Any], estimate: Estimate, conclusion: str) -> None:
        """Emit a step of a search, unless the resumed run already did."""
        step = SearchStep(self.now(), search, tried, **asdict(estimate), conclusion=conclusion)
        if _identity(step) not in self._steps:
            self.emit(step)

    def observe(self) -> None:
        """Observe the cluster; emitted when the leader or the standby names have changed since the last time."""
        view = self.target.observe()
        last = next((e.view for e in reversed(self.events) if isinstance(e, Observed)), None)
        if last is None or (last.leader, last.standby_names) != (view.leader, view.standby_names):
            self.emit(Observed(self.now(), view))

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Load what the arms' workloads need, once each; the largest scale last stays."""
        for workload in sorted({arm.workload for arm in arms}, key=lambda w: (w.scale, w.text)):
            if workload not in self._prepared:
                self.pricing.prepare(workload)
                self._prepared.add(workload)

    def enter(self, scenario: Scenario) -> bool:
        """Bring a scenario into effect unless it already is; False, emitted, where it cannot be: it is left out."""
        if scenario == self._scenario:
            return True
        if scenario in self.left_out:
            return False
        try:
            trips = self.pricing.enter(scenario)
        except NotObtained as wrong:
            self._scenario = None
            self.left_out[scenario] = ScenarioLeftOut(self.now(), scenario, wrong.message)
            self.emit(self.left_out[scenario])
            return False
        self._scenario = scenario
        self.emit(ScenarioEntered(self.now(), scenario, {pair: median(ms) for pair, ms in trips.items()}, trips))
        return True

    def leave(self) -> None:
        """Revert what scenarios changed, to the end; the target may have more to revert than scenarios."""
        self._scenario = None
        with shielded():
            self.pricing.leave()
        self.restarts = self._rolls.taken() if self._rolls else ""
        if self.restarts:
            self.note(self.restarts)

    def measure(self, planned: Sample, seconds: float) -> SampleResult | None:
        """One sample; None when it failed, with a note; MachineError after three failures in a row.

        Of one that Ctrl-C cut short, what was measured is emitted before the interrupt goes on.
        """
        try:
            result = self.pricing.run_sample(planned, seconds, sample_seed(self.seed, planned))
        except SampleCut as cut:
            self.emit(SampleDone(self.now(), cut.result))
            raise
        except MachineError as error:
            self._failures += 1
            if self._failures >= FAILURES:
                raise
            arm = planned.arm
            self.emit(SampleFailed(self.now(), planned, error.message))
            self.note(f"a sample of {arm.level} with {counted(arm.clients, 'client')} failed: {error.message}")
            self._serves_again()
            self.observe()
            return None
        self._failures = 0
        self.emit(SampleDone(self.now(), result))
        return result

    def _serves_again(self) -> None:
        """Wait until the cluster is as it was when it was first observed; WaitTimeout when an outage outlasts that."""
        first = next((e.view for e in self.events if isinstance(e, Observed)), None)
        if first is None or first.leader is None:
            return

        def serves() -> bool:
            view = self.target.observe()
            return view.healthy if first.healthy else view.leader is not None

        wait_for(Wait.CLUSTER_HEALTHY, serves, self.target.clock, pace_s=0.5)

    def next_search_block(self) -> int:
        """The next block number of a search: below zero, so that the grid's table does not count it."""
        self._lowest_block -= 1
        return self._lowest_block

    def earlier_results(self, planned: Sequence[Sample]) -> list[SampleResult]:
        """The results of a search's block when the resumed run measured all of it; else none."""
        earlier = [self._earlier[one] for one in planned if one in self._earlier]
        return earlier if len(earlier) == len(planned) else []


def _identity(step: SearchStep) -> str:
    """What makes two steps the same: all but the time, and the wording of a number (another version's may differ)."""
    wording = step.conclusion if math.isnan(step.value) else ""
    return f"{step.search} {step.tried} {step.value} {step.low} {step.high} {wording}"
