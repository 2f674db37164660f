"""The search for break-even: the clients at which a level reaches 99 % of local's peak. Asks for points; measures none.

Generators: they yield what they want to know, are sent the ratio with its interval, and return what they found.
Throughput over clients rises to one flat top, so doubling finds the top's neighbourhood and bisection the edge.
"""

from collections.abc import Generator
from dataclasses import dataclass

from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level

GOAL = 0.99
MOST_CLIENTS = 256
GAIN = 1.01
"""More clients count as better only when they bring more than this."""
CLOSE = 0.1
"""The edge is found when what reaches the goal and what does not are this share apart."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The throughput of `level` with `clients`, divided by that of the baseline with `against` clients, is wanted."""

    level: Level
    clients: int
    against: int


@dataclass(frozen=True, slots=True)
class Found:
    """The fewest clients that reach the goal, None when none up to the most tried do; `below` is known not to reach it.

    ratio is the one at `clients`, or the best seen when the goal is out of reach.
    """

    level: Level
    clients: int | None
    below: int
    peak_clients: int
    ratio: Estimate
    best_clients: int


def peak(baseline: Level, most: int = MOST_CLIENTS) -> Generator[Ask, Estimate, int]:
    """The clients at which the baseline's throughput peaks, by doubling and two refining steps."""
    best = tried = 1
    while tried * 2 <= most and tried * 2 <= best * 4:
        tried *= 2
        ratio = yield Ask(baseline, tried, best)
        if ratio.value > GAIN:
            best = tried
    for clients in (round(best / 2**0.5), round(best * 2**0.5)):
        if clients != best and 1 <= clients <= most:
            ratio = yield Ask(baseline, clients, best)
            if ratio.value > GAIN:
                return clients
    return best


def break_even(
    level: Level, peak_clients: int, most: int = MOST_CLIENTS, goal: float = GOAL
) -> Generator[Ask, Estimate, Found]:
    """The fewest clients with which `level` reaches `goal` of the baseline's peak."""
    seen: dict[int, Estimate] = {}
    below, reached = 0, 0
    clients = peak_clients
    while not reached:
        seen[clients] = yield Ask(level, clients, peak_clients)
        if seen[clients].value >= goal:
            reached = clients
        elif clients >= most or _falling(seen):
            best = max(seen, key=lambda n: seen[n].value)
            return Found(level, None, max(seen), peak_clients, seen[best], best)
        else:
            below, clients = clients, min(2 * clients, most)
    while reached - below > max(1, CLOSE * reached):
        middle = min(reached - 1, max(below + 1, round((max(below, 1) * reached) ** 0.5)))
        if middle in seen:
            break
        seen[middle] = yield Ask(level, middle, peak_clients)
        if seen[middle].value >= goal:
            reached = middle
        else:
            below = middle
    return Found(level, reached, below, peak_clients, seen[reached], reached)


def _falling(seen: dict[int, Estimate]) -> bool:
    """Whether the last two doublings each made it worse: the top lies behind, more clients will not help."""
    values = [seen[n].value for n in sorted(seen)]
    return len(values) >= 3 and values[-1] < values[-2] < values[-3]


def sentence(found: Found, baseline: Level = Level.LOCAL) -> str:
    """What was found, in words."""
    interval = f"{found.ratio.value:.3f}, interval {found.ratio.low:.3f}–{found.ratio.high:.3f}"
    if found.clients is None:
        return (
            f"{found.level} does not reach {GOAL:.0%} of {baseline}'s peak ({found.peak_clients} clients) with up to "
            f"{found.below} clients; at best {interval}, with {found.best_clients}."
        )
    return (
        f"{found.level} reaches {GOAL:.0%} of {baseline}'s peak ({found.peak_clients} clients) "
        f"with {found.clients} clients ({interval}); {found.below or 'no fewer'} were not enough."
    )
