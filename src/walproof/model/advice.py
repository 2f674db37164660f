"""The words of advice: requirements, the evidence they are held against, choices, refusals."""

from dataclasses import dataclass, field

from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, QuorumKind


@dataclass(frozen=True, slots=True)
class Requirements:
    """What is wished; None is no wish. rpo_s 0 means: no acknowledged commit may be lost with the leader."""

    rpo_s: float | None = None
    rto_s: float | None = None
    max_commit_latency_ms: float | None = None
    """Of the 95th percentile."""
    min_tps: float | None = None
    read_your_writes: bool = False

    @property
    def text(self) -> str:
        """As typed on the command line."""
        words = [
            "" if self.rpo_s is None else f"--rpo {self.rpo_s:g}s",
            "" if self.rto_s is None else f"--rto {self.rto_s:g}s",
            "" if self.max_commit_latency_ms is None else f"--max-commit-latency {self.max_commit_latency_ms:g}ms",
            "" if self.min_tps is None else f"--min-tps {self.min_tps:g}",
            "--read-your-writes" if self.read_your_writes else "",
        ]
        return " ".join(w for w in words if w)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a configuration cannot change: round trip between members, processors, workload."""

    workload: str
    rtt_ms: float | None = None
    regions: str | None = None
    cores: float | None = None

    @property
    def text(self) -> str:
        """In words."""
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

    surroundings: Surroundings
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
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class Proven:
    """What drills of one fault say about one level."""

    level: Level
    fault: str
    victim: str
    held: int
    broken: int
    bound: float
    """Upper 95 % limit of the probability that such a fault loses something."""
    rto_s: tuple[float, ...] = ()
    rpo_s: tuple[float, ...] = ()
    record: str = ""

    @property
    def text(self) -> str:
        """One clause."""
        drills = self.held + self.broken
        if self.broken:
            return f"{self.fault} of the {self.victim}: lost commits in {self.broken} of {drills} drills"
        return f"{self.fault} of the {self.victim}: held in {drills} of {drills} drills, loss under {self.bound:.0%}"


@dataclass(frozen=True, slots=True)
class Place:
    """What the advice is for: manager (patroni, none), versions, members, ttl now."""

    manager: str = "patroni"
    postgres: int = 18
    patroni: str = ""
    members: tuple[str, ...] = ()
    leader: str = ""
    target: str = ""

    @property
    def standbys(self) -> int:
        """How many standbys there are when every member is up."""
        return max(0, len(self.members) - 1)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the records say."""

    priced: tuple[PricedArm, ...]
    proven: tuple[Proven, ...]
    place: Place
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How soon error is noticed; Patroni's in whole seconds. expected_rto_s is for a leader that vanishes."""

    ttl: int = 30
    loop_wait: int = 10
    retry_timeout: int = 10
    primary_start_timeout: int = 0
    network_s: int = 15
    """wal_sender_timeout, wal_receiver_timeout and tcp_user_timeout."""
    asked: bool = False
    """Whether an RTO was wished: without one Patroni's clockwork is left as it is."""

    @property
    def leader_failure_s(self) -> float:
        """Worst time until writes go on after a leader vanished: ttl, one loop, and a promotion of about 2 s."""
        return self.ttl + self.loop_wait + 2.0


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """The level of one class of transactions within a choice."""

    name: str
    wish: Requirements
    level: Level
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration to run, with what it promises and what it gives up."""

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

    @property
    def words(self) -> str:
        """level, quorum and clients in a few words."""
        quorum = f" {self.quorum_kind} {self.quorum}" if self.quorum and self.level.remote else ""
        return f"{self.level}{quorum}, {self.clients} clients"


@dataclass(frozen=True, slots=True)
class Refused:
    """A wish that cannot be met: which, the limit that forbids it, the nearest possible."""

    wish: str
    limit: str
    nearest: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Ranked choices, or refusals. The same evidence and requirements give the same advice."""

    wish: Requirements
    surroundings: Surroundings
    place: Place
    choices: tuple[Choice, ...]
    refused: tuple[Refused, ...] = ()
    caveats: tuple[str, ...] = ()
    dropped: int = 0
    """Choices that another one beats in every respect."""
    classes: tuple[tuple[str, Requirements], ...] = field(default_factory=tuple)
