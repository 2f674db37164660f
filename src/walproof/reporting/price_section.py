"""Events of a price run → its sections: the surface, percentiles, breakdown, searches. Numbers are pricing's."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from walproof.model.event import Event, SampleDone
from walproof.pricing.estimates import ArmPrice, PriceTable
from walproof.pricing.latency_breakdown import Breakdown, breakdowns
from walproof.reporting.outline import (
    Bar,
    Bars,
    Cell,
    Chart,
    Dot,
    Figure,
    Line,
    Part,
    Prose,
    Reach,
    Reaches,
    Section,
    Table,
    columns,
    row,
)
from walproof.reporting.search_section import search_sections
from walproof.reporting.wording import arm_words, number, place_words, plus_minus, ratio
from walproof.reporting.wording import found as in_words

_STOPPED = {
    "precision": "Measuring stopped when every ratio was as precise as asked.",
    "budget": "Measuring stopped when its time was up.",
    "interrupted": "Measuring was interrupted; what follows is what was measured until then.",
}


def price_sections(events: Sequence[Event], table: PriceTable) -> tuple[Section, ...]:
    """Sections of what was priced; `table` is the events' own, which takes long to compute; none when nothing was."""
    made: list[Section] = []
    if any(isinstance(e, SampleDone) for e in events):
        if table.arms:
            made += [_surface(table), _percentiles(table)]
        found = breakdowns(events)
        made += [_breakdown(found)] if found else []
    return (*made, *search_sections(events))


def price_rows(arms: Iterable[ArmPrice], baseline: str, *, key: str = "price") -> Table:
    """Every arm as a row."""
    names = (
        "setting", "workload", "level", ">clients", ">tps", f">of {baseline}'s (95 %)", ">mean ms", ">p50 ms",
        ">p95 ms", ">p99 ms", ">blocks", "caveats",
    )  # fmt: skip
    rows = []
    for p in arms:
        latency = (p.latency.mean, p.latency.p50, p.latency.p95, p.latency.p99)
        cells: list[Cell | str] = [
            p.scenario.text,
            place_words(p),
            Cell(arm_words(p), str(p.arm.level)),
            str(p.arm.clients),
        ]
        cells += [plus_minus(p.tps), ratio(p.ratio), *(number(e.value) for e in latency), str(p.blocks)]
        rows.append(row(*cells, Cell(", ".join(p.caveats), "warn")))
        for one in p.classes:
            latency = (one.latency.mean, one.latency.p50, one.latency.p95, one.latency.p99)
            name = Cell(f"· {one.level} in the mix", one.level)
            rows.append(row("", "", name, "", plus_minus(one.tps), "", *(number(e.value) for e in latency), "", ""))
    return Table(key, "every arm", columns(*names), tuple(rows))


def _panels(table: PriceTable) -> list[tuple[str, list[ArmPrice]]]:
    """Arms by setting, workload and way in, with the panel's title: only what differs is named."""

    def where(price: ArmPrice) -> tuple[str, str]:
        return price.scenario.text, place_words(price)

    arms = sorted(table.arms, key=lambda p: [where(a) for a in table.arms].index(where(p)))
    grouped = [(key, list(group)) for key, group in groupby(arms, key=where)]
    several = len({place for (_, place), _ in grouped}) > 1
    return [(f"{setting} · {place}" if several else setting, group) for (setting, place), group in grouped]


def _surface(table: PriceTable) -> Section:
    charts = tuple(_ratio_chart(title, arms, str(table.baseline)) for title, arms in _panels(table))
    levels = dict.fromkeys((arm_words(p), _tone(p)) for p in table.arms)
    caveats = tuple(
        f"{p.scenario.text}, {arm_words(p)} with {p.arm.clients} clients: {', '.join(p.caveats)}"
        for p in table.arms
        if p.caveats
    )
    says = (
        f"Throughput of each level divided by that of {table.baseline} in the same block; bars are 95 % intervals, "
        "hollow marks carry a caveat."
    )
    figure = Figure(
        "surface", "Price surface", says, charts, tuple(levels), price_rows(table.arms, str(table.baseline)), caveats
    )
    stopped = _STOPPED.get(table.stopped_by, "")
    return Section("price", "What it costs", stopped, (figure,))


def _tone(price: ArmPrice) -> str:
    return "other" if price.arm.mix or price.arm.label or price.arm.rate else str(price.arm.level)


def _ratio_chart(title: str, arms: Sequence[ArmPrice], baseline: str) -> Chart:
    lines = []
    for (name, tone), group in _grouped(arms):
        dots = [
            Dot(float(p.arm.clients), p.ratio, _said(p), bool(p.caveats)) for p in group if math.isfinite(p.ratio.value)
        ]
        if dots:
            lines.append(Line(name, tone, tuple(sorted(dots, key=lambda d: d.x))))
    return Chart(title, "clients", f"of {baseline}'s throughput", tuple(lines), rule=1.0)


def _grouped(arms: Sequence[ArmPrice]) -> list[tuple[tuple[str, str], list[ArmPrice]]]:
    found: dict[tuple[str, str], list[ArmPrice]] = {}
    for price in arms:
        found.setdefault((arm_words(price), _tone(price)), []).append(price)
    return list(found.items())


def _said(p: ArmPrice) -> str:
    caveats = f" — caveats: {', '.join(p.caveats)}" if p.caveats else ""
    latency = f"p50 {number(p.latency.p50.value)}, p95 {number(p.latency.p95.value)} ms"
    return f"{arm_words(p)}, {p.arm.clients} clients: {ratio(p.ratio)}; {plus_minus(p.tps)} tps; {latency}{caveats}"


def _percentiles(table: PriceTable) -> Section:
    pictures = []
    for title, arms in _panels(table):
        rows = []
        for p in arms:
            values = (p.latency.p50.value, p.latency.p95.value, p.latency.p99.value)
            if all(math.isfinite(v) and v > 0 for v in values):
                words = ", ".join(f"{n} {number(v)} ms" for n, v in zip(("p50", "p95", "p99"), values, strict=True))
                label = f"{arm_words(p)} · {p.arm.clients}"
                rows.append(Reach(label, _tone(p), values, f"{arm_words(p)}, {p.arm.clients} clients: {words}"))
        pictures.append(Reaches(title, "ms", tuple(rows)))
    names = ("setting", "level", ">clients", ">mean ms", ">p50 ms", ">p95 ms", ">p99 ms")
    rows_ = tuple(
        row(p.scenario.text, Cell(arm_words(p), _tone(p)), str(p.arm.clients), *(in_words(e) for e in
            (p.latency.mean, p.latency.p50, p.latency.p95, p.latency.p99)))
        for p in table.arms
    )  # fmt: skip
    says = "From the median (left end) over the 95th (mark) to the 99th percentile (right end), per level and clients."
    whole = Table("latency", "latencies with their 95 % intervals", columns(*names), rows_)
    figure = Figure("percentiles", "Latency percentiles", says, tuple(pictures), (), whole)
    return Section("latency", "How long a commit takes", "", (figure,))


def _breakdown(found: Sequence[Breakdown]) -> Section:
    bars = [
        (
            a.scenario.text,
            Bar(
                f"{a.level} · {a.clients}",
                tuple(Part(p.name, max(0.0, p.ms.value), f"{p.name}: {plus_minus(p.ms)} ms") for p in a.parts),
                a.measured.value,
            ),
        )
        for a in found
    ]
    pictures = tuple(
        Bars(title, "ms", tuple(bar for _, bar in group)) for title, group in groupby(bars, key=lambda b: b[0])
    )
    names = list(dict.fromkeys(p.name for a in found for p in a.parts))
    rows = tuple(
        row(
            a.scenario.text,
            Cell(str(a.level), str(a.level)),
            str(a.clients),
            *(next((plus_minus(p.ms) for p in a.parts if p.name == n), "") for n in names),
            number(a.sum_ms),
            plus_minus(a.measured),
        )
        for a in found
    )
    heads = columns("setting", "level", ">clients", *(f">{n}" for n in names), ">sum", ">measured")
    legend = tuple((name, f"part{i % 6}") for i, name in enumerate(names))
    says = "What each promise adds, from paired differences between neighbouring levels; the mark is what was measured."
    whole = Table("breakdown", "parts of a commit, ms", heads, rows)
    figure = Figure("breakdown", "Breakdown of a commit", says, pictures, legend, whole)
    return Section(
        "breakdown", "Where the time goes", "", (figure, Prose(tuple(a.bottleneck for a in _busiest(found))))
    )


def _busiest(found: Sequence[Breakdown]) -> list[Breakdown]:
    """One breakdown a setting: that of the most clients."""
    most = {a.scenario: a for a in sorted(found, key=lambda a: a.clients)}
    return [a for a in found if a is most[a.scenario]]
