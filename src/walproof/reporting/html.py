"""An outline as one self-contained HTML page: no request leaves it, scripts from the target cannot run in it."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from walproof.model.units import counted
from walproof.reporting import wording
from walproof.reporting.draw import draw
from walproof.reporting.drill_timeline import timeline
from walproof.reporting.outline import Chart, Evidence, Figure, Outline, Prose, SeriesChart, Table
from walproof.reporting.svg import marker

_KINDS = {Prose: "prose", Table: "table", Figure: "figure", Evidence: "evidence"}
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
    )
    templates.globals.update(draw=draw, marker=marker, timeline=timeline, wording=wording, counted=counted)
    templates.globals.update(kind=_kind, has_side_table=_has_side_table, is_wide=_is_wide)
    script, style = _file("report.js"), _file("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    made = templates.get_template("report.html.j2")
    return made.render(outline=outline, script=Markup(script), style=Markup(style), policy=policy)


def _kind(block: object) -> str:
    return _KINDS[type(block)]


def _has_side_table(figure: Figure) -> bool:
    """Whether the numbers of a figure stand next to its only chart, instead of collapsed below its charts."""
    return len(figure.charts) == 1 and len(figure.table.rows) <= _SIDE_ROWS and not _is_wide(figure.charts[0])


def _is_wide(chart: Chart) -> bool:
    """Whether a chart takes the page's whole width."""
    return isinstance(chart, SeriesChart)


def _file(name: str) -> str:
    return (files("walproof.reporting") / "templates" / name).read_text("utf-8")
