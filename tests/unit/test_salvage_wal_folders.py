"""The files of WAL segments in the folders that were given: which is read, which cannot be, and which are needed."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures.data_directory import SEGMENT, directory, wal
from tests.fixtures.tiers import every
from tests.fixtures.wal_writer import COMMIT, WalWriter, ended
from walproof.errors import MachineError
from walproof.salvaging.data_directory import inspect
from walproof.salvaging.timelines import Span, history_text, lost_spans, read_history, segment, since
from walproof.salvaging.wal_folders import elsewhere, ends_elsewhere, needed_wal, not_read, unread_files, wal_files
from walproof.salvaging.wal_records import PAGE_HEADER, Manager

__all__ = ["directory"]


@pytest.fixture
def archive(directory: Path) -> Path:
    made = directory.parent / "archive"
    made.mkdir()
    return made


def test_what_the_old_history_has_and_the_new_one_has_not() -> None:
    def is_lost(old: tuple[int, str], new: tuple[int, str], *lost: Span) -> None:
        assert lost_spans(read_history(*old), read_history(*new)) == lost

    rows = [
        ((1, ""), (2, "1 0/30 x"), Span(1, 0x30)),
        ((1, ""), (3, "1\t0/30\n2\t0/40"), Span(1, 0x30)),
        ((2, "1 0/30"), (3, "1 0/30\n2 0/40"), Span(2, 0x40)),
        ((3, "1 0/30\n2 0/50"), (4, "1 0/30\n2 0/40"), Span(2, 0x40, 0x50), Span(3, 0x50)),
        ((2, "1 0/40"), (3, "1 0/30"), Span(1, 0x30, 0x40), Span(2, 0x40)),
        ((2, "1 0/30"), (3, "1 0/40"), Span(2, 0x30)),
        ((2, "1 0/30"), (2, "1 0/30")),
        ((1, ""), (1, "")),
    ]
    every(rows, is_lost)
    with pytest.raises(ValueError, match="no timeline"):
        lost_spans((Span(2, 0),), (Span(1, 0),))


def test_a_history_is_written_as_it_was_read_and_what_postgresql_would_not_read_is_none() -> None:
    spans = (Span(1, 0, 0x480000), Span(3, 0x480000, 0x1_0000_0028), Span(4, 0x1_0000_0028))
    assert read_history(4, history_text(spans)) == spans

    def is_none(text: str) -> None:
        with pytest.raises(ValueError, match=r"not in order|no WAL position"):
            read_history(2, text)

    every(["1", "x 0/30", "1 zz", "2 0/30", "1 0/40\n1 0/50", "0 0/30", "1 0/123456789"], is_none)


def test_wal_that_no_longer_reaches_the_fork_is_named(directory: Path, archive: Path) -> None:
    old = replace(inspect(directory, None), history=(Span(1, 0),))

    def needed(*present: int) -> list[str]:
        for path in (directory / "pg_wal").iterdir():
            path.unlink()
        wal(directory / "pg_wal", *present)
        return needed_wal(old, (Span(1, 0x410000),), wal_files(old, archive), {})

    def is_named(present: tuple[int, ...], missing: int) -> None:
        with pytest.raises(MachineError, match=segment(1, missing, SEGMENT)):
            needed(*present)

    every([((4, 5), 3), ((3,), 4), ((), 3)], is_named)
    wal(archive, 4)
    assert needed(3, 5) == needed(3, 4, 5, 7) == [segment(1, n, SEGMENT) for n in (3, 4, 5)]


def test_segments_are_those_of_the_timelines_over_which_recovery_goes(directory: Path) -> None:
    mine, all_of_both = (Span(1, 0, 0x480000), Span(2, 0x480000)), [(1, 3), (1, 4), (2, 4), (2, 5), (2, 6)]

    def goes(redo: int, fork: int, names: list[tuple[int, int]]) -> None:
        old = replace(inspect(directory, None), redo=redo * SEGMENT + 0x28, history=mine)
        wal(directory / "pg_wal", 1, 2, 3, 4)
        wal(directory / "pg_wal", 4, 5, 6, timeline=2)
        needed = needed_wal(old, since(mine, fork), wal_files(old, None), {})
        assert needed == [segment(timeline, number, SEGMENT) for timeline, number in names]
        (directory / "pg_wal" / needed[0]).unlink()
        with pytest.raises(MachineError, match=needed[0]):
            needed_wal(old, since(mine, fork), wal_files(old, None), {})

    rows = [
        (3, 0x510000, all_of_both),  # a crash before the first checkpoint after promotion
        (5, 0x510000, [(2, 5), (2, 6)]),
        (5, 0x390000, all_of_both),  # the fork is on the timeline before
        (3, 0x600000, all_of_both),
    ]
    every(rows, goes)


LATER, OTHER = "1\t0/380000\tx\n", "1\t0/380000\tx\n2\t0/390000\tx\n"
LONG, SHORT = (3, "1 0/380000\n2 0/480000"), (3, "1 0/380000")


def test_wal_of_a_later_timeline_that_the_new_primary_left_is_named(directory: Path, archive: Path) -> None:
    """The age of a backup decides which failover is looked at: what a later one lost must not be "nothing"."""
    old = replace(inspect(directory, None), history=(Span(1, 0),))

    def is_named(
        timeline: int, number: int, history: str | None, new: tuple[int, str], named: str, is_read: bool = True
    ) -> None:
        for path in archive.iterdir():
            path.unlink()
        wal(archive, number, timeline=timeline)
        path = archive / segment(timeline, number, SEGMENT)
        if is_read:
            with path.open("r+b") as file:
                file.write(PAGE_HEADER.pack(0xD110, 0, timeline, number * SEGMENT, 0))
        else:
            path.rename(path.with_name(f"{path.name}.gz"))
        if history:
            (archive / f"{timeline:08X}.history").write_text(history)
        says = elsewhere(old, read_history(*new), archive, wal_files(old, archive), unread_files(old, archive))
        assert len(says) == bool(named) and all(named in one for one in says)

    rows = [
        (2, 5, None, LONG, "timeline 2 goes on behind 0/480000"),
        (2, 5, None, LONG, "timeline 2 goes on behind 0/480000", False),
        (2, 3, None, LONG, ""),  # the new primary has that
        (3, 5, None, LONG, ""),  # and its own
        (1, 5, None, LONG, ""),  # the old one's is read
        (2, 5, LATER, SHORT, "timeline 2 goes on behind 0/380000"),
        (4, 5, OTHER, SHORT, "timeline 4 goes on behind 0/390000"),
        (4, 5, "2\t0/380000\n", SHORT, ""),  # of another lineage
        (2, 5, None, SHORT, "timeline 2 goes on behind 0/0"),  # of which nothing is known
    ]
    every(rows, is_named)


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


def test_wal_in_a_form_that_is_not_read_is_known_to_be_there(directory: Path) -> None:
    """What can be read must not be all that is known to exist: the rest would be "nothing was lost"."""
    old, span = replace(inspect(directory, None), history=(Span(1, 0),)), Span(1, 3 * SEGMENT)

    def is_known(form: str) -> None:
        for path in (directory / "pg_wal").iterdir():
            path.unlink()
        for number in (3, 4):
            (directory / "pg_wal" / form.format(segment(1, number, SEGMENT))).write_bytes(b"short")
        for note in (".00000028.backup", ".ready", ".done"):
            (directory / "pg_wal" / f"{segment(1, 4, SEGMENT)}{note}").touch()
        unread = unread_files(old, None)
        assert [path.name for path in unread] == [form.format(segment(1, n, SEGMENT)) for n in (3, 4)]
        for end, first in ((4 * SEGMENT - 1, 3), (4 * SEGMENT, 4), (5 * SEGMENT - 1, 4)):
            assert form.format(segment(1, first, SEGMENT)) in not_read(unread, span, end, SEGMENT)[0]
        assert not_read(unread, span, 5 * SEGMENT, SEGMENT) == not_read(unread, Span(2, 0), 0, SEGMENT) == []
        first_name = form.format(segment(1, 3, SEGMENT))
        with pytest.raises(MachineError, match=f"{first_name} is compressed, cut off or no file"):
            needed_wal(old, (Span(1, 0x310000),), wal_files(old, None), unread)

    every(["{}.gz", "{}.partial", "{}.gz.partial", "{}-0123abcd.zst", "{}"], is_known)


def test_a_segment_that_was_not_full_yet_stands_in_where_no_full_one_is(directory: Path, archive: Path) -> None:
    wal(archive, 3, 4)
    for number, folder in ((3, directory / "pg_wal"), (4, archive), (5, archive)):
        wal(archive, 9)
        (archive / segment(1, 9, SEGMENT)).rename(folder / f"{segment(1, number, SEGMENT)}.partial")
    files = wal_files(inspect(directory, None), archive)
    assert [files[segment(1, n, SEGMENT)].name[24:] for n in (3, 4, 5)] == ["", "", ".partial"]


def log(folder: Path, *xids: int, cut: int | None = None) -> Path:
    """Segment 3 with a commit of each of these transactions, the last one cut off after so many bytes of it."""
    written = WalWriter(3 * SEGMENT)
    for xid in xids:
        written.add(Manager.TRANSACTION, COMMIT, xid, ended(xid).data, end=cut if xid == xids[-1] else None)
    path = folder / segment(1, 3, SEGMENT)
    path.write_bytes(b"".join(bytes(page) for page in written.pages.values()).ljust(SEGMENT, b"\0"))
    return path


def test_of_two_files_of_a_name_the_one_that_goes_on_with_the_same_is_read(directory: Path, archive: Path) -> None:
    old = replace(inspect(directory, None), major=18)

    def is_read(own: tuple[int, ...], archived: tuple[int, ...], read: str) -> None:
        log(directory / "pg_wal", *own)
        log(archive, *archived)
        ((_, path),) = wal_files(old, archive).items()
        assert path.parent.name == read
        assert wal_files(old, archive, 4 * SEGMENT)[path.name].parent.name == "pg_wal"

    rows = [
        ((7, 8), (7, 8, 9), "archive"),
        ((7, 8, 9), (7, 8), "pg_wal"),
        ((7, 8), (7, 8), "pg_wal"),
        ((7, 8), (7, 6, 9), "pg_wal"),  # another server's, promoted to a timeline of the same number
        ((), (7, 8), "archive"),  # made to be used later
    ]
    every(rows, is_read)
    own, whole = log(directory / "pg_wal", 7, 8, 9), log(archive, 7, 8, 9)
    with own.open("r+b") as file:
        file.seek(150)
        file.write(bytes([own.read_bytes()[150] ^ 1]))
    assert wal_files(old, archive) == {own.name: whole}, "a damaged one is not read"
    log(directory / "pg_wal", 7, 8, cut=30)
    assert wal_files(old, archive) == {own.name: whole}, "nor one that was cut off"


def test_a_standbys_disk_does_not_tell_that_nothing_was_lost(tmp_path: Path) -> None:
    def is_told(state: str, told: bool) -> None:
        old: Any = SimpleNamespace(control={"Database cluster state": state}, segment_size=SEGMENT, directory=tmp_path)
        assert bool(ends_elsewhere(old, {}, Span(1, 0, None), SEGMENT)) == told

    standbys = [("in archive recovery", True), ("shut down in recovery", True)]
    every([*standbys, ("in crash recovery", False), ("in production", False)], is_told)
