"""Prediction of throughput at points not measured: a closed queueing network fitted to measured points.

Stations: processors (several servers, slowed by contention), the WAL flush (one flush carries a group of commits, so
its rate grows with the queue), and a delay (remote flush and round trip, where no client queues). Solved by exact mean
value analysis: Reiser & Lavenberg (1980), Mean-value analysis of closed multichain queuing networks, J. ACM 27(2); its
load-dependent form as in Bolch et al. (2006), Queueing Networks and Markov Chains, 8.2.2. And what processors that all
share allow a ratio to be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from walproof.errors import UndecidedError
from walproof.estimating.ratios import Totals, ratio_interval
from walproof.model.estimate import Estimate
from walproof.model.event import Described, Event
from walproof.model.guarantee import Level
from walproof.model.sample import SampleResult, Scenario
from walproof.model.units import counted
from walproof.pricing.estimates import UNKNOWN, Pair, PriceTable, totals
from walproof.pricing.level_in_effect import round_trip
from walproof.pricing.results_and_gate import interval, number
from walproof.pricing.sampling import Bench

Numbers = NDArray[np.float64]

PRIOR = np.array([math.log(0.5), math.log(0.3), math.log(8.0), math.log(0.3), math.log(0.003), 0.0, math.log(0.1)])
"""Logarithms of: processor ms, flush ms, commits a flush, own delay ms, contention, round trips waited for, and what
carrying packets over a distance adds to the processors' work, as a share of it (a lab's link emulator shares them)."""
SPREAD = np.array([1.5, 1.5, 1.0, 1.5, 1.5, 0.15, 1.0])
"""How far from the prior a parameter may lie, standard deviations of its logarithm."""
NOISE = 0.04
"""Relative noise of a measured throughput the prior is weighed against."""
UNKNOWN_PROCESSORS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of processors tried where it is not known how many there are; the closest fit is taken."""
NEAR_MS = 0.5
"""Round trips below this are no distance: nothing is carried."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured point of one level: clients, round trip between members in ms, transactions per second.

    processors: how many the members share, 0 when that is not known.
    """

    level: Level
    clients: int
    rtt_ms: float
    tps: float
    processors: int = 0


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
    """A measured point that the fit was not shown, and its prediction; error is a share of the measured."""

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
    rates = np.zeros((networks, clients))
    paces = np.stack(paces_ms)  # stations, networks, clients
    weights = np.arange(1, clients + 1, dtype=np.float64) * paces
    held = np.zeros((len(paces_ms), networks, clients + 1))
    held[:, :, 0] = 1.0
    for n in range(1, clients + 1):
        residence = sum((held[:, :, :n] * weights[:, :, :n]).sum(axis=2), delays_ms)
        rates[:, n - 1] = n / residence
        busy = rates[:, n - 1, None] * paces[:, :, :n] * held[:, :, :n]
        held[:, :, 1 : n + 1] = busy
        # The empty probability is a small difference of large numbers at saturation: clipped, then renormalised.
        held[:, :, 0] = np.maximum(0.0, 1.0 - busy.sum(axis=2))
        held[:, :, : n + 1] /= held[:, :, : n + 1].sum(axis=2, keepdims=True)
    return rates * 1000


def throughputs(parameters: Numbers, level: Level, conditions: Sequence[tuple[int, float]], processors: int) -> Numbers:
    """Transactions per second at each condition (clients, round trip in ms), shape (variants, conditions).

    parameters: logarithms in the order of PRIOR, shape (variants, 7); all variants are solved in one recursion.
    """
    work, flush, together, own_delay, contention, trips, carrying = np.exp(parameters).T[:, :, None]
    rtts, where = np.unique([rtt for _, rtt in conditions], return_inverse=True)
    clients = np.array([n for n, _ in conditions])
    present = np.arange(1, clients.max() + 1, dtype=np.float64)[None, :]
    processing = work * (1 + contention * np.maximum(0.0, present - processors)) / np.minimum(present, processors)
    # A client that comes while a flush runs waits for the next, which then carries about half of those present.
    flushing = flush / np.clip(present / 2, 1.0, np.maximum(1.0, together))
    delays = own_delay + (trips * rtts[None, :] if level.remote else 0.0 * rtts[None, :])
    repeated = [np.repeat(pace, len(rtts), axis=0) for pace in (processing, flushing)]
    repeated[0] *= (1 + carrying * (rtts > NEAR_MS)[None, :]).reshape(-1, 1)
    solved = solve(repeated, delays.ravel()).reshape(len(parameters), len(rtts), -1)
    return np.asarray(solved[:, where, clients - 1], dtype=np.float64)


def free(points: Sequence[Point]) -> int:
    """How many parameters of the network these points can tell apart: those of distance only where there is any.

    >>> free([Point(Level.LOCAL, 1, 0.0, 1.0)]), free([Point(Level.ON, 1, 0.0, 1.0), Point(Level.ON, 1, 9.0, 1.0)])
    (5, 7)
    """
    far = any(p.rtt_ms > NEAR_MS for p in points)
    return len(PRIOR) - (not points[0].level.remote) - (not far)


def fit(points: Sequence[Point]) -> Model:
    """The network of one level closest to its points: least squares on log throughput and a weak prior.

    UndecidedError with fewer points than parameters.
    """
    if not points or len(points) < free(points):
        raise UndecidedError(
            f"{counted(len(points), 'measured point')} cannot fit {free(points) if points else len(PRIOR)} parameters",
            "measure more --clients and --rtt",
        )
    known = points[0].processors
    fits = [_fit(points, count) for count in ((known,) if known else UNKNOWN_PROCESSORS)]
    return min(fits, key=lambda fitted: fitted[0])[1]


def _fit(points: Sequence[Point], processors: int) -> tuple[float, Model]:
    """What is left of the squares, and the network, with that many processors."""
    level = points[0].level
    logs = np.log([p.tps for p in points])
    conditions = [(p.clients, p.rtt_ms) for p in points]

    from scipy import optimize  # where it is needed: importing it takes long

    def residuals(parameters: Numbers) -> Numbers:
        fitted = throughputs(parameters[None, :], level, conditions, processors)[0]
        return np.concatenate([(np.log(fitted) - logs) / NOISE, (parameters - PRIOR) / SPREAD])

    def slopes(parameters: Numbers) -> Numbers:
        return np.vstack([_slopes(parameters, level, conditions, processors) / NOISE, np.diag(1 / SPREAD)])

    starts = [PRIOR, PRIOR + np.array([0.7, -1, 0.5, -1, 0, 0, 0]), PRIOR + np.array([-0.5, 1, -0.5, 1, 1, 0, 0])]
    optima = [optimize.least_squares(residuals, start, jac=slopes, max_nfev=60, ftol=1e-6) for start in starts]
    best = min(optima, key=lambda one: float(one.cost))
    misfit = float(np.sqrt(np.mean((best.fun[: len(points)] * NOISE) ** 2)))
    freed = math.sqrt(len(points) / max(1, len(points) - free(points)))
    noise = max(0.01, misfit * freed)
    covariance = np.linalg.inv(best.jac.T @ best.jac) * max(1.0, (noise / NOISE) ** 2)
    rows = tuple(tuple(map(float, row)) for row in covariance)
    return float(best.cost), Model(level, processors, tuple(map(float, best.x)), rows, noise, len(points))


def _slopes(parameters: Numbers, level: Level, conditions: Sequence[tuple[int, float]], processors: int) -> Numbers:
    """How log throughput under each condition changes with each parameter, shape (conditions, 7)."""
    step = 1e-4
    variants = np.vstack([parameters, parameters + step * np.eye(len(parameters))])
    logs = np.log(throughputs(variants, level, conditions, processors))
    return np.asarray((logs[1:] - logs[0]).T / step, dtype=np.float64)


def predict(model: Model, clients: int, rtt_ms: float) -> Estimate:
    """Transactions per second at a point, with a 95 % prediction interval (delta method, residual noise added)."""
    parameters, condition = np.array(model.parameters), [(clients, rtt_ms)]
    middle = float(throughputs(parameters[None, :], model.level, condition, model.processors)[0, 0])
    gradient = _slopes(parameters, model.level, condition, model.processors)[0]
    variance = float(gradient @ np.array(model.covariance) @ gradient) + model.noise**2
    half = float(special.stdtrit(max(2, model.points - 4), 0.975)) * math.sqrt(variance)
    return Estimate(middle, middle * math.exp(-half), middle * math.exp(half))


def held_out(points: Sequence[Point], folds: int = 4, seed: int = 1) -> tuple[Miss, ...]:
    """Each point of each level predicted from a fit to the other folds; points are dealt to folds at random."""
    misses: list[Miss] = []
    for level in dict.fromkeys(p.level for p in points):
        of_level = [p for p in points if p.level is level]
        order = np.random.default_rng(seed).permutation(len(of_level))
        for fold in range(folds):
            hidden = [of_level[i] for i in order[fold::folds]]
            shown = [p for p in of_level if p not in hidden]
            if hidden and shown and len(shown) >= free(shown):
                misses += missed(shown, hidden)
    return tuple(misses)


def missed(shown: Sequence[Point], hidden: Sequence[Point]) -> list[Miss]:
    model = fit(shown)
    predicted = [(p, predict(model, p.clients, p.rtt_ms)) for p in hidden]
    return [Miss(p, e, abs(e.value / p.tps - 1)) for p, e in predicted]


def median_error(misses: Sequence[Miss]) -> float:
    """The median error as a share; not a number when nothing was held out."""
    return median(m.error for m in misses) if misses else math.nan


def points_of(table: PriceTable, events: Sequence[Event]) -> dict[Scenario, list[Point]]:
    """Closed-loop points by scenario without its round trip; the round trip is the measured one where there is one."""
    points: dict[Scenario, list[Point]] = {}
    for price in table.arms:
        if price.arm.rate is None and not price.arm.mix and not price.arm.label and price.tps.value > 0:
            measured = round_trip(events, price.scenario)
            rtt_ms = measured.value if measured else price.scenario.rtt_ms or 0.0
            outer = replace(price.scenario, rtt_ms=None)
            processors = processors_of(events, outer)
            point = Point(price.arm.level, price.arm.clients, rtt_ms, price.tps.value, processors)
            points.setdefault(outer, []).append(point)
    return points


def processors_of(events: Sequence[Event], scenario: Scenario) -> int:
    """How many processors the members have: the scenario's, else all of the machine they share; 0 when not known."""
    if scenario.cores is not None:
        return max(1, round(scenario.cores))
    described = [e.description for e in events if isinstance(e, Described)]
    return described[-1].processors if described else 0


def predictions(
    by_scenario: dict[Scenario, list[Point]], wanted: Sequence[tuple[int, float | None]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every level's throughput at the wanted clients and round trips: JSON-ready objects, and conclusions.

    A round trip of None is the smallest measured; of a level with too few points only a conclusion says so.
    """
    shown: list[dict[str, Any]] = []
    conclusions: list[str] = []
    for scenario, points in by_scenario.items():
        for level in dict.fromkeys(p.level for p in points):
            of_level = [p for p in points if p.level is level]
            try:
                model = fit(of_level)
            except UndecidedError as error:
                conclusions.append(f"No prediction of {level}: {error.message}; {error.hint}.")
                continue
            for clients, asked_ms in wanted:
                rtt_ms = min(p.rtt_ms for p in of_level) if asked_ms is None else asked_ms
                tps = predict(model, clients, rtt_ms)
                where = {"scenario": scenario.text, "level": str(level), "clients": clients, "rtt_ms": rtt_ms}
                shown.append({**where, "tps": interval(tps)})
                conclusions.append(
                    f"Predicted: {level} with {counted(clients, 'client')} at a round trip of {rtt_ms:.3g} ms: "
                    f"{tps.value:.0f} tps, 95 % interval {tps.low:.0f}–{tps.high:.0f}."
                )
    return shown, conclusions


def hold_out(by_scenario: dict[Scenario, list[Point]]) -> tuple[dict[str, Any], list[str]]:
    """The prediction's error on points it was not shown: a JSON-ready object, and the conclusion if there is one."""
    misses = [miss for points in by_scenario.values() for miss in held_out(points)]
    if not misses:
        none = "No point could be held out: three quarters of a level's points are too few; measure more --clients."
        return {"median_error": None, "misses": []}, [none]
    error = median_error(misses)
    inside = sum(m.predicted.covers(m.point.tps) for m in misses)
    conclusion = (
        f"On {counted(len(misses), 'point')} it was not shown, the prediction is off by {error:.1%} in the median; "
        f"{inside} of {len(misses)} within their interval."
    )
    shown = {"median_error": number(error), "misses": [_miss_as_json(m) for m in misses]}
    return shown, [conclusion]


def _miss_as_json(miss: Miss) -> dict[str, Any]:
    return {
        "level": str(miss.point.level),
        "clients": miss.point.clients,
        "rtt_ms": number(miss.point.rtt_ms),
        "measured_tps": number(miss.point.tps),
        "predicted_tps": interval(miss.predicted),
        "error": number(miss.error),
    }


def emit_predictions(bench: Bench, parts: dict[str, Any]) -> None:
    """Emit predictions and held-out points as steps, so that a report need not fit again what took seconds."""
    misses = parts.get("hold_out", {}).get("misses", [])
    made = [("hold-out", miss, miss["predicted_tps"], f"off by {miss['error']:.1%}") for miss in misses]
    made += [("prediction", one, one["tps"], "predicted, not measured") for one in parts.get("prediction", [])]
    for search, one, tps, conclusion in made:
        tried = {k: one[k] for k in ("scenario", "level", "clients", "rtt_ms", "measured_tps") if k in one}
        bench.step(search, tried, Estimate(**tps), conclusion)


def processors_busy(result: SampleResult) -> float:
    """The share of all processors in use during the sample, without what others took."""
    return max(0.0, result.window.machine_busy - result.window.stolen)


def _shared(result: SampleResult) -> bool:
    members = result.window.members.values()
    return result.sample.scenario.cores is None and any(m.cpu_cores is not None for m in members)


def _busy_per_transaction(results: Sequence[SampleResult]) -> Totals:
    """Processor time of each sample (share of all there are, times seconds), transactions."""
    return Totals(np.array([processors_busy(r) * r.seconds for r in results]), totals(results).counts)


def processor_bound(pairs: Sequence[Pair]) -> Estimate:
    """The largest ratio that processors shared by all members and clients allow, from pairs (level, baseline).

    Processors that are all busy do as many transactions a second as their time a transaction allows, so the ratio is at
    most the baseline's processor time per transaction divided by the level's (the utilisation law, Denning & Buzen
    1978). Without a bound where members' processors are not known (they are elsewhere) or limited one by one.
    """
    known = [p for p in pairs if all(_shared(r) and r.transactions for r in p)]
    if len(known) < 2 or len(known) < len(pairs):
        return UNKNOWN
    level, baseline = (_busy_per_transaction([pair[i] for pair in known]) for i in (0, 1))
    return ratio_interval(baseline, level)
