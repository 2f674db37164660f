"""How fast is the ledger, and what does it cost? Acknowledged commits a second at `off` and `on`, on a lab of its own.

`python -m benchmarks.ledger [--seconds 10] [--writers 16]`: exit 1 when fewer than 5,000 at off or 2,000 at on. Also
states the writers' own processor time per 1,000 commits, the readers' effect, and how fast a member is read back.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass

import psutil

from benchmarks.temporary_lab import benchmark_lab
from walproof.lab.create import LabOrder
from walproof.load.ledger.processes import RunningLedger
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder
from walproof.targets.lab.target import LabTarget

WANTED = {Level.OFF: 5000, Level.ON: 2000}
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Acknowledged commits a second, and the writers' processor ms per 1,000 of them."""

    per_s: float
    cpu_ms: float


def pace(run: RunningLedger, seconds: float) -> Pace:
    """Measure a running ledger for so many seconds."""
    time.sleep(_SETTLE_S)
    before, cpu, at = run.progress().acknowledged, _cpu_s(run), time.monotonic()
    time.sleep(seconds)
    done = run.progress().acknowledged - before
    return Pace(done / (time.monotonic() - at), (_cpu_s(run) - cpu) * 1e6 / max(1, done))


def _cpu_s(run: RunningLedger) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in run.pids)


def main() -> int:
    """Measure each level with and without readers, then read a member back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--writers", type=int, default=16)
    options = parser.parse_args()
    missed = 0
    with benchmark_lab("ledger", LabOrder(port=5880)) as blueprint:
        target = LabTarget(blueprint)
        for number, (level, wanted) in enumerate(WANTED.items()):
            for witnesses in (True, False):
                order = LedgerOrder(level, options.writers, witnesses=witnesses, drill=number)
                run = target.ledger.open_ledger(order)
                assert isinstance(run, RunningLedger)
                found = pace(run, options.seconds)
                attempts = run.stop()
                met = found.per_s >= wanted or not witnesses
                missed += not met
                print(
                    f"{'met' if met else 'NOT MET'}: {level}, {options.writers} writers,"
                    f" {'with' if witnesses else 'no'} readers: {found.per_s:,.0f} acknowledged/s"
                    f" (at least {wanted:,} with readers);"
                    f" the writers use {found.cpu_ms:.0f} ms of processor per 1,000; load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            started = time.monotonic()
            rows = target.ledger.read_ledger(blueprint.members[0], number)
            print(f"  {len(rows):,} rows of {len(attempts):,} attempts read back in {time.monotonic() - started:.2f} s")
        target.ledger.drop_ledger()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
