"""What a report consists of, before it is a page, Markdown or CSV: sections of text, tables, figures, evidence."""

from dataclasses import dataclass, field

from walproof.model.estimate import Estimate
from walproof.model.verdict import Drill, Verdict


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell. tone: "", good, bad, warn, quiet, or a level's name; link: id of the evidence behind it."""

    text: str
    tone: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column; numbers stand right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table. key: its name as a CSV file; head_column: whether the first column names the row."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: str = ""
    """"matrix" for the survival matrix, else ""."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a line: x, the value with its interval, what hovering says, whether it is doubted."""

    x: float
    y: Estimate
    says: str
    doubted: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one name; tone is a level's name or a number of the palette."""

    name: str
    tone: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines with intervals over x. rule: a horizontal line that everything is compared with; diagonal: y equals x."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    rule: float | None = None
    x_log: bool = True
    y_log: bool = False
    diagonal: bool = False
    """Points stand by themselves around the line y = x."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a stacked bar; spread is its interval in words."""

    name: str
    value: float
    says: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar; mark is what was measured for the whole."""

    label: str
    parts: tuple[Part, ...]
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars of one unit."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """Percentiles of one arm on a shared axis: three values and what hovering says."""

    label: str
    tone: str
    values: tuple[float, float, float]
    says: str


@dataclass(frozen=True, slots=True)
class Reaches:
    """Percentiles, one row an arm; the axis is logarithmic."""

    title: str
    unit: str
    rows: tuple[Reach, ...]


Picture = Chart | Bars | Reaches


@dataclass(frozen=True, slots=True)
class Figure:
    """Pictures with their legend, a sentence that says what is to be seen, caveats, and the same numbers as a table."""

    key: str
    title: str
    says: str
    pictures: tuple[Picture, ...]
    legend: tuple[tuple[str, str], ...]
    table: Table
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph, or a list when there are several; code is shown as typed."""

    lines: tuple[str, ...]
    code: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What stands behind one cell of the survival matrix."""

    key: str
    title: str
    verdict: Verdict
    drills: tuple[Drill, ...]


Block = Prose | Table | Figure | Evidence


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the report."""

    key: str
    title: str
    says: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """The whole report. facts: a line of short facts under the title."""

    title: str
    facts: tuple[str, ...]
    sentences: tuple[str, ...]
    notices: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default_factory=tuple)


def columns(*names: str) -> tuple[Column, ...]:
    """Columns by name; a name that starts with ">" is numeric.

    >>> columns("level", ">tps")[1]
    Column(name='tps', numeric=True)
    """
    return tuple(Column(n.removeprefix(">"), n.startswith(">")) for n in names)


def row(*cells: Cell | str) -> tuple[Cell, ...]:
    """A table's row; bare strings become cells."""
    return tuple(c if isinstance(c, Cell) else Cell(c) for c in cells)
