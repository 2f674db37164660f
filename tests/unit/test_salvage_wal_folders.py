"""The files of WAL segments in the folders that were given: which is read, which cannot be, and which are needed."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.data_directory import SEGMENT, directory, wal
from tests.fixtures.wal_writer import COMMIT, WalWriter, ended
from walproof.errors import MachineError
from walproof.salvaging.data_directory import inspect
from walproof.salvaging.timelines import Span, history_text, read_history, segment, since
from walproof.salvaging.wal_folders import elsewhere, ends_elsewhere, needed_wal, not_read, unread_files, wal_files
from walproof.salvaging.wal_records import PAGE_HEADER, Manager

__all__ = ["directory"]


@pytest.mark.parametrize(
    ("present", "missing"), [((3, 5), None), ((4, 5), 3), ((3,), 4), ((), 3), ((3, 4, 5, 7), None)]
)
def test_wal_that_no_longer_reaches_the_fork_is_named(
    directory: Path, present: tuple[int, ...], missing: int | None
) -> None:
    old, archive = replace(inspect(directory, None), history=(Span(1, 0),)), directory.parent / "archive"
    archive.mkdir()
    wal(directory / "pg_wal", *present)
    spans = (Span(1, 0x410000),)
    if missing is None:
        wal(archive, 4)
        assert needed_wal(old, spans, wal_files(old, archive), {}) == [segment(1, n, SEGMENT) for n in (3, 4, 5)]
    else:
        with pytest.raises(MachineError, match=segment(1, missing, SEGMENT)):
            needed_wal(old, spans, wal_files(old, archive), {})


@pytest.mark.parametrize(
    ("redo", "fork", "names"),
    [
        (3, 0x510000, [(1, 3), (1, 4), (2, 4), (2, 5), (2, 6)]),  # a crash before the first checkpoint after promotion
        (5, 0x510000, [(2, 5), (2, 6)]),
        (5, 0x390000, [(1, 3), (1, 4), (2, 4), (2, 5), (2, 6)]),  # the fork is on the timeline before
        (3, 0x600000, [(1, 3), (1, 4), (2, 4), (2, 5), (2, 6)]),
    ],
)
def test_segments_are_those_of_the_timelines_over_which_recovery_goes(
    directory: Path, redo: int, fork: int, names: list[tuple[int, int]]
) -> None:
    mine = (Span(1, 0, 0x480000), Span(2, 0x480000))
    old = replace(inspect(directory, None), redo=redo * SEGMENT + 0x28, history=mine)
    wal(directory / "pg_wal", 1, 2, 3, 4)
    wal(directory / "pg_wal", 4, 5, 6, timeline=2)
    needed = needed_wal(old, since(mine, fork), wal_files(old, None), {})
    assert needed == [segment(timeline, number, SEGMENT) for timeline, number in names]
    (directory / "pg_wal" / needed[0]).unlink()
    with pytest.raises(MachineError, match=needed[0]):
        needed_wal(old, since(mine, fork), wal_files(old, None), {})


def test_a_history_is_written_as_it_was_read() -> None:
    spans = (Span(1, 0, 0x480000), Span(3, 0x480000, 0x1_0000_0028), Span(4, 0x1_0000_0028))
    assert read_history(4, history_text(spans)) == spans


LATER, OTHER = "1\t0/380000\tx\n", "1\t0/380000\tx\n2\t0/390000\tx\n"


@pytest.mark.parametrize(
    ("timeline", "number", "history", "new", "named"),
    [
        (2, 5, None, (3, "1 0/380000\n2 0/480000"), "timeline 2 goes on behind 0/480000"),
        (2, 3, None, (3, "1 0/380000\n2 0/480000"), ""),  # the new primary has that
        (3, 5, None, (3, "1 0/380000\n2 0/480000"), ""),  # and its own
        (1, 5, None, (3, "1 0/380000\n2 0/480000"), ""),  # the old one's is read
        (2, 5, LATER, (3, "1 0/380000"), "timeline 2 goes on behind 0/380000"),
        (4, 5, OTHER, (3, "1 0/380000"), "timeline 4 goes on behind 0/390000"),
        (4, 5, "2\t0/380000\n", (3, "1 0/380000"), ""),  # of another lineage
        (2, 5, None, (3, "1 0/380000"), "timeline 2 goes on behind 0/0"),  # of which nothing is known
    ],
)
@pytest.mark.parametrize("is_read", [True, False])
def test_wal_of_a_later_timeline_that_the_new_primary_left_is_named(
    directory: Path, timeline: int, number: int, history: str | None, new: tuple[int, str], named: str, *, is_read: bool
) -> None:
    """The age of a backup decides which failover is looked at: what a later one lost must not be "nothing"."""
    old, archive = replace(inspect(directory, None), history=(Span(1, 0),)), directory.parent / "archive"
    archive.mkdir()
    wal(archive, number, timeline=timeline)
    path = archive / segment(timeline, number, SEGMENT)
    if is_read:
        with path.open("r+b") as file:
            file.write(PAGE_HEADER.pack(0xD110, 0, timeline, number * SEGMENT, 0))
    else:
        path.rename(path.with_name(f"{path.name}.gz"))
    if history:
        (archive / f"{timeline:08X}.history").write_text(history)
    files = wal_files(old, archive), unread_files(old, archive)
    says = elsewhere(old, read_history(*new), archive, *files)
    assert len(says) == bool(named) and all(named in one for one in says)


def test_only_whole_regular_segments_count(directory: Path) -> None:
    wal(directory / "pg_wal", 3)
    (directory / "pg_wal" / segment(1, 4, SEGMENT)).write_bytes(b"short")
    (directory / "pg_wal" / segment(1, 5, SEGMENT)).symlink_to("/dev/zero")
    os.mkfifo(directory / "pg_wal" / segment(1, 6, SEGMENT))
    old = inspect(directory, None)
    assert list(wal_files(old, None)) == [segment(1, 3, SEGMENT)]
    unread = unread_files(old, None)
    assert list(unread.values()) == [segment(1, n, SEGMENT) for n in (4, 5, 6)]
    (told,) = not_read(unread, Span(1, 3 * SEGMENT), 4 * SEGMENT, SEGMENT)
    assert f"{segment(1, 4, SEGMENT)} was not read, nor are 2 more: it may hold more" in told


@pytest.mark.parametrize("form", ["{}.gz", "{}.partial", "{}.gz.partial", "{}-0123abcd.zst", "{}"])
def test_wal_in_a_form_that_is_not_read_is_known_to_be_there(directory: Path, form: str) -> None:
    """What can be read must not be all that is known to exist: the rest would be "nothing was lost"."""
    for number in (3, 4):
        (directory / "pg_wal" / form.format(segment(1, number, SEGMENT))).write_bytes(b"short")
    for note in (".00000028.backup", ".ready", ".done"):
        (directory / "pg_wal" / f"{segment(1, 4, SEGMENT)}{note}").touch()
    old, span = replace(inspect(directory, None), history=(Span(1, 0),)), Span(1, 3 * SEGMENT)
    unread = unread_files(old, None)
    assert [path.name for path in unread] == [form.format(segment(1, n, SEGMENT)) for n in (3, 4)]
    for end, first in ((4 * SEGMENT - 1, 3), (4 * SEGMENT, 4), (5 * SEGMENT - 1, 4)):
        assert form.format(segment(1, first, SEGMENT)) in not_read(unread, span, end, SEGMENT)[0]
    assert not_read(unread, span, 5 * SEGMENT, SEGMENT) == not_read(unread, Span(2, 0), 0, SEGMENT) == []
    with pytest.raises(MachineError, match=f"{form.format(segment(1, 3, SEGMENT))} is compressed, cut off or no file"):
        needed_wal(old, (Span(1, 0x310000),), wal_files(old, None), unread)


def test_a_segment_that_was_not_full_yet_stands_in_where_no_full_one_is(directory: Path) -> None:
    archive = directory.parent / "archive"
    archive.mkdir()
    wal(archive, 3, 4)
    for number, folder in ((3, directory / "pg_wal"), (4, archive), (5, archive)):
        name = segment(1, number, SEGMENT)
        wal(archive, 9)
        (archive / segment(1, 9, SEGMENT)).rename(folder / f"{name}.partial")
    files = wal_files(inspect(directory, None), archive)
    assert [files[segment(1, n, SEGMENT)].name[24:] for n in (3, 4, 5)] == ["", "", ".partial"]


def log(folder: Path, *xids: int, cut: int | None = None) -> Path:
    """Segment 3 with a commit of each of these transactions, the last one cut off after so many bytes of it."""
    written = WalWriter(3 * SEGMENT)
    for xid in xids:
        written.add(Manager.TRANSACTION, COMMIT, xid, ended(xid).data, end=cut if xid == xids[-1] else None)
    folder.mkdir(exist_ok=True)
    path = folder / segment(1, 3, SEGMENT)
    path.write_bytes(b"".join(bytes(page) for page in written.pages.values()).ljust(SEGMENT, b"\0"))
    return path


@pytest.mark.parametrize(
    ("own", "archived", "read"),
    [
        ((7, 8), (7, 8, 9), "archive"),
        ((7, 8, 9), (7, 8), "pg_wal"),
        ((7, 8), (7, 8), "pg_wal"),
        ((7, 8), (7, 6, 9), "pg_wal"),  # another server's, promoted to a timeline of the same number
        ((), (7, 8), "archive"),  # made to be used later
    ],
)
def test_of_two_files_of_a_name_the_one_that_goes_on_with_the_same_is_read(
    directory: Path, own: tuple[int, ...], archived: tuple[int, ...], read: str
) -> None:
    archive, old = directory.parent / "archive", replace(inspect(directory, None), major=18)
    log(directory / "pg_wal", *own)
    log(archive, *archived)
    ((_, path),) = wal_files(old, archive).items()
    assert path.parent.name == read
    assert wal_files(old, archive, 4 * SEGMENT)[path.name].parent.name == "pg_wal"


def test_of_two_files_of_a_name_a_damaged_one_is_not_read(directory: Path) -> None:
    archive, old = directory.parent / "archive", replace(inspect(directory, None), major=18)
    own = log(directory / "pg_wal", 7, 8, 9)
    whole = log(archive, 7, 8, 9)
    raw = bytearray(own.read_bytes())
    raw[150] ^= 1
    own.write_bytes(bytes(raw))
    assert wal_files(old, archive) == {own.name: whole}
    log(directory / "pg_wal", 7, 8, cut=30)
    assert wal_files(old, archive) == {own.name: whole}


@pytest.mark.parametrize(
    ("state", "is_told"),
    [
        ("in archive recovery", True),
        ("shut down in recovery", True),
        ("in crash recovery", False),
        ("in production", False),
    ],
)
def test_a_standbys_disk_does_not_tell_that_nothing_was_lost(tmp_path: Path, state: str, is_told: bool) -> None:
    old: Any = SimpleNamespace(control={"Database cluster state": state}, segment_size=SEGMENT, directory=tmp_path)
    told = ends_elsewhere(old, {}, Span(1, 0, None), SEGMENT)
    assert bool(told) == is_told
