"""Processes that outlive their command, and the pid files that name each for good: its pid, when it started, this boot.

A reused pid is never taken for it. Pid files lie in folders where only their owner can write.
"""

import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_FIRST_PIDS = b"pid:[4026531836]"
"""The pid namespace of every machine outside containers (PROC_PID_INIT_INO, Linux' include/linux/proc_ns.h)."""


def start(
    argv: Sequence[str], pid_file: Path, log: Path, environment: Mapping[str, str], cwd: Path | str | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own and name it in the file; what it prints is appended to the log."""
    with os.fdopen(os.open(log, _APPENDING, 0o600), "ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
    write(pid_file, process.pid)
    return process


def stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat behind the name, from its state, field 3, on; OSError where there is none."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def identity(pid: int) -> str | None:
    """Pid, start time (ticks since boot, field 22 of proc(5)'s stat) and boot; None for a dead one or a zombie."""
    try:
        state, *fields = stat(pid)
        boot = _BOOT.read_text().strip()
    except (OSError, ValueError, IndexError):
        return None
    return None if state in "ZX" else f"{pid} {fields[18]} {boot}"


def machine() -> str:
    """Its name, a slash, and what tells it from others of that name, hashed: machine-id and pid namespace.

    The boot too where machine-id is missing, or may be that of an image: in a container.
    """
    own, pids = _bytes(_MACHINE_ID.read_bytes), _bytes(lambda: os.readlink(b"/proc/self/ns/pid"))
    boot = b"" if len(own.strip()) == 32 and pids == _FIRST_PIDS else _bytes(_BOOT.read_bytes)
    return f"{socket.gethostname()}/{hashlib.sha256(b'walproof' + own + pids + boot).hexdigest()[:8]}"


def here() -> str:
    """The machine, a space, its boot: what was numbered, or had processes, on an earlier boot has none of it left."""
    return f"{machine()} {_BOOT.read_text().strip()}"


def _place_of(process: str) -> str:
    """Where it ran, as `here`, of what `this_process` gave."""
    return f"{process.partition(' ')[0]} {process.rpartition(' ')[2]}"


def is_here(place: str) -> bool:
    """Whether that was `here`, whatever the machine was called then: its name may change while it runs."""
    return place.partition("/")[2] == here().partition("/")[2]


def _bytes(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError:
        return b""


def this_process() -> str:
    """The machine, a space, the identity: by it `ended` tells anywhere whether this process is still there."""
    return f"{machine()} {identity(os.getpid()) or ''}"


def is_this(process: str) -> bool:
    """Whether that is what `this_process` gave, whatever the machine was called then."""
    return is_here(_place_of(process)) and process.partition(" ")[2] == identity(os.getpid())


def name_of_machine(process: str) -> str:
    """Of what `this_process` gave; "" for what is no machine's name, since another may have written it.

    >>> name_of_machine("ci-7/1a2b3c4d 7 1 boot"), name_of_machine("$(id)")
    ('ci-7', '')
    """
    name = process.partition(" ")[0].partition("/")[0]
    return name if re.fullmatch("[A-Za-z0-9_][A-Za-z0-9._-]{0,252}", name) else ""


def ended(process: str, ended_on: frozenset[str] = frozenset()) -> bool | None:
    """Whether that process has ended; None where only another machine can tell, and not in `ended_on`.

    Nor can another boot: machines of one image have one name and one machine-id, and any of them may be at work.

    >>> ended("elsewhere/1a2b3c4d 1 2 3"), ended("elsewhere/1a2b3c4d 1 2 3", frozenset(["elsewhere"]))
    (None, True)
    """
    if not is_here(_place_of(process)):
        return True if name_of_machine(process) in ended_on else None
    known = process.partition(" ")[2]
    pid = known.partition(" ")[0]
    return not pid.isdigit() or identity(int(pid)) != known


def of_earlier_boot(process: str) -> bool:
    """Whether that process ran before this machine's last boot: where nobody else's notes are read, it has ended."""
    return process.partition(" ")[0] == machine() and not is_here(_place_of(process))


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
