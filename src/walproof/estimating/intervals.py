"""Intervals for a mean over blocks and for paired differences, the bound of a probability, when to stop.

Knows numbers only. Fixed, or stopped by their own width or by the budget; docs/statistics.md says which is used where.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import special

from walproof.model.estimate import Estimate

Numbers = NDArray[np.float64]

STOPPED_ALPHA = 0.03
"""Nominal error of an interval stopped by its own width, so that the true one is about 5 %: see stopped_interval."""
TRIMMED = 0.1
"""Share cut at each end before a mean over blocks is taken; nothing is cut below ten blocks."""
FEWEST_SKEWED = 8
"""Values below which skewness is noise and no interval leans."""
FEWEST_BLOCKS = 30
"""Blocks before a run may stop by precision: with fewer the width is too uncertain, and stalls are too seldom seen."""


def t_interval(values: Numbers, alpha: float = 0.05) -> Estimate:
    """Mean of values, shape (n,), with Student's t interval for a number of values fixed beforehand; none from one.

    >>> t_interval(np.array([1.0, 2.0, 3.0])).value
    2.0
    """
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, math.nan)
    half = float(special.stdtrit(n - 1, 1 - alpha / 2) * np.std(values, ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half)


def trimmed_mean(values: Numbers, cut: float = TRIMMED) -> tuple[float, float, int]:
    """Trimmed mean of values, shape (n,), its standard error from the winsorised variance, degrees of freedom.

    Yuen (1974), The two-sample trimmed t for unequal population variances; Tukey & McLaughlin (1963).

    >>> trimmed_mean(np.array([1.0] * 9 + [100.0]))[0]
    1.0
    """
    n = len(values)
    off = int(cut * n)
    ordered = np.sort(values)
    kept = n - 2 * off
    winsorised = np.clip(values, ordered[off], ordered[n - off - 1])
    spread = float(np.std(winsorised, ddof=1))
    error = spread * math.sqrt((n - 1) / (kept * (kept - 1)))
    return float(np.mean(ordered[off : n - off])), error, kept - 1


def stopped_interval(values: Numbers, alpha: float = STOPPED_ALPHA) -> Estimate:
    """Mean of values, shape (n,), with an interval that holds though its width decided when to stop; none from one.

    The rule compares widths only, never means. For normal values every sample variance is independent of the mean,
    so stopping on widths cannot steer the mean; what remains is that a run stops when its spread is by chance
    estimated low (Stein 1945; Chow & Robbins 1965; Starr 1966). A nominal 97 % and at least eight values pay for it.
    No value is left out, so rare stalls count; they make the values skewed, and the interval leans to their side:
    Hall (1992), On the removal of skewness by transformation, J. R. Statist. Soc. B 54, 221-228. It leans no further
    than the mean could be after a single stall among n values: the exact limit of one event, 4.6 standard errors at
    95 % (Garwood 1936, Biometrika 28, 437-442), where Hall's cube overshoots to 6 to 9.
    """
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    if n < 2:
        return Estimate(mean, math.nan, math.nan)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    t = float(special.stdtrit(n - 1, 1 - alpha / 2))
    most = max(t, float(special.chdtri(4, alpha / 2)) / 2 - 1)
    lean = _skewness(values) / math.sqrt(n)
    below, above = (min(abs(_unskewed(one, lean)), most) for one in (t, -t))
    return Estimate(mean, mean - error * below, mean + error * above)


def duration_interval(seconds_or_ms: Numbers) -> Estimate:
    """Mean of durations and its interval, which never begins below nothing."""
    mean = stopped_interval(seconds_or_ms)
    return Estimate(mean.value, max(mean.low, 0.0), mean.high)  # NaN stays NaN: it comes first


def trimmed_interval(values: Numbers, alpha: float = STOPPED_ALPHA) -> Estimate:
    """Trimmed mean of values, shape (n,), and its interval: the centre of the blocks, without rare stalls."""
    n = len(values)
    if n < 2:
        return stopped_interval(values)
    mean, error, freedom = trimmed_mean(values)
    half = float(special.stdtrit(freedom, 1 - alpha / 2)) * error
    return Estimate(mean, mean - half, mean + half)


def _skewness(values: Numbers) -> float:
    """Skewness of values, shape (n,); 0 where they are too few to show any, or all equal."""
    off = values - np.mean(values)
    squares = float(np.mean(off**2))
    return float(np.mean(off**3)) / squares**1.5 if len(values) >= FEWEST_SKEWED and squares > 0 else 0.0


def _unskewed(t: float, lean: float) -> float:
    """The inverse of Hall's transformation of a quantile t, in standard errors; lean is the skewness of the mean."""
    if abs(lean) < 1e-4:
        return t
    return 3 / lean * (float(np.cbrt(1 + lean * (t - lean / 6))) - 1)


def as_ratio(logs: Estimate) -> Estimate:
    """An estimate on the log scale as a ratio."""
    return Estimate(math.exp(logs.value), _exp(logs.low), _exp(logs.high))


def _exp(number: float) -> float:
    return math.exp(number) if number < 700.0 else math.inf


BETWEEN_RUNS = {"tps": 0.10, "ratio": 0.03, "latency": 0.15}
"""Standard deviation of the logarithm between runs of one thing on one machine, beyond what a run's own interval says.

Assumed where it is not seen: docs/statistics.md says how it was measured, `python -m benchmarks.price between-runs`.
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
    wider = float(special.ndtri(1 - 0.025 / among) / special.ndtri(0.975))
    runs = float(special.ndtri(0.975)) * between
    half = wider * math.hypot(runs, runs, *(math.log(e.high / e.low) / 2 for e in (before, after)))
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def shares_differ(before: tuple[int, int], after: tuple[int, int], alpha: float = 0.05) -> bool:
    """Whether two shares (successes, trials) differ, by Fisher's exact test (1922), two-sided.

    >>> shares_differ((0, 12), (12, 12)), shares_differ((0, 2), (1, 2))
    (True, False)
    """
    from scipy import stats  # where it is needed: importing it takes half a second

    table = [[before[0], before[1] - before[0]], [after[0], after[1] - after[0]]]
    return bool(stats.fisher_exact(table).pvalue < alpha)


def shifted(before: Sequence[float], after: Sequence[float], alpha: float = 0.05) -> bool:
    """Whether one sample lies above the other, by Mann & Whitney's test (1947), two-sided; never with few values.

    >>> shifted([1.0, 1.1, 1.2, 1.3, 1.4], [3.0, 3.1, 3.2, 3.3, 3.4]), shifted([1.0], [9.0])
    (True, False)
    """
    if min(len(before), len(after)) < 2:
        return False
    from scipy import stats

    return bool(stats.mannwhitneyu(np.array(before), np.array(after)).pvalue < alpha)


class StoppedBy(StrEnum):
    """Why a run ended."""

    PRECISION = "precision"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    DONE = "done"
    CYCLES = "whole checkpoint cycles"
    LEFT_OUT = "scenarios that could not be had"


def narrow(ratio: Estimate, blocks: int, precision: float, fewest: int = FEWEST_BLOCKS) -> bool:
    """Whether a ratio's interval is within ± precision of its value (a share), on enough blocks to trust its width.

    >>> narrow(Estimate(0.8, 0.79, 0.81), 30, 0.03), narrow(Estimate(0.8, 0.79, 0.81), 3, 0.03)
    (True, False)
    """
    return blocks >= fewest and ratio.half_width <= precision * ratio.value


def upper_bound(failures: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided upper confidence bound on the probability of a failure; 1.0 without trials.

    Clopper & Pearson (1934), exact. Without a failure it is 1 - (1 - confidence)^(1/trials), close to the "rule of
    three", 3/trials (Hanley & Lippman-Hand 1983).

    >>> round(upper_bound(0, 10), 3), round(upper_bound(1, 10), 3), upper_bound(10, 10), upper_bound(0, 0)
    (0.259, 0.394, 1.0, 1.0)
    """
    if failures >= trials:
        return 1.0
    return float(special.betaincinv(failures + 1, trials - failures, confidence))
