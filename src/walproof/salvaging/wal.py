"""Where two servers' timelines part, which transactions committed after that, and what they wrote. Pure.

Lines of pg_waldump come one by one; kept are lost transactions and those still open, never all lines."""

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from mmap import mmap

from walproof.model.units import lsn_text

PAGE = 8192
"""Bytes of a page of WAL, as PostgreSQL's packages are built."""
_LINE = re.compile(
    r"rmgr: (\w+) +len \(rec/tot\): +\d{1,10}/ *(\d{1,10}), tx: +(\d{1,10}),"
    r" lsn: ([0-9A-F]{1,8}/[0-9A-F]{8}), prev ([0-9A-F]{1,8}/[0-9A-F]{8}), desc: (.*)",
    re.ASCII,
)
_HEADER = struct.Struct("=IIQxB")
"""Of XLogRecord (xlogrecord.h): its length, transaction, the record before it, its manager."""
_NAMES = (
    "XLOG Transaction Storage CLOG Database Tablespace MultiXact RelMap Standby Heap2 Heap Btree Hash Gin Gist Sequence"
    " SPGist BRIN CommitTs ReplicationOrigin Generic LogicalMessage"
)
_MANAGERS = {name: number for number, name in enumerate(_NAMES.split())}
"""As rmgrlist.h numbers them, of 14 to 18; those of extensions are from 128 on."""
_CREATED = re.compile(r"CREATE (?:base|pg_tblspc/(\d+)/[^/ ]+)/(\d+)/(\d+)(?![_\d])")
_BLOCK = re.compile(r"rel (\d+)/(\d+)/(\d+) blk (\d+)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) UTC")
_SUBXACTS = re.compile(r"; subxacts:((?: \d+)+)")
_TWOPHASE = re.compile(r"(?:COMMIT|ABORT)_PREPARED (\d+)")
_NEXT_XID = re.compile(r"nextXid (\d+)|; xid \d+[:/](\d+);")
_OLD_ITEM = re.compile(r"(?:\bold_off: |\boff:? )(\d+)")
_FLAGS, _TO_ANOTHER_PARTITION = re.compile(r"\bflags:? 0x([0-9A-Fa-f]+)"), 0x10
"""XLH_DELETE_IS_PARTITION_MOVE (heapam_xlog.h)."""
_DATABASE_MOVED = re.compile(r"CREATE\w* copy dir \d+/(\d+) to \d+/\1(?!\d)")
_CAME_BACK = ("CHECKPOINT_SHUTDOWN", "OVERWRITE_CONTRECORD")
_ENDS = ("UPDATE", "HOT_UPDATE", "DELETE")
_FIRST_USER_NODE, _DEFAULT_TABLESPACE = 16384, 1663
Relation = tuple[int, int, int]
"""Tablespace, database and file node of a relation."""


@dataclass(frozen=True, slots=True)
class Span:
    """WAL of one timeline, from a position up to another; None is its end. Positions in bytes."""

    timeline: int
    start: int
    end: int | None = None


def position(text: str) -> int:
    """A WAL position in bytes; ValueError for what is none."""
    match = re.fullmatch(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no WAL position")
    return int(match[1], 16) << 32 | int(match[2], 16)


def read_history(timeline: int, text: str) -> tuple[Span, ...]:
    """The spans of a timeline's history file, its own last; ValueError for what PostgreSQL would not read either."""
    spans, start, before = list[Span](), 0, 0
    for words in filter(None, (line.partition("#")[0].split() for line in text.splitlines())):
        number = int(words[0]) if words[0].isdecimal() and len(words) > 1 else 0
        if not before < number < timeline or (end := position(words[1])) < start:
            raise ValueError(f"the history of timeline {timeline} is not in order at {words[0][:20]!r}")
        spans.append(Span(number, start, end))
        start, before = end, number
    return (*spans, Span(timeline, start))


def lost_spans(old: Sequence[Span], new: Sequence[Span]) -> tuple[Span, ...]:
    """WAL that the old history has and the new has not; () when the old history is a part of the new one.

    The fork is where pg_rewind finds it: on the last timeline both have, at the earlier of its two ends
    (findCommonAncestorTimeline in pg_rewind.c). ValueError when they share no timeline.
    """
    pairs = list(zip(old, new, strict=False))
    alike = [(mine.timeline, mine.start) == (theirs.timeline, theirs.start) for mine, theirs in pairs]
    common = (alike.index(False) if False in alike else len(alike)) - 1
    if common < 0:
        raise ValueError("the two histories share no timeline")
    ends = [span.end for span in pairs[common] if span.end is not None]
    if not ends or (pairs[common][1].end is None and common == len(old) - 1):
        return ()
    rest = (Span(old[common].timeline, min(ends), old[common].end), *old[common + 1 :])
    return tuple(span for span in rest if span.end is None or span.end > span.start)


def segment(timeline: int, number: int, size: int) -> str:
    """The file name of a WAL segment, by its number counted from the first."""
    return f"{timeline:08X}{number // ((1 << 32) // size):08X}{number % ((1 << 32) // size):08X}"


def segment_start(name: str, size: int) -> int:
    """The position of a segment's first byte, by its name."""
    return int(name[8:16], 16) << 32 | int(name[16:], 16) * size


def record_end(start: int, length: int, size: int) -> int:
    """Where the next record of WAL may begin: after `length` bytes, page headers between them, and padding."""
    while length > (room := PAGE - start % PAGE):
        start, length = start + room, length - room
        start += page_header(start, size)
    return start + (length + 7) // 8 * 8


def page_header(page: int, size: int) -> int:
    """Bytes of a page's header: longer on the first page of a segment."""
    return 40 if page % size == 0 else 24


def headers(size: int, segments: Callable[[int], bytes | mmap]) -> Callable[[int], tuple[int, int, int, int]]:
    """What stands at a position where a record of WAL begins: its length, transaction, the one before, its manager.

    segments: the bytes of a segment, by its number; b"" for one that is not there, and zeros stand where nothing is.
    """

    def header(at: int) -> tuple[int, int, int, int]:
        first = segments(at // size)[at % size : at % size + min(_HEADER.size, PAGE - at % PAGE)]
        if rest := _HEADER.size - len(first):  # it goes on behind the next page's header
            page = at - at % PAGE + PAGE
            begin = page % size + page_header(page, size)
            first += segments(page // size)[begin : begin + rest]
        length, xid, before, manager = _HEADER.unpack(first.ljust(_HEADER.size, b"\0"))
        return length, xid, before, manager

    return header


def precedes(xid: int, other: int) -> bool:
    """Whether a transaction id is before another: they go round at 2^32 (TransactionIdPrecedes)."""
    return (xid - other) % (1 << 32) >= 1 << 31


@dataclass(slots=True)
class LostWal:
    """What WAL says about the lost part. Times in seconds since the epoch, positions in bytes; `redo`: where replaying
    begins; `times`: of the first and last commit; `undecided`: why there may be more, a sentence each.

    `blocks` and `ended`: of relations, blocks written and how often versions at a place (block, item) were ended;
    `moved`: transactions that moved a row to another partition; `ddl`: that changed catalogs, by database; `created`:
    files made after the fork, of new, rewritten and truncated tables.
    `held`: prepared on the new primary; `prepared_before`: of them, committed after the fork: not lost, only not
    committed there; `prepared` after the fork, and neither committed nor rolled back.
    `tablespaces`: made in what is replayed, with their places. `crashed_at`: where the old primary came back after it
    had ended, for the first time after the fork: after a crash it wrote over what had not been flushed; 0 for nowhere.
    `header`: what the WAL itself says of the record at a position, with which each line is compared.
    Of transactions from `known_from` on every record was read, and none from `next_xid` on had written at the fork.
    """

    fork: int
    segment_size: int
    redo: int = 0
    held: Container[int] = ()
    header: Callable[[int], tuple[int, int, int, int]] | None = None
    end: int = 0
    undecided: list[str] = field(default_factory=list)
    commits: int = 0
    subtransactions: int = 0
    times: tuple[float, float] | None = None
    xids: set[int] = field(default_factory=set)
    blocks: defaultdict[Relation, set[int]] = field(default_factory=lambda: defaultdict(set))
    ended: defaultdict[Relation, Counter[tuple[int, int]]] = field(default_factory=lambda: defaultdict(Counter))
    moved: set[int] = field(default_factory=set)
    ddl: Counter[int] = field(default_factory=Counter)
    prepared: set[int] = field(default_factory=set)
    prepared_before: set[int] = field(default_factory=set)
    known_from: int | None = None
    next_xid: int | None = None
    created: set[Relation] = field(default_factory=set)
    tablespaces: list[str] = field(default_factory=list)
    crashed_at: int = 0
    _open: defaultdict[int, set[tuple[Relation, int, int]]] = field(default_factory=lambda: defaultdict(set))
    """By transaction: relation, block, and the item that was ended; 0 where a block was written."""
    _last: str = ""
    _left_out: int = 0
    _first: int = 0
    _is_forged: bool = False
    """The position of the last record, and lines since that follow another one; of the first record, and whether a line
    was left out that says to be among those that were read: then one of these was text that led past a true one."""

    @property
    def all_blocks_known(self) -> bool:
        """Whether every block that a lost transaction wrote to is among `blocks`."""
        return self.known_from is not None and not any(precedes(xid, self.known_from) for xid in self.xids)

    def add(self, line: str) -> None:
        """One line of pg_waldump; one of another kind is left out, and text of users: what does not follow the last, or
        is not what stands in the WAL there."""
        match = _LINE.match(line)
        try:
            if match is not None:
                self._add(match)
        except ValueError:  # of a time, or the like, as no server writes it
            self._is_forged = True

    def _add(self, match: re.Match[str]) -> None:
        manager, length, number, at, before, text = match.groups()
        xid, lsn, size = int(number), position(at), self.segment_size
        if self._last and (before != self._last or lsn < self.end):
            self._left_out += 1
            self._is_forged |= self._first <= lsn <= self.end
            return
        if self.header is not None and not self._stands(self.header(lsn), manager, int(length), xid, position(before)):
            self._is_forged = True
            return
        self._first = self._first if self._last else lsn
        self._last, self._left_out = at, 0
        is_switch = manager == "XLOG" and text.startswith("SWITCH")  # the rest of its segment is empty
        self.end = (lsn // size + 1) * size if is_switch else record_end(lsn, int(length), size)
        if lsn < self.fork and xid:
            self._next(xid + 1)
        if manager == "Transaction":
            self._transaction(xid, text, lost=lsn >= self.fork)
        elif manager in ("Heap", "Heap2", "Sequence") and xid:
            self._written(xid, text)
        elif manager == "Storage" and lsn >= self.fork and (made := _CREATED.match(text)):
            self.created.add((int(made[1] or _DEFAULT_TABLESPACE), int(made[2]), int(made[3])))
        elif manager == "Tablespace" and lsn >= self.redo and text.startswith("CREATE"):
            self.tablespaces.append(text.removeprefix("CREATE "))
        elif manager in ("Standby", "XLOG", "Database"):
            if lsn >= self.fork and text.startswith(_CAME_BACK):
                self.crashed_at = self.crashed_at or lsn
            self._counted(text, lost=lsn >= self.fork)

    @staticmethod
    def _stands(header: tuple[int, int, int, int], manager: str, *says: int) -> bool:
        """Whether the WAL has a record there of which a line says that."""
        return header[:3] == says and min(header[3], 128) == _MANAGERS.get(manager, 128)

    def _counted(self, text: str, *, lost: bool) -> None:
        """One record of Standby, XLOG or Database; it may say the next transaction id."""
        if lost and _DATABASE_MOVED.match(text):
            self.undecided.append("a database was moved to another tablespace: rows of it written before are not seen")
        if found := _NEXT_XID.search(text):
            if self.known_from is None and found[1]:  # a checkpoint's is from when it began
                self.known_from = int(found[1])
            if not lost:
                self._next(int(found[1] or found[2]))

    def _written(self, xid: int, text: str) -> None:
        """One record of Heap, Heap2 or Sequence."""
        kind = text.split(" ", 1)[0].split("+", 1)[0]
        found = [((int(a), int(b), int(c)), int(block)) for a, b, c, block in _BLOCK.findall(text)]
        if found and kind not in ("LOCK", "INPLACE"):
            self._open[xid].update((*one, 0) for one in found)
            if kind in _ENDS and (item := _OLD_ITEM.search(text)):
                self._open[xid].add((*found[-1], int(item[1])))
            if kind == "DELETE" and (flags := _FLAGS.search(text)) and int(flags[1], 16) & _TO_ANOTHER_PARTITION:
                self.moved.add(xid)

    def _next(self, xid: int) -> None:
        if self.next_xid is None or precedes(self.next_xid, xid):
            self.next_xid = xid % (1 << 32)

    def close(self, until: int) -> None:
        """The end of a span, which must reach `until`."""
        if self._left_out or self._is_forged:
            self.undecided.append("text that users wrote into the WAL looks like its records: the counts are not sure")
        if self.end < until:
            self.undecided.append(f"the WAL was read up to {lsn_text(self.end)}, and needed up to {lsn_text(until)}")
        self._last, self._left_out, self._is_forged = "", 0, False

    def _transaction(self, xid: int, text: str, *, lost: bool) -> None:
        kind = text.split(" ", 1)[0]
        if kind not in ("COMMIT", "ABORT", "COMMIT_PREPARED", "ABORT_PREPARED"):
            self.prepared |= {xid} if kind == "PREPARE" and lost else set()
            return
        twophase = _TWOPHASE.match(text)
        xid = int(twophase[1]) if twophase else xid
        subxacts = [int(one) for found in _SUBXACTS.findall(text) for one in found.split()]
        written = set[tuple[Relation, int, int]]().union(*(self._open.pop(one, ()) for one in (xid, *subxacts)))
        if lost and kind == "COMMIT_PREPARED" and xid not in self.prepared and xid in self.held:
            self.prepared_before.add(xid)
            return
        self.prepared.discard(xid)
        if not lost or kind.startswith("ABORT"):
            return
        self.commits += 1
        self.subtransactions += len(subxacts)
        self.xids.update((xid, *subxacts))
        if found := _TIME.search(text):
            at = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
            self.times = (min(self.times[0], at), max(self.times[1], at)) if self.times else (at, at)
        self.ddl.update({relation[1] for relation, *_ in written if relation[2] < _FIRST_USER_NODE})
        for relation, block, item in written:
            if item:
                self.ended[relation][block, item] += 1
            elif relation[2] >= _FIRST_USER_NODE:
                self.blocks[relation].add(block)
