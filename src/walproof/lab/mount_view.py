"""What of the machine's files a lab's program sees, in a mount namespace of its own; then executes the program.

Run by root as `python -I -S mount_view.py VIEW ARGV…` in a new mount namespace (lab/privileges.py). Standard library
only: it starts with every member. Folders that others may not enter (/root) become empty ones that hold only what the
program needs, under the same path: no capability to read everything is needed for that.
"""

import ctypes
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

_READ_ONLY, _NO_SUID, _NO_DEV, _REMOUNT, _BIND, _RECURSIVE = 1, 2, 4, 32, 4096, 16384
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind, data)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _bind(opened: int, path: str, *, read_only: bool) -> None:
    _mount(f"/proc/self/fd/{opened}", path, "", _BIND | _RECURSIVE)
    if read_only:
        _mount("", path, "", _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV)


def _replace(closed: str, needed: list[str], writable: list[str]) -> None:
    """An empty folder in the place of a closed one, with the needed files and folders in it."""
    opened = {path: os.open(path, os.O_PATH) for path in sorted(needed)}
    _mount("walproof", closed, "tmpfs", _NO_SUID | _NO_DEV, "mode=711,size=1m")
    for path, descriptor in opened.items():
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.makedirs(path, 0o711, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), 0o711, exist_ok=True)
            Path(path).touch()
        _bind(descriptor, path, read_only=path not in writable)
        os.close(descriptor)


def mounts(pid: str = "self") -> list[tuple[str, str]]:
    """(source, mount point) of every mount a process sees; OSError once it is gone."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    split = [line.split(" - ", 1) for line in lines]
    return [(_plain(right.split()[1]), _plain(left.split()[4])) for left, right in split]


def _plain(escaped: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), escaped)


def _leave_out(home: str, own: str) -> None:
    """Detach the volumes of the lab's other members: a copy here would keep them mounted for as long as we live."""
    for _, place in mounts():
        if place.startswith(home + "/") and not (place + "/").startswith(own + "/"):
            _libc.umount2(place.encode(), _DETACH)


def main(view: dict[str, Any], argv: list[str]) -> None:
    """Mount what the view says and execute argv in the same working folder; OSError where the kernel refuses."""
    here = os.getcwd()
    os.umask(0o022)
    if "own" in view:
        _leave_out(view["home"], view["own"])
        descriptor = os.open(view["passwd"], os.O_PATH)
        _bind(descriptor, "/etc/passwd", read_only=True)
        os.close(descriptor)
    for closed, needed in view["closed"].items():
        _replace(closed, needed, [view.get("home", "")])
    os.chdir(here)
    os.umask(0o077)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
