"""A record's events as tables for the terminal: the one door for everybody who prints."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from walproof.model.event import ClaimJudged, Event
from walproof.reporting.as_json import price_json, prove_json
from walproof.reporting.conclusion import conclusion
from walproof.reporting.fitting import Fitting, table, with_lines
from walproof.reporting.outline import Outline, Table
from walproof.reporting.terminal_drills import prove_tables
from walproof.reporting.terminal_price import price_tables

__all__ = [
    "conclusion",
    "outline_tables",
    "price_json",
    "price_tables",
    "prove_json",
    "prove_tables",
    "study_tables",
    "tables",
]

_CLAIM = {"reproduced": "green", "not reproduced": "bold red"}
_TONE = {"good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim"}


def tables(events: Sequence[Event]) -> list[RenderableType]:
    """Everything the events hold."""
    return [*price_tables(events), *prove_tables(events), *study_tables(events)]


def study_tables(events: Sequence[Event]) -> list[RenderableType]:
    """Claims of published studies beside what was measured; empty without claims."""
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    if not claims:
        return []
    verdicts = [Text(c.verdict, style=_CLAIM.get(c.verdict, "yellow")) for c in claims]
    wide: list[list[str | Text]] = [
        [c.study, c.claim, c.paper, c.measured, v, c.why] for c, v in zip(claims, verdicts, strict=True)
    ]
    narrow: list[list[str | Text]] = [[f"{c.study}: {c.claim}", v] for c, v in zip(claims, verdicts, strict=True)]
    notes = [f"{c.claim}: paper {c.paper}; here {c.measured}; {c.why}" for c in claims]
    title = "published claims"
    return [
        Fitting(
            table(title, ("study", "claim", "paper", "measured here", "verdict", "why"), wide),
            with_lines(table(title, ("claim", "verdict"), narrow, folds="claim"), notes, "dim"),
        )
    ]


def outline_tables(outline: Outline) -> list[RenderableType]:
    """The tables of an outline, as for a comparison."""
    return [_shown(block) for section in outline.sections for block in section.blocks if isinstance(block, Table)]


def _shown(block: Table) -> RenderableType:
    heads = [f">{c.name}" if c.numeric else c.name for c in block.columns]
    rows = [[Text(cell.text, style=_TONE.get(cell.tone, "")) for cell in cells] for cells in block.rows]
    wide = table(block.title, heads, rows)
    keys = sum(len({r[i].text for r in block.rows}) > 1 or i == 0 for i in (0, 1)) if len(block.columns) > 3 else 1
    listed = []
    for cells in block.rows:
        listed.append(" · ".join(c.text for c in cells[:keys]))
        pairs = list(zip(block.columns, cells, strict=True))[keys:]
        listed += [f"    {column.name}: {cell.text}" for column, cell in pairs if cell.text]
    return Fitting(wide, with_lines(Text(block.title, style="bold"), listed))
