"""Events of a price run → its sections: throughput, latency percentiles, breakdown, searches. Numbers are pricing's."""

import math
from collections.abc import Sequence
from itertools import groupby

from walproof.model.event import Event, SampleDone
from walproof.model.units import counted
from walproof.pricing.estimates import ArmPrice, PriceTable
from walproof.pricing.latency_breakdown import Breakdown, breakdowns
from walproof.reporting.offered_load import OFFERED_CAPTION, OFFERED_TITLE, offered_rows
from walproof.reporting.outline import (
    Bar,
    BarChart,
    Cell,
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
from walproof.reporting.search_section import search_sections
from walproof.reporting.soak_section import soak_sections
from walproof.reporting.stall_table import CAPTION, TITLE, stall_rows
from walproof.reporting.wording import (
    arm_name,
    interval,
    latencies,
    number,
    plus_minus,
    ratio,
    ratio_heading,
    workload_name,
)

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
        found = breakdowns(events)
        made += [_breakdown(found)] if found else []
    return (*made, *soak_sections(events), *search_sections(events))


def _price_table(arms: Sequence[ArmPrice], baseline: str) -> Table:
    """Every arm as a row."""
    names = (
        "scenario", "workload", "level", ">clients", ">tps", f">{ratio_heading(baseline)}", ">mean ms", ">p50 ms",
        ">p95 ms", ">p99 ms", ">blocks", "caveats",
    )  # fmt: skip
    rows = []
    for p in arms:
        where = (p.scenario.text, workload_name(p), Cell(arm_name(p), str(p.arm.level)), str(p.arm.clients))
        values = [plus_minus(p.tps), ratio(p.ratio), *latencies(p.latency), str(p.blocks)]
        rows.append(row(*where, *values, Cell(", ".join(p.caveats), "warn")))
        for one in p.classes:
            name = Cell(f"· {one.level} in the mix", one.level)
            rows.append(row("", "", name, "", plus_minus(one.tps), "", *latencies(one.latency), "", ""))
    return _table("price", "every arm", names, rows)


def _table(key: str, title: str, names: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    """A table in which a scenario, workload or caveat that is the same in every row stands in the title instead."""
    same: dict[int, str] = {}
    for i, name in enumerate(names):
        texts = {r[i].text for r in rows if name in ("scenario", "workload", "caveats") and r[0].text}
        if len(texts) == 1:
            text = texts.pop()
            same[i] = f"caveats: {text}" if name == "caveats" and text else text
    shown = [i for i in range(len(names)) if i not in same]
    narrowed = tuple(tuple(r[i] for i in shown) for r in rows)
    heading = " · ".join(text for text in (title, *same.values()) if text)
    return Table(key, heading, columns(*(names[i] for i in shown)), narrowed)


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
    heads, texts = stall_rows(table)
    stalls = _table(
        "stalls",
        TITLE,
        heads,
        [row(r[0], Cell(r[1], _tone(p)), *r[2:]) for r, p in zip(texts, table.arms, strict=True)],
    )
    figure = Figure("throughput", "Throughput ratio", caption, charts, tuple(levels), numbers, caveats)
    return Section("price", "What it costs", _STOPPED.get(table.stopped_by, ""), (figure, stalls, Prose((CAPTION,))))


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
    latency = f"p50 {number(p.latency.p50.value)}, p95 {number(p.latency.p95.value)} ms"
    arm = f"{arm_name(p)}, {counted(p.arm.clients, 'client')}"
    return f"{arm}: {ratio(p.ratio)}; {plus_minus(p.tps)} tps; {latency}{caveats}"


def _percentiles(table: PriceTable) -> Section:
    charts = []
    for title, arms in _panels(table):
        bars = []
        for p in arms:
            values = (p.latency.p50.value, p.latency.p95.value, p.latency.p99.value)
            if all(math.isfinite(v) and v > 0 for v in values):
                listed = ", ".join(f"{n} {number(v)} ms" for n, v in zip(("p50", "p95", "p99"), values, strict=True))
                tooltip = f"{arm_name(p)}, {counted(p.arm.clients, 'client')}: {listed}"
                bars.append(Percentiles(f"{arm_name(p)} · {p.arm.clients}", _tone(p), values, tooltip))
        charts.append(PercentileChart(title, "ms", tuple(bars)))
    heads, texts = latency_rows(table.arms)
    rows = tuple(row(r[0], Cell(r[1], _tone(p)), *r[2:]) for r, p in zip(texts, table.arms, strict=True))
    caption = (
        "From the median (left end) over the 95th (mark) to the 99th percentile (right end), by level and clients."
    )
    numbers = _table("latency", "latencies (95 % CI)", heads, rows)
    figure = Figure("percentiles", "Latency percentiles", caption, tuple(charts), (), numbers)
    heads, offered = offered_rows(table)
    equal = [row(r[0], Cell(r[1], _tone(p)), *r[2:]) for p, r in offered]
    blocks = (_table("offered", OFFERED_TITLE, heads, equal), Prose((OFFERED_CAPTION,))) if offered else ()
    return Section("latency", "How long a commit takes", "", (figure, *blocks))


def latency_rows(arms: Sequence[ArmPrice]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and rows: scenario, level, clients, mean and percentiles with their intervals, in ms."""
    heads = ("scenario", "level", ">clients", ">mean ms", ">p50 ms", ">p95 ms", ">p99 ms")
    rows = []
    for p in arms:
        found = (p.latency.mean, p.latency.p50, p.latency.p95, p.latency.p99)
        rows.append([p.scenario.text, arm_name(p), str(p.arm.clients), *map(interval, found)])
    return heads, rows


def breakdown_rows(found: Sequence[Breakdown]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and rows of breakdowns: scenario, level, clients, each part, their sum, and the measured latency."""
    names = list(dict.fromkeys(p.name for a in found for p in a.parts))
    rows = []
    for a in found:
        parts = {p.name: plus_minus(p.ms) for p in a.parts}
        row_of_parts = [parts.get(n, "") for n in names]
        rows.append(
            [a.scenario.text, str(a.level), str(a.clients), *row_of_parts, number(a.sum_ms), plus_minus(a.measured)]
        )
    return ("scenario", "level", ">clients", *(f">{n}" for n in names), ">sum", ">measured"), rows


def _breakdown(found: Sequence[Breakdown]) -> Section:
    heads, texts = breakdown_rows(found)
    rows = [row(r[0], Cell(r[1], r[1]), *r[2:]) for r in texts]
    bars = []
    for a in found:
        segments = tuple(Segment(p.name, max(0.0, p.ms.value), f"{p.name}: {plus_minus(p.ms)} ms") for p in a.parts)
        bars.append((a.scenario.text, Bar(f"{a.level} · {a.clients}", segments, a.measured.value)))
    charts = tuple(
        BarChart(title, "ms", tuple(bar for _, bar in group)) for title, group in groupby(bars, key=lambda b: b[0])
    )
    legend = tuple((name.removeprefix(">"), f"segment{i % 6}") for i, name in enumerate(heads[3:-2]))
    caption = (
        "What each level adds, from paired differences between neighbouring levels; the mark is what was measured."
    )
    numbers = _table("breakdown", "commit latency breakdown, ms", heads, rows)
    figure = Figure("latency-breakdown", "Commit latency breakdown", caption, charts, legend, numbers)
    # The sentence of the most clients of each scenario.
    most = {a.scenario: a.bottleneck for a in sorted(found, key=lambda a: a.clients)}
    return Section("breakdown", "Where the time goes", "", (figure, Prose(tuple(most.values()))))
