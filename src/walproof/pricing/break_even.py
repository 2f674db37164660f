"""The search for break-even: the clients at which a level reaches 99 % of the baseline's peak throughput.

The searches are generators: they yield the point they want measured, are sent its ratio with interval, and return what
they found. Throughput over clients rises to one flat top, so doubling finds the top's neighbourhood and bisection the
edge. `break_even_under` measures the points on a target, in pairs, and emits each as a step.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from walproof.estimating.intervals import anytime_interval, as_ratio
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.model.plan import Arm, Scenario
from walproof.model.units import counted
from walproof.pricing.as_json import interval
from walproof.pricing.run import START_S, SearchRun

GOAL = 0.99
MOST_CLIENTS = 256
GAIN = 1.01
"""More clients count as better only when they bring more than this."""
CLOSE = 0.1
"""The edge is found when what reaches the goal and what does not are this share apart."""
PAIRS = (4, 10)
"""Fewest and most pairs spent on one point."""
POINTS = 8
"""About how many points a level is expected to take."""

RAN_OUT = "the budget ran out before the search ended; its steps are in the record, a larger --budget finishes it."

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """The throughput of `level` with `clients`, divided by that of the baseline with `against` clients, is wanted."""

    level: Level
    clients: int
    against: int


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The fewest clients that reach the goal, None when none up to the most tried do; `below` is known not to reach it.

    ratio is the one at `clients`, or the best measured when the goal is out of reach.
    """

    level: Level
    clients: int | None
    below: int
    peak_clients: int
    ratio: Estimate
    best_clients: int


def find_peak(baseline: Level, most: int = MOST_CLIENTS) -> Generator[TrialPoint, Estimate, int]:
    """The clients at which the baseline's throughput peaks, by doubling and two refining steps."""
    best = tried = 1
    while tried * 2 <= most and tried * 2 <= best * 4:
        tried *= 2
        ratio = yield TrialPoint(baseline, tried, best)
        if ratio.value > GAIN:
            best = tried
    for clients in (round(best / 2**0.5), round(best * 2**0.5)):
        if clients != best and 1 <= clients <= most:
            ratio = yield TrialPoint(baseline, clients, best)
            if ratio.value > GAIN:
                return clients
    return best


def find_break_even(
    level: Level, peak_clients: int, most: int = MOST_CLIENTS, goal: float = GOAL
) -> Generator[TrialPoint, Estimate, BreakEven]:
    """The fewest clients with which `level` reaches `goal` of the baseline's peak."""
    seen: dict[int, Estimate] = {}
    below, reached = 0, 0
    clients = peak_clients
    while not reached:
        seen[clients] = yield TrialPoint(level, clients, peak_clients)
        if seen[clients].value >= goal:
            reached = clients
        elif clients >= most or _falling(seen):
            best = max(seen, key=lambda n: seen[n].value)
            return BreakEven(level, None, max(seen), peak_clients, seen[best], best)
        else:
            below, clients = clients, min(2 * clients, most)
    while reached - below > max(1, CLOSE * reached):
        middle = min(reached - 1, max(below + 1, round((max(below, 1) * reached) ** 0.5)))
        if middle in seen:
            break
        seen[middle] = yield TrialPoint(level, middle, peak_clients)
        if seen[middle].value >= goal:
            reached = middle
        else:
            below = middle
    return BreakEven(level, reached, below, peak_clients, seen[reached], reached)


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
        return _measured(search, scenario, base, point)

    levels = dict.fromkeys(a.level for a in search.question.arms if a.level is not baseline and not a.mix)
    peak = _driven(find_peak(baseline, most), measure, search)
    shown: list[dict[str, Any]] = []
    conclusions: list[str] = []
    where = f"{scenario.text}: " if len(search.question.scenarios) > 1 else ""
    for level in levels:
        found = None if peak is None else _driven(find_break_even(level, peak, most), measure, search)
        shown.append({"scenario": scenario.text, "level": str(level), "peak_clients": peak, **_as_json(found)})
        conclusions.append(where + (_conclusion(found, baseline) if found else f"{level}: {RAN_OUT}"))
    return shown, conclusions


def _driven(
    generator: Generator[TrialPoint, Estimate, Result], measure: Callable[[TrialPoint], Estimate], search: SearchRun
) -> Result | None:
    """What the generator found; None when the budget ran out first."""
    try:
        point = next(generator)
        while not search.over():
            point = generator.send(measure(point))
    except StopIteration as end:
        found: Result = end.value
        return found
    return None


def _measured(search: SearchRun, scenario: Scenario, base: Arm, point: TrialPoint) -> Estimate:
    """The ratio at one point: pairs until its anytime interval leaves out the goal, is narrow, or pairs run out."""
    one = replace(base, level=point.level, clients=point.clients, label="tried")
    other = replace(base, level=search.question.baseline, clients=point.against, label="")
    doing = f"{point.level} with {counted(point.clients, 'client')} against {other.level} with {point.against}"
    logs: list[float] = []
    for _ in range(_most_pairs(search)):
        measured = search.run_block(scenario, (one, other), doing)
        if measured:
            logs.append(float(np.log(measured[one].tps / measured[other].tps)))
        ratio = as_ratio(anytime_interval(np.array(logs)))
        enough = len(logs) >= PAIRS[0]
        if enough and (not ratio.covers(GOAL) or ratio.half_width <= 0.01 or search.over()):
            break
    reaches = "reaches" if ratio.value >= GOAL else "is below"
    conclusion = f"{reaches} {GOAL:.0%} of {other.level} with {counted(point.against, 'client')}"
    tried = {"level": str(point.level), "clients": point.clients, "against": point.against, "scenario": scenario.text}
    search.bench.step("break-even", tried, ratio, conclusion)
    return ratio


def _most_pairs(search: SearchRun) -> int:
    """Most pairs a point may take, so that the points every level is expected to take fit the budget."""
    levels = len({arm.level for arm in search.question.arms})
    pair_s = 2 * (search.question.sample_s + START_S)
    return max(PAIRS[0], min(PAIRS[1], int(search.question.budget_s / (POINTS * levels * pair_s))))


def _as_json(found: BreakEven | None) -> dict[str, Any]:
    """What is known of one level's break-even; "decided" is false when the budget ran out first."""
    if found is None:
        return {"decided": False, "clients": None, "below": None, "ratio": None, "best_clients": None}
    return {
        "decided": True,
        "clients": found.clients,
        "below": found.below,
        "ratio": interval(found.ratio),
        "best_clients": found.best_clients,
    }


def _conclusion(found: BreakEven, baseline: Level) -> str:
    ratio = f"ratio {found.ratio.value:.3f}, 95 % CI {found.ratio.low:.3f}–{found.ratio.high:.3f}"
    peak = f"{GOAL:.0%} of the peak of {baseline} ({counted(found.peak_clients, 'client')})"
    if found.clients is None:
        return (
            f"{found.level} does not reach {peak} with up to {counted(found.below, 'client')}; "
            f"at best {ratio}, with {found.best_clients}."
        )
    below = f"; {found.below} {'was' if found.below == 1 else 'were'} not enough" if found.below else ""
    return f"{found.level} reaches {peak} with {counted(found.clients, 'client')} ({ratio}){below}."
