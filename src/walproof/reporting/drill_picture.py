"""A drill on a time axis: pace of acknowledgements, the fault, and each moment of the recovery. Draws only."""

from markupsafe import Markup, escape

from walproof.model.verdict import Drill
from walproof.reporting.axes import Scale, round_ticks, spread_rows, tick_text
from walproof.reporting.svg import hit, line, svg, text
from walproof.reporting.wording import seconds, whole

WIDTH, LEFT, RIGHT = 900, 52, 16


def timeline(drill: Drill) -> Markup:
    """The picture, seconds counted from the fault; empty when neither pace nor moments were noted."""
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
    body = _lost(drill, fault, x, (top, bottom)) + _pace(drill, fault, x, (top, bottom))
    for mark, label, cut, row, at in zip(marks, labels, shown, rows, lefts, strict=True):
        y = 12 + 15 * row
        kind = "fault" if mark.at == fault else "moment"
        drawn = line(x(mark.at - fault), y - 8, x(mark.at - fault), bottom, kind)
        body.append(hit(drawn + text(at + 3, y, cut, f"{kind}-name", "start"), label))
    ticks = round_ticks(x.low, x.high, 8)
    body += [line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")]
    body += [text(x(t), bottom + 16, tick_text(t)) for t in ticks]
    body += [text((LEFT + WIDTH - RIGHT) / 2, bottom + 33, "seconds from the fault", "name")]
    words = f"drill {drill.number}, {drill.fault} at {drill.level}: {'; '.join(labels)}; outage {seconds(drill.rto_s)}"
    return svg(WIDTH, bottom + 40, "".join(body), words, "timeline")


def _pace(drill: Drill, fault: float, x: Scale, span: tuple[float, float]) -> list[str]:
    if len(drill.pace) < 2:
        return []
    top, bottom = span
    width = drill.pace[1][0] - drill.pace[0][0]
    most = max(count for _, count in drill.pace) or 1
    y = Scale(0, most, bottom, top + 4)
    path = f"M{x(drill.pace[0][0] - fault):g} {bottom:g}"
    for at, count in drill.pace:
        path += f"V{y(count):g}H{x(at + width - fault):g}"
    rate = f"{whole(most / width)}/s" if width > 0 else whole(most)
    area = f'<path class="pace t-{escape(str(drill.level))}" d="{path}V{bottom:g}Z"/>'
    return [hit(area, f"acknowledged commits, at most {rate}"), text(LEFT - 6, top + 10, rate, anchor="end")]


def _lost(drill: Drill, fault: float, x: Scale, span: tuple[float, float]) -> list[str]:
    found = drill.findings
    if found.lost_from is None or found.lost_to is None:
        return []
    top, bottom = span
    left, right = x(found.lost_from - fault), x(found.lost_to - fault)
    rect = f'<rect class="lost" x="{left:g}" y="{top}" width="{max(2.0, right - left):.1f}" height="{bottom - top}"/>'
    return [hit(rect, f"{whole(found.lost)} acknowledged commits of this span are lost")]
