"""What a drill found, and whether the guarantee held."""

from dataclasses import dataclass, field
from enum import StrEnum

from walproof.model.guarantee import Level


class Verdict(StrEnum):
    """Held, broken, or undecided; skipped when the target cannot do the fault."""

    HELD = "held"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"

    @property
    def mark(self) -> str:
        """✔ ✘ ? –"""
        return {"held": "✔", "broken": "✘", "undecided": "?", "skipped": "–"}[self.value]


class Victim(StrEnum):
    """Which members a fault falls on."""

    LEADER = "leader"
    SYNC_STANDBY = "synchronous standby"
    STANDBY = "any standby"
    ALL_STANDBYS = "all standbys"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Recovery:
    """RTO split by part, seconds; None where it was not seen. Their sum is rto_s."""

    detection_s: float | None = None
    promotion_s: float | None = None
    routing_s: float | None = None
    client_s: float | None = None


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


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a drill for its timeline picture: seconds since the epoch, a short word, the member concerned."""

    at: float
    what: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill, judged. rto_s: last acknowledgement before to first after; rpo_s: span of lost acknowledgements."""

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
