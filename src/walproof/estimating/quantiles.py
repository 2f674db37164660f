"""Quantiles of pooled latency histograms, with intervals by resampling whole blocks. Knows numbers only."""

from collections.abc import Mapping, Sequence

import numpy as np

from walproof.model.estimate import Estimate
from walproof.model.histogram import pooled, quantile_ms

RESAMPLES = 400


def quantile_intervals(
    histograms: Sequence[Mapping[int, int]], quantiles: Sequence[float], rng: np.random.Generator
) -> tuple[Estimate, ...]:
    """Quantiles in ms of the pooled histograms, one histogram a block, each with a 95 % interval.

    Transactions within a block share its weather, so blocks are resampled, not transactions: the percentile bootstrap
    over clusters (Efron & Tibshirani 1993, ch. 13; Davison & Hinkley 1997, 3.8), widened by sqrt(n/(n-1)).
    """
    filled = [h for h in histograms if h]
    values = [quantile_ms(pooled(filled), q) for q in quantiles]
    if len(filled) < 2:
        return tuple(Estimate(v, v, v) for v in values)
    buckets = sorted({b for h in filled for b in h})
    column = {bucket: i for i, bucket in enumerate(buckets)}
    counts = np.zeros((len(filled), len(buckets)))
    for row, histogram in enumerate(filled):
        for bucket, count in histogram.items():
            counts[row, column[bucket]] = count
    n = len(filled)
    weights = rng.multinomial(n, [1 / n] * n, size=RESAMPLES).astype(np.float64)
    running = np.cumsum(weights @ counts, axis=1)
    middles = np.array([quantile_ms({b: 1}, 0.5) for b in buckets])
    return tuple(
        _interval(value, middles[(running >= q * running[:, -1:]).argmax(axis=1)], n)
        for q, value in zip(quantiles, values, strict=True)
    )


def _interval(value: float, resampled: np.ndarray, n: int) -> Estimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    wider = (n / (n - 1)) ** 0.5
    return Estimate(
        value, float(min(value, value - (value - low) * wider)), float(max(value, value + (high - value) * wider))
    )
