"""How long one failure stops service here: resampled from drills, or assumed of whoever fails over. Seeded."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from walproof.forecasting.episodes import Floats
from walproof.forecasting.failures import Failure, Failures
from walproof.forecasting.measured import FEW, Measured, Takeover
from walproof.forecasting.topology import Configuration, Topology
from walproof.model.cloudnative_pg import CUT_S, DELETED_S, KILLED_S, MANAGER

PROMOTION_S = 2.0
WAL_SENDER_TIMEOUT_S = 60.0
FEW_SIGMA = 0.3
"""Spread (of the logarithm) given to outages of fewer than three drills."""


class Basis(StrEnum):
    """What an outage rests on."""

    DRILLED = "drilled"
    GUARDED = "drilled with a guard"
    GUARD_ASSUMED = "assumed, with a guard"
    ASSUMED = "never drilled: assumed"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Patroni's ttl and loop_wait, s. None: as they were while drilled; 30 and 10 where nothing was."""

    ttl_s: float | None = None
    loop_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a forecast rests on."""

    where: Topology
    what: Configuration
    failures: Failures
    measured: Measured
    timeouts: Timeouts = Timeouts()

    @property
    def loop_wait_s(self) -> float:
        """As asked, else Patroni's default."""
        return 10.0 if self.timeouts.loop_wait_s is None else self.timeouts.loop_wait_s

    def takeover(self, failure: Failure) -> Takeover:
        """What was drilled of that failure; of drills with a guard where there is one and they show that failure."""
        seen = self._guarded(failure)
        return seen if seen.outages_s else self.measured.takeovers.get(failure.name, Takeover())

    def basis(self, failure: Failure) -> Basis:
        """What the outage after that failure of the leader rests on."""
        if self._guards(failure):
            if self._guarded(failure).outages_s:
                return Basis.GUARDED
            if self.what.takeover_s is not None:
                return Basis.GUARD_ASSUMED
        return Basis.DRILLED if self.takeover(failure).outages_s else Basis.ASSUMED

    def _guards(self, failure: Failure) -> bool:
        return self.what.guarded and not failure.planned

    def _guarded(self, failure: Failure) -> Takeover:
        found = self.measured.guarded if self._guards(failure) else None
        return Takeover() if found is None else found.takeovers.get(failure.name, Takeover())


def takeovers(model: Model, failure: Failure, count: int, rng: np.random.Generator) -> Floats:
    """So many outages, s: drawn from a bootstrap of the drills, so that few drills give an uncertain mean."""
    basis = model.basis(failure)
    if basis is Basis.GUARD_ASSUMED and model.what.takeover_s is not None:
        return rng.uniform(*model.what.takeover_s, count)
    if basis is Basis.ASSUMED:
        return rng.uniform(*assumed_takeover(model, failure), count)
    drilled = model.takeover(failure)
    seen = np.asarray(drilled.outages_s)
    again = seen[rng.integers(len(seen), size=len(seen))]
    if len(seen) < FEW:
        again = again * np.exp(FEW_SIGMA * rng.standard_normal() - FEW_SIGMA**2 / 2)
    drawn = again[rng.integers(len(again), size=count)]
    by_ttl = failure.silent and basis is Basis.DRILLED
    if by_ttl and model.timeouts.ttl_s is not None and drilled.ttl_s is not None:
        drawn = np.maximum(drawn + model.timeouts.ttl_s - drilled.ttl_s, PROMOTION_S)
    return drawn


def assumed_takeover(model: Model, failure: Failure) -> tuple[float, float]:
    """Shortest and longest outage where nothing was drilled, s. Patroni: the leader's lease ends between ttl -
    loop_wait and ttl after it was last renewed, one loop of a standby notices, and it is promoted. CloudNativePG: what
    a real cluster took.
    """
    orderly = failure.planned or not failure.silent
    if model.measured.manager == MANAGER:
        return (PROMOTION_S, KILLED_S) if orderly else (DELETED_S, CUT_S)
    ttl = 30.0 if model.timeouts.ttl_s is None else model.timeouts.ttl_s
    if orderly:
        return PROMOTION_S, PROMOTION_S + model.loop_wait_s
    return max(0.0, ttl - model.loop_wait_s) + PROMOTION_S, ttl + model.loop_wait_s + PROMOTION_S


def assumption(model: Model) -> str:
    """What outages that were never drilled are assumed from."""
    return "another CloudNativePG cluster" if model.measured.manager == MANAGER else "Patroni's timeouts"


def stalls(model: Model, failure: Failure, count: int, rng: np.random.Generator) -> Floats:
    """So many waits of commits, s, for a standby that failed: as drilled, else until the manager stops naming it."""
    measured = model.measured
    drilled = measured.takeovers.get(failure.name, Takeover()).stalls_s
    if not drilled and measured.guarded:
        drilled = measured.guarded.takeovers[failure.name].stalls_s
    if drilled:
        return rng.choice(np.asarray(drilled), size=count)
    least = WAL_SENDER_TIMEOUT_S if failure.silent else 0.0
    return rng.uniform(least, least + model.loop_wait_s, count)
