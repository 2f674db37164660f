"""Every fault of the lab as a line to read: what happens, what it needs, how it is cleared. Pure; injects nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from walproof.lab.faults.active import CLEAR
from walproof.model.ports import Capability


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `command` is what to type after `walproof`, MEMBER in it a member's name."""

    name: str
    happens: str
    capability: Capability
    command: str
    cleared_by: str


_PATRONI = "by itself: Patroni fails over or starts it again"
FAULTS: tuple[Fault, ...] = (
    Fault("kill", "the postmaster is killed with -9", Capability.KILL, "lab fault kill MEMBER", _PATRONI),
    Fault(
        "stop", "PostgreSQL shuts down in order, bypassing Patroni", Capability.STOP, "lab fault stop MEMBER", _PATRONI
    ),
    Fault(
        "crash-restart", "the background writer is killed with -9: PostgreSQL restarts all but its postmaster",
        Capability.CRASH_RESTART, "lab fault crash-restart MEMBER", "by itself: PostgreSQL recovers",
    ),
    Fault(
        "kill-member", "every process of the member is killed with -9", Capability.KILL_MEMBER,
        "lab fault kill-member MEMBER", CLEAR,
    ),
    Fault(
        "freeze", "every process of the member stops, as in a paused virtual machine", Capability.FREEZE,
        "lab fault freeze MEMBER", CLEAR,
    ),
    Fault(
        "power-cut", "what was not flushed is lost, every process dead, the network link down", Capability.POWER_CUT,
        "lab fault power-cut MEMBER", f"{CLEAR}: mounts, replays the journal, starts",
    ),
    Fault(
        "dcs-loss", "etcd stops answering on a majority of the members", Capability.DCS_LOSS, "lab fault dcs-loss",
        CLEAR,
    ),
    Fault("restart", "PostgreSQL restarts through Patroni", Capability.RESTART, "lab restart MEMBER", "by itself"),
    Fault(
        "switchover", "the leader hands over as planned", Capability.SWITCHOVER, "lab switchover", "nothing to clear"
    ),
    Fault(
        "partition", "a member is cut from every other one, clients still reach it", Capability.PARTITION,
        "lab fault partition MEMBER", CLEAR,
    ),
    Fault("isolate", "a member is cut from everybody", Capability.ISOLATE, "lab fault isolate MEMBER", CLEAR),
    Fault(
        "partition-one-way", "packets of one direction are lost", Capability.PARTITION_ONE_WAY,
        "lab fault partition-one-way MEMBER MEMBER", CLEAR,
    ),
    Fault(
        "partition-wal", "what PostgreSQL of the others sends to a member is lost: no WAL arrives",
        Capability.PARTITION_WAL, "lab fault partition-wal MEMBER", CLEAR,
    ),
    Fault(
        "partition-acks", "what a member sends to PostgreSQL of the others is lost: it acknowledges nothing",
        Capability.PARTITION_ACKS, "lab fault partition-acks MEMBER", CLEAR,
    ),
    Fault(
        "pause-replay", "a standby receives WAL and replays none", Capability.PAUSE_REPLAY,
        "lab fault pause-replay MEMBER", CLEAR,
    ),
    Fault(
        "slow-disk", "each flush takes that much longer before it is issued", Capability.SLOW_DISK,
        "lab fault slow-disk MEMBER --delay 5ms", CLEAR,
    ),
    Fault(
        "failing-disk", "flushes fail with an I/O error", Capability.FAILING_DISK,
        "lab fault failing-disk MEMBER", CLEAR,
    ),
    Fault("full-disk", "no space is left", Capability.FULL_DISK, "lab fault full-disk MEMBER", CLEAR),
    Fault(
        "cpu-limit", "a member has only that many cores", Capability.LIMIT_PROCESSORS, "lab cpu 0.5 MEMBER",
        "walproof lab cpu --clear",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A fault and why it is not available here; None when it is."""

    fault: Fault
    why_not: str | None


def catalogue(why_not: Mapping[Capability, str | None]) -> tuple[Line, ...]:
    """Every fault with the reason against it, from the reasons against capabilities.

    >>> [line.fault.name for line in catalogue({Capability.POWER_CUT: "needs root"}) if line.why_not]
    ['power-cut']
    """
    return tuple(Line(fault, why_not.get(fault.capability)) for fault in FAULTS)
