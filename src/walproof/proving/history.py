"""Everything a verdict is derived from: how the drill went, every attempt, what each member holds, what readers saw."""

from dataclasses import dataclass, field

from walproof.model.attempt import Attempts
from walproof.model.load import WitnessReport
from walproof.model.member_state import MemberState
from walproof.model.topology import ClusterView
from walproof.model.verdict import Mark
from walproof.proving.campaign import PlannedDrill
from walproof.proving.reading import MemberReading
from walproof.proving.storm import Struck


@dataclass(frozen=True, slots=True)
class DrillRun:
    """How a drill went, as recorded while it ran; times are seconds since the epoch on walproof's clock."""

    victims: tuple[str, ...]
    before: ClusterView
    fault_at: float
    cleared_at: float
    stopped_at: float
    views: tuple[ClusterView, ...] = ()
    states: tuple[MemberState, ...] = ()
    """Signs of the members: `before` the fault, while it is in effect, and `after` everything has recovered."""
    recovered: bool = True
    error: str = ""
    """Why the cluster did not recover."""
    stalled: str = ""
    """The wait that ran out because no commit came back while the fault was in effect, in words."""
    timed_out: str = ""
    """The same once the fault had been cleared."""
    after: ClusterView | None = None
    elected_at: float | None = None
    """When a successor took the leader's lock, by the manager's log."""
    refused: str = ""
    """Why the target refused to inject the fault."""
    struck: tuple[Struck, ...] = ()
    """The faults of a storm, in order."""
    steps: tuple[Mark, ...] = ()
    """Steps of the failover as the manager shows them: operator, lease, endpoint, with the member each is about."""
    guard_log: str = ""
    """What the guard wrote meanwhile."""
    incomplete: str = ""
    """Why the ledger is not complete: a writer or reader died, the disk was full."""

    @property
    def carried_out(self) -> tuple[Struck, ...]:
        """The faults of a storm but for those that the target refused."""
        return tuple(one for one in self.struck if not one.refused)


@dataclass(frozen=True, slots=True)
class History:
    """One drill as it was: judging it again needs nothing else. The surviving leader's reading comes first."""

    planned: PlannedDrill
    run: DrillRun
    attempts: Attempts
    witness: WitnessReport
    readings: tuple[MemberReading, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
    """What went wrong where: "n2 unread" and "n2 unchecked" → why, "data of n2" → what amcheck found."""
