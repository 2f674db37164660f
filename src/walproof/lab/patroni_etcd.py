"""What every member runs: etcd, and Patroni with the parameters it hands to PostgreSQL: command lines and files.

Also the configuration kept in the DCS. Starts nothing."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from walproof.lab import home
from walproof.lab.blueprint import ETCD_PORT, POSTGRES_PORT, REST_PORT, Blueprint
from walproof.lab.privileges import make_folder, make_log, member_uid, write_private
from walproof.machine.programs import program
from walproof.patroni.config import DEFAULTS, LEAST, sync_keys

_PEER_PORT = 2380


def etcd_argv(addresses: Mapping[str, str], member: str, data_dir: Path, token: str) -> list[str]:
    """The command line of that member's etcd (addresses by name); it listens on its own address and nowhere else."""
    client, peer = (f"http://{addresses[member]}:{port}" for port in (ETCD_PORT, _PEER_PORT))
    options = {
        "name": member,
        "data-dir": str(data_dir),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": ",".join(f"{name}=http://{address}:{_PEER_PORT}" for name, address in addresses.items()),
        "initial-cluster-state": "new",
        "initial-cluster-token": token,
        "heartbeat-interval": "100",
        "election-timeout": "1000",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
        "logger": "zap",
        "log-level": "warn",
    }
    return [str(program("etcd")), *(f"--{name}={value}" for name, value in options.items())]


def lab_parameters(blueprint: Blueprint) -> dict[str, str]:
    """PostgreSQL's parameters as the lab sets them by itself, overridden by `--param`."""
    connections = str(10 + 2 * len(blueprint.members))
    known = {
        "max_connections": "400",
        "superuser_reserved_connections": "5",
        "max_worker_processes": "8",
        "max_wal_senders": connections,
        "max_replication_slots": connections,
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
    return {**known, **(fast if blueprint.fast_timeouts else {}), **blueprint.parameters}


def dynamic_config(blueprint: Blueprint) -> dict[str, Any]:
    """Patroni's configuration in the DCS when the lab is created."""
    fast = blueprint.fast_timeouts
    return {
        **(LEAST if fast else DEFAULTS),
        **({"primary_start_timeout": 0} if fast else {}),
        # Loss shall be measured, not hidden by a list of candidates that ends up empty (pitfall P22).
        "maximum_lag_on_failover": 1 << 40,
        "failsafe_mode": True,
        **sync_keys(blueprint.sync.replication(blueprint.quorum)),
        "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": lab_parameters(blueprint)},
    }


def patroni_yml(blueprint: Blueprint, member: str, passwords: dict[str, str]) -> str:
    """patroni.yml; holds the passwords (postgres, replicator, rewinder, rest): for a file only its owner reads."""
    address, wal_dir = blueprint.address(member), blueprint.wal_dir(member)
    rest, postgres = f"{address}:{REST_PORT}", f"{address}:{POSTGRES_PORT}"
    own_first = sorted(blueprint.members, key=lambda other: other != member)
    sync_later = [] if blueprint.disk.kind == "image" else ["no-sync"]
    wal = [] if wal_dir is None else [{"waldir": str(wal_dir)}]
    tree = {
        "scope": blueprint.name,
        "name": member,
        "restapi": {
            "listen": rest,
            "connect_address": rest,
            "authentication": {"username": "walproof", "password": passwords["rest"]},
        },
        "etcd3": {"hosts": [f"{blueprint.address(m)}:{ETCD_PORT}" for m in own_first]},
        "bootstrap": {
            "dcs": dynamic_config(blueprint),
            "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums", *sync_later, *wal],
        },
        "postgresql": {
            "listen": postgres,
            "connect_address": postgres,
            "data_dir": str(blueprint.data_dir(member)),
            "bin_dir": str(blueprint.postgres_bin),
            "pgpass": str(blueprint.run_dir(member) / "pgpass"),
            "authentication": {
                role: {"username": user, "password": passwords[user]}
                for role, user in (("superuser", "postgres"), ("replication", "replicator"), ("rewind", "rewinder"))
            },
            "parameters": {"unix_socket_directories": ""},
            "pg_hba": [f"host {database} all {blueprint.subnet} scram-sha-256" for database in ("all", "replication")],
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


def write_member(blueprint: Blueprint, member: str) -> None:
    """Folders and files of one member: what its init process starts, and Patroni's configuration."""
    folder = blueprint.member_dir(member)
    owner = member_uid(blueprint.number)
    make_folder(folder, 0o711)
    wal = blueprint.wal_dir(member)
    for theirs in (folder / "etcd", blueprint.run_dir(member), blueprint.data_dir(member).parent, wal and wal.parent):
        if theirs is not None:
            make_folder(theirs, owner=owner)
    config = folder / "patroni.yml"
    write_private(config, patroni_yml(blueprint, member, home.read_secrets(blueprint)), reader=owner)
    addresses = {m: blueprint.address(m) for m in blueprint.members}
    etcd = etcd_argv(addresses, member, folder / "etcd", blueprint.name)
    # Patroni starts once its etcd answers "health":"true", which it does when it knows a leader.
    healthy = f"http://{addresses[member]}:{ETCD_PORT}/health"
    programs = [
        {"name": "etcd", "argv": etcd, "log": "etcd.log"},
        {"name": "patroni", "argv": patroni_argv(config), "log": "patroni.log", "await": healthy},
    ]
    for log in ("etcd.log", "patroni.log"):
        make_log(folder / log, owner)
    write_private(folder / "member.json", json.dumps(programs, indent=1), reader=owner)
