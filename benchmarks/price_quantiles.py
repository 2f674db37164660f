"""How often the intervals of p50, p95, p99 and p99.9 cover, from 2 to 30 blocks; and how often they have no upper end.

`python -m benchmarks.price_quantiles [--runs 400]`: about a minute, simulated. Latencies are lognormal, and every
block is slower or faster as a whole: by 5 or 20 % (one standard deviation).
"""

import argparse
import math
import sys
from collections.abc import Mapping

import numpy as np

from benchmarks.priced_lab import judged
from walproof.estimating.quantiles import quantile_intervals
from walproof.model.estimate import Estimate, bucketed, pooled, quantile_ms

QUANTILES = (0.5, 0.95, 0.99, 0.999)
BLOCKS = (2, 3, 5, 10, 30)
EACH = 1000
"""Transactions a block."""


def drawn(rng: np.random.Generator, blocks: int, weather: float) -> list[Mapping[int, int]]:
    """Histograms of that many blocks."""
    return [bucketed(rng.lognormal(rng.normal(0, weather), 0.4, EACH)) for _ in range(blocks)]


def coverage(blocks: int, weather: float, runs: int) -> tuple[list[float], list[float]]:
    """The share of runs that cover each quantile, and the share without an upper end; off by a bucket is forgiven."""
    rng = np.random.default_rng([blocks, round(100 * weather), 14])
    whole = pooled(drawn(rng, 3000, weather))
    truth = [quantile_ms(whole, q) for q in QUANTILES]
    found = [quantile_intervals(drawn(rng, blocks, weather), QUANTILES) for _ in range(runs)]
    covers = [sum(_covers(one[i], true) for one in found) for i, true in enumerate(truth)]
    endless = [sum(not math.isfinite(one[i].high) for one in found) for i in range(len(QUANTILES))]
    return [n / runs for n in covers], [n / runs for n in endless]


def _covers(found: Estimate, truth: float) -> bool:
    """Whether the interval holds the truth; one that is not there claims nothing."""
    return not found.known or (found.low <= 1.01 * truth and found.high >= truth / 1.01)


def main() -> int:
    """0 when each covers in at least 93 of 100."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    options = parser.parse_args()
    print(f"{options.runs} runs each; covers (no upper end)")
    print(f"{'blocks differ by':<18}{'blocks':>7}" + "".join(f"{'p' + f'{100 * q:g}':>16}" for q in QUANTILES))
    worst = 1.0
    for weather in (0.05, 0.2):
        for blocks in BLOCKS:
            covers, endless = coverage(blocks, weather, options.runs)
            cells = "".join(f"{f'{c:.1%} ({e:.0%})':>16}" for c, e in zip(covers, endless, strict=True))
            print(f"{f'{weather:.0%}':<18}{blocks:>7}{cells}", flush=True)
            worst = min(worst, *covers)
    return judged("lowest coverage", worst, "at least 0.93", worst >= 0.93)


if __name__ == "__main__":
    sys.exit(main())
