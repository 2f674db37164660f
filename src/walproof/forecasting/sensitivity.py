"""Which assumption matters most, and which of several choices no other beats (the Pareto front).

Each assumption is moved to the ends of its range, with the same random numbers. Seeded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from walproof.forecasting.failure_rates import Failures
from walproof.forecasting.forecast import Forecast, Part
from walproof.forecasting.outages_from_drills import Model
from walproof.forecasting.simulate import Each, in_turn, simulate


def front(choices: Sequence[tuple[float, ...]]) -> tuple[bool, ...]:
    """Of each choice (numbers of which less is better), whether no other is as good in all and better in one.

    >>> front([(1.0, 9.0), (2.0, 2.0), (3.0, 3.0), (2.0, 2.0)])
    (True, True, False, True)
    """
    return tuple(not any(_beats(other, one) for other in choices) for one in choices)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


YEARS = 20_000


@dataclass(frozen=True, slots=True)
class Effect:
    """Minutes a year with an assumption at its low and at its high end."""

    assumption: str
    low: float
    high: float

    @property
    def swing(self) -> float:
        """How far apart they are, minutes."""
        return abs(self.high - self.low)


Studied = tuple[Forecast, tuple[Effect, ...]]
"""A forecast, and the effects of what it assumes, the greatest first."""


def of_rates(made: Forecast) -> tuple[Effect, ...]:
    """The effect of each rate's range at first order: minutes go with the rate of what began the episode."""
    total = made.minutes.value
    effects = [
        Effect(f"rate of {p.name}", *(total + p.minutes * (factor - 1) for factor in (p.least, p.most)))
        for p in made.parts
    ]
    return tuple(sorted(effects, key=lambda effect: -effect.swing))


def of_the_rest(model: Model, seed: int, years: int = YEARS, *, each: Each = in_turn) -> tuple[Effect, ...]:
    """The effect of what is no rate: repairs half and twice as long, people half and twice as fast, nothing shared."""

    def minutes(failures: Failures) -> float:
        batches = simulate(replace(model, failures=failures), years, seed, vary=False, batches=4, each=each)
        return float(np.mean([b.years_s.mean() for b in batches])) / 60

    given = model.failures

    def repaired(factor: float) -> Failures:
        return replace(given, kinds=tuple(k.model_copy(update={"repair_s": k.repair_s * factor}) for k in given.kinds))

    def decided(factor: float) -> Failures:
        return replace(given, decide_s=given.decide_s * factor, force_s=given.force_s * factor)

    effects = (
        Effect("repair times (half, twice)", minutes(repaired(0.5)), minutes(repaired(2.0))),
        Effect("time until people decide (half, twice)", minutes(decided(0.5)), minutes(decided(2.0))),
    )
    return tuple(sorted(effects, key=lambda effect: -effect.swing))


def loudest(made: Forecast) -> str:
    """The assumption whose range moves the expected losses most; "" where nothing can be lost."""
    part = max(made.parts, key=_losses_swing, default=None)
    return part.name if part is not None and _losses_swing(part) > 0 else ""


def _losses_swing(part: Part) -> float:
    return part.losses * (part.most - part.least)
