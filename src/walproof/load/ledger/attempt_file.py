"""The ledger's file: one per writer process, mapped into memory so that kill -9 loses nothing; and reading it back.

A row is on file before its attempt is sent. The header carries the counts that a parent looks at.
"""

import json
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walproof.errors import MachineError
from walproof.model.attempt import Attempts, Outcome

MAGIC = b"WPLEDGR1"
HEADER_BYTES = 512
ROW = np.dtype(
    {
        "names": [
            "number",
            "started",
            "ended",
            "lsn",
            "writer",
            "timeline",
            "checksum",
            "server",
            "names",
            "outcome",
            "level",
        ],
        "formats": ["<i8", "<f8", "<f8", "<u8", "<i4", "<i4", "<u4", "<i2", "<i2", "i1", "i1"],
        "offsets": [0, 8, 16, 24, 32, 36, 40, 44, 46, 48, 49],
        "itemsize": 56,
    }
)
_BEFORE = struct.Struct("<qddQiiIhhbb6x")
_AFTER = struct.Struct("<dQiiIhhb")
"""From `ended` to `outcome`: rewritten together when the answer comes."""
_COUNTS = struct.Struct("<qdqq")
"""acknowledged, time of the last acknowledgement, rows, writers connected."""
_COUNTS_AT = 8
_ERROR_AT = 64
_ERROR_BYTES = 400
_ROWS_PER_STEP = 1 << 19
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Counts:
    """The header: acknowledged (downgraded not counted), epoch seconds of the last one (0 none), rows, connected."""

    acknowledged: int
    last_at: float
    rows: int
    connected: int
    error: str


@dataclass(slots=True)
class Note:
    """One attempt's place and facts, kept by the writer until it is answered."""

    offset: int
    writer: int
    timeline: int
    checksum: int
    server: int
    names: int


class NoteFile:
    """The writer's side: append before the send, complete after the answer."""

    def __init__(self, path: Path, level: int) -> None:
        self.path = path
        self._level = level
        self._room = _ROWS_PER_STEP
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self._file, HEADER_BYTES + self._room * ROW.itemsize)
        self._map = mmap.mmap(self._file, 0)
        self._map[:8] = MAGIC
        self._words: dict[str, dict[bytes, int]] = {"servers": {}, "names": {}}
        self._word_file = Path(f"{path}.words").open("a", encoding="utf-8")  # noqa: SIM115 (closed in close)
        self.acknowledged = 0
        self.rows = 0
        self.connected = 0
        self._last_at = 0.0

    def word(self, kind: str, text: bytes) -> int:
        """The index of a server address ("servers") or of standby names ("names"); written down when new."""
        known = self._words[kind]
        if text not in known:
            known[text] = len(known)
            self._word_file.write(json.dumps([kind, text.decode(errors="replace")]) + "\n")
            self._word_file.flush()
        return known[text]

    def before(self, number: int, started: float, note: Note) -> None:
        """Put an attempt on file as unknown; `note.offset` is set here."""
        if self.rows == self._room:
            self._room += _ROWS_PER_STEP
            self._map.resize(HEADER_BYTES + self._room * ROW.itemsize)
        note.offset = HEADER_BYTES + self.rows * 56
        _BEFORE.pack_into(
            self._map,
            note.offset,
            number,
            started,
            float("nan"),
            0,
            note.writer,
            note.timeline,
            note.checksum,
            note.server,
            note.names,
            0,
            self._level,
        )
        self.rows += 1
        self.state()

    def after(self, note: Note, ended: float, outcome: Outcome, lsn: int) -> None:
        """Put the answer on file."""
        _AFTER.pack_into(
            self._map,
            note.offset + 16,
            ended,
            lsn,
            note.writer,
            note.timeline,
            note.checksum,
            note.server,
            note.names,
            outcome,
        )
        if outcome is Outcome.ACKNOWLEDGED:
            self.acknowledged += 1
            self._last_at = ended

    def state(self) -> None:
        """Write the counts."""
        _COUNTS.pack_into(self._map, _COUNTS_AT, self.acknowledged, self._last_at, self.rows, self.connected)

    def error(self, text: str) -> None:
        """Keep the last error in words."""
        raw = text.strip().encode()[: _ERROR_BYTES - 1]
        self._map[_ERROR_AT : _ERROR_AT + _ERROR_BYTES] = raw.ljust(_ERROR_BYTES, b"\0")

    def close(self) -> None:
        """Write the counts and cut the file to what is used."""
        self.state()
        self._map.flush()
        self._map.close()
        os.ftruncate(self._file, HEADER_BYTES + self.rows * ROW.itemsize)
        os.close(self._file)
        self._word_file.close()


def read_counts(path: Path) -> Counts | None:
    """The header of a note file as it stands; None before the writer has made it."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return None
    if header[:8] != MAGIC:
        return None
    acknowledged, last_at, rows, connected = _COUNTS.unpack_from(header, _COUNTS_AT)
    error = header[_ERROR_AT : _ERROR_AT + _ERROR_BYTES].rstrip(b"\0").decode(errors="replace")
    return Counts(acknowledged, last_at, rows, connected, error)


def tail(path: Path, rows: int) -> NDArray[Any]:
    """The last `rows` rows of a note file that is being written, as a structured array of dtype ROW."""
    counts = read_counts(path)
    if counts is None or counts.rows == 0:
        return np.empty(0, ROW)
    first = max(0, counts.rows - rows)
    return np.fromfile(path, ROW, count=counts.rows - first, offset=HEADER_BYTES + first * ROW.itemsize)


def _words(path: Path) -> dict[str, list[str]]:
    words: dict[str, list[str]] = {"servers": [], "names": []}
    try:
        text = Path(f"{path}.words").read_text(encoding="utf-8")
    except FileNotFoundError:
        return words
    for line in text.splitlines():
        kind, word = json.loads(line)
        words[kind].append(word)
    return words


def _mapping(words: Sequence[str], known: list[str]) -> NDArray[np.int16]:
    """Index in one file → index over all files; the last entry serves -1 (not known)."""
    for word in words:
        if word not in known:
            known.append(word)
    return np.array([*(known.index(w) for w in words), -1], dtype=np.int16)


def read_notes(paths: Sequence[Path]) -> Attempts:
    """Every attempt of these files, file after file, in the order they were sent; read in pieces to spare memory."""
    counted = [(path, counts.rows) for path in paths if (counts := read_counts(path)) is not None]
    total = sum(rows for _, rows in counted)
    columns: dict[str, NDArray[Any]] = {
        f.name: np.empty(total, dtype=ROW[f.name]) for f in fields(Attempts) if f.name in (ROW.names or ())
    }
    servers: list[str] = []
    names: list[str] = []
    at = 0
    for path, rows in counted:
        words = _words(path)
        maps = {"server": _mapping(words["servers"], servers), "names": _mapping(words["names"], names)}
        for first in range(0, rows, _CHUNK):
            size = min(_CHUNK, rows - first)
            piece = np.fromfile(path, ROW, count=size, offset=HEADER_BYTES + first * ROW.itemsize)
            if len(piece) != size:
                raise MachineError(f"the ledger {path} is shorter than it says", "the disk may be full: make room")
            for name, column in columns.items():
                column[at : at + size] = maps[name][piece[name]] if name in maps else piece[name]
            at += size
    return Attempts(**columns, servers=tuple(servers), standby_names=tuple(names))
