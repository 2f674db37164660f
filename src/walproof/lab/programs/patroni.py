"""Patroni, the lab's manager of failover. Settings → patroni.yml, argv; starts nothing."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from walproof.patroni.config import SyncMode, sync_keys

REST_PORT = 8008
FAST = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
"""Patroni refuses a ttl under 20, a loop_wait under 1 and a retry_timeout under 3 (patroni/config.py, 4.1)."""
DEFAULT = {"ttl": 30, "loop_wait": 10, "retry_timeout": 10}


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
        **(FAST if fast_timeouts else DEFAULT),
        **({"primary_start_timeout": 0} if fast_timeouts else {}),
        # Loss shall be measured, not hidden by a list of candidates that ends up empty (pitfall P22).
        "maximum_lag_on_failover": 1 << 40,
        "failsafe_mode": True,
        **sync_keys(sync.replication(quorum)),
        "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": parameters},
    }


def config_text(settings: PatroniSettings) -> str:
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


def argv(config: Path) -> list[str]:
    """The command line: this Python's own Patroni."""
    return [sys.executable, "-m", "patroni", str(config)]
