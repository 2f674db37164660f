"""Faults of a member's processes: killed, stopped, frozen, restarted, and the DCS majority gone; healing is heal.py's.

Each refuses, with nothing changed, a member that is unknown, down already or hurt in the same way.
"""

import contextlib
import os
import signal

from walproof.errors import UsageTrouble
from walproof.lab import manager, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.clock import RealClock
from walproof.lab.faults import force, stopping


def kill(blueprint: Blueprint, member: str) -> None:
    """The postmaster killed with -9; the manager starts it again or fails over. Nothing is left to heal by hand."""
    os.kill(_postmaster(blueprint, member, "kill"), signal.SIGKILL)


def stop(blueprint: Blueprint, member: str) -> None:
    """PostgreSQL shut down in an orderly way behind the manager's back (SIGINT: a fast shutdown, as pg_ctl's)."""
    os.kill(_postmaster(blueprint, member, "stop"), signal.SIGINT)


def restart(blueprint: Blueprint, member: str) -> None:
    """PostgreSQL restarted through the manager; returns when the manager says that it was."""
    _postmaster(blueprint, member, "restart")
    manager.restart(blueprint, member)


def kill_member(blueprint: Blueprint, member: str) -> None:
    """Every process of the member killed with -9, the manager and etcd too; stays down until healed."""
    force.refuse_nonsense(blueprint, force.KILL_MEMBER, member)
    if not members.processes(blueprint, member):
        raise UsageTrouble(f"{member} is already down", f"walproof lab fault --heal --name {blueprint.name}")
    with force.noted(blueprint, _entry(force.KILL_MEMBER, member)):
        members.kill_everything(blueprint, member, RealClock())


def freeze(blueprint: Blueprint, member: str) -> None:
    """Every process of the member stopped, as in a paused virtual machine; connections stay open."""
    force.refuse_nonsense(blueprint, force.FREEZE, member)
    if not members.processes(blueprint, member):
        raise UsageTrouble(f"{member} is down and cannot be frozen", "walproof lab fault --heal")
    with force.noted(blueprint, _entry(force.FREEZE, member)):
        stopping.stop_all(blueprint, member)


def thaw(blueprint: Blueprint, member: str) -> None:
    """Go on after freeze; UsageTrouble when the member is not frozen."""
    force.known(blueprint, member)
    if not any((f.fault, f.member) == (force.FREEZE, member) for f in force.in_force(blueprint)):
        raise UsageTrouble(f"{member} is not frozen", "walproof lab status")
    stopping.go_on(blueprint, member)
    force.strike(blueprint, force.FREEZE, member)


def lose_dcs(blueprint: Blueprint) -> None:
    """Stop etcd on a majority of the members: it no longer answers, the leader may not keep its key."""
    force.refuse_nonsense(blueprint, force.DCS, "")
    majority = blueprint.members[: len(blueprint.members) // 2 + 1]
    with force.noted(blueprint, _entry(force.DCS, "", ", ".join(majority))):
        for member in majority:
            _signal_etcd(blueprint, member, signal.SIGSTOP)


def find_dcs(blueprint: Blueprint) -> None:
    """Let every etcd go on; nothing happens where it runs."""
    for member in blueprint.members:
        _signal_etcd(blueprint, member, signal.SIGCONT)
    force.strike(blueprint, force.DCS)


def forget_postmaster(blueprint: Blueprint, member: str) -> None:
    """Remove the pid file of a PostgreSQL that died with its whole member, as a boot finds no such process either.

    A postmaster nobody has reaped yet, or somebody else with its number, would keep PostgreSQL from starting.
    """
    if not members.processes(blueprint, member):
        (blueprint.data_dir(member) / "postmaster.pid").unlink(missing_ok=True)


def _signal_etcd(blueprint: Blueprint, member: str, number: signal.Signals) -> None:
    pid = members.program_pid(blueprint, member, "etcd")
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _postmaster(blueprint: Blueprint, member: str, fault: str) -> int:
    force.refuse_nonsense(blueprint, fault, member)
    pid = members.postmaster(blueprint, member)
    if pid is None:
        raise UsageTrouble(f"PostgreSQL of {member} is already down", "walproof lab status")
    return pid


def _entry(fault: str, member: str, detail: str = "") -> force.InForce:
    return force.InForce(fault, member, RealClock().now(), detail)
