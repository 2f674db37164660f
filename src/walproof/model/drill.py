"""What a drill found, and whether the guarantee held; what a target may be able to do; what came of a pitfall."""

from dataclasses import dataclass, field
from enum import StrEnum

from walproof.model.guarantee import Level, Loss


class Capability(StrEnum):
    """What a target may be able to do beyond being observed; faults by the names they have everywhere."""

    PRICE = "price"
    LEDGER = "ledger"
    WORKLOAD = "workload"
    KILL = "kill"
    CRASH_RESTART = "crash-restart"
    STOP = "stop"
    KILL_MEMBER = "kill-member"
    KILL_CONTAINER = "kill-container"
    FREEZE = "freeze"
    HANG_POSTMASTER = "hang-postmaster"
    HANG_MANAGER = "hang-manager"
    HANG_REST = "hang-rest"
    POWER_CUT = "power-cut"
    PARTITION = "partition"
    ISOLATE = "isolate"
    PARTITION_ONE_WAY = "partition-one-way"
    PARTITION_WAL = "partition-wal"
    PARTITION_ACKS = "partition-acks"
    PAUSE_REPLAY = "pause-replay"
    SLOW_DISK = "slow-disk"
    FAILING_DISK = "failing-disk"
    FULL_DISK = "full-disk"
    CPU_STRESS = "cpu-stress"
    LINK_DELAY = "link-delay"
    DCS_LOSS = "dcs-loss"
    RESTART = "restart"
    SWITCHOVER = "switchover"
    SHAPE_LINKS = "shape-links"
    LIMIT_PROCESSORS = "limit-processors"
    LIMIT_MEMORY = "limit-memory"
    CONFIGURE = "configure"
    INSPECT = "inspect"
    OBSERVE = "observe"
    RETURN_ORDER = "return-order"


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the pitfall showed itself, and what was seen; None where it could not be tried, and why."""

    reproduced: bool | None
    evidence: str


class Verdict(StrEnum):
    """Held, broken, or undecided; expected loss of what was never promised; skipped where the fault is impossible."""

    HELD = "held"
    BROKEN = "broken"
    EXPECTED_LOSS = "expected loss"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"

    @property
    def mark(self) -> str:
        """✔ ✘ ? –"""
        return {"held": "✔", "broken": "✘", "expected loss": "✘", "undecided": "?", "skipped": "–"}[self.value]

    @property
    def decided(self) -> bool:
        """Whether the drill counts in a bound."""
        return self in (Verdict.HELD, Verdict.BROKEN, Verdict.EXPECTED_LOSS)


class Victim(StrEnum):
    """Which members a fault falls on."""

    LEADER = "leader"
    SYNC_STANDBY = "synchronous standby"
    STANDBY = "any standby"
    ALL_STANDBYS = "all standbys"
    CLUSTER = "cluster"

    @property
    def takes_the_leader(self) -> bool:
        return self in (Victim.LEADER, Victim.CLUSTER)

    @property
    def named(self) -> str:
        """In a sentence.

        >>> Victim.LEADER.named, Victim.STANDBY.named, Victim.ALL_STANDBYS.named
        ('the leader', 'any standby', 'all standbys')
        """
        return self.value if self in (Victim.STANDBY, Victim.ALL_STANDBYS) else f"the {self}"

    def with_fault(self, fault: str) -> str:
        """The fault, with its victim where that is not the leader.

        >>> Victim.LEADER.with_fault("kill"), Victim.ALL_STANDBYS.with_fault("kill")
        ('kill', 'kill of all standbys')
        """
        return fault if self.takes_the_leader else f"{fault} of {self.named}"


@dataclass(frozen=True, slots=True)
class Recovery:
    """RTO split by part, seconds; None where it was not seen. Their sum is rto_s."""

    detection_s: float | None = None
    promotion_s: float | None = None
    routing_s: float | None = None
    client_s: float | None = None
    operator_s: float | None = None
    """This, lease_s and endpoint_s: where the manager shows its steps, in place of detection and routing."""
    lease_s: float | None = None
    endpoint_s: float | None = None
    restart_s: float | None = None
    """In place of promotion_s where the old leader led again: no member was promoted in its place."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts of the ledger against what the surviving cluster holds."""

    acknowledged: int = 0
    downgraded: int = 0
    unknown: int = 0
    refused: int = 0
    kept: int = 0
    lost: int = 0
    recovered: int = 0
    downgraded_lost: int = 0
    phantom: int = 0
    duplicate: int = 0
    corrupted: int = 0
    two_leaders_s: float = 0.0
    """Seconds in which acknowledgements on two timelines overlapped."""
    not_in_effect_s: float = 0.0
    """Seconds in which a remote level was acknowledged while standby names were empty."""
    stale_reads: int = 0
    fresh_reads: int = 0
    dirty_reads: int = 0
    """Rows a reader saw that the survivor does not hold."""
    long_forks: int = 0
    lost_from: float | None = None
    lost_to: float | None = None
    fresh_somewhere: int = 0
    """Acknowledged rows that at least one standby showed at once, when every standby was asked."""
    fresh_nowhere: int = 0
    broken_freshness: int = 0
    """At remote_apply: acknowledged rows that a standby every commit waited for did not show at once."""
    divergent: int = 0
    """Rows in which a standby differs from the leader although it has replayed all of the leader's WAL."""
    out_of_order: int = 0
    """Acknowledged rows lost although a commit later in the same WAL was kept."""
    backward_reads: int = 0
    """At remote_apply: reads of a standby every commit waited for that showed less than an earlier one."""
    unnamed_after_takeover_s: float = 0.0
    """Seconds in which a new leader acknowledged a remote level while no standby was named yet."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a drill for its timeline picture: seconds since the epoch, a short word, the member concerned."""

    at: float
    what: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill, judged.

    rto_s: from the last acknowledgement before the outage to the first of service that lasts after it. rpo_s: from the
    oldest lost acknowledgement to the fault, or to the newest lost one where that is later.
    """

    number: int
    fault: str
    victim: Victim
    level: Level
    verdict: Verdict
    why: str
    findings: Findings = Findings()
    rto_s: float | None = None
    rpo_s: float | None = None
    recovery: Recovery = Recovery()
    leader_before: str | None = None
    leader_after: str | None = None
    timeline_before: int | None = None
    timeline_after: int | None = None
    victims: tuple[str, ...] = ()
    route: str = "multi-host"
    marks: tuple[Mark, ...] = ()
    pace: tuple[tuple[float, int], ...] = ()
    """Acknowledgements per bin (seconds since the epoch, count), for the picture."""
    assumptions: dict[str, bool] = field(default_factory=dict)
    """Named assumptions checked before judging; a False makes the verdict undecided."""
    evidence: dict[str, str] = field(default_factory=dict)
    promised: bool | None = None
    """Whether the manual's table promises this level to survive this fault; None when nothing is at risk."""
    loss: str = ""
    """What was in fact gone for good (a Loss), "" when nothing: a restart in place is a crash, not a lost leader."""
    writers: int = 0
    unavailable_s: float | None = None
    """Seconds without service in all, from the fault to the end: an outage that flaps adds up."""
    writers_rto_s: tuple[float, float, float] | None = None
    """Outage of single writers: median, 95th percentile, worst; infinite for one that never committed again."""
    no_rto: str = ""
    """Why there is no RTO though writes were away: they were for as long as walproof held the fault."""
    strikes: tuple[str, ...] = ()
    """The faults of a storm as they were carried out, one clause each."""
    guarded: bool = False
    """A guard of Patroni watched the cluster: of records kept before it was removed."""

    @property
    def back_by(self) -> str:
        """How writes came back: "takeover", "restart in place", or "" where the leader went on or none is known."""
        if self.leader_before is None or self.leader_after is None:
            return ""
        if self.leader_before != self.leader_after:
            return "takeover"
        return "restart in place" if self.loss in (Loss.POSTGRES_CRASH, Loss.POWER_CUT) else ""
