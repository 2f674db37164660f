"""The ledger without a server: attempt files, what answers mean, what reads show, COPY into columns."""

import errno
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.errors import MachineError, TargetError
from walproof.load.ledger.commit_outcome import SUCCESS, Answer, outcome
from walproof.load.ledger.processes import RunningLedger
from walproof.load.ledger.reader import Read, ReadTally, acknowledged, disagree, stale_ms
from walproof.load.ledger.task_and_attempt_files import (
    ROW,
    AttemptFile,
    PendingAttempt,
    ReaderTask,
    WriterTask,
    last_rows,
    read_attempts,
    read_counts,
    read_reader_task,
    read_writer_task,
    task_text,
)
from walproof.load.ledger.writer import Writers, conninfos, payloads
from walproof.load.ledger.writer_connection import INSERT, INSERT_POOLED, NO_SESSION_LEFT
from walproof.machine import clock
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder, Outcome, WitnessReport
from walproof.model.topology import Endpoint
from walproof.targets.sql.ledger import payload_rows, summed_rows

ENDPOINT = Endpoint((("10.0.0.1", 5432), ("10.0.0.2", 5433)), passfile="/x/pgpass", options=(("connect_timeout", "2"),))


def task(path: Path, *, pooled: bool = False) -> WriterTask:
    return WriterTask(str(path), replace(ENDPOINT, pooled=pooled), Level.ON, first=4, count=2, drill=7)


def pending(writer: int, checksum: int = 5, server: int = 0, names: int = 0) -> PendingAttempt:
    return PendingAttempt(0, writer, 3, checksum, server, names)


def test_an_attempt_is_in_the_file_before_it_is_answered(tmp_path: Path) -> None:
    attempts = AttemptFile(tmp_path / "n")
    attempts.add(11, 100.5, pending(4))
    read = read_attempts([tmp_path / "n"])
    assert (len(read), int(read.number[0]), int(read.writer[0])) == (1, 11, 4)
    assert read.outcome[0] == Outcome.UNKNOWN
    assert np.isnan(read.ended[0])
    assert read.level[0] == -1
    attempts.close()


def test_an_answer_completes_the_attempt_and_the_counts(tmp_path: Path) -> None:
    attempts = AttemptFile(tmp_path / "n")
    server, names = attempts.index_of("servers", b"10.0.0.1"), attempts.index_of("names", b"ANY 1 (n2)")
    first, second = pending(0, server=server, names=names), pending(1, server=server, names=names)
    attempts.add(0, 1.0, first)
    attempts.add(0, 1.1, second)
    second.level = 3
    attempts.complete(second, 2.0, Outcome.ACKNOWLEDGED, 0x10_0000_0002)
    attempts.complete(first, 2.5, Outcome.DOWNGRADED, 9)
    attempts.write_counts()
    counts = read_counts(tmp_path / "n")
    assert counts is not None
    assert (counts.acknowledged, counts.last_at, counts.rows) == (1, 2.0, 2)
    attempts.close()
    read = read_attempts([tmp_path / "n"])
    assert read.outcome.tolist() == [Outcome.DOWNGRADED, Outcome.ACKNOWLEDGED]
    assert read.lsn.tolist() == [9, 0x10_0000_0002]
    assert read.level.tolist() == [-1, 3]
    assert (read.servers, read.standby_names) == (("10.0.0.1",), ("ANY 1 (n2)",))
    assert (tmp_path / "n").stat().st_size == 512 + 2 * ROW.itemsize


def test_files_of_several_processes_share_one_list_of_servers(tmp_path: Path) -> None:
    for name, servers in (("a", [b"one", b"two"]), ("b", [b"two", b"three"])):
        attempts = AttemptFile(tmp_path / name)
        for number, server in enumerate(servers):
            attempts.add(number, 1.0, pending(0, server=attempts.index_of("servers", server), names=-1))
        attempts.close()
    read = read_attempts([tmp_path / "a", tmp_path / "b"])
    assert [read.servers[i] for i in read.server] == ["one", "two", "two", "three"]
    assert read.names.tolist() == [-1] * 4


def test_a_file_grows_beyond_its_first_capacity(tmp_path: Path) -> None:
    attempts = AttemptFile(tmp_path / "n")
    attempts._capacity = 3
    attempts._map.resize(512 + 3 * ROW.itemsize)
    for number in range(10):
        attempts.add(number, 1.0, pending(0))
    attempts.close()
    assert read_attempts([tmp_path / "n"]).number.tolist() == list(range(10))


def test_kill_9_of_a_writer_loses_no_attempt(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from walproof.load.ledger.task_and_attempt_files import PendingAttempt, AttemptFile\n"
        "attempts = AttemptFile(Path(sys.argv[1]))\n"
        "for n in range(1000): attempts.add(n, 1.0, PendingAttempt(0, 0, 1, 2, 0, 0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "n")], check=False, env=environment)
    assert read_attempts([tmp_path / "n"]).number.tolist() == list(range(1000))
    assert last_rows(tmp_path / "n", 3)["number"].tolist() == [997, 998, 999]


@each([1 << 50, 3, -1])
def test_a_header_that_states_more_rows_than_the_file_has_takes_no_memory(rows: int, tmp_path: Path) -> None:
    attempts = AttemptFile(tmp_path / "n")
    attempts.add(11, 100.5, pending(4))
    attempts.close()
    whole = (tmp_path / "n").read_bytes()
    (tmp_path / "n").write_bytes(whole[:24] + struct.pack("<q", rows) + whole[32:])
    with pytest.raises(MachineError, match="is shorter than its header states"):
        read_attempts([tmp_path / "n"])
    (tmp_path / "n").write_bytes(whole[:20])
    assert len(read_attempts([tmp_path / "n"])) == 0


def test_a_missing_attempt_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert len(read_attempts([tmp_path / "none"])) == 0
    assert len(last_rows(tmp_path / "none", 5)) == 0


@each([
    (Answer(SUCCESS), Outcome.ACKNOWLEDGED),
    (Answer(SUCCESS, warnings=("01000",)), Outcome.DOWNGRADED),
    (Answer(SUCCESS, warnings=("57P01",)), Outcome.DOWNGRADED),
    (Answer(SUCCESS, warnings=("01004",)), Outcome.ACKNOWLEDGED),
    (Answer("25006", "ERROR"), Outcome.REFUSED),
    (Answer("53100", "ERROR"), Outcome.REFUSED),
    (Answer("57014", "ERROR"), Outcome.REFUSED),
    (Answer("57P01", "FATAL"), Outcome.UNKNOWN),
    (Answer("57P01", "ERROR"), Outcome.UNKNOWN),
    (Answer("08006", "ERROR"), Outcome.UNKNOWN),
    (Answer("XX000", "PANIC"), Outcome.UNKNOWN),
    (Answer(""), Outcome.UNKNOWN),
])  # fmt: skip
def test_an_answer_means_one_of_four_outcomes(answer: Answer, expected: Outcome) -> None:
    assert answer.outcome is expected
    assert outcome(answer.sqlstate or None, answer.severity, answer.warnings) is expected


def test_a_writer_leaves_a_read_only_server_but_not_one_that_refuses_a_row() -> None:
    assert Answer("25006", "ERROR").leave_server
    assert Answer("57P01", "FATAL").leave_server
    assert not Answer("53100", "ERROR").leave_server
    assert not Answer(SUCCESS, warnings=("01000",)).leave_server


def test_tasks_survive_their_file(tmp_path: Path) -> None:
    asked = task(tmp_path / "n", pooled=True)
    (tmp_path / "o").write_text(task_text(asked))
    assert read_writer_task(tmp_path / "o") == asked
    reader = ReaderTask("p", (("n1", ENDPOINT),), ("a", "b"), 16, 7)
    (tmp_path / "w").write_text(task_text(reader))
    assert read_reader_task(tmp_path / "w") == reader


def test_the_level_goes_into_the_session_except_through_a_pool(tmp_path: Path) -> None:
    direct, other = conninfos(task(tmp_path))
    assert "synchronous_commit=on" in direct
    assert "host='10.0.0.1' port='5432'" in direct
    assert "host='10.0.0.2' port='5433'" in other
    assert all("synchronous_commit" not in text for text in conninfos(task(tmp_path, pooled=True)))
    assert "set_config('synchronous_commit', 'on', true)" in INSERT_POOLED.format(drill=1, writer=2, level="on")
    assert "set_config" not in INSERT


def test_payloads_are_random_and_carry_their_checksum() -> None:
    made = payloads(100, 3)
    several = [next(made) for _ in range(50)]
    assert all(len(p) == 100 and zlib.crc32(p) == c for p, c in several)
    assert len({p for p, _ in several}) == 50


def rows_of(*entries: tuple[int, int, Outcome, float]) -> np.ndarray:
    rows = np.zeros(len(entries), ROW)
    for at, (writer, number, result, ended) in enumerate(entries):
        rows[at]["writer"], rows[at]["number"] = writer, number
        rows[at]["outcome"], rows[at]["ended"] = result, ended
    return rows


def read(member: str, *newest: int, leads: bool = False, session: int = 1) -> Read:
    return Read(member, leads, np.array(newest, dtype=np.int64), 10.0, session)


def test_only_acknowledged_rows_are_asked_for() -> None:
    rows = rows_of((0, 5, Outcome.ACKNOWLEDGED, 1.0), (0, 6, Outcome.UNKNOWN, 0.0), (1, 2, Outcome.DOWNGRADED, 1.0))
    assert acknowledged(rows, 3).tolist() == [5, -1, -1]


def test_staleness_is_the_age_of_the_oldest_missing_acknowledgement() -> None:
    rows = rows_of((0, 4, Outcome.ACKNOWLEDGED, 9.5), (0, 5, Outcome.ACKNOWLEDGED, 9.75))
    assert stale_ms(rows, read("n2", 3)) == pytest.approx(500)
    assert stale_ms(rows, read("n2", 4)) == pytest.approx(250)
    assert stale_ms(rows, read("n2", 9)) == 0.0


def test_freshness_is_counted_per_standby_and_on_any() -> None:
    tally = ReadTally(2)
    rows = rows_of((0, 5, Outcome.ACKNOWLEDGED, 9.0), (1, 7, Outcome.ACKNOWLEDGED, 9.0))
    tally.add(rows, [read("n1", 5, 7, leads=True), read("n2", 5, 6), read("n3", 4, 7)])
    report = tally.report()
    assert report.fresh_by_member == {"n2": (1, 1), "n3": (1, 1)}
    assert report.fresh_somewhere == (2, 0)
    assert set(report.seen_on_leader) == {(0, 5), (1, 7)}


def test_a_long_fork_is_two_reads_that_each_hold_what_the_other_lacks() -> None:
    assert disagree(np.array([1, 2]), np.array([2, 1]))
    assert not disagree(np.array([1, 2]), np.array([2, 2]))
    tally = ReadTally(2)
    tally.add(rows_of(), [read("n1", 5, 6, leads=True)])
    tally.add(rows_of(), [read("n2", 6, 5)])
    assert tally.report().long_forks == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
def test_reads_of_one_growing_order_never_disagree(steps: list[tuple[int, int]]) -> None:
    tally, newest = ReadTally(2), [0, 0]
    for writer, leads in steps:
        newest[writer] += 1
        tally.add(rows_of(), [read("n1" if leads else "n2", *newest, leads=bool(leads))])
    assert tally.report().long_forks == 0


def copied(entries: list[tuple[int, int, int, bytes]], *, summed: bool) -> bytes:
    raw = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    for writer, number, stated, payload in entries:
        raw += struct.pack(">hiiiqiq", 4, 4, writer, 8, number, 8, stated)
        raw += struct.pack(">iq", 8, zlib.crc32(payload)) if summed else struct.pack(">i", len(payload)) + payload
    return raw + b"\xff\xff"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**60), st.binary(max_size=6)), max_size=8))
def test_copied_rows_are_read_back_whatever_their_length(entries: list[tuple[int, int, bytes]]) -> None:
    stated = [(w, n, zlib.crc32(p), p) for w, n, p in entries]
    for rows in (summed_rows("n1", copied(stated, summed=True)), payload_rows("n1", copied(stated, summed=False))):
        assert rows.writer.tolist() == [e[0] for e in entries]
        assert rows.number.tolist() == [e[1] for e in entries]
        assert (rows.checksum == rows.stated).all()


def test_a_corrupted_payload_is_seen() -> None:
    rows = payload_rows(
        "n1", copied([(0, 1, zlib.crc32(b"abcd"), b"abcd"), (0, 2, zlib.crc32(b"efgh"), b"efgX")], summed=False)
    )
    assert (rows.checksum == rows.stated).tolist() == [True, False]


def test_a_truncated_answer_to_copy_is_an_error() -> None:
    with pytest.raises(TargetError, match="cut short"):
        summed_rows("n1", copied([], summed=True)[:-1])


NOBODY = Endpoint((("127.0.0.1", 9),), options=(("connect_timeout", "2"),))


def test_a_writer_that_was_killed_is_named() -> None:
    run = RunningLedger(LedgerOrder(Level.ON, writers=2), NOBODY)
    os.kill(run.pids[1], signal.SIGKILL)
    run.stop()
    assert run.incomplete() == "writer process 2 of 2 was killed by SIGKILL: attempts may be missing"


def test_a_reader_that_was_killed_is_named() -> None:
    run = RunningLedger(LedgerOrder(Level.ON, writers=1), NOBODY, [("n1", NOBODY)])
    for process in run._places[0].readers:
        os.kill(process.pids[0], signal.SIGKILL)
    run.stop()
    assert run.incomplete() == "the readers' process was killed by SIGKILL"
    assert run.witnessed() == WitnessReport({})


def test_a_ledger_that_ended_well_is_complete() -> None:
    run = RunningLedger(LedgerOrder(Level.ON, writers=2), NOBODY, [("n1", NOBODY)])
    run.stop()
    assert run.incomplete() == ""


def test_a_full_disk_is_an_error_before_the_row_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = AttemptFile(tmp_path / "n")

    def full(_file: int, _begin: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for number in range(1 << 16):
        attempts.add(number, 1.0, pending(0))
    with pytest.raises(OSError, match="No space left"):
        attempts.add(1 << 16, 1.0, pending(0))
    attempts.close()
    assert len(read_attempts([tmp_path / "n"])) == 1 << 16


def test_a_step_of_the_wall_clock_moves_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before + 5)
    assert clock.now() - before < 1
    assert RealClock().now() - before < 1


def test_a_read_that_shows_less_than_an_earlier_one_is_counted_within_one_session() -> None:
    tally = ReadTally(2)
    nothing = np.empty(0, ROW)
    for one in (read("n2", 5, 5), read("n2", 6, 4), read("n2", 1, 1, session=2), read("n1", 3, 3, leads=True)):
        tally.add(nothing, [one])
    assert tally.report().backward_by_member == {"n2": 1}


def test_a_member_that_did_not_answer_is_not_one_that_lacks_the_row() -> None:
    rows = np.zeros(1, ROW)
    rows["outcome"], rows["number"] = Outcome.ACKNOWLEDGED, 7
    tally = ReadTally(1)
    tally.add(rows, [read("n2", 3)], complete=False)
    assert tally.report().fresh_somewhere == (0, 0)
    tally.add(rows, [read("n2", 3)])
    assert tally.report().fresh_somewhere == (0, 1)


def test_a_server_with_no_session_left_is_asked_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AttemptFile(tmp_path / "n")
    writers = Writers(task(tmp_path / "n"), file)
    now, asked = 100.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def fails(sqlstate: str) -> None:
        writers._on_lost(mock.Mock(host=0, writer=4, sqlstate=sqlstate, error="no"), -1)

    for _ in range(6):
        for _ in range(8):  # that were sent together
            fails(NO_SESSION_LEFT)
        asked.append(writers._retry_at[0] - now)
        now = writers._retry_at[0]
    assert asked == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    opened = mock.Mock(side_effect=lambda *_: writers._unconnected.pop())
    monkeypatch.setattr(writers, "_open", opened)
    writers._leader_host = 0
    writers._connect(now)
    assert opened.call_count == 1
    fails("57P03")
    assert writers._retry_at[0] - now == pytest.approx(0.05)
    file.close()
