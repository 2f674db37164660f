"""The files between the ledger and its processes: tasks as JSON (never a password), attempts mapped into memory.

An attempt's row is written before it is sent, so kill -9 loses nothing; the header carries counts for the parent."""

import json
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walproof.errors import MachineError
from walproof.machine.clock import OFFSET
from walproof.model.guarantee import Level
from walproof.model.load import Attempts, Outcome
from walproof.model.topology import Endpoint


@dataclass(frozen=True, slots=True)
class WriterTask:
    """Writers `first` to `first + count - 1` of a drill write at `level` through `endpoint` into `path`.

    Where `endpoint` is a pool, sessions are shared by clients, so level and server go with each row.
    `rate`: commits per second of these writers together at most; None: as fast as they can.
    `clock_offset`: what the times of the process that started it add to the machine's monotonic clock, seconds.
    After `answer_timeout_s` without an answer a writer connects to another address and only listens on the old
    connection; to the same one only with `again`, where another server may lead behind it: no server ever has more of
    their connections than there are writers. `grace_s` is how long answers are awaited at the end.
    """

    path: str
    endpoint: Endpoint
    level: Level
    first: int
    count: int
    drill: int
    answer_timeout_s: float = 3.0
    connect_timeout_s: float = 2.0
    grace_s: float = 1.0
    rate: float | None = None
    clock_offset: float = OFFSET
    again: bool = False


@dataclass(frozen=True, slots=True)
class ReaderTask:
    """Readers ask every member each `interval_s`, compare with the writers' `attempt_files`, and report to `path`."""

    path: str
    members: tuple[tuple[str, Endpoint], ...]
    attempt_files: tuple[str, ...]
    writers: int
    drill: int
    interval_s: float = 0.05
    clock_offset: float = OFFSET


def _endpoint(raw: dict[str, Any]) -> Endpoint:
    return Endpoint(
        tuple((str(h), int(p)) for h, p in raw["hosts"]),
        raw["database"],
        raw["user"],
        raw["passfile"],
        tuple((str(k), str(v)) for k, v in raw["options"]),
        bool(raw["pooled"]),
        tuple((str(h), int(p)) for h, p in raw["named"]),
        str(raw["binding"]),
    )


def task_text(task: WriterTask | ReaderTask) -> str:
    return json.dumps(asdict(task))


def read_writer_task(path: Path) -> WriterTask:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return WriterTask(**{**raw, "endpoint": _endpoint(raw["endpoint"]), "level": Level(raw["level"])})


def read_reader_task(path: Path) -> ReaderTask:
    raw = json.loads(path.read_text(encoding="utf-8"))
    members = tuple((str(name), _endpoint(endpoint)) for name, endpoint in raw["members"])
    files = tuple(str(name) for name in raw["attempt_files"])
    return ReaderTask(**{**raw, "members": members, "attempt_files": files})


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
_SENT = struct.Struct("<qddQiiIhhbb6x")
_ANSWERED = struct.Struct("<dQiiIhhbb")
"""From `ended` to `level`: rewritten together when the answer comes."""
UNKNOWN = -1
"""Level and standby names until a row comes back."""
_COUNTS = struct.Struct("<qdqq")
"""acknowledged, time of the last acknowledgement, rows, writers connected."""
_COUNTS_AT = 8
_ERROR_AT = 64
_ERROR_BYTES = 400
_ROWS_PER_STEP = 1 << 16
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
class PendingAttempt:
    """One attempt's offset in the file and its columns, kept by the writer until it is answered."""

    offset: int
    writer: int
    timeline: int
    checksum: int
    server: int
    names: int = UNKNOWN
    level: int = UNKNOWN


class AttemptFile:
    """The writer's side: appends a row before the send, completes it after the answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._capacity = _ROWS_PER_STEP
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._reserve()
        self._map = mmap.mmap(self._file, 0)
        self._map[:8] = MAGIC
        self._indexes: dict[str, dict[bytes, int]] = {"servers": {}, "names": {}}
        self._text_file = Path(f"{path}.texts").open("a", encoding="utf-8")  # noqa: SIM115 (closed in close)
        self.acknowledged = 0
        self.rows = 0
        self.connected = 0
        self._last_at = 0.0

    def index_of(self, kind: str, text: bytes) -> int:
        """The index of a server address ("servers") or of standby names ("names"); appended to the texts when new."""
        known = self._indexes[kind]
        if text not in known:
            known[text] = len(known)
            self._text_file.write(json.dumps([kind, text.decode(errors="replace")]) + "\n")
            self._text_file.flush()
        return known[text]

    def _reserve(self) -> int:
        """Reserve space for every row of the capacity, in bytes: a full disk is an OSError here, not SIGBUS later."""
        size = HEADER_BYTES + self._capacity * ROW.itemsize
        os.posix_fallocate(self._file, 0, size)
        return size

    def add(self, number: int, started: float, attempt: PendingAttempt) -> None:
        """Append an attempt as unknown; `attempt.offset` is set here. OSError when there is no room for it."""
        if self.rows == self._capacity:
            self._capacity += _ROWS_PER_STEP
            self._map.resize(self._reserve())
        attempt.offset = HEADER_BYTES + self.rows * 56
        _SENT.pack_into(
            self._map,
            attempt.offset,
            number,
            started,
            float("nan"),
            0,
            attempt.writer,
            attempt.timeline,
            attempt.checksum,
            attempt.server,
            attempt.names,
            0,
            UNKNOWN,
        )
        self.rows += 1
        self.write_counts()

    def complete(self, attempt: PendingAttempt, ended: float, outcome: Outcome, lsn: int) -> None:
        """Write the answer into the attempt's row."""
        _ANSWERED.pack_into(
            self._map,
            attempt.offset + 16,
            ended,
            lsn,
            attempt.writer,
            attempt.timeline,
            attempt.checksum,
            attempt.server,
            attempt.names,
            outcome,
            attempt.level,
        )
        if outcome is Outcome.ACKNOWLEDGED:
            self.acknowledged += 1
            self._last_at = ended

    def write_counts(self) -> None:
        _COUNTS.pack_into(self._map, _COUNTS_AT, self.acknowledged, self._last_at, self.rows, self.connected)

    def set_error(self, text: str) -> None:
        """Write the last error message into the header."""
        raw = text.strip().encode()[: _ERROR_BYTES - 1]
        self._map[_ERROR_AT : _ERROR_AT + _ERROR_BYTES] = raw.ljust(_ERROR_BYTES, b"\0")

    def close(self) -> None:
        """Write the counts and truncate the file to its rows."""
        self.write_counts()
        self._map.flush()
        self._map.close()
        os.ftruncate(self._file, HEADER_BYTES + self.rows * ROW.itemsize)
        os.close(self._file)
        self._text_file.close()


def read_counts(path: Path) -> Counts | None:
    """The header of an attempt file now; None before the writer has created it."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return None
    if header[:8] != MAGIC or len(header) < HEADER_BYTES:
        return None
    acknowledged, last_at, rows, connected = _COUNTS.unpack_from(header, _COUNTS_AT)
    error = header[_ERROR_AT : _ERROR_AT + _ERROR_BYTES].rstrip(b"\0").decode(errors="replace")
    return Counts(acknowledged, last_at, rows, connected, error)


def last_rows(path: Path, rows: int) -> NDArray[Any]:
    """The last `rows` rows of an attempt file that is being written, as a structured array of dtype ROW."""
    counts = read_counts(path)
    if counts is None or counts.rows == 0:
        return np.empty(0, ROW)
    first = max(0, counts.rows - rows)
    return np.fromfile(path, ROW, count=counts.rows - first, offset=HEADER_BYTES + first * ROW.itemsize)


def _read_texts(path: Path) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {"servers": [], "names": []}
    try:
        lines = Path(f"{path}.texts").read_text(encoding="utf-8")
    except FileNotFoundError:
        return texts
    for line in lines.splitlines():
        kind, text = json.loads(line)
        texts[kind].append(text)
    return texts


def _mapping(texts: Sequence[str], known: list[str]) -> NDArray[np.int16]:
    """Index in one file → index over all files; the last entry serves -1 (not known)."""
    for text in texts:
        if text not in known:
            known.append(text)
    return np.array([*(known.index(text) for text in texts), -1], dtype=np.int16)


def read_attempts(paths: Sequence[Path]) -> Attempts:
    """Every attempt of these files, file after file, in the order they were sent; read in pieces to spare memory."""
    counted = [(path, counts.rows) for path in paths if (counts := read_counts(path)) is not None]
    for path, rows in counted:
        # Before memory is taken for them: the file may come from a load pod.
        if not 0 <= rows <= (path.stat().st_size - HEADER_BYTES) // ROW.itemsize:
            raise MachineError(
                f"the ledger {path} is shorter than its header states", "the disk may be full: free some space"
            )
    total = sum(rows for _, rows in counted)
    columns: dict[str, NDArray[Any]] = {
        f.name: np.empty(total, dtype=ROW[f.name]) for f in fields(Attempts) if f.name in (ROW.names or ())
    }
    servers: list[str] = []
    names: list[str] = []
    at = 0
    for path, rows in counted:
        texts = _read_texts(path)
        maps = {"server": _mapping(texts["servers"], servers), "names": _mapping(texts["names"], names)}
        for first in range(0, rows, _CHUNK):
            size = min(_CHUNK, rows - first)
            piece = np.fromfile(path, ROW, count=size, offset=HEADER_BYTES + first * ROW.itemsize)
            for name, column in columns.items():
                column[at : at + size] = maps[name][piece[name]] if name in maps else piece[name]
            at += size
    # The columns by their names.
    return Attempts(**columns, servers=tuple(servers), standby_names=tuple(names))  # type: ignore[arg-type]
