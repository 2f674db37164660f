"""A number with its interval and its caveats; and latencies as counts in log-spaced buckets 1 % wide.

So samples pool exactly and ten million fit in a page. Bucket b holds latencies in [BASE_MS * 1.01**b, BASE_MS *
1.01**(b+1)); a quantile is off by at most 1 %."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; low and high are NaN when there is none, as from one observation."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval; its ends may be infinite."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def half_width(self) -> float:
        """Half of the interval's width, in the value's unit."""
        return (self.high - self.low) / 2

    def covers(self, number: float) -> bool:
        return self.low <= number <= self.high


class Caveat(StrEnum):
    """Why a number should be read with care; shown next to it."""

    DRIFT = "drift"
    STOLEN = "stolen processor time"
    CHECKPOINT = "checkpoint during samples"
    AUTOVACUUM = "autovacuum during samples"
    TRANSIENT = "WAL per transaction not steady"
    CARRY_OVER = "began before standbys caught up"
    CLIENT_BOUND = "client-bound"
    FEW_BLOCKS = "too few blocks"
    LOCK_BOUND = "lock-bound"
    UNVERIFIED_LINK = "unverified link"
    STANDBY_BEHIND = "standby fell behind"
    NOT_IN_EFFECT = "guarantee not in effect"
    OTHER_LEVEL = "another level in effect"
    FAILED_OVER = "failed over during the run"
    FAILURES = "transactions failed"
    OVERLOAD = "offered rate not carried"
    MIXED_VERSIONS = "mixed versions"
    FROM_OUTSIDE = "load from outside the cluster"


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
