"""What happens, as it happens: one frozen dataclass per kind, told apart by `kind`, `at` in seconds since the epoch.

The record is a list of these. Adding a kind: a class here and its name in `Event`; readers skip kinds they do not know.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from walproof.model.estimate import Estimate
from walproof.model.plan import Setting
from walproof.model.sample import SliceResult
from walproof.model.topology import ClusterView, Description
from walproof.model.verdict import Drill


@dataclass(frozen=True, slots=True)
class Begun:
    """The first event of a record: which verb (price, prove, study, watch), what was asked, how to repeat."""

    at: float
    verb: str
    question: dict[str, Any]
    command: str
    seed: int
    version: str
    kind: Literal["begun"] = "begun"


@dataclass(frozen=True, slots=True)
class Described:
    """The target as it was found."""

    at: float
    description: Description
    kind: Literal["described"] = "described"


@dataclass(frozen=True, slots=True)
class Looked:
    """One look at the cluster."""

    at: float
    view: ClusterView
    kind: Literal["looked"] = "looked"


@dataclass(frozen=True, slots=True)
class SettingEntered:
    """Outer factors are in force from now; `links` holds asked and measured round trips, ms, by "a-b"."""

    at: float
    setting: Setting
    measured: dict[str, float] = field(default_factory=dict)
    kind: Literal["setting-entered"] = "setting-entered"


@dataclass(frozen=True, slots=True)
class SliceDone:
    """A slice was measured."""

    at: float
    result: SliceResult
    kind: Literal["slice-done"] = "slice-done"


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
class DrillBegun:
    """A drill starts: writers are running."""

    at: float
    number: int
    fault: str
    level: str
    kind: Literal["drill-begun"] = "drill-begun"


@dataclass(frozen=True, slots=True)
class FaultChanged:
    """A fault was injected or healed on members."""

    at: float
    fault: str
    members: tuple[str, ...]
    healed: bool
    kind: Literal["fault-changed"] = "fault-changed"


@dataclass(frozen=True, slots=True)
class DrillDone:
    """A drill was judged."""

    at: float
    drill: Drill
    kind: Literal["drill-done"] = "drill-done"


@dataclass(frozen=True, slots=True)
class ClaimJudged:
    """A claim of a published study beside what was measured: reproduced, not reproduced or undecided."""

    at: float
    study: str
    claim: str
    paper: str
    measured: str
    verdict: str
    why: str
    kind: Literal["claim-judged"] = "claim-judged"


@dataclass(frozen=True, slots=True)
class FigureBeside:
    """A figure a published study prints, beside what was measured here; not a number where nothing was."""

    at: float
    study: str
    figure: str
    unit: str
    paper: float
    value: float
    low: float
    high: float
    kind: Literal["figure-beside"] = "figure-beside"

    @property
    def measured(self) -> Estimate:
        """Ours with its interval."""
        return Estimate(self.value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Noted:
    """Something worth a sentence in the report."""

    at: float
    text: str
    kind: Literal["noted"] = "noted"


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event: why it stopped ("precision", "budget", "done", "interrupted", or the trouble's sentence)."""

    at: float
    stopped_by: str
    kind: Literal["ended"] = "ended"


Event = (
    Begun
    | Described
    | Looked
    | SettingEntered
    | SliceDone
    | SearchStep
    | DrillBegun
    | FaultChanged
    | DrillDone
    | ClaimJudged
    | FigureBeside
    | Noted
    | Ended
)
Emit = Callable[[Event], None]
