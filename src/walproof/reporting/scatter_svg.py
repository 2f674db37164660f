"""Points with intervals in both directions as SVG; those that no other beats are joined by a line. Draws only."""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from walproof.model.estimate import Estimate
from walproof.reporting.axes import Scale, log_ticks, round_ticks, tick_text
from walproof.reporting.outline import ScatterChart, ScatterPoint
from walproof.reporting.svg import MARKERS, line, svg, text, with_tooltip

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 300, 58, 20, 14, 254
_MOST_TICKS = 9
_SPAN_FOR_LOG = 5.0
_TOUCH = 7.0
"""Points closer than this, in pixels, share one label."""


def scatter_chart(chart: ScatterChart) -> Markup:
    """The points; an axis is logarithmic where its positive values span more than a factor of five."""
    if not chart.points:
        return Markup('<p class="quiet">nothing to draw</p>')
    x = _scale([p.x for p in chart.points], LEFT + 8, WIDTH - RIGHT)
    y = _scale([p.y for p in chart.points], BOTTOM - 8, TOP)
    body = []
    for t in _ticks(x):
        body += [line(x(t), TOP, x(t), BOTTOM, "grid"), text(x(t), BOTTOM + 15, tick_text(t))]
    for t in _ticks(y):
        body += [line(LEFT, y(t), WIDTH - RIGHT, y(t), "grid"), text(LEFT - 6, y(t) + 4, tick_text(t), anchor="end")]
    body += [text((LEFT + WIDTH - RIGHT) / 2, BOTTOM + 34, chart.x_name, "name")]
    body += [f'<text class="name" transform="translate(11 {(TOP + BOTTOM) / 2:g}) rotate(-90)" text-anchor="middle">'
             f"{escape(chart.y_name)}</text>"]  # fmt: skip
    best = sorted((x(p.x.value), y(p.y.value)) for p in chart.points if p.best)
    if len(best) > 1:
        body.append(f'<path class="rule" d="M{"L".join(f"{a:g} {b:g}" for a, b in best)}"/>')
    body += [_point(p, x, y, label) for p, label in zip(chart.points, _labels(chart.points, x, y), strict=True)]
    title = f"{chart.title}: {chart.y_name} by {chart.x_name}"
    return svg((WIDTH, HEIGHT), "".join(body), "chart", title, "; ".join(p.tooltip for p in chart.points))


def _scale(values: Sequence[Estimate], start: float, end: float) -> Scale:
    low, high = min(v.low for v in values), max(v.high for v in values)
    if low > 0 and high > _SPAN_FOR_LOG * low:
        return Scale(low / 1.15, high * 1.15, start, end, log=True)
    margin = 0.06 * (high - low) or 1.0
    return Scale(max(0.0, low - margin), high + margin, start, end)


def _ticks(scale: Scale) -> list[float]:
    ticks = log_ticks(scale.low, scale.high) if scale.log else round_ticks(scale.low, scale.high)
    return ticks[:: 1 + (len(ticks) - 1) // _MOST_TICKS]


def _labels(points: Sequence[ScatterPoint], x: Scale, y: Scale) -> list[str]:
    """Each point's label; those that lie on one another have theirs at the first of them."""
    at = [(x(p.x.value), y(p.y.value)) for p in points]
    owner = [next(j for j in range(i + 1) if math.dist(at[i], at[j]) < _TOUCH) for i in range(len(points))]
    return [", ".join(p.label for p, own in zip(points, owner, strict=True) if own == i) for i in range(len(points))]


def _point(point: ScatterPoint, x: Scale, y: Scale, shown: str) -> str:
    at, level = x(point.x.value), y(point.y.value)
    bars = f"M{x(point.x.low):g} {level:g}H{x(point.x.high):g}M{at:g} {y(point.y.low):g}V{y(point.y.high):g}"
    mark = f'<path class="m t-{point.tone}{" hollow" if point.hollow else ""}" transform="translate({at:g} {level:g})"'
    drawn = f'<path class="e t-{point.tone}" opacity="0.45" d="{bars}"/>{mark} d="{MARKERS[point.tone]}"/>'
    label = text(at + 8, level - 6, shown, "row", "start") if shown else ""
    return with_tooltip(f'{drawn}{label}<circle class="aim" cx="{at:g}" cy="{level:g}" r="11"/>', point.tooltip)
