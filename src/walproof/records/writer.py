"""Writes a record as it happens: one line per event, flushed; a crash loses at most the line being written."""

import errno
import os
import tempfile
import threading
from pathlib import Path
from time import time
from types import TracebackType
from typing import Self

from walproof.errors import Error, MachineError, UsageError
from walproof.machine.redaction import in_text
from walproof.machine.untrusted import from_json
from walproof.model.event import Ended, Event
from walproof.records.codec import encode
from walproof.records.layout import (
    EVENTS,
    FILES,
    FORMAT,
    HEADER,
    Header,
    make_folder,
    new_name,
    only_ours,
    opened_folder,
    opener,
    safe_name,
    version,
)

_HINT = "free some space, or name a writable directory with --record DIR"


def check_writable(directory: Path | None) -> None:
    """Raise now what Writer would raise later: UsageError when a record exists, MachineError when none can be made."""
    if directory is not None and (directory / EVENTS).exists():
        raise _exists(directory)
    wanted = directory or Path("records")
    made: list[Path] = []
    try:
        for folder in reversed((wanted, *wanted.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        with tempfile.TemporaryFile(dir=wanted):
            pass
    except OSError as wrong:
        raise _unwritable(wanted, wrong) from None
    finally:
        for folder in reversed(made):
            folder.rmdir()


class Writer:
    """A record open for writing; call it with an event. Usable from several threads of one process.

    directory: where, must not hold a record yet unless `resume`; None is records/<utc timestamp>-<verb> here.
    Leaving the `with` block without an Ended event writes one that says why. The directory is opened once: who may
    rename it, where the folder above is his, has nothing written elsewhere.
    """

    def __init__(self, directory: Path | None, verb: str, *, resume: bool = False) -> None:
        self.directory = directory or _unused(Path("records"), verb)
        self._lock = threading.Lock()
        self._ended = False
        if not resume and (self.directory / EVENTS).exists():
            raise _exists(self.directory)
        try:
            make_folder(self.directory)
            self._folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._place = Path(f"/proc/self/fd/{self._folder}")
            if directory is None and not only_ours(self._folder):
                raise _unwritable(self.directory, OSError(errno.EPERM, "another user has put his own in its place"))
            if not (self._place / HEADER).exists():
                now = time()
                header = Header(FORMAT, version(), verb, new_name(now, "").rstrip("-"))
                _write_atomically(self._place / HEADER, header.text)
            self._file = opener(str(self._place / EVENTS), os.O_RDWR | os.O_APPEND | os.O_CREAT)
            if resume:
                _end_last_line(self._file)
        except OSError as wrong:
            raise _unwritable(self.directory, wrong) from None

    def __call__(self, event: Event) -> None:
        """Append one event; MachineError when the disk is full."""
        line = (encode(event) + "\n").encode()
        with self._lock:
            self._ended = self._ended or isinstance(event, Ended)
            try:
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError as wrong:
                raise _unwritable(self.directory, wrong) from None

    def keep(self, name: str, content: str | bytes) -> Path:
        """Store a text (a log, a configuration) next to the events, passwords in it replaced by ***, or bytes."""
        path = self.directory / FILES / safe_name(name)
        try:
            make_folder(self._place / FILES)
            with (
                opened_folder(self._place / FILES) as files,
                open(f"/proc/self/fd/{files}/{path.name}", "wb", opener=opener) as file,
            ):
                file.write(content if isinstance(content, bytes) else in_text(content).encode(errors="replace"))
        except OSError as wrong:
            raise _unwritable(self.directory, wrong) from None
        return path

    def close(self) -> None:
        """Bring everything to disk and close; safe to call twice."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            os.close(self._folder)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._ended:
                self(Ended(time(), _why(value)))
        except MachineError:
            if value is None:
                raise
        finally:
            self.close()


def _why(value: BaseException | None) -> str:
    if value is None:
        return "done"
    if isinstance(value, KeyboardInterrupt):
        return "interrupted"
    return value.message if isinstance(value, Error) else f"an error inside walproof: {type(value).__name__}"


def _unused(parent: Path, verb: str) -> Path:
    """A directory that does not exist yet; two records of one second differ by a number."""
    name = new_name(time(), verb)
    candidates = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 1000))
    return next(c for c in candidates if not c.exists())


def _write_atomically(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _end_last_line(file: int) -> None:
    """Make the open file end with a newline again: a torn last line is cut off, a complete one keeps."""
    size, last = 0, b"\n"
    with open(file, "rb", closefd=False) as lines:
        for last in lines:
            size += len(last)
    if last.endswith(b"\n"):
        return
    try:
        from_json(last)
        os.write(file, b"\n")
    except ValueError:
        os.ftruncate(file, size - len(last))


def _exists(directory: Path) -> UsageError:
    return UsageError(f"{directory} already holds a record", "choose another directory, or use --resume")


def _unwritable(directory: Path, wrong: OSError) -> MachineError:
    return MachineError(f"cannot write the record in {directory}: {wrong.strerror or wrong}", _HINT)
