"""Judges ten million attempts against the rows of three members; prints seconds and peak memory. Needs no cluster.

Run: `.venv/bin/python -m benchmarks.judge [MILLIONS]`. Exit 1 above 60 s of processor or 1 GB, or when it does not find
exactly what is lost.
"""

import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome, Rows
from walproof.proving.lost_commits import compared, judged

WRITERS = 64
LOST = 1_000
SECONDS, MEGABYTES = 60.0, 1024.0


def attempts_of(size: int) -> Attempts:
    """A ledger of that many attempts, all but a few unknown ones acknowledged, in the order of their ends."""
    rng = np.random.default_rng(1)
    index = np.arange(size, dtype=np.int64)
    outcome = np.full(size, Outcome.ACKNOWLEDGED, dtype=np.int8)
    outcome[::100_000] = Outcome.UNKNOWN
    started = index.astype(np.float64) * 1e-4
    ended = started + 0.005
    ended[outcome == Outcome.UNKNOWN] = np.nan
    return Attempts(
        writer=(index % WRITERS).astype(np.int32),
        number=index // WRITERS,
        started=started,
        ended=ended,
        outcome=outcome,
        level=np.full(size, list(Level).index(Level.ON), dtype=np.int8),
        server=(index > size // 2).astype(np.int16),
        timeline=(1 + (index > size // 2)).astype(np.int32),
        lsn=index.astype(np.uint64),
        names=np.zeros(size, dtype=np.int16),
        checksum=rng.integers(0, 1 << 32, size, dtype=np.uint32),
        servers=("n1", "n2"),
        standby_names=("ANY 1 (n2, n3)",),
    )


def members(attempts: Attempts) -> Iterator[Rows]:
    """Three members' rows, the last LOST of the first half missing, made one by one as a real run reads them."""
    keep = np.ones(len(attempts), dtype=bool)
    half = len(attempts) // 2
    keep[half - LOST : half] = False
    for member in ("n2", "n1", "n3"):
        checksum = attempts.checksum[keep]
        yield Rows(member, attempts.writer[keep], attempts.number[keep], checksum, checksum)


def main() -> int:
    """Measure once."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 10) * 1e6)
    attempts = attempts_of(size)
    started_at, cpu_at = time.perf_counter(), time.process_time()
    found = judged(attempts, [compared(attempts, rows) for rows in members(attempts)])
    seconds, cpu_s = time.perf_counter() - started_at, time.process_time() - cpu_at
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = f"{seconds:.1f} s ({cpu_s:.1f} s of processor), {peak_mb:.0f} MB at most"
    print(f"{size:,} attempts against 3 members: {took}, {found.lost} lost")
    unknown = int((attempts.outcome[size // 2 - LOST : size // 2] == Outcome.UNKNOWN).sum())
    wrong = found.lost != LOST - unknown
    return int(wrong or cpu_s > SECONDS or peak_mb > MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
