"""What a study.toml may hold: the lab it needs, parts to price, drills, and the claims of the paper. Reads files."""

import itertools
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveFloat, field_validator

from walproof.errors import UsageError
from walproof.machine.toml_files import described, read_toml
from walproof.model.guarantee import AskedQuorum, Level, SyncReplication, read_quorum
from walproof.model.sample import Arm, Scenario, Workload, WorkloadKind
from walproof.patroni.config import SyncMode, mode_and_number
from walproof.proving.faults import fault

_RUNS = re.compile("command|librar|preload|provider|conninfo|_file|_path|director", re.IGNORECASE)
"""What is in the names of PostgreSQL's parameters that run a program, load code, read files or connect elsewhere."""
_MOST_VALUES, _MOST_ROWS, _MOST_REPEATS, _MOST_MINUTES = 32, 100_000, 100, 24 * 60
_Clients = Annotated[int, Field(ge=1, le=10_000)]
LIBRARY = resources.files("walproof.studies") / "library"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LabNeeded(_Strict):
    """The lab the study needs when no target is given."""

    members: int = Field(3, ge=1, le=7)
    sync: SyncMode | None = None
    quorum: Annotated[AskedQuorum | None, BeforeValidator(lambda text: read_quorum(str(text)))] = None
    wal_volume: bool = False
    cores: PositiveFloat | None = None
    """Processors per member, so that members which share a machine do not take each other's."""
    parameters: dict[str, str] = {}

    @property
    def replication(self) -> SyncReplication:
        """How commits wait there."""
        sync, number = mode_and_number(self.sync, self.quorum, self.members)
        return sync.replication(number)

    @field_validator("parameters")
    @classmethod
    def _run_nothing(cls, parameters: dict[str, str]) -> dict[str, str]:
        for name, value in parameters.items():
            if _RUNS.search(name) or not re.fullmatch(r"[A-Za-z0-9._+-]{1,32}", value):
                raise ValueError(f"a study sets numbers and words, not {name} = {value!r}")
        return parameters


class StudyPart(_Strict):
    """A grid of arms: levels × clients (inner) × round trips × processors (outer)."""

    name: str
    workload: WorkloadKind = WorkloadKind.TPCB_LIKE
    rows: int = Field(1, ge=1, le=_MOST_ROWS)
    scale: int = Field(20, ge=1, le=100_000)
    levels: tuple[Level, ...] = Field(min_length=1, max_length=_MOST_VALUES)
    clients: tuple[_Clients, ...] = Field(min_length=1, max_length=_MOST_VALUES)
    rtt_ms: tuple[NonNegativeFloat, ...] = Field((), max_length=_MOST_VALUES)
    cores: tuple[PositiveFloat, ...] = Field((), max_length=_MOST_VALUES)
    fsync: bool | None = None
    route: str = "direct"
    share: float = Field(1.0, gt=0, le=1000)
    """Weight of this part's time against the other parts'."""
    paper: str = ""

    def scenarios(self) -> tuple[Scenario, ...]:
        """The outer factors: round trips × processors."""
        return tuple(
            Scenario(rtt_ms=rtt, cores=cores, fsync=self.fsync)
            for rtt, cores in itertools.product(self.rtt_ms or (None,), self.cores or (None,))
        )

    def arms(self) -> tuple[Arm, ...]:
        """The inner factors: clients × levels."""
        return tuple(self.arm(level, clients) for clients, level in itertools.product(self.clients, self.levels))

    def arm(self, level: Level, clients: int) -> Arm:
        """What a sample of this part runs."""
        return Arm(level, clients, Workload(self.workload, self.scale, self.rows), self.route)


class DrillPart(_Strict):
    """Drills of one fault at one level under load."""

    name: str
    fault: str
    level: Level
    writers: int = Field(16, ge=1, le=10_000)
    route: str = "multi-host"
    repeat: int = Field(3, ge=1, le=_MOST_REPEATS)
    quick_repeat: int = Field(1, ge=1, le=_MOST_REPEATS)
    paper: str = ""


class ArmNamed(_Strict):
    """One arm of one part; None takes the part's only value."""

    part: str
    level: Level
    clients: int
    rtt_ms: float | None = None
    cores: float | None = None


class _Claimed(_Strict):
    name: str
    says: str
    paper: str
    scaled: str = ""
    """How the claim was scaled to this machine, where it was."""

    @property
    def accepted(self) -> str:
        """The bounds that count as reproduced, in words; "" where there are none."""
        return ""


def bounds_text(low: float | None, high: float | None, unit: str = "") -> str:
    """Bounds in words.

    >>> bounds_text(0.67, 0.94), bounds_text(None, 12, " ms")
    ('above 0.67 and below 0.94', 'below 12 ms')
    """
    limits = ("" if low is None else f"above {low:g}{unit}", "" if high is None else f"below {high:g}{unit}")
    return " and ".join(limit for limit in limits if limit)


class RatioClaim(_Claimed):
    """Throughput of one arm over another's lies between the bounds."""

    kind: Literal["ratio"]
    of: ArmNamed
    to: ArmNamed
    above: float | None = None
    below: float | None = None

    @property
    def accepted(self) -> str:
        """The ratios that count as reproduced."""
        return f"counts as reproduced {bounds_text(self.above, self.below)}"


class OrderClaim(_Claimed):
    """Arms, fastest first."""

    kind: Literal["order"]
    arms: tuple[ArmNamed, ...] = Field(min_length=2)


class TrendClaim(_Claimed):
    """The ratio of a level to another rises (or falls) from the first number of clients to the last.

    With `then` the last is another part's: from single rows to batches, say.
    """

    kind: Literal["trend"]
    part: str
    then: str | None = None
    level: Level
    baseline: Level = Level.LOCAL
    clients: tuple[int, int]
    rtt_ms: float | None = None
    direction: Literal["rises", "falls"] = "rises"


class LatencyClaim(_Claimed):
    """Mean latency one arm has more than another, in ms, lies between the bounds."""

    kind: Literal["latency"]
    of: ArmNamed
    to: ArmNamed
    above_ms: float | None = None
    below_ms: float | None = None

    @property
    def accepted(self) -> str:
        """The latencies that count as reproduced."""
        return f"counts as reproduced {bounds_text(self.above_ms, self.below_ms, ' ms')}"


class CompletesClaim(_Claimed):
    """The arm runs without a failed transaction (the paper: "failed at 50 clients")."""

    kind: Literal["completes"]
    of: ArmNamed
    paper_completes: bool


class RecoversClaim(_Claimed):
    """Drills recover within so many seconds, and lose nothing when `lossless`."""

    kind: Literal["recovers"]
    drill: str
    within_s: float
    lossless: bool | None = None


Claim = Annotated[
    RatioClaim | OrderClaim | TrendClaim | LatencyClaim | CompletesClaim | RecoversClaim, Field(discriminator="kind")
]


class Figure(_Strict):
    """A figure the paper prints: its throughput or mean latency of one arm, or the throughput of one over another's.

    `of` and `to` are the arms that stand for it here; without `of` nothing does, and `where` says so.
    """

    where: str
    """The paper's conditions, in its own scale."""
    paper: float
    unit: Literal["tps", "ms", "ratio"] = "tps"
    of: ArmNamed | None = None
    to: ArmNamed | None = None


class Study(_Strict):
    name: str
    title: str
    source: str
    machine: str
    """The paper's hardware, in a line."""
    minutes: float = Field(20.0, gt=0, le=_MOST_MINUTES)
    quick_minutes: float = Field(4.0, gt=0, le=5.0)
    lab: LabNeeded = LabNeeded()
    part: tuple[StudyPart, ...] = ()
    drill: tuple[DrillPart, ...] = ()
    claim: tuple[Claim, ...]
    figure: tuple[Figure, ...] = ()
    """The paper's own figures, in its order."""

    @property
    def baseline(self) -> Level:
        """The level others are divided by: local, or the first one where no part has it."""
        levels = [level for part in self.part for level in part.levels]
        return Level.LOCAL if Level.LOCAL in levels or not levels else levels[0]


def _check(study: Study) -> None:
    """UsageError for a fault, part or drill that is named and not declared."""
    parts, drills = {p.name for p in study.part}, {d.name for d in study.drill}
    for drill in study.drill:
        fault(drill.fault)
    for claim in study.claim:
        known = drills if isinstance(claim, RecoversClaim) else parts
        _declared(f"claim {claim.name!r}", _referenced(claim), known)
    for figure in study.figure:
        if figure.unit == "ratio" and (figure.of is None) != (figure.to is None):
            raise UsageError(f"the figure {figure.where!r} is a ratio of one arm", "give it `of` and `to`, or neither")
        _declared(f"figure {figure.where!r}", {arm.part for arm in (figure.of, figure.to) if arm}, parts)


def _referenced(claim: Claim) -> set[str]:
    """Names of the parts or drills that a claim refers to."""
    if isinstance(claim, RecoversClaim):
        return {claim.drill}
    if isinstance(claim, TrendClaim):
        return {claim.part, claim.then or claim.part}
    if isinstance(claim, OrderClaim):
        return {arm.part for arm in claim.arms}
    if isinstance(claim, CompletesClaim):
        return {claim.of.part}
    return {claim.of.part, claim.to.part}


def _declared(what: str, referenced: set[str], known: set[str]) -> None:
    for name in sorted(referenced - known):
        raise UsageError(
            f"the {what} refers to {name!r}, which the study does not declare",
            f"it declares {', '.join(sorted(known)) or 'none'}",
        )


def read_study(path: Path) -> Study:
    """The study declared in a file; UsageError names the first thing that is wrong with it."""
    hint = "walproof study show NAME prints a valid one"
    study = described(Study, read_toml(path, str(path), hint), path.name, hint)
    _check(study)
    return study


def studies() -> dict[str, Path]:
    """Folder of every shipped study by name."""
    return {
        folder.name.replace("_", "-"): Path(str(folder))
        for folder in sorted(LIBRARY.iterdir(), key=lambda f: f.name)
        if (folder / "study.toml").is_file()
    }


def shipped(name: str) -> tuple[Study, str]:
    """A shipped study and its story; UsageError names those there are."""
    folder = studies().get(name.replace("_", "-"))
    if folder is None:
        raise UsageError(f"there is no study {name!r}", f"the studies are {', '.join(studies())}")
    return read_study(folder / "study.toml"), (folder / "story.md").read_text()
