"""`walproof salvage`: timelines, WAL as pg_waldump prints it, and where it ends."""

from pathlib import Path

import pytest

from tests.fixtures.data_directory import SEGMENT, wal
from walproof.salvaging.data_directory import goes_on
from walproof.salvaging.wal import LostWal, Span, lost_spans, position, read_history, record_end, segment

# Timelines


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ((1, ""), (2, "1 0/30 x"), (Span(1, 0x30),)),
        ((1, ""), (3, "1\t0/30\n2\t0/40"), (Span(1, 0x30),)),
        ((2, "1 0/30"), (3, "1 0/30\n2 0/40"), (Span(2, 0x40),)),
        ((3, "1 0/30\n2 0/50"), (4, "1 0/30\n2 0/40"), (Span(2, 0x40, 0x50), Span(3, 0x50))),
        ((2, "1 0/40"), (3, "1 0/30"), (Span(1, 0x30, 0x40), Span(2, 0x40))),
        ((2, "1 0/30"), (3, "1 0/40"), (Span(2, 0x30),)),
        ((2, "1 0/30"), (2, "1 0/30"), ()),
        ((1, ""), (1, ""), ()),
    ],
)
def test_what_the_old_history_has_and_the_new_one_has_not(
    old: tuple[int, str], new: tuple[int, str], lost: tuple[Span, ...]
) -> None:
    assert lost_spans(read_history(*old), read_history(*new)) == lost


@pytest.mark.parametrize("text", ["1", "x 0/30", "1 zz", "2 0/30", "1 0/40\n1 0/50", "0 0/30", "1 0/123456789"])
def test_a_history_that_postgresql_would_not_read_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not in order|no WAL position"):
        read_history(2, text)


def test_histories_without_a_timeline_in_common_have_no_fork() -> None:
    with pytest.raises(ValueError, match="no timeline"):
        lost_spans((Span(2, 0),), (Span(1, 0),))


# WAL


def line(manager: str, xid: int, lsn: str, text: str, before: str = "0/00000000") -> str:
    return f"rmgr: {manager:11} len (rec/tot):     8/    8, tx: {xid:10}, lsn: {lsn}, prev {before}, desc: {text}\n"


def add(lost: LostWal, *lines: str) -> None:
    """The lines, each as the first of a span: it follows no other."""
    for one in lines:
        lost._last = ""
        lost.add(one)


def test_lost_are_commits_after_the_fork_with_what_their_subtransactions_wrote_before_it() -> None:
    lost = LostWal(position("0/200"), SEGMENT)
    for one in (
        line("Standby", 0, "0/00000100", "RUNNING_XACTS nextXid 10 latestCompletedXid 9 oldestRunningXid 10"),
        line("Heap", 10, "0/00000110", "INSERT off 1 flags 0x00, blkref #0: rel 1663/5/16384 blk 7"),
        line("Heap", 11, "0/00000120", "INSERT off: 2, flags: 0x00, blkref #0: rel 1663/5/16384 blk 8"),
        line("Transaction", 11, "0/00000130", "COMMIT 2026-11-26 07:00:00.000000 UTC"),
        line("Heap", 12, "0/00000210", "DELETE off 3 flags 0x00 KEYS_UPDATED , blkref #0: rel 1663/5/16384 blk 9"),
        line("Heap", 13, "0/00000220", "UPDATE old_xmax: 13, old_off: 4, new_off: 5, "
             "blkref #0: rel 1663/5/16384 blk 11, blkref #1: rel 1663/5/16384 blk 10"),
        line("Heap", 14, "0/00000230", "INSERT off: 2, flags: 0x00, blkref #0: rel 1663/5/16390 blk 0"),
        line("Heap", 15, "0/00000240", "INSERT off: 2, flags: 0x00, blkref #0: rel 1663/5/1259 blk 0"),
        line("Transaction", 14, "0/00000250", "ABORT 2026-11-26 07:00:01.000000 UTC"),
        line("Transaction", 10, "0/00000260", "COMMIT 2026-11-26 07:00:02.000000 UTC; subxacts: 12 13"),
        line("Transaction", 15, "0/00000270", "COMMIT 2026-11-26 07:00:03.500000 UTC; inval msgs: catcache 80"),
        "pg_waldump: first record is after 0/100\n",
    ):  # fmt: skip
        add(lost, one)
    table = (1663, 5, 16384)
    assert (lost.commits, lost.subtransactions, lost.xids) == (2, 2, {10, 12, 13, 15})
    assert lost.blocks == {table: {7, 9, 10, 11}}
    assert lost.ended == {table: {(9, 3): 1, (10, 4): 1}}
    assert lost.ddl == {5: 1}
    assert lost.times is not None
    assert lost.times[1] - lost.times[0] == 1.5
    assert (lost.next_xid, lost.all_blocks_known) == (12, True)


@pytest.mark.parametrize(
    "first", ["COMMIT_PREPARED 7: 2026-11-26 07:00:00 UTC", "COMMIT_PREPARED 7: 2026-11-26 07:00:00 UTC; sync"]
)
def test_what_was_prepared_before_the_fork_is_told_from_what_was_prepared_after_it(first: str) -> None:
    held, gone, after = (LostWal(0x200, SEGMENT, held=held) for held in ({7}, (), {7}))
    add(after, line("Transaction", 7, "0/00000200", "PREPARE gid x: 2026-11-26 07:00:00 UTC"))
    assert after.prepared == {7}
    for one in (held, gone, after):
        add(one, line("Heap", 7, "0/00000110", "DELETE off 3 flags 0x00, blkref #0: rel 1663/5/16384 blk 9"))
        add(one, line("Transaction", 0, "0/00000210", first))
    # What the new primary holds as prepared is not lost: as SQL its rows would wait for it, or come twice.
    assert (held.prepared_before, held.xids, held.ended, held.commits) == ({7}, set(), {}, 0)
    for one in (gone, after):
        assert (one.prepared_before, one.prepared, one.xids, one.commits) == (set(), set(), {7}, 1)
        assert one.ended == {(1663, 5, 16384): {(9, 3): 1}}


def test_a_place_that_held_two_versions_ended_two() -> None:
    lost, place = LostWal(0x200, SEGMENT), "blkref #0: rel 1663/5/16384 blk 9"
    for at, xid in enumerate((7, 8), 1):
        add(lost, line("Heap", xid, f"0/000002{at}0", f"DELETE off 3 flags 0x00, {place}"))
        add(lost, line("Heap", xid, f"0/000002{at}4", f"DELETE off 3 flags 0x00, {place}"))
        add(lost, line("Transaction", xid, f"0/000002{at}8", "COMMIT 2026-11-26 07:00:00 UTC"))
    assert lost.ended == {(1663, 5, 16384): {(9, 3): 2}}


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("DELETE off 3 flags 0x10 KEYS_UPDATED ,", {7}),
        ("DELETE xmax: 7, off: 3, infobits: [KEYS_UPDATED], flags: 0x12,", {7}),
        ("DELETE xmax: 7, off: 3, infobits: [KEYS_UPDATED], flags: 0x02,", set()),
        ("UPDATE old_xmax: 7, old_off: 3, old_flags: 0x10, new_off: 4, flags: 0x10,", set()),
    ],
)
def test_a_row_that_left_for_another_partition(text: str, moved: set[int]) -> None:
    lost = LostWal(0x200, SEGMENT)
    add(lost, line("Heap", 7, "0/00000210", f"{text} blkref #0: rel 1663/5/16384 blk 9"))
    assert lost.moved == moved


@pytest.mark.parametrize(
    ("at", "text", "is_told"),
    [
        ("0/00000210", "CREATE_FILE_COPY copy dir 1663/16384 to 16390/16384", True),
        ("0/00000210", "CREATE copy dir 1663/16384 to 16390/16384", True),
        ("0/00000110", "CREATE_FILE_COPY copy dir 1663/16384 to 16390/16384", False),
        ("0/00000210", "CREATE_FILE_COPY copy dir 1663/1 to 1663/16384", False),
        ("0/00000210", "CREATE_FILE_COPY copy dir 1663/1638 to 16390/16384", False),
    ],
)
def test_a_database_that_moved_makes_it_undecided(at: str, text: str, is_told: bool) -> None:
    lost = LostWal(0x200, SEGMENT)
    add(lost, line("Database", 7, at, text))
    assert any("moved to another tablespace" in one for one in lost.undecided) == is_told


def test_a_transaction_that_was_open_before_what_was_read_makes_every_block_a_candidate() -> None:
    lost = LostWal(0x200, SEGMENT)
    add(lost, line("Standby", 0, "0/00000100", "RUNNING_XACTS nextXid 10 latestCompletedXid 8 oldestRunningXid 9"))
    add(lost, line("Transaction", 9, "0/00000210", "COMMIT 2026-11-26 07:00:00 UTC"))
    assert not lost.all_blocks_known


@pytest.mark.parametrize(
    ("known_from", "xid", "known"),
    [(4294967000, 5, True), (5, 4294967000, False), (4294967290, 4294967291, True), (4294967290, 4294967289, False)],
)
def test_transaction_ids_go_round_at_2_32(known_from: int, xid: int, known: bool) -> None:
    lost = LostWal(0x200, SEGMENT)
    add(lost, line("Standby", 0, "0/00000100", f"RUNNING_XACTS nextXid {known_from} latestCompletedXid 8"))
    add(lost, line("Heap", 4, "0/00000110", "INSERT off 1 flags 0x00, blkref #0: rel 1663/5/16384 blk 7"))
    add(lost, line("Transaction", xid, "0/00000210", "COMMIT 2026-11-26 07:00:00 UTC"))
    assert lost.all_blocks_known == known
    assert lost.next_xid == (5 if known_from > 5 else known_from)


def test_a_checkpoints_next_transaction_id_is_from_when_it_began() -> None:
    lost = LostWal(0x200, SEGMENT)
    add(lost, line("XLOG", 0, "0/00000100", "CHECKPOINT_ONLINE redo 0/50; tli 1; prev tli 1; fpw true; xid 0:9; oid 1"))
    assert (lost.known_from, lost.next_xid) == (None, 9)


@pytest.mark.parametrize(
    ("manager", "lsn", "text", "created", "tablespaces"),
    [
        ("Storage", "0/00000210", "CREATE base/5/16400", {(1663, 5, 16400)}, []),
        ("Storage", "0/00000210", "CREATE pg_tblspc/16390/PG_15_202209061/5/16400", {(16390, 5, 16400)}, []),
        ("Storage", "0/00000210", "CREATE base/5/16400_fsm", set(), []),
        ("Storage", "0/00000110", "CREATE base/5/16400", set(), []),
        ("Storage", "0/00000210", "TRUNCATE base/5/16400 to 0 blocks flags 7", set(), []),
        ("Tablespace", "0/00000180", 'CREATE 16390 "/mnt/fast"', set(), ['16390 "/mnt/fast"']),
        ("Tablespace", "0/00000178", 'CREATE 16390 "/mnt/fast"', set(), []),
        ("Tablespace", "0/00000210", "DROP 16390", set(), []),
    ],
)
def test_files_made_after_the_fork_and_tablespaces_that_replaying_would_make_are_kept(
    manager: str, lsn: str, text: str, created: set[tuple[int, int, int]], tablespaces: list[str]
) -> None:
    lost = LostWal(0x200, SEGMENT, redo=0x180)
    add(lost, line(manager, 0, lsn, text))
    assert (lost.created, lost.tablespaces) == (created, tablespaces)


FIRST = line("XLOG", 0, "0/00000200", "NOOP", "0/000001F0")
NEXT_ONE = line("Transaction", 7, "0/00000208", "COMMIT 2026-11-26 07:00:00 UTC", "0/00000200")
FALSE = "COMMIT 2026-11-26 07:00:01 UTC"


@pytest.mark.parametrize(
    ("forged", "until", "says"),
    [
        ([], 0x210, []),
        ([], 0x211, ["up to 0/210, and needed up to 0/211"]),
        ([line("Transaction", 9, "0/00000210", FALSE, "0/000001F8")], 0x210, []),  # follows another
        ([line("Transaction", 9, "0/00000200", FALSE, "0/00000200")], 0x210, ["looks like its records"]),  # too early
        ([line("Transaction", 9, "0/00000208", FALSE, "0/00000200")], 0x210, ["looks like its records"]),
        (
            [line("Transaction", 9, "0/00000208", FALSE, "0/00000200"), NEXT_ONE.replace("tx:          7", "tx: 8")],
            0x210,
            ["looks like its records"],
        ),
        ([line("Heap", 9, "0/00000300", "INSERT", "0/00000200")], 0x308, ["looks like its records"]),
    ],
)
def test_text_of_users_that_looks_like_a_record_is_left_out_or_told(
    forged: list[str], until: int, says: list[str]
) -> None:
    lost = LostWal(0x200, SEGMENT)
    for one in (FIRST, *forged, NEXT_ONE):
        lost.add(one)
    lost.close(until)
    assert lost.xids <= {7} or "looks like" in lost.undecided[0]
    assert len(lost.undecided) == len(says)
    assert all(word in reason for word, reason in zip(says, lost.undecided, strict=True))


def test_a_text_of_no_length_in_the_place_of_a_record_is_told() -> None:
    lost = LostWal(0x200, SEGMENT)
    empty = line("Standby", 0, "0/00000208", "", "0/00000200").replace("     8/    8", "     0/    0")
    for one in (FIRST, empty, NEXT_ONE, line("Transaction", 8, "0/00000210", FALSE, "0/00000208")):
        lost.add(one)
    lost.close(0x210)
    assert 7 not in lost.xids and "looks like its records" in lost.undecided[0]


def test_two_texts_that_lead_past_the_records_between_them_are_told() -> None:
    lost = LostWal(0x200, SEGMENT)
    first = line("Standby", 0, "0/00000210", "", "0/00000200")
    second = line("Standby", 0, "0/00000218", "", "0/00000210")
    for one in (FIRST, first, NEXT_ONE, second, line("Transaction", 8, "0/00000220", FALSE, "0/00000218")):
        lost.add(one)
    lost.close(0x228)
    assert lost.xids == {8} and "looks like its records" in lost.undecided[0]


@pytest.mark.parametrize(
    ("lengths", "xid"),
    [
        ("    34/    34", "        7"), ("257/104457", "7"), ("100034/100034", "4294967295"), ("   49/1048576", "7"),
    ],
)  # fmt: skip
def test_records_of_any_length_are_read(lengths: str, xid: str) -> None:
    """A commit with 25,000 subtransactions is longer than the width that pg_waldump gives a length."""
    lost = LostWal(0x200, SEGMENT)
    lost.add(f"rmgr: Transaction len (rec/tot): {lengths}, tx: {xid}, lsn: 0/00000208, prev 0/00000200, desc: {FALSE}")
    assert lost.xids == {int(xid)}


@pytest.mark.parametrize(
    ("text", "lsn", "end"),
    [
        ("SWITCH", "0/00000208", SEGMENT), ("SWITCH ", "0/003FFFF8", 4 * SEGMENT), ("NOOP", "0/00000208", 0x210),
        ("NOOP", "0/001FFFF8", 2 * SEGMENT),
    ],
)  # fmt: skip
def test_the_rest_of_a_segment_is_empty_behind_a_switch(text: str, lsn: str, end: int) -> None:
    lost = LostWal(0x200, SEGMENT)
    lost.add(line("XLOG", 0, lsn, text))
    assert lost.end == end


@pytest.mark.parametrize(
    ("start", "length", "end"),
    [
        (0x100, 50, 0x138), (0x1FC0, 64, 0x2000), (0x1FC0, 65, 0x2020), (0x1FF8, 8192, 0x4028),
        (SEGMENT - 8, 16, SEGMENT + 48), (SEGMENT - 8, 8200, SEGMENT + 8192 + 24 + 40),
    ],
)  # fmt: skip
def test_records_end_behind_the_headers_of_the_pages_they_go_over(start: int, length: int, end: int) -> None:
    assert record_end(start, length, SEGMENT) == end


def pages(folder: Path, written: dict[int, int], record: tuple[int, int] | None = None) -> dict[str, Path]:
    """Segments 3 and 4 with the position in these pages' headers, and a record's length at a place."""
    wal(folder, 3, 4)
    for address, said in (written | dict([record] if record else [])).items():
        number, at = divmod(address, SEGMENT)
        with (folder / segment(1, number, SEGMENT)).open("r+b") as file:
            file.seek(at + (0 if record and address == record[0] else 8))
            file.write(said.to_bytes(4, "little"))
    return dict.fromkeys((segment(1, 3, SEGMENT), segment(1, 4, SEGMENT)), folder)


PAGE_3 = 3 * SEGMENT + 0x4000
NEXT, AFTER = PAGE_3 + 0x2000, PAGE_3 + 0x4000


@pytest.mark.parametrize(
    ("end", "written", "record", "more"),
    [
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3}, None, False),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3, NEXT: 0x4000, AFTER: 0x6000}, None, False),  # recycled
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3, NEXT: NEXT}, None, True),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3, 4 * SEGMENT: 4 * SEGMENT}, None, True),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3}, (PAGE_3 + 0x100, 80), True),  # whole, and damaged
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3}, (PAGE_3 + 0x100, 7), True),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3}, (PAGE_3 + 0x100, 0x7FFFFFFF), True),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3}, (PAGE_3 + 0x100, 9000), False),  # a crash, within the record
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3, NEXT: NEXT}, (PAGE_3 + 0x100, 9000), True),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3, NEXT: NEXT}, (PAGE_3 + 0x100, 20000), False),
        (PAGE_3 + 0x100, {PAGE_3: PAGE_3, NEXT: NEXT, AFTER: AFTER}, (PAGE_3 + 0x100, 20000), True),
        (PAGE_3, {PAGE_3: 0x4000}, None, False),
        (PAGE_3, {PAGE_3: PAGE_3}, None, False),
        (PAGE_3, {PAGE_3: PAGE_3}, (PAGE_3 + 24, 80), True),
        (5 * SEGMENT, {}, None, False),
        (5 * SEGMENT - 8, {5 * SEGMENT - 0x2000: 5 * SEGMENT - 0x2000}, (5 * SEGMENT - 8, 80), True),
    ],
)
def test_wal_that_goes_on_after_the_place_where_reading_ended_is_seen(
    tmp_path: Path, end: int, written: dict[int, int], record: tuple[int, int] | None, more: bool
) -> None:
    files = pages(tmp_path, written, record)
    assert goes_on(files, Span(1, 3 * SEGMENT, 5 * SEGMENT), end, SEGMENT) == more
