"""How many cores each member may use: one control group a member, v1 or v2. Starts and kills nothing."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from walproof.errors import MachineError, UsageError
from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.machine.clock import RealClock

_PERIOD_US = 100_000
_LEAST_CORES = 0.05
"""The kernel refuses a quota under 1 ms; below this a member cannot keep its leader key."""
_TRIES = 100
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups are made, and which of the two interfaces rules there."""

    root: Path
    version: int


def hierarchy() -> Hierarchy | None:
    """The hierarchy of control groups that can limit processors here, v2 first; None where there is none."""
    if "cpu" in _read(V2 / "cgroup.controllers").split():
        return Hierarchy(V2, 2)
    return Hierarchy(V1, 1) if (V1 / "cpu.cfs_quota_us").exists() or (V1 / "cgroup.procs").exists() else None


def unavailable() -> str | None:
    """Why processors cannot be limited here, one clause; None where they can."""
    found = hierarchy()
    if found is None:
        return "this kernel offers no control group for processors"
    if os.geteuid() != 0 or not os.access(found.root, os.W_OK):
        return f"needs root: {found.root} is not writable"
    return None


def group_of(blueprint: Blueprint, member: str) -> Path | None:
    """The member's group whether it exists or not; None where the machine has no such groups."""
    found = hierarchy()
    return found.root / f"walproof-{blueprint.name}-{member}" if found else None


def check(cores: float | None) -> None:
    """Refuse a limit this machine cannot give: MachineError without control groups, UsageError beyond its cores."""
    if why := unavailable():
        raise MachineError(f"processors cannot be limited: {why}", "run as root, or leave --cpu out")
    if cores is not None and not _LEAST_CORES <= cores <= (os.cpu_count() or 1):
        raise UsageError(
            f"{cores:g} cores cannot be given", f"choose between {_LEAST_CORES:g} and {os.cpu_count()}, or --clear"
        )


def limit(blueprint: Blueprint, member: str | None, cores: float | None) -> None:
    """Give a member (None: each one) that many cores (None: no limit), now; MachineError where it cannot be done."""
    check(cores)
    if member is not None and member not in blueprint.members:
        raise UsageError(f"there is no member {member}", f"members: {', '.join(blueprint.members)}")
    found = hierarchy()
    assert found is not None
    for name in (member,) if member else blueprint.members:
        group = found.root / f"walproof-{blueprint.name}-{name}"
        if cores is None:
            disband(group)
        else:
            establish(found, group, cores)
            join(blueprint, name)


def establish(where: Hierarchy, group: Path, cores: float) -> None:
    """Make the group, or change the one that is there."""
    quota = int(cores * _PERIOD_US)
    try:
        if where.version == 2:
            if "cpu" not in _read(where.root / "cgroup.subtree_control").split():
                _write(where.root / "cgroup.subtree_control", "+cpu")
            group.mkdir(exist_ok=True)
            _write(group / "cpu.max", f"{quota} {_PERIOD_US}")
        else:
            group.mkdir(exist_ok=True)
            _write(group / "cpu.cfs_period_us", str(_PERIOD_US))
            _write(group / "cpu.cfs_quota_us", str(quota))
    except OSError as wrong:
        disband(group)
        raise MachineError(
            f"the kernel refused the processor limit: {wrong.strerror}", "run on the machine itself, not in a container"
        ) from None


def join(blueprint: Blueprint, member: str) -> None:
    """Move every process of the member into its group, if it has one."""
    group = group_of(blueprint, member)
    if group is None or not group.exists():
        return
    moved: set[int] = set()
    # Again until nobody new is found: a process forked while we moved its parent is still outside.
    while fresh := [p.pid for p in members.processes(blueprint, member) if p.pid not in moved]:
        for pid in fresh:
            with contextlib.suppress(OSError):
                _write(group / "cgroup.procs", str(pid))
            moved.add(pid)


def enrol(blueprint: Blueprint, member: str, pid: int) -> None:
    """Put a member's first process into its group, if it has one; what it starts inherits the limit."""
    group = group_of(blueprint, member)
    if group is not None and group.exists():
        with contextlib.suppress(OSError):
            _write(group / "cgroup.procs", str(pid))


def cores_of(blueprint: Blueprint, member: str) -> float | None:
    """The limit in effect, in cores; None when there is none."""
    group = group_of(blueprint, member)
    found = hierarchy()
    if group is None or found is None or not group.exists():
        return None
    if found.version == 2:
        quota, _, period = _read(group / "cpu.max").partition(" ")
    else:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return None if quota.strip() in ("max", "-1", "") else int(quota) / int(period)


def release(blueprint: Blueprint) -> None:
    """Disband the groups of every member; their processes go on without a limit."""
    found = hierarchy()
    for group in found.root.glob(f"walproof-{blueprint.name}-*") if found else ():
        if group.name.removeprefix(f"walproof-{blueprint.name}-") in blueprint.members:
            disband(group)


def disband(group: Path) -> None:
    """Let the processes of a group go to its parent and remove it; nothing happens when it is not there."""
    for _ in range(_TRIES):
        if not group.exists():
            return
        for pid in _read(group / "cgroup.procs").split():
            with contextlib.suppress(OSError):
                _write(group.parent / "cgroup.procs", pid)
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            # Busy: somebody forked meanwhile, or has not quite ended.
            RealClock().pause(0.02)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
