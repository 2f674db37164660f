"""What the doctor inspects: one read-only snapshot of a cluster's settings, standbys, overrides and manager."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from walproof.model.access_path import AccessPath
from walproof.model.cnpg_facts import CnpgFacts
from walproof.model.patroni_values import (
    is_on,
    is_standby_cluster,
    nofailover,
    nostream,
    nosync,
    number,
    replicatefrom,
    synchronous_mode,
)

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class SettingFact:
    """One row of pg_settings: value in `unit`, and where it was set."""

    name: str
    value: str
    unit: str = ""
    source: str = "default"
    file: str = ""
    line: int | None = None
    pending_restart: bool = False

    @property
    def text(self) -> str:
        """The value with its unit: 60000 ms, off, 'ANY 1 (a,b)'."""
        return f"{self.value} {self.unit}".strip() if self.value else "''"

    @property
    def where(self) -> str:
        """Where it was set: a file and line when known, else the source."""
        return f"{self.file}:{self.line}" if self.file else self.source

    @property
    def seconds(self) -> float:
        """A duration in seconds; bare numbers are taken as they are."""
        return float(self.value) * SECONDS.get(self.unit, 1.0)

    @property
    def on(self) -> bool:
        """Whether a boolean setting is on."""
        return self.value == "on"

    @property
    def by_alter_system(self) -> bool:
        """Whether ALTER SYSTEM set it, over whatever a manager writes; false where the role may not see files."""
        return self.file.rpartition("/")[2] == "postgresql.auto.conf"


@dataclass(frozen=True, slots=True)
class Sender:
    """One row of pg_stat_replication. Lags in seconds, lag_bytes behind the sender; None when unseen."""

    application_name: str
    address: str = ""
    state: str = "streaming"
    sync_state: str = "async"
    flush_lag_s: float | None = None
    lag_bytes: int | None = None
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Override:
    """A synchronous_commit set for a role, a database, both, or a function: by its SET clause, or by its source.

    what: role, database, function or source.
    """

    what: str
    name: str
    value: str
    database: str = ""
    reset: str = ""
    """The SQL that reverts it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One replication slot; retained_bytes is WAL kept for it."""

    name: str
    active: bool
    wal_status: str = "reserved"
    retained_bytes: int = 0
    logical: bool = False
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Waiter:
    """A backend that waits in SyncRep just now."""

    pid: int
    seconds: float
    user: str = ""


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """One member. `name` is what the manager or cluster_name calls it; `error` says why it could not be inspected."""

    name: str
    address: str = ""
    error: str = ""
    version: int = 0
    """server_version_num."""
    leader: bool = False
    settings: dict[str, SettingFact] = field(default_factory=dict)
    senders: tuple[Sender, ...] = ()
    receiver_status: str = ""
    receiver_slot: str = ""
    receiver_name: str = ""
    """application_name this member streams under, when it could be read."""
    timeline: int | None = None
    system_identifier: str = ""
    replay_paused: bool = False
    slots: tuple[Slot, ...] = ()
    overrides: tuple[Override, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    oldest_query_s: float = 0.0
    """On a standby: the age of the oldest query that may hold replay back."""
    oldest_prepared_s: float = 0.0
    checksum_failures: int = 0
    archive_failing: bool = False
    unlogged_tables: int = 0
    superuser: bool = False
    monitor: bool = False
    """Superuser, or member of pg_monitor."""
    user: str = ""

    def setting(self, name: str) -> SettingFact | None:
        """The setting, None where this version has none."""
        return self.settings.get(name)

    def value(self, name: str, default: str = "") -> str:
        """The setting's value, `default` where there is none."""
        fact = self.settings.get(name)
        return default if fact is None else fact.value


@dataclass(frozen=True, slots=True)
class PatroniMember:
    """One member as /cluster shows it."""

    name: str
    role: str
    state: str
    timeline: int | None = None
    lag_bytes: int | None = None
    pending_restart: bool = False
    tags: dict[str, Any] = field(default_factory=dict)
    version: str = ""


LEADER_ROLES = ("leader", "primary", "master")
"""Names that Patroni's versions give the one role."""


@dataclass(frozen=True, slots=True)
class PatroniFacts:
    """Patroni's dynamic configuration (GET /config) and its members."""

    config: dict[str, Any]
    members: tuple[PatroniMember, ...] = ()
    paused: bool = False
    url: str = ""

    @property
    def version(self) -> tuple[int, ...]:
        """The oldest member's version, () when none is known."""
        known = [tuple(int(p) for p in m.version.split(".")[:3] if p.isdecimal()) for m in self.members if m.version]
        return min(known, default=())

    @property
    def standbys(self) -> tuple[PatroniMember, ...]:
        return tuple(m for m in self.members if m.role not in (*LEADER_ROLES, "standby_leader"))

    @property
    def synchronous(self) -> str:
        """synchronous_mode as off, on or quorum; a standby cluster has none (global_config.py)."""
        return "off" if is_standby_cluster(self.config) else synchronous_mode(self.config)

    @property
    def strict(self) -> bool:
        return is_on(self.config, "synchronous_mode_strict")

    @property
    def barred(self) -> dict[str, str]:
        """Standbys that Patroni names for no commit now, each with the reason (postgresql/sync.py, _ReplicaList).

        One that follows another standby is not in the leader's pg_stat_replication.
        """
        standbys, most = self.standbys, number(self.config, "maximum_lag_on_syncnode")
        reasons: dict[str, str] = {}
        for member in standbys:
            upstream = str(member.tags.get("replicatefrom"))
            cascades = upstream != member.name and any(upstream == other.name for other in standbys)
            reason = nosync(member.tags) or nostream(member.tags) or (replicatefrom(member.tags) if cascades else "")
            if member.state not in ("running", "streaming"):
                reason = reason or f"state: {member.state}"
            # /cluster tells it up to loop_wait late: one that Patroni names is not too far behind for it.
            if 0 < most < (member.lag_bytes or 0) and not member.role.endswith("_standby"):
                reason = reason or f"behind: {member.lag_bytes} bytes, over maximum_lag_on_syncnode"
            reasons |= {member.name: reason} if reason else {}
        return reasons

    @property
    def able(self) -> tuple[PatroniMember, ...]:
        """Standbys that may be named: Patroni asks for no more than there are of these, in every mode."""
        barred = self.barred
        return tuple(m for m in self.standbys if m.name not in barred)

    @property
    def ineligible(self) -> dict[str, str]:
        """Standbys that Patroni never promotes as they are, each with the reason (ha.py, is_healthiest_node).

        With synchronous_mode on only those that are named lead; in quorum mode others too, if voters agree.
        """
        barred = self.barred if self.synchronous == "on" else {}
        return {m.name: why for m in self.standbys if (why := nofailover(m.tags) or barred.get(m.name, ""))}


class Namer(StrEnum):
    """Who names the synchronous standbys: a manager by itself, or an operator of the cluster."""

    PATRONI = "Patroni"
    CLOUDNATIVEPG = "CloudNativePG"
    OPERATOR = "an operator"


@dataclass(frozen=True, slots=True)
class Facts:
    """One snapshot: members, the manager when there is one, seconds it took, databases that could not be inspected."""

    target: str
    members: tuple[MemberFacts, ...]
    patroni: PatroniFacts | None = None
    took_s: float = 0.0
    unseen_databases: tuple[str, ...] = ()
    cnpg: CnpgFacts | None = None
    access: AccessPath = field(default_factory=AccessPath)

    @property
    def managed(self) -> bool:
        """Whether a manager writes the configuration."""
        return self.patroni is not None or self.cnpg is not None

    @property
    def namer(self) -> Namer:
        """Who writes synchronous_standby_names, unless ALTER SYSTEM overrides it.

        Patroni does in synchronous_mode only, paused or not (ha.py, process_sync_replication); else it writes those of
        postgresql.parameters (disable_synchronous_replication), which it leaves aside while it names standbys itself.
        """
        if self.cnpg is not None:
            return Namer.CLOUDNATIVEPG
        patroni = self.patroni is not None and self.patroni.synchronous != "off"
        return Namer.PATRONI if patroni else Namer.OPERATOR

    def by_alter_system(self, name: str) -> bool:
        """Whether ALTER SYSTEM set it on the leader, or on a standby where no leader was inspected."""
        members = (self.leader,) if self.leader else self.inspected
        return any(setting.by_alter_system for m in members if (setting := m.setting(name)) is not None)

    @property
    def leader(self) -> MemberFacts | None:
        """The leader, None when there is none or it could not be inspected."""
        return next((m for m in self.members if m.leader and not m.error), None)

    @property
    def leader_name(self) -> str:
        """The leader's name, "" without a leader."""
        return self.leader.name if self.leader else ""

    @property
    def senders(self) -> tuple[Sender, ...]:
        """The leader's walsenders, none without a leader."""
        return self.leader.senders if self.leader else ()

    @property
    def standbys(self) -> tuple[MemberFacts, ...]:
        """Standbys that could be inspected."""
        return tuple(m for m in self.members if not m.leader and not m.error)

    @property
    def inspected(self) -> tuple[MemberFacts, ...]:
        return tuple(m for m in self.members if not m.error)
