"""Judges ten million attempts against the rows of three members; prints seconds and peak memory. Needs no cluster.

`python -m benchmarks.judge [MILLIONS]`: exit 1 above 60 s of processor or 1 GB, or when it does not find exactly what
is lost. What the judge does not need is not imported: its memory is what is measured.
"""

import resource
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.command import command
from tests.fixtures.attempts import attempts
from walproof.model.load import Attempts, Outcome, Rows
from walproof.proving.lost_commits import compared, judged, lost_rows

WRITERS = 64
LOST = 1_000
SECONDS, MEGABYTES = 60.0, 1024.0


def main(millions: float = 10) -> int:
    """Measure once."""
    size = int(millions * 1e6)
    tried = _ledger(size)
    started_at, cpu_at = time.perf_counter(), time.process_time()
    readings = [compared(tried, rows) for rows in _members(tried)]
    findings = judged(tried, readings, lost_rows(tried, readings))
    seconds, cpu_s = time.perf_counter() - started_at, time.process_time() - cpu_at
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = f"{seconds:.1f} s ({cpu_s:.1f} s of processor), {peak_mb:.0f} MB at most"
    print(f"{size:,} attempts against 3 members: {took}, {findings.lost} lost")
    unknown = int((tried.outcome[size // 2 - LOST : size // 2] == Outcome.UNKNOWN).sum())
    return int(findings.lost != LOST - unknown or cpu_s > SECONDS or peak_mb > MEGABYTES)


def _ledger(size: int) -> Attempts:
    """All but a few unknown ones acknowledged, in the order of their ends, by two leaders one after the other."""
    index = np.arange(size, dtype=np.int64)
    outcome = np.full(size, Outcome.ACKNOWLEDGED, np.int8)
    outcome[::100_000] = Outcome.UNKNOWN
    started = index * 1e-4
    return attempts(
        size,
        writer=(index % WRITERS).astype(np.int32),
        number=index // WRITERS,
        started=started,
        ended=np.where(outcome == Outcome.UNKNOWN, np.nan, started + 0.005),
        outcome=outcome,
        server=(index > size // 2).astype(np.int16),
        timeline=(1 + (index > size // 2)).astype(np.int32),
        lsn=index.astype(np.uint64),
        checksum=np.random.default_rng(1).integers(0, 1 << 32, size, dtype=np.uint32),
    )


def _members(tried: Attempts) -> Iterator[Rows]:
    """Three members' rows, the last LOST of the first half missing, made one by one as a real run reads them."""
    keep = np.ones(len(tried), dtype=bool)
    half = len(tried) // 2
    keep[half - LOST : half] = False
    for member in ("n2", "n1", "n3"):
        checksum = tried.checksum[keep]
        yield Rows(member, tried.writer[keep], tried.number[keep], checksum, checksum)


if __name__ == "__main__":
    command(main)
