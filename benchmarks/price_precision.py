"""Beside a load that comes and goes: the interval of 4 minutes of blocks against the spread of plain sequential runs.

`python -m benchmarks.price_precision`: 10 minutes on its own lab. Plain: four times 30 s of local, then 30 s of on.
"""

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.priced_lab import asked, judged, priced_lab
from walproof.model.guarantee import Level
from walproof.model.plan import Arm, Setting, Slice, Workload
from walproof.targets.lab import LabTarget

BUDGET_S = 240
CLIENTS = 4
REPEATS = 4
COMES_AND_GOES = """
import random, time
weather = random.Random({seed})
while True:
    until = time.monotonic() + weather.expovariate(1 / 12)
    while time.monotonic() < until:
        sum(range(10000))
    time.sleep(weather.expovariate(1 / 12))
"""


@contextlib.contextmanager
def background(processes: int = 2) -> Iterator[None]:
    """Processes that each use one processor for about 12 s, rest for about 12 s, and so on."""
    running = [subprocess.Popen([sys.executable, "-c", COMES_AND_GOES.format(seed=seed)]) for seed in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def plain_ratios(target: LabTarget) -> list[float]:
    """on/local of plain runs one after the other, as anybody would do it."""
    arm = Arm(Level.LOCAL, CLIENTS, Workload(scale=20))
    seconds = BUDGET_S / REPEATS / 2
    ratios = []
    for number in range(REPEATS):
        local = target.run_slice(Slice(-1, 2 * number, arm, Setting()), seconds, number)
        on = target.run_slice(Slice(-1, 2 * number + 1, replace(arm, level=Level.ON), Setting()), seconds, number)
        ratios.append(on.tps / local.tps)
        print(f"plain run {number + 1}: on/local {ratios[-1]:.3f}", flush=True)
    return ratios


def main() -> int:
    """Both ways beside the same kind of load; 0 when the interval is at least three times narrower."""
    words = {
        "levels": "local,on",
        "clients": str(CLIENTS),
        "precision": "0.1%",
        "budget": f"{BUDGET_S}s",
        "slice": "0.7s",
    }
    with priced_lab("precision") as target:
        target.prepare(Workload(scale=20))
        with background():
            ratios = plain_ratios(target)
            answer, _ = asked(target, words)
    found = next(p for p in answer.table.arms if p.arm.level is Level.ON)
    width, spread = found.ratio.high - found.ratio.low, max(ratios) - min(ratios)
    print(
        f"blocks: on/local {found.ratio.value:.3f} ({found.ratio.low:.3f}–{found.ratio.high:.3f}), {found.paired} pairs"
    )
    print(f"plain: spread {spread:.3f} of {REPEATS} runs; interval {width:.3f} wide")
    times = spread / width if width else math.nan
    return judged("times narrower than the spread of plain runs", times, "at least 3", times >= 3)


if __name__ == "__main__":
    sys.exit(main())
