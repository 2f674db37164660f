"""The search for break-even: the clients at which a level reaches 99 % of the baseline's peak throughput.

Throughput over clients rises to one flat top, so doubling finds the top's neighbourhood and bisection the
edge. A point reaches the goal when its whole interval does, is below when its whole interval is, and is undecided
otherwise; the error of 5 % is spent over all points and checks (Bonferroni), and what is found to reach the goal is
measured once more from nothing. `break_even_under` measures the points on a target, in pairs, and emits each as a step.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from walproof.estimating.intervals import as_ratio, t_interval
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Scenario
from walproof.model.units import counted
from walproof.pricing.results_and_gate import interval
from walproof.pricing.run import START_S, SearchRun

GOAL = 0.99
MOST_CLIENTS = 256
GAIN = 1.01
"""More clients count as better only when they bring more than this."""
CLOSE = 0.1
"""The edge is found when what is below the goal and what is not are this share apart."""
CHECKS = (8, 24, 72)
"""After how many pairs of a point its interval is checked; the peak, of which nothing is claimed, takes the first."""
POINTS = 5
"""About how many points a level is expected to take."""
MOST_POINTS = 10
"""Points a level takes at most, its confirmation included."""
ERROR = 0.05
"""Probability that anything a level's search claims is false, at most."""

CONFIDENCE = "95 % CI for all points at once"
RAN_OUT = "the budget ran out before the search ended; its steps are in the record, a larger --budget finishes it."


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """The throughput of `level` with `clients`, divided by that of the baseline with `against` clients, is wanted.

    fresh: measured once more, from nothing.
    """

    level: Level
    clients: int
    against: int
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The fewest clients known to reach the goal, None when none are; `below` is the most known not to reach it.

    undecided: numbers of clients that were tried and of which neither is known. most: the most tried. ratio is the one
    at `clients`, from its second measurement, or the best measured when the goal is not known to be reached.
    """

    level: Level
    clients: int | None
    below: int
    undecided: tuple[int, ...]
    most: int
    peak_clients: int
    ratio: Estimate
    best_clients: int


Measure = Callable[[TrialPoint], Estimate]
"""The ratio wanted, with its interval."""


class _RanOutError(Exception):
    """The budget ran out before the search ended."""


def find_peak(baseline: Level, measure: Measure, most: int = MOST_CLIENTS) -> int:
    """The clients at which the baseline's throughput peaks, by doubling and two refining steps."""
    best = tried = 1
    while tried * 2 <= most and tried * 2 <= best * 4:
        tried *= 2
        if measure(TrialPoint(baseline, tried, best)).value > GAIN:
            best = tried
    for clients in (round(best / 2**0.5), round(best * 2**0.5)):
        if clients != best and 1 <= clients <= most and measure(TrialPoint(baseline, clients, best)).value > GAIN:
            return clients
    return best


def find_break_even(level: Level, peak_clients: int, measure: Measure, most: int = MOST_CLIENTS) -> BreakEven:
    """The fewest clients with which `level` reaches GOAL of the baseline with peak_clients."""
    seen: dict[int, Estimate] = {}
    clients = min(peak_clients, most)
    while clients not in seen:
        seen[clients] = measure(TrialPoint(level, clients, peak_clients))
        if seen[clients].low < GOAL and not _falling(seen):
            clients = min(2 * clients, most)
    while len(seen) < MOST_POINTS - 1 and (middle := _between(seen)):
        seen[middle] = measure(TrialPoint(level, middle, peak_clients))
    reached = min((n for n in seen if seen[n].low >= GOAL), default=None)
    if reached is not None:
        seen[reached] = measure(TrialPoint(level, reached, peak_clients, fresh=True))
        if seen[reached].low < GOAL:
            reached = None
    below = [n for n in seen if seen[n].high < GOAL]
    undecided = sorted(n for n in seen if seen[n].low < GOAL <= seen[n].high)
    best = max(seen, key=lambda n: seen[n].value) if reached is None else reached
    return BreakEven(
        level,
        clients=reached,
        below=max(below, default=0),
        undecided=tuple(undecided),
        most=max(seen),
        peak_clients=peak_clients,
        ratio=seen[best],
        best_clients=best,
    )


def _between(seen: dict[int, Estimate]) -> int | None:
    """The next number of clients to try between the most that are below and the fewest that may not be.

    None when the two are close, or when that number was tried.
    """
    high = min((n for n in seen if seen[n].high >= GOAL), default=None)
    if high is None:
        return None
    low = max((n for n in seen if seen[n].high < GOAL and n < high), default=0)
    middle = min(high - 1, max(low + 1, round((max(low, 1) * high) ** 0.5)))
    return None if high - low <= max(1, CLOSE * high) or middle in seen else middle


def _falling(seen: dict[int, Estimate]) -> bool:
    """Whether the last two doublings each made it worse: the top lies behind, more clients will not help."""
    values = [seen[n].value for n in sorted(seen)]
    return len(values) >= 3 and values[-1] < values[-2] < values[-3]


def break_even_under(
    search: SearchRun, scenario: Scenario, base: Arm, most: int | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Break-even of every level but the baseline under one scenario, measured: JSON-ready objects, and conclusions.

    A level is undecided where the budget ran out first; the steps so far are emitted all the same.
    """
    baseline = search.question.baseline
    most = most or MOST_CLIENTS

    def measure(point: TrialPoint) -> Estimate:
        if search.over():
            raise _RanOutError
        expected = max(2, POINTS * left - len(tried))
        tried.append(point)
        return _measured(search, scenario, base, point, _most_pairs(search, expected if left else None))

    levels = dict.fromkeys(a.level for a in search.question.arms if a.level is not baseline and not a.mix)
    left, tried = 0, list[TrialPoint]()
    peak: int | None = None
    with suppress(_RanOutError):
        peak = find_peak(baseline, measure, most)
    left = len(levels)
    shown: list[dict[str, Any]] = []
    conclusions: list[str] = []
    where = f"{scenario.text}: " if len(search.question.scenarios) > 1 else ""
    for level in levels:
        tried.clear()
        break_even: BreakEven | None = None
        with suppress(_RanOutError):
            break_even = find_break_even(level, peak, measure, most) if peak else None
        shown.append({"scenario": scenario.text, "level": str(level), "peak_clients": peak, **_as_json(break_even)})
        conclusions.append(where + (_conclusion(break_even, baseline) if break_even else f"{level}: {RAN_OUT}"))
        left -= 1
    return shown, conclusions


def _measured(search: SearchRun, scenario: Scenario, base: Arm, point: TrialPoint, most: int) -> Estimate:
    """The ratio at one point: pairs until, at a check, its interval leaves out the goal, or `most` of them."""
    one = replace(base, level=point.level, clients=point.clients, label="tried again" if point.fresh else "tried")
    other = replace(base, level=search.question.baseline, clients=point.against, label="")
    doing = f"{point.level} with {counted(point.clients, 'client')} against {other.level} with {point.against}"
    logs: list[float] = []
    alpha = ERROR / MOST_POINTS / len(CHECKS)
    for tried in range(1, most + 1):
        measured = search.run_block(scenario, (one, other), doing)
        if measured:
            logs.append(float(np.log(measured[one].tps / measured[other].tps)))
        last = tried == most or search.over()
        if last or tried in CHECKS:
            ratio = as_ratio(t_interval(np.array(logs), alpha))
            if last or not ratio.covers(GOAL):
                break
    if not ratio.known:
        ratio = Estimate(ratio.value, 0.0, math.inf)
    verdict = "reaches" if ratio.low >= GOAL else "is below" if ratio.high < GOAL else "may or may not reach"
    conclusion = f"{verdict} {GOAL:.0%} of {other.level} with {counted(point.against, 'client')}"
    shown = {"level": str(point.level), "clients": point.clients, "against": point.against, "scenario": scenario.text}
    search.bench.step("break-even", {**shown, **({"again": True} if point.fresh else {})}, ratio, conclusion)
    return ratio


def _most_pairs(search: SearchRun, points: int | None) -> int:
    """Most pairs the next point may take so that so many fit what is left of the budget; the fewest for None."""
    if points is None:
        return CHECKS[0]
    pair_s = 2 * (search.question.sample_s + START_S)
    left_s = search.question.budget_s - search.elapsed()
    return max(CHECKS[0], min(CHECKS[-1], int(left_s / (points * pair_s))))


def _as_json(break_even: BreakEven | None) -> dict[str, Any]:
    """What is known of one level's break-even; "decided" is false when that is not all that was asked."""
    if break_even is None:
        return {"decided": False, "clients": None, "below": None, "undecided": [], "ratio": None, "best_clients": None}
    return {
        "decided": break_even.clients is not None or not break_even.undecided,
        "clients": break_even.clients,
        "below": break_even.below,
        "undecided": list(break_even.undecided),
        "ratio": interval(break_even.ratio),
        "best_clients": break_even.best_clients,
    }


def _conclusion(break_even: BreakEven, baseline: Level) -> str:
    ratio = f"ratio {break_even.ratio.value:.3f}, {CONFIDENCE} {break_even.ratio.low:.3f}–{break_even.ratio.high:.3f}"
    peak = f"{GOAL:.0%} of {baseline} with {counted(break_even.peak_clients, 'client')}, the best tried"
    below = f"{break_even.below} {'is' if break_even.below == 1 else 'are'} not enough" if break_even.below else ""
    numbers = ", ".join(map(str, break_even.undecided))
    if break_even.clients is not None:
        open_ones = f"{numbers} undecided" if numbers else ""
        more = "".join(f"; {part}" for part in (below, open_ones) if part)
        clients = counted(break_even.clients, "client")
        return f"{break_even.level} reaches {peak}, with {clients} ({ratio}, measured twice){more}."
    if not break_even.undecided:
        return (
            f"{break_even.level} does not reach {peak}, with up to {counted(break_even.most, 'client')}; "
            f"at best {ratio}, with {break_even.best_clients}."
        )
    known = f"; {below}" if below else ""
    return (
        f"Whether {break_even.level} reaches {peak}, is open with {numbers} clients: at best {ratio}, with "
        f"{break_even.best_clients}{known}. A larger --budget narrows it."
    )
