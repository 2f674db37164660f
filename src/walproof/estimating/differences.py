"""Whether two independent measurements differ by more than chance. Knows numbers only."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from walproof.model.estimate import Estimate

BETWEEN_RUNS = {"tps": 0.10, "ratio": 0.03, "latency": 0.15}
"""Standard deviation of the logarithm between runs of one thing on one machine, beyond what a run's own interval says.

Assumed where it is not seen: docs/statistics.md says how it was measured, `python -m benchmarks.price_between_runs`.
"""


def change(before: Estimate, after: Estimate, among: int = 1, between: float = 0.0) -> Estimate:
    """after / before of two positive, independent 95 % estimates; variances of their logarithms add up.

    between: standard deviation of the logarithm from run to run, of which each of the two had one.
    The interval holds with 95 % for all of `among` such comparisons at once (Bonferroni, normal approximation).

    >>> found = change(Estimate(0.8, 0.75, 0.85), Estimate(0.4, 0.38, 0.42))
    >>> round(found.value, 2), found.covers(1.0)
    (0.5, False)
    """
    numbers = (before.value, before.low, before.high, after.value, after.low, after.high)
    if not all(math.isfinite(n) and n > 0 for n in numbers):
        return Estimate(math.nan, math.nan, math.nan)
    middle = math.log(after.value / before.value)
    wider = float(stats.norm.ppf(1 - 0.025 / among) / stats.norm.ppf(0.975))
    runs = float(stats.norm.ppf(0.975)) * between
    half = wider * math.hypot(runs, runs, *(math.log(e.high / e.low) / 2 for e in (before, after)))
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def shares_differ(before: tuple[int, int], after: tuple[int, int], alpha: float = 0.05) -> bool:
    """Whether two shares (successes, trials) differ, by Fisher's exact test (1922), two-sided.

    >>> shares_differ((0, 12), (12, 12)), shares_differ((0, 2), (1, 2))
    (True, False)
    """
    table = [[before[0], before[1] - before[0]], [after[0], after[1] - after[0]]]
    return bool(stats.fisher_exact(table).pvalue < alpha)


def shifted(before: Sequence[float], after: Sequence[float], alpha: float = 0.05) -> bool:
    """Whether one sample lies above the other, by Mann & Whitney's test (1947), two-sided; never with few values.

    >>> shifted([1.0, 1.1, 1.2, 1.3, 1.4], [3.0, 3.1, 3.2, 3.3, 3.4]), shifted([1.0], [9.0])
    (True, False)
    """
    if min(len(before), len(after)) < 2:
        return False
    return bool(stats.mannwhitneyu(np.array(before), np.array(after)).pvalue < alpha)
