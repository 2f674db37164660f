"""Under a load that comes and goes: the interval of 4 minutes of blocks against the spread of plain sequential runs.

`python -m benchmarks.price_precision [SECONDS]`: 10 minutes on its own lab. Plain: four times 30 s of local, then 30 s
of on. The load uses every processor for SECONDS (30) on average, then rests as long, as a nightly job or a neighbour
does. The shorter its spells, the more of them a plain run averages over.
"""

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, Scenario, Workload
from walproof.targets.lab.target import LabTarget

BUDGET_S = 240
CLIENTS = 4
REPEATS = 4
SCALE = 20
SPELL_S = 30.0
COMES_AND_GOES = """
import random, time
weather = random.Random({seed})
while True:
    until = time.monotonic() + weather.expovariate(1 / {spell_s})
    while time.monotonic() < until:
        sum(range(10000))
    time.sleep(weather.expovariate(1 / {spell_s}))
"""


@contextlib.contextmanager
def background(spell_s: float) -> Iterator[None]:
    """One load on every processor that comes and goes, both for that many seconds on average."""
    script = COMES_AND_GOES.format(seed=1, spell_s=spell_s)
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def plain_ratios(target: LabTarget) -> list[float]:
    """on/local of plain runs one after the other, as anybody would do it."""
    arm = Arm(Level.LOCAL, CLIENTS, Workload(scale=SCALE))
    seconds = BUDGET_S / REPEATS / 2
    ratios = []
    for number in range(REPEATS):
        local = target.pricing.run_sample(Sample(-1, 2 * number, arm, Scenario()), seconds, number)
        on = target.pricing.run_sample(
            Sample(-1, 2 * number + 1, replace(arm, level=Level.ON), Scenario()), seconds, number
        )
        ratios.append(on.tps / local.tps)
        print(f"plain run {number + 1}: on/local {ratios[-1]:.3f}", flush=True)
    return ratios


def main() -> int:
    """Both under the same kind of load; 0 when the interval is at least three times narrower."""
    options = {
        "levels": "local,on",
        "clients": str(CLIENTS),
        "precision": "0.1%",
        "budget": f"{BUDGET_S}s",
        "scale": str(SCALE),
    }
    spell_s = float(sys.argv[1]) if len(sys.argv) == 2 else SPELL_S
    with priced_lab("precision") as target:
        target.pricing.prepare(Workload(scale=SCALE))
        with background(spell_s):
            ratios = plain_ratios(target)
            result, _ = priced(target, options)
    found = next(p for p in result.table.arms if p.arm.level is Level.ON)
    width, spread = found.ratio.high - found.ratio.low, max(ratios) - min(ratios)
    print(
        f"blocks: on/local {found.ratio.value:.3f} ({found.ratio.low:.3f}–{found.ratio.high:.3f}), {found.paired} pairs"
    )
    print(f"load in spells of {spell_s:g} s; plain: spread {spread:.3f} of {REPEATS} runs; interval {width:.3f} wide")
    times = spread / width if width else math.nan
    return judged("times narrower than the spread of plain runs", times, "at least 3", times >= 3)


if __name__ == "__main__":
    sys.exit(main())
