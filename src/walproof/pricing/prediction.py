"""Throughput where nobody measured: a closed queueing network fitted to measured points. Numbers in, numbers out.

Stations: processors (several servers, slowed by contention), the WAL flush (one flush carries a group of commits, so
its rate grows with the queue), and a delay (remote flush and round trip, where nobody queues). Solved by exact mean
value analysis: Reiser & Lavenberg (1980), Mean-value analysis of closed multichain queuing networks, J. ACM 27(2); its
load-dependent form as in Bolch et al. (2006), Queueing Networks and Markov Chains, 8.2.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from walproof.errors import UndecidedError
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level

Numbers = NDArray[np.float64]

PRIOR = np.array([math.log(0.5), math.log(0.3), math.log(8.0), math.log(0.3), math.log(0.003), 0.0, math.log(0.1)])
"""Logarithms of: processor ms, flush ms, commits a flush, own delay ms, contention, round trips waited for, and what
carrying packets over a distance adds to the processors' work, as a share of it (on a lab the wire shares them)."""
SPREAD = np.array([1.5, 1.5, 1.0, 1.5, 1.5, 0.15, 1.0])
"""How far from the prior a parameter may wander, standard deviations of its logarithm."""
NOISE = 0.04
"""Relative noise of a measured throughput the prior is weighed against."""
FEWEST_POINTS = 4
NEAR_MS = 0.5
"""Round trips below this are no distance: nothing is carried."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured point of one level: clients, round trip between members in ms, transactions per second."""

    level: Level
    clients: int
    rtt_ms: float
    tps: float


@dataclass(frozen=True, slots=True)
class Model:
    """A fitted network of one level: parameters as logarithms, their covariance, residual noise (log), points used."""

    level: Level
    processors: int
    parameters: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    points: int


@dataclass(frozen=True, slots=True)
class Miss:
    """A prediction beside a measured point that the fit was not shown; error is a share of the measured."""

    point: Point
    predicted: Estimate
    error: float


def solve(paces_ms: Sequence[Numbers], delays_ms: Numbers) -> Numbers:
    """Transactions per second of closed networks by exact MVA, shape (networks, clients): for 1 to as many clients.

    paces_ms[i][k, j-1]: time station i of network k takes a transaction with j present, shape (networks, clients).

    >>> solve([np.full((2, 2), 0.5)], np.array([0.5, 0.0])).round().tolist()
    [[1000.0, 1600.0], [2000.0, 2000.0]]
    """
    networks, clients = paces_ms[0].shape
    found = np.zeros((networks, clients))
    held = [np.zeros((networks, clients + 1)) for _ in paces_ms]
    for station in held:
        station[:, 0] = 1.0
    weights = [np.arange(1, clients + 1, dtype=np.float64) * pace for pace in paces_ms]
    for n in range(1, clients + 1):
        residence = sum(((h[:, :n] * w[:, :n]).sum(axis=1) for h, w in zip(held, weights, strict=True)), delays_ms)
        found[:, n - 1] = n / residence
        for station, pace in zip(held, paces_ms, strict=True):
            busy = found[:, n - 1, None] * pace[:, :n] * station[:, :n]
            station[:, 1 : n + 1] = busy
            # The empty probability is a small difference of large numbers at saturation: clipped, then renormalised.
            station[:, 0] = np.maximum(0.0, 1.0 - busy.sum(axis=1))
            station[:, : n + 1] /= station[:, : n + 1].sum(axis=1, keepdims=True)
    return found * 1000


def throughputs(parameters: Numbers, level: Level, places: Sequence[tuple[int, float]], processors: int) -> Numbers:
    """Transactions per second at each (clients, round trip in ms), shape (variants, places).

    parameters: logarithms in the order of PRIOR, shape (variants, 7); all variants are solved in one recursion.
    """
    work, flush, together, own_delay, contention, trips, carrying = np.exp(parameters).T[:, :, None]
    rtts, where = np.unique([rtt for _, rtt in places], return_inverse=True)
    clients = np.array([n for n, _ in places])
    present = np.arange(1, clients.max() + 1, dtype=np.float64)[None, :]
    processing = work * (1 + contention * np.maximum(0.0, present - processors)) / np.minimum(present, processors)
    # Whoever comes while a flush runs waits for the next, which then carries about half of those present.
    flushing = flush / np.clip(present / 2, 1.0, np.maximum(1.0, together))
    delays = own_delay + (trips * rtts[None, :] if level.remote else 0.0 * rtts[None, :])
    repeated = [np.repeat(pace, len(rtts), axis=0) for pace in (processing, flushing)]
    repeated[0] *= (1 + carrying * (rtts > NEAR_MS)[None, :]).reshape(-1, 1)
    whole = solve(repeated, delays.ravel()).reshape(len(parameters), len(rtts), -1)
    return np.asarray(whole[:, where, clients - 1], dtype=np.float64)


def fit(points: Sequence[Point], processors: int = 2) -> Model:
    """The network of one level closest to its points: least squares on log throughput and a weak prior."""
    if len(points) < FEWEST_POINTS:
        raise UndecidedError(
            f"{len(points)} measured points are too few to fit {len(PRIOR)} parameters",
            "measure more --clients and --rtt, at least four points a level",
        )
    level = points[0].level
    logs = np.log([p.tps for p in points])
    places = [(p.clients, p.rtt_ms) for p in points]

    def residuals(parameters: Numbers) -> Numbers:
        said = throughputs(parameters[None, :], level, places, processors)[0]
        return np.concatenate([(np.log(said) - logs) / NOISE, (parameters - PRIOR) / SPREAD])

    def slopes(parameters: Numbers) -> Numbers:
        return np.vstack([_slopes(parameters, level, places, processors) / NOISE, np.diag(1 / SPREAD)])

    starts = [PRIOR, PRIOR + np.array([0.7, -1, 0.5, -1, 0, 0, 0]), PRIOR + np.array([-0.5, 1, -0.5, 1, 1, 0, 0])]
    found = [optimize.least_squares(residuals, start, jac=slopes, max_nfev=60, ftol=1e-6) for start in starts]
    best = min(found, key=lambda one: float(one.cost))
    misfit = float(np.sqrt(np.mean((best.fun[: len(points)] * NOISE) ** 2)))
    freed = math.sqrt(len(points) / max(1, len(points) - 4))
    noise = max(0.01, misfit * freed)
    covariance = np.linalg.inv(best.jac.T @ best.jac) * max(1.0, (noise / NOISE) ** 2)
    return Model(
        level,
        processors,
        tuple(map(float, best.x)),
        tuple(tuple(map(float, row)) for row in covariance),
        noise,
        len(points),
    )


def _slopes(parameters: Numbers, level: Level, places: Sequence[tuple[int, float]], processors: int) -> Numbers:
    """How log throughput at each place changes with each parameter, shape (places, 7)."""
    step = 1e-4
    variants = np.vstack([parameters, parameters + step * np.eye(len(parameters))])
    logs = np.log(throughputs(variants, level, places, processors))
    return np.asarray((logs[1:] - logs[0]).T / step, dtype=np.float64)


def predict(model: Model, clients: int, rtt_ms: float) -> Estimate:
    """Transactions per second at a point, with a 95 % prediction interval (delta method, residual noise added)."""
    parameters, place = np.array(model.parameters), [(clients, rtt_ms)]
    middle = float(throughputs(parameters[None, :], model.level, place, model.processors)[0, 0])
    gradient = _slopes(parameters, model.level, place, model.processors)[0]
    variance = float(gradient @ np.array(model.covariance) @ gradient) + model.noise**2
    half = float(stats.t.ppf(0.975, max(2, model.points - 4))) * math.sqrt(variance)
    return Estimate(middle, middle * math.exp(-half), middle * math.exp(half))


def held_out(points: Sequence[Point], processors: int = 2, folds: int = 4, seed: int = 1) -> tuple[Miss, ...]:
    """Each point of each level predicted from a fit to the other folds; points are dealt to folds at random."""
    misses: list[Miss] = []
    for level in dict.fromkeys(p.level for p in points):
        mine = [p for p in points if p.level is level]
        order = np.random.default_rng(seed).permutation(len(mine))
        for fold in range(folds):
            hidden = [mine[i] for i in order[fold::folds]]
            shown = [p for p in mine if p not in hidden]
            if hidden and len(shown) >= FEWEST_POINTS:
                misses += missed(shown, hidden, processors)
    return tuple(misses)


def missed(shown: Sequence[Point], hidden: Sequence[Point], processors: int = 2) -> list[Miss]:
    """Hidden points of one level as predicted from the shown ones."""
    model = fit(shown, processors)
    said = [(p, predict(model, p.clients, p.rtt_ms)) for p in hidden]
    return [Miss(p, e, abs(e.value / p.tps - 1)) for p, e in said]


def median_error(misses: Sequence[Miss]) -> float:
    """The median error as a share; not a number when nothing was held out."""
    return median(m.error for m in misses) if misses else math.nan
