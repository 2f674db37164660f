"""How much the price differs from run to run of the same, beyond what each run's own interval says.

`python -m benchmarks.price_between_runs [--runs 8] [--seconds 40]`: about 8 minutes on one lab of its own; local and on
with 4 clients. The spread between runs is the variance of the runs' logarithms less the mean of their own variances
(one-way random effects, Searle, Casella & McCulloch 1992, ch. 3): what `estimating.intervals.BETWEEN_RUNS` assumes.
"""

import argparse
import math
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.estimating.intervals import BETWEEN_RUNS
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level

Z = 1.96


def between(found: Sequence[Estimate]) -> float:
    """Standard deviation of the logarithm between runs; 0 where the runs differ no more than their intervals say."""
    values = np.log([one.value for one in found])
    own = np.array([math.log(one.high / one.low) / 2 / Z for one in found])
    return math.sqrt(max(0.0, float(np.var(values, ddof=1)) - float(np.mean(own**2))))


def main() -> int:
    """0 when neither spread is larger than assumed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40)
    options = parser.parse_args()
    asked = {"levels": "local,on", "clients": "4", "sample": "1s", "precision": "0.1%"}
    tps, ratios = [], []
    with priced_lab("between") as target:
        for seed in range(1, options.runs + 1):
            result, _ = priced(target, {**asked, "budget": f"{options.seconds:g}s", "seed": str(seed)})
            by_level = {p.arm.level: p for p in result.table.arms}
            tps.append(by_level[Level.LOCAL].tps)
            ratios.append(by_level[Level.ON].ratio)
            one, other = tps[-1], ratios[-1]
            print(
                f"run {seed}: local {one.value:,.0f} tps ({one.low:,.0f}–{one.high:,.0f}), "
                f"on/local {other.value:.3f} ({other.low:.3f}–{other.high:.3f})",
                flush=True,
            )
    spreads = {"tps": between(tps), "ratio": between(ratios)}
    return max(
        judged(f"spread between runs, {name}", spread, f"assumed {BETWEEN_RUNS[name]:g}", spread <= BETWEEN_RUNS[name])
        for name, spread in spreads.items()
    )


if __name__ == "__main__":
    sys.exit(main())
