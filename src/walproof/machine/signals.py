"""Ctrl-C, SIGTERM and SIGHUP (a lost session) end a command once and in order: later ones wait for the cleaning.

The first raises KeyboardInterrupt in the main thread, or after the block that is `shielded` just then. Those that
follow are answered with one sentence. Exit codes are 128 + the first one's number: 130, 143, 129.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ALREADY = b"walproof: it is ending already; after kill -9 run `walproof lab down --all` or `walproof revert`\n"


class Interrupted(KeyboardInterrupt):
    """What the first signal raises.

    Not KeyboardInterrupt itself: where that passes through code run from a string (exec, as imports do), Python ends
    with -2, even when another exit code is asked for later (run_eval_code_obj in CPython's pythonrun.c).
    """


@dataclass(slots=True)
class _State:
    first: int | None = None
    shields: int = 0
    terminals: list[int] = field(default_factory=list)


_now = _State()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Handle the signals while the block runs; a SIGHUP that is ignored (nohup) stays ignored."""
    global _now
    _now = _State(terminals=[number for number in (0, 1, 2) if _is_terminal(number)])
    before = {}
    for number in ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def received() -> int | None:
    """The first of these signals that came since `ending_in_order` began."""
    return _now.first


@contextmanager
def shielded() -> Iterator[None]:
    """What is done in the block is done to its end: a first signal interrupts after it, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _now.first
    _now.shields += 1
    try:
        yield
    finally:
        _now.shields -= 1
    if _now.shields == 0 and _now.first is not None and before is None:
        raise Interrupted


def _handle(number: int, _frame: object) -> None:
    if number == signal.SIGHUP:
        _leave_terminals()
    if _now.first is not None:
        with suppress(OSError):
            os.write(2, _ALREADY)
        return
    _now.first = number
    if not _now.shields:
        raise Interrupted


def _leave_terminals() -> None:
    """Write to nowhere from now on: the terminal is gone, and cleaning must not end at an error of a message."""
    for number in _now.terminals:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            os.close(nowhere)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False
