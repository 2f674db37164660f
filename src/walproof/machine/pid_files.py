"""Pid files that name a process for good: its pid, when it started, and this boot. A reused pid is never taken for it.

Standard library and /proc only; write them in folders where only their owner can.
"""

import os
from pathlib import Path


def identity(pid: int) -> str | None:
    """Pid, start time (ticks since boot, field 22 of proc(5)'s stat) and boot; None for a dead one or a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError, IndexError):
        return None
    return None if state in "ZX" else f"{pid} {fields[18]} {boot}"


def write(path: Path, pid: int) -> None:
    """Name that process in the file, renamed into place; a file without a process when it has ended already."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        file.write(identity(pid) or "")
    new.replace(path)


def living(path: Path) -> int | None:
    """The pid of the process the file names while it lives; None for a dead one, another's pid or no such file."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, encoding="ascii") as file:
            named = file.read(200).strip()
        pid = int(named.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if pid > 1 and identity(pid) == named else None
