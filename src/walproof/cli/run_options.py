"""What every run begins with: its table of options, the event that says what was asked, SIGTERM taken as Ctrl-C."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from walproof.model.event import Started
from walproof.records.layout import version

Command = Callable[..., Any]


def with_options(options: Sequence[tuple[str, str, str]], flags: Sequence[tuple[str, str]]) -> Callable[..., Any]:
    """A decorator that adds options (name, help, metavar), then flags (name, help), to a click command."""

    def add(command: Command) -> Command:
        for name, text in reversed(flags):
            command = click.option(name, is_flag=True, help=text)(command)
        for name, text, meta in reversed(options):
            command = click.option(name, metavar=meta, default=None, help=text)(command)
        return command

    return add


def begun(verb: str, asked: Mapping[str, Any], *, at: float, seed: int) -> Started:
    """The first event of a run: what was said of `asked`, this very command line, and the walproof that runs it."""
    said = {name: value for name, value in asked.items() if value not in (None, False)}
    return Started(at, verb, said, shlex.join(["walproof", *sys.argv[1:]]), seed, version())


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, in the background too: the target is healed and the record closed."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
