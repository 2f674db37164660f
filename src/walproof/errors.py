"""Exit codes, and the tool's own errors. A broken guarantee is a result, never one of these.

Error                   one sentence and a hint
├── UsageError          what was asked is not valid                     USAGE
├── MachineError        something is missing, taken or forbidden here   ENVIRONMENT
│   ├── TargetError     the cluster does not answer or refuses          ENVIRONMENT
│   │   ├── NotObtained what one point needs, and only that, cannot be  ENVIRONMENT
│   │   └── NotUndone   some of what was changed could not be undone    ENVIRONMENT
│   └── WaitTimeout     a named wait timed out                          ENVIRONMENT
└── UndecidedError      it ran, and the result is undecided             UNDECIDED
"""

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """How every command ends; after another signal than Ctrl-C with 128 + its number."""

    HELD = 0
    BROKEN = 1
    USAGE = 2
    ENVIRONMENT = 3
    UNDECIDED = 4
    INTERRUPTED = 130
    READER_LEFT = 141
    """What was to be printed could not be: the reader of the pipe has left. No verdict has this code."""


class Error(Exception):
    """One sentence that says what happened and why, a hint what to do next, an exit code."""

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(Error):
    """What was asked is not valid: unknown level, negative clients, contradictory factors."""

    exit_code = ExitCode.USAGE


class MachineError(Error):
    """Something is missing, already taken or forbidden on this machine."""


class TargetError(MachineError):
    """The cluster does not answer, refuses, or is not what was expected."""


class PartlyDone(TargetError):
    """What was asked for failed, and may have been done in part, or whole."""


class NotObtained(TargetError):
    """What one point of a run asks of the target cannot be brought into effect; the others can be measured."""


class NotUndone(TargetError):
    """Some of what walproof changed on a cluster could not be undone, and still could be."""


class WaitTimeout(MachineError):
    """A named wait timed out; the message names it."""


class UndecidedError(Error):
    exit_code = ExitCode.UNDECIDED


ODD = (
    Error, OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RuntimeError, struct.error,
)  # fmt: skip
"""What comes of an answer that may have any shape: who looks on takes it as no answer, and looks again. The server
chooses its types, so also what psycopg's loaders raise (RecursionError of JSON, struct.error of binary rows)."""


def as_error(wrong: Exception, hint: str = "") -> Error:
    """An Error as it is, anything else as one."""
    return wrong if isinstance(wrong, Error) else MachineError(f"{type(wrong).__name__}: {wrong}", hint)


def all_undone(parts: Iterable[Callable[[], list[str] | None]]) -> list[str]:
    """The sentences of every part, each of which is tried, whichever fails; NotUndone tells them and every error."""
    left: list[str] = []
    failures: list[Error] = []
    for part in parts:
        try:
            left += part() or []
        except ODD as wrong:
            failures.append(as_error(wrong))
    if failures:
        sentences = dict.fromkeys([*(wrong.message for wrong in failures), *left])
        raise NotUndone("; ".join(sentences), failures[0].hint)
    return left


def failures_of(parts: Iterable[Callable[[], object]]) -> list[Exception]:
    """What went wrong in each, every one of which is tried, whichever fails."""
    failures: list[Exception] = []
    for part in parts:
        try:
            part()
        except ODD as wrong:
            failures.append(wrong)
    return failures


def each_done(parts: Iterable[Callable[[], object]], hint: str = "") -> None:
    """Every one of them, whichever fails; the first error afterwards."""
    for wrong in failures_of(parts):
        raise as_error(wrong, hint)
