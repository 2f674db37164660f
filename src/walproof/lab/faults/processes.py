"""Faults of a member's processes: killed, stopped, frozen, restarted, and the majority of the DCS lost.

Each refuses, with nothing changed, a member that is unknown, down already or under the same fault (UsageError).
"""

import contextlib
import os
import signal

import psutil

from walproof.errors import UsageError
from walproof.lab import members, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, suspend
from walproof.machine import untrusted
from walproof.machine.clock import RealClock


def kill(blueprint: Blueprint, member: str) -> None:
    """The postmaster killed with -9; Patroni starts it again or fails over."""
    os.kill(_postmaster(blueprint, member, "kill"), signal.SIGKILL)


def crash_restart(blueprint: Blueprint, member: str) -> None:
    """A standby's background writer killed with -9, as by the OOM killer: the postmaster crash-restarts all others."""
    postmaster = psutil.Process(_postmaster(blueprint, member, "crash-restart"))
    with contextlib.suppress(psutil.Error):
        for child in postmaster.children():
            if "background writer" in " ".join(child.cmdline()):
                child.kill()
                return
    raise UsageError(f"PostgreSQL of {member} has no background writer just now", "walproof lab status")


def stop(blueprint: Blueprint, member: str) -> None:
    """PostgreSQL shut down in an orderly way, bypassing Patroni (SIGINT: a fast shutdown, as pg_ctl's)."""
    os.kill(_postmaster(blueprint, member, "stop"), signal.SIGINT)


def restart(blueprint: Blueprint, member: str) -> None:
    """PostgreSQL restarted through Patroni; returns when Patroni has done it."""
    _postmaster(blueprint, member, "restart")
    patroni.restart(blueprint, member)


def kill_member(blueprint: Blueprint, member: str) -> None:
    """Every process of the member killed with -9, Patroni and etcd too; it stays down until it is recovered."""
    active.check_possible(blueprint, active.KILL_MEMBER, member)
    if not members.processes(blueprint, member):
        raise UsageError(f"{member} is already down", active.CLEAR)
    with active.added(blueprint, _entry(active.KILL_MEMBER, member)):
        members.kill_everything(blueprint, member, RealClock())


def freeze(blueprint: Blueprint, member: str) -> None:
    """Every process of the member stopped, as in a paused virtual machine; connections stay open."""
    active.check_possible(blueprint, active.FREEZE, member)
    if not members.processes(blueprint, member):
        raise UsageError(f"{member} is down and cannot be frozen", active.CLEAR)
    with active.added(blueprint, _entry(active.FREEZE, member)):
        suspend.stop_all(blueprint, member)


def thaw(blueprint: Blueprint, member: str) -> None:
    """Resume after freeze; UsageError when the member is not frozen."""
    active.check_member(blueprint, member)
    if not any((f.fault, f.member) == (active.FREEZE, member) for f in active.in_effect(blueprint)):
        raise UsageError(f"{member} is not frozen", "walproof lab status")
    suspend.resume_all(blueprint, member)
    active.remove(blueprint, active.FREEZE, member)


def lose_dcs(blueprint: Blueprint) -> None:
    """Stop etcd on a majority of the members: it no longer answers, the leader may not keep its key."""
    active.check_possible(blueprint, active.DCS_LOSS, "")
    majority = blueprint.members[: len(blueprint.members) // 2 + 1]
    with active.added(blueprint, _entry(active.DCS_LOSS, "", ", ".join(majority))):
        for member in majority:
            _signal_etcd(blueprint, member, signal.SIGSTOP)


def recover_dcs(blueprint: Blueprint) -> None:
    """Resume every etcd; nothing happens where it runs."""
    for member in blueprint.members:
        _signal_etcd(blueprint, member, signal.SIGCONT)
    active.remove(blueprint, active.DCS_LOSS)


def remove_postmaster_pid(blueprint: Blueprint, member: str) -> None:
    """Remove postmaster.pid of a PostgreSQL that died with its whole member, as a boot finds no such process either.

    A postmaster nobody has reaped yet, or another process with its number, would keep PostgreSQL from starting.
    """
    if not members.processes(blueprint, member):
        untrusted.remove(blueprint.member_dir(member), blueprint.data_dir(member) / "postmaster.pid")


def _signal_etcd(blueprint: Blueprint, member: str, number: signal.Signals) -> None:
    pid = members.program_pid(blueprint, member, "etcd")
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _postmaster(blueprint: Blueprint, member: str, fault: str) -> int:
    active.check_possible(blueprint, fault, member)
    pid = members.postmaster(blueprint, member)
    if pid is None:
        raise UsageError(f"PostgreSQL of {member} is already down", "walproof lab status")
    return pid


def _entry(fault: str, member: str, detail: str = "") -> active.ActiveFault:
    return active.ActiveFault(fault, member, RealClock().now(), detail)
