"""Standard output and error of a command whose reader may leave, whose disk may be full, or that has them closed.

Output carries the result: where it is lost the command ends, never with the code of a verdict. Error carries progress:
losing it ends nothing and changes no exit code. What is lost goes nowhere from then on, so that nothing fails twice."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from walproof.errors import ExitCode, MachineError


class OutputLost(MachineError):
    """Standard output cannot be written; READER_LEFT, as of a program that SIGPIPE ends, where its reader has left."""

    def __init__(self, why: OSError) -> None:
        reason = "it is closed" if why.errno == errno.EBADF else why.strerror
        super().__init__(f"standard output cannot be written: {reason}", "the result is not printed in full")
        self.exit_code = ExitCode.READER_LEFT if why.errno == errno.EPIPE else ExitCode.ENVIRONMENT


class _Stream:
    """A text stream as it was, but for what is done where it cannot be written."""

    def __init__(self, stream: TextIO, *, is_output: bool) -> None:
        self._stream = stream
        self._is_output = is_output
        self.lost: OutputLost | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As the stream's own; nothing for "", by which click asks what it is, and hears no error."""
        with self._unless_lost():
            return self._stream.write(text) if text != "" else 0
        return len(text)

    def flush(self) -> None:
        with self._unless_lost():
            self._stream.flush()

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        try:
            yield
        except OSError as why:
            with suppress(OSError):
                # The buffer still holds what could not be written, and Python flushes it once more at its end.
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            self.lost = OutputLost(why)
            if self._is_output:
                raise self.lost from None


@contextmanager
def checked() -> Iterator[_Stream]:
    """Both streams are checked while the block runs; yields standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Else the next file that is opened, a record perhaps, would be what programs print to.
            os.open(os.devnull, os.O_RDONLY)
    before = sys.stdout, sys.stderr
    output, error = (stream or os.fdopen(number, "w", closefd=False) for number, stream in enumerate(before, 1))
    sys.stdout, sys.stderr = (_Stream(output, is_output=True), _Stream(error, is_output=False))
    try:
        yield sys.stdout
    finally:
        sys.stdout, sys.stderr = before
