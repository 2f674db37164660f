"""An outline as one self-contained HTML page, and as Markdown for a pull request.

No request leaves the page; all text of the record is escaped, and no script of a target can run in it. Also draws the
page's timeline of a drill as SVG."""

import base64
import hashlib
import html
import re
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from walproof.machine.untrusted import field
from walproof.model.drill import Drill
from walproof.model.units import counted
from walproof.reporting import wording
from walproof.reporting.outline import Block, Chart, Evidence, Figure, Outline, Prose, SeriesChart, Table
from walproof.reporting.svg_charts import (
    Scale,
    draw,
    line,
    marker,
    round_ticks,
    spread_rows,
    svg,
    text,
    tick_text,
    with_tooltip,
)
from walproof.reporting.wording import count, seconds, verdict_name

TIMELINE_WIDTH, TIMELINE_LEFT, TIMELINE_RIGHT = 900, 52, 16


def timeline(drill: Drill) -> Markup:
    """The timeline as SVG, in seconds from the fault; empty when nothing was recorded over time."""
    times = [at for at, _ in drill.pace] + [m.at for m in drill.marks]
    if not times:
        return Markup("")
    fault = next((m.at for m in drill.marks if m.what in ("fault", drill.fault)), min(times))
    x = Scale(min(times) - fault, max(times) - fault, TIMELINE_LEFT, TIMELINE_WIDTH - TIMELINE_RIGHT)
    marks = sorted(drill.marks, key=lambda m: m.at)
    labels = [f"{m.at - fault:+.1f} s {m.what}{f' ({m.member})' if m.member else ''}" for m in marks]
    shown = [label if len(label) <= 44 else label[:43] + "…" for label in labels]
    lefts = [
        min(x(m.at - fault), TIMELINE_WIDTH - TIMELINE_RIGHT - 6.3 * len(s)) for m, s in zip(marks, shown, strict=True)
    ]
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
    body += [line(TIMELINE_LEFT, bottom, TIMELINE_WIDTH - TIMELINE_RIGHT, bottom, "axis")]
    body += [text(x(t), bottom + 16, tick_text(t)) for t in ticks]
    body += [text((TIMELINE_LEFT + TIMELINE_WIDTH - TIMELINE_RIGHT) / 2, bottom + 33, "seconds from the fault", "name")]
    title = f"timeline of drill {drill.number}, {drill.fault} at {drill.level}"
    description = f"{'; '.join(labels)}; outage {seconds(drill.rto_s)}"
    return svg((TIMELINE_WIDTH, bottom + 40), "".join(body), "timeline", title, description)


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
    return [
        with_tooltip(area, f"acknowledged commits, at most {rate}"),
        text(TIMELINE_LEFT - 6, top + 10, rate, anchor="end"),
    ]


def _lost(drill: Drill, fault: float, x: Scale, span: tuple[float, float]) -> list[str]:
    findings = drill.findings
    if findings.lost_from is None or findings.lost_to is None:
        return []
    top, bottom = span
    left, right = x(findings.lost_from - fault), x(findings.lost_to - fault)
    rect = f'<rect class="lost" x="{left:g}" y="{top}" width="{max(2.0, right - left):.1f}" height="{bottom - top}"/>'
    return [with_tooltip(rect, f"{count(findings.lost)} acknowledged commits of this span are lost")]


_SIDE_ROWS = 24
"""Rows of a table that still stands next to its chart."""


def page(outline: Outline) -> str:
    """The page as text; all text of the record is escaped, and the policy in its head admits its own script only."""
    templates = Environment(
        loader=PackageLoader("walproof.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: field(value) if type(value) is str else value,
    )
    templates.globals.update(draw=draw, marker=marker, timeline=timeline, wording=wording, counted=counted)
    templates.globals.update(
        kind=lambda block: type(block).__name__.lower(), has_side_table=_has_side_table, is_wide=_is_wide
    )
    script, style = _file("report.js"), _file("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    made = templates.get_template("report.html.j2")
    return made.render(outline=outline, script=Markup(script), style=Markup(style), policy=policy)


def _has_side_table(figure: Figure) -> bool:
    """Whether the numbers of a figure stand next to its only chart, instead of collapsed below its charts."""
    return len(figure.charts) == 1 and len(figure.table.rows) <= _SIDE_ROWS and not _is_wide(figure.charts[0])


def _is_wide(chart: Chart) -> bool:
    """Whether a chart takes the page's whole width."""
    return isinstance(chart, SeriesChart)


def _file(name: str) -> str:
    return (files("walproof.reporting") / "templates" / name).read_text("utf-8")


def markdown(outline: Outline) -> str:
    parts = [f"# {_safe(outline.title)}", " ".join(_safe(s) for s in outline.sentences)]
    parts += (
        ["*" + " · ".join(_safe(f"{name} {value}") for name, value in outline.facts) + "*"] if outline.facts else []
    )
    parts += ["\n".join(f"> ⚠ {_safe(n)}" for n in outline.notices)] if outline.notices else []
    for section in outline.sections:
        parts += [f"## {_safe(section.title)}", *([_safe(section.intro)] if section.intro else [])]
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    match block:
        case Prose(lines=lines, code=True):
            fence = "`" * (3 + max((len(run) for run in re.findall("`+", "".join(lines))), default=0))
            return "\n".join([fence, *lines, fence])
        case Prose(lines=lines):
            return _safe(lines[0]) if len(lines) == 1 else "\n".join(f"- {_safe(line)}" for line in lines)
        case Table():
            return f"**{_safe(block.title)}**\n\n{_table(block)}"
        case Figure():
            caveats = "\n".join(f"- ⚠ {_safe(caveat)}" for caveat in block.caveats)
            folded = f"<details><summary>caveats ({len(block.caveats)})</summary>\n\n{caveats}\n\n</details>"
            return f"**{_safe(block.title)}**\n\n{_table(block.table)}" + (f"\n\n{folded}" if caveats else "")
        case Evidence():
            drills = [
                f"- drill {d.number}: {verdict_name(d)}, {_safe(d.why)}; lost {count(d.findings.lost)}, "
                f"RTO {seconds(d.rto_s)}"
                for d in block.drills
            ]
            head = f"<details><summary>{block.verdict.mark} {_safe(block.title)}</summary>"
            return "\n".join([head, "", *drills, "", "</details>"])


def _table(table: Table) -> str:
    heads = "| " + " | ".join(_safe(c.name) for c in table.columns) + " |"
    rule = "|" + "|".join(" ---: " if c.numeric else " --- " for c in table.columns) + "|"
    return "\n".join([heads, rule, *("| " + " | ".join(_safe(c.text) for c in row) + " |" for row in table.rows)])


def _safe(text: str) -> str:
    """The text without anything that Markdown or HTML would interpret; line breaks become spaces."""
    flat = html.escape(field(re.sub(r"\s+", " ", text)), quote=False)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", flat).replace("@", "&#64;")
