"""What every run begins with: the event that holds what was asked, and SIGTERM taken as Ctrl-C."""

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from walproof.model.event import Started
from walproof.records.layout import version


def started(verb: str, asked: Mapping[str, Any], *, at: float, seed: int) -> Started:
    """The first event of a run: what was given of `asked`, this very command line, and the walproof that runs it."""
    given = {name: value for name, value in asked.items() if value not in (None, False)}
    return Started(at, verb, given, shlex.join(["walproof", *sys.argv[1:]]), seed, version())


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
