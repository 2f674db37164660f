"""`walproof salvage` without a server: timelines, WAL as pg_waldump prints it, and data directories that are none."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.command_line import Run, one_sentence, walproof
from walproof.errors import Error, MachineError, UsageError
from walproof.salvaging import data_directory, plan, refusals, successor
from walproof.salvaging.catalog import Table
from walproof.salvaging.data_directory import OldServer, inspect, needed_wal, roots, size, wal_files
from walproof.salvaging.rows import Change, changes, judged
from walproof.salvaging.timelines import Span, lost_spans, position, read_history, record_end, segment
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_end import goes_on

__all__ = ["walproof"]
DSN = "host=127.0.0.1 port=1 user=postgres"
SEGMENT = 1 << 20
CONTROL = {
    "Bytes per WAL segment": str(SEGMENT),
    "Database system identifier": "7",
    "Latest checkpoint's TimeLineID": "1",
    "Min recovery ending loc's timeline": "0",
    "Latest checkpoint's REDO location": "0/300000",
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory of PostgreSQL 15 by its looks, whose pg_control is CONTROL."""
    monkeypatch.setattr(data_directory, "_control", lambda *_: dict(CONTROL))
    monkeypatch.setattr(data_directory, "_programs", lambda *_: Path("/usr/bin"))
    made = tmp_path / "old"
    for name in ("base/5", "global", "pg_commit_ts", "pg_multixact", "pg_twophase", "pg_xact", "pg_wal", "pg_tblspc"):
        (made / name).mkdir(parents=True)
    (made / "PG_VERSION").write_text("15\n")
    (made / "global/pg_control").write_bytes(b"control")
    (made / "base/5/1259").write_bytes(bytes(8192))
    return made


def wal(folder: Path, *numbers: int, timeline: int = 1) -> None:
    for number in numbers:
        with (folder / segment(timeline, number, SEGMENT)).open("wb") as file:
            file.truncate(SEGMENT)


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


def line(manager: str, xid: int, lsn: str, text: str) -> str:
    return f"rmgr: {manager:11} len (rec/tot):     54/    54, tx: {xid:10}, lsn: {lsn}, prev 0/00000000, desc: {text}\n"


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
        lost.add(one)
    table = (1663, 5, 16384)
    assert (lost.commits, lost.subtransactions, lost.xids) == (2, 2, {10, 12, 13, 15})
    assert lost.writes.blocks == {table: {7, 9, 10, 11}}
    assert lost.writes.ended == {table: {(9, 3), (10, 4)}}
    assert lost.ddl == {5: 1}
    assert lost.times is not None
    assert lost.times[1] - lost.times[0] == 1.5
    assert (lost.next_xid, lost.all_blocks_known) == (12, True)


@pytest.mark.parametrize(
    "first", ["COMMIT_PREPARED 7: 2026-11-26 07:00:00 UTC", "COMMIT_PREPARED 7: 2026-11-26 07:00:00 UTC; sync"]
)
def test_what_was_prepared_before_the_fork_is_told_from_what_was_prepared_after_it(first: str) -> None:
    before, after = LostWal(0x200, SEGMENT), LostWal(0x200, SEGMENT)
    after.add(line("Transaction", 7, "0/00000200", "PREPARE gid x: 2026-11-26 07:00:00 UTC"))
    assert after.prepared == {7}
    for one in (before, after):
        one.add(line("Transaction", 0, "0/00000210", first))
    assert (before.prepared_before, after.prepared_before, after.prepared) == ({7}, set(), set())
    assert before.xids == after.xids == {7}


def test_a_transaction_that_was_open_before_what_was_read_makes_every_block_a_candidate() -> None:
    lost = LostWal(0x200, SEGMENT)
    lost.add(line("Standby", 0, "0/00000100", "RUNNING_XACTS nextXid 10 latestCompletedXid 8 oldestRunningXid 9"))
    lost.add(line("Transaction", 9, "0/00000210", "COMMIT 2026-11-26 07:00:00 UTC"))
    assert not lost.all_blocks_known


@pytest.mark.parametrize(
    ("known_from", "xid", "known"),
    [(4294967000, 5, True), (5, 4294967000, False), (4294967290, 4294967291, True), (4294967290, 4294967289, False)],
)
def test_transaction_ids_go_round_at_2_32(known_from: int, xid: int, known: bool) -> None:
    lost = LostWal(0x200, SEGMENT)
    lost.add(line("Standby", 0, "0/00000100", f"RUNNING_XACTS nextXid {known_from} latestCompletedXid 8"))
    lost.add(line("Heap", 4, "0/00000110", "INSERT off 1 flags 0x00, blkref #0: rel 1663/5/16384 blk 7"))
    lost.add(line("Transaction", xid, "0/00000210", "COMMIT 2026-11-26 07:00:00 UTC"))
    assert lost.all_blocks_known == known
    assert lost.next_xid == (5 if known_from > 5 else known_from)


def test_a_checkpoints_next_transaction_id_is_from_when_it_began() -> None:
    lost = LostWal(0x200, SEGMENT)
    lost.add(line("XLOG", 0, "0/00000100", "CHECKPOINT_ONLINE redo 0/50; tli 1; prev tli 1; fpw true; xid 0:9; oid 1"))
    assert (lost.known_from, lost.next_xid) == (None, 9)


COUNTS = """WAL statistics between 0/100 and 0/{end}:
Type                 N      (%)          Record size      (%)
XLOG                 1 (  3.00)                   54 (  5.82)
Transaction          {commits} (  3.00)           54 (  5.82)
LogicalMessage       7 (  3.00)                   54 (  5.82)
Total                9                            54 [65.18%]
"""


@pytest.mark.parametrize(
    ("end", "commits", "says"),
    [
        ("248", 1, []),
        ("248", 2, ["looks like records"]),
        ("248", 0, ["looks like records"]),
        ("1F8", 1, ["up to 0/240"]),
    ],
)
def test_what_was_read_is_held_against_pg_waldumps_own_count(end: str, commits: int, says: list[str]) -> None:
    lost = LostWal(0x200, SEGMENT)
    lost.add(line("XLOG", 0, "0/00000200", "NOOP"))
    forged = "rmgr: Transaction len 5, tx: 9, lsn: 0/00000210, desc: COMMIT 2026-11-26 07:00:01 UTC\n"
    lost.add(forged)
    lost.add(line("Transaction", 7, "0/00000208", "COMMIT 2026-11-26 07:00:00 UTC"))
    lost.close(COUNTS.format(end=end, commits=commits), 0x240 if end == "248" else 0x241)
    assert (lost.commits, lost.xids) == (1, {7})
    assert len(lost.undecided) == len(says)
    assert all(word in reason for word, reason in zip(says, lost.undecided, strict=True))


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


# Rows


@pytest.mark.parametrize(
    ("change", "now", "unchanged", "kind", "state"),
    [
        (Change("insert", ("1", "a"), None), None, False, "insert", "clean"),
        (Change("insert", ("1", "a"), None), ("1", "a"), False, "insert", "there"),
        (Change("insert", ("1", "a"), None), ("1", "b"), False, "insert", "conflict"),
        (Change("insert", ("1", "a"), None), ("1", "b"), True, "update", "clean"),
        (Change("update", ("1", "a"), ("1", "b")), ("1", "b"), False, "update", "clean"),
        (Change("update", ("1", "a"), ("1", "b")), ("1", "c"), False, "update", "conflict"),
        (Change("update", ("1", "a"), ("1", "b")), None, False, "update", "conflict"),
        (Change("delete", None, ("1", "b")), ("1", "b"), False, "delete", "clean"),
        (Change("delete", None, ("1", "b")), None, False, "delete", "there"),
        (Change("delete", None, ("1", "b")), ("1", "c"), False, "delete", "conflict"),
    ],
)
def test_a_change_beside_the_new_primarys_row(
    change: Change, now: tuple[str, ...] | None, unchanged: bool, kind: str, state: str
) -> None:
    done = judged(change, now, unchanged=unchanged)
    assert (done.kind, done.state, done.now) == (kind, state, now)


def test_final_and_old_versions_of_a_key_are_one_change() -> None:
    table = Table(1, "public", "t", (1, 2, 3), None, key=(0,))
    final, old = [("1", "new"), ("2", "same"), ("3", "in")], [("1", "was"), ("2", "same"), ("4", "out")]
    kinds = [(one.kind, one.new, one.old) for one in changes(table, final, old)]
    assert kinds == [
        ("update", ("1", "new"), ("1", "was")), ("insert", ("3", "in"), None), ("delete", None, ("4", "out"))
    ]  # fmt: skip
    table.key = ()
    assert {one.kind for one in changes(table, final, old)} == {"insert"}


# Data directories


def hostile(directory: Path, kind: str) -> None:
    victim = directory / kind.partition(":")[2]
    victim.unlink(missing_ok=True)
    if kind.startswith("link"):
        victim.symlink_to("/etc/passwd")
    elif kind.startswith("folder"):
        victim.symlink_to("/etc")
    elif kind.startswith("pipe"):
        os.mkfifo(victim)
    else:
        with victim.open("wb") as file:
            file.truncate(1 << 40)


@pytest.mark.parametrize(
    "kind",
    [
        "link:PG_VERSION", "pipe:PG_VERSION", "huge:PG_VERSION", "link:backup_label", "pipe:backup_label",
        "link:postmaster.pid", "pipe:postmaster.pid", "huge:backup_label",
    ],
)  # fmt: skip
def test_small_files_that_are_none_are_refused_and_wait_for_nobody(directory: Path, kind: str) -> None:
    hostile(directory, kind)
    with pytest.raises(MachineError, match="cannot be read"):
        inspect(directory, None)


@pytest.mark.parametrize(
    "kind",
    [
        "link:base/5/1259", "pipe:base/5/1259", "huge:base/5/1259", "link:global/pg_filenode.map", "pipe:pg_xact/0000",
        "folder:base/9", "huge:pg_multixact/0000", "link:pg_twophase/00000007",
    ],
)  # fmt: skip
def test_what_no_server_puts_there_is_refused_before_anything_is_copied(directory: Path, kind: str) -> None:
    hostile(directory, kind)
    with pytest.raises(MachineError, match="does not belong into a data directory"):
        size(inspect(directory, None))


def test_no_configuration_slot_signal_or_stranger_is_copied(directory: Path) -> None:
    for name in (
        "postgresql.conf",
        "postgresql.auto.conf",
        "pg_hba.conf",
        "recovery.signal",
        "standby.signal",
        "evil.so",
    ):
        (directory / name).write_text("archive_command = 'touch /tmp/evil'")
    (directory / "pg_replslot/evil").mkdir(parents=True)
    copied = {path.name for path in roots(inspect(directory, None))}
    assert copied == {"PG_VERSION", "base", "global", "pg_commit_ts", "pg_multixact", "pg_twophase", "pg_xact"}


@pytest.mark.parametrize("link", ["/nonexistent", "/etc", "/proc"])
def test_a_tablespace_that_is_not_where_its_link_points_is_refused(directory: Path, link: str) -> None:
    (directory / "pg_tblspc/16500").symlink_to(link)
    with pytest.raises(MachineError, match="16500"):
        size(inspect(directory, None))


@pytest.mark.parametrize(
    ("version", "says"),
    [("", "no PG_VERSION"), ("13\n", "13"), ("19\n", "19"), ("15.2\n", "15.2"), ("\x1b[2J", "says")],
)
def test_another_version_is_refused(directory: Path, version: str, says: str) -> None:
    (directory / "PG_VERSION").write_text(version)
    with pytest.raises(UsageError, match=says):
        inspect(directory, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Bytes per WAL segment", "12345"), ("Bytes per WAL segment", "0"), ("Latest checkpoint's TimeLineID", "x"),
        ("Latest checkpoint's REDO location", "0"), ("Database system identifier", ""), ("Bytes per WAL segment", None),
    ],
)  # fmt: skip
def test_a_pg_control_that_says_nonsense_is_corrupt(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    said = {key: word for key, word in (CONTROL | {name: value}).items() if word is not None}
    monkeypatch.setattr(data_directory, "_control", lambda *_: said)
    with pytest.raises(MachineError, match="corrupt or encrypted"):
        inspect(directory, None)


def test_a_directory_that_pg_rewind_has_begun_on_is_refused(directory: Path) -> None:
    (directory / "backup_label").write_text("START WAL LOCATION: 0/3\nBACKUP METHOD: pg_rewind\n")
    with pytest.raises(UsageError, match="was rewound"):
        inspect(directory, None)


def test_a_directory_in_which_a_server_runs_is_in_use(directory: Path) -> None:
    program = directory.parent / "postgres"
    program.symlink_to(sys.executable)
    name = "import sys; open('/proc/self/comm', 'w').write('postgres'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [program, "-c", name], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(MachineError, match=f"in use: PostgreSQL runs in it, process {process.pid}"):
            inspect(directory, None)
        process.communicate()
    (directory / "postmaster.pid").write_text(f"{process.pid}\n")
    assert inspect(directory, None).system == 7


@pytest.mark.parametrize(
    ("present", "missing"), [((3, 5), None), ((4, 5), 3), ((3,), 4), ((), 3), ((3, 4, 5, 7), None)]
)
def test_wal_that_no_longer_reaches_the_fork_is_named(
    directory: Path, present: tuple[int, ...], missing: int | None
) -> None:
    old, archive = inspect(directory, None), directory.parent / "archive"
    archive.mkdir()
    wal(directory / "pg_wal", *present)
    spans = (Span(1, 0x410000),)
    if missing is None:
        wal(archive, 4)
        assert needed_wal(old, spans, wal_files(old, archive)) == [segment(1, n, SEGMENT) for n in (3, 4, 5)]
    else:
        with pytest.raises(MachineError, match=segment(1, missing, SEGMENT)):
            needed_wal(old, spans, wal_files(old, archive))


def test_only_whole_regular_segments_count(directory: Path) -> None:
    wal(directory / "pg_wal", 3)
    (directory / "pg_wal" / segment(1, 4, SEGMENT)).write_bytes(b"short")
    (directory / "pg_wal" / segment(1, 5, SEGMENT)).symlink_to("/dev/zero")
    os.mkfifo(directory / "pg_wal" / segment(1, 6, SEGMENT))
    assert list(wal_files(inspect(directory, None), None)) == [segment(1, 3, SEGMENT)]


# The verb


@pytest.mark.parametrize(
    ("identity", "says"), [((8, 2, 15), "another cluster"), ((7, 2, 18), "of PostgreSQL 15, the new primary of 18")]
)
def test_another_cluster_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[int, int, int], says: str
) -> None:
    monkeypatch.setattr(successor, "identity", lambda _: identity)
    with pytest.raises(UsageError, match=says):
        plan.plan(directory, DSN, None, None)


def test_where_nothing_is_left_the_exit_code_is_undecided(
    directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run
) -> None:
    monkeypatch.setattr(successor, "identity", lambda _: (7, 1, 15))
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--dry-run")
    assert code == 4
    assert "nothing to salvage" in out
    monkeypatch.setattr(successor, "identity", lambda _: (7, 2, 15))
    monkeypatch.setattr(successor, "history", lambda *_: read_history(2, "1 0/410000"))
    wal(directory / "pg_wal", 3, 4)
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--dry-run")
    assert code == 0
    assert "parted at 0/410000 on timeline 1" in out
    monkeypatch.setattr("walproof.cli.salvage.run", lambda *_: {"lost_transactions": 0, "undecided": ["it is damaged"]})
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--out", str(directory))
    assert (code, "UNDECIDED: it is damaged" in out, "nothing was lost" in out) == (4, True, False)


def test_the_window_before_the_fork_is_counted_from_the_fork_and_other_timelines_are_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run
) -> None:
    monkeypatch.setattr(plan, "_MOST", 3)
    monkeypatch.setattr(successor, "identity", lambda _: (7, 2, 15))
    monkeypatch.setattr(successor, "history", lambda *_: read_history(2, "1 0/A10000"))
    wal(directory / "pg_wal", *range(1, 30))
    wal(directory / "pg_wal", 10, 11, timeline=2)
    made = plan.plan(directory, DSN, None, None)
    assert (made.begin, made.others) == (3 * SEGMENT, [])  # pg_control's redo is in segment 3
    assert made.spans == (Span(1, 0xA10000, 30 * SEGMENT),)
    wal(directory / "pg_wal", 9, timeline=3)
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--dry-run")
    assert (code, "WAL of timeline 3 is there too" in out) == (4, True)


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ("--new x", "--old is missing", 2),
        ("--old .", "--new is missing", 2),
        ("--old nowhere --new x", "there is no directory nowhere", 2),
        ("--old . --new x", "it has no PG_VERSION", 2),
        ("--old DIR --new x --wal nowhere", "--wal nowhere is no directory", 2),
        (f"--old DIR --new '{DSN}'", "does not answer", 3),
        ("--old DIR --new =", "not a DSN", 2),
    ],
)
def test_refusals_are_one_sentence_each(directory: Path, walproof: Run, words: str, says: str, code: int) -> None:
    typed = [word.strip("'") for word in words.replace("DIR", str(directory)).replace(DSN, "DSN").split()]
    one_sentence(walproof("salvage", *(word.replace("DSN", DSN) for word in typed)), says, code)


@pytest.mark.parametrize("missing", data_directory.PROGRAMS)
def test_bin_without_all_programs_is_refused(tmp_path: Path, missing: str) -> None:
    for name in set(data_directory.PROGRAMS) - {missing}:
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(UsageError, match=f"has no {missing}"):
        data_directory._programs(15, tmp_path)
    (tmp_path / missing).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n")
    (tmp_path / missing).chmod(0o755)
    assert data_directory._programs(15, tmp_path) == tmp_path
    with pytest.raises(UsageError, match="is not PostgreSQL 1:"):
        data_directory._programs(1, tmp_path)


def test_a_version_without_programs_here_names_what_to_install() -> None:
    with pytest.raises(MachineError, match="are not on this machine"):
        data_directory._programs(9, None)


def test_every_refusal_can_be_said() -> None:
    words = {word: "x" for text in refusals._TABLE.values() for word in re.findall(r"\{(\w+)\}", str(text))}
    for name in refusals._TABLE:
        assert isinstance(refusals.refused(name, **words), Error)


def test_an_old_server_is_a_value(directory: Path) -> None:
    old: OldServer = inspect(directory, None)
    assert replace(old, timeline=2) != old
