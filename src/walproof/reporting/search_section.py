"""Searches and predictions of a price run → their section. The numbers are pricing's."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from walproof.model.estimate import Estimate
from walproof.model.event import Event, SearchStep
from walproof.model.guarantee import Level
from walproof.model.units import counted
from walproof.pricing.break_even import GOAL
from walproof.reporting.outline import Block, Cell, Figure, Line, LineChart, Point, Section, Table, columns, row
from walproof.reporting.wording import interval, number, percent


def search_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """Break-even and tuning step by step, then predictions compared with measurements; none without a search."""
    blocks: list[Block] = []
    for name, group in _by_search([e for e in events if isinstance(e, SearchStep) and "answer" not in e.tried]):
        steps = list(group)
        known = all(s.tried.get("level") in list(Level) for s in steps)
        if name == "hold-out" and known and all(s.tried.get("measured_tps") for s in steps):
            blocks.append(_hold_out(_latest(steps)))
        elif name == "prediction" and known:
            blocks.append(_predictions(_latest(steps)))
        else:
            blocks.append(_search(name, steps))
    return (Section("searches", "Break-even, tuning and prediction", "", tuple(blocks)),) if blocks else ()


def _by_search(steps: Iterable[SearchStep]) -> Iterable[tuple[str, Iterable[SearchStep]]]:
    return groupby(sorted(steps, key=lambda s: s.search), key=lambda s: s.search)


def _latest(steps: Sequence[SearchStep]) -> list[SearchStep]:
    """The last step of each point: a resumed run predicts again."""
    return list({tuple(s.tried.get(k) for k in ("scenario", "level", "clients", "rtt_ms")): s for s in steps}.values())


def _estimate(step: SearchStep) -> Estimate:
    return Estimate(step.value, step.low, step.high)


def _finite(step: SearchStep) -> Estimate:
    low, high = (v if math.isfinite(v) else step.value for v in (step.low, step.high))
    return Estimate(step.value, low, high)


def tried_text(step: SearchStep) -> str:
    """What a step tried: names and values."""
    return ", ".join(f"{name} {value}" for name, value in step.tried.items())


def _search(name: str, steps: Sequence[SearchStep]) -> Figure:
    rows = tuple(row(str(n), tried_text(s), interval(_estimate(s)), s.conclusion) for n, s in enumerate(steps, 1))
    key = "search-" + "".join(c if c.isalnum() else "-" for c in name.lower())
    table = Table(key, name, columns(">step", "tried", ">found (95 % CI)", "conclusion"), rows)
    by_clients = all("clients" in s.tried for s in steps)
    lines: dict[str, list[Point]] = {}
    for n, step in enumerate(steps, 1):
        if math.isfinite(step.value) and "final" not in step.tried:
            x = float(step.tried["clients"]) if by_clients else float(n)
            tooltip = f"{tried_text(step)}: {number(step.value)}; {step.conclusion}"
            level = str(step.tried.get("level", "other"))
            tone = level if level in list(Level) else "other"
            lines.setdefault(tone, []).append(Point(x, _finite(step), tooltip))
    drawn = tuple(Line(tone, tone, tuple(sorted(points, key=lambda d: d.x))) for tone, points in lines.items())
    y_name = {"break-even": "ratio to the baseline's peak", "tuning": "tps"}.get(name, "value")
    goal = GOAL if name == "break-even" else None
    chart = LineChart(name, "clients" if by_clients else "step", y_name, drawn, reference=goal, x_log=by_clients)
    caption = f"The dashed line is the goal, {percent(GOAL)}." if goal else "Everything that was tried, in order."
    legend = tuple((tone, tone) for tone in lines if tone != "other")
    return Figure(key, name.capitalize(), caption, (chart,), legend, table)


def _hold_out(steps: Sequence[SearchStep]) -> Figure:
    lines, rows = [], []
    ordered = sorted(steps, key=lambda s: (list(Level).index(_level(s)), float(s.tried["measured_tps"])))
    for level, of_level in groupby(ordered, key=_level):
        points = []
        for step in of_level:
            predicted, measured = _finite(step), float(step.tried["measured_tps"])
            clients = int(step.tried.get("clients", 0))
            where = f"{level}, {counted(clients, 'client')}, rtt {number(_rtt(step))} ms"
            tooltip = f"{where}: measured {number(measured)}, predicted {interval(predicted)} tps"
            points.append(Point(measured, predicted, tooltip, hollow=not predicted.covers(measured)))
            cells: list[Cell | str] = [Cell(level, level), str(clients), number(_rtt(step))]
            rows.append(row(*cells, number(measured), interval(predicted), step.conclusion))
        lines.append(Line(str(level), str(level), tuple(points)))
    heads = columns("level", ">clients", ">rtt ms", ">measured tps", ">predicted tps (95 %)", ">conclusion")
    table = Table("hold-out", "points left out of the fit", heads, tuple(rows))
    chart = LineChart(
        "predicted against measured", "measured tps", "predicted tps", tuple(lines), diagonal=True, y_log=True
    )
    caption = (
        "Each point was predicted from the others; on the dashed line it would be exact. Hollow: outside its interval."
    )
    return Figure("hold-out", "Prediction", caption, (chart,), tuple((x.name, x.tone) for x in lines), table)


def _level(step: SearchStep) -> Level:
    return Level(step.tried["level"])


def _rtt(step: SearchStep) -> float | None:
    rtt = step.tried.get("rtt_ms")
    return None if rtt is None else float(rtt)


def _predictions(steps: Sequence[SearchStep]) -> Table:
    rows = tuple(
        row(
            str(s.tried.get("scenario", "")),
            Cell(_level(s), _level(s)),
            str(s.tried.get("clients")),
            number(_rtt(s)),
            interval(_estimate(s)),
        )
        for s in steps
    )
    heads = columns("scenario", "level", ">clients", ">rtt ms", ">tps (95 %)")
    return Table("predicted", "predicted, not measured", heads, rows)
