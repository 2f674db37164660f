"""A member's power cut and switched on again: what it had flushed is there, what it had not is gone.

In one order, so that nothing false escapes: every process stopped, the cable down, the file systems shut down without a
flush of their journal, every process killed. Packets the kernel already held may still have left, as with real power.
The volatile cache of the machine's own disk is not part of it: only the operating system's memory is lost.
"""

import contextlib
import errno
import fcntl
import os
import signal
import struct
from pathlib import Path

from walproof.errors import MachineTrouble, UsageTrouble
from walproof.lab import members
from walproof.lab.blueprint import Blueprint
from walproof.lab.clock import RealClock
from walproof.lab.faults import disks, force, stopping, volumes
from walproof.lab.faults.commands import run
from walproof.lab.faults.members import forget_postmaster

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32) of linux/fs/ext4/ext4.h; what `xfs_io -x -c shutdown` issues."""
_NO_LOG_FLUSH = 2


def unavailable(blueprint: Blueprint) -> str | None:
    """Why no power can be cut in this lab, one clause; None where it can."""
    if blueprint.disk.kind != "image":
        return "needs data on images: walproof lab up --disk image"
    return volumes.unavailable()


def cut_power(blueprint: Blueprint, member: str) -> None:
    """Cut it. UsageTrouble for a member unknown or down, MachineTrouble without images; nothing has changed then."""
    force.refuse_nonsense(blueprint, force.POWER, member)
    if why := unavailable(blueprint):
        raise MachineTrouble(f"the power of {member} cannot be cut: {why}", "walproof lab fault --list")
    if not members.processes(blueprint, member):
        raise UsageTrouble(f"{member} is already down", "walproof lab fault --heal")
    with force.noted(blueprint, force.InForce(force.POWER, member, RealClock().now())):
        _cut(blueprint, member)


def _cut(blueprint: Blueprint, member: str) -> None:
    places = [volume.mount_point for volume in volumes.volumes(blueprint, member)]
    opened = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in places]
    try:
        stopping.stop_all(blueprint, member)
        cable(blueprint, member, up=False)
        for descriptor in opened:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    except OSError as refused:
        cable(blueprint, member, up=True)
        members.signal_all(blueprint, member, signal.SIGCONT)
        raise MachineTrouble(
            f"the file system of {member} cannot be shut down: {refused.strerror}",
            "needs a kernel with EXT4_IOC_SHUTDOWN",
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    members.kill_everything(blueprint, member, RealClock())
    # strace held them; a dead member needs no guard, and its disk comes back as it was: the trouble stays noted.
    disks.end_guard(blueprint, member)
    volumes.detach(blueprint, member)


def power_on(blueprint: Blueprint, member: str) -> None:
    """Mount again, which replays the journal, and plug the cable in; starting the programs is the caller's."""
    for volume in volumes.volumes(blueprint, member):
        if volumes.mounted(volume.mount_point) and _is_dead(volume.mount_point):
            members.kill_everything(blueprint, member, RealClock())
            volumes.detach(blueprint, member)
    volumes.attach(blueprint, member)
    forget_postmaster(blueprint, member)
    cable(blueprint, member, up=True)


def _is_dead(mount_point: Path) -> bool:
    """Whether the file system was shut down: walproof was killed in the middle of a cut."""
    try:
        (mount_point / ".alive").touch()
        (mount_point / ".alive").unlink()
    except OSError as wrong:
        return wrong.errno != errno.ENOSPC
    return False


def cable(blueprint: Blueprint, member: str, *, up: bool) -> None:
    """The member's cable, pulled or plugged: nothing leaves, neither by the cable nor by the lab's wire."""
    run(["ip", "link", "set", blueprint.veth(member), "up" if up else "down"])
    # The wire's device has routes that a link set down would lose; a rule before every table keeps them.
    rule = ["ip", "-n", blueprint.namespace(member), "rule"]
    there = "blackhole" in run([*rule, "show"])
    if there == up:
        with contextlib.suppress(MachineTrouble):
            run([*rule, "del" if up else "add", "pref", "0", "type", "blackhole"])
