"""Rare losses by importance sampling: further failures during repairs are forced, and weighted back. Seeded.

Failure biasing (Shahabuddin 1994; Heidelberger 1995, Fast simulation of rare events): failures of an episode are drawn
one after another, the next one more often than it comes. Each is drawn from a mixture: the true distribution, so that
no weight explodes (Hesterberg 1995), and forced ones: at any time until all is repaired or soon after the last failure
(a second one within a takeover's seconds is what carries the weight of ANY 1 of 3), any cause or one that loses data,
with repairs as long as they are or longer. Pilot runs choose the mixture's shares by the cross-entropy method (Ridder
2005; Cappé, Douc, Guillin, Marin, Robert 2008), by how many members were hit before. A loss of several rare failures
depends on products of uncertain rates, whose mean few draws miss: each episode is weighed at many draws of the rates.
"""

import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np

from walproof.forecasting.episodes import Faults, Floats, Ints, repairs
from walproof.forecasting.failover_rules import COUNT
from walproof.forecasting.failure_rates import YEAR_S, Data, Failure, lognormal
from walproof.forecasting.outages_from_drills import Model
from walproof.forecasting.simulate import (
    TOGETHER,
    Each,
    Risk,
    believed,
    bounded_causes,
    follow,
    in_turn,
    kinds_of,
    prepared,
)
from walproof.model.guarantee import Level

POWERS = (0.0, 1.0, 2.0)
"""Forced failures are drawn in proportion to so many powers of their repair time."""
TRUE, FIRST_TRUE, EVEN = 0.25, 0.4, 0.05
"""Shares of the mixture before it is adapted: the true distribution, of further failures and of the first at the least;
causes evenly."""
KEPT = 0.2
"""Share of the mixture that stays as it was before it was adapted."""
SOON_S, EARLIEST_S = 60.0, 1.0
"""A failure so soon after another may fall into its takeover; times after it are even in their logarithm from there."""
PILOT, TEMPERED = 10_000, (0.5, 0.6, 0.7, 0.8)
"""Episodes of each pilot run, and the power of their weights: few large weights would decide early on."""
SAMPLED, DRAWS, RATES, CYCLES = 20, TOGETHER, 60, 2000
"""Batches of so many draws of repairs, with so many draws of the rates each, and so many episodes; fewer and larger
ones than of years, because most of the time goes into steps."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Risks a year by draw of what is uncertain, risk and kind, a batch together; rates by draw, kind."""

    risks: Floats
    rates: Floats

    @property
    def mean(self) -> Floats:
        return np.asarray(self.risks.mean(axis=0))

    @property
    def by_rates(self) -> Floats:
        """The risks, takeovers as the rate of what they follow: the few episodes of one draw would say less of them."""
        shown, mean = self.risks.copy(), self.rates.mean(axis=0)
        of_mean = np.divide(self.rates, mean, out=np.zeros_like(self.rates), where=mean > 0)
        shown[:, Risk.TAKEOVER] = of_mean * self.mean[Risk.TAKEOVER]
        return shown


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Episodes: failures, logarithm of each one's weight while all are well; and of each drawn failure: state before
    it, episode, which part drew it."""

    faults: Faults
    log_weight: Floats
    by: list[tuple[Ints, Ints, Floats]]


class _Sampler:
    """Episodes at these rates a second by kind, with repairs longer by draw and kind."""

    def __init__(self, model: Model, rates: Floats, longer: Floats) -> None:
        self.model, self.possible, kinds = model, bounded_causes(model), model.failures.kinds
        self.kind = kinds_of(self.possible, np.arange(len(self.possible)))
        self.hit = np.array([cause.members for cause in self.possible], dtype=np.int64)
        self.sigma = np.array([_sigma(kind) for kind in kinds])[self.kind]
        self.mean = mean = np.array([kind.repair_s for kind in kinds])[self.kind]
        self.rates, self.longer = rates[self.kind], longer[:, self.kind]
        self.total = self.rates.sum()
        unsafe = (Data.LOST, Data.UNFLUSHED) if model.what.level is Level.REMOTE_WRITE else (Data.LOST,)
        self.loses = np.array([kind.data in unsafe for kind in kinds])[self.kind]
        true, even = self.rates, np.ones(len(self.kind))
        losing = true * self.loses if self.loses.any() else even
        parts = list(itertools.product((False, True), POWERS, (true, losing, even)))
        self.soon = np.array([soon for soon, _, _ in parts])
        self.power = np.array([power for _, power, _ in parts])[:, None]
        moments = mean**self.power * np.exp(self.sigma**2 * self.power * (self.power - 1) / 2)
        causes = moments * np.array([of for _, _, of in parts])
        self.causes = causes / causes.sum(axis=1, keepdims=True)
        share = np.tile([(1 - EVEN) / 2, (1 - EVEN) / 2, EVEN], 2 * len(POWERS))
        states = 1 + 4 * (len(model.where.members) + 1)
        self.usual = np.tile([TRUE, *(1 - TRUE) * share / share.sum()], (states, 1))

    def grow(self, shares: Floats, cycles: int, rng: np.random.Generator) -> _Drawn:
        """So many episodes, evenly of each draw; shares of the mixture by state and part, the true one first."""
        episode = np.arange(cycles)
        draw, state = episode * len(self.longer) // cycles, np.zeros(cycles, dtype=np.int64)
        part = _choose(shares[state], rng)
        cause, repair, forced = self._failures(draw, part, rng)
        densities = shares[state].T * np.vstack([self.rates[cause] / self.total, forced])
        density = densities.sum(axis=0)
        log_weight, by = np.log(self.rates[cause] / density), [(state, episode, densities / density)]
        at, end, hit, lost = np.zeros(cycles), repair, self.hit[cause], self.loses[cause]
        faults, soon = [(at, end, cause, episode)], np.zeros(cycles, dtype=bool)
        for step in itertools.count():
            if not len(episode):
                break
            state = 1 + 4 * COUNT[hit] + 2 * soon + lost
            mixture = shares[state] if step < 2 * len(self.model.where.members) else _only_true(shares, state)
            part, left = _choose(mixture, rng), end - at
            gap = self._gap(part, left, rng)
            more = gap < left
            log_weight[episode[~more]] -= np.log(mixture[~more, 0])
            by.append((state[~more], episode[~more], np.eye(mixture.shape[1])[:, :1].repeat((~more).sum(), axis=1)))
            episode, draw, gap, left = episode[more], draw[more], gap[more], left[more]
            cause, repair, forced = self._failures(draw, part[more], rng)
            rate = self.rates[cause] * np.exp(-self.total * gap)
            when = np.where(self.soon[:, None], 1 / ((gap + EARLIEST_S) * np.log1p(left / EARLIEST_S)), 1 / left)
            densities = mixture[more].T * np.vstack([rate, forced * when])
            density = densities.sum(axis=0)
            log_weight[episode] += np.log(self.rates[cause]) - self.total * gap - np.log(density)
            by.append((state[more], episode, densities / density))
            at = at[more] + gap
            faults.append((at, at + repair, cause, episode))
            end, soon = np.maximum(end[more], at + repair), gap < SOON_S
            hit, lost = hit[more] | self.hit[cause], lost[more] | self.loses[cause]
        begins, ends, of_cause, of_episode = (np.concatenate(values) for values in zip(*faults, strict=True))
        order = np.lexsort((begins, of_episode))
        return _Drawn(Faults(begins[order], ends[order], of_cause[order], of_episode[order]), log_weight, by)

    def weights(self, drawn: _Drawn, rates: Floats) -> Floats:
        """The weight of each episode at other rates: by episode and draw of the rates of its draw of repairs.

        rates: by draw of repairs, draw of rates and kind. Nothing else of an episode depends on them: which failures
        there were, how long there could have been more, and how often one begins.
        """
        faults, of = drawn.faults, (len(self.longer), -1)
        begins = np.flatnonzero(np.diff(faults.episode, prepend=-1))
        lasts = np.maximum.reduceat(faults.until, begins).reshape(of)
        failed = np.zeros((len(begins), len(self.kind)))
        np.add.at(failed, (faults.episode, faults.cause), 1)
        each = rates[:, :, self.kind]
        # As in a queue with infinitely many servers, all members are well for exp(-load) of the time.
        load = np.einsum("grc,gc,c->gr", each, self.longer, self.mean)
        more = failed.reshape(*of, len(self.kind)) @ np.log(each / self.rates).transpose(0, 2, 1)
        more -= lasts[:, :, None] * (each.sum(axis=2) - self.total)[:, None, :] + load[:, None, :]
        return np.asarray(np.exp(drawn.log_weight.reshape(of)[:, :, None] + more))

    def _gap(self, part: Ints, left: Floats, rng: np.random.Generator) -> Floats:
        """Seconds until the next failure; beyond what is left: there is none before all is repaired."""
        share = rng.random(len(part))
        soon = EARLIEST_S * np.expm1(share * np.log1p(left / EARLIEST_S))
        forced = np.where(np.concatenate([[False], self.soon])[part], soon, share * left)
        return np.where(part == 0, -np.log1p(-share) / self.total, forced)

    def _failures(self, draw: Ints, part: Ints, rng: np.random.Generator) -> tuple[Ints, Floats, Floats]:
        """Cause and repair, s, of each; and the density of both in each forced part beside that of the repair."""
        every = np.concatenate([[self.rates / self.total], self.causes])
        cause = _inverse(every[part], rng.random(len(part)))
        power = np.concatenate([[0.0], self.power[:, 0]])[part]
        normal, sigma = rng.standard_normal(len(part)) + power * self.sigma[cause], self.sigma[cause]
        repair = np.empty(len(part))
        for number in range(len(self.model.failures.kinds)):
            which = np.flatnonzero(self.kind[cause] == number)
            repair[which] = repairs(self.model.failures, number, normal[which])
        tilt = np.exp(self.power * sigma * normal - (self.power * sigma) ** 2 / 2)
        return cause, repair * self.longer[draw, cause], tilt * self.causes[:, cause]


def _inverse(chances: Floats, share: Floats) -> Ints:
    """The place in each row of chances at which their sum exceeds that share."""
    place = np.count_nonzero(chances.cumsum(axis=1) < share[:, None], axis=1)
    return np.asarray(np.minimum(place, chances.shape[1] - 1), dtype=np.int64)


def _choose(shares: Floats, rng: np.random.Generator) -> Ints:
    return _inverse(shares, rng.random(len(shares)))


def _only_true(shares: Floats, state: Ints) -> Floats:
    return np.tile(np.eye(shares.shape[1])[0], (len(state), 1))


def _sigma(failure: Failure) -> float:
    return 1.0 if failure.exponential else lognormal(failure.repair_s, failure.repair_cv)[1]


def sample(
    model: Model, seed: int, *, batches: int = SAMPLED, cycles: int = CYCLES, vary: bool = True, each: Each = in_turn
) -> Sampled:
    """Risks of a loss a year, from so many batches of so many episodes."""
    shares = _adapted(model, seed)
    work = partial(_batch, model, shares, cycles, seed, vary)
    drawn = list(each(work, range(batches)))
    return Sampled(np.concatenate([one.risks for one in drawn]), np.concatenate([one.rates for one in drawn]))


def _adapted(model: Model, seed: int) -> Floats | None:
    """Shares of the mixture in the proportion in which its parts drew what was lost in pilot runs."""
    if not bounded_causes(model):
        return None
    rates = np.array([kind.per_year for kind in model.failures.kinds]) / YEAR_S
    rng, sampler = np.random.default_rng([seed, 17]), _Sampler(model, rates, np.ones((1, len(rates))))
    shares = sampler.usual
    for power in TEMPERED:
        drawn = sampler.grow(shares, PILOT, rng)
        events, of_fault, _, rules, orders = prepared(model, drawn.faults, sampler.possible, rng)
        outcome = follow(events, of_fault, drawn.faults.episode, rules, orders, np.exp(drawn.log_weight))
        value, learned = outcome.risks[Risk.UNFLUSHED :].sum(axis=0) ** power, np.zeros_like(shares)
        if not value.any():
            break
        for state, episode, by in drawn.by:
            np.add.at(learned, state, (by * value[episode]).T)
        # States that few losses passed stay near what is usual.
        learned += sampler.usual * learned.sum(axis=1).max() / 100
        shares = (1 - KEPT) * learned / learned.sum(axis=1, keepdims=True) + KEPT * sampler.usual
    shares = shares.copy()
    shares[0] *= 1 - FIRST_TRUE
    shares[0, 0] += FIRST_TRUE
    return shares


def _batch(model: Model, shares: Floats | None, cycles: int, seed: int, vary: bool, number: int) -> Sampled:
    rng, kinds = np.random.default_rng([seed, 7, number]), model.failures.kinds
    drawn = [believed(model, DRAWS * number + i, seed).failures.kinds for i in range(DRAWS)] if vary else [kinds]
    longer = np.array([[new.repair_s / old.repair_s for new, old in zip(of, kinds, strict=True)] for of in drawn])
    # Rates by draw of repairs, draw of rates and kind.
    rates = np.array([[[kind.per_year for kind in kinds]]]) / YEAR_S
    if vary:
        rates = model.failures.rates(DRAWS * RATES, [seed, 19, number]).reshape(DRAWS, RATES, -1) / YEAR_S
    risks = np.zeros((*rates.shape[:2], len(Risk), len(kinds)))
    planned = np.array([kind.planned for kind in kinds])
    risks[:, :, Risk.TAKEOVER] = rates * planned
    if shares is not None:
        each = -(-cycles // len(drawn))
        sampler = _Sampler(model, rates.mean(axis=(0, 1)), longer)
        grown = sampler.grow(shares, each * len(drawn), rng)
        # People's times and the bootstrap of the drills are drawn once a batch; those of twenty fill their range.
        people = believed(model, number, seed) if vary else model
        events, of_fault, kind, rules, orders = prepared(people, grown.faults, sampler.possible, rng)
        outcome = follow(events, of_fault, kind + len(kinds) * grown.faults.episode, rules, orders)
        counts = np.zeros((len(Risk), len(grown.log_weight) * len(kinds)))
        counts[:, : outcome.risks.shape[1]] = outcome.risks
        by_episode = counts.reshape(len(Risk), len(drawn), each, len(kinds))
        weights = sampler.weights(grown, rates).reshape(len(drawn), each, -1)
        risks += np.einsum("agek,ger->grak", by_episode, weights) / each
    return Sampled(risks.reshape(-1, *risks.shape[2:]) * YEAR_S, rates.reshape(-1, len(kinds)))
