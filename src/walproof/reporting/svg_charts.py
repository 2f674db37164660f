"""Charts as SVG text: lines, bars, percentiles, scatter, values over time; their axes, ticks, markers and tooltips.

Coloured by the page's style sheet, no script needed. Escapes all text; draws only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

from markupsafe import Markup, escape

from walproof.model.estimate import Estimate
from walproof.reporting.outline import (
    BarChart,
    Chart,
    Line,
    LineChart,
    PercentileChart,
    Point,
    ScatterChart,
    ScatterPoint,
    SeriesChart,
    SeriesPanel,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps low–high onto start–end, linearly or by logarithm; values outside are clipped to the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value, one decimal.

        >>> Scale(0, 10, 100, 200)(5), Scale(1, 100, 0, 100, log=True)(10)
        (150.0, 50.0)
        """
        low, high, at = (math.log(max(v, 1e-12)) if self.log else v for v in (self.low, self.high, value))
        share = min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within low–high.

    >>> round_ticks(0, 1.2, 4)
    [0.0, 0.5, 1.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 … within low–high; only powers of ten when that is more than six.

    >>> log_ticks(0.8, 30)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [f * 10.0**p for p in powers for f in (1, 2, 5) if low <= f * 10.0**p <= high]
    tens = [t for t in ticks if f"{t:e}".startswith("1.0")]
    return ticks if len(ticks) <= 6 else tens


def spread_rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """A row for each label (left, right), so that labels of one row do not touch; spans in order of their left end.

    >>> spread_rows([(0, 50), (40, 90), (60, 100)])
    [0, 1, 0]
    """
    ends: list[float] = []
    rows = []
    for left, right in spans:
        row = next((i for i, end in enumerate(ends) if end < left), len(ends))
        ends[row : row + 1] = [right]
        rows.append(row)
    return rows


def tick_text(value: float) -> str:
    """A tick's label.

    >>> tick_text(0.5), tick_text(2000.0), tick_text(20000.0), tick_text(3e6)
    ('0.5', '2000', '20k', '3M')
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:g}{name}"
    return f"{value:g}"


WIDTH, LEFT, RIGHT, BOTTOM = 340, 46, 16, 214
MARKERS = {
    "off": "M0-5L5 0L0 5L-5 0Z",
    "local": "M-4-4H4V4H-4Z",
    "remote_write": "M0-5L5 4H-5Z",
    "on": "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1-4.5 0Z",
    "remote_apply": "M0 5L5-4H-5Z",
    "other": "M-5-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z",
}
_EMPTY = Markup('<p class="quiet">nothing to draw</p>')


def svg(size: tuple[float, float], body: str, kind: str, title: str, description: str) -> Markup:
    """An SVG image with its text alternative; focusable, so that arrow keys can step through its values."""
    head = f'<svg class="{kind}" viewBox="0 0 {size[0]:g} {size[1]:g}" role="img" tabindex="0">'
    return Markup(f"{head}<title>{escape(title)}</title><desc>{escape(description)}</desc>{body}</svg>")


def text(x: float, y: float, label: str, kind: str = "", anchor: str = "middle") -> str:
    cls = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{cls}>{escape(label)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def with_tooltip(body: str, tooltip: str) -> str:
    return f'<g class="hit"><title>{escape(tooltip)}</title>{body}</g>'


def marker(tone: str) -> Markup:
    path = MARKERS.get(tone, MARKERS["other"])
    return Markup(
        f'<svg class="key" viewBox="-7 -7 14 14" aria-hidden="true"><path class="m t-{tone}" d="{path}"/></svg>'
    )


def line_chart(chart: LineChart) -> Markup:
    """Lines with intervals; lines are drawn a little apart so that intervals at one x do not hide each other."""
    points = [p for one in chart.lines for p in one.points]
    if not points:
        return _EMPTY
    apart = 0.0 if chart.diagonal else 6.0
    margin = apart * (len(chart.lines) - 1) / 2 + 10
    xs = sorted({p.x for p in points})
    x = Scale(xs[0], xs[-1], LEFT + margin, WIDTH - RIGHT - margin, log=chart.x_log and xs[0] > 0)
    y = _y_scale(chart, points)
    body = _y_axis(y, log_ticks(y.low, y.high) if y.log else round_ticks(y.low, y.high), LEFT, WIDTH - RIGHT)
    body += [text(x(v), BOTTOM + 17, tick_text(v)) for v in _x_ticks(xs, x)]
    body += [text((LEFT + WIDTH - RIGHT) / 2, BOTTOM + 36, chart.x_name, "name")]
    body.append(_y_name(chart.y_name, (14 + BOTTOM) / 2))
    if chart.reference is not None:
        body.append(line(LEFT, y(chart.reference), WIDTH - RIGHT, y(chart.reference), "rule"))
    if chart.diagonal:
        body.append(line(x(xs[0]), y(xs[0]), x(xs[-1]), y(xs[-1]), "rule"))
    for i, one in enumerate(chart.lines):
        body += _line(one, x, y, aside=apart * (i - (len(chart.lines) - 1) / 2), joined=not chart.diagonal)
    title = f"{chart.title}: {chart.y_name} by {chart.x_name}"
    return svg((WIDTH, BOTTOM + 46), "".join(body), "chart", title, "; ".join(p.tooltip for p in points))


def _y_scale(chart: LineChart, points: Sequence[Point]) -> Scale:
    low, high = min(p.y.low for p in points), max(*(p.y.high for p in points), chart.reference or 0.0)
    if chart.y_log and low > 0:
        return Scale(low / 1.1, high * 1.1, BOTTOM, 14, log=True)
    return Scale(min(0.0, low), high * 1.06 or 1.0, BOTTOM, 14)


def _x_ticks(xs: Sequence[float], x: Scale) -> Sequence[float]:
    """The values themselves where there are few and they do not touch, else round ones."""
    if all(x(b) - x(a) >= 22 for a, b in pairwise(xs)):
        return xs
    ticks = log_ticks(x.low, x.high) if x.log else round_ticks(x.low, x.high)
    return ticks if len(ticks) > 1 else [xs[0], xs[-1]]


def _line(one: Line, x: Scale, y: Scale, *, aside: float, joined: bool) -> list[str]:
    path = "L".join(f"{x(p.x) + aside:g} {y(p.y.value):g}" for p in one.points)
    drawn = [f'<path class="l t-{one.tone}" d="M{path}"/>'] if joined else []
    return drawn + [_point(p, x(p.x) + aside, y, one.tone) for p in one.points]


def _point(point: Point, at: float, y: Scale, tone: str) -> str:
    low, high, middle = y(point.y.low), y(point.y.high), y(point.y.value)
    bar = f'<path class="e t-{tone}" d="M{at:g} {low:g}V{high:g}M{at - 3:g} {low:g}h6M{at - 3:g} {high:g}h6"/>'
    hollow = " hollow" if point.hollow else ""
    path = MARKERS.get(tone, MARKERS["other"])
    mark = f'<path class="m t-{tone}{hollow}" transform="translate({at:g} {middle:g})" d="{path}"/>'
    return with_tooltip(f'{bar}{mark}<circle class="aim" cx="{at:g}" cy="{middle:g}" r="11"/>', point.tooltip)


def bar_chart(chart: BarChart) -> Markup:
    """Stacked bars, one row each, with a mark for the total as measured."""
    highest = max((max(sum(s.value for s in b.segments), b.mark or 0.0) for b in chart.bars), default=0.0) or 1.0
    names = list(dict.fromkeys(s.name for b in chart.bars for s in b.segments))
    left, top, step = 118, 6, 26
    bottom = top + step * len(chart.bars)
    x = Scale(0, highest * 1.04, left, WIDTH - 14)
    body = _x_axis(x, round_ticks(0, x.high, 5), bottom, chart.unit, top)
    for i, bar in enumerate(chart.bars):
        y, reached = top + step * i, 0.0
        body.append(text(left - 8, y + 17, bar.label, "row", "end"))
        for segment in bar.segments:
            start, end = x(reached), x(reached + segment.value)
            reached += segment.value
            kind = f"segment{names.index(segment.name) % 6}"
            rect = f'<rect class="{kind}" x="{start:g}" y="{y + 4}" width="{max(0.0, end - start):.1f}" height="18"/>'
            body.append(with_tooltip(rect, f"{bar.label}: {segment.tooltip}"))
        if bar.mark is not None:
            body.append(line(x(bar.mark), y + 1, x(bar.mark), y + 25, "mark"))
    values = "; ".join(f"{b.label}: {', '.join(s.tooltip for s in b.segments)}" for b in chart.bars)
    return svg((WIDTH, bottom + 42), "".join(body), "bars", f"{chart.title}, {chart.unit}", values)


def percentile_chart(chart: PercentileChart) -> Markup:
    """Percentiles, one row an arm, on a logarithmic axis."""
    values = [v for r in chart.rows for v in r.values]
    if not values:
        return _EMPTY
    left, top, step = 118, 6, 20
    bottom = top + step * len(chart.rows)
    x = Scale(min(values) * 0.85, max(values) * 1.15, left, WIDTH - 14, log=True)
    body = _x_axis(x, log_ticks(x.low, x.high), bottom, chart.unit, top)
    for i, one in enumerate(chart.rows):
        y = top + step * i + 10
        p50, p95, p99 = (x(v) for v in one.values)
        path = MARKERS.get(one.tone, MARKERS["other"])
        shape = f'<path class="r t-{one.tone}" d="M{p50:g} {y}H{p99:g}M{p50:g} {y - 4}v8M{p99:g} {y - 4}v8"/>'
        shape += f'<path class="m t-{one.tone}" transform="translate({p95:g} {y})" d="{path}"/>'
        aim = f'<rect class="aim" x="{left}" y="{y - 10}" width="{WIDTH - 14 - left}" height="{step}"/>'
        body += [text(left - 8, y + 4, one.label, "row", "end"), with_tooltip(shape + aim, one.tooltip)]
    listed = "; ".join(r.tooltip for r in chart.rows)
    title = f"{chart.title}: latency percentiles, {chart.unit}"
    return svg((WIDTH, bottom + 42), "".join(body), "percentiles", title, listed)


def _y_axis(y: Scale, ticks: Sequence[float], left: float, right: float) -> list[str]:
    grid = [line(left, y(t), right, y(t), "grid") for t in ticks]
    return [*grid, *(text(left - 6, y(t) + 4, tick_text(t), anchor="end") for t in ticks)]


def _y_name(name: str, middle: float) -> str:
    """The axis' name, from bottom to top at the left edge."""
    turned = f'transform="translate(11 {middle:g}) rotate(-90)" text-anchor="middle"'
    return f'<text class="name" {turned}>{escape(name)}</text>'


def _x_axis(x: Scale, ticks: Sequence[float], bottom: float, name: str, top: float) -> list[str]:
    grid = [line(x(t), top, x(t), bottom + 4, "grid") for t in ticks]
    return [*grid, *(text(x(t), bottom + 17, tick_text(t)) for t in ticks),
            text((x.start + x.end) / 2, bottom + 35, name, "name")]  # fmt: skip


SCATTER_WIDTH, SCATTER_HEIGHT, SCATTER_LEFT, SCATTER_RIGHT, SCATTER_TOP, SCATTER_BOTTOM = 420, 300, 58, 20, 14, 254
_MOST_TICKS = 9
_SPAN_FOR_LOG = 5.0
_TOUCH = 7.0
"""Points closer than this, in pixels, share one label."""


def scatter_chart(chart: ScatterChart) -> Markup:
    """The points; an axis is logarithmic where its positive values span more than a factor of five."""
    if not chart.points:
        return _EMPTY
    x = _scatter_scale([p.x for p in chart.points], SCATTER_LEFT + 8, SCATTER_WIDTH - SCATTER_RIGHT)
    y = _scatter_scale([p.y for p in chart.points], SCATTER_BOTTOM - 8, SCATTER_TOP)
    body = []
    for t in _scatter_ticks(x):
        body += [line(x(t), SCATTER_TOP, x(t), SCATTER_BOTTOM, "grid"), text(x(t), SCATTER_BOTTOM + 15, tick_text(t))]
    body += _y_axis(y, _scatter_ticks(y), SCATTER_LEFT, SCATTER_WIDTH - SCATTER_RIGHT)
    body += [text((SCATTER_LEFT + SCATTER_WIDTH - SCATTER_RIGHT) / 2, SCATTER_BOTTOM + 34, chart.x_name, "name")]
    body.append(_y_name(chart.y_name, (SCATTER_TOP + SCATTER_BOTTOM) / 2))
    best = sorted((x(p.x.value), y(p.y.value)) for p in chart.points if p.best)
    if len(best) > 1:
        body.append(f'<path class="rule" d="M{"L".join(f"{a:g} {b:g}" for a, b in best)}"/>')
    body += [
        _scatter_point(p, x, y, label)
        for p, label in zip(chart.points, _scatter_labels(chart.points, x, y), strict=True)
    ]
    title = f"{chart.title}: {chart.y_name} by {chart.x_name}"
    return svg(
        (SCATTER_WIDTH, SCATTER_HEIGHT), "".join(body), "chart", title, "; ".join(p.tooltip for p in chart.points)
    )


def _scatter_scale(values: Sequence[Estimate], start: float, end: float) -> Scale:
    low, high = min(v.low for v in values), max(v.high for v in values)
    if low > 0 and high > _SPAN_FOR_LOG * low:
        return Scale(low / 1.15, high * 1.15, start, end, log=True)
    margin = 0.06 * (high - low) or 1.0
    return Scale(max(0.0, low - margin), high + margin, start, end)


def _scatter_ticks(scale: Scale) -> list[float]:
    ticks = log_ticks(scale.low, scale.high) if scale.log else round_ticks(scale.low, scale.high)
    return ticks[:: 1 + (len(ticks) - 1) // _MOST_TICKS]


def _scatter_labels(points: Sequence[ScatterPoint], x: Scale, y: Scale) -> list[str]:
    """Each point's label; those that lie on one another have theirs at the first of them."""
    at = [(x(p.x.value), y(p.y.value)) for p in points]
    owner = [next(j for j in range(i + 1) if math.dist(at[i], at[j]) < _TOUCH) for i in range(len(points))]
    return [", ".join(p.label for p, own in zip(points, owner, strict=True) if own == i) for i in range(len(points))]


def _scatter_point(point: ScatterPoint, x: Scale, y: Scale, shown: str) -> str:
    at, level = x(point.x.value), y(point.y.value)
    bars = f"M{x(point.x.low):g} {level:g}H{x(point.x.high):g}M{at:g} {y(point.y.low):g}V{y(point.y.high):g}"
    mark = f'<path class="m t-{point.tone}{" hollow" if point.hollow else ""}" transform="translate({at:g} {level:g})"'
    drawn = f'<path class="e t-{point.tone}" opacity="0.45" d="{bars}"/>{mark} d="{MARKERS[point.tone]}"/>'
    label = text(at + 8, level - 6, shown, "row", "start") if shown else ""
    return with_tooltip(f'{drawn}{label}<circle class="aim" cx="{at:g}" cy="{level:g}" r="11"/>', point.tooltip)


SERIES_WIDTH, SERIES_LEFT, SERIES_RIGHT = 900, 60, 12
_TOP, _HEIGHT, _GAP = 16, 112, 20


def series_chart(chart: SeriesChart) -> Markup:
    """The panels from top to bottom, the time axis below the last."""
    if not chart.slots:
        return _EMPTY
    x = Scale(0.0, chart.slots[-1].end, SERIES_LEFT, SERIES_WIDTH - SERIES_RIGHT)
    bottom = _TOP + len(chart.panels) * (_HEIGHT + _GAP) - _GAP
    body = []
    for begin, end in chart.shaded:
        width = max(1.0, x(end) - x(begin))
        body.append(f'<rect class="shaded" x="{x(begin):g}" y="{_TOP}" width="{width:.1f}" height="{bottom - _TOP}"/>')
    for number, panel in enumerate(chart.panels):
        body += _panel(panel, x, _TOP + number * (_HEIGHT + _GAP))
    for begin, end in chart.marked:
        width = max(2.0, x(end) - x(begin))
        body.append(f'<rect class="stall" x="{x(begin):g}" y="{_TOP - 9}" width="{width:.1f}" height="7"/>')
    body += [text(x(t), bottom + 16, tick_text(t)) for t in round_ticks(0.0, x.high, 10)]
    body.append(text((SERIES_LEFT + SERIES_WIDTH - SERIES_RIGHT) / 2, bottom + 34, chart.x_name, "name"))
    for slot in chart.slots:
        width = max(0.0, x(slot.end) - x(slot.begin))
        aim = f'<rect class="aim" x="{x(slot.begin):g}" y="{_TOP}" width="{width:.1f}" height="{bottom - _TOP}"/>'
        body.append(with_tooltip(aim, slot.tooltip))
    described = "; ".join(slot.tooltip for slot in chart.slots)
    return svg((SERIES_WIDTH, bottom + 42), "".join(body), "timeline", chart.title, described)


def _panel(panel: SeriesPanel, x: Scale, top: float) -> list[str]:
    bottom = top + _HEIGHT
    values = [v for one in panel.lines for run in one.runs for _, v in run]
    if not values:
        return [text(SERIES_LEFT + 6, top + 14, f"{panel.y_name}: not known", anchor="start")]
    positive = [v for v in values if v > 0]
    log = panel.y_log and bool(positive)
    low, high = (min(positive) / 1.2, max(positive) * 1.2) if log else (0.0, (max(values) or 1.0) * 1.08)
    y = Scale(low, high, bottom, top, log=log)
    ticks = log_ticks(low, high) if log else round_ticks(low, high, 4)
    body = _y_axis(y, ticks, SERIES_LEFT, SERIES_WIDTH - SERIES_RIGHT)
    body.append(_y_name(panel.y_name, (top + bottom) / 2))
    for one in panel.lines:
        for run in one.runs:
            path = "L".join(f"{x(at):g} {y(value):g}" for at, value in run)
            if one.weight == "area":
                path = f"{x(run[0][0]):g} {bottom}L{path}L{x(run[-1][0]):g} {bottom}Z"
            body.append(f'<path class="s {one.weight} t-{one.tone}" d="M{path}"/>')
    return body


def draw(chart: Chart) -> Markup:
    match chart:
        case LineChart():
            return line_chart(chart)
        case BarChart():
            return bar_chart(chart)
        case PercentileChart():
            return percentile_chart(chart)
        case SeriesChart():
            return series_chart(chart)
        case ScatterChart():
            return scatter_chart(chart)
        case _:
            assert_never(chart)
