"""A table with a narrower form of itself, of which it shows what fits the terminal. Lays out; computes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Fitting:
    """Shows `wide` where it fits without folding, else `narrow`."""

    wide: RenderableType
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=1_000_000), self.wide).maximum
        yield self.wide if needed <= options.max_width else self.narrow


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, folds: str = ""
) -> RenderableType:
    """A table; columns marked ">" are right-aligned, only the column named `folds` may break a line."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.padding = (0, 1, 0, 0)
    for name in columns:
        plain = name.removeprefix(">")
        right = name.startswith(">")
        made.add_column(escape(plain), justify="right" if right else "left", no_wrap=plain != folds, overflow="fold")
    for cells in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return Group(Text(title, style="bold"), made)


def with_lines(first: RenderableType, lines: Sequence[str], style: str = "") -> RenderableType:
    """Something with lines of text under it."""
    return Group(first, *(Text(f"  {line}", style=style) for line in lines)) if lines else first
