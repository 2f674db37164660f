"""Every fault of a lab undone, whoever injected it and however far: power, disks, processes, DCS, links, members."""

from dataclasses import dataclass

from walproof.lab import health, member_links, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, disks, power, suspend
from walproof.lab.faults import processes as member_faults
from walproof.machine.clock import RealClock
from walproof.model.ports import Clock


@dataclass(frozen=True, slots=True)
class Healing:
    """What was undone, in words; nothing where the lab was whole."""

    undone: tuple[str, ...]


def heal(blueprint: Blueprint, clock: Clock | None = None) -> Healing:
    """Undo every fault, start what is down and wait until the cluster is whole; WaitTimeout when it stays broken.

    A member that does not come back by itself is cloned anew from the leader (health.py).
    """
    clock = clock or RealClock()
    undone = [_in_words(fault) for fault in active.in_effect(blueprint)]
    links = member_links.asked(blueprint)
    undone += [f"cut {source}..{destination}" for source, destination in links.cuts]
    undone += [f"isolation of {member}" for member in sorted(links.isolated)]
    member_links.heal(blueprint)
    for member in blueprint.members:
        revive(blueprint, member)
    member_faults.find_dcs(blueprint)
    health.wait_until_healthy(blueprint, clock)
    return Healing(tuple(undone))


def revive(blueprint: Blueprint, member: str) -> None:
    """One member back as it was before any fault of its own; does not wait for PostgreSQL."""
    active.known(blueprint, member)
    if power.unavailable(blueprint) is None:
        power.power_on(blueprint, member)
    disks.heal(blueprint, member)
    suspend.go_on(blueprint, member)
    member_faults.forget_postmaster(blueprint, member)
    members.start_member(blueprint, member)
    for fault in (active.POWER, active.KILL_MEMBER, active.FREEZE):
        active.strike(blueprint, fault, member)


def _in_words(fault: active.InEffect) -> str:
    words = f"{fault.fault} of {fault.member}" if fault.member else fault.fault
    return f"{words} ({fault.detail})" if fault.detail else words
