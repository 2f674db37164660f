"""Load as processes of this machine: a work directory in memory, started programs and what they print, processor time.

Linux only: processor time and disk bytes are read from /proc."""

import atexit
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from walproof.machine import pid_files
from walproof.machine.clock import OFFSET
from walproof.machine.programs import lookup, pgbench, search_path
from walproof.machine.signals import shielded
from walproof.model.load import PlaceClock, Workspace
from walproof.model.topology import Endpoint

PREFIX = "walproof-load-"
_MEMORY = Path("/dev/shm")


def new_work_directory() -> Path:
    """A new directory, named after this process; those of processes here that were killed are removed first."""
    remove_left()
    with shielded():
        made = tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=_parent())
        # A signal may come before the caller can remove it.
        atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _parent() -> Path:
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    return _MEMORY if in_memory else Path(tempfile.gettempdir())


def _prefix() -> str:
    """Containers may share the folder: only this one knows its processes."""
    return f"{PREFIX}{pid_files.machine().rpartition('/')[2]}-"


def remove_left() -> None:
    """Remove the directories of processes of this machine that were killed."""
    for left in _parent().glob(f"{_prefix()}*"):
        owner = left.name.removeprefix(_prefix()).partition("-")[0]
        with contextlib.suppress(OSError):
            ours = left.lstat().st_uid == os.getuid()
            if ours and owner.isdigit() and not Path(f"/proc/{owner}").exists():
                shutil.rmtree(left, ignore_errors=True)


_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds of processes up to now, and bytes that they read from and wrote to storage, by pid."""

    cpu_s: dict[int, float]
    read: dict[int, int]
    written: dict[int, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """/proc/stat up to now, seconds over all processors: all time, time of processes, all busy time, stolen."""

    total: float
    processes: float
    busy: float
    stolen: float


def used(pids: Iterable[int], *, disk: bool = True) -> Used:
    """What these processes used so far; processes that ended or cannot be read are left out."""
    cpu: dict[int, float] = {}
    read: dict[int, int] = {}
    written: dict[int, int] = {}
    for pid in pids:
        try:
            columns = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            cpu[pid] = (int(columns[11]) + int(columns[12])) / _TICKS
            if disk:
                lines = dict(line.split(b": ") for line in Path(f"/proc/{pid}/io").read_bytes().splitlines())
                read[pid], written[pid] = int(lines[b"read_bytes"]), int(lines[b"write_bytes"])
        except (OSError, IndexError, KeyError):
            continue
    return Used(cpu, read, written)


def ended_children_s() -> float:
    """Processor seconds of all programs that this process started and that ended, with those they started in turn."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def machine_usage() -> Machine:
    """The machine's counters (proc(5), /proc/stat: user nice system idle iowait irq softirq steal …)."""
    with open("/proc/stat", "rb") as file:
        ticks = [int(word) / _TICKS for word in file.readline().split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = (*ticks, *([0.0] * 8))[:8]
    busy = user + nice + system + irq + softirq
    return Machine(busy + idle + iowait + steal, user + nice + system, busy, steal)


def cpu_between(before: Used, after: Used) -> float:
    """Processor seconds between two readings; all of a process that started in between, nothing of one that ended.

    >>> cpu_between(Used({1: 2.0}, {}, {}), Used({1: 2.5, 7: 0.25}, {}, {}))
    0.75
    """
    return sum(now - before.cpu_s.get(pid, 0.0) for pid, now in after.cpu_s.items())


def bytes_between(before: dict[int, int], after: dict[int, int]) -> int:
    """Bytes between two readings, counted like cpu_between."""
    return sum(now - before.get(pid, 0) for pid, now in after.items())


_OUTPUT = "output"


class StartedProgram:
    """A program that was started in workspaces; as a context manager it is ended and they are closed."""

    def __init__(self, programs: Sequence[tuple[Sequence[str], Workspace]]) -> None:
        """Argument lists, each with the workspace it is started in."""
        self._workspaces = [workspace for _, workspace in programs]
        self._processes = [workspace.start(argv, _OUTPUT) for argv, workspace in programs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for workspace in self._workspaces:
            workspace.close()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for process in self._processes for pid in process.pids)

    @property
    def ended(self) -> bool:
        """Whether it ended by itself, in one of its places at least."""
        return any(process.exit_code is not None for process in self._processes)

    def _cpu(self) -> Used:
        """Processor seconds of each process so far."""
        return Used({number: process.cpu_s() for number, process in enumerate(self._processes)}, {}, {})

    def _lost(self) -> str:
        """Which place was lost, "" when none was."""
        return next((workspace.lost for workspace in self._workspaces if workspace.lost), "")

    def _text(self) -> str:
        paths = [path for workspace in self._workspaces for path in workspace.fetch(_OUTPUT)]
        return "".join(path.read_text(errors="replace") for path in paths)


class LocalProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,)

    def cpu_s(self) -> float:
        """Processor seconds it used so far; 0 once it has ended and was waited for."""
        return sum(used(self.pids, disk=False).cpu_s.values())

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def sockets(self) -> int:
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{self._process.pid}/fd")]
        except OSError:
            return 0
        return sum(link.startswith("socket:") for link in links)

    def finish(self) -> None:
        """Close its standard input where it is a pipe, else SIGALRM."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        elif self._process.poll() is None:
            self._process.send_signal(signal.SIGALRM)

    def wait(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class LocalWorkspace:
    """A work directory of this machine; removed when it is closed or forgotten."""

    lost = ""

    def __init__(self, under: Sequence[str] = ()) -> None:
        """`under`: the words before a program's own."""
        self.directory, self._under = str(new_work_directory()), under
        self._remove = weakref.finalize(self, shutil.rmtree, self.directory, True)

    def clock(self) -> PlaceClock:
        return PlaceClock(OFFSET)

    def seen_from_there(self, endpoint: Endpoint) -> Endpoint:
        return endpoint

    def put(self, name: str, text: str) -> None:
        (Path(self.directory) / name).write_text(text, encoding="utf-8")

    def start(self, argv: Sequence[str], log: str) -> LocalProcess:
        """A program that `finish` ends by SIGALRM, with an environment of its own."""
        return self._start(
            [*self._under, *argv], log, subprocess.DEVNULL, {"LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
        )

    def start_module(self, module: str, argument: str, log: str) -> LocalProcess:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if os.path.isabs(p))}
        return self._start([sys.executable, "-P", "-m", module, argument], log, subprocess.PIPE, environment)

    def _start(self, argv: Sequence[str], log: str, stdin: int, environment: dict[str, str]) -> LocalProcess:
        with (Path(self.directory) / log).open("wb") as output:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env={**environment, "PATH": search_path()},
                start_new_session=True,
            )
        return LocalProcess(process)

    def fetch(self, pattern: str, *, head: int | None = None) -> tuple[Path, ...]:
        return tuple(sorted(Path(self.directory).glob(pattern)))

    def close(self) -> None:
        self._remove()


class LocalRunner:
    def pgbench(self) -> Path:
        """This machine's; MachineError where there is none."""
        return pgbench()

    def open(self) -> tuple[LocalWorkspace]:
        """A new work directory; what is started there ends with the thread that started it, by kill -9 too."""
        setpriv = lookup("setpriv")
        # A parent killed before that was asked for sends nothing: its program is not started.
        asked = (str(setpriv), "--pdeathsig", "KILL", "--", "/bin/sh", "-c", '[ $PPID = "$0" ] && exec "$@"')
        return (LocalWorkspace((*asked, str(os.getpid())) if setpriv else ()),)
