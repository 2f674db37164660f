"""The lab's configuration changed while it runs: parameters checked by `postgres -C`, changes made through Patroni.

Changes (synchronous mode, parameters) are waited for until they are in effect. Starts no program."""

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg

from walproof.errors import TargetError, UsageError
from walproof.lab import patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.patroni import wait_until_healthy
from walproof.lab.patroni_etcd import lab_parameters
from walproof.lab.privileges import confined_check
from walproof.machine.clock import RealClock
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import SyncMode, sync_keys

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
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not a parameter", "write it like --param work_mem=64MB")
        found[name.strip().lower()] = value.strip()
    return found


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
        done = subprocess.run(confined_check(argv, Path(folder)), capture_output=True, text=True, check=False)
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
        if any(state is None for state in states.values()):
            return False
        known = {m: state for m, state in states.items() if state is not None}
        pending = {m: state for m, state in known.items() if any(p for _, p in state.values())}
        if pending:
            restarted.append(True)
            _restart_in_turn(blueprint, pending, expected)
            return False
        return all(_same(state.get(n), expected[n]) for state in known.values() for n in wanted)

    wait_for(Wait.SETTING_IN_EFFECT, in_effect, clock, pace_s=0.2, times=4)
    if restarted:
        wait_until_healthy(blueprint, clock)


def _same(found: tuple[str, bool] | None, expected: str | None) -> bool:
    if found is None:
        return False
    return expected is None or found[0] == expected


def _restart_in_turn(
    blueprint: Blueprint, pending: dict[str, dict[str, tuple[str, bool]]], expected: dict[str, str | None]
) -> None:
    """Restart those whose turn it is, at once.

    A standby may never have less than its primary (max_connections and the like, manual 26.4.3): what grows is
    restarted on the standbys first, what shrinks on the leader.
    """
    leader = patroni.any_answering(blueprint)
    shrinks = any(_number(found) > _number(expected[n]) for n, (found, _) in pending.get(leader, {}).items())
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
    question = "SELECT name, setting, pending_restart FROM pg_settings WHERE name = ANY(%s)"
    try:
        with psycopg.connect(blueprint.member_endpoint(member).conninfo(), autocommit=True) as connection:
            rows = connection.execute(question, ([n.lower() for n in names],)).fetchall()
    except psycopg.Error:
        return None
    found = {str(name).lower(): (str(setting), bool(pending)) for name, setting, pending in rows}
    return {n: found[n.lower()] for n in names if n.lower() in found}
