"""What a lab's members show of a fault: the kernel's processes, file systems, tracers and packets. Injects nothing.

Never asks the lab's own list of faults in effect: a fault that was listed and did nothing must not show.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import psutil

from walproof.errors import Error
from walproof.lab import members
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.faults import disks, power, volumes
from walproof.machine import pid_files
from walproof.model.member_state import MemberState

_PROBE_S = 0.4
_PROBE = """
import json, socket, sys
deaf = []
for name, host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=float(sys.argv[2])).close()
    except ConnectionRefusedError:
        pass
    except OSError:
        deaf.append(name)
print(json.dumps(deaf))
"""
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_DISK_SLEEP)


def shown(blueprint: Blueprint, state: MemberState) -> MemberState:
    """The state with what this machine tells of its member."""
    found = members.processes(blueprint, state.member)
    return replace(
        state,
        postmaster=_postmaster(blueprint, state.member),
        processes=_processes(found),
        disk=_disk(blueprint, state.member, found),
        dcs=_processes([p for p in found if _is_etcd(p)]),
        deaf_to=_deaf_to(blueprint, state.member),
    )


def _postmaster(blueprint: Blueprint, member: str) -> str:
    pid = members.postmaster(blueprint, member)
    if pid is None:
        return "none"
    return pid_files.identity(pid) or "none"


def _processes(found: list[psutil.Process]) -> str:
    states = []
    for process in found:
        with contextlib.suppress(psutil.Error):
            states.append(process.status())
    alive = [state for state in states if state != psutil.STATUS_ZOMBIE]
    if not alive:
        return "none"
    # A process in the middle of a flush stops when the flush returns; one alone may still be on its way.
    stopped = [state for state in alive if state in _STOPPED]
    frozen = len(stopped) == len(alive) and psutil.STATUS_STOPPED in stopped
    return "frozen" if frozen else "running"


def _is_etcd(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "etcd"
    return False


def _disk(blueprint: Blueprint, member: str, found: list[psutil.Process]) -> str:
    """By its file systems, and by what the tracer of its PostgreSQL has to inject (its command line)."""
    for volume in volumes.volumes(blueprint, member):
        if not volumes.mounted(volume.mount_point) or power.is_dead(volume.mount_point):
            return "dead"
        if os.statvfs(volume.mount_point).f_bavail == 0:  # blocks that another user than root may still take
            return disks.FULL
    tracers = {disks.tracer(pid) for pid in disks.flushing_pids(found)} - {0}
    for tracer in tracers:
        with contextlib.suppress(psutil.Error):
            condition = injected(psutil.Process(tracer).cmdline())
            if condition:
                return condition
    return "sound"


def injected(argv: list[str]) -> str:
    """The condition of the disk that a strace with these arguments causes; "" for none.

    >>> injected(["strace", "-e", "inject=fsync:error=EIO"]), injected(["strace", "-e", "trace=fsync"])
    ('failing', '')
    """
    what = next((argument for argument in argv if argument.startswith("inject=")), "")
    conditions = {"delay_enter=": disks.SLOW, "error=EIO": disks.FAILING, "error=ENOSPC": disks.FULL}
    return next((condition for sign, condition in conditions.items() if sign in what), "")


def _deaf_to(blueprint: Blueprint, member: str) -> tuple[str, ...]:
    """Who cannot open a TCP connection with it: packets of one direction at least do not arrive."""
    others = [(m, blueprint.address(m), POSTGRES_PORT) for m in blueprint.members if m != member]
    argv = [sys.executable, "-S", "-c", _PROBE, json.dumps(others), str(_PROBE_S)]
    deaf: list[str] = []
    try:
        answer = members.run_inside(blueprint, member, argv, timeout_s=5.0)
        deaf = [str(name) for name in json.loads(answer.stdout or "[]")]
    except (Error, OSError, ValueError, subprocess.TimeoutExpired):
        deaf = []
    if not _reached(blueprint.address(member), POSTGRES_PORT):
        deaf.append("clients")
    return tuple(deaf)


def _reached(host: str, port: int) -> bool:
    """Whether this machine, where the clients are, reaches that address; a refused connection was answered too."""
    try:
        socket.create_connection((host, port), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
