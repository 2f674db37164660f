"""What is known before anything is copied: both servers inspected, the fork found, WAL and files listed. Only reads."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from walproof.salvaging import data_directory, successor
from walproof.salvaging.data_directory import OldServer
from walproof.salvaging.refusals import refused
from walproof.salvaging.timelines import Span, lost_spans, segment, segment_start

_MOST = 200
"""Segments up to which WAL before the fork is read too, for what transactions wrote that were open at it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`wal`: the folder of each segment to copy, `present`: of all, `begin`: where reading begins; the last span ends
    where the segments do. Without spans nothing was lost. `doubts`: why more may be lost."""

    old: OldServer
    new_timeline: int
    spans: tuple[Span, ...]
    copied_bytes: int = 0
    begin: int = 0
    wal: dict[str, Path] = field(default_factory=dict)
    present: dict[str, Path] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


def plan(directory: Path, new: str, archive: Path | None, programs: Path | None) -> Plan:
    """The plan, of the old primary's directory and the new one's DSN; every reason why there is none is a refusal."""
    if archive is not None and not archive.is_dir():
        raise refused("no-archive", folder=archive)
    if os.geteuid() != 0:
        raise refused("not-root")
    old = data_directory.inspect(directory, programs)
    system, timeline, major = successor.identity(new)
    if system != old.system:
        raise refused("another-cluster", directory=old.directory, old=old.system, new=system)
    if major != old.major:
        raise refused("another-version", directory=old.directory, old=old.major, new=major)
    try:
        mine = data_directory.own_history(old, archive)
        theirs = successor.history(new, timeline, archive)
        spans = lost_spans(mine, theirs)
    except ValueError as wrong:
        raise refused("bad-history", why=wrong) from None
    present, size = data_directory.wal_files(old, archive), old.segment_size
    others = _others(present, size, mine, theirs)
    doubts = [f"WAL of timeline {one} is there too, which neither server followed: it is not read" for one in others]
    if not spans:
        return Plan(old, timeline, (), doubts=doubts)
    theirs_before = successor.wal_before(new, spans[0].timeline, spans[0].start)
    if not data_directory.holds(present, spans[0], size, theirs_before):
        doubts.append(
            "the WAL before the fork is not the new primary's: two servers had that timeline, they parted earlier"
        )
    wal = dict.fromkeys(data_directory.needed_wal(old, spans, present))
    spans = (*spans[:-1], replace(spans[-1], end=segment_start(list(wal)[-1], size) + size))
    first = spans[0].start // size
    needed_from, most = min(first, old.redo // size), first - _MOST
    while first > max(1, min(most, needed_from)) and (name := segment(spans[0].timeline, first - 1, size)) in present:
        first, wal[name] = first - 1, None
    copied = data_directory.size(old) + len(wal) * size
    files = {name: present[name] for name in wal}
    return Plan(old, timeline, spans, copied, max(first, 1) * size, files, present, doubts)


def _others(present: Iterable[str], size: int, mine: Sequence[Span], theirs: Sequence[Span]) -> list[int]:
    """Timelines of WAL that is there and that neither history holds: another server's, from another fork."""
    ends: dict[int, int | None] = {
        **{span.timeline: span.end for span in theirs},
        **{span.timeline: None for span in mine},
    }
    found = ((int(name[:8], 16), segment_start(name, size)) for name in present)
    return sorted(
        {timeline for timeline, start in found if (end := ends.get(timeline, 0)) is not None and start >= end}
    )
