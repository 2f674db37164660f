"""Every fault of the lab: what happens, whether it is available here, what members show of it, how all are cleared.

What members show is never read from the list of faults in effect: one that was listed and did nothing must not show."""

import contextlib
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import psutil

from walproof.errors import Error, each_done
from walproof.lab import disk_images, members, network_links, patroni
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.faults import active, crashes, disks, hangs, replication
from walproof.lab.faults.active import CLEAR
from walproof.links import devices
from walproof.links.settings import check_members
from walproof.machine import pid_files, processors, untrusted
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.model.ports import Clock
from walproof.model.topology import MemberState


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `command` is what to type after `walproof`, MEMBER in it a member's name."""

    name: str
    happens: str
    capability: Capability
    command: str
    cleared_by: str


def _fault(
    capability: Capability,
    happens: str,
    cleared_by: str = CLEAR,
    *,
    command: str = "lab fault {} MEMBER",
    name: str = "",
) -> Fault:
    name = name or capability.value
    return Fault(name, happens, capability, command.format(name), cleared_by)


_BY_PATRONI = "by itself: Patroni fails over or starts it again"
FAULTS = (
    _fault(Capability.KILL, "the postmaster is killed with -9", _BY_PATRONI),
    _fault(Capability.STOP, "PostgreSQL shuts down in order, bypassing Patroni", _BY_PATRONI),
    _fault(
        Capability.CRASH_RESTART,
        "the background writer is killed with -9: PostgreSQL restarts all but its postmaster",
        "by itself: PostgreSQL recovers",
    ),
    _fault(Capability.KILL_MEMBER, "every process of the member is killed with -9"),
    _fault(Capability.FREEZE, "every process of the member stops, as in a paused virtual machine"),
    _fault(Capability.HANG_POSTMASTER, "the postmaster alone stops: sessions go on, new connections get no answer"),
    _fault(Capability.HANG_MANAGER, "Patroni alone stops: PostgreSQL goes on, its leader lock expires"),
    _fault(Capability.HANG_REST, "answers of Patroni's REST API are lost; Patroni and PostgreSQL go on"),
    _fault(
        Capability.POWER_CUT,
        "what was not flushed is lost, every process dead, the network link down",
        f"{CLEAR}: mounts, replays the journal, starts",
    ),
    _fault(Capability.DCS_LOSS, "etcd stops answering on a majority of the members", command="lab fault {}"),
    _fault(Capability.RESTART, "PostgreSQL restarts through Patroni", "by itself", command="lab {} MEMBER"),
    _fault(Capability.SWITCHOVER, "the leader hands over as planned", "nothing to clear", command="lab {}"),
    _fault(Capability.PARTITION, "a member is cut from every other one, clients still reach it"),
    _fault(Capability.ISOLATE, "a member is cut from the others and from clients"),
    _fault(Capability.PARTITION_ONE_WAY, "packets of one direction are lost", command="lab fault {} MEMBER MEMBER"),
    _fault(Capability.PARTITION_WAL, "what PostgreSQL of the others sends to a member is lost: no WAL arrives"),
    _fault(
        Capability.PARTITION_ACKS, "what a member sends to PostgreSQL of the others is lost: it acknowledges nothing"
    ),
    _fault(Capability.PAUSE_REPLAY, "a standby receives WAL and replays none"),
    _fault(
        Capability.SLOW_DISK,
        "each flush takes that much longer before it is issued",
        command="lab fault {} MEMBER --delay 5ms",
    ),
    _fault(Capability.FAILING_DISK, "flushes fail with an I/O error"),
    _fault(Capability.FULL_DISK, "no space is left"),
    _fault(
        Capability.LIMIT_PROCESSORS,
        "a member has only that many cores",
        "walproof lab cpu --clear",
        command="lab cpu 0.5 MEMBER",
        name="cpu-limit",
    ),
)


def reasons(blueprint: Blueprint | None) -> dict[Capability, str]:
    """Why a capability cannot be had, one clause each; without a lab, what this machine denies every lab."""
    disk, stream = disks.unavailable(), replication.stream_cuts_unavailable()
    known = {
        Capability.POWER_CUT: disk_images.unavailable()
        if blueprint is None
        else crashes.power_cut_unavailable(blueprint),
        Capability.LIMIT_PROCESSORS: processors.control_groups_unavailable(),
        Capability.SHAPE_LINKS: devices.why_no_tun(),
        **dict.fromkeys((Capability.SLOW_DISK, Capability.FAILING_DISK, Capability.FULL_DISK), disk),
        **dict.fromkeys((Capability.PARTITION_WAL, Capability.PARTITION_ACKS, Capability.HANG_REST), stream),
    }
    return {capability: why for capability, why in known.items() if why is not None}


_PROBE_S = 0.4
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_DISK_SLEEP)


def seen_on_machine(blueprint: Blueprint, state: MemberState) -> MemberState:
    """The state with what this machine tells of its member."""
    processes, postmaster = members.processes(blueprint, state.member), members.postmaster(blueprint, state.member)
    deaf_to = _deaf_to(blueprint, state.member)
    return replace(
        state,
        postmaster=(postmaster and pid_files.identity(postmaster)) or "none",
        processes=_processes(processes),
        disk=_disk(blueprint, state.member, processes),
        dcs=_processes([p for p in processes if _is_etcd(p)]),
        deaf_to=deaf_to,
        hangs=_hangs(blueprint, state.member, postmaster, asked="clients" not in deaf_to),
    )


def _hangs(blueprint: Blueprint, member: str, postmaster: int | None, *, asked: bool) -> tuple[str, ...]:
    """REST only where Patroni is not stopped itself, and clients reach the member (`asked`): else it is no sign."""
    manager = members.program_pid(blueprint, member, "patroni")
    stopped = [name for name, pid in (("postmaster", postmaster), ("manager", manager)) if pid and _is_stopped(pid)]
    silent = asked and manager and "manager" not in stopped and not patroni.member_status(blueprint, member)
    return (*stopped, "rest") if silent else tuple(stopped)


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _processes(processes: list[psutil.Process]) -> str:
    states = []
    for process in processes:
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
    with contextlib.suppress(OSError):
        return untrusted.of_process(process.pid, "comm") == ["etcd\n"]
    return False


def _disk(blueprint: Blueprint, member: str, processes: list[psutil.Process]) -> str:
    """By its file systems, and by what the tracer of its PostgreSQL has to inject (its command line)."""
    for volume in disk_images.volumes(blueprint, member):
        if not disk_images.mounted(volume.mount_point) or crashes.is_dead(volume.mount_point):
            return "dead"
        if os.statvfs(volume.mount_point).f_bavail == 0:  # blocks that another user than root may still take
            return disks.FULL
    tracers = {disks.tracer(pid) for pid in disks.flushing_pids(processes)} - {0}
    for tracer in tracers:
        with contextlib.suppress(OSError):
            condition = injected(untrusted.of_process(tracer, "cmdline"))
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
    """Which members, and "clients", cannot open a TCP connection with it: one direction at least is lost."""
    deaf: list[str] = []
    with contextlib.suppress(Error, OSError), devices.inside(blueprint.namespace(member)):
        others = [other for other in blueprint.members if other != member]
        deaf = [other for other in others if not _reached(blueprint.address(other))]
    return (*deaf, *(() if _reached(blueprint.address(member)) else ("clients",)))


def _reached(host: str) -> bool:
    """Whether PostgreSQL's port there answers the namespace of this thread; a refused connection was answered too."""
    try:
        socket.create_connection((host, POSTGRES_PORT), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def all_in_effect(blueprint: Blueprint, member: str | None = None) -> tuple[active.ActiveFault, ...]:
    """Every fault in effect, those of links too, of one member or (None) of all."""
    links = network_links.configured(blueprint)
    faults = [
        *active.in_effect(blueprint),
        *(active.ActiveFault("isolate", name) for name in sorted(links.isolated)),
        *(active.ActiveFault("partition", "", detail=f"{a}..{b}") for a, b in links.cuts),
    ]
    return tuple(f for f in faults if member in (None, f.member, *re.split(r"\.\.|, ", f.detail)))


def recover(blueprint: Blueprint, clock: Clock | None = None, *, member: str | None = None) -> tuple[str, ...]:
    """Clear every fault, or one member's, and start what is down; what was cleared, one clause each.

    What cannot be undone keeps nothing else from being undone. Waits until the cluster is healthy, unless faults of
    other members are still in effect. A member that does not come back by itself is cloned again from the leader
    (lab/patroni.py). WaitTimeout when the cluster does not become healthy.
    """
    cleared: tuple[active.ActiveFault, ...] = ()
    with contextlib.suppress(Error):  # a damaged list of links is said below
        cleared = all_in_effect(blueprint, member)
    acts: list[Callable[[], object]] = [partial(network_links.recover, blueprint, member)]
    acts += [partial(recover_member, blueprint, name) for name in (blueprint.members if member is None else (member,))]
    if member is None or any(one.fault == active.DCS_LOSS for one in cleared):
        acts.append(partial(crashes.recover_dcs, blueprint))
    each_done(acts, CLEAR)
    left = all_in_effect(blueprint)
    if not left:
        patroni.wait_until_healthy(blueprint, clock or RealClock())
    return tuple(clause(one) for one in cleared if one not in left)


def recover_member(blueprint: Blueprint, member: str) -> None:
    """Clear the faults of one member except those of its links, and start it; does not wait for PostgreSQL."""
    check_members((member,), blueprint.members)
    if crashes.power_cut_unavailable(blueprint) is None:
        crashes.power_on(blueprint, member)
    acts: tuple[Callable[[Blueprint, str], object], ...] = (
        replication.restore_stream, disks.clear, crashes.resume_all, hangs.answer, crashes.remove_postmaster_pid,
        members.start_member,
    )  # fmt: skip
    each_done([partial(act, blueprint, member) for act in acts], CLEAR)
    for fault in (active.POWER_CUT, active.KILL_MEMBER, active.FREEZE):
        active.remove(blueprint, fault, member)
    replication.resume_replay(blueprint, member)


def clause(fault: active.ActiveFault) -> str:
    """A fault in a few words.

    >>> clause(active.ActiveFault("slow-disk", "n1", detail="5 ms"))
    'slow-disk of n1 (5 ms)'
    """
    text = f"{fault.fault} of {fault.member}" if fault.member else fault.fault
    return f"{text} ({fault.detail})" if fault.detail else text
