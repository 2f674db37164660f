"""Records of WAL as recovery reads them: each begins where the last one ended, names it, and has the right checksum.

Read from the segments themselves, by PostgreSQL's formats of 14 to 18 (xlogrecord.h, xlog_internal.h, xlogreader.c):
text of users, which the WAL is full of, is never looked at. ValueError and struct.error stay inside."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

PAGE = 8192
"""Bytes of a page of WAL, as PostgreSQL's packages are built."""
Relation = tuple[int, int, int]
"""Tablespace, database and file node of a relation."""


class Manager(IntEnum):
    """Resource managers whose records are read, by their numbers in rmgrlist.h; of all others only where they end."""

    XLOG = 0
    TRANSACTION = 1
    STORAGE = 2
    DATABASE = 4
    TABLESPACE = 5
    STANDBY = 8
    HEAP2 = 9
    HEAP = 10
    SEQUENCE = 15


_READ = frozenset(Manager)
_SWITCH = 0x40
"""Of XLOG: the rest of its segment is empty."""
MAGIC = {14: 0xD10D, 15: 0xD110, 16: 0xD113, 17: 0xD116, 18: 0xD118}
"""XLOG_PAGEMAGIC by major version: pages of another are not read, nor those of a version to come."""
PAGE_HEADER, _SEGMENT_HEADER = struct.Struct("=HHIQI"), struct.Struct("=QI")
IS_CONTINUED, _IS_OVERWRITTEN = 0x01, 0x08
"""A page's flags: it begins within a record; it begins anew, after one that a crash cut off."""
_RECORD = struct.Struct("=IIQBB2xI")
_BEFORE_CHECKSUM, _TOO_LONG = 20, 1 << 30
_BLOCK = struct.Struct("=BH")
_IMAGE = struct.Struct("=2x2xB")
_NUMBER, _RELATION = struct.Struct("=I"), struct.Struct("=III")
_FORK, _HAS_IMAGE, _SAME_RELATION, _HAS_HOLE = 0x0F, 0x10, 0x80, 0x01
_SHORT, _LONG, _ORIGIN, _TOP_TRANSACTION = 255, 254, 253, 252


class Record(NamedTuple):
    """`lsn` to `end`: where it is, and where the next may begin; `kind`: what its manager does, the upper four bits of
    xl_info. `blocks`: of main forks, in their order; `data`: the manager's own. Both empty for managers not read."""

    lsn: int
    end: int
    xid: int
    manager: int
    kind: int
    blocks: tuple[tuple[Relation, int], ...] = ()
    data: bytes = b""


class _NoRecordError(Exception):
    """None is whole there; `again`: where a page begins anew instead, 0 for nowhere."""

    def __init__(self, again: int = 0) -> None:
        super().__init__()
        self.again = again


def record_end(start: int, length: int, size: int) -> int:
    """Where the next record of WAL may begin: after `length` bytes, page headers between them, and padding."""
    while length > (room := PAGE - start % PAGE):
        start, length = start + room, length - room
        start += page_header(start, size)
    return start + (length + 7) // 8 * 8


def page_header(page: int, size: int) -> int:
    """Bytes of a page's header: longer on the first page of a segment."""
    return 40 if page % size == 0 else 24


def is_record(at: int, raw: bytes) -> bool:
    """Whether these bytes, which stand there, begin with a whole record."""
    length, _, before, _, _, said = _RECORD.unpack_from(raw)
    if not (_RECORD.size <= length <= len(raw) and before < at):
        return False
    data = google_crc32c.value(raw[_RECORD.size : length])
    return bool(google_crc32c.extend(data, raw[:_BEFORE_CHECKSUM]) == said)


@dataclass(slots=True)
class WalReader:
    """WAL of a cluster up to a timeline, in segments of `size` bytes, written by that major version.

    read: bytes from a position on, of one page; fewer, or none, where they are not there.
    """

    major: int
    system: int
    timeline: int
    size: int
    read: Callable[[int, int], bytes]
    _newest: int = 0
    _checked: int = -1
    """The newest timeline of a page so far, and the page of the last record."""

    def records(self, start: int, end: int) -> Iterator[Record]:
        """Those that begin at `start` or later and before `end`, up to the first that is not whole; none where the page
        of `start` was not written for its place."""
        self._newest, self._checked, before = 0, -1, None
        try:
            self._page(start - start % self.size)  # which says whose segment it is
            at = self._first(start)
        except _NoRecordError:
            return
        while at < end:
            try:
                record, at = self._record(at, before)
            except _NoRecordError as why:
                if not why.again:
                    return
                at = why.again
                continue
            before = record.lsn
            if record.lsn >= start:
                yield record

    def _first(self, start: int) -> int:
        """Where the first record begins in the page of `start`, or in one after it (as XLogFindNextRecord does)."""
        page = start - start % PAGE
        while True:
            flags, left = self._page(page)
            begin = page + page_header(page, self.size)
            rest = (left + 7) // 8 * 8 if flags & IS_CONTINUED else 0
            if rest < page + PAGE - begin:
                return begin + rest
            page += PAGE

    def _bytes(self, at: int, count: int) -> bytes:
        found = self.read(at, count)
        if len(found) < count:
            raise _NoRecordError
        return found

    def _page(self, page: int) -> tuple[int, int]:
        """The flags of a page, and how much of a record goes on in it; _NoRecordError for one of another place."""
        magic, flags, timeline, address, left = PAGE_HEADER.unpack(self._bytes(page, PAGE_HEADER.size))
        is_in_place = address == page and magic == MAGIC.get(self.major)
        if page % self.size == 0:
            is_in_place &= _SEGMENT_HEADER.unpack(self._bytes(page + 24, 12)) == (self.system, self.size)
        if not is_in_place or not self._newest <= timeline <= self.timeline:
            raise _NoRecordError
        self._newest = timeline
        return flags, left

    def _behind_header(self, at: int) -> int:
        """That position, or the one behind the header of the page that begins there."""
        page = at - at % PAGE
        if page != self._checked:
            flags, _ = self._page(page)
            if at == page and flags & IS_CONTINUED:
                raise _NoRecordError
            self._checked = page
        return at + page_header(page, self.size) if at == page else at

    def _record(self, at: int, before: int | None) -> tuple[Record, int]:
        """The record there, and where the next may begin; `before`: where the last one began."""
        at = self._behind_header(at)
        head, kept, checksum, manager = b"", list[bytes](), 0, -1
        for piece in self._pieces(at):
            rest = piece
            if manager < 0:
                head += piece
                if len(head) < _RECORD.size:
                    continue
                length, xid, prev, info, manager, said = _RECORD.unpack_from(head)
                if prev >= at or before not in (None, prev):
                    raise _NoRecordError
                rest = head[_RECORD.size :]
            checksum = google_crc32c.extend(checksum, rest)
            if manager in _READ:
                kept.append(rest)
        if google_crc32c.extend(checksum, head[:_BEFORE_CHECKSUM]) != said:
            raise _NoRecordError
        end = record_end(at, length, self.size)
        if manager == Manager.XLOG and info & 0xF0 == _SWITCH:
            end = -(-end // self.size) * self.size
        blocks, data = self._decoded(b"".join(kept)) if manager in _READ else ((), b"")
        return Record(at, end, xid, manager, info & 0xF0, blocks, data), end

    def _pieces(self, at: int) -> Iterator[bytes]:
        """The record's bytes, page by page."""
        (left,) = _NUMBER.unpack(self._bytes(at, _NUMBER.size))
        if not _RECORD.size <= left < _TOO_LONG:
            raise _NoRecordError
        while True:
            room = PAGE - at % PAGE
            yield self._bytes(at, min(left, room))
            if left <= room:
                return
            at, left = at + room, left - room
            flags, goes_on = self._page(at)
            if flags & _IS_OVERWRITTEN:
                raise _NoRecordError(at)
            if not flags & IS_CONTINUED or goes_on != left:
                raise _NoRecordError
            at += page_header(at, self.size)

    def _decoded(self, raw: bytes) -> tuple[tuple[tuple[Relation, int], ...], bytes]:
        """Blocks of main forks and the manager's own data, of what is behind a record's header."""
        at, elsewhere, own, relation, blocks = 0, 0, 0, (0, 0, 0), list[tuple[Relation, int]]()
        compressed = 0x1C if self.major >= 15 else 0x02
        try:
            while len(raw) - at > elsewhere + own:
                number = raw[at]
                if number == _SHORT:
                    own, at = raw[at + 1], at + 2
                elif number == _LONG:
                    (own,), at = _NUMBER.unpack_from(raw, at + 1), at + 5
                elif number in (_ORIGIN, _TOP_TRANSACTION):
                    at += 3 if number == _ORIGIN else 5
                else:
                    (flags, length), at = _BLOCK.unpack_from(raw, at + 1), at + 4
                    elsewhere += length
                    if flags & _HAS_IMAGE:
                        (of_image,), (length,) = _IMAGE.unpack_from(raw, at), struct.unpack_from("=H", raw, at)
                        at += 7 if of_image & _HAS_HOLE and of_image & compressed else 5
                        elsewhere += length
                    if not flags & _SAME_RELATION:
                        relation, at = _RELATION.unpack_from(raw, at), at + 12
                    if not flags & _FORK:
                        blocks.append((relation, _NUMBER.unpack_from(raw, at)[0]))
                    at += 4
        except (IndexError, struct.error):  # whole by its checksum, and no record of such a version
            raise _NoRecordError from None
        return tuple(blocks), raw[len(raw) - own :] if own else b""
