"""The readers' process: asks every member beside the writers what it can see, and writes a report at the end.

Started as `python -m walproof.load.ledger.witness ORDER.json`; ends when its standard input closes. A member that
hangs is left out of the rounds until it answers again.
"""

import json
import select
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import numpy as np
import psycopg

from walproof.load.ledger.attempt_file import tail
from walproof.load.ledger.reads import Look, Sightings
from walproof.load.ledger.task import WitnessOrder, read_witness_order
from walproof.model.ports import WitnessReport
from walproof.model.topology import Endpoint

_LOOK = (files("walproof.load.ledger") / "witness.sql").read_bytes()
_ROUND_S = 1.0
_TAIL_ROWS = 4096


class Reader:
    """One member's connection, opened again when it breaks."""

    def __init__(self, member: str, endpoint: Endpoint, order: WitnessOrder) -> None:
        self.member = member
        self._order = order
        self._conninfo = endpoint.conninfo(
            application_name="walproof-witness",
            connect_timeout="2",
            tcp_user_timeout="2000",
            keepalives_idle="1",
            keepalives_interval="1",
            keepalives_count="2",
            gssencmode="disable",
            options="-c enable_seqscan=off",
        )
        self._connection: psycopg.Connection | None = None

    def look(self) -> Look | None:
        """Ask now; None when the member does not answer or has no ledger yet."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=1)
            at = time.time()
            asked = {"drill": self._order.drill, "writers": self._order.writers}
            row = self._connection.execute(_LOOK, asked).fetchone()
        except psycopg.Error:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return None
        return None if row is None else Look(self.member, bool(row[0]), np.array(row[1], dtype=np.int64), at)


def watch(order: WitnessOrder, sightings: Sightings) -> None:
    """Rounds until standard input closes."""
    readers = {name: Reader(name, endpoint, order) for name, endpoint in order.members}
    pending: dict[str, Future[Look | None]] = {}
    share = max(64, _TAIL_ROWS // max(1, len(order.notes)))
    with ThreadPoolExecutor(len(readers) or 1) as pool:
        while not select.select([sys.stdin], [], [], order.pace_s)[0]:
            rows = np.concatenate([tail(Path(path), share) for path in order.notes])
            asked = {name: pool.submit(reader.look) for name, reader in readers.items() if name not in pending}
            done, _ = wait(asked.values(), timeout=_ROUND_S)
            looks = [look for future in asked.values() if future in done and (look := future.result()) is not None]
            sightings.add(rows, looks)
            pending |= {name: future for name, future in asked.items() if future not in done}
            pending = {name: future for name, future in pending.items() if not future.done()}


def read_report(path: Path) -> WitnessReport | None:
    """The report a witness left; None when it left none."""
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
    )


def main() -> int:
    """Read the order, watch, leave the report (moved into place whole)."""
    order = read_witness_order(Path(sys.argv[1]))
    sightings = Sightings(order.writers)
    try:
        watch(order, sightings)
    finally:
        part = Path(f"{order.path}.part")
        part.write_text(json.dumps(asdict(sightings.report())), encoding="utf-8")
        part.rename(order.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
