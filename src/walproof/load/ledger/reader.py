"""The readers' process: asks every member what it can see while writers write, and writes a report at the end.

Started as `python -m walproof.load.ledger.reader TASK.json`; ends when its standard input closes. A member that
hangs is left out of the rounds until it answers again.
"""

import json
import select
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import numpy as np
import psycopg

from walproof.load.ledger.attempt_file import last_rows
from walproof.load.ledger.reads import Read, ReadTally
from walproof.load.ledger.task import ReaderTask, read_reader_task
from walproof.machine.clock import now
from walproof.model.load import WitnessReport
from walproof.model.topology import Endpoint

_READ = (files("walproof.load.ledger") / "reader.sql").read_bytes()
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
                self._connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=1)
                self._session += 1
            at = now(self._task.clock_offset)
            parameters = {"drill": self._task.drill, "writers": self._task.writers}
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
