"""A ledger at work: starts the writers and readers as processes of their own, looks at them, ends them."""

import contextlib
import os
import shutil
import subprocess
import sys
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from walproof.errors import MachineError
from walproof.load.ledger.attempt_file import read_counts, read_notes
from walproof.load.ledger.task import WitnessOrder, WriterOrder, write_order
from walproof.load.ledger.witness import read_report
from walproof.load.work_directory import new_room
from walproof.model.attempt import Attempts
from walproof.model.ports import LedgerOrder, Progress, WitnessReport
from walproof.model.topology import Endpoint

_PROCESSES = 2
_END_S = 15.0


@dataclass(frozen=True, slots=True)
class Ways:
    """Where the ledger goes: the writers' way in, and every member for the readers."""

    endpoint: Endpoint
    members: tuple[tuple[str, Endpoint], ...] = ()


def _shares(order: LedgerOrder, ways: Ways, room: Path) -> list[WriterOrder]:
    """Writers split over at most two processes, numbered from 0."""
    processes = min(_PROCESSES, order.writers)
    bounds = [round(order.writers * i / processes) for i in range(processes + 1)]
    whole = WriterOrder(
        path="",
        endpoint=ways.endpoint,
        level=order.level,
        first=0,
        count=0,
        drill=order.drill,
        payload_bytes=order.payload_bytes,
        pooled=ways.endpoint.pooled,
        connect_s=2.0 + order.writers / 50,
    )
    return [
        replace(whole, path=str(room / f"notes-{i}"), first=bounds[i], count=bounds[i + 1] - bounds[i])
        for i in range(processes)
    ]


class RunningLedger:
    """Writers (and readers) in processes of their own; they end when this process ends, however it ends."""

    def __init__(self, order: LedgerOrder, ways: Ways) -> None:
        self._order = order
        self._room = new_room()
        self._sweep = weakref.finalize(self, shutil.rmtree, self._room, True)
        self._shares = _shares(order, ways, self._room)
        self._notes = [Path(share.path) for share in self._shares]
        self._attempts: Attempts | None = None
        self._report: WitnessReport | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._witness: subprocess.Popen[bytes] | None = None
        try:
            for number, share in enumerate(self._shares):
                self._processes.append(self._start("writer", share, f"order-{number}"))
            if order.witnesses and ways.members:
                self._witness = self._start("witness", self._witness_order(ways), "order-witness")
        except OSError as error:
            self._end()
            raise MachineError(f"the ledger's writers do not start: {error}", "free memory or processes") from None

    def _witness_order(self, ways: Ways) -> WitnessOrder:
        return WitnessOrder(
            path=str(self._room / "witnessed"),
            leader=ways.endpoint,
            members=ways.members,
            notes=tuple(str(path) for path in self._notes),
            writers=self._order.writers,
            drill=self._order.drill,
        )

    def _start(self, kind: str, order: WriterOrder | WitnessOrder, name: str) -> subprocess.Popen[bytes]:
        write_order(order, self._room / name)
        with (self._room / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"walproof.load.ledger.{kind}", str(self._room / name)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    @property
    def pids(self) -> tuple[int, ...]:
        """The writers' processes, for stating the ledger's own cost."""
        return tuple(p.pid for p in self._processes)

    def progress(self) -> Progress:
        """How it stands now; writers_alive counts writers of living processes."""
        if self._attempts is not None:
            return Progress(0, None, 0, "the ledger has been stopped")
        alive = sum(s.count for s, p in zip(self._shares, self._processes, strict=True) if p.poll() is None)
        counts = [c for c in map(read_counts, self._notes) if c is not None]
        last = max((c.last_at for c in counts), default=0.0)
        said = next((c.error for c in counts if c.error), "") or self._said()
        return Progress(sum(c.acknowledged for c in counts), last or None, alive, said)

    def _said(self) -> str:
        """The last line of a writer that died."""
        for number, process in enumerate(self._processes):
            if process.poll() not in (None, 0):
                lines = (self._room / f"order-{number}.log").read_text(errors="replace").splitlines()
                return lines[-1] if lines else f"a writer ended with {process.returncode}"
        return ""

    def stop(self) -> Attempts:
        """End the writers and give the ledger; safe to call twice."""
        if self._attempts is None:
            self._finish(self._processes)
            self._finish([self._witness] if self._witness else [])
            self._attempts = read_notes(self._notes)
            self._report = read_report(self._room / "witnessed")
            self._end()
        return self._attempts

    def witnessed(self) -> WitnessReport:
        """What the readers saw; empty when there were none."""
        self.stop()
        return self._report or WitnessReport({})

    def _finish(self, processes: list[subprocess.Popen[bytes]]) -> None:
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

    def _end(self) -> None:
        everyone = [*self._processes, *([self._witness] if self._witness else [])]
        for process in everyone:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._sweep()
