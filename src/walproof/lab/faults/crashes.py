"""Faults of a whole member: killed, stopped, frozen, restarted, its power cut; and the DCS' majority lost. With undo.

In a power cut what was flushed stays and what was not is lost. Each refuses, with nothing changed, a member that is
unknown, down already or under the same fault (UsageError)."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

import psutil

from walproof.errors import MachineError, UsageError
from walproof.lab import disk_images, members, patroni
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, disks
from walproof.links.settings import check_members
from walproof.machine import untrusted
from walproof.machine.clock import RealClock
from walproof.machine.programs import ip
from walproof.model.waiting import Wait, wait_for


def stop_all(blueprint: Blueprint, member: str) -> None:
    """SIGSTOP to every process, again until no new one is found: they may fork meanwhile.

    A process in the middle of a flush stops when the flush returns; it counts as stopped once it was signalled.
    """
    signalled: set[int] = set()

    def all_signalled() -> bool:
        fresh = [p for p in members.processes(blueprint, member) if p.pid not in signalled]
        for process in fresh:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGSTOP)
            signalled.add(process.pid)
        return not fresh

    wait_for(Wait.PROGRAM_GONE, all_signalled, RealClock(), pace_s=0.001)


def resume_all(blueprint: Blueprint, member: str) -> None:
    """SIGCONT to every process of the member."""
    for process in members.processes(blueprint, member):
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)


def kill(blueprint: Blueprint, member: str) -> None:
    """The postmaster killed with -9; Patroni starts it again or fails over."""
    os.kill(_postmaster(blueprint, member, "kill"), signal.SIGKILL)


def crash_restart(blueprint: Blueprint, member: str) -> None:
    """A standby's background writer killed with -9, as by the OOM killer: the postmaster crash-restarts all others."""
    postmaster, children = _postmaster(blueprint, member, "crash-restart"), list[psutil.Process]()
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(postmaster).children()
    for child in children:
        with contextlib.suppress(psutil.Error, OSError):  # sessions end meanwhile
            if "background writer" in untrusted.of_process(child.pid, "cmdline")[0]:
                child.kill()
                return
    raise UsageError(f"PostgreSQL of {member} has no background writer just now", "walproof lab status")


def stop(blueprint: Blueprint, member: str) -> None:
    """PostgreSQL shut down in an orderly way, bypassing Patroni (SIGINT: a fast shutdown, as pg_ctl's)."""
    os.kill(_postmaster(blueprint, member, "stop"), signal.SIGINT)


def restart(blueprint: Blueprint, member: str) -> None:
    """PostgreSQL restarted through Patroni; returns when Patroni has done it."""
    _postmaster(blueprint, member, "restart")
    patroni.restart(blueprint, member)


def kill_member(blueprint: Blueprint, member: str) -> None:
    """Every process of the member killed with -9, Patroni and etcd too; it stays down until it is recovered."""
    active.check_possible(blueprint, active.KILL_MEMBER, member)
    if not members.processes(blueprint, member):
        raise UsageError(f"{member} is already down", active.CLEAR)
    with active.added(blueprint, active.KILL_MEMBER, member):
        members.kill_everything(blueprint, member, RealClock())


def freeze(blueprint: Blueprint, member: str) -> None:
    """Every process of the member stopped, as in a paused virtual machine; connections stay open."""
    active.check_possible(blueprint, active.FREEZE, member)
    if not members.processes(blueprint, member):
        raise UsageError(f"{member} is down and cannot be frozen", active.CLEAR)
    with active.added(blueprint, active.FREEZE, member):
        stop_all(blueprint, member)


def thaw(blueprint: Blueprint, member: str) -> None:
    """Resume after freeze; UsageError when the member is not frozen."""
    check_members((member,), blueprint.members)
    if not any((f.fault, f.member) == (active.FREEZE, member) for f in active.in_effect(blueprint)):
        raise UsageError(f"{member} is not frozen", "walproof lab status")
    resume_all(blueprint, member)
    active.remove(blueprint, active.FREEZE, member)


def lose_dcs(blueprint: Blueprint) -> None:
    """Stop etcd on a majority of the members: it no longer answers, the leader may not keep its key."""
    active.check_possible(blueprint, active.DCS_LOSS, "")
    majority = blueprint.members[: len(blueprint.members) // 2 + 1]
    with active.added(blueprint, active.DCS_LOSS, "", ", ".join(majority)):
        for member in majority:
            _signal_etcd(blueprint, member, signal.SIGSTOP)


def recover_dcs(blueprint: Blueprint) -> None:
    """Resume every etcd but those of frozen members; nothing happens where it runs."""
    frozen = {f.member for f in active.in_effect(blueprint) if f.fault == active.FREEZE}
    for member in (m for m in blueprint.members if m not in frozen):
        _signal_etcd(blueprint, member, signal.SIGCONT)
    active.remove(blueprint, active.DCS_LOSS)


def remove_postmaster_pid(blueprint: Blueprint, member: str) -> None:
    """Remove postmaster.pid of a PostgreSQL that died with its whole member, as a boot finds no such process either.

    A postmaster that is not reaped yet, or another process with its number, would keep PostgreSQL from starting.
    """
    if not members.processes(blueprint, member):
        untrusted.remove(blueprint.member_dir(member), blueprint.data_dir(member) / "postmaster.pid")


def _signal_etcd(blueprint: Blueprint, member: str, number: signal.Signals) -> None:
    pid = members.program_pid(blueprint, member, "etcd")
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _postmaster(blueprint: Blueprint, member: str, fault: str) -> int:
    active.check_possible(blueprint, fault, member)
    pid = members.postmaster(blueprint, member)
    if pid is None:
        raise UsageError(f"PostgreSQL of {member} is already down", "walproof lab status")
    return pid


_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32) of linux/fs/ext4/ext4.h; what `xfs_io -x -c shutdown` issues."""
_NO_LOG_FLUSH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
"""linux/sockios.h, linux/if.h."""


_SETTLE_S = 0.1
ON_IMAGES = "needs a lab with its data on images: walproof lab up --disk image"


def power_cut_unavailable(blueprint: Blueprint) -> str | None:
    """Why no power can be cut in this lab, one clause; None where it can."""
    if why := disk_images.unavailable():
        return why
    return None if blueprint.disk.kind == "image" else ON_IMAGES


def cut_power(blueprint: Blueprint, member: str) -> None:
    """Cut it. UsageError for a member unknown or down, MachineError without images; nothing has changed then."""
    active.check_possible(blueprint, active.POWER_CUT, member)
    if why := power_cut_unavailable(blueprint):
        raise MachineError(f"the power of {member} cannot be cut: {why}", "walproof lab fault list")
    if not members.processes(blueprint, member):
        raise UsageError(f"{member} is already down", active.CLEAR)
    with active.added(blueprint, active.POWER_CUT, member):
        _cut(blueprint, member)


def _cut(blueprint: Blueprint, member: str) -> None:
    processes = members.processes(blueprint, member)
    try:
        with disk_images.opened(blueprint, member) as opened:
            # Finding processes took a core for a while: let the load recover, not cut into a pause of our own making.
            RealClock().pause(_SETTLE_S)
            # File systems first: no write or flush succeeds any more, so no commit can be confirmed; then the network
            # link, which takes the kernel 10 ms. Commits at `off` alone, which guarantees nothing, may be acknowledged
            # meanwhile.
            shut_down(opened)
            _set_down(blueprint.veth(member))
    except OSError as refused:
        set_link(blueprint, member, up=True)
        raise MachineError(
            f"the file system of {member} cannot be shut down: {refused.strerror}",
            "needs a kernel with EXT4_IOC_SHUTDOWN",
        ) from None
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    set_link(blueprint, member, up=False)
    members.kill_everything(blueprint, member, RealClock())
    # strace traced them; a dead member needs no guard. The fault of its disk stays listed until it is cleared.
    disks.end_guard(blueprint, member)
    disk_images.detach(blueprint, member)


def shut_down(opened: list[int]) -> None:
    """The file systems of these descriptors, at once and without a flush; OSError where the kernel cannot."""
    for descriptor in opened:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))


def _set_down(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", device.encode(), 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", device.encode(), flags & ~_IFF_UP))


def power_on(blueprint: Blueprint, member: str) -> None:
    """Mount again, which replays the journal, and set the network link up; starting the programs is the caller's.

    MachineError where the member runs, so is mounted, but not here: two mounts of one image destroy its file system.
    """
    unseen = not all(disk_images.mounted(volume.mount_point) for volume in disk_images.volumes(blueprint, member))
    if unseen and members.processes(blueprint, member):
        raise disk_images.not_here(member)
    for volume in disk_images.volumes(blueprint, member):
        if disk_images.mounted(volume.mount_point) and is_dead(volume.mount_point):
            members.kill_everything(blueprint, member, RealClock())
            disk_images.detach(blueprint, member)
    disk_images.attach(blueprint, member)
    remove_postmaster_pid(blueprint, member)
    set_link(blueprint, member, up=True)


def is_dead(mount_point: Path) -> bool:
    """Whether the file system was shut down: walproof was killed in the middle of a cut."""
    try:
        # A file without a name: what lies in the folder is the lab's user's.
        os.close(os.open(mount_point, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as wrong:
        return wrong.errno in (errno.EIO, errno.ESHUTDOWN, errno.EROFS)
    return False


def set_link(blueprint: Blueprint, member: str, *, up: bool) -> None:
    """The member's network link, up or down: nothing leaves, neither by eth0 nor by the link emulator."""
    ip("link", "set", blueprint.veth(member), "up" if up else "down")
    # The link emulator's device has routes that a link set down would lose; a rule before every table keeps them.
    namespace = blueprint.namespace(member)
    there = "blackhole" in ip("rule", "show", namespace=namespace)
    if there == up:
        with contextlib.suppress(MachineError):
            ip("rule", "del" if up else "add", "pref", "0", "type", "blackhole", namespace=namespace)
