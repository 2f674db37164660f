"""Reads a record as far as it goes: growing, cut short, damaged or with unknown events; says so in notices."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from walproof.errors import MachineError
from walproof.machine.untrusted import bounded, regular
from walproof.model.event import Ended, Event, Started
from walproof.records.codec import decode
from walproof.records.layout import EVENTS, FILES, read_header, record_directory

E = TypeVar("E", bound=Event)
_MOST_EVENTS = 1 << 30


@dataclass(frozen=True, slots=True)
class Record:
    """What a record holds; notices are whole sentences about what could not be read."""

    events: tuple[Event, ...]
    notices: tuple[str, ...]
    directory: Path
    written_by: str = ""
    created: str = ""

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """The events of one kind, in order."""
        return tuple(e for e in self.events if isinstance(e, kind))

    @property
    def started(self) -> Started | None:
        """What was asked, None when the first event is missing."""
        return next(iter(self.of(Started)), None)

    @property
    def complete(self) -> bool:
        """Whether the last event says that it ended."""
        return bool(self.events) and isinstance(self.events[-1], Ended)

    def kept(self) -> tuple[Path, ...]:
        """Files stored next to the events, without links."""
        folder = self.directory / FILES
        if folder.is_symlink() or not folder.is_dir():
            return ()
        return tuple(sorted(p for p in folder.iterdir() if p.is_file() and not p.is_symlink()))


def read(path: Path) -> Record:
    """The record at `path`; UsageError when it is none or of another format, MachineError when it may not be read."""
    directory = record_directory(path)
    header, wrong = read_header(directory)
    notices = [wrong + "; the events are read all the same."] if wrong else []
    events, skipped = _events(_written(directory, 0))
    notices += skipped
    if not events:
        notices.append("nothing was recorded.")
    elif not isinstance(events[-1], Ended):
        notices.append("has no end: it is still being written, or was cut short.")
    written_by, created = (header.walproof, header.created) if header else ("", "")
    return Record(events, tuple(notices), directory, written_by, created)


def _written(directory: Path, since: int) -> bytes:
    try:
        with regular(directory, directory / EVENTS) as file:
            file.seek(since)
            return bounded(file, _MOST_EVENTS)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise MachineError(
            f"cannot read {directory / EVENTS}: {error.strerror}", "check its owner and its size"
        ) from None


def _events(data: bytes) -> tuple[tuple[Event, ...], list[str]]:
    lines = data.split(b"\n")
    torn = lines.pop()
    events: list[Event] = []
    errors: Counter[str] = Counter()
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        event, notice = decode(line.decode("utf-8", errors="replace"))
        if event is not None:
            events.append(event)
        if notice:
            errors[notice] += 1
            first.setdefault(notice, number)
    notices = [
        f"line {first[notice]} was skipped: {notice}."
        if count == 1 and not notice.startswith("unknown field")
        else f"{count} lines from line {first[notice]} on: {notice} was skipped."
        for notice, count in errors.items()
    ]
    if torn.strip():
        event, _ = decode(torn.decode("utf-8", errors="replace"))
        if event is not None:
            events.append(event)
        else:
            notices.append("the last line is torn; everything before it is here.")
    return tuple(events), notices


class Tail:
    """The events of a growing record as they come, UsageError where it is none or of another format.

    What is not understood is left out, with a sentence in `notices`.
    """

    def __init__(self, path: Path) -> None:
        self.directory = record_directory(path)
        read_header(self.directory)
        self.notices: list[str] = []
        self._offset = 0
        self._rest = b""

    def more(self) -> tuple[Event, ...]:
        """Events that were written since the last call."""
        data = _written(self.directory, self._offset)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        decoded = [decode(line.decode("utf-8", errors="replace")) for line in lines if line.strip()]
        self.notices += [notice for _, notice in decoded if notice]
        return tuple(event for event, _ in decoded if event is not None)
