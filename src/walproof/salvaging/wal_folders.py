"""WAL in the folders that were given: the file of each segment, what is there in a form that is not read, and whether
there may be more behind the place where reading ended. Reads only."""

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from walproof.machine.untrusted import one_line, regular
from walproof.model.units import lsn_text
from walproof.salvaging.data_directory import OldServer, small_file, small_text
from walproof.salvaging.refusals import refused
from walproof.salvaging.timelines import Span, read_history, segment, segment_start, since
from walproof.salvaging.wal_records import (
    IS_CONTINUED,
    PAGE,
    PAGE_HEADER,
    WalReader,
    is_record,
    page_header,
    record_end,
)

_NAMED = re.compile(r"([0-9A-F]{24})(?!.*[.](?:backup|done|ready)\b)(.*)", re.DOTALL)
"""A segment, in whatever form: not the notes that PostgreSQL keeps on one."""
_WHOLE = ("", ".partial")
"""A segment, and one that was not full yet: pg_receivewal makes it of a segment's size, zeros behind its records."""
_STANDBY = ("in archive recovery", "shut down in recovery")
"""States of pg_control that a primary never leaves behind: it is "in crash recovery"."""
_CHUNK = 1 << 20
_number = partial(int.from_bytes, byteorder=sys.byteorder)


def _named(old: OldServer, archive: Path | None) -> Iterator[tuple[str, Path, bool]]:
    """What is there by the name of a segment, in pg_wal and then in the archive: that name, the file, and whether it is
    read as it is."""
    for folder in (old.wal, archive) if archive else (old.wal,):
        for entry in sorted(os.scandir(folder), key=lambda one: one.name) if folder.is_dir() else ():
            if named := _NAMED.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                whole = stat.S_ISREG(status.st_mode) and status.st_size == old.segment_size and named[2] in _WHOLE
                yield named[1], Path(entry.path), whole


def wal_files(old: OldServer, archive: Path | None, needed: int = 0) -> dict[str, Path]:
    """The file of each WAL segment, by its name: pg_wal's before the archive's, one that is full before others; but
    from `needed` on another that holds the same, up to where reading the first one ends, and goes on behind it."""
    found = [(name, path) for name, path, whole in _named(old, archive) if whole]
    files: dict[str, Path] = {}
    for name, path in sorted(found, key=lambda one: one[1].name != one[0]):
        first, end = files.setdefault(name, path), segment_start(name, old.segment_size) + old.segment_size
        if first != path and end > needed and _goes_further(old, name, first, path):
            files[name] = path
    return files


def _goes_further(old: OldServer, name: str, first: Path, other: Path) -> bool:
    start = segment_start(name, old.segment_size)
    with regular(first.parent, first) as one, regular(other.parent, other) as two:
        while (part := one.read(_CHUNK)) == two.read(_CHUNK):
            if not part:
                return False
        ends, pages = zip(_read_to(old, name, one), _read_to(old, name, two), strict=True)
        if (ends[0], pages[0]) >= (ends[1], pages[1]):
            return False
        one.seek(0)
        two.seek(0)
        same = max(ends[0] - start, 0)
        return one.read(same) == two.read(same)


def _read_to(old: OldServer, name: str, file: BinaryIO) -> tuple[int, int]:
    """Where the last record ends that is whole in a segment's file, and how many pages from its first on were written
    for their place: a record may be longer than a segment."""
    start, size = segment_start(name, old.segment_size), old.segment_size

    def read(at: int, count: int) -> bytes:
        return os.pread(file.fileno(), count, at - start) if start <= at < start + size else b""

    reader, end, pages = WalReader(old.major, old.system, int(name[:8], 16), size, read), 0, 0
    for record in reader.records(start, start + size):
        end = record.end
    while pages < size // PAGE and _number(read(start + pages * PAGE + 8, 8)) == start + pages * PAGE:
        pages += 1
    return end, pages


def unread_files(old: OldServer, archive: Path | None) -> dict[Path, str]:
    """What is there by the name of a segment and is none that can be read: compressed, cut off, a link; its segment."""
    return {path: name for name, path, whole in _named(old, archive) if not whole}


def goes_on(files: Mapping[str, Path], span: Span, end: int, size: int) -> bool:
    """True when `end` is not the end of what the span's timeline wrote: a record is damaged, or a segment is missing:
    behind a record that fills its segment a server makes the next one.

    The last record of a server that crashed may be there in part: each page behind `end` goes on with it, exactly.
    """
    if span.end is not None and end >= span.end:
        return True
    begin, whole = end if end % PAGE else end + page_header(end, size), 0
    left, expected = 0, end - end % PAGE + PAGE
    for address, page in _in_place(files, span.timeline, end, size):
        if address <= end:
            whole = _number(page[begin - address : begin - address + 4])
            left = whole - (address + PAGE - begin) if 24 <= whole < 1 << 30 else 0
            if any(is_record(at, page[at - address :]) for at in range(begin + 8, address + PAGE - 24, 8)):
                return True
        else:
            _, flags, _, _, rest = PAGE_HEADER.unpack(page)
            if (address, left) != (expected, rest) or left <= 0 or not flags & IS_CONTINUED:
                return True
            left, expected = left - (PAGE - page_header(address, size)), address + PAGE
    if not 24 <= whole < 1 << 30:
        return whole > 0
    last = (record_end(begin, whole, size) - 1) // PAGE * PAGE
    return left <= 0 or (span.end is not None and span.end <= last)


def _in_place(files: Mapping[str, Path], timeline: int, end: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The pages from that of `end` on that were written for their place, by their positions: that one, and of those
    behind it the header, which holds the page's own position; of a recycled one another (xlp_pageaddr)."""
    for name in sorted(name for name in files if int(name[:8], 16) == timeline):
        start = segment_start(name, size)
        with regular(files[name].parent, files[name]) as file:
            for address in range(max(start, end // PAGE * PAGE), start + size, PAGE):
                file.seek(address - start)
                page = file.read(PAGE if address <= end else PAGE_HEADER.size)
                if _number(page[8:16]) == address:
                    yield address, page


def needed_wal(
    old: OldServer, spans: Sequence[Span], present: Mapping[str, Path], unread: Mapping[Path, str]
) -> list[str]:
    """Segments that recovery and the lost part need, of each timeline over which these go, to the last before a gap; a
    refusal names one that is missing."""
    size, names, needed = old.segment_size, list[str](), max(old.redo, spans[0].start)
    for span in since(old.history, min(old.redo, spans[0].start)):
        number, required = span.start // size, (max(needed, span.start) if span.end is None else span.end - 1) // size
        while (name := segment(span.timeline, number, size)) in present and (span.end is None or number <= required):
            names.append(name)
            number += 1
        if number <= required:
            for path, of in unread.items():
                if of == name:
                    raise refused("wal-form", file=path, what=name, size=size)
            raise refused("wal-gap", what=name, folder=old.wal)
    return names


def check_own(old: OldServer, new: Sequence[Span]) -> None:
    """A refusal where pg_wal has WAL of a timeline that the directory never had: a rewind that was begun, which fetches
    the new primary's and has written to files by then, or a link to the WAL of a server that was made anew."""
    is_linked, theirs = not old.wal.is_relative_to(old.directory), [one.timeline for one in new]
    for name, path, _ in _named(old, None):
        timeline = int(name[:8], 16)
        if timeline not in [one.timeline for one in old.history] and (is_linked or timeline in theirs):
            words = {"place": old.directory / "pg_wal", "directory": old.directory, "file": path}
            raise refused("link-rewound" if is_linked else "rewind-begun", **words)


def not_read(unread: Mapping[Path, str], span: Span, end: int, size: int) -> list[str]:
    """Why there may be more of the span's timeline than what was read up to `end`: a sentence on the first file that
    was passed over; [] for none."""
    behind = sorted(
        (name, path)
        for path, name in unread.items()
        if int(name[:8], 16) == span.timeline and segment_start(name, size) + size > end
    )
    others = f", nor are {len(behind) - 1} more" if behind[1:] else ""
    return [
        f"{one_line(path, 300)} was not read{others}: it may hold more. Decompress a copy, or pad it with zeros"
        f" (truncate -s {size} {name}), for --wal"
        for name, path in behind[:1]
    ]


def elsewhere(
    old: OldServer,
    new: Sequence[Span],
    archive: Path | None,
    present: Mapping[str, Path],
    unread: Mapping[Path, str],
) -> list[str]:
    """Why there may be more than what the old timeline lost: WAL of later ones that descend from it, behind where the
    new history leaves them; a sentence each. It belongs to another failover, of which a later disk tells."""
    size, says = old.segment_size, list[str]()
    for timeline in sorted({int(name[:8], 16) for name in (*present, *unread.values())}):
        span = _left(old, new, timeline, [old.wal, archive] if archive else [old.wal])
        if span and (goes_on(present, span, span.start, size) or not_read(unread, span, span.start, size)):
            says.append(
                f"WAL of timeline {timeline} goes on behind {lsn_text(span.start)}, which the new primary has not: it"
                f" is not read. For that, give a disk or base backup of timeline {timeline} as --old"
            )
    return says


def _left(old: OldServer, new: Sequence[Span], timeline: int, folders: Sequence[Path]) -> Span | None:
    """What the new history has not of a timeline that came after the old one; None where it has all of it, and where
    its own history, of these folders or the new one's, says that it does not descend from the old one."""
    if timeline <= old.timeline:
        return None
    mine = (old.timeline, old.history[-1].start)
    for at, span in enumerate(new):
        if span.timeline == timeline:
            descends = mine in [(one.timeline, one.start) for one in new[:at]]
            return Span(timeline, span.end) if descends and span.end is not None else None
    text = next(filter(None, (small_text(folder, f"{timeline:08X}.history") for folder in folders)), "")
    spans = read_history(timeline, text)
    if text and mine not in [(one.timeline, one.start) for one in spans]:
        return None
    return spans[-1]


def ends_elsewhere(old: OldServer, present: Mapping[str, Path], span: Span, end: int) -> list[str]:
    """Why nothing is known of what came after `end`, where that is not the end of the old primary's own disk."""
    if old.control.get("Database cluster state") in _STANDBY:
        return ["the directory is a standby's: the old primary's disk may have more"]
    last = present.get(segment(span.timeline, (end - 1) // old.segment_size, old.segment_size))
    if last is None or (last.parent == old.wal and small_file(old.directory, "backup_label") is None):
        return []
    return [f"the WAL ends in {one_line(last, 300)}, of an archive or a backup: the old primary's disk may have more"]
