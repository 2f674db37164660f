"""What every verb prints with: tables for people, one JSON object for programs."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.text import Text

from walproof.errors import MachineError
from walproof.machine import untrusted

_UNFOLDED = 10_000
"""Columns of a table that goes into a file or a pipe: more than any table has."""


def console(*, stderr: bool = False) -> Console:
    """Rich's console of standard output or error, which honours NO_COLOR.

    As wide as the terminal; in a file or a pipe as wide as the table, or COLUMNS where that is exported.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _UNFOLDED
    return Console(stderr=stderr, width=width, highlight=False)


def print_json(tree: object) -> None:
    """One JSON object on a line of standard output; NaN and infinity are no JSON."""
    click.echo(json.dumps(tree, allow_nan=False))


def print_result(tree: object, *lines: str, as_json: bool) -> None:
    """The JSON object for a program, or the lines for a person."""
    if as_json:
        print_json(tree)
    for line in () if as_json else lines:
        click.echo(line)


def print_tables(conclusion: str, tables: Iterable[RenderableType], *lines: str | Text) -> None:
    """A conclusion in bold, the tables it is drawn from, and further sentences."""
    screen = console()
    screen.print(conclusion, style="bold", markup=False)
    for part in (*tables, *lines):
        screen.print(part, markup=False)


def print_step(text: str) -> None:
    """One dimmed line about the progress of a command, on standard error."""
    console(stderr=True).print(text, style="dim", markup=False)


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
