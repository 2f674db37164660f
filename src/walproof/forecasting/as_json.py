"""Forecasts as one JSON object: numbers with units in their names, null where there is no number."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from walproof.forecasting.failure_rates import Failures
from walproof.forecasting.forecast import Forecast, nines
from walproof.forecasting.sensitivity import Effect, Studied
from walproof.model.estimate import Estimate


def forecasts_json(made: Sequence[Studied], failures: Failures, seed: int) -> dict[str, object]:
    """Everything that the tables show, and the assumptions with their sources."""
    return {
        "seed": seed,
        "failures": failures.name,
        "forecasts": [_one(forecast, effects) for forecast, effects in made],
        "assumptions": [asdict(kind) for kind in failures.kinds],
        "people": {"decide_s": failures.decide_s, "force_s": failures.force_s},
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"value": _number(estimate.value), "low": _number(estimate.low), "high": _number(estimate.high)}


def _one(made: Forecast, effects: Sequence[Effect]) -> dict[str, object]:
    return {
        "configuration": made.text,
        "layout": made.layout,
        "guarded": made.what.guarded,
        "guard": made.guard,
        "years": made.years,
        "unavailable_minutes_per_year": _estimate(made.minutes),
        "unavailable_minutes_p95": _estimate(made.p95_minutes),
        "unavailable_minutes_p999": _estimate(made.p999_minutes),
        "availability": _estimate(made.availability),
        "availability_nines": _number(nines(made.availability.value)),
        "losses_per_year": _estimate(made.losses),
        "probability_of_loss_in_a_year": _estimate(made.p_loss),
        "probability_of_loss_is_upper_bound": made.upper_bound,
        "probability_of_loss_by_structure": _estimate(made.p_structural),
        "durability_nines": _number(nines(1 - made.p_loss.value)),
        "lost_commits_per_year": _number(made.commits),
        "rare_relative_error": _number(made.rare_error),
        "transactions_per_second": _estimate(made.tps),
        "commit_latency_p95_ms": _estimate(made.p95_ms),
        "period": None if made.period is None else asdict(made.period),
        "parts": [asdict(part) for part in made.parts],
        "sensitivity_minutes": [asdict(effect) for effect in effects],
        "caveats": list(made.caveats),
    }
