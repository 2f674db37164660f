"""A running ledger: starts the writers and readers as processes of their own, reads their progress, ends them."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from walproof.errors import Error, MachineError
from walproof.load.driver import shared
from walproof.load.ledger.reader import read_report
from walproof.load.ledger.task_and_attempt_files import (
    HEADER_BYTES,
    ReaderTask,
    WriterTask,
    read_attempts,
    read_counts,
    task_text,
)
from walproof.load.local_runner import LocalRunner
from walproof.model.load import (
    Attempts,
    LedgerOrder,
    LoadProcess,
    LoadRunner,
    PlaceClock,
    Progress,
    WitnessReport,
    Workspace,
)
from walproof.model.topology import Endpoint

_PROCESSES = 2
_END_S = 15.0
Members = Sequence[tuple[str, Endpoint]]


def _writer_tasks(
    order: LedgerOrder, endpoint: Endpoint, place: Workspace, writers: range, *, again: bool = False
) -> list[WriterTask]:
    """These writers of the order split over at most two processes of a place."""
    processes = min(_PROCESSES, len(writers))
    bounds = [round(len(writers) * i / processes) for i in range(processes + 1)]
    all_writers = WriterTask(
        path="",
        endpoint=place.seen_from_there(endpoint),
        level=order.level,
        first=0,
        count=0,
        drill=order.drill,
        connect_timeout_s=2.0 + order.writers / 50,
        answer_timeout_s=order.answer_timeout_s,
        clock_offset=place.clock().offset_s,
        again=again,
    )
    return [
        replace(
            all_writers,
            path=f"{place.directory}/attempts-{i}",
            first=writers.start + bounds[i],
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


class _Place:
    """The writers of one place, and the readers where it has some."""

    def __init__(self, workspace: Workspace, tasks: Sequence[WriterTask]) -> None:
        self.workspace, self.tasks = workspace, tasks
        self.began: PlaceClock = workspace.clock()
        self.writers: list[LoadProcess] = []
        self.readers: list[LoadProcess] = []

    def start(self, order: LedgerOrder, members: Members) -> None:
        for number, task in enumerate(self.tasks):
            self.writers.append(self._started("writer", task, f"writer-{number}"))
        if order.witnesses and members:
            seen = tuple((name, self.workspace.seen_from_there(endpoint)) for name, endpoint in members)
            path, files = f"{self.workspace.directory}/report", tuple(task.path for task in self.tasks)
            offset_s = self.began.offset_s
            reading = ReaderTask(path, seen, files, order.writers, order.drill, clock_offset=offset_s)
            self.readers.append(self._started("reader", reading, "reader"))

    def _started(self, kind: str, task: WriterTask | ReaderTask, name: str) -> LoadProcess:
        self.workspace.put(name, task_text(task))
        path = f"{self.workspace.directory}/{name}"
        return self.workspace.start_module(f"walproof.load.ledger.{kind}", path, f"{name}.log")

    def progress(self) -> Progress:
        """How it stands now; writers_alive counts writers of living processes."""
        alive = sum(t.count for t, p in zip(self.tasks, self.writers, strict=True) if p.exit_code is None)
        counts = [c for c in map(read_counts, self.files(head=HEADER_BYTES)) if c is not None]
        last = max((c.last_at for c in counts), default=0.0)
        error = next((c.error for c in counts if c.error), "") or self.crash()
        connected = sum(c.connected for c in counts)
        return Progress(sum(c.acknowledged for c in counts), last or None, alive, error, connected)

    def files(self, head: int | None = None) -> list[Path]:
        return [path for path in self.workspace.fetch("attempts-*", head=head) if path.suffix == ""]

    def crash(self) -> str:
        """Which of the writer processes failed, and how it ended; "" when none did."""
        if self.workspace.lost:
            return f"{self.workspace.lost}: its attempts are missing"
        for number, process in enumerate(self.writers):
            if process.exit_code not in (None, 0):
                how = _how_it_ended(process.exit_code, self._last_line(f"writer-{number}.log"))
                return f"writer process {number + 1} of {len(self.writers)} {how}: attempts may be missing"
        return ""

    def silent_readers(self) -> str:
        """How the readers' process ended when it left no report; "" when it did, or when there were no readers."""
        for process in self.readers:
            if process.exit_code != 0 or not self.workspace.fetch("report"):
                return f"the readers' process {_how_it_ended(process.exit_code, self._last_line('reader.log'))}"
        return ""

    def _last_line(self, log: str) -> str:
        lines = [line for file in self.workspace.fetch(log) for line in file.read_text(errors="replace").splitlines()]
        return lines[-1] if lines else ""

    def wrong_s(self) -> float:
        """By how much its times may differ from ours: by what its clock drifted meanwhile, too."""
        now = self.workspace.clock()
        drift_s = abs(now.offset_s - self.began.offset_s)
        return max(now.uncertainty_s, self.began.uncertainty_s) + drift_s

    def kill(self) -> None:
        """Kill what still runs and remove the work directory."""
        for process in (*self.writers, *self.readers):
            process.kill()
        self.workspace.close()


class RunningLedger:
    """Writers (and readers) in processes of their own; they end when this process ends, however it ends.

    Writers connect to `endpoint`, readers to each of the `members` (name, endpoint). With several places the writers
    are split over them; readers are in the first, and compare with the writers of that place alone.
    """

    def __init__(
        self,
        order: LedgerOrder,
        endpoint: Endpoint,
        members: Members = (),
        runner: LoadRunner | None = None,
        *,
        again: bool = False,
    ) -> None:
        """`again`: whether a writer whose commit hangs connects once more to the same address."""
        self._attempts: Attempts | None = None
        self._report: WitnessReport | None = None
        self._incomplete = ""
        self._places: list[_Place] = []
        first = 0
        workspaces = (runner or LocalRunner()).open()
        try:
            for workspace, count in zip(workspaces, shared(order.writers, len(workspaces)), strict=True):
                writers = range(first, first + count)
                tasks = _writer_tasks(order, endpoint, workspace, writers, again=again) if count else []
                self._places.append(_Place(workspace, tasks))
                first += count
            for number, place in enumerate(self._places):
                place.start(order, members if number == 0 else ())
        except Error:
            self._kill()
            raise
        except OSError as error:
            self._kill()
            raise MachineError(f"the ledger's writers do not start: {error}", "free memory or processes") from None

    @property
    def pids(self) -> tuple[int, ...]:
        """The writers' processes on this machine, for stating the ledger's own cost."""
        return tuple(pid for place in self._places for process in place.writers for pid in process.pids)

    def progress(self) -> Progress:
        if self._attempts is not None:
            return Progress(0, None, 0, "the ledger has been stopped")
        each = [place.progress() for place in self._places]
        last = max((one.last_acknowledged_at or 0.0 for one in each), default=0.0)
        error = next((one.last_error for one in each if one.last_error), "")
        acknowledged, connected = sum(one.acknowledged for one in each), sum(one.connected for one in each)
        return Progress(acknowledged, last or None, sum(one.writers_alive for one in each), error, connected)

    def stop(self) -> Attempts:
        if self._attempts is None:
            self._finish([process for place in self._places for process in place.writers])
            self._finish([process for place in self._places for process in place.readers])
            wrong_s = sorted(place.wrong_s() for place in self._places)[-2:] if len(self._places) > 1 else []
            attempts = read_attempts([path for place in self._places for path in place.files()])
            self._attempts = replace(attempts, clocks_apart_s=sum(wrong_s))
            reports = [path for place in self._places for path in place.workspace.fetch("report")]
            self._report = next(map(read_report, reports), None)
            problems = (why for place in self._places for why in (place.crash(), place.silent_readers()))
            self._incomplete = next(filter(None, problems), "")
            self._kill()
        return self._attempts

    def witnessed(self) -> WitnessReport:
        self.stop()
        return self._report or WitnessReport({})

    def incomplete(self) -> str:
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
        """Kill what still runs and remove the work directories."""
        for place in self._places:
            place.kill()
