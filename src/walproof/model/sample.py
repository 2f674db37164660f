"""What one sample measured: throughput, a histogram of latencies, and what was seen meanwhile."""

from dataclasses import dataclass, field

from walproof.model.plan import Sample


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where the leader's last finished checkpoint began (a WAL position), and the seconds between timed ones."""

    redo: str
    apart_s: float


@dataclass(frozen=True, slots=True)
class MemberWindow:
    """What one member did during a sample. Rates are over the sample; latencies are means in ms; None is not known.

    disk_reads and disk_writes are bytes that reached the storage layer (/proc/PID/io); wal_flushes counts fsyncs,
    wal_full_pages the page images that WAL holds because of a checkpoint (full_page_writes).
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


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen during a sample.

    waits: share of polls of client backends per wait event ("IPC:SyncRep": 0.6; "cpu" when none); members by name;
    stolen: share of processor time stolen or used by others; client_cores: what pgbench itself used;
    checkpoints: finished during the sample; checkpointing, vacuuming: share of polls in which a checkpoint or an
    autovacuum worker ran; standby_names as in effect at its end; streaming: standbys connected; link_verified: None
    when no link is shaped; leader: the member that took the load; settled_s: how long beforehand the flush and every
    standby's replay of what earlier samples left took to catch up, infinite when they did not in the time allowed;
    outside: the load came from outside the network of the target's own clients.
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

    histogram: latency bucket → count, buckets of `model.histogram` (log-spaced, 1 % wide), per level of a mix
    under "per_level". Latencies in ms; tps in transactions per second, all time counted; stalled_s: seconds in which
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
    tps: float
    mean_ms: float
    histogram: dict[int, int] = field(default_factory=dict)
    per_level: dict[str, dict[int, int]] = field(default_factory=dict)
    window: Window = Window()
    stalled_s: float = 0.0
    lag_ms: float | None = None
    backlog: float | None = None
    series: Series = NO_SERIES
    retries: int = 0


class SampleCut(KeyboardInterrupt):
    """Ctrl-C while a sample kept its series: what it had measured until then."""

    def __init__(self, result: SampleResult) -> None:
        super().__init__()
        self.result = result
