"""Events of a price run → its sections: throughput, latency percentiles, equal offered load, breakdown, searches and
predictions. The numbers are pricing's."""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from walproof.model.estimate import Caveat, Estimate
from walproof.model.event import Event, SampleDone, SearchStep
from walproof.model.guarantee import Level
from walproof.model.units import counted
from walproof.pricing.break_even import GOAL
from walproof.pricing.estimates import ArmPrice, PriceTable
from walproof.pricing.latency_breakdown import Breakdown, breakdowns
from walproof.reporting.outline import (
    Bar,
    BarChart,
    Block,
    Cell,
    Column,
    Figure,
    Line,
    LineChart,
    PercentileChart,
    Percentiles,
    Point,
    Prose,
    Section,
    Segment,
    Table,
    columns,
    row,
)
from walproof.reporting.soak_section import soak_sections
from walproof.reporting.wording import (
    NOT_KNOWN,
    arm_name,
    bounded,
    in_bytes,
    interval,
    latencies,
    number,
    part,
    percent,
    ratio,
    ratio_heading,
    workload_name,
)

_OFFERED_CAPTION = (
    "Open loop: levels in neighbouring rows are offered the same transactions per second, and latency counts from "
    "when a transaction was due, so waiting for one's turn is in it. Where the offered rate was not carried, the "
    "backlog grew and there is no latency to show."
)


_STALL_CAPTION = (
    "stalled: seconds, of those measured, in which no transaction ended for 0.1 s or longer; they count in the ratio. "
    "WAL and full-page images per transaction, as the leader counted them."
)


def search_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """Break-even and tuning step by step, then predictions compared with measurements; none without a search."""
    blocks: list[Block] = []
    by_search = attrgetter("search")
    for name, group in groupby(sorted((e for e in events if isinstance(e, SearchStep)), key=by_search), key=by_search):
        steps = list(group)
        known = all(s.tried.get("level") in list(Level) for s in steps)
        if name == "hold-out" and known and all(s.tried.get("measured_tps") for s in steps):
            blocks.append(_hold_out(_latest(steps)))
        elif name == "prediction" and known:
            blocks.append(_predictions(_latest(steps)))
        else:
            blocks.append(_search(name, steps))
    return (Section("searches", "Break-even, tuning and prediction", "", tuple(blocks)),) if blocks else ()


def _latest(steps: Sequence[SearchStep]) -> list[SearchStep]:
    """The last step of each point: a resumed run predicts again."""
    return list({tuple(s.tried.get(k) for k in ("scenario", "level", "clients", "rtt_ms")): s for s in steps}.values())


def _estimate(step: SearchStep) -> Estimate:
    return Estimate(step.value, step.low, step.high)


def _finite(step: SearchStep) -> Estimate:
    low, high = (v if math.isfinite(v) else step.value for v in (step.low, step.high))
    return Estimate(step.value, low, high)


def _tried_text(step: SearchStep) -> str:
    return ", ".join(f"{name} {value}" for name, value in step.tried.items())


def _search(name: str, steps: Sequence[SearchStep]) -> Figure:
    rows = tuple(row(str(n), _tried_text(s), interval(_estimate(s)), s.conclusion) for n, s in enumerate(steps, 1))
    key = "search-" + "".join(c if c.isalnum() else "-" for c in name.lower())
    heads = columns(">step", "tried", ">found (95 % CI)", "conclusion", fold=["tried", "conclusion"])
    table = Table(key, name, heads, rows)
    by_clients = all("clients" in s.tried for s in steps if "answer" not in s.tried)
    lines: dict[str, list[Point]] = {}
    for n, step in enumerate(steps, 1):
        if math.isfinite(step.value) and "final" not in step.tried:
            x = float(step.tried["clients"]) if by_clients else float(n)
            tooltip = f"{_tried_text(step)}: {number(step.value)}; {step.conclusion}"
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


_STOPPED = {
    "precision": "Measuring stopped when every ratio was as precise as asked.",
    "budget": "Measuring stopped when its time was up.",
    "whole checkpoint cycles": "Measured over whole checkpoint cycles.",
    "interrupted": "Measuring was interrupted; what follows is what was measured until then.",
}


def price_sections(events: Sequence[Event], table: PriceTable) -> tuple[Section, ...]:
    """Sections of what was priced; `table` is the events' own, which takes long to compute; none when nothing was."""
    made: list[Section] = []
    if any(isinstance(e, SampleDone) for e in events):
        if table.arms:
            made += [_throughput(table), _percentiles(table)]
        of_groups = breakdowns(events)
        made += [_breakdown(of_groups)] if of_groups else []
    return (*made, *soak_sections(events), *search_sections(events))


def _price_table(arms: Sequence[ArmPrice], baseline: str) -> Table:
    heads = columns(
        "scenario", "workload", "level", ">clients", ">tps", f">{ratio_heading(baseline)}", ">mean ms", ">p50 ms",
        ">p95 ms", ">p99 ms", ">blocks", "caveats",
        title=["scenario", "workload"], n=["clients"], drop=["mean ms", "p50 ms"], range=["blocks"], letter=["caveats"],
    )  # fmt: skip
    rows = []
    for p in arms:
        values = [interval(p.tps), ratio(p.ratio), *latencies(p.latency), str(p.blocks)]
        rows.append(row(*_named(p), *values, Cell(", ".join(p.caveats), "warn")))
        for one in p.classes:
            name = Cell(f"· {one.level} in the mix", one.level)
            rows.append(row("", "", name, "", interval(one.tps), "", *latencies(one.latency), "", ""))
    return _table("price", "price", heads, rows)


def _stalls(arms: Sequence[ArmPrice]) -> Table:
    heads = columns(
        "scenario", "workload", "level", ">clients", ">ratio without stalls", ">p99.9 ms", ">longest ms", ">stalled",
        ">WAL", ">full pages", title=["scenario", "workload"], drop=["ratio without stalls", "full pages"],
    )  # fmt: skip
    rows = []
    for p in arms:
        stalled = NOT_KNOWN if math.isnan(p.stalled_s) else f"{p.stalled_s:.1f} of {p.measured_s:.0f} s"
        slowest = (interval(p.latency.p999), number(p.latency.max_ms))
        trimmed = "" if p.ratio.low == p.ratio.high == 1.0 else ratio(p.without_stalls)
        rows.append(row(*_named(p), trimmed, *slowest, stalled, in_bytes(p.wal_bytes), number(p.full_pages, 2)))
    return _table("stalls", "tail, stalls and WAL per transaction", heads, rows)


def _named(p: ArmPrice, name: str = "") -> tuple[Cell | str, ...]:
    return p.scenario.text, workload_name(p), Cell(name or arm_name(p), _tone(p)), str(p.arm.clients)


def _table(key: str, title: str, heads: Sequence[Column], rows: Sequence[tuple[Cell, ...]]) -> Table:
    """A table in which a scenario, workload or caveat that is the same in every row stands in the title instead."""
    same: dict[int, str] = {}
    for i, column in enumerate(heads):
        texts = {r[i].text for r in rows if column.name in ("scenario", "workload", "caveats") and r[0].text}
        if len(texts) == 1:
            text = texts.pop()
            same[i] = f"caveats: {text}" if column.name == "caveats" and text else text
    shown = [i for i in range(len(heads)) if i not in same]
    narrowed = tuple(tuple(r[i] for i in shown) for r in rows)
    heading = " · ".join(text for text in (title, *same.values()) if text)
    return Table(key, heading, tuple(heads[i] for i in shown), narrowed)


def _panels(table: PriceTable) -> list[tuple[str, list[ArmPrice]]]:
    """Arms by scenario, workload and route, with the panel's title: only what differs is named."""

    def where(price: ArmPrice) -> tuple[str, str]:
        return price.scenario.text, workload_name(price)

    arms = sorted(table.arms, key=lambda p: [where(a) for a in table.arms].index(where(p)))
    grouped = [(key, list(group)) for key, group in groupby(arms, key=where)]
    several = len({workload for (_, workload), _ in grouped}) > 1
    return [(f"{scenario} · {workload}" if several else scenario, group) for (scenario, workload), group in grouped]


def _throughput(table: PriceTable) -> Section:
    charts = tuple(_ratio_chart(title, arms, str(table.baseline)) for title, arms in _panels(table))
    levels = dict.fromkeys((arm_name(p), _tone(p)) for p in table.arms)
    caveats = tuple(
        f"{p.scenario.text}, {arm_name(p)} with {counted(p.arm.clients, 'client')}: {', '.join(p.caveats)}"
        for p in table.arms
        if p.caveats
    )
    caption = (
        f"Throughput of each level divided by that of {table.baseline} in the same block, with 95 % intervals; "
        "hollow marks carry a caveat."
    )
    numbers = _price_table(table.arms, str(table.baseline))
    figure = Figure("throughput", "Throughput ratio", caption, charts, tuple(levels), numbers, caveats)
    blocks = (figure, _stalls(table.arms), Prose((_STALL_CAPTION,)))
    return Section("price", "What it costs", _STOPPED.get(table.stopped_by, ""), blocks)


def _tone(price: ArmPrice) -> str:
    return "other" if price.arm.mix or price.arm.label or price.arm.rate else str(price.arm.level)


def _ratio_chart(title: str, arms: Sequence[ArmPrice], baseline: str) -> LineChart:
    groups: dict[tuple[str, str], list[Point]] = {}
    for p in arms:
        if math.isfinite(p.ratio.value):
            point = Point(float(p.arm.clients), p.ratio, _tooltip(p), bool(p.caveats))
            groups.setdefault((arm_name(p), _tone(p)), []).append(point)
    lines = [Line(name, tone, tuple(sorted(points, key=lambda d: d.x))) for (name, tone), points in groups.items()]
    return LineChart(title, "clients", f"throughput ratio to {baseline}", tuple(lines), reference=1.0)


def _tooltip(p: ArmPrice) -> str:
    caveats = f" — caveats: {', '.join(p.caveats)}" if p.caveats else ""
    latency = f"p50 {bounded(p.latency.p50)}, p95 {bounded(p.latency.p95)} ms"
    arm = f"{arm_name(p)}, {counted(p.arm.clients, 'client')}"
    return f"{arm}: {ratio(p.ratio)}; {interval(p.tps)} tps; {latency}{caveats}"


def _percentiles(table: PriceTable) -> Section:
    charts = []
    for title, arms in _panels(table):
        bars = []
        for p in arms:
            shown = {"p50": p.latency.p50, "p95": p.latency.p95, "p99": p.latency.p99}
            values = (p.latency.p50.value, p.latency.p95.value, p.latency.p99.value)
            if all(math.isfinite(v) and v > 0 for v in values):
                listed = ", ".join(f"{name} {bounded(ms)} ms" for name, ms in shown.items())
                tooltip = f"{arm_name(p)}, {counted(p.arm.clients, 'client')}: {listed}"
                bars.append(Percentiles(f"{arm_name(p)} · {p.arm.clients}", _tone(p), values, tooltip))
        charts.append(PercentileChart(title, "ms", tuple(bars)))
    heads = columns(
        "scenario", "workload", "level", ">clients", ">mean ms", ">p50 ms", ">p95 ms", ">p99 ms",
        title=["scenario", "workload"], n=["clients"], drop=["mean ms"],
    )  # fmt: skip
    rows = [
        row(*_named(p), *map(interval, (p.latency.mean, p.latency.p50, p.latency.p95, p.latency.p99)))
        for p in table.arms
    ]
    caption = (
        "From the median (left end) over the 95th (mark) to the 99th percentile (right end), by level and clients."
    )
    numbers = _table("latency", "latencies (95 % CI)", heads, rows)
    figure = Figure("percentiles", "Latency percentiles", caption, tuple(charts), (), numbers)
    offered = [p for p in table.arms if p.arm.rate]
    blocks = (_offered(offered), Prose((_OFFERED_CAPTION,))) if offered else ()
    return Section("latency", "How long a commit takes", "", (figure, *blocks))


def _offered(arms: Sequence[ArmPrice]) -> Table:
    """Open-loop arms: what was offered, carried, and latencies with intervals in ms."""
    heads = columns(
        "scenario", "workload", "level", ">clients", ">offered tps", ">carried tps", ">p50 ms", ">p95 ms", ">p99 ms",
        ">p99.9 ms", title=["scenario", "workload"], bare=["carried tps", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms"],
    )  # fmt: skip
    rows = []
    for p in sorted(
        arms, key=lambda p: (p.scenario.text, p.arm.clients, p.arm.route, p.arm.workload.text, p.arm.rate or 0.0)
    ):
        latency = (p.latency.p50, p.latency.p95, p.latency.p99, p.latency.p999)
        overloaded = Caveat.OVERLOAD in p.caveats
        shown = ["overload", *3 * [NOT_KNOWN]] if overloaded else [interval(e) for e in latency]
        where = _named(p, arm_name(p).partition(" at ")[0])
        rows.append(row(*where, number(p.arm.rate), interval(p.tps), *shown))
    return _table("offered", "latency at equal offered rate", heads, rows)


def _breakdown(of_groups: Sequence[Breakdown]) -> Section:
    names = list(dict.fromkeys(p.name for a in of_groups for p in a.parts))
    bars, rows = [], []
    for a in of_groups:
        # The first part is a latency, the others are differences, which may be nothing.
        first, *others = a.parts
        cells = {p.name: Cell(part(p.ms), "unresolved" if p.ms.covers(0.0) else "") for p in others}
        cells[first.name] = Cell(interval(first.ms))
        where = (a.scenario.text, Cell(a.level, a.level), str(a.clients))
        rows.append(row(*where, *(cells.get(n, "") for n in names), number(a.sum_ms), interval(a.measured)))
        segments = tuple(Segment(p.name, max(0.0, p.ms.value), f"{p.name}, ms: {cells[p.name].text}") for p in a.parts)
        bars.append((a.scenario.text, Bar(f"{a.level} · {a.clients}", segments, a.measured.value)))
    charts = tuple(
        BarChart(title, "ms", tuple(bar for _, bar in group)) for title, group in groupby(bars, key=lambda b: b[0])
    )
    legend = tuple((name, f"segment{i % 6}") for i, name in enumerate(names))
    caption = (
        "What each level adds, from paired differences between neighbouring levels, with 95 % intervals (the network "
        "has none where its round trip was measured once); the mark is what was measured."
    )
    heads = columns(
        *("scenario", "level", ">clients", *(f">{n}" for n in names), ">sum", ">measured"), title=["scenario", "level"]
    )
    numbers = _table("breakdown", "commit latency breakdown, ms (≤: not distinguishable from 0)", heads, rows)
    figure = Figure("latency-breakdown", "Commit latency breakdown", caption, charts, legend, numbers)
    # The sentence of the most clients of each scenario.
    most = {a.scenario: a.bottleneck for a in sorted(of_groups, key=lambda a: a.clients)}
    return Section("breakdown", "Where the time goes", "", (figure, Prose(tuple(most.values()))))
