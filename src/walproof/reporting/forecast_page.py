"""Forecasts → the outline of their page: risk against price, its parts, every assumption with its source. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from walproof.forecasting.failure_rates import Failures
from walproof.forecasting.forecast import Forecast, chance, nines
from walproof.forecasting.sensitivity import Studied, front, loudest
from walproof.model.estimate import Estimate
from walproof.model.units import counted
from walproof.reporting.outline import (
    Cell,
    Figure,
    Outline,
    Prose,
    ScatterChart,
    ScatterPoint,
    Section,
    Table,
    columns,
    row,
)
from walproof.reporting.wording import NOT_KNOWN, count, interval, number, percent, seconds

MOST_EFFECTS = 5
MOST_SENTENCES = 3
MOST_NAMED = 3


def forecast_outline(made: Sequence[Studied], failures: Failures, records: Sequence[str], seed: int) -> Outline:
    """The page's outline. The order of configurations is that of the command line, which numbers them."""
    forecasts = [one for one, _ in made]
    first = forecasts[0]
    periods = (f"{one.text}: {one.period.text}" for one in forecasts if one.period)
    notices = tuple(dict.fromkeys((*periods, *(caveat for one in forecasts for caveat in one.caveats))))
    parts = (_parts(first), *(replace(_parts(one), page_only=True) for one in forecasts[1:]))
    sections = (
        Section("risk", "Risk against price", _intro(forecasts), (_table(forecasts), _figure(forecasts))),
        Section("parts", "What stops writes, what loses commits", "", parts),
        Section("sensitivity", "Which assumption matters most", _SENSITIVITY, (_effects(made),)),
        Section("assumptions", "What is assumed", _ASSUMED, (_people(failures), _rates(failures, first))),
    )
    facts = (
        ("layout", first.layout),
        ("drills", ", ".join(records)),
        ("rates", failures.name),
        ("years", f"{first.years:,} simulated, seed {seed}"),
    )
    return Outline(
        "What a year costs and loses",
        facts,
        tuple(_conclusion(one) for one in _unbeaten(forecasts))[:MOST_SENTENCES],
        notices,
        sections,
        "drills, failure rates and the simulated years named here",
    )


def _conclusion(made: Forecast) -> str:
    """The answer in words: the usual year, the bad one and where it comes from; losses, and what drills leave open."""
    minutes, split = made.minutes, made.split
    return (
        f"{made.text}, {made.layout}: {split.percent} years in 100 with at most {_length(split.below)} without writes, "
        f"the others with {_length(split.others)} (median), {_mostly(made)}; {number(minutes.value)} minutes a year in "
        f"the mean ({number(minutes.low)}–{number(minutes.high)}). {_lost(made)}"
    )


def _mostly(made: Forecast) -> str:
    """Which failures the minutes come from; every rate is an assumption of the file."""
    first, *others = made.parts
    share = first.minutes / max(made.minutes.value, 1e-9)
    words = "nearly all from" if share > 0.8 else "most from" if share > 0.5 else "the largest part from"
    also = f" and {others[0].name}" if share <= 0.5 and others else ""
    return f"{words} {first.name}{also} (assumed rate)"


def _lost(made: Forecast) -> str:
    """What structure gives, what was never drilled, what clean drills do not exclude; and what further drills give."""
    never, left = made.undrilled, made.unexcluded
    parts = [f"A lost acknowledged commit {_one_in(made.p_structural)} by structure"]
    if made.upper_bound:
        after = made.losses.value - never.less
        parts.append(
            f"at most {_one_in(made.p_loss)}, because never drilled: {_named(never.failures)}; after one clean drill "
            f"each of {', '.join(never.drills)} at most {_one_in(chance(Estimate(after, after, after)))}"
        )
    if left.clean:
        done = sum(drills for _, drills in left.clean)
        verb = "does" if done == 1 else "do"
        parts.append(
            f"{counted(done, 'clean drill')} of {counted(len(left.clean), 'fault')} {verb} not exclude one "
            f"{_one_in(chance(left.losses))}, {left.more} more would halve that"
        )
    return "; ".join(parts) if parts[1:] else f"{parts[0]}, as drilled"


def _named(failures: Sequence[str]) -> str:
    return ", ".join(failures[:MOST_NAMED]) + ("…" if len(failures) > MOST_NAMED else "")


def _one_in(p: Estimate) -> str:
    """A probability a year as architects say it."""
    if p.value >= 0.1:
        return f"in {100 * p.value:.2g} % of years"
    return f"in 1 year in {count(round(1 / p.value, 1 - len(str(int(1 / p.value)))))}" if p.value > 0 else "never"


def _length(minutes: float) -> str:
    return f"{number(minutes)} minutes" if minutes < 120 else f"{number(minutes / 60)} hours"


_SENSITIVITY = "Each assumption is moved to the ends of its range alone; minutes a year without writes at either end."
_ASSUMED = "Nothing here was measured on this cluster; --failures FILE takes your own."


def _intro(forecasts: Sequence[Forecast]) -> str:
    priced = any(one.tps for one in forecasts)
    unpriced = "" if priced else " No price is among the records: give one of walproof price to see throughput too."
    return f"Each configuration by its number in the table; the dashed line joins those that no other beats.{unpriced}"


def _unbeaten(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """Those that no other beats in minutes, in losses and, where all are priced, in throughput."""
    priced = all(one.tps for one in forecasts)
    choices = [(f.minutes.value, f.p_loss.value, -f.tps.value if priced and f.tps else 0.0) for f in forecasts]
    return [one for one, best in zip(forecasts, front(choices), strict=True) if best]


def _drawn(estimate: Estimate | None) -> Estimate:
    """What is drawn: the value itself where there is no finite interval."""
    if estimate is None:
        return Estimate(math.nan, math.nan, math.nan)
    low, high = (end if math.isfinite(end) else estimate.value for end in (estimate.low, estimate.high))
    return Estimate(estimate.value, low, high)


Axis = tuple[str, Callable[[Forecast], Estimate]]
_MINUTES: Axis = ("minutes a year without writes", attrgetter("minutes"))
_CHANCE: Axis = ("P(loss a year)", attrgetter("p_loss"))
_TPS: Axis = ("transactions/s", lambda one: _drawn(one.tps))
_P95_MS: Axis = ("p95 of a commit, ms", lambda one: _drawn(one.p95_ms))


def _figure(forecasts: Sequence[Forecast]) -> Figure:
    charts = [_chart(forecasts, "two risks", _MINUTES, _CHANCE)]
    if any(one.tps for one in forecasts):
        charts += [
            _chart(forecasts, "losses against throughput", _TPS, _CHANCE, more_is_better=True),
            _chart(forecasts, "minutes against throughput", _TPS, _MINUTES, more_is_better=True),
            _chart(forecasts, "losses against latency", _P95_MS, _CHANCE),
        ]
    tones = dict.fromkeys(str(one.what.level) for one in forecasts)
    caption = (
        "Bars are 95 % intervals: what rates and drills leave open. Hollow: an upper bound, because a loss counts as "
        "certain after failures that were never drilled."
    )
    legend = tuple((tone, tone) for tone in tones)
    return Figure("pareto", "Pareto front", caption, tuple(charts), legend, _fronts(forecasts, charts))


def _fronts(forecasts: Sequence[Forecast], charts: Sequence[ScatterChart]) -> Table:
    """Which pictures show each configuration on the line that joins those that no other beats."""
    by_label = [{p.label: p for p in chart.points} for chart in charts]
    rows = tuple(
        row(f"{n}: {one.text}", *(_position(points.get(str(n))) for points in by_label))
        for n, one in enumerate(forecasts, 1)
    )
    heads = columns("configuration", *(f"{chart.title}: {chart.x_name}, {chart.y_name}" for chart in charts))
    return Table("pareto", "where each configuration stands", heads, rows, page_only=True)


def _position(point: ScatterPoint | None) -> Cell:
    if point is None:
        return Cell(NOT_KNOWN, "quiet")
    place = f"{number(point.x.value)}, {number(point.y.value)}"
    return Cell(f"{place}: no other beats it", "good") if point.best else Cell(place)


def _chart(
    forecasts: Sequence[Forecast], title: str, across: Axis, up: Axis, *, more_is_better: bool = False
) -> ScatterChart:
    shown = [(n, one) for n, one in enumerate(forecasts, 1) if math.isfinite(across[1](one).value)]
    sign = -1.0 if more_is_better else 1.0
    best = front([(sign * across[1](one).value, up[1](one).value) for _, one in shown])
    points = tuple(
        ScatterPoint(
            str(n),
            str(one.what.level),
            across[1](one),
            up[1](one),
            f"{n}: {one.text}: {across[0]} {interval(across[1](one))}, {up[0]} {interval(up[1](one))}",
            unbeaten,
            one.upper_bound,
        )
        for (n, one), unbeaten in zip(shown, best, strict=True)
    )
    return ScatterChart(title, across[0], up[0], points)


def _table(forecasts: Sequence[Forecast]) -> Table:
    heads = columns(
        "configuration", ">minutes a year (95 %)", ">p95", ">p99.9", ">availability", ">P(loss a year) (95 %)",
        ">by structure", ">own error", ">commits lost a year", ">transactions/s (95 %)", ">p95 ms",
    )  # fmt: skip
    rows = tuple(
        row(
            f"{n}: {one.text}",
            interval(one.minutes),
            interval(one.p95_minutes),
            interval(one.p999_minutes),
            f"{100 * one.availability.value:.5g} %, {nines(one.availability.value):.1f} nines",
            ("≤ " if one.upper_bound else "") + interval(one.p_loss),
            f"{one.p_structural.value:.2g} ({one.p_structural.low:.2g}–{one.p_structural.high:.2g})",
            f"{percent(one.minutes_error)}, {percent(one.rare_error)}",
            NOT_KNOWN if math.isnan(one.commits) else ("≤ " if one.upper_bound else "") + number(one.commits),
            NOT_KNOWN if one.tps is None else interval(one.tps),
            NOT_KNOWN if one.p95_ms is None else interval(one.p95_ms),
        )
        for n, one in enumerate(forecasts, 1)
    )
    return Table("forecasts", "configurations", heads, rows)


def _parts(one: Forecast) -> Table:
    heads = columns(
        *("failure", ">minutes a year", ">takeovers a year", ">losses a year", "outage from", "drills of it"),
        letter=["outage from", "drills of it"],
    )
    rows = tuple(
        row(p.name, number(p.minutes), f"{p.takeovers:.2g}", f"{p.losses:.2g}", p.basis, p.drilled) for p in one.parts
    )
    return Table("parts-" + "-".join(one.text.lower().split()), f"by failure · {one.text}", heads, rows)


def _effects(made: Sequence[Studied]) -> Table:
    rows = []
    for one, effects in made:
        rows += [row(one.text, e.assumption, number(e.low), number(e.high)) for e in effects[:MOST_EFFECTS]]
        if name := loudest(one):
            rows.append(row(one.text, f"for losses: rate of {name}, and drills of it", NOT_KNOWN, NOT_KNOWN))
    heads = columns("configuration", "assumption", ">from", ">to", title=["configuration"])
    return Table("sensitivity", "minutes a year by assumption", heads, tuple(rows))


def _people(failures: Failures) -> Prose:
    return Prose(
        (
            f"People promote a standby that lacks commits after {seconds(failures.decide_s)} when nothing better can "
            f"come back, after {seconds(failures.force_s)} while a member with every commit still may.",
        )
    )


def _rates(failures: Failures, first: Forecast) -> Table:
    """What weighs most comes first: minutes that episodes of it make."""
    weight = {part.name: place for place, part in enumerate(first.parts)}
    heads = columns("failure", "of each", ">a year", ">from", ">to", ">repair", "data", "drills", "source")
    rows = tuple(
        row(
            k.name, str(k.place), f"{k.per_year:g}", f"{k.low:g}", f"{k.high:g}", seconds(k.repair_s), str(k.data),
            ", ".join(k.drills), " ".join(word for word in (k.source, k.address) if word),
        )
        for k in sorted(failures.kinds, key=lambda kind: weight.get(kind.name, len(weight)))
    )  # fmt: skip
    return Table(
        "rates",
        "failure rates and their sources, by their minutes in the first configuration",
        heads,
        rows,
        page_only=True,
    )
