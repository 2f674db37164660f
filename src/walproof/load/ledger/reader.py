"""The readers' process: asks every member what it can see while writers write; freshness and long forks as a report.

Started as `python -m walproof.load.ledger.reader TASK.json`; ends when its standard input closes. A member that hangs
is left out of the rounds until it answers again. What reads show together is pure (ReadTally)."""

import json
import select
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from walproof.load.ledger.task_and_attempt_files import ReaderTask, last_rows, read_reader_task
from walproof.load.open_session import open_session
from walproof.machine.answering import answering
from walproof.machine.clock import now
from walproof.machine.sql_file import statements
from walproof.model.load import Outcome, WitnessReport
from walproof.model.topology import Endpoint

_KEPT = 20_000
_COMPARED = 40


@dataclass(frozen=True, slots=True)
class Read:
    """One member's answer: name, whether it leads, newest number per writer shape (writers,), when asked, epoch s."""

    member: str
    leads: bool
    newest: NDArray[np.int64]
    at: float
    session: int = 0
    """Counts the reader's connections: within one, a server only goes forward."""


def disagree(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether each read holds a row the other does not (long fork: the two saw rows appear in different order)."""
    return bool(np.any(one > other) and np.any(one < other))


def acknowledged(rows: NDArray[Any], writers: int) -> NDArray[np.int64]:
    """The newest acknowledged number per writer in the last rows of attempt files; -1 where there is none."""
    newest = np.full(writers, -1, dtype=np.int64)
    held = rows[rows["outcome"] == Outcome.ACKNOWLEDGED]
    np.maximum.at(newest, held["writer"], held["number"])
    return newest


def stale_ms(rows: NDArray[Any], read: Read) -> float:
    """For how long the oldest row missing in the read had been acknowledged when it was asked for; ms."""
    missed = rows[(rows["outcome"] == Outcome.ACKNOWLEDGED) & (rows["number"] > read.newest[rows["writer"]])]
    return float((read.at - missed["ended"].min()) * 1000) if len(missed) else 0.0


@dataclass(slots=True)
class ReadTally:
    """Adds up rounds of reads; `report` at the end."""

    writers: int
    fresh: dict[str, list[int]] = field(default_factory=dict)
    somewhere: list[int] = field(default_factory=lambda: [0, 0])
    seen: dict[tuple[int, int], None] = field(default_factory=dict)
    long_forks: int = 0
    stale: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    backward: dict[str, int] = field(default_factory=dict)
    _last: dict[str, Read] = field(default_factory=dict)
    _leaders: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=_COMPARED))
    _standbys: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=_COMPARED))

    def add(self, rows: NDArray[Any], reads: list[Read], *, complete: bool = True) -> None:
        """One round: the last rows of the attempt files, read *before* the members were asked, and their answers.

        `complete`: every member answered. A row that no answer shows may else be on the member that gave none.
        """
        self._count_backward(reads)
        wanted = acknowledged(rows, self.writers)
        asked = wanted >= 0
        standbys = [read for read in reads if not read.leads]
        for read in reads:
            if read.leads:
                self._add_seen(read)
            elif asked.any():
                shown = int(np.count_nonzero(read.newest[asked] >= wanted[asked]))
                counts = self.fresh.setdefault(read.member, [0, 0])
                counts[0] += shown
                counts[1] += int(asked.sum()) - shown
                self.stale.append(stale_ms(rows, read))
        if complete and standbys and asked.any():
            best = np.max([read.newest for read in standbys], axis=0)
            shown = int(np.count_nonzero(best[asked] >= wanted[asked]))
            self.somewhere[0] += shown
            self.somewhere[1] += int(asked.sum()) - shown
        self._count_long_forks(reads)

    def _add_seen(self, read: Read) -> None:
        for writer in np.flatnonzero(read.newest >= 0):
            self.seen[int(writer), int(read.newest[writer])] = None
        while len(self.seen) > _KEPT:
            self.seen.pop(next(iter(self.seen)))

    def _count_backward(self, reads: list[Read]) -> None:
        for read in reads:
            before = self._last.get(read.member)
            self._last[read.member] = read
            if before is None or read.leads or before.leads or before.session != read.session:
                continue
            if np.any(read.newest < before.newest):
                self.backward[read.member] = self.backward.get(read.member, 0) + 1

    def _count_long_forks(self, reads: list[Read]) -> None:
        for read in reads:
            others = self._standbys if read.leads else self._leaders
            self.long_forks += any(disagree(read.newest, other) for other in others)
        for read in reads:
            (self._leaders if read.leads else self._standbys).append(read.newest)

    def report(self) -> WitnessReport:
        return WitnessReport(
            {member: (shown, missed) for member, (shown, missed) in self.fresh.items()},
            tuple(self.seen),
            self.long_forks,
            tuple(self.stale),
            (self.somewhere[0], self.somewhere[1]),
            dict(self.backward),
        )


_READ = statements("walproof.load.ledger", "ledger.sql")["reader"].encode()
_ROUND_S = 1.0
_LAST_ROWS = 4096


class Reader:
    """One member's connection, opened again when it breaks."""

    def __init__(self, member: str, endpoint: Endpoint, task: ReaderTask) -> None:
        self.member = member
        self._task = task
        self._conninfo = endpoint.conninfo(
            application_name="walproof-reader",
            connect_timeout="2",
            tcp_user_timeout="2000",
            keepalives_idle="1",
            keepalives_interval="1",
            keepalives_count="2",
            gssencmode="disable",
            options="-c enable_seqscan=off",
        )
        self._connection: psycopg.Connection | None = None
        self._session = 0

    def read(self) -> Read | None:
        """What the member shows now; None when it does not answer or has no ledger yet."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = open_session(self._conninfo, prepare_threshold=1)
                self._session += 1
            at = now(self._task.clock_offset)
            parameters = {"drill": self._task.drill, "writers": self._task.writers}
            with answering(self._connection):
                row = self._connection.execute(_READ, parameters).fetchone()
        except psycopg.Error:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return None
        if row is None:
            return None
        return Read(self.member, bool(row[0]), np.array(row[1], dtype=np.int64), at, self._session)


def read_rounds(task: ReaderTask, tally: ReadTally) -> None:
    """Read every member again and again until standard input closes."""
    readers = {name: Reader(name, endpoint, task) for name, endpoint in task.members}
    pending: dict[str, Future[Read | None]] = {}
    share = max(64, _LAST_ROWS // max(1, len(task.attempt_files)))
    with ThreadPoolExecutor(len(readers) or 1) as pool:
        while not select.select([sys.stdin], [], [], task.interval_s)[0]:
            rows = np.concatenate([last_rows(Path(path), share) for path in task.attempt_files])
            asked = {name: pool.submit(reader.read) for name, reader in readers.items() if name not in pending}
            done, _ = wait(asked.values(), timeout=_ROUND_S)
            reads = [read for future in asked.values() if future in done and (read := future.result()) is not None]
            tally.add(rows, reads, complete=len(reads) == len(readers))
            pending |= {name: future for name, future in asked.items() if future not in done}
            pending = {name: future for name, future in pending.items() if not future.done()}


def read_report(path: Path) -> WitnessReport | None:
    """The report that a readers' process left; None when it left none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return WitnessReport(
        {name: (int(f), int(m)) for name, (f, m) in raw["fresh_by_member"].items()},
        tuple((int(w), int(n)) for w, n in raw["seen_on_leader"]),
        int(raw["long_forks"]),
        tuple(float(ms) for ms in raw["stale_ms"]),
        (int(raw["fresh_somewhere"][0]), int(raw["fresh_somewhere"][1])),
        {str(name): int(count) for name, count in raw["backward_by_member"].items()},
    )


def main() -> int:
    """Read the task, read the members, write the report (renamed into place when it is complete)."""
    task = read_reader_task(Path(sys.argv[1]))
    tally = ReadTally(task.writers)
    try:
        read_rounds(task, tally)
    finally:
        part = Path(f"{task.path}.part")
        part.write_text(json.dumps(asdict(tally.report())), encoding="utf-8")
        part.rename(task.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
