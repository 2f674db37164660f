"""A record's events as tables for the terminal: what every command that prints results imports."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from walproof.model.event import ClaimJudged, Event, FigureCompared
from walproof.reporting import outline as pages
from walproof.reporting.console_output import Fitting, table, with_lines
from walproof.reporting.terminal_price_drills_forecast import price_tables, prove_tables
from walproof.reporting.wording import interval, number

_CLAIM = {"reproduced": "green", "not reproduced": "bold red"}
_TONE = {"good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim"}


def tables(events: Sequence[Event]) -> list[RenderableType]:
    """Everything the events hold."""
    return [*price_tables(events), *prove_tables(events), *study_tables(events)]


def study_tables(events: Sequence[Event]) -> list[RenderableType]:
    """Claims and figures of published studies compared with what was measured; empty without any."""
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    figures = [e for e in events if isinstance(e, FigureCompared)]
    shown: list[RenderableType] = []
    if claims:
        shown.append(Group(Text("published claims", style="bold"), Text(), *map(_claim, claims)))
    if figures:
        rows = [[f.figure, f.unit, number(f.paper), interval(f.measured)] for f in figures]
        heads = ("figure", "unit", ">paper", ">here (95 % CI)")
        shown.append(table("published figures", heads, rows, folds="figure"))
        caveats = dict.fromkeys(caveat for f in figures for caveat in f.caveats)
        shown += [Text(f"other than the study: {'; '.join(caveats)}", "yellow")] if caveats else []
    return shown


def _claim(claim: ClaimJudged) -> RenderableType:
    """A claim in four lines: verdict and name, what the paper says, its figure, the figure here and why."""
    name, _, says = claim.claim.partition(": ")
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True, min_width=14)
    lines.add_column()
    lines.add_row(Text(claim.verdict, style=_CLAIM.get(claim.verdict, "yellow")), Text(name, style="bold"))
    lines.add_row("", Text(says))
    lines.add_row(Text("  paper", style="dim"), Text(claim.paper))
    lines.add_row(Text("  here", style="dim"), Text(f"{claim.measured}: {claim.why}"))
    if claim.caveats:
        lines.add_row(Text("  but", style="dim"), Text("; ".join(claim.caveats), style="yellow"))
    return lines


def outline_tables(outline: pages.Outline) -> list[RenderableType]:
    """The tables of an outline, as for a comparison."""
    return [_shown(block) for section in outline.sections for block in section.blocks if isinstance(block, pages.Table)]


def _shown(block: pages.Table) -> RenderableType:
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
