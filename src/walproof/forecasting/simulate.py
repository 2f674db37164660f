"""Many simulated years of one configuration: what was not served each year, and how often a loss was risked. Seeded.

Batches of years are worked through one after another, or by several processes if a caller wants."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from walproof.errors import UsageError
from walproof.forecasting.episodes import Changes, Faults, Floats, Ints, changes, draw
from walproof.forecasting.failover_rules import (
    NEVER,
    Bools,
    PerFault,
    Rules,
    changes_at,
    pass_time,
    rules_of,
    start,
    step,
)
from walproof.forecasting.failure_rates import YEAR_S, Data
from walproof.forecasting.outages_from_drills import Model, stalls, takeovers
from walproof.forecasting.topology import Cause, causes

A = TypeVar("A")
B = TypeVar("B")


class Each(Protocol):
    """Applies a function to every item and gives the results in order, as `map` does."""

    def __call__(self, work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
        """The results."""


def in_turn(work: Callable[[A], B], items: Iterable[A], /) -> Iterable[B]:
    """One after another."""
    return map(work, items)


BATCHES, TOGETHER = 100, 20
"""Batches of years, each under a draw of its own of what is uncertain; so many draws fill every range evenly."""
MOST_FAULTS = 3e8
MOST_LOAD = 6.0
"""Failures at once, on average: members are all well for exp(-load) of the time, and an episode holds exp(load)."""


class Risk(IntEnum):
    """How acknowledged commits can be lost.

    TAKEOVER: the leader is lost, a survivor that commits waited for (or, asynchronous, any) takes over. UNFLUSHED: a
    member leads again that lost what it had not flushed. NEAR: every member with all commits stays away, and a standby
    that streamed until the end is promoted. STALE: a standby is promoted that lacks commits for sure.
    """

    TAKEOVER = 0
    UNFLUSHED = 1
    NEAR = 2
    STALE = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of episodes: seconds without service of each; risks[risk, kind]: weighted counts."""

    out_s: Floats
    risks: Floats
    alone_s: Floats
    """Seconds of service of each that a member without them was promoted over."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Years under one draw of what is uncertain: seconds without service of each year, by kind of the first failure of
    an episode (a year); risks a year, by risk and kind.
    """

    years_s: Floats
    by_kind_s: Floats
    risks: Floats
    alone_s: Floats
    """Seconds of service, by year, whose every commit a stale member that was promoted lacks."""


def believed(model: Model, number: int, seed: int) -> Model:
    """The model of that batch: with its draw of rates and times."""
    drawn = model.failures.believed(number % TOGETHER, TOGETHER, [seed, 13, number // TOGETHER])
    return replace(model, failures=drawn)


def own_error(values: Floats, together: int = TOGETHER) -> float:
    """Relative standard error of the mean of the batches' values; infinite where it is not known. Draws that belong
    together fill their ranges evenly: their means are compared.
    """
    means = [part.mean() for part in np.array_split(values, max(1, len(values) // together))]
    mean = float(np.mean(values))
    return float(np.std(means, ddof=1) / len(means) ** 0.5 / mean) if mean > 0 and len(means) > 1 else np.inf


def bounded_causes(model: Model) -> tuple[Cause, ...]:
    """Everything that may fail; UsageError where repairs take so long beside the time between failures that episodes
    have no end.
    """
    possible, kinds = causes(model.where, model.failures), model.failures.kinds
    load = sum(c.per_year * kinds[c.kind].repair_s for c in possible) / YEAR_S
    if load > MOST_LOAD:
        raise UsageError(
            f"repairs take longer than the time between failures: {load:.3g} failures at once on average, "
            "members are never all well",
            "lower rates or shorter repairs in the file of --failures, narrower ranges or --exact-rates",
        )
    return possible


def kinds_of(causes: Sequence[Cause], cause: Ints) -> Ints:
    """The kind of failure of each of those causes, given by their indices."""
    return np.array([c.kind for c in causes], dtype=np.int64)[cause]


def _per_fault(model: Model, kind: Ints, rng: np.random.Generator) -> PerFault:
    """What each fault of those kinds does, with its sampled times."""
    kinds = model.failures.kinds
    takeover, stall = np.zeros(len(kind)), np.zeros(len(kind))
    for number, failure in enumerate(kinds):
        which = np.flatnonzero(kind == number)
        takeover[which] = takeovers(model, failure, len(which), rng)
        stall[which] = stalls(model, failure, len(which), rng)
    lost = np.array([k.data is Data.LOST for k in kinds])[kind]
    unflushed = np.array([k.data is Data.UNFLUSHED for k in kinds])[kind]
    # What ends PostgreSQL without an orderly stop: every failure of a member but one of the network or of an operator.
    crash = np.array([not k.cut and (k.data is Data.UNFLUSHED or "kill" in k.drills[:1]) for k in kinds])[kind]
    return PerFault(lost, unflushed, crash, takeover, stall)


def follow(
    events: Changes, of_fault: PerFault, kind: Ints, rules: Rules, orders: Ints, weights: Floats | None = None
) -> Outcome:
    """Follow every episode from its first failure to its end. `kind`: of each fault; of each episode: in which order of
    preference members lead, and its weight.
    """
    kinds = int(kind.max(initial=0)) + 1
    order = np.argsort(-events.count, kind="stable")
    first, count = events.first[order], events.count[order]
    weight = np.ones(len(order)) if weights is None else weights[order]
    risks = np.zeros((len(Risk), kinds))
    state = start(events.at[first] if len(first) else np.empty(0), orders[order], rules)
    began = kind[events.fault[first]] if len(first) else np.empty(0, dtype=np.int64)

    def note(risk: Risk, which: Bools, of_kind: Ints) -> None:
        chosen = np.flatnonzero(which)
        if len(chosen):
            risks[risk] += np.bincount(of_kind[chosen], weights=weight[: len(which)][chosen], minlength=kinds)

    def note_promoted(near: Bools, stale: Bools) -> None:
        note(Risk.NEAR, near, began)
        note(Risk.STALE, stale, began)

    for number in range(int(count.max(initial=0))):
        still = int(np.searchsorted(-count, -number, side="left"))
        rows = state.rows(still)
        event = changes_at(events, first[:still] + number, of_fault, rules.majority)
        note_promoted(*pass_time(rows, event.at, rules))
        takeover, unflushed = step(rows, event, rules)
        of_event = kind[events.fault[first[:still] + number]]
        note(Risk.TAKEOVER, takeover, np.where(event.hit != 0, of_event, began[:still]))
        note(Risk.UNFLUSHED, unflushed, began[:still])
        state.store(rows)
    waits_until = np.where(state.force_at < NEVER, state.force_at, state.at)
    until = np.where(state.on, np.maximum(state.at, state.served_from), waits_until)
    note_promoted(*pass_time(state, until, rules))
    out_s, alone_s = np.empty(len(order)), np.empty(len(order))
    out_s[order], alone_s[order] = state.out_s, state.alone_s
    return Outcome(out_s, risks, alone_s)


def prepared(
    model: Model, faults: Faults, possible: Sequence[Cause], rng: np.random.Generator
) -> tuple[Changes, PerFault, Ints, Rules, Ints]:
    """What `follow` follows of drawn faults under the model's rules: changes, faults, their kinds, rules, orders."""
    kind = kinds_of(possible, faults.cause)
    events = changes(faults, possible, len(model.where.members), len(model.where.voters))
    rules = rules_of(model.where, model.what, model.failures.decide_s, model.failures.force_s)
    return events, _per_fault(model, kind, rng), kind, rules, rng.choice(rules.orders, len(events.first))


def one_batch(model: Model, years: int, seed: Sequence[int], *, year_s: float = YEAR_S) -> Batch:
    """So many years under one bootstrap of the drills.

    `year_s`: what is counted as one year; rates stay those of a calendar year.
    """
    rng = np.random.default_rng([*seed, 1])
    kinds = len(model.failures.kinds)
    possible = bounded_causes(model)
    faults = draw(possible, model.failures, years * year_s / YEAR_S, [*seed, 2])
    years_s, alone_s, by_kind = np.zeros(years), np.zeros(years), np.zeros(kinds)
    risks = np.zeros((len(Risk), kinds))
    if len(faults.at):
        events, of_fault, kind, rules, orders = prepared(model, faults, possible, rng)
        outcome = follow(events, of_fault, kind, rules, orders)
        year = np.minimum((events.at[events.first] / year_s).astype(np.int64), years - 1)
        years_s += np.bincount(year, weights=outcome.out_s, minlength=years)
        alone_s += np.bincount(year, weights=outcome.alone_s, minlength=years)
        by_kind += np.bincount(kind[events.fault[events.first]], weights=outcome.out_s, minlength=kinds)
        risks[:, : outcome.risks.shape[1]] += outcome.risks
    for number, failure in enumerate(model.failures.kinds):
        if failure.planned:
            pauses = rng.poisson(failure.per_year * years * year_s / YEAR_S)
            risks[Risk.TAKEOVER, number] += pauses
            paused_s = takeovers(model, failure, pauses, rng)
            years_s += np.bincount(rng.integers(years, size=pauses), weights=paused_s, minlength=years)
            by_kind[number] += paused_s.sum()
    return Batch(years_s, by_kind / years, risks / years, alone_s)


def simulate(
    model: Model, years: int, seed: int, *, vary: bool = True, batches: int = BATCHES, each: Each = in_turn
) -> tuple[Batch, ...]:
    """That many years in batches, each under its own draw of what is uncertain; UsageError when that is too much."""
    expected = years * sum(c.per_year for c in causes(model.where, model.failures))
    if expected > MOST_FAULTS:
        raise UsageError(f"{years:,} years would hold {expected:.1g} failures", "fewer --years, or lower rates")
    bounded_causes(model)
    batches = max(1, min(batches, years))
    sizes = [years // batches + (number < years % batches) for number in range(batches)]
    return tuple(each(partial(_numbered, model, seed, vary), enumerate(sizes)))


def _numbered(model: Model, seed: int, vary: bool, batch: tuple[int, int]) -> Batch:
    number, years = batch
    return one_batch(believed(model, number, seed) if vary else model, years, [seed, number])


def periods(
    model: Model, count: int, period_s: float, seed: int, *, vary: bool = True, together: int = 25
) -> tuple[Batch, ...]:
    """So many periods of that length, in batches of `together`; each batch draws what is uncertain anew."""
    return tuple(
        one_batch(believed(model, number, seed) if vary else model, together, [seed, number], year_s=period_s)
        for number in range(count // together)
    )
