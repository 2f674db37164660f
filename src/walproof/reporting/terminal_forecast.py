"""Forecasts as tables for the terminal, and each in one sentence. Lays out; computes nothing."""

import math
from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from walproof.forecasting.answer import Forecast, nines
from walproof.forecasting.sensitivity import Effect, Studied, loudest
from walproof.model.estimate import Estimate
from walproof.reporting.wording import number


def conclusion(made: Forecast) -> str:
    """The answer in one sentence."""
    at_most = "at most " if made.upper_bound else ""
    minutes = made.minutes
    return (
        f"{made.text}, {made.layout}: {number(minutes.value)} minutes a year without writes "
        f"({number(minutes.low)}–{number(minutes.high)}); "
        f"a lost acknowledged commit in {at_most}{made.p_loss.value:.2g} of years "
        f"({made.p_loss.low:.2g}–{made.p_loss.high:.2g}), {made.p_structural.value:.2g} by structure alone"
    )


def forecast_tables(made: Sequence[Studied]) -> list[RenderableType]:
    """All configurations, the first one's failures, what matters most, then what to be careful about."""
    forecasts = [one for one, _ in made]
    first, effects = made[0]
    guards = dict.fromkeys(one.guard for one in forecasts if one.guard)
    caveats = dict.fromkeys(caveat for one in forecasts for caveat in one.caveats)
    return [
        _configurations(forecasts),
        _parts(first),
        *map(Text, _sensitivity(first, effects)),
        *(Text(f"{one.text}: {one.period.text}") for one in forecasts if one.period),
        *(Text(f"guard: {guard}") for guard in guards),
        *(Text(f"caveat: {caveat}", style="yellow") for caveat in caveats),
    ]


def _interval(estimate: Estimate, form: Callable[[float], str] = number) -> str:
    return f"{form(estimate.value)}\n{form(estimate.low)}–{form(estimate.high)}"


def _chance(probability: float) -> str:
    return f"{probability:.2g}"


def _configurations(forecasts: Sequence[Forecast]) -> Table:
    table = Table(
        "", "minutes a year", "p95", "p99.9", "availability", "P(loss a year)", "by structure", "commits lost a year",
        "transactions/s", "p95, ms",
    )  # fmt: skip
    for one in forecasts:
        upper = "≤ " if one.upper_bound else ""
        table.add_row(
            one.text,
            _interval(one.minutes),
            _interval(one.p95_minutes),
            _interval(one.p999_minutes),
            f"{100 * one.availability.value:.5g} %\n{nines(one.availability.value):.1f} nines",
            upper + _interval(one.p_loss, _chance),
            _interval(one.p_structural, _chance),
            "–" if math.isnan(one.commits) else f"{upper}{number(one.commits, 2)}",
            "–" if one.tps is None else _interval(one.tps),
            "–" if one.p95_ms is None else _interval(one.p95_ms),
        )
    return table


def _parts(one: Forecast) -> Table:
    table = Table(
        "failure", "minutes a year", "takeovers a year", "losses a year", "outage from", "drills of it", title=one.text
    )
    for part in one.parts:
        row = (number(part.minutes), f"{part.takeovers:.3g}", f"{part.losses:.2g}", part.basis, part.drilled)
        table.add_row(part.name, *row)
    return table


def _sensitivity(one: Forecast, effects: Sequence[Effect]) -> list[str]:
    lines = [
        f"  {'then' if rank else 'matters most':12}  {effect.assumption}: "
        f"{number(effect.low)} to {number(effect.high)} minutes a year"
        for rank, effect in enumerate(effects[:3])
    ]
    if name := loudest(one):
        lines.append(f"  for losses    rate of {name}, and drills of it")
    return lines
