"""The ledger without a server: notes on file, what answers mean, what readers' looks say, COPY into columns."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walproof.errors import TargetError
from walproof.load.ledger.attempt_file import ROW, Note, NoteFile, read_counts, read_notes, tail
from walproof.load.ledger.outcome import Answer, leave_server, outcome
from walproof.load.ledger.protocol import INSERT, INSERT_POOLED
from walproof.load.ledger.reads import Look, Sightings, acknowledged, disagree, stale_ms
from walproof.load.ledger.task import WitnessOrder, WriterOrder, read_witness_order, read_writer_order, write_order
from walproof.load.ledger.writer import conninfos, payloads
from walproof.model.attempt import Outcome
from walproof.model.guarantee import Level
from walproof.model.topology import Endpoint
from walproof.targets.sql.rows import payload_rows, summed_rows

ENDPOINT = Endpoint((("10.0.0.1", 5432), ("10.0.0.2", 5433)), passfile="/x/pgpass", options=(("connect_timeout", "2"),))


def order(path: Path, *, pooled: bool = False) -> WriterOrder:
    return WriterOrder(str(path), ENDPOINT, Level.ON, first=4, count=2, drill=7, pooled=pooled)


def note(writer: int, checksum: int = 5, server: int = 0, names: int = 0) -> Note:
    return Note(0, writer, 3, checksum, server, names)


def test_an_attempt_is_on_file_before_it_is_answered(tmp_path: Path) -> None:
    notes = NoteFile(tmp_path / "n", 3)
    notes.before(11, 100.5, note(4))
    read = read_notes([tmp_path / "n"])
    assert (len(read), int(read.number[0]), int(read.writer[0])) == (1, 11, 4)
    assert read.outcome[0] == Outcome.UNKNOWN
    assert np.isnan(read.ended[0])
    assert read.level[0] == list(Level).index(Level.ON)
    notes.close()


def test_an_answer_completes_the_attempt_and_the_counts(tmp_path: Path) -> None:
    notes = NoteFile(tmp_path / "n", 0)
    server, names = notes.word("servers", b"10.0.0.1"), notes.word("names", b"ANY 1 (n2)")
    first, second = note(0, server=server, names=names), note(1, server=server, names=names)
    notes.before(0, 1.0, first)
    notes.before(0, 1.1, second)
    notes.after(second, 2.0, Outcome.ACKNOWLEDGED, 0x10_0000_0002)
    notes.after(first, 2.5, Outcome.DOWNGRADED, 9)
    notes.state()
    counts = read_counts(tmp_path / "n")
    assert counts is not None
    assert (counts.acknowledged, counts.last_at, counts.rows) == (1, 2.0, 2)
    notes.close()
    read = read_notes([tmp_path / "n"])
    assert read.outcome.tolist() == [Outcome.DOWNGRADED, Outcome.ACKNOWLEDGED]
    assert read.lsn.tolist() == [9, 0x10_0000_0002]
    assert (read.servers, read.standby_names) == (("10.0.0.1",), ("ANY 1 (n2)",))
    assert (tmp_path / "n").stat().st_size == 512 + 2 * ROW.itemsize


def test_notes_of_several_processes_share_one_list_of_servers(tmp_path: Path) -> None:
    for name, words in (("a", [b"one", b"two"]), ("b", [b"two", b"three"])):
        notes = NoteFile(tmp_path / name, 0)
        for number, word in enumerate(words):
            notes.before(number, 1.0, note(0, server=notes.word("servers", word), names=-1))
        notes.close()
    read = read_notes([tmp_path / "a", tmp_path / "b"])
    assert [read.servers[i] for i in read.server] == ["one", "two", "two", "three"]
    assert read.names.tolist() == [-1] * 4


def test_notes_grow_beyond_their_first_room(tmp_path: Path) -> None:
    notes = NoteFile(tmp_path / "n", 0)
    notes._room = 3
    notes._map.resize(512 + 3 * ROW.itemsize)
    for number in range(10):
        notes.before(number, 1.0, note(0))
    notes.close()
    assert read_notes([tmp_path / "n"]).number.tolist() == list(range(10))


def test_kill_9_of_a_writer_loses_no_note(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from walproof.load.ledger.attempt_file import Note, NoteFile\n"
        "notes = NoteFile(Path(sys.argv[1]), 0)\n"
        "for n in range(1000): notes.before(n, 1.0, Note(0, 0, 1, 2, 0, 0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "n")], check=False, env=environment)
    assert read_notes([tmp_path / "n"]).number.tolist() == list(range(1000))
    assert tail(tmp_path / "n", 3)["number"].tolist() == [997, 998, 999]


def test_a_missing_note_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert len(read_notes([tmp_path / "none"])) == 0
    assert len(tail(tmp_path / "none", 5)) == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(True), Outcome.ACKNOWLEDGED),
        (Answer(True, warned=("01000",)), Outcome.DOWNGRADED),
        (Answer(True, warned=("57P01",)), Outcome.DOWNGRADED),
        (Answer(True, warned=("01004",)), Outcome.ACKNOWLEDGED),
        (Answer(False, "25006", "ERROR"), Outcome.REFUSED),
        (Answer(False, "53100", "ERROR"), Outcome.REFUSED),
        (Answer(False, "57014", "ERROR"), Outcome.REFUSED),
        (Answer(False, "57P01", "FATAL"), Outcome.UNKNOWN),
        (Answer(False, "57P01", "ERROR"), Outcome.UNKNOWN),
        (Answer(False, "08006", "ERROR"), Outcome.UNKNOWN),
        (Answer(False, "XX000", "PANIC"), Outcome.UNKNOWN),
        (Answer(False, "", "LOST"), Outcome.UNKNOWN),
    ],
)
def test_an_answer_means_one_of_four_outcomes(answer: Answer, expected: Outcome) -> None:
    assert outcome(answer) is expected


def test_a_writer_leaves_a_read_only_server_but_not_one_that_refuses_a_row() -> None:
    assert leave_server(Answer(False, "25006", "ERROR"))
    assert leave_server(Answer(False, "57P01", "FATAL"))
    assert not leave_server(Answer(False, "53100", "ERROR"))
    assert not leave_server(Answer(True, warned=("01000",)))


def test_orders_survive_their_file(tmp_path: Path) -> None:
    asked = order(tmp_path / "n", pooled=True)
    write_order(asked, tmp_path / "o")
    assert read_writer_order(tmp_path / "o") == asked
    witness = WitnessOrder("p", ENDPOINT, (("n1", ENDPOINT),), ("a", "b"), 16, 7)
    write_order(witness, tmp_path / "w")
    assert read_witness_order(tmp_path / "w") == witness


def test_the_level_goes_into_the_session_except_through_a_pool(tmp_path: Path) -> None:
    direct, other = conninfos(order(tmp_path))
    assert "synchronous_commit=on" in direct
    assert "host='10.0.0.1' port='5432'" in direct
    assert "host='10.0.0.2' port='5433'" in other
    assert all("synchronous_commit" not in text for text in conninfos(order(tmp_path, pooled=True)))
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


def look(member: str, leads: bool, newest: list[int], at: float = 10.0) -> Look:
    return Look(member, leads, np.array(newest, dtype=np.int64), at)


def test_only_acknowledged_rows_are_asked_for() -> None:
    rows = rows_of((0, 5, Outcome.ACKNOWLEDGED, 1.0), (0, 6, Outcome.UNKNOWN, 0.0), (1, 2, Outcome.DOWNGRADED, 1.0))
    assert acknowledged(rows, 3).tolist() == [5, -1, -1]


def test_staleness_is_the_age_of_the_oldest_missing_acknowledgement() -> None:
    rows = rows_of((0, 4, Outcome.ACKNOWLEDGED, 9.5), (0, 5, Outcome.ACKNOWLEDGED, 9.75))
    assert stale_ms(rows, look("n2", False, [3])) == pytest.approx(500)
    assert stale_ms(rows, look("n2", False, [4])) == pytest.approx(250)
    assert stale_ms(rows, look("n2", False, [9])) == 0.0


def test_freshness_is_counted_per_standby_and_on_any() -> None:
    sightings = Sightings(2)
    rows = rows_of((0, 5, Outcome.ACKNOWLEDGED, 9.0), (1, 7, Outcome.ACKNOWLEDGED, 9.0))
    sightings.add(rows, [look("n1", True, [5, 7]), look("n2", False, [5, 6]), look("n3", False, [4, 7])])
    report = sightings.report()
    assert report.fresh_by_member == {"n2": (1, 1), "n3": (1, 1)}
    assert report.fresh_somewhere == (2, 0)
    assert set(report.seen_on_leader) == {(0, 5), (1, 7)}


def test_a_long_fork_is_two_looks_that_each_hold_what_the_other_lacks() -> None:
    assert disagree(np.array([1, 2]), np.array([2, 1]))
    assert not disagree(np.array([1, 2]), np.array([2, 2]))
    sightings = Sightings(2)
    sightings.add(rows_of(), [look("n1", True, [5, 6])])
    sightings.add(rows_of(), [look("n2", False, [6, 5])])
    assert sightings.report().long_forks == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
def test_looks_of_one_growing_order_never_disagree(steps: list[tuple[int, int]]) -> None:
    sightings, newest = Sightings(2), [0, 0]
    for writer, leads in steps:
        newest[writer] += 1
        sightings.add(rows_of(), [look("n1" if leads else "n2", bool(leads), list(newest))])
    assert sightings.report().long_forks == 0


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


def test_an_altered_payload_is_seen() -> None:
    rows = payload_rows(
        "n1", copied([(0, 1, zlib.crc32(b"abcd"), b"abcd"), (0, 2, zlib.crc32(b"efgh"), b"efgX")], summed=False)
    )
    assert (rows.checksum == rows.stated).tolist() == [True, False]


def test_a_cut_answer_to_copy_is_trouble() -> None:
    with pytest.raises(TargetError, match="cut short"):
        summed_rows("n1", copied([], summed=True)[:-1])
