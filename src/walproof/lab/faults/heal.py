"""Every fault of a lab undone, whoever injected it and however far: power, disks, processes, DCS, links, members."""

from dataclasses import dataclass

from walproof.lab import members, whole, wiring
from walproof.lab.blueprint import Blueprint
from walproof.lab.clock import RealClock
from walproof.lab.faults import disks, force, power, stopping
from walproof.lab.faults import members as member_faults
from walproof.model.ports import Clock


@dataclass(frozen=True, slots=True)
class Healing:
    """What was undone, in words; nothing where the lab was whole."""

    undone: tuple[str, ...]


def heal(blueprint: Blueprint, clock: Clock | None = None) -> Healing:
    """Undo every fault, start what is down and wait until the cluster is whole; WaitedInVain when it stays broken.

    A member that does not come back by itself is cloned anew from the leader (whole.py).
    """
    clock = clock or RealClock()
    undone = [_in_words(fault) for fault in force.in_force(blueprint)]
    links = wiring.asked(blueprint)
    undone += [f"cut {source}..{destination}" for source, destination in links.cuts]
    undone += [f"isolation of {member}" for member in sorted(links.isolated)]
    wiring.heal(blueprint)
    for member in blueprint.members:
        revive(blueprint, member)
    member_faults.find_dcs(blueprint)
    whole.wait_until_whole(blueprint, clock)
    return Healing(tuple(undone))


def revive(blueprint: Blueprint, member: str) -> None:
    """One member back as it was before any fault of its own; does not wait for PostgreSQL."""
    force.known(blueprint, member)
    if power.unavailable(blueprint) is None:
        power.power_on(blueprint, member)
    disks.heal(blueprint, member)
    stopping.go_on(blueprint, member)
    member_faults.forget_postmaster(blueprint, member)
    members.start_member(blueprint, member)
    for fault in (force.POWER, force.KILL_MEMBER, force.FREEZE):
        force.strike(blueprint, fault, member)


def _in_words(fault: force.InForce) -> str:
    words = f"{fault.fault} of {fault.member}" if fault.member else fault.fault
    return f"{words} ({fault.detail})" if fault.detail else words
