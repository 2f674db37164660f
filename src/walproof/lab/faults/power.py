"""Cuts a member's power and restores it: what it had flushed is there, what it had not is lost.

The file systems are shut down without a flush of their journal, and the network link at once: a flush under way
fails, as in a real power cut. Then every process is stopped, and killed. The volatile cache of the machine's own disk
is not part of it: only the operating system's memory is lost.
"""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

import psutil

from walproof.errors import MachineError, UsageError
from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import active, disks, volumes
from walproof.lab.faults.processes import remove_postmaster_pid
from walproof.machine import untrusted
from walproof.machine.clock import RealClock
from walproof.machine.commands import ip

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32) of linux/fs/ext4/ext4.h; what `xfs_io -x -c shutdown` issues."""
_NO_LOG_FLUSH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
"""linux/sockios.h, linux/if.h."""


_SETTLE_S = 0.1
ON_IMAGES = "needs a lab with its data on images: walproof lab up --disk image"


def unavailable(blueprint: Blueprint) -> str | None:
    """Why no power can be cut in this lab, one clause; None where it can."""
    if why := volumes.unavailable():
        return why
    return None if blueprint.disk.kind == "image" else ON_IMAGES


def cut_power(blueprint: Blueprint, member: str) -> None:
    """Cut it. UsageError for a member unknown or down, MachineError without images; nothing has changed then."""
    active.check_possible(blueprint, active.POWER_CUT, member)
    if why := unavailable(blueprint):
        raise MachineError(f"the power of {member} cannot be cut: {why}", "walproof lab fault list")
    if not members.processes(blueprint, member):
        raise UsageError(f"{member} is already down", active.CLEAR)
    with active.added(blueprint, active.ActiveFault(active.POWER_CUT, member, RealClock().now())):
        _cut(blueprint, member)


def _cut(blueprint: Blueprint, member: str) -> None:
    processes = members.processes(blueprint, member)
    mount_points = [volume.mount_point for volume in volumes.volumes(blueprint, member)]
    opened = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in mount_points]
    # Finding processes took a core for a while: let the load recover, not cut into a pause of our own making.
    RealClock().pause(_SETTLE_S)
    try:
        _one_instant(blueprint.veth(member), opened)
    except OSError as refused:
        set_link(blueprint, member, up=True)
        raise MachineError(
            f"the file system of {member} cannot be shut down: {refused.strerror}",
            "needs a kernel with EXT4_IOC_SHUTDOWN",
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    set_link(blueprint, member, up=False)
    members.kill_everything(blueprint, member, RealClock())
    # strace traced them; a dead member needs no guard. The fault of its disk stays listed until it is cleared.
    disks.end_guard(blueprint, member)
    volumes.detach(blueprint, member)


def _one_instant(device: str, opened: list[int]) -> None:
    """File systems first: no write or flush succeeds any more, so no commit can be confirmed; then the network link.

    The other way round a flush under way would end meanwhile: setting a link down takes the kernel 10 ms. In between
    only commits at `off`, which guarantees nothing, may still be acknowledged.
    """
    shut_down(opened)
    _set_down(device)


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
    """Mount again, which replays the journal, and set the network link up; starting the programs is the caller's."""
    for volume in volumes.volumes(blueprint, member):
        if volumes.mounted(volume.mount_point) and is_dead(volume.mount_point):
            members.kill_everything(blueprint, member, RealClock())
            volumes.detach(blueprint, member)
    volumes.attach(blueprint, member)
    remove_postmaster_pid(blueprint, member)
    set_link(blueprint, member, up=True)


def is_dead(mount_point: Path) -> bool:
    """Whether the file system was shut down: walproof was killed in the middle of a cut."""
    try:
        untrusted.probe(mount_point, mount_point / ".alive")
    except OSError as wrong:
        return wrong.errno != errno.ENOSPC
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
