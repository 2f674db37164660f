"""What every member runs: etcd, and Patroni with the parameters it hands to PostgreSQL.

Settings → argv, patroni.yml and readiness question; starts nothing."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from walproof.patroni.config import DEFAULTS, LEAST, SyncMode, sync_keys

CLIENT_PORT = 2379
PEER_PORT = 2380


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """One etcd member: its name and address, all addresses by name, its folder, heartbeat and election in ms."""

    name: str
    addresses: dict[str, str]
    data_dir: Path
    token: str
    heartbeat_ms: int = 100
    election_ms: int = 1000

    @property
    def address(self) -> str:
        """This member's own address."""
        return self.addresses[self.name]


def etcd_argv(settings: EtcdSettings, program: Path) -> list[str]:
    """The command line; listens on the member's own address and nowhere else."""
    client = f"http://{settings.address}:{CLIENT_PORT}"
    peer = f"http://{settings.address}:{PEER_PORT}"
    everybody = ",".join(f"{name}=http://{address}:{PEER_PORT}" for name, address in settings.addresses.items())
    options = {
        "name": settings.name,
        "data-dir": str(settings.data_dir),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": everybody,
        "initial-cluster-state": "new",
        "initial-cluster-token": settings.token,
        "heartbeat-interval": str(settings.heartbeat_ms),
        "election-timeout": str(settings.election_ms),
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "logger": "zap",
        "log-level": "warn",
    }
    return [str(program), *(f"--{name}={value}" for name, value in options.items())]


def etcd_health_url(address: str) -> str:
    """Answers with "health":"true" once the member knows a leader."""
    return f"http://{address}:{CLIENT_PORT}/health"


def postgres_parameters(members: int, *, fast_timeouts: bool) -> dict[str, str]:
    """Parameters of a lab of that size; `--param` goes over them."""
    known = {
        "max_connections": "400",
        "superuser_reserved_connections": "5",
        "max_worker_processes": "8",
        "max_wal_senders": str(10 + 2 * members),
        "max_replication_slots": str(10 + 2 * members),
        "max_prepared_transactions": "0",
        "wal_level": "replica",
        "wal_log_hints": "on",
        "wal_keep_size": "1GB",
        "max_wal_size": "4GB",
        "shared_buffers": "256MB",
        # Segments below /dev/shm would outlive a member killed with -9; these end with its IPC namespace.
        "dynamic_shared_memory_type": "sysv",
        "hot_standby_feedback": "off",
        "track_io_timing": "on",
        "track_wal_io_timing": "on",
        "log_checkpoints": "on",
        "log_line_prefix": "%m [%p] %q%u@%d %a ",
        "logging_collector": "off",
        "password_encryption": "scram-sha-256",
    }
    if not fast_timeouts:
        return known
    fast = {
        # A lost peer is noticed in seconds, not after TCP's minutes of retransmission (pitfalls P15, P17).
        "wal_sender_timeout": "5s",
        "wal_receiver_timeout": "2s",
        "wal_retrieve_retry_interval": "500ms",
        "wal_receiver_status_interval": "1s",
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "5000",
    }
    return {**known, **fast}


REST_PORT = 8008


@dataclass(frozen=True, slots=True)
class PatroniSettings:
    """One Patroni: who it is, where everything is, and the passwords by role (postgres, replicator, rewinder, rest)."""

    scope: str
    name: str
    address: str
    etcd_hosts: tuple[str, ...]
    data_dir: Path
    bin_dir: Path
    passfile: Path
    subnet: str
    passwords: dict[str, str] = field(repr=False)
    dynamic: dict[str, Any]
    wal_dir: Path | None = None
    durable_bootstrap: bool = False


def dynamic(sync: SyncMode, quorum: int, parameters: dict[str, str], *, fast_timeouts: bool) -> dict[str, Any]:
    """The configuration kept in the DCS."""
    return {
        **(LEAST if fast_timeouts else DEFAULTS),
        **({"primary_start_timeout": 0} if fast_timeouts else {}),
        # Loss shall be measured, not hidden by a list of candidates that ends up empty (pitfall P22).
        "maximum_lag_on_failover": 1 << 40,
        "failsafe_mode": True,
        **sync_keys(sync.replication(quorum)),
        "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": parameters},
    }


def patroni_yml(settings: PatroniSettings) -> str:
    """patroni.yml; holds passwords, so it belongs in a file only its owner reads."""
    passwords = settings.passwords
    sync_later = [] if settings.durable_bootstrap else ["no-sync"]
    wal = [] if settings.wal_dir is None else [{"waldir": str(settings.wal_dir)}]
    tree = {
        "scope": settings.scope,
        "name": settings.name,
        "restapi": {
            "listen": f"{settings.address}:{REST_PORT}",
            "connect_address": f"{settings.address}:{REST_PORT}",
            "authentication": {"username": "walproof", "password": passwords["rest"]},
        },
        "etcd3": {"hosts": list(settings.etcd_hosts)},
        "bootstrap": {
            "dcs": settings.dynamic,
            "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums", *sync_later, *wal],
        },
        "postgresql": {
            "listen": f"{settings.address}:5432",
            "connect_address": f"{settings.address}:5432",
            "data_dir": str(settings.data_dir),
            "bin_dir": str(settings.bin_dir),
            "pgpass": str(settings.passfile),
            "authentication": {
                role: {"username": user, "password": passwords[user]}
                for role, user in (("superuser", "postgres"), ("replication", "replicator"), ("rewind", "rewinder"))
            },
            "parameters": {"unix_socket_directories": ""},
            "pg_hba": [
                f"{kind} all {network} scram-sha-256"
                for kind in ("host all", "host replication")
                for network in (settings.subnet,)
            ],
            "basebackup": [{"checkpoint": "fast"}, *sync_later, *wal],
            "remove_data_directory_on_rewind_failure": True,
            "remove_data_directory_on_diverged_timelines": True,
        },
        "watchdog": {"mode": "off"},
    }
    return yaml.safe_dump(tree, sort_keys=False)


def patroni_argv(config: Path) -> list[str]:
    """The command line: this Python's own Patroni."""
    return [sys.executable, "-m", "patroni", str(config)]
