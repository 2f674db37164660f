"""Load on this machine: programs as processes in a work directory in memory."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

from walproof.load.cpu_usage import used
from walproof.load.work_directory import new_work_directory
from walproof.machine.clock import OFFSET
from walproof.machine.programs import pgbench, search_path
from walproof.model.load import PlaceClock
from walproof.model.topology import Endpoint


class LocalProcess:
    """One process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process id."""
        return (self._process.pid,)

    def cpu_s(self) -> float:
        """Processor seconds it used so far; 0 once it has ended and was waited for."""
        return sum(used(self.pids, disk=False).cpu_s.values())

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def sockets(self) -> int:
        """How many sockets it has open."""
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
        """Wait for its end; False when it still runs after that many seconds."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once, with whatever it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class LocalWorkspace:
    """A work directory of this machine; removed when it is closed or forgotten."""

    lost = ""

    def __init__(self) -> None:
        self.directory = str(new_work_directory())
        self._remove = weakref.finalize(self, shutil.rmtree, self.directory, True)

    def clock(self) -> PlaceClock:
        """This machine's own."""
        return PlaceClock(OFFSET)

    def seen_from_there(self, endpoint: Endpoint) -> Endpoint:
        """The same."""
        return endpoint

    def put(self, name: str, text: str) -> None:
        """Write a file there."""
        (Path(self.directory) / name).write_text(text, encoding="utf-8")

    def start(self, argv: Sequence[str], log: str) -> LocalProcess:
        """A program that `finish` ends by SIGALRM, with an environment of its own."""
        return self._start(argv, log, subprocess.DEVNULL, {"LC_ALL": "C", "HOME": os.environ.get("HOME", "/")})

    def start_module(self, module: str, argument: str, log: str) -> LocalProcess:
        """A module of walproof in this Python: `finish`, and the end of this process, close its standard input."""
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
        """Files there that match, as they are now."""
        return tuple(sorted(Path(self.directory).glob(pattern)))

    def close(self) -> None:
        """Remove the directory."""
        self._remove()


class LocalRunner:
    """Runs load on this machine."""

    def pgbench(self) -> Path:
        """This machine's; MachineError where there is none."""
        return pgbench()

    def open(self) -> tuple[LocalWorkspace]:
        """A new work directory."""
        return (LocalWorkspace(),)
