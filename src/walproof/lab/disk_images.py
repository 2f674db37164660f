"""A member's data on ext4 images over loop devices: created, attached, detached, released. Starts and kills nothing."""

import contextlib
import fcntl
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from walproof.errors import MachineError, UsageError, WaitTimeout
from walproof.lab import home, mount_view
from walproof.lab.blueprint import Blueprint, Disk
from walproof.lab.privileges import isolated_python, make_folder, member_uid
from walproof.machine.clock import RealClock
from walproof.machine.programs import lookup, run
from walproof.model.waiting import Wait, wait_for

SMALLEST = 256 << 20
"""Bytes below which a member's PGDATA, a few WAL segments and the journal do not fit."""
SYS_ADMIN = 21  # linux/capability.h
_NAMED = 5
_GET_STATUS64, _STATUS64 = 0x4C05, struct.Struct("=QQ216x")
"""linux/loop.h: its answer begins with the device and the inode number of the file."""
_DELETED = " (deleted)"
_FREE_A_LOOP = "losetup -a shows who holds them; `walproof lab down` releases a lab's devices"


@dataclass(frozen=True, slots=True)
class Volume:
    """One file system of a member: the image that holds it and where it is mounted."""

    member: str
    image: Path
    mount_point: Path


def images_dir(blueprint: Blueprint) -> Path:
    """Where the images lie, readable by their owner only; links resolved, as the kernel names it."""
    return Path(os.path.realpath(blueprint.home)) / "images"


def volumes(blueprint: Blueprint, member: str | None = None) -> tuple[Volume, ...]:
    """The file systems the blueprint asks for, of one member or of all; none where the disk is plain."""
    if blueprint.disk.kind != "image":
        return ()
    purposes = ("disk", "wal") if blueprint.disk.wal_volume else ("disk",)
    return tuple(
        Volume(
            name,
            images_dir(blueprint) / f"{name}-{purpose}.img",
            Path(os.path.realpath(blueprint.member_dir(name))) / purpose,
        )
        for name in ((member,) if member else blueprint.members)
        for purpose in purposes
    )


def unavailable() -> str | None:
    """Why images cannot be used here, one clause; None where they can."""
    if os.geteuid() != 0:
        return "needs root to mount an image"
    if not _is_machine_root():
        return "needs the machine's own root, not a user namespace's"
    if not _may_mount():
        return "root has no CAP_SYS_ADMIN here, as in a container without privileges"
    if not Path("/dev/loop-control").exists():
        return "this kernel offers no loop devices (/dev/loop-control is missing)"
    return None if lookup("mkfs.ext4") else "mkfs.ext4 is not installed (Debian: e2fsprogs)"


def _is_machine_root() -> bool:
    mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    return mapped[:2] == ["0", "0"] and int(mapped[2]) > 65536


def _may_mount() -> bool:
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    held = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(held, 16) >> SYS_ADMIN & 1)


def check(disk: Disk) -> None:
    """Refuse a disk that this machine cannot create (MachineError) or that is not valid (UsageError)."""
    if disk.kind != "image":
        if disk.wal_volume:
            raise UsageError("a WAL volume is a second image of the member", "--disk image --wal-volume")
        return
    if disk.size_bytes < SMALLEST:
        raise UsageError(
            f"a disk of {disk.size_bytes / 2**20:.3g} MB is too small for a cluster",
            f"use --disk-size {SMALLEST >> 20}MB or more",
        )
    if why := unavailable():
        raise MachineError(f"--disk image is not available: {why}", "use --disk plain; every fault but power-cut works")


def prepare(blueprint: Blueprint) -> None:
    """Create and mount every volume, owned by the lab's user; nothing stays behind when one of them fails."""
    check(blueprint.disk)
    if blueprint.disk.kind != "image":
        return
    try:
        images_dir(blueprint).mkdir(mode=0o700, parents=True, exist_ok=True)
        for volume in volumes(blueprint):
            _format(volume.image, blueprint.disk.size_bytes)
            volume.mount_point.mkdir(parents=True, exist_ok=True)
            _attach(volume)
            shutil.rmtree(volume.mount_point / "lost+found", ignore_errors=True)
            make_folder(volume.mount_point, owner=member_uid(blueprint.number))
    except BaseException:
        release(blueprint)
        raise


def release(blueprint: Blueprint) -> None:
    """Unmount and detach everything below the lab's home and remove the images; safe twice, and after a kill -9.

    WaitTimeout when a loop device stays: the images stay then too.
    """
    _free(blueprint)
    shutil.rmtree(images_dir(blueprint), ignore_errors=True)


def attach(blueprint: Blueprint, member: str) -> None:
    """Mount the member's volumes where one is not; the journal is replayed by the mount, as at a power-on.

    They are let go first, wherever else: a file system that is mounted twice is destroyed. WaitTimeout where it stays.
    """
    with _alone(blueprint):
        wanted = volumes(blueprint, member)
        if all(mounted(volume.mount_point) for volume in wanted):
            return
        _free(blueprint, member)
        for volume in wanted:
            _attach(volume)


def detach(blueprint: Blueprint, member: str) -> None:
    """Unmount the member's volumes and release their devices; its processes must have ended."""
    with _alone(blueprint):
        _let_go(blueprint, member)


def _alone(blueprint: Blueprint) -> AbstractContextManager[object]:
    """One walproof after another: what one has just mounted is not to be unmounted by the next."""
    return home.exclusively(blueprint.home / "disks.lock")


def loops(blueprint: Blueprint) -> tuple[tuple[str, Path], ...]:
    """(device, image) of every loop device that holds a file of this lab, deleted ones too."""
    attached = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            name, device = os.fsdecode(backing.read_bytes()).strip(), f"/dev/{backing.parent.parent.name}"
            image = Path(name.removesuffix(_DELETED))
            if image.is_relative_to(images_dir(blueprint)) and _is_here(device, name, blueprint.home):
                attached.append((device, image))
    return tuple(sorted(attached))


def _is_here(device: str, name: str, home_folder: Path) -> bool:
    """Whether the file of that name is the one that the device holds, or was on the lab's file system; OSError.

    A mount namespace's own path is what the kernel calls it: a container's lab has the same one for another file.
    """
    opened = os.open(device, os.O_RDONLY)
    try:
        file_system, inode = _STATUS64.unpack(fcntl.ioctl(opened, _GET_STATUS64, bytes(_STATUS64.size)))
    finally:
        os.close(opened)
    if name.endswith(_DELETED):
        return bool(file_system == home_folder.stat().st_dev)
    there = os.stat(name)
    return (file_system, inode) == (there.st_dev, there.st_ino)


def _numbers(devices: Iterable[str]) -> set[str]:
    return {mount_view.number(Path(device).stat().st_rdev) for device in devices}


@contextlib.contextmanager
def opened(blueprint: Blueprint, member: str) -> Iterator[list[int]]:
    """A descriptor of each file system of the member, which is on an image of this lab; MachineError where it is not.

    What harms a file system goes by these, never by its path: where nothing is mounted, that is the machine's own.
    """
    with _alone(blueprint), contextlib.ExitStack() as stack:
        folders = [os.open(v.mount_point, os.O_RDONLY | os.O_DIRECTORY) for v in volumes(blueprint, member)]
        for folder in folders:
            stack.callback(os.close, folder)
        ours = _numbers(device for device, _ in loops(blueprint))
        if any(mount_view.number(os.fstat(folder).st_dev) not in ours for folder in folders):
            raise not_here(member)
        yield folders


def not_here(member: str) -> MachineError:
    return MachineError(
        f"the images of {member} are not mounted where walproof looks",
        "run it where the lab was made (containers and unshare have mounts of their own); after a reboot lab down",
    )


def mounted(mount_point: Path) -> bool:
    """Whether a file system of its own is mounted there, in our own mount namespace."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return mount_point.stat().st_dev != mount_point.parent.stat().st_dev
    return False


def _format(image: Path, size_bytes: int) -> None:
    with image.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(size_bytes)
    # No reserved blocks: a full disk is full for root too. Lazy tables: a fresh lab must not wait for zeroes.
    extended = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
    run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", extended, str(image)])


def _attach(volume: Volume) -> None:
    place = str(volume.mount_point)
    _uncover(volume.mount_point)
    try:
        # Over the folder itself, shared, but with nothing else: then an unmount reaches the copies in other users'
        # mount namespaces too (unshare --user), which nobody can unmount there (mount_namespaces(7), locked mounts).
        run(["mount", "--bind", "--make-private", place, place])
        run(["mount", "--make-shared", place])
        device = _loop(volume.image)
        try:
            run(["mount", "-t", "ext4", "-o", "noatime,nosuid,nodev", device, place])
        finally:
            # While mounted this only marks the device to be freed by the unmount: a killed walproof leaks less.
            run(["losetup", "--detach", device])
    except BaseException:
        _uncover(volume.mount_point)
        raise


def _uncover(mount_point: Path) -> None:
    """Unmount all that lies at the place, in our own mount namespace."""

    def covered() -> bool:
        return any(place == str(mount_point) for _, place in mount_view.mounts())

    while covered():
        try:
            run(["umount", "--lazy", str(mount_point)])
        except MachineError:
            if covered():
                raise


def _loop(image: Path) -> str:
    try:
        # Direct I/O: a flush inside the image is a flush of the machine's own disk, and pages are cached once.
        return run(["losetup", "--find", "--show", "--direct-io=on", str(image)]).strip()
    except MachineError as error:
        if "unused loop device" in error.message or "find" in error.message:
            raise MachineError("no loop device is left on this machine", _FREE_A_LOOP) from None
        return run(["losetup", "--find", "--show", str(image)], hint=_FREE_A_LOOP).strip()


def _free(blueprint: Blueprint, member: str | None = None) -> None:
    """Let the volumes go until no device holds one; WaitTimeout when one stays, which names who holds it."""

    # Again and again: a mount namespace may be made meanwhile, and the kernel frees a device only some time after its
    # last lazy unmount.
    def is_free() -> bool:
        stay[:] = _let_go(blueprint, member)
        return not stay

    stay = list[str]()
    try:
        if not is_free():  # which took as long as the kernel had to write
            wait_for(Wait.DISKS_FREE, is_free, RealClock())
    except WaitTimeout as late:
        raise WaitTimeout(f"{late.message}{_holders(stay)}", late.hint) from None


def _let_go(blueprint: Blueprint, member: str | None = None) -> list[str]:
    """Unmount volumes, here and wherever a mount namespace of root's holds a copy (`ip netns exec`, unshare), and free
    their devices; without a member those of every image of the lab. Gives the devices that stay."""
    wanted = volumes(blueprint, member)
    for volume in wanted:
        if mounted(volume.mount_point):
            _patiently_unmount(volume.mount_point)
        _uncover(volume.mount_point)
    images = {volume.image for volume in wanted}

    def held() -> list[str]:
        return [device for device, image in loops(blueprint) if member is None or image in images]

    if devices := held():
        run(isolated_python(mount_view.__file__, mount_view.UNMOUNT, *_numbers(devices)))
    for device in held():
        _detach(device)
    return held()


def _patiently_unmount(mount_point: Path) -> None:
    """Once nothing is busy there; what still is goes on until it ends (`_uncover`)."""

    def gone() -> bool:
        with contextlib.suppress(MachineError):
            run(["umount", str(mount_point)])
        return not mounted(mount_point)

    with contextlib.suppress(WaitTimeout):
        wait_for(Wait.PROGRAM_GONE, gone, RealClock())


def _holders(devices: Iterable[str]) -> str:
    """A clause: processes that hold these, by a mount namespace, a folder or a file; "" for none."""
    numbers, seen, holders = _numbers(devices), set[int](), list[str]()

    def is_there(path: Path) -> bool:
        with contextlib.suppress(OSError):
            return mount_view.number(path.stat().st_dev) in numbers
        return False

    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            space = (entry / "ns" / "mnt").stat().st_ino
            is_mounted = space not in seen and any(number in numbers for number, _ in mount_view.mounts(entry.name))
            seen.add(space)
            if is_mounted or any(map(is_there, (entry / "cwd", entry / "root", *(entry / "fd").iterdir()))):
                holders.append(f"{entry.name} of user {entry.stat().st_uid}")
    return f"; held by process {', '.join(holders[:_NAMED])}: end it" if holders else ""


def _detach(device: str) -> None:
    # Freed by the unmount already, or about to be.
    with contextlib.suppress(MachineError):
        run(["losetup", "--detach", device])
