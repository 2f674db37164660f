"""Charts as SVG text: coloured by the page's style sheet, tooltips inside, no script needed. Escapes all text."""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup, escape

from walproof.reporting.axes import Scale, log_ticks, round_ticks, tick_text
from walproof.reporting.outline import BarChart, Line, LineChart, PercentileChart, Point

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
    """A text element."""
    cls = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{cls}>{escape(label)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A line element."""
    return f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def with_tooltip(body: str, tooltip: str) -> str:
    """A group with a tooltip."""
    return f'<g class="hit"><title>{escape(tooltip)}</title>{body}</g>'


def marker(tone: str) -> Markup:
    """A level's marker for legends."""
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
    ticks = log_ticks(y.low, y.high) if y.log else round_ticks(y.low, y.high)
    body = [line(LEFT, y(t), WIDTH - RIGHT, y(t), "grid") for t in ticks]
    body += [text(LEFT - 6, y(t) + 4, tick_text(t), anchor="end") for t in ticks]
    body += [text(x(v), BOTTOM + 17, tick_text(v)) for v in _x_ticks(xs, x)]
    body += [text((LEFT + WIDTH - RIGHT) / 2, BOTTOM + 36, chart.x_name, "name")]
    body += [f'<text class="name" transform="translate(11 {(14 + BOTTOM) / 2:g}) rotate(-90)" text-anchor="middle">'
             f"{escape(chart.y_name)}</text>"]  # fmt: skip
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


def _x_axis(x: Scale, ticks: Sequence[float], bottom: float, name: str, top: float) -> list[str]:
    grid = [line(x(t), top, x(t), bottom + 4, "grid") for t in ticks]
    return [*grid, *(text(x(t), bottom + 17, tick_text(t)) for t in ticks),
            text((x.start + x.end) / 2, bottom + 35, name, "name")]  # fmt: skip
