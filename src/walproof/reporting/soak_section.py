"""A soak as a section: every second of it as a picture, what each level did as a table. The numbers are pricing's."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import fmean

from walproof.model.event import Event
from walproof.model.sample import Arm, Series
from walproof.model.units import counted
from walproof.pricing.soak import Stretch, stretches
from walproof.reporting.outline import (
    Cell,
    Figure,
    Section,
    SeriesChart,
    SeriesLine,
    SeriesPanel,
    SeriesSlot,
    Table,
    columns,
    row,
)
from walproof.reporting.wording import NOT_KNOWN, count, in_bytes, number, seconds

LONGEST_PAUSE_S = 120.0
_POINTS = 600
"""Points over the picture's width: seconds are put together when there are more."""
_HEADS = columns(
    "level", ">clients", ">seconds", ">tps", ">slowest second", ">median of p50 ms", ">median of p99 ms",
    ">longest ms", ">stalled", ">WAL a second", ">checkpoint running",
)  # fmt: skip
_SOAK_CAPTION = (
    "Every second{}: transactions, latencies (median, 99th percentile, longest, ever thinner) and the leader's WAL. "
    "Shaded: a checkpoint was running. Red: seconds with a stall, in which no transaction ended for 0.1 s or longer."
)


def soak_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """The section of a soak; none when the record holds none."""
    soak = stretches(events)
    if not soak:
        return ()
    rows = tuple(_row(arm, [one.series for one in of_arm]) for arm, of_arm in _by_arm(soak))
    table = Table("soak", "the soak", _HEADS, rows)
    soak = _without_pauses(soak)
    start = soak[0].series.started_at
    width = max(1, math.ceil((soak[-1].series.started_at + len(soak[-1].series.transactions) - start) / _POINTS))
    chart = SeriesChart(
        "every second of the soak" if width == 1 else f"the soak in steps of {width} s",
        "seconds since the soak began",
        _panels(soak, start, width),
        tuple(_slot(one, start) for one in soak),
        shaded=_spans(soak, start, lambda series, k: series.checkpoint[k]),
        marked=_spans(soak, start, lambda series, k: series.stalled_s[k] > 0),
    )
    arms = dict.fromkeys(one.arm for one in soak)
    legend = tuple((_name(arm), _tone(arm)) for arm in arms)
    caption = _SOAK_CAPTION.format(
        "" if width == 1 else f", in steps of {width} s of which latencies show the worst second"
    )
    figure = Figure("soak-series", "Second by second", caption, (chart,), legend, table)
    return (Section("soak", "The soak", "", (figure,)),)


def _without_pauses(soak: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """The stretches for drawing: a pause longer than LONGEST_PAUSE_S, as before --resume, is drawn that long."""
    drawn: list[Stretch] = []
    shift = 0.0
    for before, one in zip((soak[0], *soak), soak, strict=False):
        pause = one.series.started_at - before.series.started_at - len(before.series.transactions)
        shift += max(0.0, pause - LONGEST_PAUSE_S)
        drawn.append(replace(one, series=replace(one.series, started_at=one.series.started_at - shift)))
    return tuple(drawn)


def _row(arm: Arm, series: Sequence[Series]) -> tuple[Cell, ...]:
    per_second = [n for one in series for n in one.transactions]
    p50, p99, longest = (
        _known(values) for values in zip(*((s.p50_ms, s.p99_ms, s.max_ms) for s in series), strict=True)
    )
    wal = [n for one in series for n in one.wal_bytes if n is not None]
    checkpoint = sum(sum(one.checkpoint) for one in series)
    return row(
        Cell(_name(arm), _tone(arm)),
        str(arm.clients),
        count(len(per_second)),
        number(fmean(per_second)),
        count(min(per_second)),
        number(_median(p50)),
        number(_median(p99)),
        number(max(longest, default=math.nan)),
        seconds(sum(sum(one.stalled_s) for one in series)),
        in_bytes(fmean(wal)) if wal else NOT_KNOWN,
        seconds(float(checkpoint)),
    )


def _known(values: Sequence[Sequence[float | None]]) -> list[float]:
    return [v for one in values for v in one if v is not None]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan


def _name(arm: Arm) -> str:
    return "mix" if arm.mix else str(arm.level)


def _tone(arm: Arm) -> str:
    return "other" if arm.mix else str(arm.level)


def _panels(soak: Sequence[Stretch], start: float, width: int) -> tuple[SeriesPanel, ...]:
    def lines(read: Callable[[Series], Sequence[float | None]], worst: bool, weight: str) -> tuple[SeriesLine, ...]:
        return tuple(
            SeriesLine(
                _tone(arm), weight, tuple(_run(one.series, read(one.series), start, width, worst) for one in of_arm)
            )
            for arm, of_arm in _by_arm(soak)
        )

    latency = (
        *lines(lambda s: s.max_ms, True, "faint"),
        *lines(lambda s: s.p99_ms, True, "thin"),
        *lines(lambda s: s.p50_ms, True, "thick"),
    )
    wal = lines(lambda s: [None if n is None else n / 1e6 for n in s.wal_bytes], False, "thick")
    return (
        SeriesPanel("transactions per second", lines(lambda s: s.transactions, False, "thick")),
        SeriesPanel("latency, ms", latency, y_log=True),
        SeriesPanel("WAL, MB/s", wal),
    )


def _by_arm(soak: Sequence[Stretch]) -> list[tuple[Arm, list[Stretch]]]:
    return [(arm, [one for one in soak if one.arm == arm]) for arm in dict.fromkeys(one.arm for one in soak)]


def _run(
    series: Series, values: Sequence[float | None], start: float, width: int, worst: bool
) -> tuple[tuple[float, float], ...]:
    """Points of one stretch: its steps' worst or mean value, in the middle of each."""
    begin, points = series.started_at - start, []
    for k in range(0, len(values), width):
        known = [v for v in values[k : k + width] if v is not None]
        if known:
            points.append((begin + k + min(width, len(values) - k) / 2, max(known) if worst else fmean(known)))
    return tuple(points)


def _slot(one: Stretch, start: float) -> SeriesSlot:
    begin = one.series.started_at - start
    end = begin + len(one.series.transactions)
    longest = max((v for v in one.series.max_ms if v is not None), default=math.nan)
    tooltip = (
        f"{begin:.0f}–{end:.0f} s, {_name(one.arm)}, {counted(one.arm.clients, 'client')}: "
        f"{number(fmean(one.series.transactions))} tps, longest {number(longest)} ms, "
        f"{seconds(sum(one.series.stalled_s))} stalled"
    )
    return SeriesSlot(begin, end, tooltip)


def _spans(
    soak: Sequence[Stretch], start: float, marks: Callable[[Series, int], bool]
) -> tuple[tuple[float, float], ...]:
    """Begin and end of runs of seconds for which that holds."""
    spans = []
    for one in soak:
        begin = one.series.started_at - start
        numbers_of = groupby(range(len(one.series.transactions)), key=partial(marks, one.series))
        for holds, run in numbers_of:
            numbers = list(run)
            if holds:
                spans.append((begin + numbers[0], begin + numbers[-1] + 1))
    return tuple(spans)
