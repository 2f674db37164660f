"""A drill on a time axis: rate of acknowledgements, the fault, and each event of the recovery. Draws only."""

from markupsafe import Markup, escape

from walproof.model.verdict import Drill
from walproof.reporting.axes import Scale, round_ticks, spread_rows, tick_text
from walproof.reporting.svg import line, svg, text, with_tooltip
from walproof.reporting.wording import count, seconds

WIDTH, LEFT, RIGHT = 900, 52, 16


def timeline(drill: Drill) -> Markup:
    """The timeline as SVG, in seconds from the fault; empty when nothing was recorded over time."""
    times = [at for at, _ in drill.pace] + [m.at for m in drill.marks]
    if not times:
        return Markup("")
    fault = next((m.at for m in drill.marks if m.what in ("fault", drill.fault)), min(times))
    x = Scale(min(times) - fault, max(times) - fault, LEFT, WIDTH - RIGHT)
    marks = sorted(drill.marks, key=lambda m: m.at)
    labels = [f"{m.at - fault:+.1f} s {m.what}{f' ({m.member})' if m.member else ''}" for m in marks]
    shown = [label if len(label) <= 44 else label[:43] + "…" for label in labels]
    lefts = [min(x(m.at - fault), WIDTH - RIGHT - 6.3 * len(s)) for m, s in zip(marks, shown, strict=True)]
    rows = spread_rows([(at, at + 6.3 * len(s) + 8) for at, s in zip(lefts, shown, strict=True)])
    top = 12 + 15 * (max(rows, default=-1) + 1)
    bottom = top + 76
    body = _lost(drill, fault, x, (top, bottom)) + _rate(drill, fault, x, (top, bottom))
    for mark, label, cut, row, at in zip(marks, labels, shown, rows, lefts, strict=True):
        y = 12 + 15 * row
        kind = "fault" if mark.at == fault else "moment"
        drawn = line(x(mark.at - fault), y - 8, x(mark.at - fault), bottom, kind)
        body.append(with_tooltip(drawn + text(at + 3, y, cut, f"{kind}-name", "start"), label))
    ticks = round_ticks(x.low, x.high, 8)
    body += [line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")]
    body += [text(x(t), bottom + 16, tick_text(t)) for t in ticks]
    body += [text((LEFT + WIDTH - RIGHT) / 2, bottom + 33, "seconds from the fault", "name")]
    title = f"timeline of drill {drill.number}, {drill.fault} at {drill.level}"
    description = f"{'; '.join(labels)}; outage {seconds(drill.rto_s)}"
    return svg((WIDTH, bottom + 40), "".join(body), "timeline", title, description)


def _rate(drill: Drill, fault: float, x: Scale, span: tuple[float, float]) -> list[str]:
    if len(drill.pace) < 2:
        return []
    top, bottom = span
    width = drill.pace[1][0] - drill.pace[0][0]
    most = max(commits for _, commits in drill.pace) or 1
    y = Scale(0, most, bottom, top + 4)
    path = f"M{x(drill.pace[0][0] - fault):g} {bottom:g}"
    for at, commits in drill.pace:
        path += f"V{y(commits):g}H{x(at + width - fault):g}"
    rate = f"{count(most / width)}/s" if width > 0 else count(most)
    area = f'<path class="rate t-{escape(str(drill.level))}" d="{path}V{bottom:g}Z"/>'
    return [with_tooltip(area, f"acknowledged commits, at most {rate}"), text(LEFT - 6, top + 10, rate, anchor="end")]


def _lost(drill: Drill, fault: float, x: Scale, span: tuple[float, float]) -> list[str]:
    found = drill.findings
    if found.lost_from is None or found.lost_to is None:
        return []
    top, bottom = span
    left, right = x(found.lost_from - fault), x(found.lost_to - fault)
    rect = f'<rect class="lost" x="{left:g}" y="{top}" width="{max(2.0, right - left):.1f}" height="{bottom - top}"/>'
    return [with_tooltip(rect, f"{count(found.lost)} acknowledged commits of this span are lost")]
