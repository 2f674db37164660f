"""How many cores each member may use: one control group a member. Starts and kills nothing."""

import os

from walproof.errors import MachineError, UsageError
from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.machine import control_groups

_LEAST_CORES = 0.05
"""The kernel refuses a quota under 1 ms; below this a member cannot keep its leader key."""


def check(cores: float | None) -> None:
    """Refuse a limit this machine cannot give: MachineError without control groups, UsageError beyond its cores."""
    if why := control_groups.unavailable():
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
    found = control_groups.hierarchy()
    assert found is not None
    for name in (member,) if member else blueprint.members:
        group = control_groups.folder(found, blueprint.control_group(name))
        if cores is None:
            control_groups.delete(group)
        else:
            control_groups.create(found, group, cores)
            _join_all(blueprint, name)


def _join_all(blueprint: Blueprint, member: str) -> None:
    group = control_groups.group(blueprint.control_group(member))
    moved: set[int] = set()
    # Again until nobody new is found: a process forked while we moved its parent is still outside.
    while fresh := [p.pid for p in members.processes(blueprint, member) if p.pid not in moved]:
        for pid in fresh:
            control_groups.join(group, pid)
            moved.add(pid)


def cores_of(blueprint: Blueprint, member: str) -> float | None:
    """The limit in effect, in cores; None when there is none."""
    found = control_groups.hierarchy()
    group = control_groups.group(blueprint.control_group(member))
    return None if found is None or group is None else control_groups.cores(found, group)


def remove(blueprint: Blueprint) -> None:
    """Delete the groups of every member; their processes go on without a limit."""
    for member in blueprint.members:
        group = control_groups.group(blueprint.control_group(member))
        if group is not None:
            control_groups.delete(group)
