"""The journal of settings changed on a cluster, so that `walproof revert` can revert them, after kill -9 too.

The value before is on disk before the change is made. Never touches a cluster."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from walproof.errors import MachineError
from walproof.machine.untrusted import bounded, from_json
from walproof.model.guarantee import SERVER
from walproof.records.layout import make_folder, opener


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
    cluster: str = ""
    """The identity of the cluster of that name, see `Target.identity`; "" where it was not known."""

    @property
    def kind(self) -> str:
        """What it is of, of which member, without the server."""
        return self.what.partition(SERVER)[0]

    @property
    def server(self) -> str:
        """What tells the member's server from the cluster's others, "" where nothing does: a name may move."""
        return self.what.partition(SERVER)[2]


_CHANGE = TypeAdapter(Change)
_MOST = 16 << 20
_ORDER = "auto.conf order "
"""Noted by 1.0.0 alone: nothing is undone of it."""


class Journal:
    """A journal file, only ever appended to. `head`: the entry before this run's first; `cluster`: whose changes.

    `most`: bytes of it that are read; MachineError where it has more.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, str] | None = None,
        cluster: str = "",
        most: int = _MOST,
    ) -> None:
        self.path, self._most = path, most
        self._cluster = cluster
        self._head = dict(head or {})
        self._findable = False
        """Whether the file's name, and those of the folders above it, are known to be on disk."""

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Change:
        """Append a change, fsynced, before it is made; give the result to `undone` once it is reverted."""
        return self.add(Change(1 + self.last(), at, target, what, name, before, after, self._cluster))

    def add(self, change: Change) -> Change:
        """Append a change that has its number already; as it was appended."""
        self._append({"change": asdict(change)})
        return change

    def last(self) -> int:
        """The largest number of a change in it, 0 for none."""
        return max((change.number for change in self.changes()), default=0)

    def heads(self) -> Iterator[dict[str, Any]]:
        """What stands before the changes of each run."""
        return self._entries("journal")

    def undone(self, *changes: Change) -> None:
        """All of them or, where this process is killed, none."""
        if changes:
            lines: list[dict[str, object]] = [{"undone": change.number} for change in changes]
            self._append(*lines)

    def changes(self) -> tuple[Change, ...]:
        """Every change ever appended."""
        changes = []
        for entry in self._entries("change"):
            # Else nothing that walproof wrote.
            with suppress(ValidationError):
                changes.append(_CHANGE.validate_python(entry["change"]))
        return tuple(changes)

    def pending(self, target: str | None = None) -> tuple[Change, ...]:
        """Changes not reverted, newest first: undo them in this order."""
        undone = {entry["undone"] for entry in self._entries("undone") if isinstance(entry["undone"], int)}
        left = (
            c
            for c in self.changes()
            if c.number not in undone and target in (None, c.target) and not c.what.startswith(_ORDER)
        )
        return tuple(sorted(left, key=lambda c: -c.number))

    def servers(self) -> frozenset[str]:
        """What tells every server on which a change was ever noted."""
        return frozenset(change.server for change in self.changes()) - {""}

    def _entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """Those that have that key, one by one: as lists a stranger's short lines fill 50 times their own room."""
        try:
            with open(self.path, "rb", opener=opener) as file:
                lines = BytesIO(bounded(file, self._most))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as wrong:
            raise MachineError(f"cannot read the journal {self.path}: {wrong.strerror}", "is it walproof's?") from None
        for line in lines:
            # A torn line means that the change it announces was never made.
            with suppress(ValueError):
                entry = from_json(line)
                if isinstance(entry, dict) and kind in entry:
                    yield entry

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._findable = False

    def begin(self) -> None:
        """Append this run's head, unless it is there."""
        self._append()

    def _append(self, *entries: dict[str, object]) -> None:
        head = [] if not self._head or self._head in self.heads() else [self._head]
        lines = b"".join(json.dumps(one).encode() + b"\n" for one in (*head, *entries))
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
                _flush_folders(Path(os.path.realpath(self.path.parent)))
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


NAME = "journal.jsonl"
"""The copy in a record."""


def journals_in(path: Path, most: int = _MOST) -> frozenset[str]:
    """Ids that a record's journal names; none for what is no file of its own."""
    if path.is_symlink() or not path.is_file():
        return frozenset()
    return frozenset(str(head["journal"]) for head in Journal(path, most=most).heads())
