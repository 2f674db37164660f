"""Advice as values: requirements, the evidence they are checked against, choices, refusals."""

from dataclasses import dataclass, field

from walproof.model.drill import Victim
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, QuorumKind, Setting
from walproof.model.units import and_undecided, counted


@dataclass(frozen=True, slots=True)
class Requirements:
    """What is required; None is no requirement. rpo_s 0: no acknowledged commit may be lost with the leader."""

    rpo_s: float | None = None
    rto_s: float | None = None
    max_commit_latency_ms: float | None = None
    """Of the 95th percentile."""
    min_tps: float | None = None
    read_your_writes: bool = False
    availability: float | None = None
    """Share of the year with writes, by the forecast."""
    loss_per_year: float | None = None
    """Probability of losing an acknowledged commit in a year, by the forecast."""
    level: Level | None = None
    """The one commit level that is asked for by name, drilled or not."""

    @property
    def of_loss(self) -> bool:
        """Whether any of it limits what may be lost."""
        return self.rpo_s is not None or self.loss_per_year is not None

    @property
    def of_a_year(self) -> bool:
        """Whether a forecast decides on any of it."""
        return self.availability is not None or self.loss_per_year is not None

    @property
    def text(self) -> str:
        """As typed on the command line."""
        words = [
            "" if self.rpo_s is None else f"--rpo {self.rpo_s:g}s",
            "" if self.rto_s is None else f"--rto {self.rto_s:g}s",
            "" if self.max_commit_latency_ms is None else f"--max-commit-latency {self.max_commit_latency_ms:g}ms",
            "" if self.min_tps is None else f"--min-tps {self.min_tps:g}",
            "--read-your-writes" if self.read_your_writes else "",
            "" if self.availability is None else f"--availability {100 * self.availability:.9g}",
            "" if self.loss_per_year is None else f"--loss-per-year {self.loss_per_year:g}",
            "" if self.level is None else f"--level {self.level}",
        ]
        return " ".join(w for w in words if w)


OBSERVED = "as observed"
"""The workload that `walproof observe` saw: whether the cluster could carry more of it is not known."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a configuration cannot change: round trip between members, processors, workload."""

    workload: str
    rtt_ms: float | None = None
    regions: str | None = None
    cores: float | None = None

    @property
    def text(self) -> str:
        """As in tables."""
        words = [
            self.workload,
            "" if self.rtt_ms is None else f"rtt {self.rtt_ms:g} ms",
            "" if self.regions is None else f"regions {self.regions}",
            "" if self.cores is None else f"{self.cores:g} cpu",
        ]
        return ", ".join(w for w in words if w)


@dataclass(frozen=True, slots=True)
class PricedArm:
    """One configuration as measured. tps and p95_ms are intervals in which the next run falls (95 %)."""

    environment: Environment
    level: Level
    quorum_kind: QuorumKind | None
    quorum: int
    """How many standbys answered each commit; 0 when none were named."""
    clients: int
    route: str
    pool: int | None
    parameters: tuple[tuple[str, str], ...]
    tps: Estimate
    p95_ms: Estimate
    blocks: int
    runs: int
    busy: float
    """Share of the machine's processors in use while it was measured."""
    records: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    """Of its prices, as walproof price shows them."""
    simulated: bool = False
    """Whether every price is of a simulated cluster."""


@dataclass(frozen=True, slots=True)
class DrillSummary:
    """Results of the drills of one kind: level, fault, victim, quorum, and what was gone in fact."""

    level: Level
    fault: str
    victim: str
    held: int
    broken: int
    loss_bound: float
    """Upper 95 % bound of the probability that such a fault loses something."""
    rto_s: tuple[float, ...] = ()
    rpo_s: tuple[float, ...] = ()
    record: str = ""
    loss: str = ""
    """What was gone in fact, "" where nothing was."""
    undecided: int = 0
    quorum_kind: QuorumKind | None = None
    quorum: int | None = None
    """How many standbys were waited for when they began; None where the records do not say."""
    at_risk: bool = True
    """Whether a leader was gone for good: commits that only it had were lost with it."""
    simulated: bool = False

    @property
    def decided(self) -> int:
        """How many held or lost something."""
        return self.held + self.broken

    @property
    def quorum_text(self) -> str:
        """As in tables: ANY 1."""
        return f"{self.quorum_kind} {self.quorum}" if self.quorum else "no standby named"

    @property
    def text(self) -> str:
        drills = counted(self.decided, "drill")
        fault = f"{self.fault} of {Victim(self.victim).named}" + (f" ({self.loss})" if self.loss else "")
        if not self.decided:
            return f"{fault}: {counted(self.undecided, 'drill')} left undecided, neither held nor lost"
        left = and_undecided(self.undecided)
        if self.broken:
            return f"{fault}: lost commits in {self.broken} of {drills}{left}"
        upper = f"P(loss), 95 % upper bound: {100 * self.loss_bound:.0f} %"
        return f"{fault}: held in {self.held} of {drills} ({upper}){left}"


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """The cluster that advice is for: manager (patroni, none), versions, members."""

    manager: str = "patroni"
    postgres: int = 18
    patroni: str = ""
    members: tuple[str, ...] = ()
    leader: str = ""
    target: str = ""
    barred: tuple[str, ...] = ()
    """Members that the manager names for no commit."""

    @property
    def standbys(self) -> int:
        """How many standbys there are when every member is up."""
        return max(0, len(self.members) - 1)

    @property
    def able(self) -> int:
        """How many of them may answer a commit."""
        return max(0, self.standbys - len(self.barred))


@dataclass(frozen=True, slots=True)
class YearlyRisk:
    """What a forecast says of one configuration. quorum 0: its commits wait for no standby."""

    level: Level
    quorum_kind: QuorumKind | None
    quorum: int
    strict: bool
    availability: Estimate
    """Share of the year with writes."""
    structural: Estimate
    """P(loss in a year) if takeovers that never lost anything when drilled never do."""
    p_loss: Estimate
    """P(loss in a year) with what the drills do not exclude."""
    caveats: tuple[str, ...] = ()

    @property
    def minutes(self) -> float:
        """Minutes a year without writes."""
        return (1 - self.availability.value) * 365.25 * 1440

    @property
    def text(self) -> str:
        return (
            f"{self.minutes:.3g} minutes without writes ({100 * self.availability.value:.6g} %), P(loss) "
            f"{self.structural.value:.2g} by structure, {self.p_loss.value:.2g} not excluded by drills"
        )


@dataclass(frozen=True, slots=True)
class DrilledRto:
    """What drills of one fault of the leader took with one set of Patroni's timeouts; RTOs in s, without a guard."""

    times: tuple[float, ...]
    """ttl, loop_wait and retry_timeout, s; ttl alone where the record says no more."""
    fault: str
    rto_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that records hold about configurations; `years`: what was forecast from it, where that is required."""

    priced: tuple[PricedArm, ...]
    drills: tuple[DrillSummary, ...]
    cluster: ClusterProfile
    caveats: tuple[str, ...] = ()
    years: tuple[YearlyRisk, ...] = ()
    of_records: tuple[tuple[str, str], ...] = ()
    """Caveats about whole records: (name of the record, sentence)."""
    rtos: tuple[DrilledRto, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of failure detection, in whole seconds: Patroni's and the network's."""

    ttl: int = 30
    loop_wait: int = 10
    retry_timeout: int = 10
    primary_start_timeout: int = 0
    network_s: int = 15
    """wal_sender_timeout, wal_receiver_timeout and tcp_user_timeout."""
    rto_required: bool = False
    """Whether an RTO is required: without one Patroni's timeouts stay unchanged."""

    @property
    def leader_failure_s(self) -> float:
        """Longest time without writes after a leader failure, s: ttl, one loop, and a promotion of about 2 s."""
        return self.ttl + self.loop_wait + 2.0


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The level of one class of transactions within a choice."""

    name: str
    requirements: Requirements
    level: Level
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration to run, with its predicted throughput and latency, and its trade-offs."""

    number: int
    level: Level
    quorum_kind: QuorumKind | None
    quorum: int
    strict: bool
    clients: int
    pool: int | None
    route: str
    timeouts: Timeouts
    parameters: tuple[tuple[str, str], ...]
    tps: Estimate
    p95_ms: Estimate
    rto_s: Estimate | None
    proven: tuple[str, ...]
    assumed: tuple[str, ...]
    trade_offs: tuple[str, ...]
    records: tuple[str, ...] = ()
    classes: tuple[ClassChoice, ...] = ()
    year: YearlyRisk | None = None
    undecided: str = ""
    """Why no drill decides whether it loses commits with the leader; "" where drills do."""
    settings: tuple[Setting, ...] = ()
    """All that `apply` sets for it on the cluster that the advice is for."""
    caveats: tuple[str, ...] = ()
    """Of the prices and the drills that it rests on."""
    failovers: tuple[str, ...] = ()
    """What Patroni's timeouts brought when drilled, what its own timeouts cost, and what was never drilled."""

    @property
    def text(self) -> str:
        quorum = f" {self.quorum_kind} {self.quorum}" if self.quorum and self.level.remote else ""
        return f"{self.level}{quorum}, {counted(self.clients, 'client')}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A requirement that cannot be met: which, the limit that forbids it, the nearest possible."""

    requirement: str
    limit: str
    nearest: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Ranked choices, or refusals. The same evidence and requirements give the same advice."""

    requirements: Requirements
    environment: Environment
    cluster: ClusterProfile
    choices: tuple[Choice, ...]
    refused: tuple[Refused, ...] = ()
    caveats: tuple[str, ...] = ()
    dominated: int = 0
    """How many choices were left out because another one is at least as good in every respect."""
    classes: tuple[tuple[str, Requirements], ...] = field(default_factory=tuple)
    prove: str = ""
    """The command whose drills would decide, where none does for the first choice."""
