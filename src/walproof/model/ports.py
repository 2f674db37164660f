"""What the pure core asks of the world: a clock, a target, and a small protocol for each thing a target may do.

Capabilities are objects (`Target.capabilities`): what a target cannot do is absent there, with the reason."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from walproof.model.drill import Capability, Finding, Mark
from walproof.model.facts import Facts
from walproof.model.guarantee import ConfigChange, ConfigPlan
from walproof.model.leader_lease import LeaseSeen
from walproof.model.load import NO_LIMITS, LedgerOrder, LedgerRun, LoadLimits, LoadRun, Rows
from walproof.model.observed_waits import WaitsSeen
from walproof.model.salvage import OldDisks
from walproof.model.sample import Arm, Checkpoints, Sample, SampleResult, Scenario, Workload
from walproof.model.topology import ClusterView, Description, Endpoint, LinkView, MemberState, Route, Snapshot


class Closes(Protocol):
    """Something that goes on until it is closed."""

    @property
    def failed(self) -> bool:
        """Whether an error ended it before it was closed."""

    def close(self) -> None:
        """End it; safe to call twice."""


class Clock(Protocol):
    """Time as an argument. The machine's is real, the simulated target's is virtual."""

    patience: float
    """The multiplier of every named wait."""
    waits: Mapping[str, float]
    """Seconds of the named waits that take longer or shorter on this target, by name (CLUSTER_HEALTHY)."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def pause(self, seconds: float) -> None:
        """Let that much time pass."""

    def every(self, seconds: float, act: Callable[[], None]) -> Closes:
        """Call `act` about every so many seconds until closed: in a thread, or after each pause of virtual time."""

    def together(self, acts: Sequence[Callable[[], None]]) -> None:
        """Do all of them at once (one after another on virtual time); the first error is raised when all have ended."""


class MemberFault(Protocol):
    """One fault of one member, and its undoing. kill, stop, kill-member, freeze, power-cut, partition, isolate, …"""

    def inject(self, member: str, /) -> None:
        """Do it to the member; UsageError when the member is unknown or already down."""

    def undo(self, member: str, /) -> None:
        """Undo it and start what it ended; does not wait for PostgreSQL. Safe where nothing was done."""


class SlowDisk(Protocol):
    """Flushes of one member that take longer."""

    def inject(self, member: str, delay_s: float) -> None:
        """Each flush takes `delay_s` seconds longer before it is issued."""

    def undo(self, member: str) -> None:
        """Flushes as they were."""


class LinkFault(Protocol):
    """Packets of one direction between two members that are dropped."""

    def inject(self, source: str, destination: str) -> None:
        """Packets from source no longer reach destination."""

    def undo(self, source: str, destination: str) -> None:
        """They reach it again."""


class ClusterFault(Protocol):
    """A fault of what all members share: the majority of the DCS."""

    def inject(self) -> None:
        """Take it away."""

    def undo(self) -> None:
        """Bring it back."""


class Restart(Protocol):
    """PostgreSQL restarted in an orderly way, through the failover manager."""

    def restart(self, member: str) -> None:
        """Returns when it was restarted."""


class Switchover(Protocol):
    """A planned change of leader, through the failover manager."""

    def switch_over(self, to: str | None = None) -> None:
        """Returns when another member (`to`, where it is named) leads; clients are held where a pooler can."""


class Recovery(Protocol):
    """Brings a cluster back after faults."""

    def recover(self) -> None:
        """Undo every fault, start what is down, wait until the cluster is healthy; safe when it is. WaitTimeout."""


class MemberLogs(Protocol):
    """Logs of members."""

    def logs(self, member: str) -> str:
        """The last lines of every log of the member, for the record."""


class MemberStates(Protocol):
    """Asks every member for signs that a fault happened, and for what could falsify a verdict. Changes nothing."""

    def states(self) -> Sequence[MemberState]:
        """Every member now, all asked at once; one that does not answer within two seconds is there without answers."""


class FailoverSteps(Protocol):
    """Steps of a failover as the manager shows them. Changes nothing."""

    def since_last(self) -> Sequence[Mark]:
        """Ask once; the steps since it was asked last: operator, lease, endpoint, each when it was first seen."""


class Traces(Protocol):
    """What would be overwritten when a member is rewound or cloned again: the WAL it wrote last."""

    def save(self, member: str) -> None:
        """Put its newest WAL and log aside, now; replaces what was put aside of it before."""

    def describe(self, member: str, *, timeline: int, since: int) -> str:
        """What was put aside as text (pg_waldump): records of that timeline from that position (bytes) on."""

    def discard(self) -> None:
        """Remove what was put aside; safe to call twice."""


class Pricing(Protocol):
    """Runs samples under scenarios."""

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs; idempotent."""

    def check(self, scenario: Scenario) -> None:
        """Refuse factors that cannot be brought into effect here (an Error says why); changes nothing."""

    def enter(self, scenario: Scenario) -> dict[str, tuple[float, ...]]:
        """Bring the outer factors into effect and verify; measured round trips in ms, sorted, by "a-b"."""

    def leave(self) -> None:
        """Revert every setting that `enter` changed."""

    def checkpoints(self) -> Checkpoints:
        """The leader's last checkpoint and how far apart timed ones are; TargetError when that cannot be read."""

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample and observe meanwhile."""


class Workloads(Pricing, Protocol):
    """Runs a workload beside a drill too."""

    def open_load(self, arm: Arm, seed: int) -> LoadRun:
        """Start it, its tables being there; an Error where its clients do not connect or its script fails."""


class Rolls(Protocol):
    """Scenarios for which a target's own manager restarts every server."""

    def forecast(self, scenarios: Sequence[Scenario]) -> str:
        """What they cost, in seconds without writes, and whether they can be had: sentences, "" for no restart.

        NotObtained where one is known not to be had. Changes nothing.
        """

    def taken(self) -> str:
        """What restarts took so far, "" for none."""


class Ledger(Protocol):
    """Is written by the ledger's writers and read back."""

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        """Create the ledger's own table when missing (never touch one that is not ours) and start the writers."""

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows of one drill as that member holds them."""

    def check_data(self, member: str) -> str:
        """What amcheck finds wrong with the ledger on that member, "" when nothing; TargetError: it may not be run."""


class Notebook(Protocol):
    """A journal of changes (records.journal.Journal), so that a run that was killed can be reverted."""

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Any:
        """Write down a change before it is made."""

    def undone(self, change: Any) -> None:
        """It was reverted."""

    def pending(self, target: str | None = None) -> Sequence[Any]:
        """Changes not reverted, newest first."""

    def servers(self) -> frozenset[str]:
        """What tells every server that was ever changed."""


@dataclass(frozen=True, slots=True)
class Reverting:
    """Whom a revert tells, by kind and name, of each thing that it removed, ended or put back; what its user says."""

    tell: Callable[[str, str], object] = lambda _kind, _name: None
    ended_on: frozenset[str] = frozenset()
    """Machines on which, as the user says, every walproof has ended."""
    warn: Callable[[str], object] = lambda _sentence: None
    """Told in a sentence what could not be looked at."""
    stays: Callable[[Any, Callable[[Any], bool]], bool] = lambda _change, _is_there: False
    """Whether a change stays, and tells it: a newer one of walproof's stands there, by the question given for each."""
    keeps: bool = False
    """Whether what another user has changed since stays pending too: who does not tell it leaves it to `revert`."""


SILENT = Reverting()
UNTOLD = Reverting(keeps=True)


class Configuration(Protocol):
    """The cluster's configuration: planned, applied, awaited, undone."""

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What the change would change now, and the version it was planned on. Touches nothing; UsageError."""

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Make the change, journaled before. TargetError when the configuration is no longer the planned version."""

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until every member says that it is in effect; WaitTimeout."""

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """Revert every pending change of the journal; sentences about what was left alone because others changed it."""


class Inspection(Protocol):
    """The doctor's read-only facts about every member."""

    def facts(self) -> Facts:
        """One snapshot; TargetError when no member answers."""


class CommitWaits(Protocol):
    """Watches what sessions of the leader wait for. Reads statistics views alone, and slowly enough to cost nothing."""

    def watch(self, every_s: float, ended: Callable[[], bool]) -> Iterator[WaitsSeen]:
        """One after each `every_s` until `ended`, following the leader. TargetError: rights are missing, a pooler is in
        front, no leader answers, or the server is in distress, where watching stops."""


class LeaderLease(Protocol):
    """Looks at the manager's leader lease; reads only."""

    def look(self) -> LeaseSeen | None:
        """Who holds it and whether that member answers, within seconds; None where no member's manager answers."""


class Poller(Protocol):
    """A connection to every member, for moments that one observation would miss."""

    def snapshot(self) -> Snapshot:
        """What is known now; returns at once."""

    def close(self) -> None:
        """Stop polling."""


class Links(Protocol):
    """Links between members that are shaped or cut."""

    def links(self) -> tuple[LinkView, ...]:
        """Every direction that is shaped or cut, as asked."""


class Pool(Protocol):
    """A connection pooler in front of the cluster."""

    def pool_clients(self) -> dict[str, int]:
        """Its clients by state."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target can do now: None (or no entry) where it cannot, and then `reasons` says why in one clause."""

    pricing: Pricing | None = None
    ledger: Ledger | None = None
    workload: Workloads | None = None
    faults: Mapping[Capability, MemberFault] = field(default_factory=dict)
    slow_disk: SlowDisk | None = None
    partition_one_way: LinkFault | None = None
    dcs_loss: ClusterFault | None = None
    restart: Restart | None = None
    switchover: Switchover | None = None
    recovery: Recovery | None = None
    logs: MemberLogs | None = None
    member_states: MemberStates | None = None
    failover_steps: FailoverSteps | None = None
    pitfalls: Mapping[str, Callable[[], Finding]] = field(default_factory=dict)
    """Known pitfalls that can be reproduced here, by their numbers."""
    traces: Traces | None = None
    old_disks: OldDisks | None = None
    configuration: Configuration | None = None
    inspection: Inspection | None = None
    commit_waits: CommitWaits | None = None
    leader_lease: LeaderLease | None = None
    links: Links | None = None
    pool: Pool | None = None
    scenario_factors: frozenset[Capability] = frozenset()
    """SHAPE_LINKS and LIMIT_PROCESSORS, where a scenario may name them."""
    rolls: Rolls | None = None
    limits: LoadLimits = NO_LIMITS
    """How much load it bears at most."""
    reasons: Mapping[Capability, str] = field(default_factory=dict)
    happens: Mapping[Capability, str] = field(default_factory=dict)
    """What a fault does here, in a clause, where it is not what it does to a member of a lab."""
    no_takeover: Mapping[Capability, str] = field(default_factory=dict)
    """Faults of the leader that no member takes over from while they last, each with why: the outage is walproof's."""

    def why_not(self, capability: Capability) -> str | None:
        """None where the target can do it now, else one clause saying why not."""
        if capability is Capability.RETURN_ORDER:  # a member stays down until its fault is undone, but for a reason
            return self.reasons.get(capability)
        single: dict[Capability, object | None] = {
            Capability.PRICE: self.pricing,
            Capability.LEDGER: self.ledger,
            Capability.WORKLOAD: self.workload,
            Capability.SLOW_DISK: self.slow_disk,
            Capability.PARTITION_ONE_WAY: self.partition_one_way,
            Capability.DCS_LOSS: self.dcs_loss,
            Capability.RESTART: self.restart,
            Capability.SWITCHOVER: self.switchover,
            Capability.CONFIGURE: self.configuration,
            Capability.INSPECT: self.inspection,
            Capability.OBSERVE: self.commit_waits,
        }
        there = capability in self.faults or capability in self.scenario_factors or single.get(capability) is not None
        return None if there else self.reasons.get(capability, f"this target cannot do it ({capability})")


class Target(Protocol):
    """The core of every target: what it is, one observation, routes. `clock` is the time it lives in."""

    name: str
    clock: Clock
    external: bool
    """Whether walproof did not start it: then everything beyond observing needs consent."""
    journal: Notebook
    """Where changes are written down before they are made; external targets change nothing without one."""

    @property
    def identity(self) -> str:
        """What tells the cluster from another that answers under its name; "" where nothing does, or none answers."""

    def describe(self) -> Description:
        """Versions, machine, settings in effect."""

    def observe(self) -> ClusterView:
        """One observation of every member there is now; one that does not answer is shown as unreachable."""

    def poller(self, *, pace_s: float = 0.5, silent_s: float = 0.9) -> Poller:
        """Poll every member each `pace_s`; one silent for `silent_s` longer is unreachable. The caller closes it."""

    def routes(self) -> tuple[Route, ...]:
        """How clients can reach the leader, the most direct first."""

    def endpoint(self, route: str) -> Endpoint:
        """Connection parameters of a route; TargetError where this target has none of that name."""

    def member_endpoint(self, member: str) -> Endpoint:
        """Connection parameters straight to one member."""

    def elected_at(self, since: float) -> float | None:
        """When a successor was elected after `since` (seconds since the epoch); None when the manager does not say."""

    def capabilities(self) -> Capabilities:
        """What it can do now."""

    def revert(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """Undo every pending change of the journal and remove what a killed run left; sentences about what stays."""

    def close(self) -> None:
        """Remove what it keeps on the cluster for a run (walproof's own database); safe to call twice."""
