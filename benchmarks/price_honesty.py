"""A hundred quick A/A runs with early stopping: how many intervals cover 1.

`python -m benchmarks.price_honesty`: one long A/A run of about 10 minutes on a lab of its own, of which the hundred
quick runs are resampled: each draws its pairs with replacement, and swaps the two equal arms of a pair by a coin, since
nothing tells them apart. `--from RECORD` takes the pairs of a record made by `walproof price --aa` instead.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.priced_lab import asked, judged, priced_lab
from walproof.estimating.enough import narrow
from walproof.estimating.intervals import Numbers, as_ratio, stopped_interval
from walproof.model.guarantee import Level
from walproof.pricing.design import AGAIN
from walproof.pricing.estimates import log_ratios, slices_of
from walproof.records.reader import read

RUNS = 100
MOST_BLOCKS = 60


def measured() -> Numbers:
    """Log-ratios of one long A/A run."""
    words = {"aa": True, "clients": "4", "precision": "0.1%", "budget": "10min", "slice": "0.7s"}
    with priced_lab("honesty") as target:
        _, bench = asked(target, words)
    return pairs(bench.events)


def pairs(events: list) -> Numbers:  # type: ignore[type-arg]
    """Log-ratios of the baseline run against itself."""
    (blocks,) = slices_of(events).values()
    arm = next(a for found in blocks.values() for a in found if a.label == AGAIN)
    return log_ratios(blocks, arm, Level.LOCAL)


def covered(logs: Numbers, precision: float, rng: np.random.Generator) -> tuple[bool, int]:
    """One quick run: whether its interval covers 1, and after how many pairs it stopped."""
    drawn = rng.choice(logs, MOST_BLOCKS) * rng.choice([-1.0, 1.0], MOST_BLOCKS)
    for n in range(2, MOST_BLOCKS + 1):
        ratio = as_ratio(stopped_interval(drawn[:n]))
        if narrow(ratio, n, precision):
            break
    return ratio.covers(1.0), n


def main() -> int:
    """Coverage at a precision that stops most runs early; 0 when 90 to 99 of 100 cover."""
    source = sys.argv[2] if len(sys.argv) == 3 and sys.argv[1] == "--from" else None
    logs = pairs(list(read(Path(source)).events)) if source else measured()
    spread = float(np.std(logs))
    precision = 2.2 * spread / np.sqrt(MOST_BLOCKS / 2)
    rng = np.random.default_rng(1)
    runs = [covered(logs, precision, rng) for _ in range(RUNS)]
    stops = [n for _, n in runs]
    print(f"{len(logs)} measured pairs, spread {spread:.3f}; resampled into {RUNS} runs that stop at ± {precision:.1%}")
    print(f"runs stopped after {min(stops)} to {max(stops)} pairs, {sum(n < MOST_BLOCKS for n in stops)} of them early")
    cover = sum(c for c, _ in runs)
    return judged("intervals that cover 1", cover, "90 to 99 of 100", 90 <= cover <= 99)


if __name__ == "__main__":
    sys.exit(main())
