"""What may fail, how often, for how long, and what that takes; read from a file of failure rates (TOML).

Every key known, every rate finite, with its range and its source."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import ndtri

from walproof.machine.toml_files import described, read_toml

YEAR_S = 365.25 * 86400.0
MOST_PER_YEAR = 1e7
NORMAL_95 = 1.96
"""Both ends of a 95 % range are so many standard deviations away."""
TIMES_LONGER = 2.0
"""Repairs and people may take so many times as long as the file says, or as short: an assumption."""
DEFAULT = Path(str(resources.files("walproof.forecasting") / "failures.toml"))


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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Failure(_Strict):
    """One kind of failure of one kind of place. Rates per year and place; repair: mean, s, and, lognormal, sd / mean.

    `planned` ones (of the cluster) only pause service. `cut`: the side with the DCS's majority goes on.
    """

    name: str = Field(min_length=1, max_length=60)
    place: Place = Field(alias="per")
    per_year: float = Field(ge=0, le=MOST_PER_YEAR)
    low: float = Field(ge=0, le=MOST_PER_YEAR)
    high: float = Field(ge=0, le=MOST_PER_YEAR)
    data: Data
    drills: tuple[str, ...] = Field(min_length=1)
    repair_s: float = Field(gt=0, le=YEAR_S)
    repair_cv: float = Field(ge=0, le=10)
    silent: bool = True
    dcs: bool = True
    cut: bool = False
    exponential: bool = False
    """Whether repair times are exponential rather than lognormal."""
    source: str = Field(min_length=10)
    address: str = ""

    @property
    def planned(self) -> bool:
        """Whether it falls on no place, but on the leader, in an orderly way."""
        return self.place is Place.CLUSTER

    def rates_at(self, normal: NDArray[np.float64]) -> NDArray[np.float64]:
        """The rates that standard normal numbers stand for: per_year is the median, low and high hold 95 %."""
        if not self.per_year:
            return np.zeros_like(normal)
        ends = np.where(normal < 0, self.low, self.high) / self.per_year
        return np.asarray(self.per_year * ends ** (np.abs(normal) / NORMAL_95))

    @model_validator(mode="after")
    def _ordered(self) -> "Failure":
        if not self.low <= self.per_year <= self.high:
            raise ValueError(f"per_year {self.per_year:g} is not between low {self.low:g} and high {self.high:g}")
        if self.per_year > 0 and self.low == 0:
            raise ValueError("low is 0: give the smallest rate that is believed possible")
        return self


@dataclass(frozen=True, slots=True)
class Failures:
    """Every kind of failure, and how long people take. decide_s: to promote what lacks commits when nothing better
    can come back; force_s: the same while a member that has every commit may come back.
    """

    kinds: tuple[Failure, ...]
    decide_s: float = 1800.0
    force_s: float = 14400.0
    name: str = ""

    def believed(self, number: int, of: int, seed: Sequence[int]) -> "Failures":
        """One of so many draws of what is uncertain: rates from their ranges; every repair and people half to twice as
        long (95 %). A Latin hypercube (McKay, Beckman, Conover 1979): together the draws fill each range evenly.
        """
        *normal, people = (float(z) for z in _evenly(2 * len(self.kinds) + 1, of, seed)[:, number])
        kinds = tuple(
            kind.model_copy(
                update={"per_year": float(kind.rates_at(np.array(rate))), "repair_s": kind.repair_s * _longer(repair)}
            )
            for kind, rate, repair in zip(self.kinds, normal[::2], normal[1::2], strict=True)
        )
        return replace(
            self, kinds=kinds, decide_s=self.decide_s * _longer(people), force_s=self.force_s * _longer(people)
        )

    def rates(self, of: int, seed: Sequence[int]) -> NDArray[np.float64]:
        """So many draws of the rates, a year, by draw and kind: even as those of `believed`."""
        normal = _evenly(len(self.kinds), of, seed)
        return np.array([kind.rates_at(z) for kind, z in zip(self.kinds, normal, strict=True)]).T


def _evenly(unknown: int, of: int, seed: Sequence[int]) -> NDArray[np.float64]:
    """Standard normal numbers by what is unknown and draw: the draws of each fill its range evenly."""
    rng = np.random.default_rng(seed)
    place = rng.permuted(np.tile(np.arange(of), (unknown, 1)), axis=1)
    return np.asarray(ndtri((place + rng.random((unknown, of))) / of))


def _longer(normal: float) -> float:
    return float(TIMES_LONGER ** (normal / NORMAL_95))


class _People(_Strict):
    decide_s: float = Field(ge=0, le=YEAR_S)
    force_s: float = Field(ge=0, le=YEAR_S)
    source: str = Field(min_length=10)


class _File(_Strict):
    people: _People
    failure: tuple[Failure, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> "_File":
        names = [kind.name for kind in self.failure]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is there twice")
        return self


def failures_of(path: Path | None = None) -> Failures:
    """The file's failures, the shipped ones without a path; UsageError says what is wrong with it, in one sentence."""
    name, hint = str(path or DEFAULT.name), f"compare with {DEFAULT}"
    file = described(_File, read_toml(path or DEFAULT, name, hint), name, hint)
    return Failures(file.failure, file.people.decide_s, file.people.force_s, name)


def lognormal(mean: float, cv: float) -> tuple[float, float]:
    """mu and sigma of a lognormal distribution with that mean and coefficient of variation.

    >>> lognormal(1.0, 0.0)
    (0.0, 0.0)
    """
    sigma = math.sqrt(math.log1p(cv * cv))
    return math.log(mean) - sigma * sigma / 2, sigma
