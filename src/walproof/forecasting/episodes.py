"""Failures on a time axis, and the episodes they make: from all members well to all members well again. Seeded."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from walproof.forecasting.failure_rates import YEAR_S, Failures, lognormal
from walproof.forecasting.topology import Cause

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Faults:
    """Failures in order of episode and time: when, until when the members are back, which cause, of which episode."""

    at: Floats
    until: Floats
    cause: Ints
    episode: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Beginnings and ends of failures, by episode and time. Masks are those after it; `hit`: members it falls on, 0 at
    an end. `fault`: index among the faults.
    """

    at: Floats
    up: Ints
    voters: Ints
    hit: Ints
    fault: Ints
    begins: NDArray[np.bool_]
    first: Ints
    """Where each episode begins."""
    count: Ints
    """How many an episode has."""


def draw(causes: Sequence[Cause], failures: Failures, years: float, seed: Sequence[int]) -> Faults:
    """Every failure of that many years: Poisson, each cause with random numbers of its own, so that another cause, or a
    longer repair, changes nothing else.
    """
    span = years * YEAR_S
    at, until, which = [], [], []
    for number, cause in enumerate(causes):
        rng = np.random.default_rng([*seed, crc32(cause.name.encode())])
        count = rng.poisson(cause.per_year * years)
        begin = rng.random(count) * span
        at.append(begin)
        until.append(begin + repairs(failures, cause.kind, rng.standard_normal(count)))
        which.append(np.full(count, number, dtype=np.int64))
    begins, ends = np.concatenate([*at, np.empty(0)]), np.concatenate([*until, np.empty(0)])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    cause_of = np.concatenate([*which, np.empty(0, dtype=np.int64)])[order]
    return Faults(begins, ends, cause_of, episodes(begins, ends))


def repairs(failures: Failures, kind: int, normal: Floats) -> Floats:
    """Repair times, s, of one kind from standard normal numbers: proportional to the mean, and never negative."""
    failure = failures.kinds[kind]
    if failure.exponential:
        return np.asarray(-failure.repair_s * log_ndtr(-normal))
    mu, sigma = lognormal(failure.repair_s, failure.repair_cv)
    return np.exp(mu + sigma * normal)


def episodes(at: Floats, until: Floats) -> Ints:
    """Which episode each failure belongs to: one that begins before all earlier ones are repaired joins them.

    >>> [int(e) for e in episodes(np.array([0.0, 5.0, 20.0]), np.array([10.0, 6.0, 21.0]))]
    [0, 0, 1]
    """
    if not len(at):
        return np.empty(0, dtype=np.int64)
    latest = np.maximum.accumulate(until)
    new = np.concatenate([[False], at[1:] > latest[:-1]])
    return np.cumsum(new)


def changes(faults: Faults, causes: Sequence[Cause], members: int, voters: int) -> Changes:
    """Beginnings and ends in order, and who is up after each."""
    n = len(faults.at)
    at = np.concatenate([faults.at, faults.until])
    fault = np.concatenate([np.arange(n), np.arange(n)])
    episode = np.concatenate([faults.episode, faults.episode])
    order = np.lexsort((at, episode))
    fault, begins = fault[order], order < n
    sign = np.where(begins, 1, -1)
    cause = faults.cause[fault]
    of_members = np.array([c.members for c in causes], dtype=np.int64)
    of_voters = np.array([c.voters for c in causes], dtype=np.int64)
    hit = of_members[cause]
    ordered = episode[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if n else np.empty(0, dtype=np.int64)
    return Changes(
        at=at[order],
        up=_up(hit, sign, members),
        voters=_up(of_voters[cause], sign, voters),
        hit=np.where(begins, hit, 0),
        fault=fault,
        begins=begins,
        first=first,
        count=np.diff(np.append(first, 2 * n)),
    )


def _up(masks: Ints, sign: Ints, bits: int) -> Ints:
    """Members without a failure after each change; every episode ends with none down: one running sum serves all."""
    up = np.zeros(len(masks), dtype=np.int64)
    for bit in range(bits):
        down = np.cumsum(((masks >> bit) & 1) * sign)
        up |= np.where(down == 0, 1 << bit, 0)
    return up
