"""What lies between clients and the leader: proxies and pools, as their configuration says it. Values."""

import re
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

LEADER_PATHS = ("/", "/primary", "/master", "/leader", "/read-write", "/standby-leader", "/standby_leader")
"""Patroni's REST answers 200 there on the leader alone (patroni/api.py, do_GET)."""
STANDBY_PATHS = (
    "/replica", "/read-only", "/sync", "/synchronous", "/async", "/asynchronous", "/quorum",
    "/read-only-sync", "/read-only-synchronous", "/read-only-quorum",
)  # fmt: skip
"""There on standbys, or on every member that serves reads."""
CLIENTS: dict[str, Any] = tomllib.loads((resources.files(__package__) / "clients.toml").read_text("utf-8"))
CLIENT_PARAMETERS = {"keepalives"} | {
    name for its in CLIENTS.values() for words in (its["role"], *its["bounds"]) for name in words.split(" or ")
}
"""What checks read of a client: of libpq's connection strings, of its environment, of JDBC's addresses."""
_READS = re.compile(r"replica(?!tion)|standby|read(?!y|.?wr)|slave|secondary|(?<![a-z])ro(?![a-z])", re.IGNORECASE)


def reads_by_name(name: str) -> bool:
    """Whether a proxy, database or service is for reads, by its name.

    >>> [reads_by_name(name) for name in ("shop_ro", "db-replicas", "readwrite", "ready", "pg_read", "prod")]
    [True, True, False, False, True, False]
    """
    return bool(_READS.search(name))


@dataclass(frozen=True, slots=True)
class Proxy:
    """One HAProxy backend or listen section that leads to PostgreSQL; times in s, None where nothing sets them."""

    name: str
    servers: tuple[str, ...]
    asks: str = ""
    """The path of its HTTP check without a query, or the kind of another check; "" where it checks the port alone."""
    unchecked: tuple[str, ...] = ()
    """Servers without `check`: taken to be up for ever."""
    lingering: tuple[str, ...] = ()
    """Servers without on-marked-down shutdown-sessions."""
    interval_s: float = 2.0
    fall: int = 3
    timeout_server_s: float | None = None
    file: str = ""

    @property
    def noticed_s(self) -> float:
        return self.interval_s * self.fall

    @property
    def asks_role(self) -> bool:
        """Whether a member that is healthy and no leader fails the check; a script may ask anything."""
        return self.asks in (*LEADER_PATHS, *STANDBY_PATHS, "script")

    @property
    def for_reads(self) -> bool:
        """Whether it leads to standbys, by its check or else by its name."""
        return self.asks in STANDBY_PATHS or (not self.asks_role and reads_by_name(self.name))


@dataclass(frozen=True, slots=True)
class Pool:
    """One PgBouncer: its settings as written, and each database's host ("" for a socket); or a Pooler."""

    name: str
    hosts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    instances: int | None = None
    """None where it is no operator's."""
    paused: bool = False
    key: str = "instances"
    """What its resource calls these."""

    def seconds(self, name: str) -> float | None:
        """A setting in seconds; None where it is not set, or is no number."""
        try:
            return float(self.settings[name])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Client:
    """What it is called, its hosts, CLIENT_PARAMETERS as written, and by what: libpq, environment or jdbc."""

    name: str
    hosts: tuple[str, ...]
    parameters: dict[str, str] = field(default_factory=dict)
    kind: str = "libpq"
    where: str = ""
    """File, line and column."""


@dataclass(frozen=True, slots=True)
class AccessPath:
    """All of a cluster's proxies, pools and clients."""

    proxies: tuple[Proxy, ...] = ()
    pools: tuple[Pool, ...] = ()
    clients: tuple[Client, ...] = ()

    @property
    def to_the_leader(self) -> tuple[Proxy, ...]:
        """Proxies that choose among servers the one that takes writes."""
        return tuple(proxy for proxy in self.proxies if not proxy.for_reads and len(proxy.servers) > 1)
