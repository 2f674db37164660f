"""One pgbench process: starts it, waits until its clients are connected, ends it and summarises its logs."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from walproof.errors import TargetError
from walproof.load.pgbench import Invocation
from walproof.load.pgbench_log import Summary, log_files, summary, warm_from
from walproof.model.ports import Clock

_INTERVAL_S = 0.005


class RunningLoad:
    """pgbench running in `directory`; as a context manager it is ended and the directory removed."""

    def __init__(self, invocation: Invocation, directory: Path, clock: Clock) -> None:
        self._invocation = invocation
        self._directory = directory
        self._clock = clock
        for name, text in invocation.scripts.items():
            (directory / name).write_text(text, encoding="utf-8")
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                invocation.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")},
                start_new_session=True,
            )

    def __enter__(self) -> "RunningLoad":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """pgbench's process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process.poll() is not None

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """Wait until every client has its socket; TargetError with pgbench's message when it fails."""
        deadline = self._clock.now() + timeout_s
        while self._sockets() < clients:
            if self.ended:
                raise self.error()
            if self._clock.now() > deadline:
                raise TargetError(
                    f"{clients} clients are not connected within {timeout_s:.0f} s", "see max_connections"
                )
            self._clock.pause(_INTERVAL_S)

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        """SIGALRM, which pgbench takes for the end of -T; `unblock` is called when it does not end within grace_s."""
        if not self.ended:
            self._process.send_signal(signal.SIGALRM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            unblock()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        """The logs added up, and from when they count: once every client is warm, between two times (epoch s)."""
        files = log_files(self._directory)
        warm = warm_from(files, since, until)
        return summary(files, warm, until, scripts=max(1, len(self._invocation.levels))), warm

    def error(self) -> TargetError:
        """The TargetError for pgbench's first error message."""
        lines = (self._directory / "output").read_text(errors="replace").splitlines()
        errors = [line for line in lines if "error:" in line or "FATAL" in line or "ERROR" in line] or lines
        return TargetError(f"pgbench: {errors[0] if errors else 'it ended without a message'}", "is the target up?")

    @property
    def aborted(self) -> int:
        """Clients that pgbench aborted after an error."""
        text = (self._directory / "output").read_text(errors="replace")
        return sum("aborted" in line for line in text.splitlines() if line.startswith("pgbench: error: client"))

    def _sockets(self) -> int:
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{self._process.pid}/fd")]
        except OSError:
            return 0
        return sum(link.startswith("socket:") for link in links)
