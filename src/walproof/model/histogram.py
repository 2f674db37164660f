"""Latencies as counts in log-spaced buckets 1 % wide, so that samples pool exactly and ten million fit in a page.

Bucket b holds latencies in [BASE_MS * 1.01**b, BASE_MS * 1.01**(b+1)); a quantile is off by at most 1 %.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

BASE_MS = 0.001
_LOG_STEP = float(np.log(1.01))


def bucketed(latencies_ms: NDArray[np.float64]) -> dict[int, int]:
    """Counts per bucket of latencies in ms, shape (n,); everything below BASE_MS falls into bucket 0.

    >>> bucketed(np.array([1.0, 1.0, 2.0]))
    {694: 2, 763: 1}
    """
    if len(latencies_ms) == 0:
        return {}
    numbers = np.floor(np.log(np.maximum(latencies_ms, BASE_MS) / BASE_MS) / _LOG_STEP).astype(np.int64)
    buckets, counts = np.unique(numbers, return_counts=True)
    return {int(b): int(c) for b, c in zip(buckets, counts, strict=True)}


def pooled(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sum of several histograms."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[bucket] = total.get(bucket, 0) + count
    return dict(sorted(total.items()))


def quantile_ms(histogram: Mapping[int, int], q: float) -> float:
    """The q-quantile in ms (geometric middle of its bucket), NaN when the histogram is empty."""
    total = sum(histogram.values())
    if total == 0:
        return float("nan")
    rank, seen = q * total, 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return float(BASE_MS * np.exp(_LOG_STEP * (bucket + 0.5)))
    raise AssertionError("counts do not add up")
