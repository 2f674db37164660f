"""What every run has: a first event with what was asked, a progress bar, SIGTERM taken as Ctrl-C."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walproof.cli.console import console
from walproof.machine.redaction import command_line
from walproof.model.event import Started
from walproof.pricing.bench import OnProgress, RunProgress
from walproof.records.layout import version


def started(verb: str, asked: Mapping[str, Any], *, at: float, seed: int) -> Started:
    """The first event of a run: what was asked, this command line without secrets, the version of walproof."""
    given = {name: value for name, value in asked.items() if value not in (None, False)}
    return Started(at, verb, given, command_line(sys.argv[1:]), seed, version())


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, in the background too: faults are cleared and the record closed."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[OnProgress]:
    """A bar with the time left on standard error, on a terminal only; gives the function that moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def move(progress: RunProgress) -> None:
            done = min(progress.elapsed_s, progress.budget_s)
            bar.update(task, description=progress.doing, completed=done, total=progress.budget_s)

        yield move
