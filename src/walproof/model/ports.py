"""What the pure core asks of the world: clock, target, and a target's optional capabilities."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from walproof.model.attempt import Attempts, Rows
from walproof.model.guarantee import Level, SyncMode
from walproof.model.plan import Sample, Scenario, Workload
from walproof.model.sample import SampleResult
from walproof.model.topology import ClusterView, Description, Endpoint, Route


class Clock(Protocol):
    """Time as an argument: seconds since the epoch, and a pause; `patience` multiplies every named wait."""

    patience: float

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def pause(self, seconds: float) -> None:
        """Let that much time pass."""
        ...


class Capability(StrEnum):
    """What a target may be able to do beyond being looked at."""

    PRICE = "run priced samples"
    LEDGER = "be written by the ledger"
    KILL = "kill PostgreSQL"
    STOP = "stop PostgreSQL"
    KILL_MEMBER = "kill a whole member"
    FREEZE = "freeze a member"
    CUT_POWER = "cut a member's power"
    CUT_LINKS = "cut links"
    SHAPE_LINKS = "shape links"
    LIMIT_PROCESSORS = "limit processors"
    HURT_DISK = "hurt a disk"
    LOSE_DCS = "take the DCS majority away"
    RESTART = "restart PostgreSQL"
    SWITCH_OVER = "switch over as planned"
    SET_PARAMETERS = "set parameters"
    SET_SYNC = "set synchronous mode and quorum"


class Target(Protocol):
    """The core of every target: what it is, one look, ways in. `clock` is the time it lives in."""

    name: str
    clock: Clock

    def describe(self) -> Description:
        """Versions, machine, members, settings in effect."""
        ...

    def observe(self) -> ClusterView:
        """One look at every member; a member that does not answer is shown as unreachable, never an error."""
        ...

    def endpoint(self, route: Route) -> Endpoint:
        """The clients' way to the leader; TargetError where this target has no such route."""
        ...

    def member_endpoint(self, member: str) -> Endpoint:
        """Straight to one member."""
        ...

    def why_not(self, capability: Capability) -> str | None:
        """None where the target can do it now, else one clause saying why not."""
        ...


@runtime_checkable
class CanBePriced(Protocol):
    """Runs samples. Capability.PRICE."""

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs; idempotent."""
        ...

    def check(self, setting: Scenario) -> None:
        """Refuse factors that cannot be brought into effect here (a Error says why); changes nothing."""
        ...

    def enter(self, setting: Scenario) -> dict[str, float]:
        """Bring the outer factors into effect and verify; measured round trips in ms by "a-b"."""
        ...

    def leave(self) -> None:
        """Put back every setting that `enter` changed."""
        ...

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample and look beside it."""
        ...


@dataclass(frozen=True, slots=True)
class LedgerOrder:
    """What the ledger shall do: writers in all, level of their commits, the route, readers beside them."""

    level: Level
    writers: int = 16
    route: Route = Route.MULTI_HOST
    witnesses: bool = True
    drill: int = 0
    payload_bytes: int = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """How the ledger stands: acknowledged so far, time of the last acknowledgement, last error in words."""

    acknowledged: int
    last_acknowledged_at: float | None
    writers_alive: int
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class WitnessReport:
    """What readers saw beside the writers: reads by staleness, rows seen on the leader (writer, number), long forks.

    `fresh_by_member` maps a standby to (reads that found the acknowledged row, reads that did not);
    `fresh_somewhere` counts the same with every standby asked at once: found on at least one, found on none.
    """

    fresh_by_member: dict[str, tuple[int, int]]
    seen_on_leader: tuple[tuple[int, int], ...] = ()
    long_forks: int = 0
    stale_ms: tuple[float, ...] = ()
    fresh_somewhere: tuple[int, int] = (0, 0)


@runtime_checkable
class LedgerRun(Protocol):
    """Writers at work, in processes of their own."""

    def progress(self) -> Progress:
        """How it stands now."""
        ...

    def stop(self) -> Attempts:
        """End the writers and give the ledger; safe to call twice."""
        ...

    def witnessed(self) -> WitnessReport:
        """What the readers saw; after stop."""
        ...


@runtime_checkable
class CanKeepLedger(Protocol):
    """Is written by the ledger and read back. Capability.LEDGER."""

    def open_ledger(self, order: LedgerOrder) -> LedgerRun:
        """Create the ledger's own table when missing (never touch one that is not ours) and start the writers."""
        ...

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows of one drill as that member holds them."""
        ...

    def check_data(self, member: str) -> str:
        """Data checksums and amcheck of that member: "" when sound, else what is wrong."""
        ...

    def drop_ledger(self) -> None:
        """Remove the ledger's own table."""
        ...


@runtime_checkable
class CanBreak(Protocol):
    """Faults of a member and their healing; each needs its Capability, ask `why_not` first."""

    def kill(self, member: str) -> None:
        """Postmaster killed with -9; the manager starts it again or fails over."""
        ...

    def stop(self, member: str) -> None:
        """PostgreSQL stopped in an orderly way."""
        ...

    def kill_member(self, member: str) -> None:
        """Every process of the member killed with -9."""
        ...

    def freeze(self, member: str) -> None:
        """Every process of the member stopped (SIGSTOP or freezer)."""
        ...

    def thaw(self, member: str) -> None:
        """Go on after freeze."""
        ...

    def cut_power(self, member: str) -> None:
        """File system shut down unflushed, processes killed, wire down."""
        ...

    def restart(self, member: str) -> None:
        """PostgreSQL restarted through the manager."""
        ...

    def lose_dcs(self) -> None:
        """Take the majority of the DCS away."""
        ...

    def cut(self, member: str) -> None:
        """Cut from every other member; clients still reach it."""
        ...

    def isolate(self, member: str) -> None:
        """Cut from everybody, clients too."""
        ...

    def cut_one_way(self, source: str, destination: str) -> None:
        """Packets from source no longer reach destination."""
        ...

    def hurt_disk(self, member: str, error: str, slow_s: float = 0.0) -> None:
        """`error`: slow, failing or full."""
        ...

    def switch_over(self, to: str | None = None) -> None:
        """Planned, through the manager; clients held in the pool where there is one."""
        ...

    def heal(self) -> None:
        """Undo every fault, start what is down, and wait until the cluster is whole; safe when it is whole."""
        ...

    def logs(self, member: str) -> str:
        """The last lines of every log of the member, for the record."""
        ...


@runtime_checkable
class CanConfigure(Protocol):
    """Sets the cluster's configuration and waits until it is in effect. SET_PARAMETERS, SET_SYNC."""

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        """Set parameters cluster-wide (None resets) and wait until they are in effect."""
        ...

    def set_sync(self, mode: SyncMode, quorum: int) -> None:
        """Set synchronous mode and quorum, and wait until the names are in effect."""
        ...


@runtime_checkable
class CanRevive(Protocol):
    """Brings one member back while faults elsewhere stay: what double faults need ("the leader is gone for good")."""

    def revive(self, member: str) -> None:
        """Power and wire on, disk mounted again and unhurt, programs started; does not wait for PostgreSQL."""
        ...


class CloseLook(Protocol):
    """Standing eyes on every member, for moments that a single look would miss."""

    def view(self) -> ClusterView:
        """What is known now; returns at once."""
        ...

    def close(self) -> None:
        """Stop looking."""
        ...


@runtime_checkable
class CanBeWatchedClosely(Protocol):
    """Can be looked at many times a second, whoever is silent."""

    def closely(self) -> CloseLook:
        """Open the eyes; the caller closes them."""
        ...
