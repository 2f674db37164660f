"""A running ledger: starts the writers and readers as processes of their own, reads their progress, ends them."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from walproof.errors import MachineError
from walproof.load.ledger.attempt_file import read_attempts, read_counts
from walproof.load.ledger.reader import read_report
from walproof.load.ledger.task import ReaderTask, WriterTask, task_text
from walproof.load.local_runner import LocalRunner
from walproof.model.attempt import Attempts
from walproof.model.load import LedgerOrder, LoadProcess, LoadRunner, Progress, WitnessReport
from walproof.model.topology import Endpoint

_PROCESSES = 2
_END_S = 15.0


def _writer_tasks(order: LedgerOrder, endpoint: Endpoint, directory: str) -> list[WriterTask]:
    """Writers split over at most two processes, numbered from 0."""
    processes = min(_PROCESSES, order.writers)
    bounds = [round(order.writers * i / processes) for i in range(processes + 1)]
    all_writers = WriterTask(
        path="",
        endpoint=endpoint,
        level=order.level,
        first=0,
        count=0,
        drill=order.drill,
        payload_bytes=order.payload_bytes,
        pooled=endpoint.pooled,
        connect_timeout_s=2.0 + order.writers / 50,
        answer_timeout_s=order.answer_timeout_s,
    )
    return [
        replace(
            all_writers,
            path=f"{directory}/attempts-{i}",
            first=bounds[i],
            count=(count := bounds[i + 1] - bounds[i]),
            rate=None if order.rate is None else order.rate * count / order.writers,
        )
        for i in range(processes)
    ]


def _how_it_ended(code: int | None, last_line: str) -> str:
    """How a process that should have ended well did end.

    >>> _how_it_ended(-9, ""), _how_it_ended(1, "no space left"), _how_it_ended(None, "")
    ('was killed by SIGKILL', 'failed: no space left', 'did not end')
    """
    if code is None:
        return "did not end"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"failed: {last_line}" if last_line else f"ended with exit code {code}"


class RunningLedger:
    """Writers (and readers) in processes of their own; they end when this process ends, however it ends.

    Writers connect to `endpoint`, readers to each of the `members` (name, endpoint).
    """

    def __init__(
        self,
        order: LedgerOrder,
        endpoint: Endpoint,
        members: Sequence[tuple[str, Endpoint]] = (),
        runner: LoadRunner | None = None,
    ) -> None:
        self._workspace = (runner or LocalRunner()).open()
        directory = self._workspace.directory
        self._tasks = _writer_tasks(order, endpoint, directory)
        self._attempts: Attempts | None = None
        self._report: WitnessReport | None = None
        self._incomplete = ""
        self._writers: list[LoadProcess] = []
        self._readers: list[LoadProcess] = []
        try:
            for number, task in enumerate(self._tasks):
                self._writers.append(self._start("writer", task, f"writer-{number}"))
            if order.witnesses and members:
                files = tuple(task.path for task in self._tasks)
                reading = ReaderTask(f"{directory}/report", tuple(members), files, order.writers, order.drill)
                self._readers.append(self._start("reader", reading, "reader"))
        except OSError as error:
            self._kill()
            raise MachineError(f"the ledger's writers do not start: {error}", "free memory or processes") from None

    def _start(self, kind: str, task: WriterTask | ReaderTask, name: str) -> LoadProcess:
        self._workspace.put(name, task_text(task))
        path = f"{self._workspace.directory}/{name}"
        return self._workspace.start_module(f"walproof.load.ledger.{kind}", path, f"{name}.log")

    @property
    def pids(self) -> tuple[int, ...]:
        """The writers' processes, for stating the ledger's own cost."""
        return tuple(pid for process in self._writers for pid in process.pids)

    def progress(self) -> Progress:
        """How it stands now; writers_alive counts writers of living processes."""
        if self._attempts is not None:
            return Progress(0, None, 0, "the ledger has been stopped")
        alive = sum(t.count for t, p in zip(self._tasks, self._writers, strict=True) if p.exit_code is None)
        counts = [c for c in map(read_counts, self._files()) if c is not None]
        last = max((c.last_at for c in counts), default=0.0)
        error = next((c.error for c in counts if c.error), "") or self._crash()
        return Progress(sum(c.acknowledged for c in counts), last or None, alive, error)

    def _files(self) -> list[Path]:
        return [path for path in self._workspace.fetch("attempts-*") if path.suffix == ""]

    def _crash(self) -> str:
        """Which of the writer processes failed, and how it ended; "" when none did."""
        for number, process in enumerate(self._writers):
            if process.exit_code not in (None, 0):
                how = _how_it_ended(process.exit_code, self._last_line(f"writer-{number}.log"))
                return f"writer process {number + 1} of {len(self._writers)} {how}: attempts may be missing"
        return ""

    def _silent_readers(self) -> str:
        """How the readers' process ended when it left no report; "" when it did, or when there were no readers."""
        for process in self._readers:
            if process.exit_code != 0 or not self._workspace.fetch("report"):
                return f"the readers' process {_how_it_ended(process.exit_code, self._last_line('reader.log'))}"
        return ""

    def _last_line(self, log: str) -> str:
        lines = [line for file in self._workspace.fetch(log) for line in file.read_text(errors="replace").splitlines()]
        return lines[-1] if lines else ""

    def stop(self) -> Attempts:
        """End the writers and give the ledger; safe to call twice."""
        if self._attempts is None:
            self._finish(self._writers)
            self._finish(self._readers)
            self._attempts = read_attempts(self._files())
            self._incomplete = self._crash() or self._silent_readers()
            self._report = next(map(read_report, self._workspace.fetch("report")), None)
            self._kill()
        return self._attempts

    def witnessed(self) -> WitnessReport:
        """What the readers saw; empty when there were none."""
        self.stop()
        return self._report or WitnessReport({})

    def incomplete(self) -> str:
        """Why the ledger is incomplete, or ""."""
        self.stop()
        return self._incomplete

    @staticmethod
    def _finish(processes: list[LoadProcess]) -> None:
        """Tell them to end; kill those that do not end in time."""
        for process in processes:
            process.finish()
        for process in processes:
            if not process.wait(_END_S):
                process.kill()

    def _kill(self) -> None:
        """Kill what still runs and remove the work directory."""
        for process in (*self._writers, *self._readers):
            process.kill()
        self._workspace.close()
