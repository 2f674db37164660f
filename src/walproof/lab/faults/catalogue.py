"""Every fault of the lab as a line to read: what happens, what it needs, how it heals. Pure; injects nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from walproof.model.ports import Capability


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `verb` is what to type, `MEMBER` in it a member's name."""

    name: str
    happens: str
    capability: Capability
    verb: str
    heals: str


_BY_HEAL = "walproof lab fault --heal"
FAULTS: tuple[Fault, ...] = (
    Fault(
        "kill", "the postmaster is killed with -9", Capability.KILL, "lab fault kill MEMBER",
        "by itself: Patroni fails over or starts it again",
    ),
    Fault(
        "stop", "PostgreSQL shuts down in order, behind the manager's back", Capability.STOP, "lab fault stop MEMBER",
        "by itself: Patroni fails over or starts it again",
    ),
    Fault(
        "kill-member", "every process of the member is killed with -9", Capability.KILL_MEMBER,
        "lab fault kill-member MEMBER", _BY_HEAL,
    ),
    Fault(
        "freeze", "every process of the member stops, as in a paused virtual machine", Capability.FREEZE,
        "lab fault freeze MEMBER", "walproof lab fault thaw MEMBER, or --heal",
    ),
    Fault(
        "power-cut", "what was not flushed is gone, every process dead, the cable down", Capability.POWER_CUT,
        "lab fault power-cut MEMBER", "walproof lab fault --heal: mounts, replays the journal, starts",
    ),
    Fault(
        "dcs-loss", "etcd stops answering on a majority of the members", Capability.DCS_LOSS, "lab fault dcs-loss",
        _BY_HEAL,
    ),
    Fault(
        "restart", "PostgreSQL restarts through Patroni", Capability.RESTART, "lab fault restart MEMBER",
        "by itself",
    ),
    Fault(
        "switchover", "the leadership is handed over as planned", Capability.SWITCHOVER, "lab switchover",
        "nothing to heal",
    ),
    Fault(
        "partition", "a member is cut from every other one, clients still reach it", Capability.PARTITION,
        "lab cut MEMBER",
        "walproof lab heal",
    ),
    Fault("isolate", "a member is cut from everybody", Capability.ISOLATE, "lab isolate MEMBER", "walproof lab heal"),
    Fault(
        "partition-one-way", "packets of one direction vanish", Capability.PARTITION_ONE_WAY, "lab link A..B --cut",
        "walproof lab heal",
    ),
    Fault(
        "slow-disk", "each flush takes that much longer before it is issued", Capability.SLOW_DISK,
        "lab disk MEMBER --slow 5ms", "walproof lab disk MEMBER --heal",
    ),
    Fault(
        "failing-disk", "flushes fail with an I/O error", Capability.FAILING_DISK, "lab disk MEMBER --failing",
        "walproof lab disk MEMBER --heal",
    ),
    Fault(
        "full-disk", "no space is left", Capability.FULL_DISK, "lab disk MEMBER --full",
        "walproof lab disk MEMBER --heal",
    ),
    Fault(
        "small-machine", "a member has only that many cores", Capability.LIMIT_PROCESSORS, "lab cpu 0.5 MEMBER",
        "walproof lab cpu --clear",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A fault and why it cannot be had here; None when it can."""

    fault: Fault
    why_not: str | None


def catalogue(why_not: Mapping[Capability, str | None]) -> tuple[Line, ...]:
    """Every fault with the reason against it, from the reasons against capabilities.

    >>> [line.fault.name for line in catalogue({Capability.POWER_CUT: "needs root"}) if line.why_not]
    ['power-cut']
    """
    return tuple(Line(fault, why_not.get(fault.capability)) for fault in FAULTS)
