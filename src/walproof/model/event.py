"""What happens, as it happens: one frozen dataclass per kind, distinguished by `kind`, `at` in seconds since the epoch.

The record is a list of these. Adding a kind: a class here and its name in `Event`; readers skip kinds they do not know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from walproof.model.drill import Drill
from walproof.model.estimate import Estimate
from walproof.model.load import LoadFigures
from walproof.model.observed_waits import WaitsSeen
from walproof.model.salvage import SalvageJudged
from walproof.model.sample import Sample, SampleResult, Scenario
from walproof.model.topology import ClusterView, Description
from walproof.model.units import counted


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a record: which verb (price, prove, study, watch, observe), what was asked, how to repeat."""

    at: float
    verb: str
    question: dict[str, Any]
    command: str
    seed: int
    version: str
    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class Described:
    """The target as it was found."""

    at: float
    description: Description
    kind: Literal["described"] = "described"


@dataclass(frozen=True, slots=True)
class Observed:
    """One observation of the cluster."""

    at: float
    view: ClusterView
    kind: Literal["observed"] = "observed"


@dataclass(frozen=True, slots=True)
class ScenarioEntered:
    """Outer factors are in effect from now; measured: median round trip, ms, by "a-b"; round_trips_ms: every one."""

    at: float
    scenario: Scenario
    measured: dict[str, float] = field(default_factory=dict)
    round_trips_ms: dict[str, tuple[float, ...]] = field(default_factory=dict)
    kind: Literal["scenario-entered"] = "scenario-entered"


@dataclass(frozen=True, slots=True)
class ScenarioLeftOut:
    """Outer factors that could not be brought into effect: nothing is measured under them."""

    at: float
    scenario: Scenario
    reason: str
    kind: Literal["scenario-left-out"] = "scenario-left-out"

    @property
    def text(self) -> str:
        return f"{self.scenario.text} is left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class SampleDone:
    """A sample was measured."""

    at: float
    result: SampleResult
    kind: Literal["sample-done"] = "sample-done"


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """A sample that gave no figures: what was to be measured, and why it failed."""

    at: float
    sample: Sample
    why: str
    kind: Literal["sample-failed"] = "sample-failed"


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A step of a search (break-even, tuning): what was tried, its value with interval, and what was concluded."""

    at: float
    search: str
    tried: dict[str, Any]
    value: float
    low: float
    high: float
    conclusion: str
    kind: Literal["search-step"] = "search-step"


@dataclass(frozen=True, slots=True)
class DrillStarted:
    """A drill starts: writers are running."""

    at: float
    number: int
    fault: str
    level: str
    kind: Literal["drill-started"] = "drill-started"


@dataclass(frozen=True, slots=True)
class FaultChanged:
    """A fault was injected into members, or cleared."""

    at: float
    fault: str
    members: tuple[str, ...]
    cleared: bool
    kind: Literal["fault-changed"] = "fault-changed"


@dataclass(frozen=True, slots=True)
class DrillDone:
    """A drill was judged."""

    at: float
    drill: Drill
    kind: Literal["drill-done"] = "drill-done"


@dataclass(frozen=True, slots=True)
class LoadSeen:
    """What the clients of a workload saw of a drill that it ran beside; no part of the verdict."""

    at: float
    number: int
    workload: str
    clients: int
    figures: LoadFigures
    kind: Literal["load-seen"] = "load-seen"

    @property
    def text(self) -> str:
        seen = self.figures
        failed = f", {seen.failed} failed" if seen.failed else ""
        return (
            f"drill {self.number}, {self.workload} with {counted(self.clients, 'client')}: {seen.before_tps:.0f}/s"
            f" before the fault, none for {seen.outage_s:.1f} s after it, then {seen.after_tps:.0f}/s{failed};"
            f" clients lost {counted(seen.reconnects, 'time')}"
        )


@dataclass(frozen=True, slots=True)
class ClaimJudged:
    """A claim of a published study compared with what was measured: reproduced, not reproduced or undecided."""

    at: float
    study: str
    claim: str
    paper: str
    measured: str
    verdict: str
    why: str
    caveats: tuple[str, ...] = ()
    """Conditions of the study that were not met here."""
    kind: Literal["claim-judged"] = "claim-judged"


@dataclass(frozen=True, slots=True)
class FigureCompared:
    """A figure a published study prints, compared with what was measured here; not a number where nothing was."""

    at: float
    study: str
    figure: str
    unit: str
    paper: float
    value: float
    low: float
    high: float
    caveats: tuple[str, ...] = ()
    """Conditions of the study that were not met here."""
    kind: Literal["figure-compared"] = "figure-compared"

    @property
    def measured(self) -> Estimate:
        """Ours with its interval."""
        return Estimate(self.value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a sentence in the report."""

    at: float
    text: str
    kind: Literal["note"] = "note"


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event: why it stopped ("precision", "budget", "done", "interrupted", or the error's sentence)."""

    at: float
    stopped_by: str
    kind: Literal["ended"] = "ended"


Told = Note | ScenarioLeftOut | LoadSeen | SalvageJudged
"""Events that are sentences for people."""
Event = (
    Started
    | Described
    | Observed
    | ScenarioEntered
    | SampleDone
    | SampleFailed
    | SearchStep
    | DrillStarted
    | FaultChanged
    | DrillDone
    | ClaimJudged
    | FigureCompared
    | WaitsSeen
    | Told
    | Ended
)


def is_simulated(events: Sequence[Event]) -> bool:
    return any(isinstance(e, Described) and e.description.simulated for e in events)


def record_caveats(name: str, events: Sequence[Event]) -> list[str]:
    """What everything that is concluded from a record must say: simulated, interrupted, samples without figures.

    >>> record_caveats("r", [Ended(0.0, "interrupted")])
    ['r was interrupted: it holds less than was asked']
    """
    caveats = []
    if is_simulated(events):
        caveats.append(f"{name} is of a simulated cluster: a model, not a measurement")
    ended = next((e.stopped_by for e in reversed(events) if isinstance(e, Ended)), None)
    if ended == "interrupted":
        caveats.append(f"{name} was interrupted: it holds less than was asked")
    elif ended is None and events:
        caveats.append(f"{name} has no end: it is still being written, or was cut short")
    if failed := sum(isinstance(e, SampleFailed) for e in events):
        caveats.append(f"{name}: {counted(failed, 'sample')} gave no figures")
    return caveats


Emit = Callable[[Event], None]
