"""Who is in the cluster and where: members as seen in one observation, and how clients reach them."""

from dataclasses import dataclass, field
from enum import StrEnum

from walproof.errors import UsageError


class Role(StrEnum):
    """What a member is just now, as it says itself."""

    LEADER = "leader"
    STANDBY = "standby"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Route:
    """A way for clients to reach the leader, by the name its target gives it."""

    name: str
    pools: bool = False
    """A server session may serve another client after each transaction: nothing of a session stays."""
    follows: bool = True
    """New connections reach the leader after a failover too."""


def route_of(routes: tuple[Route, ...], name: str) -> Route:
    """The route of that name; UsageError lists those there are.

    >>> route_of((Route("direct"), Route("pooler", pools=True)), "pooler").pools
    True
    """
    found = next((route for route in routes if route.name == name), None)
    if found is None:
        raise UsageError(f"{name!r} is not a route here", f"the routes are {', '.join(r.name for r in routes)}")
    return found


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Connection parameters for libpq: hosts in order, database, user, password file; never the password itself."""

    hosts: tuple[tuple[str, int], ...]
    database: str = "postgres"
    user: str = "postgres"
    passfile: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    pooled: bool = False
    """Behind a transaction pooler: what holds for a session must be sent with each transaction."""

    def conninfo(self, **more: str) -> str:
        """A libpq connection string; `more` overrides (dbname, user, application_name, …)."""
        words = {
            "host": ",".join(h for h, _ in self.hosts),
            "port": ",".join(str(p) for _, p in self.hosts),
            "dbname": self.database,
            "user": self.user,
            **({"passfile": self.passfile} if self.passfile else {}),
            **dict(self.options),
            **more,
        }
        return " ".join(f"{name}='{_quoted(value)}'" for name, value in words.items() if value != "")


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member in one observation. lsn: WAL position in bytes; lag_bytes: behind the leader, None when unknown."""

    name: str
    role: Role
    state: str
    """running, streaming, starting, stopped, frozen, unreachable …"""
    timeline: int | None = None
    lsn: int | None = None
    lag_bytes: int | None = None
    address: str = ""
    sync_state: str = ""
    """pg_stat_replication.sync_state of this standby: sync, quorum, potential, async, or empty."""
    standby_names: str | None = None
    """synchronous_standby_names in effect there, when it was asked."""
    identity: str = ""
    """Tells this instance from another that takes its name or address later (a pod's uid); "" where nobody says."""

    @property
    def serving(self) -> bool:
        """Whether its PostgreSQL runs, and streams when it is a standby."""
        return self.state in ("running", "streaming")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One observation of everything. `at` is seconds since the epoch."""

    at: float
    members: tuple[MemberView, ...]
    leader: str | None
    standby_names: str = ""

    def member(self, name: str) -> MemberView | None:
        """The member of that name, or None."""
        return next((m for m in self.members if m.name == name), None)

    @property
    def leader_timeline(self) -> int | None:
        """The leader's timeline; None without a leader, or where it does not say."""
        member = self.member(self.leader) if self.leader else None
        return member.timeline if member else None

    @property
    def healthy(self) -> bool:
        """Whether there is a leader and every other member is a standby that runs or streams."""
        return self.leader is not None and all(
            m.name == self.leader or (m.role is Role.STANDBY and m.serving) for m in self.members
        )

    @property
    def standbys(self) -> tuple[MemberView, ...]:
        """Members that say they are standbys."""
        return tuple(m for m in self.members if m.role is Role.STANDBY)

    @property
    def synchronous(self) -> tuple[str, ...]:
        """Names of the standbys that count for the quorum now."""
        return tuple(m.name for m in self.members if m.sync_state in ("sync", "quorum"))


@dataclass(frozen=True, slots=True)
class LinkView:
    """One direction between two members: asked and measured round trip (ms), cut or not."""

    source: str
    destination: str
    rtt_ms: float | None = None
    measured_ms: float | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What a target is, for the record: versions and machine facts as text, the settings in effect."""

    target: str
    members: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    wal_volume: bool | None = None
    """Whether WAL has a volume of its own; None where the target cannot tell."""
    ttl_s: float | None = None
    """Patroni's ttl in effect; None without Patroni, or where the target cannot tell."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a poller knows: the cluster, commits so far on the leader, sessions in SyncRep and the longest such wait."""

    view: ClusterView
    commits: int | None = None
    waiting: int = 0
    longest_wait_s: float = 0.0
