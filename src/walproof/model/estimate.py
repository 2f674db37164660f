"""A number with its interval, and its caveats."""

import math
from dataclasses import dataclass
from enum import StrEnum


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
        """Whether the interval holds the number."""
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
    FAILED_OVER = "failed over during the run"
    FAILURES = "transactions failed"
    OVERLOAD = "offered rate not carried"
    MIXED_VERSIONS = "mixed versions"
    FROM_OUTSIDE = "load from outside the cluster"
