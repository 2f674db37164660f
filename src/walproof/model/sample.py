"""What a price run asks: scenarios (outer factors that need a reload), arms (inner factors), samples in blocks.

And what one sample measured: throughput, a histogram of latencies, and what was seen meanwhile."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from walproof.model.guarantee import Level, QuorumKind

PGBENCH = "pgbench"
SYSBENCH = "sysbench"


class WorkloadKind(StrEnum):
    """What one transaction does."""

    TPCB_LIKE = "tpcb-like"
    SIMPLE_UPDATE = "simple-update"
    SELECT_ONLY = "select-only"
    INSERT = "insert"
    BATCH = "batch"
    SCRIPT = "script"


class Protocol(StrEnum):
    """How statements are sent to the server (pgbench -M)."""

    SIMPLE = "simple"
    EXTENDED = "extended"
    PREPARED = "prepared"


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload: `rows` per commit for batch, `script` a path for script, `scale` pgbench's.

    scripts: several of them by weight, each a path or the name of a workload. protocol: None is prepared, and simple
    through a pool. per_transaction: the level is set inside each transaction (SET LOCAL), not in the session.
    max_tries: how often a transaction that failed for serialization or deadlock is tried (pgbench --max-tries).
    skew: how keys are drawn, such as "zipfian:1.1"; "" is evenly. init: path of a file that psql runs beforehand to
    make the tables. existing: the target's own database and the tables it has are used. driver: the program that makes
    the load, pgbench, sysbench (then `script` names its test) or a command with its arguments. variables: pgbench's for
    the user's own scripts, names and values (pgbench -D).
    """

    kind: WorkloadKind = WorkloadKind.TPCB_LIKE
    scale: int = 20
    rows: int = 1
    script: str | None = None
    scripts: tuple[tuple[str, int], ...] = ()
    protocol: Protocol | None = None
    per_transaction: bool = False
    max_tries: int = 1
    skew: str = ""
    init: str | None = None
    existing: bool = False
    driver: str = PGBENCH
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The word shown in tables."""
        if self.driver != PGBENCH:
            return f"sysbench {self.script}" if self.driver == SYSBENCH else self.driver
        if self.scripts:
            return ", ".join(f"{name.rpartition('/')[2]}@{weight}" for name, weight in self.scripts)
        return f"batch of {self.rows}" if self.kind is WorkloadKind.BATCH else str(self.kind)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that it reads: pgbench scripts, and the file that makes the tables."""
        scripts = () if self.driver != PGBENCH else tuple(name for name, _ in self.scripts) or (self.script,)
        return tuple(name for name in (*scripts, self.init) if name is not None and name not in set(WorkloadKind))

    @property
    def manner(self) -> str:
        """How it is sent and drawn, where that is not the default; "" when it is."""
        words = [
            f"{self.protocol} protocol" if self.protocol else "",
            "level set in each transaction" if self.per_transaction else "",
            f"up to {self.max_tries} tries" if self.max_tries > 1 else "",
        ]
        return ", ".join(word for word in (*words, self.data) if word)

    @property
    def data(self) -> str:
        """What its transactions are given to work on, where that is not the default; "" when it is."""
        skew = [f"keys {self.skew}"] if self.skew else []
        return ", ".join([*skew, *(f"{name}={value}" for name, value in self.variables)])


@dataclass(frozen=True, slots=True)
class Scenario:
    """Outer factors; None leaves the target as it is. rtt_ms is between members; cores per member.

    memory_mib: of each member. strict: commits wait where fewer standbys than the quorum are there; False: it degrades.
    """

    quorum_kind: QuorumKind | None = None
    quorum: int | None = None
    rtt_ms: float | None = None
    regions: str | None = None
    cores: float | None = None
    fsync: bool | None = None
    wal_volume: bool | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    strict: bool | None = None
    memory_mib: int | None = None

    @property
    def text(self) -> str:
        """Short words for tables; 'default settings' when nothing is set."""
        words = [
            "" if self.quorum is None else f"{self.quorum_kind or QuorumKind.ANY} {self.quorum}{self._mode}",
            "" if self.rtt_ms is None else f"rtt {self.rtt_ms:g} ms",
            "" if self.regions is None else f"regions {self.regions}",
            "" if self.cores is None else f"{self.cores:g} cpu",
            "" if self.memory_mib is None else f"{self.memory_mib / 1024:g} GiB",
            "" if self.fsync is None else f"fsync {'on' if self.fsync else 'off'}",
            "" if self.wal_volume is None else ("wal apart" if self.wal_volume else "wal with data"),
            *(f"{name}={value}" for name, value in self.parameters),
        ]
        return ", ".join(w for w in words if w) or "default settings"

    @property
    def size(self) -> "Scenario":
        """What of it is the members' size: processors and memory."""
        return Scenario(cores=self.cores, memory_mib=self.memory_mib)

    @property
    def settings(self) -> "Scenario":
        return replace(self, cores=None, memory_mib=None)

    @property
    def _mode(self) -> str:
        return "" if self.strict is None else " strict" if self.strict else " degrading"


@dataclass(frozen=True, slots=True)
class Arm:
    """Inner factors: what one sample runs. `mix` is weights per level, in place of `level` alone."""

    level: Level
    clients: int
    workload: Workload = Workload()
    route: str = "direct"
    pool: int | None = None
    rate: float | None = None
    """Offered load in transactions per second (open loop); None is a closed loop."""
    mix: tuple[tuple[Level, float], ...] = ()
    label: str = ""
    """Tells arms apart that are otherwise equal, as in an A/A run."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """Every level that its transactions run at."""
        return tuple(level for level, _ in self.mix) or (self.level,)


@dataclass(frozen=True, slots=True)
class Sample:
    """One planned measurement: which block, where in it, what, under which scenario; whether every second is kept."""

    block: int
    position: int
    arm: Arm
    scenario: Scenario
    series: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where the leader's last finished checkpoint began (a WAL position), and the seconds between timed ones."""

    redo: str
    apart_s: float


@dataclass(frozen=True, slots=True)
class MemberWindow:
    """What one member did during a sample. Rates are over the sample; latencies are means in ms; None is not known.

    disk_reads and disk_writes are bytes that reached the storage layer (/proc/PID/io); wal_flushes counts fsyncs,
    wal_full_pages the page images that WAL holds because of a checkpoint (full_page_writes), None where statistics
    report too little of a short sample; transaction_ids those assigned; rolled_back: share of transactions.
    """

    cpu_cores: float | None = None
    disk_reads: int | None = None
    disk_writes: int | None = None
    wal_flushes: int | None = None
    wal_flush_ms: float | None = None
    wal_bytes: int | None = None
    write_lag_ms: float | None = None
    flush_lag_ms: float | None = None
    replay_lag_ms: float | None = None
    wal_full_pages: int | None = None
    transaction_ids: int | None = None
    rolled_back: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen during a sample.

    waits: share of polls of client backends per wait event ("IPC:SyncRep": 0.6; "cpu" when none); members by name;
    stolen: share of processor time stolen or used by others; client_cores: what pgbench itself used;
    checkpoints: finished during the sample; checkpointing, vacuuming: share of polls in which a checkpoint or an
    autovacuum worker ran; standby_names as in effect at its end; streaming: standbys connected; link_verified: None
    when no link is shaped; leader: the member that took the load; settled_s: how long beforehand the flush and every
    standby's replay of what earlier samples left took to catch up, infinite when they did not in the time allowed;
    outside: the load came from outside the network of the target's own clients; looks: how many sessions of the load
    were looked at in all, writing: of them those with a transaction id; wal_writer: polls in which it flushed;
    others_ids: transaction ids a second that others took just before.
    """

    waits: dict[str, float] = field(default_factory=dict)
    members: dict[str, MemberWindow] = field(default_factory=dict)
    stolen: float = 0.0
    client_cores: float = 0.0
    machine_busy: float = 0.0
    checkpoints: int = 0
    standby_names: str = ""
    streaming: int = 0
    link_verified: bool | None = None
    rtt_ms: float | None = None
    checkpointing: float = 0.0
    vacuuming: float = 0.0
    leader: str = ""
    settled_s: float | None = None
    outside: bool = False
    looks: int = 0
    writing: int = 0
    wal_writer: int = 0
    others_ids: float | None = None

    @property
    def of_leader(self) -> MemberWindow:
        """What the leader did; nothing known where that was not seen."""
        return self.members.get(self.leader, MemberWindow())


@dataclass(frozen=True, slots=True)
class Series:
    """A sample second by second from started_at (epoch s) on: tuples of equal length, one value a whole second.

    transactions: that ended in it; latencies of those in ms, None when none did; stalled_s: its share of stalls;
    wal_bytes: written by the leader, None when not known; checkpoint: whether one was running.
    """

    started_at: float = 0.0
    transactions: tuple[int, ...] = ()
    p50_ms: tuple[float | None, ...] = ()
    p99_ms: tuple[float | None, ...] = ()
    max_ms: tuple[float | None, ...] = ()
    stalled_s: tuple[float, ...] = ()
    wal_bytes: tuple[int | None, ...] = ()
    checkpoint: tuple[bool, ...] = ()


NO_SERIES = Series()


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One sample as measured.

    histogram: latency bucket → count, buckets of `model.estimate` (log-spaced, 1 % wide), per level of a mix
    under "per_level". Latencies in ms. transactions: that ended; credit: those counted by the share of each that lies
    within the sample, so that neither its start nor its end biases throughput. stalled_s: seconds in which
    no client's transaction ended for 0.1 s or longer. Of an open loop, whose latencies count from the intended start:
    lag_ms, how late transactions started on average, and backlog, by how many seconds a second that lateness rose
    (the share of the offered load that was not carried); None of a closed loop. retries: transactions tried again
    (pgbench --max-tries).
    """

    sample: Sample
    started_at: float
    seconds: float
    transactions: int
    failed: int
    credit: float
    mean_ms: float
    histogram: dict[int, int] = field(default_factory=dict)
    per_level: dict[str, dict[int, int]] = field(default_factory=dict)
    window: Window = Window()
    stalled_s: float = 0.0
    lag_ms: float | None = None
    backlog: float | None = None
    series: Series = NO_SERIES
    retries: int = 0

    def __post_init__(self) -> None:
        """ValueError where a histogram, of a stranger's record, cannot have been counted: nothing is made of it."""
        for histogram in (self.histogram, *self.per_level.values()):
            if any(not (0 <= bucket < 10_000 and 0 < count < 2**53) for bucket, count in histogram.items()):
                raise ValueError("a histogram counts what cannot be")

    @property
    def tps(self) -> float:
        """Transactions per second, all time counted."""
        return self.credit / self.seconds if self.seconds else 0.0


class SampleCut(KeyboardInterrupt):
    """Ctrl-C while a sample kept its series: what it had measured until then."""

    def __init__(self, result: SampleResult) -> None:
        super().__init__()
        self.result = result
