"""Rare losses by importance sampling: further failures during repairs are forced, and weighted back. Seeded.

Failure biasing (Shahabuddin 1994; Heidelberger 1995, Fast simulation of rare events): causes are drawn from a mixture,
long repairs more often than they come, and further failures are expected during the first repair and until those that
began in it are repaired; each episode counts with its likelihood ratio. Each mixture holds the true distribution, so
that no weight explodes (Hesterberg 1995). What follows is drawn as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from walproof.forecasting.episodes import Faults, Floats, Ints, repairs
from walproof.forecasting.failure_rates import YEAR_S, Data, Failure, lognormal
from walproof.forecasting.outages_from_drills import Model
from walproof.forecasting.simulate import BATCHES, Each, Risk, believed, bounded_causes, follow_drawn, in_turn, kinds_of
from walproof.forecasting.topology import Cause
from walproof.model.guarantee import Level

EXPECTED = 1.5
"""How many further failures are drawn on average, at least, in each of the first FORCED stretches of an episode: until
the first repair, and from there until the repairs of what began before.
"""
FORCED = 2
LONGER = (0.0, 1.0, 2.0)
"""Repairs are drawn with their logarithm longer by so many standard deviations, each as often."""
TRUE, EVEN, LOAD, LOSING = 0.2, 0.1, 0.3, 0.4
"""Shares of the mixture of causes: by their rates, evenly, by how much of the time they last, those that lose data."""
CYCLES = 2000


@dataclass(frozen=True, slots=True)
class Sampled:
    """Risks a year by batch, risk and kind. A batch draws its own rates, so their spread holds both uncertainties."""

    risks: Floats

    @property
    def mean(self) -> Floats:
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

    def weigh(self, ratio: Floats, episode: Ints) -> None:
        """Logarithms of likelihood ratios, one for each failure."""
        self.log_weight += np.bincount(episode, weights=ratio, minlength=len(self.log_weight))

    def add(self, at: Floats, cause: Ints, episode: Ints, rng: np.random.Generator, *, longer: bool = True) -> None:
        """More failures: when, their cause and episode; `longer`: with longer repairs, weighted back."""
        kind = kinds_of(self.possible, cause)
        sigma = np.array([_sigma(failure) for failure in self.model.failures.kinds])[kind]
        normal = rng.standard_normal(len(cause))
        if longer:
            normal += sigma * rng.choice(LONGER, len(cause))
            ratio = np.mean([np.exp(shift * sigma * normal - (shift * sigma) ** 2 / 2) for shift in LONGER], axis=0)
            self.weigh(-np.log(ratio), episode)
        repair = np.empty(len(cause))
        for number in range(len(self.model.failures.kinds)):
            which = np.flatnonzero(kind == number)
            repair[which] = repairs(self.model.failures, number, normal[which])
        self.at.append(at)
        self.until.append(at + repair)
        self.cause.append(cause)
        self.episode.append(episode)


def _sigma(failure: Failure) -> float:
    return 1.0 if failure.exponential else lognormal(failure.repair_s, failure.repair_cv)[1]


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
    total, true = rates.sum(), rates / rates.sum()
    biased = _biased(model, possible, true)
    first = rng.choice(len(rates), size=cycles, p=biased)
    grown = _Growing(model, possible, np.log(true[first] / biased[first]))
    grown.add(np.zeros(cycles), first, np.arange(cycles), rng)
    covered = np.zeros(cycles)
    for stretch in range(1000):
        end = covered.copy()
        for episode, until in zip(grown.episode, grown.until, strict=True):
            np.maximum.at(end, episode, until)
        length, forced = end - covered, stretch < FORCED
        if not length.any():
            break
        causes = biased if forced else true
        expected = np.where(length > 0, np.maximum(total * length, EXPECTED * forced), 0.0)
        episode = np.repeat(np.arange(cycles), rng.poisson(expected))
        cause = rng.choice(len(rates), size=len(episode), p=causes)
        grown.log_weight += expected - total * length
        grown.weigh(np.log(rates[cause] * length[episode] / (expected[episode] * causes[cause])), episode)
        at = covered[episode] + rng.random(len(episode)) * length[episode]
        grown.add(at, cause, episode, rng, longer=forced)
        covered = end
    return grown


def _biased(model: Model, possible: Sequence[Cause], true: Floats) -> Floats:
    """The mixture of which causes of forced failures are drawn."""
    kinds = [model.failures.kinds[cause.kind] for cause in possible]
    unsafe = (Data.LOST, Data.UNFLUSHED) if model.what.level is Level.REMOTE_WRITE else (Data.LOST,)
    even = np.where(true > 0, 1.0, 0.0)
    losing = even * [kind.data in unsafe for kind in kinds]
    load = true * [kind.repair_s for kind in kinds]
    parts = (TRUE, true), (EVEN, even), (LOAD, load), (LOSING, losing if losing.any() else even)
    return np.asarray(sum(share * part / part.sum() for share, part in parts))
