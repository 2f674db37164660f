"""What is known before anything is copied: both servers inspected, the fork found, WAL and files listed. Only reads."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from walproof.salvaging import data_directory, successor
from walproof.salvaging.data_directory import OldServer
from walproof.salvaging.refusals import refused
from walproof.salvaging.timelines import Span, lost_spans, segment

_MOST = 200
"""Segments up to which WAL before the fork is read too, for what transactions wrote that were open at it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`wal`: the folder of each segment, `begin`: where reading it begins. Without spans nothing was lost."""

    old: OldServer
    new_timeline: int
    spans: tuple[Span, ...]
    copied_bytes: int = 0
    begin: int = 0
    wal: dict[str, Path] = field(default_factory=dict)


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
        spans = lost_spans(mine, successor.history(new, timeline, archive))
    except ValueError as wrong:
        raise refused("bad-history", why=wrong) from None
    if not spans:
        return Plan(old, timeline, ())
    present = data_directory.wal_files(old, archive)
    names, size, first = (
        data_directory.needed_wal(old, spans, present),
        old.segment_size,
        spans[0].start // old.segment_size,
    )
    while first > 1 and len(names) < _MOST and (name := segment(spans[0].timeline, first - 1, size)) in present:
        first, names = first - 1, [*names, name]
    wal = {name: present[name] for name in names}
    return Plan(old, timeline, spans, data_directory.size(old) + len(wal) * size, max(first, 1) * size, wal)
