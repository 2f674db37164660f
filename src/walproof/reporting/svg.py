"""Pictures as SVG text: themed by the page's style sheet, hover words inside, no script needed. Escapes every word."""

from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

from markupsafe import Markup, escape

from walproof.reporting.axes import Scale, log_ticks, round_ticks, tick_text
from walproof.reporting.outline import Bars, Chart, Dot, Line, Picture, Reaches

WIDTH, LEFT, RIGHT, BOTTOM = 340, 46, 16, 214
_MARKERS = {
    "off": "M0-5L5 0L0 5L-5 0Z",
    "local": "M-4-4H4V4H-4Z",
    "remote_write": "M0-5L5 4H-5Z",
    "on": "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1-4.5 0Z",
    "remote_apply": "M0 5L5-4H-5Z",
    "other": "M-5-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z",
}


def svg(width: float, height: float, body: str, words: str, kind: str) -> Markup:
    """An SVG element that screen readers read as `words`; focusable, so that arrow keys can walk its values."""
    head = f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" tabindex="0" aria-label="'
    return Markup(f'{head}{escape(words)}">{body}</svg>')


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """A text element."""
    cls = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{cls}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A line element."""
    return f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def hit(body: str, words: str, kind: str = "hit") -> str:
    """A group that says something when hovered."""
    return f'<g class="{kind}"><title>{escape(words)}</title>{body}</g>'


def marker(tone: str) -> Markup:
    """A level's marker for legends."""
    path = _MARKERS.get(tone, _MARKERS["other"])
    return Markup(
        f'<svg class="key" viewBox="-7 -7 14 14" aria-hidden="true"><path class="m t-{tone}" d="{path}"/></svg>'
    )


def picture(drawn: Picture) -> Markup:
    """The picture as SVG."""
    match drawn:
        case Chart():
            return chart(drawn)
        case Bars():
            return bars(drawn)
        case Reaches():
            return reaches(drawn)
        case _:
            assert_never(drawn)


def chart(drawn: Chart) -> Markup:
    """Lines with intervals; lines are set a little apart so that intervals at one x do not hide each other."""
    dots = [d for one in drawn.lines for d in one.dots]
    if not dots:
        return Markup('<p class="quiet">nothing to draw</p>')
    apart = 0.0 if drawn.diagonal else 6.0
    away = apart * (len(drawn.lines) - 1) / 2 + 10
    xs = sorted({d.x for d in dots})
    x = Scale(xs[0], xs[-1], LEFT + away, WIDTH - RIGHT - away, log=drawn.x_log and xs[0] > 0)
    y = _heights(drawn, dots)
    ticks = log_ticks(y.low, y.high) if y.log else round_ticks(y.low, y.high)
    body = [line(LEFT, y(t), WIDTH - RIGHT, y(t), "grid") for t in ticks]
    body += [text(LEFT - 6, y(t) + 4, tick_text(t), anchor="end") for t in ticks]
    body += [text(x(v), BOTTOM + 17, tick_text(v)) for v in _x_ticks(xs, x)]
    body += [text((LEFT + WIDTH - RIGHT) / 2, BOTTOM + 36, drawn.x_name, "name")]
    body += [f'<text class="name" transform="translate(11 {(14 + BOTTOM) / 2:g}) rotate(-90)" text-anchor="middle">'
             f"{escape(drawn.y_name)}</text>"]  # fmt: skip
    if drawn.rule is not None:
        body.append(line(LEFT, y(drawn.rule), WIDTH - RIGHT, y(drawn.rule), "rule"))
    if drawn.diagonal:
        body.append(line(x(xs[0]), y(xs[0]), x(xs[-1]), y(xs[-1]), "rule"))
    for i, one in enumerate(drawn.lines):
        body += _line(one, x, y, aside=apart * (i - (len(drawn.lines) - 1) / 2), joined=not drawn.diagonal)
    return svg(WIDTH, BOTTOM + 46, "".join(body), f"{drawn.title}: {_listed(drawn.lines)}", "chart")


def _heights(drawn: Chart, dots: Sequence[Dot]) -> Scale:
    low, high = min(d.y.low for d in dots), max(*(d.y.high for d in dots), drawn.rule or 0.0)
    if drawn.y_log and low > 0:
        return Scale(low / 1.1, high * 1.1, BOTTOM, 14, log=True)
    return Scale(min(0.0, low), high * 1.06 or 1.0, BOTTOM, 14)


def _x_ticks(xs: Sequence[float], x: Scale) -> Sequence[float]:
    """The values themselves where there are few and they do not touch, else round ones."""
    if all(x(b) - x(a) >= 22 for a, b in pairwise(xs)):
        return xs
    ticks = log_ticks(x.low, x.high) if x.log else round_ticks(x.low, x.high)
    return ticks if len(ticks) > 1 else [xs[0], xs[-1]]


def _line(one: Line, x: Scale, y: Scale, *, aside: float, joined: bool) -> list[str]:
    path = "L".join(f"{x(d.x) + aside:g} {y(d.y.value):g}" for d in one.dots)
    drawn = [f'<path class="l t-{one.tone}" d="M{path}"/>'] if joined else []
    return drawn + [_dot(d, x(d.x) + aside, y, one.tone) for d in one.dots]


def _dot(dot: Dot, at: float, y: Scale, tone: str) -> str:
    low, high, middle = y(dot.y.low), y(dot.y.high), y(dot.y.value)
    bar = f'<path class="e t-{tone}" d="M{at:g} {low:g}V{high:g}M{at - 3:g} {low:g}h6M{at - 3:g} {high:g}h6"/>'
    hollow = " hollow" if dot.doubted else ""
    path = _MARKERS.get(tone, _MARKERS["other"])
    mark = f'<path class="m t-{tone}{hollow}" transform="translate({at:g} {middle:g})" d="{path}"/>'
    return hit(f'{bar}{mark}<circle class="aim" cx="{at:g}" cy="{middle:g}" r="11"/>', dot.says)


def _listed(lines: Sequence[Line]) -> str:
    return "; ".join(d.says for one in lines for d in one.dots)


def bars(drawn: Bars) -> Markup:
    """Stacked bars, one row each, with a mark for what was measured of the whole."""
    highest = max((max(sum(p.value for p in b.parts), b.mark or 0.0) for b in drawn.bars), default=0.0) or 1.0
    names = list(dict.fromkeys(p.name for b in drawn.bars for p in b.parts))
    left, top, step = 118, 6, 26
    bottom = top + step * len(drawn.bars)
    x = Scale(0, highest * 1.04, left, WIDTH - 14)
    body = _x_axis(x, round_ticks(0, x.high, 5), bottom, drawn.unit, top)
    for i, bar in enumerate(drawn.bars):
        y, reached = top + step * i, 0.0
        body.append(text(left - 8, y + 17, bar.label, "row", "end"))
        for part in bar.parts:
            start, end = x(reached), x(reached + part.value)
            reached += part.value
            kind = f"part{names.index(part.name) % 6}"
            rect = f'<rect class="{kind}" x="{start:g}" y="{y + 4}" width="{max(0.0, end - start):.1f}" height="18"/>'
            body.append(hit(rect, f"{bar.label}: {part.says}"))
        if bar.mark is not None:
            body.append(line(x(bar.mark), y + 1, x(bar.mark), y + 25, "mark"))
    words = "; ".join(f"{b.label}: {', '.join(p.says for p in b.parts)}" for b in drawn.bars)
    return svg(WIDTH, bottom + 42, "".join(body), f"{drawn.title}: {words}", "bars")


def reaches(drawn: Reaches) -> Markup:
    """Percentiles, one row an arm, on a logarithmic axis."""
    values = [v for r in drawn.rows for v in r.values]
    if not values:
        return Markup('<p class="quiet">nothing to draw</p>')
    left, top, step = 118, 6, 20
    bottom = top + step * len(drawn.rows)
    x = Scale(min(values) * 0.85, max(values) * 1.15, left, WIDTH - 14, log=True)
    body = _x_axis(x, log_ticks(x.low, x.high), bottom, drawn.unit, top)
    for i, one in enumerate(drawn.rows):
        y = top + step * i + 10
        p50, p95, p99 = (x(v) for v in one.values)
        path = _MARKERS.get(one.tone, _MARKERS["other"])
        shape = f'<path class="r t-{one.tone}" d="M{p50:g} {y}H{p99:g}M{p50:g} {y - 4}v8M{p99:g} {y - 4}v8"/>'
        shape += f'<path class="m t-{one.tone}" transform="translate({p95:g} {y})" d="{path}"/>'
        aim = f'<rect class="aim" x="{left}" y="{y - 10}" width="{WIDTH - 14 - left}" height="{step}"/>'
        body += [text(left - 8, y + 4, one.label, "row", "end"), hit(shape + aim, one.says)]
    words = "; ".join(r.says for r in drawn.rows)
    return svg(WIDTH, bottom + 42, "".join(body), f"{drawn.title}: {words}", "reaches")


def _x_axis(x: Scale, ticks: Sequence[float], bottom: float, name: str, top: float) -> list[str]:
    grid = [line(x(t), top, x(t), bottom + 4, "grid") for t in ticks]
    return [*grid, *(text(x(t), bottom + 17, tick_text(t)) for t in ticks),
            text((x.start + x.end) / 2, bottom + 35, name, "name")]  # fmt: skip
