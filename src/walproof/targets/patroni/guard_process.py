"""A guard as a process of its own, asked over its own HTTP port: started, asked, ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from pydantic import TypeAdapter

from walproof.errors import MachineError
from walproof.machine import pid_files
from walproof.model.ports import Clock
from walproof.model.takeover import GuardStatus
from walproof.model.waiting import Wait, wait_for

DRILLED = ("--at-most-every", "1s")
"""Options of a guard whose takeovers are meant, drill after drill: without them the time between two would double."""
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_STATUS = TypeAdapter(GuardStatus)


@dataclass(frozen=True, slots=True)
class GuardProcess:
    """folder: where its log and pid file lie; port: on 127.0.0.1; options: of `walproof guard`, with the target.

    under: the beginning of its command line, for a program that runs it.
    """

    folder: Path
    port: int
    options: Sequence[str]
    clock: Clock
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    name: str = "guard"
    under: Sequence[str] = ()

    @property
    def _pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    @property
    def _log_file(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it where it does not run; returns when it answers."""
        if pid_files.living(self._pid_file) is not None:
            return
        guard = [sys.executable, "-P", "-m", "walproof", "guard", *self.options]
        guard += ["--listen", f"127.0.0.1:{self.port}"]
        argv = [*self.under, *guard]
        with os.fdopen(os.open(self._log_file, _APPENDING, 0o600), "ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.environment),
                start_new_session=True,
            )
        pid_files.write(self._pid_file, process.pid)

        def answers() -> bool:
            if process.poll() is not None:
                words = self.log().strip().splitlines()
                raise MachineError(f"the guard does not start: {' '.join(words[-2:])}", "walproof guard --help")
            return self.status() is not None

        wait_for(Wait.PROGRAM_READY, answers, self.clock, pace_s=0.05)

    def stop(self) -> None:
        """End it in order; nothing where it does not run."""
        pid = pid_files.living(self._pid_file)
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        wait_for(Wait.PROGRAM_GONE, lambda: _ended(pid, self._pid_file), self.clock, pace_s=0.02)

    def status(self) -> GuardStatus | None:
        """What it does now; None where it does not run or does not answer."""
        try:
            answer = httpx2.get(f"http://127.0.0.1:{self.port}/state", timeout=1, trust_env=False, verify=False)
            return _STATUS.validate_json(answer.content)
        except (httpx2.HTTPError, ValueError, OSError):
            return None

    def log(self) -> str:
        """What it wrote so far."""
        try:
            return self._log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""


def _ended(pid: int, pid_file: Path) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # where it is our own child
    return pid_files.living(pid_file) is None
