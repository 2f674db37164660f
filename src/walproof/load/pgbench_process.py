"""pgbench running in one place or in several: waits until its clients are connected, ends it, summarises its logs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from walproof.errors import TargetError
from walproof.load.cpu_usage import Used, used
from walproof.load.pgbench import Invocation
from walproof.load.pgbench_log import Summary, summary, warm_from
from walproof.load.series import Mark, series
from walproof.load.started_program import StartedProgram
from walproof.model.load import Workspace
from walproof.model.ports import Clock
from walproof.model.sample import Series

_INTERVAL_S = 0.005


class RunningLoad(StartedProgram):
    """pgbench running in workspaces, each with its own part of the clients; as a context manager it is ended."""

    def __init__(self, parts: Sequence[tuple[Invocation, Workspace]], clock: Clock) -> None:
        self._invocation = parts[0][0]
        self._clock = clock
        for invocation, workspace in parts:
            for name, text in invocation.scripts.items():
                workspace.put(name, text)
        super().__init__([(invocation.argv, workspace) for invocation, workspace in parts])

    def used(self) -> Used:
        """Processor time it used so far."""
        return used(self.pids, disk=False) if self.pids else self._cpu()

    @property
    def self_timed_s(self) -> None:
        """None: it is ended from here."""

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """Wait until every client has its socket; TargetError with pgbench's message when it fails."""
        deadline = self._clock.now() + timeout_s
        while sum(process.sockets() for process in self._processes) < clients:
            if self.ended:
                raise self.error()
            if self._clock.now() > deadline:
                raise TargetError(
                    f"{clients} clients are not connected within {timeout_s:.0f} s", "see max_connections"
                )
            self._clock.pause(_INTERVAL_S)

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        """SIGALRM, which pgbench takes for the end of -T; `unblock` is called when it does not end within grace_s."""
        for process in self._processes:
            process.finish()
        if not self._waited(grace_s):
            unblock()
            if not self._waited(grace_s):
                for process in self._processes:
                    process.kill()

    def _waited(self, most_s: float) -> bool:
        deadline = self._clock.now() + most_s
        return all([process.wait(max(0.0, deadline - self._clock.now())) for process in self._processes])

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        """The logs added up, and from when they count: once every client is warm, between two times (epoch s).

        TargetError when one of its places was lost: what the others did is no measure of what was asked.
        """
        ahead = self._logs()
        if self._lost():
            raise self.error()
        warm = warm_from(list(ahead), since, until, ahead=ahead)
        scripts, paced = max(1, len(self._invocation.levels)), "-R" in self._invocation.argv
        return summary(list(ahead), warm, until, scripts=scripts, paced=paced, ahead=ahead), warm

    def series(self, found: Summary, within: tuple[float, float], marks: Sequence[Mark]) -> Series:
        """The logs second by second between two times (epoch s); `found` is their summary."""
        ahead = self._logs()
        return series(list(ahead), within, found.stalls(*within), marks, ahead=ahead)

    def _logs(self) -> dict[Path, float]:
        """Every log, and how far the clock that wrote it is ahead of ours, seconds."""
        return {path: place.clock().ahead_s for place in self._workspaces for path in place.fetch("log.*")}

    def error(self) -> TargetError:
        """The TargetError for a place that was lost, else for pgbench's first error message."""
        if self._lost():
            return TargetError(f"{self._lost()}: the sample is lost with it", "start again: --resume RECORD")
        lines = self._text().splitlines()
        errors = [line for line in lines if "error:" in line or "FATAL" in line or "ERROR" in line] or lines
        return TargetError(f"pgbench: {errors[0] if errors else 'it ended without a message'}", "is the target up?")

    @property
    def aborted(self) -> int:
        """Clients that pgbench aborted after an error."""
        text = self._text()
        return sum("aborted" in line for line in text.splitlines() if line.startswith("pgbench: error: client"))

    @property
    def retries(self) -> int:
        """Times that pgbench tried a transaction again, as it says when it ends; 0 where it makes one try."""
        found = re.findall(r"^total number of retries: (\d+)", self._text(), re.MULTILINE)
        return sum(map(int, found))
