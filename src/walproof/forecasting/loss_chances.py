"""How probable a loss is at each risk, from the drills: posteriors, what structure alone gives, what drills leave open.

Pure; seeded."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from walproof.forecasting.episodes import Floats
from walproof.forecasting.failure_rates import Failure
from walproof.forecasting.importance_sampling import Sampled
from walproof.forecasting.outages_from_drills import Losses, Model
from walproof.forecasting.simulate import Risk
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level

DRAWS = 4000
"""Draws of the unknown probabilities of a loss, at least."""


@dataclass(frozen=True, slots=True)
class Unexcluded:
    """What clean drills do not exclude: losses a year by faults that never lost anything; how many drills there were of
    each; how many more of all together would halve it.
    """

    losses: Estimate
    clean: tuple[tuple[str, int], ...]

    @property
    def more(self) -> int:
        """The mean of Jeffreys' posterior of n clean drills is 1 in 2 (n + 1): as many again and one more halve it."""
        return sum(drills + 1 for _, drills in self.clean)


CLEAN_ONCE = 0.25
"""Mean of Jeffreys' posterior of P(loss) after one clean drill."""
NEARLY_ALL = 0.99
"""Of the losses that count as certain: the drills that are named would tell of so many."""


@dataclass(frozen=True, slots=True)
class Undrilled:
    """What counts as lost each time, because no drill tells: failures, the greatest first, and the faults to drill.

    `less`: by how many losses a year one clean drill of each of those lowers the bound.
    """

    failures: tuple[str, ...] = ()
    drills: tuple[str, ...] = ()
    less: float = 0.0


def undrilled(model: Model, rare: Sampled) -> Undrilled:
    """Failures that risk a loss here and were never drilled so that it would show."""
    of_failure, of_drill = dict[str, float](), dict[str, float]()
    for risk, number, failure, seen in told(model):
        losses = 0.0 if seen.drills else float(rare.mean[risk, number]) * undrilled_chance(failure)
        for sums, name in ((of_failure, failure.name), (of_drill, _drill_for(model, risk, failure))):
            sums[name] = sums.get(name, 0.0) + losses
    failures, drills = _greatest_first(of_failure), _greatest_first(of_drill)
    told_of = np.cumsum([of_drill[name] for name in drills])
    named = 1 + int(np.searchsorted(told_of, NEARLY_ALL * told_of[-1])) if drills else 0
    less = (1 - CLEAN_ONCE) * float(told_of[named - 1]) if drills else 0.0
    return Undrilled(tuple(failures), tuple(drills[:named]), less)


def _greatest_first(sums: dict[str, float]) -> list[str]:
    """The names of those that are not nothing."""
    return sorted((name for name in sums if sums[name]), key=sums.__getitem__, reverse=True)


def _drill_for(model: Model, risk: Risk, failure: Failure) -> str:
    """The fault, and the level where it is another one, whose drill tells how probable a loss is there."""
    remote = model.what.level.remote
    if risk is Risk.UNFLUSHED:
        return "double-power" if remote else "crash-in-place"
    return f"{failure.drills[0]} at {Level.LOCAL}" if risk is Risk.NEAR and remote else failure.drills[0]


def unexcluded(model: Model, rare: Sampled) -> Unexcluded:
    """Of takeovers that are to lose nothing, and lost nothing when drilled."""
    total, clean = 0.0, dict[str, int]()
    for risk, number, failure, seen in told(model):
        if promised(model, risk, failure) and seen.drills and not seen.losing:
            losing, kept = seen.posterior
            total += float(rare.mean[risk, number]) * losing / (losing + kept)
            clean[seen.fault] = seen.drills
    return Unexcluded(Estimate(total, total, total), tuple(clean.items()))


def chance_losses(model: Model, risk: Risk, failure: Failure) -> Losses:
    """The drills that tell how probable a loss is for that risk after that failure."""
    level = model.what.level
    if risk is Risk.TAKEOVER:
        return model.measured.loss(failure.name, level)
    if risk is Risk.UNFLUSHED:
        return model.measured.unflushed.get(level, Losses())
    return model.measured.unseen(failure.name)


def promised(model: Model, risk: Risk, failure: Failure) -> bool:
    """Whether nothing is to be lost there: the manual of standbys that were waited for, Patroni's of a switchover."""
    return risk is Risk.TAKEOVER and (model.what.waits or failure.planned)


def undrilled_chance(failure: Failure) -> float:
    """P(loss) where no drill tells: certain, an upper bound; of an orderly switchover as it is promised."""
    return 0.0 if failure.planned else 1.0


def told(model: Model) -> Iterator[tuple[Risk, int, Failure, Losses]]:
    """Each risk of each kind (number, failure) that drills tell about, and those drills; STALE loses for sure."""
    for risk in (Risk.TAKEOVER, Risk.UNFLUSHED, Risk.NEAR):
        for number, failure in enumerate(model.failures.kinds):
            yield risk, number, failure, chance_losses(model, risk, failure)


def _probabilities(model: Model, rng: np.random.Generator, draws: int, *, structural: bool) -> Floats:
    """Draws of P(loss) by risk and kind: the posterior of the drills, one for all failures that they inform."""
    chances = np.ones((draws, len(Risk), len(model.failures.kinds)))
    drawn: dict[tuple[Risk, Losses], Floats] = {}
    for risk, number, failure, seen in told(model):
        if structural and promised(model, risk, failure) and not seen.losing:
            chances[:, risk, number] = 0.0
        elif not seen.drills:
            chances[:, risk, number] = undrilled_chance(failure)
        else:
            if (risk, seen) not in drawn:
                drawn[risk, seen] = rng.beta(*seen.posterior, draws)
            chances[:, risk, number] = drawn[risk, seen]
    return chances


def losses_a_year(model: Model, rare: Sampled, rng: np.random.Generator, *, structural: bool) -> Estimate:
    """Losses a year: by structure alone, or with what the drills do not exclude; 95 % of the draws lie within."""
    risks = np.tile(rare.by_rates, (-(-DRAWS // len(rare.risks)), 1, 1))
    every = (_probabilities(model, rng, len(risks), structural=structural) * risks).sum(axis=(1, 2))
    low, high = np.quantile(every, (0.025, 0.975))
    return Estimate(float(every.mean()), float(low), float(high))


def mean_chances(model: Model) -> Floats:
    """P(loss) by risk and kind in the mean."""
    chances = np.ones((len(Risk), len(model.failures.kinds)))
    for risk, number, failure, seen in told(model):
        losing, kept = seen.posterior
        chances[risk, number] = losing / (losing + kept) if seen.drills else undrilled_chance(failure)
    return chances
