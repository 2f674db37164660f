"""A running ledger: starts the writers and readers as processes of their own, reads their progress, ends them."""

import contextlib
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from walproof.errors import MachineError
from walproof.load.ledger.attempt_file import read_attempts, read_counts
from walproof.load.ledger.reader import read_report
from walproof.load.ledger.task import ReaderTask, WriterTask, write_task
from walproof.load.work_directory import new_work_directory
from walproof.model.attempt import Attempts
from walproof.model.ports import LedgerOrder, Progress, WitnessReport
from walproof.model.topology import Endpoint

_PROCESSES = 2
_END_S = 15.0


def _writer_tasks(order: LedgerOrder, endpoint: Endpoint, directory: Path) -> list[WriterTask]:
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
    )
    return [
        replace(all_writers, path=str(directory / f"attempts-{i}"), first=bounds[i], count=bounds[i + 1] - bounds[i])
        for i in range(processes)
    ]


class RunningLedger:
    """Writers (and readers) in processes of their own; they end when this process ends, however it ends.

    Writers connect to `endpoint`, readers to each of the `members` (name, endpoint).
    """

    def __init__(self, order: LedgerOrder, endpoint: Endpoint, members: Sequence[tuple[str, Endpoint]] = ()) -> None:
        self._directory = new_work_directory()
        self._remove_directory = weakref.finalize(self, shutil.rmtree, self._directory, True)
        self._tasks = _writer_tasks(order, endpoint, self._directory)
        self._files = [Path(task.path) for task in self._tasks]
        self._attempts: Attempts | None = None
        self._report: WitnessReport | None = None
        self._writers: list[subprocess.Popen[bytes]] = []
        self._readers: list[subprocess.Popen[bytes]] = []
        try:
            for number, task in enumerate(self._tasks):
                self._writers.append(self._start("writer", task, f"writer-{number}"))
            if order.witnesses and members:
                report, files = str(self._directory / "report"), tuple(map(str, self._files))
                reading = ReaderTask(report, tuple(members), files, order.writers, order.drill)
                self._readers.append(self._start("reader", reading, "reader"))
        except OSError as error:
            self._kill()
            raise MachineError(f"the ledger's writers do not start: {error}", "free memory or processes") from None

    def _start(self, kind: str, task: WriterTask | ReaderTask, name: str) -> subprocess.Popen[bytes]:
        write_task(task, self._directory / name)
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"walproof.load.ledger.{kind}", str(self._directory / name)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    @property
    def pids(self) -> tuple[int, ...]:
        """The writers' processes, for stating the ledger's own cost."""
        return tuple(p.pid for p in self._writers)

    def progress(self) -> Progress:
        """How it stands now; writers_alive counts writers of living processes."""
        if self._attempts is not None:
            return Progress(0, None, 0, "the ledger has been stopped")
        alive = sum(t.count for t, p in zip(self._tasks, self._writers, strict=True) if p.poll() is None)
        counts = [c for c in map(read_counts, self._files) if c is not None]
        last = max((c.last_at for c in counts), default=0.0)
        error = next((c.error for c in counts if c.error), "") or self._crash()
        return Progress(sum(c.acknowledged for c in counts), last or None, alive, error)

    def _crash(self) -> str:
        """The last line that a failed writer process logged; "" when none failed."""
        for number, process in enumerate(self._writers):
            if process.poll() not in (None, 0):
                lines = (self._directory / f"writer-{number}.log").read_text(errors="replace").splitlines()
                return lines[-1] if lines else f"a writer ended with {process.returncode}"
        return ""

    def stop(self) -> Attempts:
        """End the writers and give the ledger; safe to call twice."""
        if self._attempts is None:
            self._finish(self._writers)
            self._finish(self._readers)
            self._attempts = read_attempts(self._files)
            self._report = read_report(self._directory / "report")
            self._kill()
        return self._attempts

    def witnessed(self) -> WitnessReport:
        """What the readers saw; empty when there were none."""
        self.stop()
        return self._report or WitnessReport({})

    def _finish(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Close their standard input, which ends them; kill those that do not end in time."""
        for process in processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _kill(self) -> None:
        """Kill what still runs and remove the work directory."""
        for process in (*self._writers, *self._readers):
            if process.poll() is None:
                process.kill()
                process.wait()
        self._remove_directory()
