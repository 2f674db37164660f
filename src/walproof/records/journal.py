"""The journal of settings changed on a cluster, so that `walproof revert` can revert them, after kill -9 too.

The value before is on disk before the change is made; the journal itself never touches a cluster.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from walproof.errors import MachineError
from walproof.machine.foreign_text import from_json
from walproof.machine.untrusted import bounded
from walproof.records.private import make_folder, opener


@dataclass(frozen=True, slots=True)
class Change:
    """One change about to be made: the target's name, what kind of setting, its name, its value before and after.

    `before` None means it was not set; `after` is the requested value, to recognise changes made by others since.
    """

    number: int
    at: float
    target: str
    what: str
    name: str
    before: str | None
    after: str | None = None


_CHANGE = TypeAdapter(Change)
_MOST = 64 << 20


class Journal:
    """A journal file; entries are only ever appended. `head`: an entry that stands before the first of this run."""

    def __init__(self, path: Path, head: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._head = dict(head or {})
        self._findable = False
        """Whether the file's name, and those of the folders above it, are known to be on disk."""

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Change:
        """Append a change, fsynced, before it is made; give the result to `undone` once it is reverted."""
        change = Change(1 + self.last(), at, target, what, name, before, after)
        self.add(change)
        return change

    def add(self, change: Change) -> None:
        """Append a change that has its number already."""
        self._append({"change": asdict(change)})

    def last(self) -> int:
        """The largest number of a change in it, 0 for none."""
        return max((change.number for change in self.changes()), default=0)

    def heads(self) -> tuple[dict[str, Any], ...]:
        """What stands before the changes of each run."""
        return tuple(entry for entry in self._entries() if "journal" in entry)

    def undone(self, change: Change) -> None:
        """The change has been reverted."""
        self._append({"undone": change.number})

    def changes(self) -> tuple[Change, ...]:
        """Every change ever appended."""
        found = []
        for entry in self._entries():
            if "change" in entry:
                try:
                    found.append(_CHANGE.validate_python(entry["change"]))
                except ValidationError:
                    # Nothing that walproof wrote.
                    continue
        return tuple(found)

    def pending(self, target: str | None = None) -> tuple[Change, ...]:
        """Changes not reverted, newest first: undo them in this order."""
        undone = {entry["undone"] for entry in self._entries() if isinstance(entry.get("undone"), int)}
        left = (c for c in self.changes() if c.number not in undone and target in (None, c.target))
        return tuple(sorted(left, key=lambda c: -c.number))

    def _entries(self) -> list[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                lines = bounded(file, _MOST).decode("utf-8", errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as wrong:
            raise MachineError(f"cannot read the journal {self.path}: {wrong.strerror}", "is it walproof's?") from None
        entries = []
        for line in lines:
            try:
                entries.append(from_json(line))
            except ValueError:
                # A torn line means that the change it announces was never made.
                continue
        return [entry for entry in entries if isinstance(entry, dict)]

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        self._findable = False

    def _append(self, entry: dict[str, object]) -> None:
        head = [] if not self._head or self._head in self.heads() else [self._head]
        lines = b"".join(json.dumps(one).encode() + b"\n" for one in (*head, entry))
        try:
            make_folder(self.path.parent)
            with open(self.path, "a+b", opener=opener) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                torn = size > 0 and file.read(1) != b"\n"
                file.write((b"\n" if torn else b"") + lines)
                file.flush()
                os.fsync(file.fileno())
            if not self._findable:
                _flush_folders(self.path.absolute().parent)
                self._findable = True
        except OSError as wrong:
            raise MachineError(
                f"cannot write the journal {self.path}: {wrong.strerror or wrong}",
                "nothing was changed; free some space or set WALPROOF_STATE to a writable folder",
            ) from None


def _flush_folders(folder: Path) -> None:
    """Bring the entries of a folder and of all above it to disk: without them a flushed file has no name."""
    for one in (folder, *folder.parents):
        try:
            descriptor = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            # A folder that may be passed but not read is older than this run.
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
