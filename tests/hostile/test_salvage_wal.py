"""Text of users in the WAL that looks like lines of pg_waldump: a line is taken where the WAL has that record."""

import json
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, promote, stop, wheel_bin
from tests.lab.test_salvage import _run, _typed
from walproof.model.units import lsn_text
from walproof.salvaging.wal import PAGE, LostWal, headers, position, record_end

__all__ = ["own_folder"]
SEGMENT = 1 << 24


def _at(where: int) -> str:
    return f"{where >> 32:X}/{where & 0xFFFFFFFF:08X}"


def _line(manager: str, length: int, xid: int, at: int, before: int, text: str) -> str:
    return (
        f"rmgr: {manager:11} len (rec/tot): {length:6}/{length:6}, tx: {xid:10}, lsn: {_at(at)}, prev {_at(before)},"
        f" desc: {text}"
    )


@pytest.mark.parametrize(
    "at", [SEGMENT + 96, SEGMENT + 2 * PAGE - 8, 2 * SEGMENT - 8], ids=["whole", "page", "segment"]
)
def test_a_header_is_read_where_a_page_or_a_segment_ends_within_it(at: int) -> None:
    raw = (34).to_bytes(4, "little") + (7).to_bytes(4, "little") + (at - 56).to_bytes(8, "little") + b"\x00\x01"
    wal = bytearray(3 * SEGMENT)
    room = min(len(raw), PAGE - at % PAGE)
    wal[at : at + room] = raw[:room]
    begin = at + room + (40 if (at + room) % SEGMENT == 0 else 24)
    wal[begin : begin + len(raw) - room] = raw[room:]
    header = headers(SEGMENT, lambda number: bytes(wal[number * SEGMENT : (number + 1) * SEGMENT]))
    assert header(at) == (34, 7, at - 56, 1)
    lost = LostWal(at, SEGMENT, header=header)
    lost.add(_line("Transaction", 34, 7, at, at - 56, "COMMIT 2026-11-29 05:00:00.000000 UTC"))
    lost.close(at)
    assert (lost.commits, lost.undecided) == (1, [])


@pytest.mark.parametrize(
    "line",
    [
        _line("Transaction", 34, 7, SEGMENT + 96, SEGMENT + 40, "COMMIT 2026-11-29 05:00:00.000000 UTC"),
        _line("X", 0, 7, SEGMENT + 96, SEGMENT + 40, "").replace(_at(SEGMENT + 96), "z/zzzzzzzz"),
        _line("X", 0, 7, SEGMENT + 96, SEGMENT + 40, "").replace("tx:          7", "tx: " + "7" * 5000),
    ],
    ids=["where nothing is", "no position", "no number"],
)
def test_a_line_of_what_is_not_in_the_wal_is_left_out(line: str) -> None:
    lost = LostWal(SEGMENT, SEGMENT, header=headers(SEGMENT, lambda _: b""))
    lost.add(line)
    assert (lost.commits, lost.end) == (0, 0)


def test_a_time_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LostWal(SEGMENT, SEGMENT)
    lost.add(_line("Transaction", 34, 7, SEGMENT + 96, SEGMENT + 40, "COMMIT 9999-99-99 05:00:00.000000 UTC"))
    lost.close(SEGMENT)
    assert "the counts are not sure" in lost.undecided[0]


@pytest.mark.lab
def test_a_text_at_the_end_of_the_wal_commits_nothing(
    walproof: Walproof, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role of no rights had another's open transaction committed: the SQL deleted a row of his that was committed."""
    monkeypatch.chdir(own_folder)
    with plain_pair(wheel_bin()) as pair:
        rows = ["CREATE TABLE acc (id int PRIMARY KEY, v text)", "INSERT INTO acc VALUES (1, 'bank')"]
        _run(pair, "n1", [*rows, "CREATE ROLE attacker LOGIN PASSWORD 'attacker'"])
        time.sleep(1)
        promote(pair)
        salvager = (
            "CREATE ROLE salvager LOGIN REPLICATION PASSWORD 'salvager' IN ROLE pg_read_all_data, pg_write_all_data"
        )
        pair.sql("n2", salvager)
        _run(pair, "n1", ["CHECKPOINT"])
        with psycopg.connect(pair.member_endpoint("n1").client_conninfo()) as victim:
            victim.execute("UPDATE acc SET v = 'never' WHERE id = 1")
            _forge_commit(pair)
            stop(pair, "n1")
            victim.close()
        _, out, err = walproof(*_typed(pair, "--out", "lost", "--json"))
        assert out, err
        told = json.loads(out)
        assert any("the counts are not sure" in why for why in told["undecided"]), (told, err)
        assert told["lost_transactions"] == 0 and list(Path("lost").rglob("*.acc.sql")) == []


def _forge_commit(pair: PlainPair) -> None:
    conninfo = make_conninfo(pair.member_endpoint("n1").client_conninfo(), user="attacker", password="attacker")
    with psycopg.connect(conninfo, autocommit=True) as one:
        ((xid,),) = one.execute("SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid'").fetchall()
        for _ in range(40):
            one.execute("SELECT pg_logical_emit_message(false, 'p', 'x')")
            ((found,),) = one.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
            start = position(str(found))
            words = "COMMIT 2026-11-29 05:00:00.000000 UTC\n"
            size = len("x\n" + _line("Transaction", 34, int(xid), start, start, words)) + 26
            end = record_end(start, 24 + (2 if size < 256 else 5) + size, SEGMENT)
            text = "x\n" + _line("Transaction", 34, int(xid), end, start, words)
            one.execute("SELECT pg_logical_emit_message(false, %s, 'x')", (text,))
            ((found,),) = one.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
            if position(str(found)) == end:
                break
        else:
            raise AssertionError(f"no message ended where it was foretold: {lsn_text(end)}")
    time.sleep(1)  # the WAL writer flushes it
