"""Clears every fault of a lab, whoever injected it and however far: power, disks, processes, DCS, links, members."""

from walproof.lab import health, member_links, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, disks, power, suspend
from walproof.lab.faults import processes as member_faults
from walproof.machine.clock import RealClock
from walproof.model.ports import Clock


def recover(blueprint: Blueprint, clock: Clock | None = None) -> tuple[str, ...]:
    """Clear every fault, start what is down and wait until the cluster is healthy; what was cleared, one clause each.

    A member that does not come back by itself is cloned again from the leader (health.py). WaitTimeout when it does
    not become healthy.
    """
    cleared = [_clause(fault) for fault in active.in_effect(blueprint)]
    links = member_links.configured(blueprint)
    cleared += [f"partition {source}..{destination}" for source, destination in links.cuts]
    cleared += [f"isolate of {member}" for member in sorted(links.isolated)]
    member_links.recover(blueprint)
    for member in blueprint.members:
        recover_member(blueprint, member)
    member_faults.recover_dcs(blueprint)
    health.wait_until_healthy(blueprint, clock or RealClock())
    return tuple(cleared)


def recover_member(blueprint: Blueprint, member: str) -> None:
    """Clear the faults of one member except those of its links, and start it; does not wait for PostgreSQL."""
    active.check_member(blueprint, member)
    if power.unavailable(blueprint) is None:
        power.power_on(blueprint, member)
    disks.clear(blueprint, member)
    suspend.resume_all(blueprint, member)
    member_faults.remove_postmaster_pid(blueprint, member)
    members.start_member(blueprint, member)
    for fault in (active.POWER_CUT, active.KILL_MEMBER, active.FREEZE):
        active.remove(blueprint, fault, member)


def _clause(fault: active.ActiveFault) -> str:
    clause = f"{fault.fault} of {fault.member}" if fault.member else fault.fault
    return f"{clause} ({fault.detail})" if fault.detail else clause
