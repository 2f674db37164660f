"""Values over time as SVG: panels above each other on one time axis, spans shaded behind them. Draws only."""

from markupsafe import Markup

from walproof.reporting.axes import Scale, log_ticks, round_ticks, tick_text
from walproof.reporting.outline import SeriesChart, SeriesPanel
from walproof.reporting.svg import line, svg, text, with_tooltip

WIDTH, LEFT, RIGHT = 900, 60, 12
_TOP, _HEIGHT, _GAP = 16, 112, 20


def series_chart(chart: SeriesChart) -> Markup:
    """The panels from top to bottom, the time axis below the last."""
    if not chart.slots:
        return Markup('<p class="quiet">nothing to draw</p>')
    x = Scale(0.0, chart.slots[-1].end, LEFT, WIDTH - RIGHT)
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
    body.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, chart.x_name, "name"))
    for slot in chart.slots:
        width = max(0.0, x(slot.end) - x(slot.begin))
        aim = f'<rect class="aim" x="{x(slot.begin):g}" y="{_TOP}" width="{width:.1f}" height="{bottom - _TOP}"/>'
        body.append(with_tooltip(aim, slot.tooltip))
    described = "; ".join(slot.tooltip for slot in chart.slots)
    return svg((WIDTH, bottom + 42), "".join(body), "timeline", chart.title, described)


def _panel(panel: SeriesPanel, x: Scale, top: float) -> list[str]:
    bottom = top + _HEIGHT
    values = [v for one in panel.lines for run in one.runs for _, v in run]
    if not values:
        return [text(LEFT + 6, top + 14, f"{panel.y_name}: not known", anchor="start")]
    positive = [v for v in values if v > 0]
    log = panel.y_log and bool(positive)
    low, high = (min(positive) / 1.2, max(positive) * 1.2) if log else (0.0, (max(values) or 1.0) * 1.08)
    y = Scale(low, high, bottom, top, log=log)
    ticks = log_ticks(low, high) if log else round_ticks(low, high, 4)
    body = [line(LEFT, y(t), WIDTH - RIGHT, y(t), "grid") for t in ticks]
    body += [text(LEFT - 6, y(t) + 4, tick_text(t), anchor="end") for t in ticks]
    body.append(
        f'<text class="name" transform="translate(11 {(top + bottom) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{panel.y_name}</text>"
    )
    for one in panel.lines:
        for run in one.runs:
            path = "L".join(f"{x(at):g} {y(value):g}" for at, value in run)
            body.append(f'<path class="s {one.weight} t-{one.tone}" d="M{path}"/>')
    return body
