"""Searches and predictions of a price run → their section. The numbers are pricing's."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from walproof.model.estimate import Estimate
from walproof.model.event import Event, SearchStep
from walproof.model.guarantee import Level
from walproof.pricing.break_even import GOAL
from walproof.reporting.outline import Block, Cell, Chart, Dot, Figure, Line, Section, Table, columns, row
from walproof.reporting.wording import found, number, percent


def search_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """Break-even and tuning step by step, then predictions beside what was measured; none when none was asked."""
    blocks: list[Block] = []
    for name, group in _by_search([e for e in events if isinstance(e, SearchStep) and "answer" not in e.tried]):
        steps = list(group)
        known = all(s.tried.get("level") in list(Level) for s in steps)
        if name == "hold-out" and known and all(s.tried.get("measured_tps") for s in steps):
            blocks.append(_held_out(_last(steps)))
        elif name == "prediction" and known:
            blocks.append(_foretold(_last(steps)))
        else:
            blocks.append(_search(name, steps))
    return (Section("searches", "Break-even, tuning and prediction", "", tuple(blocks)),) if blocks else ()


def _by_search(steps: Iterable[SearchStep]) -> Iterable[tuple[str, Iterable[SearchStep]]]:
    return groupby(sorted(steps, key=lambda s: s.search), key=lambda s: s.search)


def _last(steps: Sequence[SearchStep]) -> list[SearchStep]:
    """The last word on each point: a resumed run predicts anew."""
    return list({tuple(s.tried.get(k) for k in ("scenario", "level", "clients", "rtt_ms")): s for s in steps}.values())


def _search(name: str, steps: Sequence[SearchStep]) -> Figure:
    rows = tuple(
        row(str(n), _tried(s), found(Estimate(s.value, s.low, s.high)), s.conclusion) for n, s in enumerate(steps, 1)
    )
    key = "search-" + "".join(c if c.isalnum() else "-" for c in name.lower())
    table = Table(key, name, columns(">step", "tried", ">found (95 %)", "so"), rows)
    by_clients = all("clients" in s.tried for s in steps)
    shown = [(n, s) for n, s in enumerate(steps, 1) if math.isfinite(s.value) and "final" not in s.tried]
    lines: dict[str, list[Dot]] = {}
    for n, step in shown:
        x = float(step.tried["clients"]) if by_clients else float(n)
        says = f"{_tried(step)}: {number(step.value)}; {step.conclusion}"
        level = str(step.tried.get("level", "other"))
        lines.setdefault(level if level in list(Level) else "other", []).append(Dot(x, _finite(step), says))
    drawn = tuple(Line(tone, tone, tuple(sorted(dots, key=lambda d: d.x))) for tone, dots in lines.items())
    y_name = {"break-even": "of the baseline's peak", "tuning": "tps"}.get(name, "value")
    rule = GOAL if name == "break-even" else None
    chart = Chart(name, "clients" if by_clients else "step", y_name, drawn, rule=rule, x_log=by_clients)
    says = f"The dashed line is the goal, {percent(GOAL)}." if rule else "Every way that was tried, in order."
    legend = tuple((tone, tone) for tone in lines if tone != "other")
    return Figure(key, name.capitalize(), says, (chart,), legend, table)


def _finite(step: SearchStep) -> Estimate:
    low, high = (v if math.isfinite(v) else step.value for v in (step.low, step.high))
    return Estimate(step.value, low, high)


def _tried(step: SearchStep) -> str:
    return ", ".join(f"{name} {value}" for name, value in step.tried.items())


def _held_out(steps: Sequence[SearchStep]) -> Figure:
    lines, rows = [], []
    ordered = sorted(steps, key=lambda s: (list(Level).index(_level(s)), float(s.tried["measured_tps"])))
    for level, mine in groupby(ordered, key=_level):
        dots = []
        for step in mine:
            said, measured = _finite(step), float(step.tried["measured_tps"])
            where = f"{level}, {step.tried.get('clients')} clients, rtt {number(_rtt(step))} ms"
            words = f"{where}: measured {number(measured)}, predicted {found(said)} tps"
            dots.append(Dot(measured, said, words, doubted=not said.covers(measured)))
            cells: list[Cell | str] = [Cell(level, level), str(step.tried.get("clients")), number(_rtt(step))]
            rows.append(row(*cells, number(measured), found(said), step.conclusion))
        lines.append(Line(str(level), str(level), tuple(dots)))
    heads = columns("level", ">clients", ">rtt ms", ">measured tps", ">predicted tps (95 %)", ">so")
    table = Table("held-out", "points that the fit was not shown", heads, tuple(rows))
    chart = Chart(
        "predicted against measured", "measured tps", "predicted tps", tuple(lines), diagonal=True, y_log=True
    )
    says = (
        "Each point was predicted from the others; on the dashed line it would be exact. Hollow: outside its interval."
    )
    return Figure("held-out", "Prediction", says, (chart,), tuple((x.name, x.tone) for x in lines), table)


def _level(step: SearchStep) -> Level:
    return Level(step.tried["level"])


def _rtt(step: SearchStep) -> float | None:
    told = step.tried.get("rtt_ms")
    return None if told is None else float(told)


def _foretold(steps: Sequence[SearchStep]) -> Table:
    rows = tuple(
        row(
            str(s.tried.get("scenario", "")),
            Cell(_level(s), _level(s)),
            str(s.tried.get("clients")),
            number(_rtt(s)),
            found(Estimate(s.value, s.low, s.high)),
        )
        for s in steps
    )
    heads = columns("setting", "level", ">clients", ">rtt ms", ">tps (95 %)")
    return Table("predicted", "predicted, not measured", heads, rows)
