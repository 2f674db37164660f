"""A change of a cluster's configuration, as values: what is asked, what it would change, on which version."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from walproof.model.guarantee import QuorumKind

PARAMETERS = frozenset(
    (
        "synchronous_commit",
        "synchronous_standby_names",
        "wal_sender_timeout",
        "wal_receiver_timeout",
        "tcp_user_timeout",
        "tcp_keepalives_idle",
        "tcp_keepalives_interval",
        "tcp_keepalives_count",
        "commit_delay",
        "commit_siblings",
        "wal_compression",
    )
)
"""Every parameter of PostgreSQL that walproof changes on a cluster it did not start; no file can name another one."""
_MANAGERS = (
    "ttl",
    "loop_wait",
    "retry_timeout",
    "primary_start_timeout",
    "master_start_timeout",
    "failsafe_mode",
    "synchronous_mode",
    "synchronous_mode_strict",
    "synchronous_node_count",
    "synchronous",
    "minSyncReplicas",
    "maxSyncReplicas",
)
SETTABLE = PARAMETERS | frozenset(_MANAGERS)
"""And every key of a failover manager's configuration."""


@dataclass(frozen=True, slots=True)
class SyncReplication:
    """Synchronous replication: method (None is asynchronous), how many standbys, and what happens without them.

    `strict`: commits wait when too few standbys are there; where it is False the number degrades, down to none. None
    leaves that as the manager has it; on CloudNativePG, where the three stand and fall together, it is `required`.
    """

    method: QuorumKind | None = QuorumKind.ANY
    number: int = 1
    strict: bool | None = None

    @property
    def text(self) -> str:
        """As in tables: ANY 1, FIRST 2 strict, asynchronous."""
        if self.method is None or self.number == 0:
            return "asynchronous"
        return f"{self.method} {self.number}{' strict' if self.strict else ''}"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What is asked: parameters of PostgreSQL (None resets one), synchronous replication, the manager's own keys.

    `manager` holds keys of the failover manager's configuration (Patroni: ttl, loop_wait, …); targets without such a
    manager leave it out.
    """

    parameters: Mapping[str, str | None] = field(default_factory=dict)
    replication: SyncReplication | None = None
    manager: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of what a plan would change: a member (or "cluster"), name, value now, value then."""

    where: str
    name: str
    before: str | None
    after: str | None

    @property
    def text(self) -> str:
        """As a diff."""
        then = "removed" if self.after is None else self.after
        return f"{self.where}: {self.name}: {'not set' if self.before is None else self.before} → {then}"


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """What a change would change now. `version` is the target's own token of what the configuration was."""

    change: ConfigChange
    differences: tuple[Difference, ...]
    version: str
