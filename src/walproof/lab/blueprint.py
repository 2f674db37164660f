"""The lab as decided before anything starts: members, addresses, ports, folders, users. Pure; starts nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from walproof.model.topology import Endpoint
from walproof.patroni.config import SyncMode

POSTGRES_PORT, REST_PORT, ETCD_PORT, ETCD_METRICS_PORT = 5432, 8008, 2379, 2381
"""Of every member, on its own address."""

Timeouts = Literal["default", "fast"]


@dataclass(frozen=True, slots=True)
class Disk:
    """Where data lives: "plain" folders, or ext4 "image"s of size_bytes over loop devices; WAL apart when asked."""

    kind: str = "plain"
    size_bytes: int = 2 << 30
    wal_volume: bool = False


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Everything the lab is created from, kept as JSON in its folder (lab/home.py). `number` picks the subnet."""

    name: str
    number: int
    members: tuple[str, ...]
    home: Path
    """Owned by the lab; removed with it."""
    postgres_bin: Path
    postgres_version: int
    port_base: int = 5500
    sync: SyncMode = SyncMode.QUORUM
    quorum: int = 1
    parameters: dict[str, str] = field(default_factory=dict)
    disk: Disk = Disk()
    cores: float | None = None
    timeouts: Timeouts = "fast"
    """PostgreSQL's, Patroni's and HAProxy's: their defaults, or those of a fast failover."""

    @property
    def fast_timeouts(self) -> bool:
        """Whether failures are noticed in seconds."""
        return self.timeouts == "fast"

    @property
    def subnet(self) -> str:
        """The lab's own network."""
        return f"10.77.{self.number}.0/24"

    @property
    def gateway(self) -> str:
        """The host's own address on the lab's bridge: where clients come from."""
        return f"10.77.{self.number}.1"

    @property
    def bridge(self) -> str:
        """Name of the bridge in the host's namespace."""
        return f"wp{self.number}br"

    def address(self, member: str) -> str:
        return f"10.77.{self.number}.{11 + self.members.index(member)}"

    def namespace(self, member: str) -> str:
        """The member's network namespace, as `ip netns` names it."""
        return f"wp{self.number}-{member}"

    def control_group(self, member: str) -> str:
        """The name of the member's control group, below walproof's own; numbers are taken once on a machine."""
        return f"{self.number}-{member}"

    def veth(self, member: str) -> str:
        """The host's end of the member's veth pair; the member's end is eth0."""
        return f"wp{self.number}v{self.members.index(member) + 1}"

    def member_dir(self, member: str) -> Path:
        """Config, logs and pid files of one member: ours, only its programs' own folders below it are theirs."""
        return self.home / member

    def run_dir(self, member: str) -> Path:
        """HOME of the member's programs."""
        return self.member_dir(member) / "run"

    def data_dir(self, member: str) -> Path:
        """PGDATA; below a mounted image when the disk is one."""
        return self.member_dir(member) / "disk" / "data"

    def wal_dir(self, member: str) -> Path | None:
        """The WAL's own volume, None when it lives in PGDATA."""
        return self.member_dir(member) / "wal" / "pg_wal" if self.disk.wal_volume else None

    @property
    def access_dir(self) -> Path:
        """Config, logs and pid files of HAProxy, PgBouncer and the monitoring: ours."""
        return self.home / "access"

    @property
    def access_run_dir(self) -> Path:
        """HOME and sockets of these programs: theirs."""
        return self.access_dir / "run"

    @property
    def passfile(self) -> Path:
        """libpq's password file of superuser and replication, readable by its owner only."""
        return self.home / "pgpass"

    @property
    def ports(self) -> dict[str, int]:
        """Ports on 127.0.0.1 by what listens there."""
        names = (
            "leader",
            "standby",
            "haproxy-stats",
            "pgbouncer",
            "prometheus",
            "exporter",
            "watch",
            "pgbouncer-exporter",
        )
        return {name: self.port_base + i for i, name in enumerate(names)}

    def rest_url(self, member: str) -> str:
        return f"http://{self.address(member)}:{REST_PORT}"

    def endpoint(self, route: str, *, user: str = "postgres", database: str = "postgres") -> Endpoint:
        """How clients reach the leader by that route; not DIRECT, for which the caller must know the leader."""
        local = "127.0.0.1"
        hosts = {
            "multi-host": tuple((self.address(m), POSTGRES_PORT) for m in self.members),
            "haproxy": ((local, self.ports["leader"]),),
            "pgbouncer": ((local, self.ports["pgbouncer"]),),
        }[route]
        options = (("target_session_attrs", "read-write"),) if route == "multi-host" else ()
        passfile, pooled = str(self.passfile), route == "pgbouncer"
        return Endpoint(hosts, database, user, passfile, (("connect_timeout", "2"), *options), pooled)

    def member_endpoint(self, member: str, *, user: str = "postgres", database: str = "postgres") -> Endpoint:
        return Endpoint(
            ((self.address(member), POSTGRES_PORT),), database, user, str(self.passfile), (("connect_timeout", "2"),)
        )
