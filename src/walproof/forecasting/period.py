"""What one period of a cluster may bring: in which interval its seconds without writes and its lost commits fall.

A forecast of a mean is refuted by no single year; this one can be: `benchmarks/forecast_true.py` runs periods. Seeded.
"""

import numpy as np

from walproof.forecasting.answer import Period, chance_losses, promised
from walproof.forecasting.behaviour import Model
from walproof.forecasting.episodes import Floats
from walproof.forecasting.simulate import Batch, Risk, periods
from walproof.model.estimate import Estimate

PERIODS = 1000
SHARE = 0.9
"""Of all periods that fall into the interval."""


def one_period(model: Model, period_s: float, seed: int, *, vary: bool = True) -> Period:
    """The intervals from a thousand simulated periods; rates and drills are drawn anew for each 25 of them."""
    batches = periods(model, PERIODS, period_s, seed, vary=vary)
    rng = np.random.default_rng([seed, 5])
    seconds = np.concatenate([b.years_s for b in batches])
    lost = np.concatenate([_lost(model, batch, rng) for batch in batches])
    return Period(period_s, _interval(seconds), _interval(np.rint(lost)))


def _interval(values: Floats) -> Estimate:
    low, middle, high = np.quantile(values, ((1 - SHARE) / 2, 0.5, (1 + SHARE) / 2))
    return Estimate(float(middle), float(low), float(high))


def _lost(model: Model, batch: Batch, rng: np.random.Generator) -> Floats:
    """Lost commits of each period of a batch: of stale promotions what was served alone, else as drilled; one commit
    where no drill lost any.
    """
    lost = batch.alone_s * model.measured.acknowledged_per_s
    for risk in (Risk.TAKEOVER, Risk.UNFLUSHED, Risk.NEAR):
        for number, failure in enumerate(model.failures.kinds):
            seen = chance_losses(model, risk, failure)
            if not batch.risks[risk, number] or (promised(model, risk) and not seen.losing):
                continue
            chance = rng.beta(seen.losing + 0.5, seen.drills - seen.losing + 0.5) if seen.drills else 1.0
            losing = rng.poisson(batch.risks[risk, number] * chance, len(lost))
            sizes = np.asarray(model.measured.sizes(failure.name, seen) or (1,), dtype=np.float64)
            lost += np.array([rng.choice(sizes, count).sum() for count in losing])
    return lost
