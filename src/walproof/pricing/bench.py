"""The one place where pricing touches a target: settings entered, samples run, every step emitted. Decides nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from walproof.errors import MachineError, TargetError
from walproof.model.event import Emit, Event, Note, Observed, SampleDone, ScenarioEntered, SearchStep
from walproof.model.plan import Arm, Sample, Scenario, Workload
from walproof.model.ports import Target
from walproof.model.sample import SampleResult
from walproof.pricing.design import sample_seed

PATIENCE = 3
"""Samples that may fail one after another before the run gives up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run stands, for a progress bar: seconds of its budget used, blocks complete, what is running."""

    elapsed_s: float
    budget_s: float
    blocks: int
    doing: str


Tell = Callable[[Progress], None]


def untold(_: Progress) -> None:
    """Tells nobody."""


class Bench:
    """A target under measurement: remembers the setting in effect and every event, those of a resumed run too."""

    def __init__(self, target: Target, emit: Emit, seed: int, earlier: Sequence[Event] = ()) -> None:
        pricing = target.capabilities().pricing
        if pricing is None:
            raise TargetError(f"{target.name} cannot be priced", "walproof lab up")
        self.target = target
        self.pricing = pricing
        self.seed = seed
        self.events: list[Event] = list(earlier)
        self._emit = emit
        self._setting: Scenario | None = None
        self._prepared: set[Workload] = set()
        self._failures = 0
        self._lowest = 0
        self._searched = {e.result.sample: e.result for e in earlier if isinstance(e, SampleDone)}
        self._steps = {_said(e) for e in earlier if isinstance(e, SearchStep)}

    def now(self) -> float:
        """The target's time, seconds since the epoch."""
        return self.target.clock.now()

    def say(self, event: Event) -> None:
        """Keep and emit an event."""
        self.events.append(event)
        self._emit(event)

    def note(self, text: str) -> None:
        """A sentence for the report."""
        self.say(Note(self.now(), text))

    def step(self, found: SearchStep) -> None:
        """A step of a search, unless the run that is resumed already said so."""
        if _said(found) not in self._steps:
            self.say(found)

    def look(self) -> None:
        """One look at the cluster, emitted when the leader or the standby names are not what they were."""
        view = self.target.observe()
        last = next((e.view for e in reversed(self.events) if isinstance(e, Observed)), None)
        if last is None or (last.leader, last.standby_names) != (view.leader, view.standby_names):
            self.say(Observed(self.now(), view))

    def prepare(self, arms: Sequence[Arm]) -> None:
        """Load what the arms' workloads need, once each; the largest scale last stays."""
        for workload in sorted({arm.workload for arm in arms}, key=lambda w: (w.scale, w.text)):
            if workload not in self._prepared:
                self.pricing.prepare(workload)
                self._prepared.add(workload)

    def enter(self, setting: Scenario) -> None:
        """Bring a setting into effect unless it already is."""
        if setting != self._setting:
            measured = self.pricing.enter(setting)
            self._setting = setting
            self.say(ScenarioEntered(self.now(), setting, measured))

    def leave(self) -> None:
        """Put back what settings changed; the target may have more to put back than settings."""
        self._setting = None
        self.pricing.leave()

    def measure(self, planned: Sample, seconds: float) -> SampleResult | None:
        """One sample; None when it failed, noted; MachineError after three failures in a row."""
        try:
            result = self.pricing.run_sample(planned, seconds, sample_seed(self.seed, planned))
        except MachineError as error:
            self._failures += 1
            if self._failures >= PATIENCE:
                raise
            self.note(f"a sample of {planned.arm.level} with {planned.arm.clients} clients failed: {error.message}")
            self.look()
            return None
        self._failures = 0
        self.say(SampleDone(self.now(), result))
        return result

    def next_search_block(self) -> int:
        """The next block number of a search: below zero, so that the grid's table does not count it."""
        self._lowest -= 1
        return self._lowest

    def searched(self, planned: Sequence[Sample]) -> list[SampleResult]:
        """The results of a search's block that the run that is resumed measured whole; else none."""
        found = [self._searched[one] for one in planned if one in self._searched]
        return found if len(found) == len(planned) else []


def _said(step: SearchStep) -> str:
    """What makes two steps the same: everything but the time."""
    return f"{step.search} {step.tried} {step.value} {step.low} {step.high} {step.conclusion}"
