"""`walproof lab doctor`: what this machine offers a lab, what is missing, and what to do about it."""

from dataclasses import asdict

import click
import cloup
from rich.table import Table
from rich.text import Text

from walproof.cli import options as opt
from walproof.cli.console import print_json, print_tables
from walproof.cli.groups import Command
from walproof.errors import UsageError
from walproof.lab.requirements import judge, observe
from walproof.lab.requirements.judge import State
from walproof.lab.requirements.outputs import as_text

_STYLE = {State.WORKS: "green", State.LIMITED: "yellow", State.BLOCKS: "bold red"}


@cloup.command(cls=Command)
@opt.port
@opt.flag("--raw", "What the probes printed, to go with a report of a fault.")
@opt.json_output
def doctor(port: int, raw: bool, as_json: bool) -> int:
    """What this machine offers a lab. Exit 3 when there can be none here."""
    if raw and as_json:
        raise UsageError("only one thing can go to standard output", "give --raw or --json")
    outputs = observe.everything(port)
    rows = judge.judged(outputs)
    code = 3 if judge.blocking(rows) else 0
    if raw:
        click.echo(as_text(outputs), nl=False)
    elif as_json:
        print_json({"lab": code == 0, "conclusion": judge.conclusion(rows), "probes": [asdict(row) for row in rows]})
    else:
        print_tables(judge.conclusion(rows), [_table(rows)])
    return code


def _table(rows: tuple[judge.Row, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "", "found", "costs", "what to do"):
        table.add_column(heading)
    for row in rows:
        state = Text(row.state, _STYLE[row.state])
        table.add_row(row.subject, state, *map(Text, (row.found, row.costs, row.todo)))
    return table
