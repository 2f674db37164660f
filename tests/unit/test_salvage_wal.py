"""`walproof salvage`: records of WAL, and where it ends."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.data_directory import SEGMENT, wal
from tests.fixtures.tiers import every, many
from tests.fixtures.wal_writer import (
    ABORT,
    ABORT_PREPARED,
    COMMIT,
    COMMIT_PREPARED,
    DELETE,
    INSERT,
    SYSTEM,
    TABLE,
    UPDATE,
    WalWriter,
    ended,
    prepare,
    read,
    running,
    wrote,
)  # fmt: skip
from walproof.salvaging.salvage import read_wal
from walproof.salvaging.timelines import Span, segment
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_folders import goes_on
from walproof.salvaging.wal_records import PAGE, Manager, Record, WalReader, record_end

# WAL


def folded(*records: Record, **given: Any) -> LostWal:
    lost = LostWal(0x200, **given)
    for one in records:
        lost.add(one)
    return lost


def of(manager: Manager, kind: int, data: bytes, lsn: int = 0x210, xid: int = 0) -> Record:
    return Record(lsn, lsn + 8, xid, manager, kind, (), data)


def test_lost_are_commits_after_the_fork_with_what_their_subtransactions_wrote_before_it() -> None:
    lost = folded(
        running(10), wrote(10, INSERT, 7, lsn=0x110), wrote(11, INSERT, 8, lsn=0x120), ended(11, lsn=0x130),
        wrote(12, DELETE, 9, item=3), wrote(13, UPDATE, 11, 10, item=4), wrote(14, INSERT, 0, of=(1663, 5, 16390)),
        wrote(15, INSERT, 0, of=(1663, 5, 1259)), ended(14, ABORT, at=1), ended(10, COMMIT, 12, 13, at=2),
        ended(15, COMMIT, at=3.5),
    )  # fmt: skip
    assert (lost.commits, lost.subtransactions, lost.xids) == (2, 2, {10, 12, 13, 15})
    assert lost.blocks == {TABLE: {7, 9, 10, 11}}
    assert lost.ended == {TABLE: {(9, 3): 1, (10, 4): 1}}
    assert (lost.ddl(5), lost.ddl(0), lost.times) == (1, 0, (946684802.0, 946684803.5))
    assert (lost.next_xid, lost.all_blocks_known) == (12, True)
    assert not folded(running(10), ended(9)).all_blocks_known, "one was open before what was read"
    twice = folded(*(one for xid in (7, 8) for one in (wrote(xid, DELETE, 9, item=3), ended(xid))))
    assert twice.ended == {TABLE: {(9, 3): 2}}, "a place held two versions"


def test_catalogs_that_all_databases_share_are_none_of_a_database() -> None:
    """A lost REVOKE was told nowhere; any DDL writes who owns what, and VACUUM FULL gives a catalog another number."""
    written = [(7, (1664, 0, 1260)), (8, (1664, 0, 16999)), (9, (1664, 0, 1214)), (10, (1663, 5, 17000)), (11, TABLE)]
    lost = folded(*(one for xid, of in written for one in (wrote(xid, INSERT, 0, of=of), ended(xid))))
    lost.catalogs.add((5, 17000))
    assert (lost.ddl(0), lost.ddl(5), lost.ddl(6), lost.databases) == (2, 1, 0, {5})


def test_what_was_prepared_before_the_fork_is_told_from_what_was_prepared_after_it() -> None:
    prepared = prepare(7, "a gid", lsn=0x200)
    deleted, done = wrote(7, DELETE, 9, item=3, lsn=0x110), ended(0, COMMIT_PREPARED, prepared=7)
    assert folded(prepared).prepared == {7: "a gid"}
    held = folded(deleted, done, held={7})
    # What the new primary holds as prepared is not lost: as SQL its rows would wait for it, or come twice.
    assert (held.prepared_before, held.xids, held.ended, held.commits) == ({7}, set(), {}, 0)
    for one in (folded(deleted, done), folded(prepared, deleted, done, held={7})):
        assert (one.prepared_before, one.prepared, one.xids, one.commits) == (set(), {}, {7}, 1)
        assert one.ended == {TABLE: {(9, 3): 1}}
    assert folded(deleted, ended(0, ABORT_PREPARED, prepared=7), held={7}).rolled_back_before == {7}
    both = folded(deleted, done, on_both={7})  # given back, its rows would come twice
    assert (both.xids, both.ended, both.commits, both.prepared_at_fork) == (set(), {}, 0, set())
    # With its subtransactions, whether its PREPARE was read or not; not what ended before the fork, or began after it.
    before, after = (prepare(7, "g", lsn=lsn) for lsn in (0x110, 0x210))
    done = ended(0, COMMIT_PREPARED, 8, 9, prepared=7)
    ended_before = ended(0, COMMIT_PREPARED, 8, 9, prepared=7, lsn=0x118)
    assert [folded(*some).prepared_at_fork for some in ([done], [before, done])] == [{7, 8, 9}] * 2
    rest: list[list[Record]] = [[after, done], [before, ended_before], [before]]
    assert [folded(*some).prepared_at_fork for some in rest] == [set()] * 3


def test_what_single_records_tell() -> None:
    def left(kind: int, flags: int, is_moved: bool) -> None:
        """A row that left for another partition."""
        assert folded(wrote(7, kind, 9, flags=flags)).moved == ({7} if is_moved else set())

    every([(DELETE, 0x10, True), (DELETE, 0x12, True), (DELETE, 0x02, False), (UPDATE, 0x10, False)], left)

    def database(lsn: int, numbers: tuple[int, ...], is_told: bool) -> None:
        lost = folded(of(Manager.DATABASE, 0, struct.pack("=IIII", *numbers), lsn, 7))
        assert any("moved to another tablespace" in one for one in lost.undecided) == is_told

    moved = (16384, 16390, 16384, 1663)
    every([(0x210, moved, True), (0x110, moved, False), (0x210, (16384, 1663, 1, 1663), False)], database)

    def dropped(major: int, length: int) -> None:
        """Statistics that a commit drops are passed over."""
        data = struct.pack(f"=qI I{length}x I", 0, 256 | 16, 1, 7)
        lost = folded(of(Manager.TRANSACTION, COMMIT_PREPARED | 0x80, data, 0x300), major=major)
        assert lost.xids == {7}

    every([(14, 12), (15, 12), (18, 16)], dropped)


def test_transaction_ids_go_round_at_2_32() -> None:
    def known(known_from: int, xid: int, is_known: bool) -> None:
        lost = folded(running(known_from), wrote(4, INSERT, 7, lsn=0x110), ended(xid))
        assert lost.all_blocks_known == is_known
        assert lost.next_xid == (5 if known_from > 5 else known_from)

    rows = [(4294967000, 5, True), (5, 4294967000, False), (4294967290, 4294967291, True)]
    every([*rows, (4294967290, 4294967289, False)], known)


def of_xlog(kind: int, lsn: int = 0x100) -> Record:
    """A checkpoint whose next transaction id is 9, or another record of XLOG."""
    return of(Manager.XLOG, kind, struct.pack("=QIIIIQ", 0x50, 1, 1, 1, 1, 9), lsn)


def test_wal_that_was_written_over_what_was_lost_at_a_crash_is_not_what_was_lost() -> None:
    lost = folded(of_xlog(0x10))
    assert (lost.known_from, lost.next_xid) == (None, 9), "a checkpoint's next id is from when it began"

    def crashed(before: int, kinds: tuple[int, ...], at: int) -> None:
        assert folded(*(of_xlog(kind, 0x210 - before + 8 * n) for n, kind in enumerate(kinds))).crashed_at == at

    every([(0, (0x00, 0x00), 0x210), (0, (0xD0, 0x00), 0x210), (0x100, (0x00,), 0), (0, (0x10, 0x40), 0)], crashed)


def test_files_made_after_the_fork_and_tablespaces_that_replaying_would_make_are_kept() -> None:
    def made(lsn: int, *numbers: int) -> LostWal:
        return folded(of(Manager.STORAGE, 0x10, struct.pack("=IIII", *numbers), lsn), redo=0x180)

    assert {words: made(*words).created for words in (
        (0x210, 1663, 5, 16400, 0), (0x210, 16390, 5, 16400, 0), (0x210, 1663, 5, 16400, 1),
        (0x210, 1663, 5, 16400, 3), (0x210, 1664, 0, 16400, 0), (0x110, 1663, 5, 16400, 0),
    )} == {
        (0x210, 1663, 5, 16400, 0): {(1663, 5, 16400)}, (0x210, 16390, 5, 16400, 0): {(16390, 5, 16400)},
        (0x210, 1663, 5, 16400, 1): set(),  # another fork of it than the rows
        (0x210, 1663, 5, 16400, 3): {(1663, 5, 16400)}, (0x210, 1664, 0, 16400, 0): set(),
        (0x110, 1663, 5, 16400, 0): set(),
    }  # fmt: skip
    assert folded(of(Manager.STORAGE, 0x20, bytes(20)), redo=0x180).created == set()
    place = b"\x06\x40\0\0/mnt/fast\0"
    spaces = [of(Manager.TABLESPACE, 0, place, 0x180), of(Manager.TABLESPACE, 0, place, 0x178)]
    told = [folded(one, redo=0x180).tablespaces for one in (*spaces, of(Manager.TABLESPACE, 0x10, place[:4]))]
    assert told == [['16390 "/mnt/fast"'], [], []]


def test_a_file_made_before_the_fork_is_of_lost_work_where_its_transaction_is() -> None:
    """A CLUSTER or ALTER TABLE during which the primary was cut off makes its file before, and commits after."""

    def whose(by: int, record: Record, created: bool, of_whom: bool) -> None:
        lost = folded(running(5), of(Manager.STORAGE, 0x10, struct.pack("=IIII", *TABLE, 0), 0x110, by), record,
                      held={9})  # fmt: skip
        assert (lost.created, lost.of_whom) == ({TABLE} if created else set(), {TABLE} if of_whom else set())
        assert lost.knows(TABLE) == (not created and not of_whom)

    rows = [
        (7, ended(7), True, False),
        (8, ended(7, COMMIT, 8), True, False),  # its subtransaction
        (7, ended(7, lsn=0x180), False, False),  # before the fork
        (7, ended(7, ABORT), False, False),
        (8, ended(7), False, False),
        (0, ended(7), False, True),  # nobody's
        (7, ended(0, COMMIT_PREPARED, prepared=7), False, True),  # on both
        (9, ended(0, COMMIT_PREPARED, prepared=9), False, False),  # held
    ]
    every(rows, whose)


def test_a_span_that_ends_too_early_is_told() -> None:
    lost = folded(ended(7, lsn=0x208))
    lost.close(0x210)
    assert lost.undecided == []
    lost.close(0x211)
    assert lost.undecided == ["the WAL was read up to 0/210, and needed up to 0/211"]


# Records


def test_records_of_any_length_are_read_over_pages_and_segments() -> None:
    """Each length ends at another place of a page, some in its header; 16 kB and more go over several."""
    written = WalWriter(SEGMENT)
    lengths = [*range(0, 300, 7), 8192, 8100, 60000, *range(7900, 8300, 13), SEGMENT, 5]
    places = [
        written.add(Manager.HEAP if n % 2 else 21, 0x80, n, bytes([n % 256]) * length, [(TABLE, n), ((1, 2, 3), 9)])
        for n, length in enumerate(lengths)
    ]
    found = read(written, SEGMENT)
    assert [(one.lsn, one.xid) for one in found] == [(place, n) for n, place in enumerate(places)]
    assert found[-1].end == written.at
    expected = [(((TABLE, n), ((1, 2, 3), 9)), bytes([n % 256]) * length) if n % 2 else ((), b"")
                for n, length in enumerate(lengths)]  # fmt: skip
    assert [(one.blocks, one.data) for one in found] == expected
    assert [one.lsn for one in read(written, places[50], places[60])] == places[50:60]


def test_a_segment_ends_behind_a_switch() -> None:
    written = WalWriter(SEGMENT)
    written.add(Manager.XLOG, 0x40)
    written.at = 2 * SEGMENT
    behind = written.add(Manager.TRANSACTION)
    assert [(one.lsn, one.end) for one in read(written, SEGMENT)] == [(SEGMENT + 40, 2 * SEGMENT), (behind, written.at)]


def three(timeline: int = 3) -> WalWriter:
    written = WalWriter(SEGMENT, timeline=timeline)
    for n, length in enumerate((100, 100, 12000)):
        written.add(Manager.TRANSACTION, 0, n, bytes(length))
    return written


WHOLE = read(three(), SEGMENT)


@given(st.integers(0, 1), st.integers(0, PAGE - 1), st.integers(0, 7), st.booleans())
@settings(max_examples=many(200, 3000))
def test_reading_ends_at_the_first_record_that_is_not_whole(page: int, at: int, bit: int, is_cut: bool) -> None:
    """Any bit of any page is flipped, or the segment ends there: what is read is what was written, up to that."""
    written = three()
    raw = written.pages[SEGMENT + page * PAGE]
    if is_cut:
        del raw[at:]
    else:
        raw[at] ^= 1 << bit
    found, damaged = read(written, SEGMENT), SEGMENT + page * PAGE + at
    assert found == WHOLE[: len(found)]
    assert len(found) >= sum(one.end <= damaged for one in WHOLE) or (page, at // 40) == (0, 0), "its header has 40"


def test_what_a_bit_of_a_header_means() -> None:
    def reads(page: int, at: int, bits: int, read_of_it: int) -> None:
        written = three()
        written.pages[SEGMENT + page * PAGE][at] ^= bits
        assert len(read(written, SEGMENT)) == read_of_it

    rows = [
        (1, 16, 0, 3),  # nothing
        (1, 4000, 1, 2), (0, 200, 1, 1),  # within a record
        (1, 0, 1, 2), (0, 8, 1, 0), (0, 24, 1, 0), (0, 34, 0x30, 0),  # of another version, place, cluster, size
        (1, 2, 1, 2), (1, 10, 1, 2), (1, 16, 1, 2),  # no page goes on, of another place, the rest is shorter
        (1, 4, 7, 2), (1, 4, 1, 2),  # a timeline to come, and an earlier one
    ]  # fmt: skip
    every(rows, reads)


def test_a_segment_of_another_cluster_is_not_read_from_its_middle_on_either() -> None:
    written = WalWriter(SEGMENT)
    places = [written.add(Manager.TRANSACTION, 0, n, bytes(3000)) for n in range(20)]
    assert len(read(written, places[10])) == 10
    written.pages[SEGMENT][24] ^= 1
    assert read(written, places[10]) == []


def test_a_record_that_a_crash_cut_off_is_left_out_where_the_next_page_begins_anew() -> None:
    written = WalWriter(SEGMENT)
    first = written.add(Manager.TRANSACTION, 0, 7, bytes(100))
    written.add(Manager.TRANSACTION, 0, 8, bytes(12000), end=5000)
    written.last, written.at = first, SEGMENT + PAGE
    last = written.add(Manager.XLOG, 0xD0)
    written.pages[SEGMENT + PAGE][2] |= 0x08
    assert [one.lsn for one in read(written, SEGMENT)] == [first, last]


def test_reading_begins_anew_behind_a_segment_that_recovery_does_not_need() -> None:
    def begins(at: int) -> None:
        written = WalWriter(SEGMENT)
        first = [written.add(Manager.TRANSACTION, COMMIT, n, ended(n).data + bytes(4000)) for n in range(1000, 1600)]
        needed = next(lsn for lsn in first if lsn > 2 * SEGMENT)
        fork = written.add(Manager.TRANSACTION, COMMIT, 7, ended(7).data)
        written.pages[SEGMENT][at] ^= 1
        old = SimpleNamespace(segment_size=SEGMENT, major=18, system=SYSTEM, redo=needed, written=fork, control={})
        plan = SimpleNamespace(old=old, spans=(Span(1, fork, 9 * SEGMENT),), begin=SEGMENT, present={}, unread={})
        plan.reads = (Span(1, min(needed, fork), 9 * SEGMENT),)
        lost = read_wal(SimpleNamespace(wal=lambda _: written.read), plan)  # type: ignore[arg-type]
        assert (lost.xids, lost.undecided) == ({7}, [])

    every([5000, 24], begins)  # damaged, and another cluster's


def test_images_are_passed_over_whether_they_are_compressed_or_not() -> None:
    def block(number: int, info: int, more: bytes) -> bytes:
        return struct.pack("=BBHHHB", number, 0x10, 0, 4, 0, info) + more + struct.pack("=IIII", *TABLE, number)

    heads = block(0, 0x01, b"") + block(1, 0x05, b"\0\0") + block(2, 0x04, b"") + struct.pack("=BHBB", 253, 1, 255, 2)
    reader = WalReader(18, 7, 1, SEGMENT, lambda *_: b"")
    assert reader._decoded(heads + bytes(12) + b"ab") == (tuple((TABLE, n) for n in range(3)), b"ab")
    heads = block(0, 0x03, b"\0\0") + block(1, 0x05, b"") + struct.pack("=BI", 252, 7) + struct.pack("=BB", 255, 2)
    assert WalReader(14, 7, 1, SEGMENT, lambda *_: b"")._decoded(heads + bytes(8) + b"ab")[1] == b"ab"


def test_records_end_behind_the_headers_of_the_pages_they_go_over() -> None:
    ends = {
        (0x100, 50): 0x138, (0x1FC0, 64): 0x2000, (0x1FC0, 65): 0x2020, (0x1FF8, 8192): 0x4028,
        (SEGMENT - 8, 16): SEGMENT + 48, (SEGMENT - 8, 8200): SEGMENT + 8192 + 24 + 40,
    }  # fmt: skip
    assert {of: record_end(*of, SEGMENT) for of in ends} == ends


def pages(folder: Path, written: dict[int, int], record: tuple[int, int] | None = None) -> dict[str, Path]:
    """Segments 3 and 4 with the position in these pages' headers, and a record's length at a place, which goes on."""
    wal(folder, 3, 4)
    for address, said in written.items():
        left = 0
        if record:
            left = record[1] - (PAGE - record[0] % PAGE) - (PAGE - 24) * (address // PAGE - record[0] // PAGE - 1)
        put(folder, address + 2, struct.pack("=HIQI", 1 if left > 0 else 0, 1, said, max(left, 0)))
    if record:
        put(folder, record[0], record[1].to_bytes(4, "little"))
    return {name: folder / name for name in (segment(1, 3, SEGMENT), segment(1, 4, SEGMENT))}


def put(folder: Path, address: int, raw: bytes) -> None:
    with (folder / segment(1, address // SEGMENT, SEGMENT)).open("r+b") as file:
        file.seek(address % SEGMENT)
        file.write(raw)


def more_behind(files: dict[str, Path], end: int) -> bool:
    return goes_on(files, Span(1, 3 * SEGMENT, 5 * SEGMENT), end, SEGMENT)


PAGE_3 = 3 * SEGMENT + 0x4000
NEXT, AFTER = PAGE_3 + 0x2000, PAGE_3 + 0x4000


BEHIND, LAST = PAGE_3 + 0x100, 5 * SEGMENT


def test_wal_that_goes_on_after_the_place_where_reading_ended_is_seen(tmp_path: Path) -> None:
    at_3, next_too = {PAGE_3: PAGE_3}, {PAGE_3: PAGE_3, NEXT: NEXT}
    rows: list[tuple[int, dict[int, int], tuple[int, int] | None, bool]] = [
        (BEHIND, at_3, None, False),
        (BEHIND, at_3 | {NEXT: 0x4000, AFTER: 0x6000}, None, False),  # recycled
        (BEHIND, next_too, None, True),
        (BEHIND, at_3 | {4 * SEGMENT: 4 * SEGMENT}, None, True),
        (BEHIND, at_3, (BEHIND, 80), True),  # whole, and damaged
        (BEHIND, at_3, (BEHIND, 7), True),
        (BEHIND, at_3, (BEHIND, 0x7FFFFFFF), True),
        (BEHIND, at_3, (BEHIND, 9000), False),  # a crash, within the record
        (BEHIND, next_too, (BEHIND, 9000), True),
        (BEHIND, next_too, (BEHIND, 20000), False),
        (BEHIND, next_too | {AFTER: AFTER}, (BEHIND, 20000), True),
        (PAGE_3, {PAGE_3: 0x4000}, None, False),
        (PAGE_3, at_3, None, False),
        (PAGE_3, at_3, (PAGE_3 + 24, 80), True),
        (LAST, {}, None, True),  # the next segment is made at once
        (LAST - 8, {LAST - 0x2000: LAST - 0x2000}, (LAST - 8, 80), True),
    ]

    def goes(end: int, written: dict[int, int], record: tuple[int, int] | None, more: bool) -> None:
        assert more_behind(pages(tmp_path, written, record), end) == more

    every(rows, goes)


def test_a_record_whose_length_is_damaged_hides_none_behind_it(tmp_path: Path) -> None:
    """One bit of it, or zeros in its place: what looks like a crash within it has records, or other pages, behind."""
    written = WalWriter(PAGE_3)
    for n in range(3):
        written.add(Manager.TRANSACTION, COMMIT, n, bytes(100))
    page = written.pages[PAGE_3]
    end = PAGE_3 + 24
    for length in (0, (1 << 20) + 132, 132):
        page[24:28] = length.to_bytes(4, "little")
        files = pages(tmp_path, {})
        put(tmp_path, PAGE_3, bytes(page))
        assert more_behind(files, end)
    page[24 + 8 :] = bytes(PAGE - 32)  # a crash within it: nothing is behind
    page[24:28] = ((1 << 19) + 132).to_bytes(4, "little")
    put(tmp_path, PAGE_3, bytes(page))
    assert not more_behind(files, end)
    put(tmp_path, NEXT + 2, struct.pack("=HIQI", 1, 1, NEXT, 5))
    assert more_behind(files, end), "another record goes on there"
