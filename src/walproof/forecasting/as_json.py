"""Forecasts as one object for JSON: numbers with units in their names."""

from collections.abc import Sequence
from dataclasses import asdict

from walproof.forecasting.failure_rates import Failures
from walproof.forecasting.forecast import Forecast, nines
from walproof.forecasting.sensitivity import Effect, Studied


def forecasts_json(made: Sequence[Studied], failures: Failures, seed: int) -> dict[str, object]:
    """Everything that the tables show, and the assumptions with their sources."""
    return {
        "seed": seed,
        "failures": failures.name,
        "forecasts": [_one(forecast, effects) for forecast, effects in made],
        "assumptions": [kind.model_dump() for kind in failures.kinds],
        "people": {"decide_s": failures.decide_s, "force_s": failures.force_s},
    }


def _one(made: Forecast, effects: Sequence[Effect]) -> dict[str, object]:
    return {
        "configuration": made.text,
        "layout": made.layout,
        # Names of 1.0.0, whose readers may ask for them: no forecast is of a guard any more.
        "guarded": False,
        "guard": "",
        "years": made.years,
        "unavailable_minutes_per_year": asdict(made.minutes),
        "unavailable_minutes_p95": asdict(made.p95_minutes),
        "unavailable_minutes_p999": asdict(made.p999_minutes),
        "availability": asdict(made.availability),
        "availability_nines": nines(made.availability.value),
        "losses_per_year": asdict(made.losses),
        "probability_of_loss_in_a_year": asdict(made.p_loss),
        "probability_of_loss_is_upper_bound": made.upper_bound,
        "probability_of_loss_by_structure": asdict(made.p_structural),
        "durability_nines": nines(1 - made.p_loss.value),
        "lost_commits_per_year": made.commits,
        "minutes_relative_error": made.minutes_error,
        "rare_relative_error": made.rare_error,
        "usual_year": asdict(made.split),
        "not_excluded_by_clean_drills": {**asdict(made.unexcluded), "more": made.unexcluded.more},
        "never_drilled": asdict(made.undrilled),
        "transactions_per_second": None if made.tps is None else asdict(made.tps),
        "commit_latency_p95_ms": None if made.p95_ms is None else asdict(made.p95_ms),
        "period": None if made.period is None else asdict(made.period),
        "parts": [asdict(part) for part in made.parts],
        "sensitivity_minutes": [asdict(effect) for effect in effects],
        "caveats": list(made.caveats),
    }
