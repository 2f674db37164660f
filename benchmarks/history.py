"""Keeps a drill of ten million attempts and judges it again; prints bytes, seconds and peak memory. Needs no cluster.

`python -m benchmarks.history [MILLIONS]` simulates writers on a lab at `off`; `--of FILE` takes a kept drill-N.history
of a real drill instead. Exit 1 above 6 bytes an attempt, above 60 s for decoding and judging, above 1 GB for either, or
when encoding what was decoded gives other bytes. Each step runs in a process of its own, so that its peak is its own.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.command import command
from tests.fixtures.attempts import attempts
from walproof.model.drill import Victim
from walproof.model.guarantee import Level
from walproof.model.load import Outcome, WitnessReport
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import fault
from walproof.proving.history import DrillRun, History, decode, encode
from walproof.proving.judge import judge
from walproof.proving.lost_commits import MemberReading

EPOCH = 1_795_000_000.0
WRITERS = 64
BYTES, SECONDS, MEGABYTES = 6.0, 60.0, 1024.0


def main(millions: float = 10, *, of: str = "") -> int:
    """Measure once."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/drill-1.history"
        wrong = [_run(step, path, int(millions * 1e6), of) for step in (_encoding, _judging, _again)]
    for sentence in filter(None, wrong):
        print(sentence)
    return 1 if any(wrong) else 0


def _run(step: Callable[[str, int, str], str], *arguments: object) -> str:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(step, arguments)


def _simulated(size: int) -> History:
    """Writers that commit one after the other in about 2 ms each, one unknown in 100,000, the last thousand lost."""
    rng = np.random.default_rng(1)
    each = size // WRITERS
    count = each * WRITERS
    duration = rng.gamma(4, 0.0005, (WRITERS, each))
    ended = EPOCH + np.cumsum(duration + rng.exponential(0.00002, (WRITERS, each)), axis=1)
    started, ended = (ended - duration).ravel(), ended.ravel()
    rank = np.empty(count, np.uint64)
    rank[np.argsort(ended + rng.normal(0, 0.0002, count))] = np.arange(count, dtype=np.uint64)
    outcome = np.full(count, Outcome.ACKNOWLEDGED, np.int8)
    outcome[::100_000] = Outcome.UNKNOWN
    ended[::100_000] = np.nan
    tried = attempts(
        count,
        level=Level.OFF,
        writer=np.repeat(np.arange(WRITERS, dtype=np.int32), each),
        number=np.tile(np.arange(each, dtype=np.int64), WRITERS),
        started=started,
        ended=ended,
        outcome=outcome,
        lsn=rank * 304 + (1 << 32) + rng.integers(0, 3, count, dtype=np.uint64) * 8,
        checksum=rng.integers(0, 1 << 32, count, dtype=np.uint32),
    )
    present = rank < count - 1000
    readings = tuple(MemberReading(member, present, caught_up=True) for member in ("n2", "n1", "n3"))
    last = float(np.nanmax(ended))
    view = ClusterView(EPOCH, (MemberView("n1", Role.LEADER, "running", 1),), "n1", "ANY 1 (n2, n3)")
    run = DrillRun(("n1",), view, last - 1, last, last + 1, after=view)
    planned = PlannedDrill(1, fault("kill"), Victim.LEADER, Level.OFF, "multi-host", WRITERS)
    return History(planned, run, tried, WitnessReport({}), readings)


def _encoding(path: str, size: int, of: str) -> str:
    """Encode into `path` what is simulated, or a real history; what is wrong, "" if nothing."""
    kept = decode(Path(of).read_bytes()) if of else _simulated(size)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the simulation's
    started_at = time.perf_counter()
    data = encode(kept)
    seconds = time.perf_counter() - started_at
    Path(path).write_bytes(data)
    each = len(data) / max(1, len(kept.attempts))
    says = f"{len(kept.attempts):,} attempts: {each:.2f} bytes each"
    print(f"{says}, encoded in {seconds:.1f} s, {_peak_mb():,.0f} MB at most", flush=True)
    return _too_much() if each <= BYTES else f"more than {BYTES:g} bytes an attempt"


def _judging(path: str, _size: int, _of: str) -> str:
    """Decode and judge, as `report --rejudge` does."""
    started_at = time.perf_counter()
    drill = judge(decode(Path(path).read_bytes())).drill
    seconds = time.perf_counter() - started_at
    lost = f"{drill.findings.lost:,} lost"
    print(f"decoded and judged in {seconds:.1f} s, {_peak_mb():,.0f} MB at most: {drill.verdict}, {lost}", flush=True)
    return _too_much() if seconds <= SECONDS else f"decoding and judging took more than {SECONDS:g} s"


def _again(path: str, _size: int, _of: str) -> str:
    """Encode what was decoded: the same bytes, so the same verdict."""
    data = Path(path).read_bytes()
    return "" if encode(decode(data)) == data else "encoding what was decoded gives other bytes"


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _too_much() -> str:
    return "" if _peak_mb() <= MEGABYTES else f"more than {MEGABYTES:,.0f} MB of memory"


if __name__ == "__main__":
    command(main)
