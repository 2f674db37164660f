"""Quantiles of pooled latency histograms, with intervals that know that a block's transactions are alike."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from walproof.estimating.intervals import Numbers
from walproof.model.estimate import Estimate, pooled, quantile_ms

ALPHA = 0.025
"""Nominal error with which simulated coverage is 95 % on average, and at least 93 % far in the tail of few blocks."""


def quantile_intervals(
    histograms: Sequence[Mapping[int, int]], quantiles: Sequence[float], alpha: float = ALPHA
) -> tuple[Estimate, ...]:
    """Quantiles in ms, ascending, of the pooled histograms, one a block, each with its interval; none from one block.

    Woodruff (1952), Confidence intervals for medians and other position measures, JASA 47: an interval for the share
    of transactions below the estimate, read back through the pooled histogram. The share varies from block to block,
    not from transaction to transaction (cluster sampling, Cochran 1977, 9.4), and is taken on the logit scale.
    Student's t has as many degrees of freedom as blocks that hold the tail beyond the estimate (Kish's effective
    number) less one: a 99th percentile that one slow block made is known no better than one block knows it. An end
    beyond every transaction that was seen is 0 or infinite; where both would be, there is no interval. A higher
    quantile is at least a lower one: its interval begins no lower, and the lower one's ends no higher.
    """
    filled = [h for h in histograms if h]
    whole = pooled(filled)
    values = [quantile_ms(whole, q) for q in quantiles]
    if len(filled) < 2:
        return tuple(Estimate(v, math.nan, math.nan) for v in values)
    buckets = np.array(list(whole))
    counts = np.array([[h.get(int(b), 0) for b in buckets] for h in filled], dtype=np.float64)
    below = np.cumsum(counts, axis=1)
    ends = np.array([_ends(value, q, buckets, below, alpha) for q, value in zip(quantiles, values, strict=True)])
    lows, highs = np.maximum.accumulate(ends[:, 0]), np.minimum.accumulate(ends[::-1, 1])[::-1]
    nothing_known = (lows == 0) & np.isinf(highs)
    lows[nothing_known] = highs[nothing_known] = math.nan
    return tuple(map(Estimate, values, lows.tolist(), highs.tolist()))


def median_interval(values: Sequence[float], alpha: float = 0.05) -> Estimate:
    """Median of values with its distribution-free interval between two of them; none from fewer than six.

    Order statistics: the number of values below the median is binomial (Conover 1999, Practical Nonparametric
    Statistics, 3.2).

    >>> median_interval([3.0, 1.0, 2.0, 4.0, 6.0, 5.0])
    Estimate(value=3.5, low=1.0, high=6.0)
    """
    ordered, n = sorted(values), len(values)
    if not n:
        return Estimate(math.nan, math.nan, math.nan)
    value = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below = [float(special.bdtr(k, n, 0.5)) for k in range(n // 2)]
    off = max((k for k, share in enumerate(below) if share <= alpha / 2), default=None)
    return Estimate(value, math.nan, math.nan) if off is None else Estimate(value, ordered[off], ordered[n - 1 - off])


def _ends(value: float, q: float, buckets: np.ndarray, below: Numbers, alpha: float) -> tuple[float, float]:
    """The interval's ends; below: transactions up to each bucket, shape (blocks, buckets)."""
    sizes, running = below[:, -1], below.sum(axis=0)
    blocks, total = len(sizes), float(running[-1])
    at = int(np.searchsorted(running, q * total - 1e-9))
    share = float(running[at]) / total
    deviations = (below[:, at] - share * sizes) / (total / blocks)
    beyond = sizes - below[:, at] if q >= 0.5 else below[:, at]
    held = float(beyond.sum()) ** 2 / float((beyond**2).sum()) if beyond.any() else 1.0
    t = float(special.stdtrit(max(1.0, held - 1), 1 - alpha / 2))
    centre = min(max(q, 0.5 / total), 1 - 0.5 / total)
    chance = float(special.ndtri(1 - alpha / 2)) * math.sqrt(centre * (1 - centre) / total)
    half = max(t * float(np.std(deviations, ddof=1)) / math.sqrt(blocks), chance) / (centre * (1 - centre))
    low, high = (float(special.expit(special.logit(centre) + side * half)) for side in (-1, 1))
    least = 0.0 if low * total < 1 else min(value, _at(low, buckets, running))
    most = math.inf if (1 - high) * total < 1 else max(value, _at(high, buckets, running))
    return least, most


def _at(share: float, buckets: np.ndarray, running: Numbers) -> float:
    """The latency in ms below which that share of transactions lies."""
    place = min(len(buckets) - 1, int(np.searchsorted(running, share * float(running[-1]) - 1e-9)))
    return quantile_ms({int(buckets[place]): 1}, 0.5)
