"""What a report consists of, before it is a page, Markdown or CSV: sections of text, tables, figures, evidence."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from walproof.machine.untrusted import field as field_of
from walproof.model.drill import Drill, Verdict
from walproof.model.estimate import Estimate


class _Fields:
    """Whose texts are one line each, whatever names they hold."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(value, str | tuple) and not isinstance(value, Enum):
                object.__setattr__(self, one.name, _of_one_line(value))


def _of_one_line(value: object) -> object:
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_of_one_line, value))
    return field_of(value) if type(value) is str else value


@dataclass(frozen=True, slots=True)
class Cell(_Fields):
    """A table's cell. tone: "", good, bad, warn, quiet, unresolved or a level; link: id of the evidence behind it."""

    text: str
    tone: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Column(_Fields):
    """A table's column; numbers are right-aligned. in_terminal: how the terminal shows it, "" as the page does.

    title: a table for each of its values, which stand in the title. line: as lines below, named by the row. Only where
    the table is wider than the terminal: drop, aside (below, in the row's line), letter (explained below), range
    (below, least to most), fold (over several lines), bare (without intervals), n (under that heading).
    """

    name: str
    numeric: bool = False
    in_terminal: str = ""


@dataclass(frozen=True, slots=True)
class Table(_Fields):
    """A table; its first column names the row. key: its name in JSON, unique within the report."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: str = ""
    """"matrix" for the survival matrix, else ""."""
    page_only: bool = False
    """Whether the terminal leaves it out."""


@dataclass(frozen=True, slots=True)
class Point(_Fields):
    """One point of a line: x, the value with its interval, its tooltip; hollow points carry a caveat."""

    x: float
    y: Estimate
    tooltip: str
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Line(_Fields):
    """Points of one name; tone is a level's name or "other"."""

    name: str
    tone: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class LineChart(_Fields):
    """Lines with intervals over x. reference: a horizontal line that everything is compared with."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    reference: float | None = None
    x_log: bool = True
    y_log: bool = False
    diagonal: bool = False
    """A scatter plot around the line y = x instead of joined points."""


@dataclass(frozen=True, slots=True)
class Segment(_Fields):
    """One segment of a stacked bar, in the unit of its chart."""

    name: str
    value: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Bar(_Fields):
    """A stacked bar; mark is the total as measured."""

    label: str
    segments: tuple[Segment, ...]
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class BarChart(_Fields):
    """Stacked bars of one unit."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Percentiles(_Fields):
    """p50, p95 and p99 of one arm, and its tooltip."""

    label: str
    tone: str
    values: tuple[float, float, float]
    tooltip: str


@dataclass(frozen=True, slots=True)
class PercentileChart(_Fields):
    """Percentiles, one row an arm; the axis is logarithmic."""

    title: str
    unit: str
    rows: tuple[Percentiles, ...]


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """A line over time in runs of (seconds, value) that are not joined; weight: thick, thin, faint, area."""

    tone: str
    weight: str
    runs: tuple[tuple[tuple[float, float], ...], ...]


@dataclass(frozen=True, slots=True)
class SeriesPanel(_Fields):
    """Lines of one unit."""

    y_name: str
    lines: tuple[SeriesLine, ...]
    y_log: bool = False


@dataclass(frozen=True, slots=True)
class SeriesSlot(_Fields):
    """A stretch of time, in seconds, with its tooltip."""

    begin: float
    end: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class SeriesChart(_Fields):
    """Panels over one time axis in seconds from 0. shaded, marked: spans behind and above the panels."""

    title: str
    x_name: str
    panels: tuple[SeriesPanel, ...]
    slots: tuple[SeriesSlot, ...]
    shaded: tuple[tuple[float, float], ...] = ()
    marked: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScatterPoint(_Fields):
    """One choice: two values with their intervals. best: no other beats it in both; hollow: carries a caveat."""

    label: str
    tone: str
    x: Estimate
    y: Estimate
    tooltip: str
    best: bool = False
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class ScatterChart(_Fields):
    """Choices by two values; those that no other beats are joined."""

    title: str
    x_name: str
    y_name: str
    points: tuple[ScatterPoint, ...]


Chart = LineChart | BarChart | PercentileChart | SeriesChart | ScatterChart


@dataclass(frozen=True, slots=True)
class Figure(_Fields):
    """Charts with their legend, a caption, caveats, and the same numbers as a table."""

    key: str
    title: str
    caption: str
    charts: tuple[Chart, ...]
    legend: tuple[tuple[str, str], ...]
    """(name, tone) of each line, or (name, segmentN) of each segment."""
    table: Table
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prose(_Fields):
    """A paragraph, or a list when there are several lines; code is shown as typed."""

    lines: tuple[str, ...]
    code: bool = False


@dataclass(frozen=True, slots=True)
class Evidence(_Fields):
    """The drills behind one cell of the survival matrix, with its worst verdict and tone."""

    key: str
    title: str
    verdict: Verdict
    tone: str
    drills: tuple[Drill, ...]


Block = Prose | Table | Figure | Evidence


@dataclass(frozen=True, slots=True)
class Section(_Fields):
    key: str
    title: str
    intro: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Outline(_Fields):
    """A report: title, (name, value) facts about the run, the conclusion in sentences, notices, sections."""

    title: str
    facts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    notices: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default_factory=tuple)
    derived_from: str = "its record alone"


def columns(*names: str, **in_terminal: Collection[str]) -> tuple[Column, ...]:
    """Columns by name; a name that starts with ">" is numeric. in_terminal: the names to show in each way.

    >>> columns("level", ">tps", drop=["tps"])[1]
    Column(name='tps', numeric=True, in_terminal='drop')
    """
    how = {name: way for way, shown in in_terminal.items() for name in shown}
    plain = [n.removeprefix(">") for n in names]
    return tuple(Column(p, n.startswith(">"), how.get(p, "")) for p, n in zip(plain, names, strict=True))


def filled(table: Table) -> Table:
    """The table without columns that say nothing in any row."""
    kept = [i for i in range(len(table.columns)) if any(cells[i].text for cells in table.rows)]
    rows = tuple(tuple(cells[i] for i in kept) for cells in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def row(*cells: Cell | str) -> tuple[Cell, ...]:
    """A table's row; bare strings become cells."""
    return tuple(c if isinstance(c, Cell) else Cell(c) for c in cells)
