"""Throughput and its ratio from totals over blocks: all time counts, stalls included. Knows numbers only.

A rate is the sum of counts divided by the sum of seconds, not a mean of block rates; a ratio is one rate divided by
another from the same blocks. Intervals are those of the linearised blocks (Cochran 1977, Sampling Techniques, 6.3)."""

import math
from dataclasses import dataclass

import numpy as np

from walproof.estimating.intervals import Numbers, stopped_interval, trimmed_interval
from walproof.model.estimate import Estimate

ALPHA = 0.05
"""Nominal error where stalls that were missed are allowed for too, so that the true one is about 5 %."""
STALL_S = 0.4
"""Length of a stall that may have been missed."""
STALL_EVERY_S = 25.0
"""How often such a stall is taken to come at most."""
MISSED = -math.log(0.07)
"""A stall that comes this many times on average in the time measured is seen in 93 of 100 runs."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and seconds of one arm, block by block, each of shape (n,)."""

    counts: Numbers
    seconds: Numbers

    @property
    def rate(self) -> float:
        """Counts per second over all blocks; NaN without time."""
        whole = float(self.seconds.sum())
        return float(self.counts.sum()) / whole if whole > 0 else math.nan

    @property
    def missed(self) -> float:
        """The share of throughput that a stall not seen in this time may take: see `ratio_interval`."""
        whole = float(self.seconds.sum())
        return STALL_S * min(1 / STALL_EVERY_S, MISSED / whole) if whole > 0 else math.nan

    def deviations(self) -> Numbers:
        """Every block's share in the error of the logarithm of the rate, shape (n,); their mean is 0."""
        return (self.counts - self.rate * self.seconds) / float(self.counts.mean())


def rate_interval(arm: Totals, alpha: float = ALPHA) -> Estimate:
    """Counts per second with an interval that holds when its width decided when to stop.

    A stall that was not seen can only have made it lower: `missed` is allowed for at the lower end.
    """
    if not arm.rate > 0:
        return Estimate(arm.rate, math.nan, math.nan)
    deviation = stopped_interval(arm.deviations(), alpha)
    low = math.hypot(deviation.low, arm.missed)
    return Estimate(arm.rate, arm.rate * math.exp(-low), arm.rate * math.exp(deviation.high))


def ratio_interval(arm: Totals, baseline: Totals, alpha: float = ALPHA) -> Estimate:
    """Rate of the arm divided by the baseline's, measured in the same n blocks, with its interval.

    The blocks' deviations are subtracted pair by pair, so what slows both cancels. What comes more seldom than
    the run is long may have been missed, on either side: at its end of the interval a stall of STALL_S seconds is
    allowed for, as often as every STALL_EVERY_S, or as could have been missed in the time measured with 7 % (errors
    add as squares). In up to a minute per arm that is 1.6 %, in ten minutes 0.2 %.
    """
    if not (arm.rate > 0 and baseline.rate > 0):
        return Estimate(arm.rate / baseline.rate if baseline.rate > 0 else math.nan, math.nan, math.nan)
    ratio = arm.rate / baseline.rate
    difference = stopped_interval(arm.deviations() - baseline.deviations(), alpha)
    low, high = math.hypot(difference.low, arm.missed), math.hypot(difference.high, baseline.missed)
    return Estimate(ratio, ratio * math.exp(-low), ratio * math.exp(high))


def ratio_without_stalls(arm: Totals, baseline: Totals) -> Estimate:
    """The centre of the ratios of the blocks, a tenth trimmed at each end from ten on, without rare stalls.

    Blocks without a single count are left out.
    """
    both = (arm.counts > 0) & (baseline.counts > 0)
    rates = [one.counts[both] / one.seconds[both] for one in (arm, baseline)]
    log_ratio = trimmed_interval(np.log(rates[0] / rates[1]))
    return Estimate(math.exp(log_ratio.value), math.exp(log_ratio.low), math.exp(log_ratio.high))
