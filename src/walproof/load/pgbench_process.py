"""One pgbench process: starts it, waits until its clients are connected, ends it and summarises its logs."""

import re
from collections.abc import Callable, Sequence

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
    """pgbench running in a workspace; as a context manager it is ended and the workspace closed."""

    def __init__(self, invocation: Invocation, workspace: Workspace, clock: Clock) -> None:
        self._invocation = invocation
        self._clock = clock
        for name, text in invocation.scripts.items():
            workspace.put(name, text)
        super().__init__(invocation.argv, workspace)

    def used(self) -> Used:
        """Processor time it used so far."""
        return used(self.pids, disk=False)

    @property
    def self_timed_s(self) -> None:
        """None: it is ended from here."""

    def await_connected(self, clients: int, timeout_s: float) -> None:
        """Wait until every client has its socket; TargetError with pgbench's message when it fails."""
        deadline = self._clock.now() + timeout_s
        while self._process.sockets() < clients:
            if self.ended:
                raise self.error()
            if self._clock.now() > deadline:
                raise TargetError(
                    f"{clients} clients are not connected within {timeout_s:.0f} s", "see max_connections"
                )
            self._clock.pause(_INTERVAL_S)

    def end(self, grace_s: float, unblock: Callable[[], None]) -> None:
        """SIGALRM, which pgbench takes for the end of -T; `unblock` is called when it does not end within grace_s."""
        self._process.finish()
        if not self._process.wait(grace_s):
            unblock()
            if not self._process.wait(grace_s):
                self._process.kill()

    def summary(self, since: float, until: float) -> tuple[Summary, float]:
        """The logs added up, and from when they count: once every client is warm, between two times (epoch s)."""
        files = self._workspace.fetch("log.*")
        warm = warm_from(files, since, until)
        scripts, paced = max(1, len(self._invocation.levels)), "-R" in self._invocation.argv
        return summary(files, warm, until, scripts=scripts, paced=paced), warm

    def series(self, found: Summary, within: tuple[float, float], marks: Sequence[Mark]) -> Series:
        """The logs second by second between two times (epoch s); `found` is their summary."""
        stalls = found.stalls(*within)
        return series(self._workspace.fetch("log.*"), within, stalls, marks)

    def error(self) -> TargetError:
        """The TargetError for pgbench's first error message."""
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
        found = re.search(r"^total number of retries: (\d+)", self._text(), re.MULTILINE)
        return int(found[1]) if found else 0
