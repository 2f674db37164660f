"""What may fail, how often, for how long, and what that takes: plain values."""

import math
from dataclasses import dataclass
from enum import StrEnum

YEAR_S = 365.25 * 86400.0


class Place(StrEnum):
    """Where a failure falls, widest last; everything in one place fails together."""

    MEMBER = "member"
    SERVER = "server"
    RACK = "rack"
    ZONE = "zone"
    REGION = "region"
    CLUSTER = "cluster"


class Data(StrEnum):
    """What a failure leaves on the member's disk."""

    KEPT = "kept"
    UNFLUSHED = "unflushed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Failure:
    """One kind of failure of one kind of place. Rates per year and place; repair: mean, s, and, lognormal, sd / mean.

    `planned` ones (of the cluster) only pause service. `cut`: the side with the DCS's majority goes on.
    """

    name: str
    place: Place
    per_year: float
    low: float
    high: float
    data: Data
    drills: tuple[str, ...]
    repair_s: float
    repair_cv: float = 1.0
    silent: bool = True
    dcs: bool = True
    cut: bool = False
    exponential: bool = False
    """Whether repair times are exponential rather than lognormal."""
    source: str = ""
    address: str = ""

    @property
    def planned(self) -> bool:
        """Whether it falls on no place, but on whoever leads, in an orderly way."""
        return self.place is Place.CLUSTER

    @property
    def rate_sigma(self) -> float:
        """Standard deviation of the logarithm of the rate, from its 95 % range.

        >>> f = Failure("x", Place.ZONE, 1.0, 0.5, 2.0, Data.KEPT, (), 60.0)
        >>> round(f.rate_sigma, 3)
        0.354
        """
        return math.log(self.high / self.low) / (2 * 1.96) if self.per_year > 0 and self.low > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Every kind of failure, and how long people take. decide_s: to promote what lacks commits when nothing better
    can come back; force_s: the same while a member that has every commit may come back.
    """

    kinds: tuple[Failure, ...]
    decide_s: float = 1800.0
    force_s: float = 14400.0
    name: str = ""
