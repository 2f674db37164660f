"""What a guard sees of a cluster and may do to it: the leader lock in the DCS, signs of life, receivers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

GUARD = "walproof-guard-"
"""How the name of a holder of the leader lock begins that is a guard, and no member."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as its own key in the DCS describes it. lease: the one that key hangs on, 0 for none.

    priority: its failover_priority. address: host:port of its PostgreSQL. tagged: the tag for which it does not count
    as a voter, with its value; "" for none. timeline: of its WAL, 0 where it does not say. version: of its Patroni, ()
    where it does not say.
    """

    lease: int
    running: bool
    priority: int = 1
    address: str = ""
    tagged: str = ""
    timeline: int = 0
    version: tuple[int, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it follows the holder of the lock, and no other member, and could lead itself."""
        return not self.tagged and self.lease != 0


@dataclass(frozen=True, slots=True)
class Seal:
    """What must be known of the moment before a seal.

    connected: voters that had a primary_conninfo, so that losing it shows that they saw the seal. config_version,
    failover_version: of the keys with the configuration and the switchovers asked for; a change of either ends the
    seal for every guard. limit_s: no takeover for so long after this one.
    """

    connected: tuple[str, ...]
    config_version: int = 0
    failover_version: int = 0
    limit_s: float = 15.0


@dataclass(frozen=True, slots=True)
class LockState:
    """The leader lock and what decides whether taking it is safe, from one linearizable read of the DCS.

    holder: who holds the leader lock, "" when it is free. voters, quorum: Patroni's /sync; whichever commit was
    acknowledged at a remote level, every quorum + 1 voters hold it together. Versions are revisions of keys, 0 for a
    key that is not there. lease_age_s: for how long the lease was not renewed, None when the DCS does not say.
    """

    at: float
    holder: str = ""
    holder_version: int = 0
    holder_lease: int = 0
    lease_age_s: float | None = None
    lease_renewed: bool = True
    """Whether the holder renewed it then; an election of the DCS renews every lease."""
    sync_leader: str = ""
    voters: tuple[str, ...] = ()
    quorum: int = 0
    sync_version: int = 0
    config_version: int = 0
    synchronous: bool = False
    paused: bool = False
    standby_cluster: bool = False
    failsafe: bool = False
    """Whether a leader that cannot reach the DCS goes on while it reaches every member."""
    switchover: bool = False
    """A switchover or failover was asked for and is not done yet."""
    failover_version: int = 0
    """Of the key in which one is asked for: Patroni empties it when it is done, and leaves it there."""
    ttl_s: float = 30.0
    loop_wait_s: float = 10.0
    """How often the holder renews its lease."""
    least_position: int = 0
    """Patroni promotes no member that holds less: maximum_lag_on_failover behind the last position the leader wrote."""
    limit_s: float = 0.0
    """For how long after the last seal, by any guard, there is no other; 0 when that was long ago."""
    limited_at: float = float("-inf")
    """When that seal was made."""
    unsuitable: str = ""
    """Why no lock is to be taken in this DCS, "" where one may be."""
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """Every member that has a key of its own."""

    seal: Seal | None = None
    """What the guard that holds the lock wrote with it, for itself and for another guard to go on with."""

    @property
    def sealed(self) -> bool:
        return self.holder.startswith(GUARD)

    @property
    def counted(self) -> tuple[str, ...]:
        """The voters that follow the holder of the lock and no other member, as far as their own keys and tags say."""
        return tuple(v for v in self.voters if v in self.candidates and self.candidates[v].counts)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A standby's walreceiver as the standby itself sees it, asked at `asked_at` (seconds since the epoch).

    silent_s: since the last message from the leader, None when there is no walreceiver that streams. connects:
    primary_conninfo names a server, so a walreceiver may come back. position: the larger of what was received and what
    was replayed (bytes), as Patroni compares them: after a crash what was received starts anew at a segment's start.
    streamed: a walreceiver was asked for since PostgreSQL began its recovery. waits: the startup process has replayed
    all WAL that is here and waits before it looks for more. lacks: the GRANT without which the rest is not visible, ""
    where it is. hinders: why it may not come to wait, "" for nothing. named: as which member it follows. asks_after_s:
    the silence after which the walreceiver asks the leader for an answer; infinite where it never does.
    """

    asked_at: float
    running: bool
    connects: bool
    position: int
    silent_s: float | None = None
    streamed: bool = True
    waits: bool = True
    lacks: str = ""
    hinders: str = ""
    named: str = ""
    asks_after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class MemberSigns:
    """When a member last answered over REST and over SQL (seconds since the epoch), None for never."""

    rest_at: float | None = None
    sql_at: float | None = None
    receivers: tuple[Receiver, ...] = ()
    """Its last two answers about its walreceiver, newest last; empty on a leader and where it does not answer."""
    fit_at: float | None = None
    """When its Patroni last answered whether it could lead, None for never."""
    unfit: str = ""
    """Why it could not, by that answer; "" where it could."""
    refused_at: float | None = None
    """When its PostgreSQL last refused to let this guard in, which only a living one does."""
    address: str = ""
    """host:port of its PostgreSQL, as the cluster lists it that was asked where the member is."""


Signs = Mapping[str, MemberSigns]


class LeaderLock(Protocol):
    """The leader lock in the DCS of a failover manager."""

    def read(self) -> LockState:
        """The state now, agreed on by a majority; TargetError when there is none."""

    def seal(self, seen: LockState, name: str, seal: Seal) -> bool:
        """Take the lock from the holder that `seen` names, for its ttl, or for what is left of another guard's seal.

        Whether that was done.

        One transaction, done only when neither the lock, /sync nor the configuration has changed since `seen` and no
        switchover was asked for: the lock goes to `name`, `seal` is kept with it, the old holder's address is removed,
        and /sync gets a new version, so that no change of it prepared before succeeds. A caller that stands still
        in the middle of it for longer than a few seconds takes nothing.
        """

    def hand_over(self, sealed: LockState, to: str) -> bool:
        """Give the lock that `sealed` shows in our hands to a member; whether that was done.

        It goes on hanging on the seal's lease, with all its time, until the member's Patroni moves it to its own: what
        a member that dies at once leaves behind ends no sooner than the old holder's own term. No lease of another's is
        renewed or ended: whose it is by then could not be proven. TargetError when the DCS does not answer.
        """

    def part(self, seen: LockState) -> str:
        """Move the DCS's own leader off the machine of the lock's holder: one failure shall not take both.

        Where it was moved to, "" where it stands elsewhere, was moved in the last ten minutes, or no other member is
        healthy. Every election of the DCS renews every lease in it. TargetError when it cannot be moved now.
        """


class SignsOfLife(Protocol):
    """Asks every member again and again, each on its own, so that one that is silent delays no other."""

    def signs(self) -> Signs:
        """What is known now; returns at once."""

    def failed(self) -> bool:
        """Whether something has stopped asking that should not have: what is known is not to be trusted any more."""

    def close(self) -> None:
        """Stop asking."""


class Takeover(Protocol):
    """What a guard needs of a target."""

    def lock(self) -> LeaderLock:
        """The leader lock; UsageError where the DCS is one that a guard cannot use."""

    def signs_of_life(self) -> SignsOfLife:
        """Starts asking the members; the caller closes it."""


OwnGuard = Callable[[Any, Callable[[str], None]], Any]
"""Opens a guard of another kind, with the turn, status and close of guarding.run.Guard, by a Policy and a log."""


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """A guard as it describes itself: what it does, about which leader, why it would not act, how often it acted."""

    state: str
    leader: str = ""
    why_not: str = ""
    suspicions: int = 0
    takeovers: int = 0
    dry_run: bool = False
    steps_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the last takeover's steps: suspect, seal, check, promote."""

    @property
    def text(self) -> str:
        """In one clause.

        >>> GuardStatus("watching", "n1").text, GuardStatus("not ready", "n1", "Patroni is paused").text
        ('guard watching n1', 'guard not ready: Patroni is paused')
        """
        what = "guard, dry run, " if self.dry_run else "guard "
        who = f" {self.leader}" if self.leader and self.state in ("watching", "suspecting") else ""
        return f"{what}{self.state}{who}{': ' + self.why_not if self.why_not else ''}"

    @property
    def ready(self) -> bool:
        """Whether it would act now."""
        return self.state == "watching" and not self.why_not


class GuardSwitch(Protocol):
    """A guard of a target as a process of its own."""

    def start(self) -> None:
        """Start it where it does not run; returns when it answers. MachineError with its own words when it ends."""

    def stop(self) -> None:
        """End it; nothing where it does not run."""

    def status(self) -> GuardStatus | None:
        """What it does now; None where it does not run or does not answer."""

    def log(self) -> str:
        """What it wrote so far, a line each."""
