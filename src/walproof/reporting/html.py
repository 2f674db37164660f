"""An outline as one self-contained HTML page: no request leaves it, scripts from the target cannot run in it."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from walproof.reporting import wording
from walproof.reporting.drill_picture import timeline
from walproof.reporting.outline import Evidence, Figure, Outline, Prose, Table
from walproof.reporting.svg import marker, picture


def page(outline: Outline) -> str:
    """The whole page; everything from the record is escaped, and the policy in its head admits its own script only."""
    templates = Environment(
        loader=PackageLoader("walproof.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(picture=picture, marker=marker, timeline=timeline, kind=_kind, wording=wording)
    script, style = _own("report.js"), _own("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    made = templates.get_template("report.html.j2")
    return made.render(outline=outline, script=Markup(script), style=Markup(style), policy=policy)


def _kind(block: object) -> str:
    return {Prose: "prose", Table: "table", Figure: "figure", Evidence: "evidence"}[type(block)]


def _own(name: str) -> str:
    return (files("walproof.reporting") / "templates" / name).read_text("utf-8")
