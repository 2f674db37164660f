"""What every verb prints with: JSON objects for programs; tables that fit the terminal, and a cluster's members, for
people. Lays out and writes; computes nothing."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from walproof.errors import MachineError
from walproof.machine import untrusted
from walproof.model.topology import ClusterView
from walproof.model.units import counted

_UNFOLDED = 10_000
"""Columns of a table that goes into a file or a pipe: more than any table has."""


class _Screen(Console):
    """Prints words as they are: a server's or a stranger's are no markup, move no terminal, and begin no line."""

    def print(self, *objects: Any, **how: Any) -> None:
        """As rich's; a bare string is one line. What has several is a Text, or several strings with sep."""
        super().print(*(untrusted.field(one) if isinstance(one, str) else one for one in objects), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of what is printed; control characters are left to rich's own."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else untrusted.printable(text), style, control)


def console(*, stderr: bool = False) -> Console:
    """Rich's console of standard output or error, which honours NO_COLOR.

    As wide as the terminal; in a file or a pipe as wide as the table, or COLUMNS where that is exported.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNFOLDED
    return _Screen(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def print_json(tree: object) -> None:
    """One JSON object on a line of standard output."""
    click.echo(json_text(tree))


def json_text(tree: object) -> str:
    """The tree as JSON, which has no NaN and no infinity: null where a number is neither known nor finite."""
    return json.dumps(_finite(tree), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value


def print_result(tree: object, *lines: str, as_json: bool) -> None:
    """The JSON object for a program, or the lines for a person: what is in one of others' words begins no other."""
    if as_json:
        print_json(tree)
    for line in () if as_json else lines:
        click.echo(untrusted.field(line))


def print_tables(conclusion: str, tables: Iterable[RenderableType], *lines: str | Text) -> None:
    """A conclusion in bold, the tables it is drawn from, and further sentences."""
    screen = console()
    for part in (Text(untrusted.field(conclusion), "bold"), *tables, *lines):
        screen.print(part)


class _PlainTable(Table):
    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        """As rich's; a string is one line."""
        super().add_row(*(untrusted.field(one) if isinstance(one, str) else one for one in cells), **how)


def plain_table(*headings: str) -> Table:
    """An empty table without lines; a heading that starts with ">" is of numbers, and a cell's string is one line."""
    table = _PlainTable(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table


def print_step(text: str) -> None:
    """One dimmed line about the progress of a command, on standard error."""
    console(stderr=True).print(text, style="dim")


@contextmanager
def progress_bar(stream: Console | None = None) -> Iterator[Callable[[str, float], None]]:
    """Says each step as `print_step` does when its share done is 0, and on a terminal a bar of a larger share below."""
    stream = stream or Console(stderr=True)
    with Progress(console=stream, transient=True, disable=not stream.is_terminal) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def show(text: str, share: float) -> None:
            if share == 0.0:
                print_step(text)
                bar.reset(task, description=text, visible=False)
            else:
                bar.update(task, completed=share, visible=True)

        yield show


def write_file(name: str | Path, text: str, hint: str, records: Iterable[Path] = ()) -> None:
    """Write a file that an option names, - for standard output; MachineError with the hint when it cannot be.

    Within one of the `records`, which may be a stranger's, what lies there is replaced, and no link is followed.
    """
    if str(name) == "-":
        click.echo(text, nl=False)
        return
    path = Path(os.path.abspath(name))
    record = next((r for r in map(Path, map(os.path.abspath, records)) if path.is_relative_to(r)), None)
    try:
        if record is None:
            Path(name).write_text(text, "utf-8")
        else:
            with open(untrusted.create(record, path), "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as wrong:
        raise MachineError(f"cannot write {name}: {wrong.strerror}", hint) from None


def write_files(folder: Path, texts: Mapping[str, str], hint: str, records: Iterable[Path] = ()) -> None:
    """Write files by name into a folder that an option names, made where it is missing; errors as `write_file`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise MachineError(f"cannot create {folder}: {wrong.strerror}", hint) from None
    for name, text in texts.items():
        write_file(folder / name, text, hint, records)


def status_json(view: ClusterView) -> dict[str, Any]:
    """The object of `lab status --json` and `watch --json`."""
    names = ("name", "role", "state", "timeline", "lag_bytes", "address")
    return {
        "members": [{name: getattr(m, name) for name in names} for m in view.members],
        "leader": view.leader,
        "synchronous_standby_names": view.standby_names,
    }


def summary(view: ClusterView) -> str:
    """The leader and its standbys in one clause: "leader n1, 2 standbys streaming and synchronous"."""
    if view.leader is None:
        return "no leader"
    others = len(view.members) - 1
    streaming, synchronous = sum(m.state == "streaming" for m in view.members), len(view.synchronous)
    if streaming == synchronous == others:
        return f"leader {view.leader}, {counted(others, 'standby')}" + (" streaming and synchronous" if others else "")
    return f"leader {view.leader}, {streaming} of {counted(others, 'standby')} streaming, {synchronous} synchronous"


def print_status(view: ClusterView, console: Console) -> None:
    """The summary, then a row per member."""
    console.print(summary(view), style="bold" if view.leader else "bold red")
    table = plain_table("member", "role", "state", ">timeline", ">lag, bytes", "synchronous", "address")
    for m in view.members:
        numbers = ("" if n is None else text.format(n) for n, text in ((m.timeline, "{}"), (m.lag_bytes, "{:,}")))
        table.add_row(m.name, m.role.value, m.state, *numbers, m.sync_state, m.address)
    console.print(table)
    console.print(f"synchronous_standby_names: {view.standby_names or '(none)'}")
