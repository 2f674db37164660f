"""How the lab is configured: files and command lines of etcd and Patroni, parameters checked by `postgres -C`, changes.

Changes (synchronous mode, parameters) go through Patroni and are waited for until they are in effect."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import yaml

from walproof.errors import TargetError, UsageError
from walproof.lab import home, patroni
from walproof.lab.blueprint import ETCD_METRICS_PORT, ETCD_PORT, POSTGRES_PORT, REST_PORT, Blueprint
from walproof.lab.patroni import wait_until_healthy
from walproof.lab.privileges import apart, confined_check, make_folder, make_log, member_uid, write_private
from walproof.machine.answering import BoundedLogin, answering
from walproof.machine.clock import RealClock
from walproof.machine.programs import program
from walproof.model.patroni_values import DEFAULTS, LEAST
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode, sync_keys

_PEER_PORT = 2380


def etcd_argv(addresses: Mapping[str, str], member: str, data_dir: Path, token: str) -> list[str]:
    """The command line of that member's etcd (addresses by name); it listens on its own address and nowhere else."""
    client, peer = (f"http://{addresses[member]}:{port}" for port in (ETCD_PORT, _PEER_PORT))
    options = {
        "name": member,
        "data-dir": str(data_dir),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-metrics-urls": f"http://{addresses[member]}:{ETCD_METRICS_PORT}",
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


_RESERVED = {
    "listen_addresses": "the lab gives every member its address",
    "port": "the lab's PostgreSQL listens on 5432 of each member's address",
    "cluster_name": "Patroni sets it",
    "hba_file": "Patroni writes it",
    "primary_conninfo": "Patroni sets it",
    "primary_slot_name": "Patroni sets it",
    "data_directory": "the lab decides where data lives",
    "config_file": "Patroni writes it",
    "synchronous_standby_names": "Patroni sets it; use --sync and --quorum",
}
"""Parameters that cannot be given, and why."""


def read_parameters(texts: tuple[str, ...]) -> dict[str, str]:
    """Parameters by name of "name=value" texts; UsageError for anything else.

    >>> read_parameters(("work_mem=64MB",))
    {'work_mem': '64MB'}
    """
    parameters = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not a parameter", "write it like --param work_mem=64MB")
        parameters[name.strip().lower()] = value.strip()
    return parameters


def canonical(bin_dir: Path, name: str, value: str | None) -> str | None:
    """The value as pg_settings.setting shows it ("131072" of shared_buffers=1GB); UsageError when refused."""
    if value is None:
        return None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
        raise UsageError(f"{name!r} is not the name of a parameter", "write it like work_mem=64MB")
    with tempfile.TemporaryDirectory(prefix="walproof-") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "postgresql.conf").touch()
        argv = [str(bin_dir / "postgres"), "-D", folder, "-C", name, "-c", f"{name}={value}"]
        argv = confined_check(argv, Path(folder))
        done: subprocess.CompletedProcess[str] = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, **apart()
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        reason = re.sub(r"^.*?(FATAL|ERROR):\s*", "", last)
        raise UsageError(f"PostgreSQL refuses {name}={value}: {reason}", "see pg_settings for names and units")
    return done.stdout.rstrip("\n")


def check_parameters(bin_dir: Path, parameters: dict[str, str]) -> None:
    """UsageError when PostgreSQL itself refuses a name or a value, or the lab or Patroni sets the parameter."""
    for name, why in _RESERVED.items():
        if name in parameters:
            raise UsageError(f"{name} cannot be set: {why}", f"leave --param {name}=… out")
    for name, value in parameters.items():
        canonical(bin_dir, name, value)


def set_sync(blueprint: Blueprint, mode: SyncMode, quorum: int) -> None:
    """Set synchronous mode and quorum, and wait until the names are in effect."""
    standbys = len(blueprint.members) - 1
    if mode is not SyncMode.OFF and not 1 <= quorum <= standbys:
        raise UsageError(f"a quorum of {quorum} needs as many standbys; there are {standbys}")
    wanted = sync_keys(mode.replication(quorum))
    patroni.patch_config(blueprint, wanted)
    wait_until_healthy(blueprint, RealClock(), wanted=wanted)


def set_parameters(blueprint: Blueprint, parameters: dict[str, str | None]) -> None:
    """Set parameters on every member (None: back to the lab's own) and wait until pg_settings says so everywhere."""
    given = {name: value for name, value in parameters.items() if value is not None}
    check_parameters(blueprint.postgres_bin, given)
    own = lab_parameters(blueprint)
    wanted = {name: own.get(name) if value is None else value for name, value in parameters.items()}
    patroni.patch_config(blueprint, {"postgresql": {"parameters": wanted}})
    expected = {n: canonical(blueprint.postgres_bin, n, v) for n, v in wanted.items()}
    clock: Clock = RealClock()
    restarted: list[bool] = []

    def in_effect() -> bool:
        states = {m: _state(blueprint, m, list(wanted)) for m in blueprint.members}
        known = {m: state for m, state in states.items() if state is not None}
        if len(known) < len(states):
            return False
        pending = {m: state for m, state in known.items() if any(p for _, p in state.values())}
        if pending:
            restarted.append(True)
            _restart_in_turn(blueprint, pending, expected)
            return False
        return all(n in state and expected[n] in (None, state[n][0]) for state in known.values() for n in wanted)

    wait_for(Wait.SETTING_IN_EFFECT, in_effect, clock, pace_s=0.2, times=4)
    if restarted:
        wait_until_healthy(blueprint, clock)


def _restart_in_turn(
    blueprint: Blueprint, pending: dict[str, dict[str, tuple[str, bool]]], expected: dict[str, str | None]
) -> None:
    """Restart those whose turn it is, at once.

    A standby may never have less than its primary (max_connections and the like, manual 26.4.3): what grows is
    restarted on the standbys first, what shrinks on the leader.
    """
    leader = patroni.any_answering(blueprint)
    shrinks = any(_number(current) > _number(expected[n]) for n, (current, _) in pending.get(leader, {}).items())
    standbys = [m for m in pending if m != leader]
    turn = [leader] if leader in pending and (shrinks or not standbys) else standbys
    with ThreadPoolExecutor(max_workers=len(turn)) as pool:
        list(pool.map(lambda m: _try_restart(blueprint, m), turn))


def _try_restart(blueprint: Blueprint, member: str) -> None:
    # A member that is busy is asked again by the wait around it.
    with suppress(TargetError):
        patroni.restart(blueprint, member)


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return 0.0


def _state(blueprint: Blueprint, member: str, names: list[str]) -> dict[str, tuple[str, bool]] | None:
    question = "SELECT name, setting, pending_restart FROM pg_catalog.pg_show_all_settings() WHERE name = ANY(%s)"
    try:
        with (
            BoundedLogin.connect(blueprint.member_endpoint(member).conninfo(), autocommit=True) as connection,
            answering(connection),
        ):
            rows = connection.execute(question, ([n.lower() for n in names],)).fetchall()
    except psycopg.Error:
        return None
    settings = {str(name).lower(): (str(setting), bool(pending)) for name, setting, pending in rows}
    return {n: settings[n.lower()] for n in names if n.lower() in settings}
