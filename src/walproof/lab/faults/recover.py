"""Clears every fault of a lab, whoever injected it and however far: power, disks, processes, DCS, links, members."""

from walproof.lab import health, member_links, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, disks, power, replay, streams, suspend
from walproof.lab.faults import processes as member_faults
from walproof.machine.clock import RealClock
from walproof.model.ports import Clock


def in_effect(blueprint: Blueprint, member: str | None = None) -> tuple[active.ActiveFault, ...]:
    """Every fault in effect, those of links too, of one member or (None) of all."""
    links = member_links.configured(blueprint)
    faults = [
        *active.in_effect(blueprint),
        *(active.ActiveFault("isolate", name) for name in sorted(links.isolated)),
        *(active.ActiveFault("partition", "", detail=f"{a}..{b}") for a, b in links.cuts),
    ]
    return tuple(f for f in faults if member in (None, f.member, *f.detail.split("..")))


def recover(blueprint: Blueprint, clock: Clock | None = None, *, member: str | None = None) -> tuple[str, ...]:
    """Clear every fault, or one member's, and start what is down; what was cleared, one clause each.

    Waits until the cluster is healthy, unless faults of other members are still in effect. A member that does not come
    back by itself is cloned again from the leader (health.py). WaitTimeout when the cluster does not become healthy.
    """
    cleared = in_effect(blueprint, member)
    member_links.recover(blueprint, member)
    for name in blueprint.members if member is None else (member,):
        recover_member(blueprint, name)
    if member is None:
        member_faults.recover_dcs(blueprint)
    if not in_effect(blueprint):
        health.wait_until_healthy(blueprint, clock or RealClock())
    return tuple(map(clause, cleared))


def recover_member(blueprint: Blueprint, member: str) -> None:
    """Clear the faults of one member except those of its links, and start it; does not wait for PostgreSQL."""
    active.check_member(blueprint, member)
    if power.unavailable(blueprint) is None:
        power.power_on(blueprint, member)
    streams.clear(blueprint, member)
    disks.clear(blueprint, member)
    suspend.resume_all(blueprint, member)
    member_faults.remove_postmaster_pid(blueprint, member)
    members.start_member(blueprint, member)
    for fault in (active.POWER_CUT, active.KILL_MEMBER, active.FREEZE):
        active.remove(blueprint, fault, member)
    replay.resume(blueprint, member)


def clause(fault: active.ActiveFault) -> str:
    """A fault in a few words.

    >>> clause(active.ActiveFault("slow-disk", "n1", detail="5 ms"))
    'slow-disk of n1 (5 ms)'
    """
    text = f"{fault.fault} of {fault.member}" if fault.member else fault.fault
    return f"{text} ({fault.detail})" if fault.detail else text
