"""What of the machine's files a lab's program sees, in a mount namespace of its own; then executes the program.

Run by root as `python -I -S mount_view.py VIEW ARGV…` in a new mount namespace (lab/privileges.py), and with `--unmount
MAJOR:MINOR…` to unmount in all others (lab/disk_images.py). Standard library only: it starts with every member. Folders
that others may not enter (/root) become empty ones that hold only what the program needs, under the same path: no
capability to read everything is needed for that.
"""

import ctypes
import errno
import fcntl
import json
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

_READ_ONLY, _NO_SUID, _NO_DEV, _REMOUNT, _BIND, _RECURSIVE = 1, 2, 4, 32, 4096, 16384
_DETACH, _NO_FOLLOW = 2, 8
_CLONE_NEWNS = 0x00020000
_NS_GET_USERNS = 0xB701
"""_IO(0xb7, 1) of linux/nsfs.h."""
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}, 1
"""keyctl(2) by machine: libc has no function of it. A kernel without keys says so, and has none to be read."""
_SET_ATTRIBUTES, _HERE, _ALL_BELOW, _UNKNOWN = 442, -100, 0x8000, (errno.ENOSYS, errno.EPERM)
"""mount_setattr(2), of one number on every machine, its flags, and what a kernel, or a container, without it says."""
UNMOUNT = "--unmount"
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind, data)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _bind(opened: int, path: str, *, read_only: bool) -> None:
    """Mount there what is opened, and close it."""
    _mount(f"/proc/self/fd/{opened}", path, "", _BIND | _RECURSIVE)
    os.close(opened)
    if read_only:
        _mount("", path, "", _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV)


def _replace(closed: str, needed: list[str], writable: list[str], root: str = "") -> None:
    """An empty folder in the place of a closed one, with the needed files and folders in it."""
    opened = {path: os.open(path, os.O_PATH) for path in sorted(needed)}
    _mount("walproof", root or closed, "tmpfs", _NO_SUID | _NO_DEV, "mode=711,size=1m")
    for path, descriptor in opened.items():
        place = root + path
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.makedirs(place, 0o711, exist_ok=True)
        elif not os.path.exists(place):
            os.makedirs(os.path.dirname(place), 0o711, exist_ok=True)
            Path(place).touch()
        _bind(descriptor, place, read_only=path not in writable)


_ROOT = "/dev"
"""Where the root of who sees these files alone is mounted first: a folder that every machine has, and that is none of
them, nor below one, whose bind would take the mount along."""


def _show_only(shown: list[str], written: list[str]) -> None:
    """A root folder that holds these files and folders alone, under the same paths, and shared memory of its own.

    Nothing is written but below `written`: a setuid file of our user's that lay anywhere else afterwards would make who
    executes it the user that the next one runs as. Before Linux 5.12, and where a container engine does not know the
    call, it can be written.
    """
    _replace("/", shown, shown, _ROOT)
    if not os.path.isdir(memory := f"{_ROOT}/dev/shm"):  # else one of these lies there
        os.mkdir(memory)
        _mount("walproof", memory, "tmpfs", _NO_SUID | _NO_DEV, "mode=1777,size=25%")
        written = [*written, "/dev/shm"]
    os.chroot(_ROOT)
    try:
        _set_read_only("/", _READ_ONLY)
    except OSError as wrong:
        if wrong.errno not in _UNKNOWN:
            raise
    else:
        for path in written:
            _set_read_only(path, 0)


def mounts(pid: str = "self") -> list[tuple[str, str]]:
    """(MAJOR:MINOR of the file system, mount point) of every mount a process sees; OSError once it is gone."""
    lines = Path(f"/proc/{pid}/mountinfo").read_bytes().split(b"\n")  # a name may hold every other kind of space
    return [(os.fsdecode(of[2]), os.fsdecode(_plain(of[4]))) for of in (line.split(b" ") for line in lines) if of[2:]]


def number(device: int) -> str:
    """MAJOR:MINOR of a device, as the kernel writes it."""
    return f"{os.major(device)}:{os.minor(device)}"


def _plain(escaped: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), escaped)


def unmount_elsewhere(devices: set[str]) -> None:
    """Unmount the file systems of these devices (MAJOR:MINOR) in every other mount namespace of our user namespace.

    Nothing that lies in such a namespace is executed. Those of other users are left alone: they are their own, and what
    they inherited is locked there (mount_namespaces(7)).
    """
    owner, seen = os.stat("/proc/self/ns/user").st_ino, {os.stat("/proc/self/ns/mnt").st_ino}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            opened = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        except OSError:  # it has ended
            continue
        space = os.fstat(opened).st_ino
        if space not in seen and (_owner(opened) != owner or _unmounted_in(opened, pid, devices)):
            seen.add(space)
        os.close(opened)


def _owner(namespace: int) -> int:
    """The user namespace that owns a namespace, as its inode; 0 where we may not know."""
    try:
        opened = fcntl.ioctl(namespace, _NS_GET_USERNS)
    except OSError:
        return 0
    inode = os.fstat(opened).st_ino
    os.close(opened)
    return inode


def _unmounted_in(namespace: int, pid: str, devices: set[str]) -> bool:
    """Whether that was done; not where the process ends meanwhile, which may not be the namespace's only one."""
    try:
        places = [place for device, place in mounts(pid) if device in devices]
    except OSError:
        return False
    child = os.fork() if places else -1
    if child > 0:
        os.waitpid(child, 0)
    if child == 0:
        if _libc.setns(namespace, _CLONE_NEWNS) == 0:
            for place in reversed(places):
                _detach_device(place, devices)
        os._exit(0)
    return True


def _detach_device(place: str, devices: set[str]) -> None:
    try:
        there = number(os.stat(place).st_dev)
    except OSError:
        return
    if there in devices:
        _libc.umount2(os.fsencode(place), _DETACH | _NO_FOLLOW)


def _leave_out(home: str, own: str) -> None:
    """Detach the volumes of the lab's other members: a copy here would keep them mounted for as long as we live."""
    for _, place in mounts():
        if place.startswith(home + "/") and not (place + "/").startswith(own + "/"):
            _libc.umount2(os.fsencode(place), _DETACH)


def _set_read_only(path: str, read_only: int) -> None:
    attributes = struct.pack("=QQQQ", read_only, _READ_ONLY - read_only, 0, 0)
    below = ctypes.c_char_p(path.encode()), ctypes.c_uint(_ALL_BELOW), attributes, ctypes.c_size_t(len(attributes))
    if _libc.syscall(_SET_ATTRIBUTES, _HERE, *below) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def main(view: dict[str, Any], argv: list[str]) -> None:
    """Mount what the view says and execute argv in the same working folder; OSError where the kernel refuses."""
    here = os.getcwd()
    # Root's session keyring would be possessed, and read, by whoever is executed (keyrings(7)).
    if call := _KEYCTL.get(os.uname().machine):
        _libc.syscall(call, _JOIN_SESSION_KEYRING, None)
    os.umask(0o022)
    if "own" in view:
        _leave_out(view["home"], view["own"])
    if "passwd" in view:
        _bind(os.open(view["passwd"], os.O_PATH), "/etc/passwd", read_only=True)
    for closed, needed in view["closed"].items():
        _replace(closed, needed, [view.get("home", ""), *view.get("written", ())])
    if "shown" in view:
        _show_only(view["shown"], view["written"])
        here = "/"
    os.chdir(here)
    os.umask(0o077)
    os.execv(argv[0], argv)


if __name__ == "__main__" and sys.argv[1] == UNMOUNT:
    unmount_elsewhere(set(sys.argv[2:]))
elif __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
