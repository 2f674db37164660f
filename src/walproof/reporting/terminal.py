"""An outline's tables for the terminal: whole where they fit, else narrow, upright, or as a list. Only lays out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from walproof.reporting.drill_section import drill_table
from walproof.reporting.outline import Cell, Column, Evidence, Figure, Section, Table

_TONE = {"good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim"}
_INTERVAL = re.compile(r" \(.*")
_PERCENT = "\N{NO-BREAK SPACE}%\N{NO-BREAK SPACE}"
_FOLDED = 14
"""Columns left to a text that may be broken into lines, at least."""
Cells = tuple[Cell, ...]


def tables(sections: Sequence[Section]) -> list[RenderableType]:
    """The tables of the sections, figures as their tables, evidence as one table of drills."""
    shown = []
    for section in sections:
        shown += [
            block.table if isinstance(block, Figure) else block
            for block in section.blocks
            if isinstance(block, Figure | Table)
        ]
        drills = [drill for block in section.blocks if isinstance(block, Evidence) for drill in block.drills]
        shown += [drill_table(sorted(drills, key=lambda d: d.number))] if drills else []
    return [_Shown(part) for table in shown if not table.page_only for part in _by_title(table)]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A table in the first form that fits the terminal."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        yield Text(f"\n{table.title}", style="bold")
        plain = _without(table, "line")
        wide, needed = _grid(plain.columns, plain.rows)
        if needed <= options.max_width:
            yield wide
            yield from _notes(_lines(table, "line"))
            return
        narrow, needed, letters = _narrow(table)
        if needed <= options.max_width:
            yield narrow
            yield from _notes([*letters, *_lines(table, "line", "aside")])
            return
        upright, needed = _upright(table)
        yield upright if needed <= options.max_width else _listed(table)


def _by_title(table: Table) -> list[Table]:
    """A table for each value of the columns that stand in the title; rows that name none belong to the one above."""
    in_title = [c.in_terminal == "title" for c in table.columns]
    groups: dict[tuple[str, ...], list[Cells]] = {}
    values: tuple[str, ...] = ()
    for cells in table.rows:
        named = tuple(cell.text for cell, titled in zip(cells, in_title, strict=True) if titled)
        values = named if any(named) else values
        groups.setdefault(values, []).append(cells)
    return [
        _without(replace(table, title=" · ".join((table.title, *values)), rows=tuple(rows)), "title")
        for values, rows in groups.items()
    ]


def _without(table: Table, way: str) -> Table:
    kept = [i for i, column in enumerate(table.columns) if column.in_terminal != way]
    rows = tuple(tuple(cells[i] for i in kept) for cells in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def _grid(columns: Sequence[Column], rows: Sequence[Cells], *, narrow: bool = False) -> tuple[Grid, int]:
    """The table and the least width it needs; a narrow one folds its headings."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    needed = 2 * len(columns) - 2
    for i, column in enumerate(columns):
        heading = column.name.replace(" % ", _PERCENT) if narrow else column.name
        words = heading.split(" ") if narrow else [heading]
        width = max(map(cell_len, [*words, *(cells[i].text for cells in rows)]))
        folds = narrow and column.in_terminal == "fold" and width > _FOLDED
        needed += _FOLDED if folds else width
        grid.add_column(
            Text("\n".join(wrap(heading, width)).replace(_PERCENT, " % ")),
            justify="right" if column.numeric else "left",
            no_wrap=not folds,
            min_width=_FOLDED if folds else width,
            overflow="fold",
        )
    for cells in rows:
        grid.add_row(*(Text(cell.text, style=_TONE.get(cell.tone, "")) for cell in cells))
    return grid, needed


def _narrow(table: Table) -> tuple[Grid, int, list[str]]:
    """The columns that a narrow terminal keeps, the least width they need, and what letters among them mean."""
    columns: list[Column] = []
    kept: list[list[Cell]] = []
    notes: list[str] = []
    for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        texts = dict.fromkeys(cell.text for cell in cells)
        way = column.in_terminal
        if way in ("drop", "aside", "line"):
            continue
        if way == "range" or (way == "letter" and len(texts) == 1):
            known = sorted(filter(None, texts), key=lambda text: (len(text), text))
            notes += [f"{column.name}: {' to '.join(dict.fromkeys((known[0], known[-1])))}"] if known else []
            continue
        if way == "n":
            notes.append(f"n: {column.name}")
        if way == "letter" and max(map(len, texts)) > max(map(len, column.name.split())):
            letters = dict(zip(filter(None, texts), ascii_lowercase, strict=False))
            notes.append(f"{column.name}: " + "; ".join(f"{letter} {text}" for text, letter in letters.items()))
            kept.append([replace(cell, text=letters.get(cell.text, cell.text)) for cell in cells])
        elif way == "bare":
            kept.append([replace(cell, text=_INTERVAL.sub("", cell.text)) for cell in cells])
        else:
            kept.append(list(cells))
        columns.append(replace(column, name="n") if way == "n" else column)
    return *_grid(columns, tuple(zip(*kept, strict=True)), narrow=True), notes


def _lines(table: Table, *ways: str) -> list[str]:
    """Columns as lines below a table, named by the row; what all rows share is said once."""
    lines, chosen = [], []
    for i, column in enumerate(table.columns):
        if column.in_terminal not in ways:
            continue
        texts = {cells[i].text for cells in table.rows}
        if column.in_terminal == "line" and len(texts) == 1 and len(table.rows) > 1:
            lines += [f"{column.name}: {text}" for text in texts if text]
        else:
            chosen.append((i, column))
    keys = _keys(table)
    for cells in table.rows:
        known = [(column, cells[i].text) for i, column in chosen if cells[i].text and cells[i].tone != "quiet"]
        said = "; ".join(text for column, text in known if column.in_terminal == "line")
        named = [(f"{c.name}{'' if c.numeric else ':'} {text}") for c, text in known if c.in_terminal != "line"]
        aside = ", ".join(named)
        text = f"{said} ({aside})" if said and aside else said or aside
        if text:
            lines.append(f"{_name(cells, keys).partition(': ')[0]}: {text}")
    return lines


def _keys(table: Table) -> int:
    """How many first columns tell the rows apart: one or two."""
    return 1 if len({cells[0].text for cells in table.rows}) == len(table.rows) else 2


def _name(cells: Cells, keys: int) -> str:
    return " · ".join(cell.text for cell in cells[:keys])


def _notes(lines: Sequence[str]) -> list[Text]:
    return [Text(f"  {line}", style="dim") for line in lines]


def _upright(table: Table) -> tuple[Grid, int]:
    first, *others = table.columns
    heads = [Column(first.name), *(Column(cells[0].text, numeric=True) for cells in table.rows)]
    return _grid(heads, [(Cell(c.name), *(cells[i] for cells in table.rows)) for i, c in enumerate(others, 1)])


def _listed(table: Table) -> Text:
    """A paragraph for each row."""
    lines, keys = [], _keys(table)
    for cells in table.rows:
        heading = f"{table.columns[0].name} " if table.columns[0].numeric else ""
        lines.append(Text(f"  {heading}{_name(cells, keys)}"))
        pairs = list(zip(table.columns, cells, strict=True))[keys:]
        known = [(column.name, cell) for column, cell in pairs if cell.text]
        lines += [Text(f"      {name}: ").append(cell.text, _TONE.get(cell.tone)) for name, cell in known]
    return Text("\n").join(lines)
