"""A hundred quick A/A runs with early stopping: how many intervals cover 1.

`python -m benchmarks.price_honesty`: 11 minutes on a lab of its own. The baseline runs against itself without a pause;
the hundred quick runs follow one another in it, each from its first pair until its interval is narrow or its share of
the pairs is used up. `--from RECORD` takes the pairs of a record made by `walproof price --aa` instead.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.estimating.intervals import FEWEST_BLOCKS, Numbers, as_ratio, stopped_interval
from walproof.estimating.stopping import narrow
from walproof.model.guarantee import Level
from walproof.pricing.design import AGAIN
from walproof.pricing.estimates import log_ratios, samples_of
from walproof.records.reader import read

RUNS = 100


def measured() -> Numbers:
    """Log-ratios of one long A/A run."""
    options = {"aa": True, "clients": "4", "precision": "0.1%", "budget": "11min", "sample": "0.2s"}
    with priced_lab("honesty") as target:
        _, bench = priced(target, options)
    return pairs(bench.events)


def pairs(events: list) -> Numbers:  # type: ignore[type-arg]
    """Log-ratios of the baseline run against itself."""
    (blocks,) = samples_of(events).values()
    arm = next(a for found in blocks.values() for a in found if a.label == AGAIN)
    return log_ratios(blocks, arm, Level.LOCAL)


def run(logs: Numbers, precision: float) -> tuple[bool, int]:
    """One quick run over these pairs: whether its interval covers 1, and after how many pairs it stopped."""
    for n in range(2, len(logs) + 1):
        ratio = as_ratio(stopped_interval(logs[:n]))
        if narrow(ratio, n, precision):
            break
    return ratio.covers(1.0), n


def main() -> int:
    """Coverage at a precision that stops about half of the runs early; 0 when 90 to 99 of 100 cover."""
    source = sys.argv[2] if len(sys.argv) == 3 and sys.argv[1] == "--from" else None
    logs = pairs(list(read(Path(source)).events)) if source else measured()
    most = len(logs) // RUNS
    if most <= FEWEST_BLOCKS:
        print(f"undecided: {len(logs)} pairs are too few for {RUNS} runs that may stop early; is the machine busy?")
        return 4
    spread = float(np.std(logs))
    precision = 2.6 * spread / np.sqrt(most)
    runs = [run(logs[i * most : (i + 1) * most], precision) for i in range(RUNS)]
    stops = [n for _, n in runs]
    print(f"{len(logs)} pairs, spread {spread:.3f}: {RUNS} runs of at most {most} pairs that stop at ± {precision:.1%}")
    print(f"runs stopped after {min(stops)} to {max(stops)} pairs, {sum(n < most for n in stops)} of them early")
    cover = sum(c for c, _ in runs)
    return judged("intervals that cover 1", cover, "90 to 99 of 100", 90 <= cover <= 99)


if __name__ == "__main__":
    sys.exit(main())
