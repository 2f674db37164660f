"""Rare losses by importance sampling: further failures during a repair are forced, and weighted back. Seeded.

Balanced failure biasing (Shahabuddin 1994; Heidelberger 1995, Fast simulation of rare events): episodes start with a
cause drawn half by its rate and half evenly; during the first repair one further failure is expected; each episode
counts with its likelihood ratio. What follows after the first repair is drawn as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from walproof.forecasting.episodes import Faults, Floats, Ints, repairs
from walproof.forecasting.failure_rates import YEAR_S
from walproof.forecasting.outages_from_drills import Model
from walproof.forecasting.simulate import BATCHES, Each, Risk, believed, bounded_causes, follow_drawn, in_turn, kinds_of
from walproof.forecasting.topology import Cause

EXPECTED = 1.0
"""How many further failures during the first repair are drawn on average, at least."""
CYCLES = 3000


@dataclass(frozen=True, slots=True)
class Sampled:
    """Risks a year by batch, risk and kind. A batch draws its own rates, so their spread holds both uncertainties."""

    risks: Floats

    @property
    def mean(self) -> Floats:
        """By risk and kind."""
        return np.asarray(self.risks.mean(axis=0))


@dataclass(slots=True)
class _Growing:
    """Failures of episodes while they are drawn, and the logarithm of each episode's weight."""

    model: Model
    possible: Sequence[Cause]
    log_weight: Floats
    at: list[Floats] = field(default_factory=list)
    until: list[Floats] = field(default_factory=list)
    cause: list[Ints] = field(default_factory=list)
    episode: list[Ints] = field(default_factory=list)

    def add(self, at: Floats, cause: Ints, episode: Ints, normal: Floats) -> None:
        """More failures: when, their cause and episode, standard normal numbers for their repairs."""
        kind = kinds_of(self.possible, cause)
        repair = np.empty(len(cause))
        for number in range(len(self.model.failures.kinds)):
            which = np.flatnonzero(kind == number)
            repair[which] = repairs(self.model.failures, number, normal[which])
        self.at.append(at)
        self.until.append(at + repair)
        self.cause.append(cause)
        self.episode.append(episode)


def sample(
    model: Model, seed: int, *, batches: int = BATCHES, cycles: int = CYCLES, vary: bool = True, each: Each = in_turn
) -> Sampled:
    """Risks of a loss a year, from so many batches of so many episodes."""
    return Sampled(np.array(list(each(partial(_batch, model, cycles, seed, vary), range(batches)))))


def _batch(model: Model, cycles: int, seed: int, vary: bool, number: int) -> Floats:
    rng = np.random.default_rng([seed, 7, number])
    model = believed(model, number, seed) if vary else model
    possible = bounded_causes(model)
    risks = np.zeros((len(Risk), len(model.failures.kinds)))
    risks[Risk.TAKEOVER] = [failure.per_year if failure.planned else 0.0 for failure in model.failures.kinds]
    rates = np.array([c.per_year for c in possible]) / YEAR_S
    if not len(possible) or rates.sum() <= 0:
        return risks
    grown = _grow(model, possible, rates, cycles, rng)
    at, episode = np.concatenate(grown.at), np.concatenate(grown.episode)
    order = np.lexsort((at, episode))
    until, cause = np.concatenate(grown.until)[order], np.concatenate(grown.cause)[order]
    faults = Faults(at[order], until, cause, episode[order])
    outcome, _, _ = follow_drawn(model, faults, possible, rng, np.exp(grown.log_weight))
    means = np.array([model.failures.kinds[c.kind].repair_s for c in possible])
    # As in a queue with infinitely many servers, all members are well for exp(-load) of the time.
    per_year = float(rates.sum() * np.exp(-(rates * means).sum()) * YEAR_S)
    risks[:, : outcome.risks.shape[1]] += outcome.risks * per_year / cycles
    return risks


def _grow(model: Model, possible: Sequence[Cause], rates: Floats, cycles: int, rng: np.random.Generator) -> _Growing:
    total = rates.sum()
    true = rates / total
    biased = 0.5 * true + 0.5 * (rates > 0) / (rates > 0).sum()
    first = rng.choice(len(rates), size=cycles, p=biased)
    grown = _Growing(model, possible, np.log(true[first] / biased[first]))
    grown.add(np.zeros(cycles), first, np.arange(cycles), rng.standard_normal(cycles))
    repair = grown.until[0]
    expected = np.maximum(total * repair, EXPECTED)
    episode = np.repeat(np.arange(cycles), rng.poisson(expected))
    cause = rng.choice(len(rates), size=len(episode), p=biased)
    ratio = np.log(rates[cause] * repair[episode] / (expected[episode] * biased[cause]))
    grown.log_weight += expected - total * repair + np.bincount(episode, weights=ratio, minlength=cycles)
    at = rng.random(len(episode)) * repair[episode]
    grown.add(at, cause, episode, rng.standard_normal(len(episode)))
    _extend(grown, rates, rng)
    return grown


def _extend(grown: _Growing, rates: Floats, rng: np.random.Generator) -> None:
    """Failures after the first repair, while others last: drawn as they are, until every episode has ended."""
    covered = grown.until[0].copy()
    total = rates.sum()
    for _ in range(1000):
        end = covered.copy()
        for episode, until in zip(grown.episode, grown.until, strict=True):
            np.maximum.at(end, episode, until)
        episode = np.repeat(np.arange(len(end)), rng.poisson(total * (end - covered)))
        if not len(episode):
            return
        at = covered[episode] + rng.random(len(episode)) * (end - covered)[episode]
        cause = rng.choice(len(rates), size=len(episode), p=rates / total)
        grown.add(at, cause, episode, rng.standard_normal(len(episode)))
        covered = end
