"""What users write into the WAL: in their text may stand whole records, with right checksums; none is ever read."""

from pathlib import Path

import psycopg
import pytest

from tests.fixtures.command_line import Run, walproof
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, stop, wheel_bin
from tests.fixtures.salvaged import dsn, fork, on, salvaged
from tests.fixtures.tiers import every
from tests.fixtures.wal_writer import COMMIT, WalWriter, ended, read
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging.timelines import position
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record

__all__ = ["own_folder", "walproof"]
SEGMENT, MESSAGES = 1 << 20, 21


def commit_bytes(xid: int, before: int) -> bytes:
    """A commit as it stands in the WAL behind the record that begins at `before`."""
    written = WalWriter(SEGMENT, last=before)
    at = written.add(Manager.TRANSACTION, COMMIT, xid, ended(xid).data) - SEGMENT
    return bytes(written.pages[SEGMENT][at : written.at - SEGMENT])


def forged(xid: int, near: int) -> bytes:
    """Commits behind each place nearby, one after another."""
    return b"".join(commit_bytes(xid, near + 8 * n) for n in range(60))


def test_records_within_a_text_are_no_records() -> None:
    def are_none(end: int | None) -> None:
        """Whole, torn, or torn behind its page."""
        written = WalWriter(SEGMENT)
        first = written.add(Manager.TRANSACTION, COMMIT, 6, ended(6).data)
        text = written.add(MESSAGES, 0, 7, forged(666, written.at) * 4, end=end)
        found = read(written, SEGMENT)
        assert [one.lsn for one in found] == [first, text][: 1 if end else 2]
        lost = LostWal(SEGMENT)
        for one in found:
            lost.add(one)
        assert (lost.xids, lost.undecided) == ({6}, [])

    every([None, 5000, 9000], are_none)


def test_a_record_that_no_server_writes_is_told_in_one_sentence() -> None:
    def is_told(data: bytes, says: str) -> None:
        lost = LostWal(SEGMENT)
        with pytest.raises(ValueError, match=f"the record at 0/100000 .*{says}"):
            lost.add(Record(SEGMENT, SEGMENT + 8, 7, Manager.TRANSACTION, COMMIT | 0x80, (), data))
        assert lost.xids == set()

    rows = [
        (b"", "too short"),
        (ended(7, COMMIT, 8).data[:-30], "too short"),
        ((1 << 63).to_bytes(8, "little") + bytes(4), "no time"),  # before 1970
        ((1 << 62).to_bytes(8, "little") + bytes(4), "no time"),  # after 10000
        (ended(7).data + b"\x02\0\0\0" + b"\xff" * 8, "too short"),  # four billion subtransactions
    ]
    every(rows, is_told)


@pytest.mark.lab
@pytest.mark.nightly
def test_a_text_at_the_end_of_the_wal_commits_nothing(walproof: Run, own_folder: Path) -> None:
    """A role of no rights had another's open transaction committed: the SQL deleted a row of his that was committed."""
    with plain_pair(wheel_bin()) as pair:
        rows = ["CREATE TABLE acc (id int PRIMARY KEY, v text)", "INSERT INTO acc VALUES (1, 'bank')"]
        on(pair, "n1", [*rows, "CREATE ROLE attacker LOGIN PASSWORD 'attacker'"])
        fork(pair)
        on(pair, "n1", ["CHECKPOINT"])
        with psycopg.connect(dsn(pair, "n1", "postgres")) as victim:
            victim.execute("UPDATE acc SET v = 'never' WHERE id = 1")
            _forge_commits(pair)
            on(pair, "n1", ["CREATE TABLE lost AS SELECT 1 AS id"])
            _forge_commits(pair)
            stop(pair, "n1")
            victim.close()
        _, told, err = salvaged(walproof, pair, own_folder / "lost")
        assert (told["undecided"], told["lost_transactions"]) == ([], 1), (told, err)
        assert list((own_folder / "lost").rglob("*.acc.sql")) == []


def _forge_commits(pair: PlainPair) -> None:
    """Texts that hold commits of the transaction that is open, and lines as pg_waldump prints one."""
    with psycopg.connect(dsn(pair, "n1", "attacker"), autocommit=True) as one:
        ((xid,),) = one.execute("SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid'").fetchall()
        ((found,),) = one.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        line = f"rmgr: Transaction len (rec/tot): 34/34, tx: {xid}, lsn: {found}, prev {found}, desc: COMMIT\n"
        texts = (line, forged(int(xid), position(str(found))))
        ((end,),) = one.execute("SELECT pg_logical_emit_message(false, %s, %s::bytea)::text", texts).fetchall()
    flushed = f"SELECT pg_current_wal_flush_lsn() >= '{end}'"  # by the WAL writer, in the end
    wait_for(Wait.PROGRAM_READY, lambda: pair.sql("n1", flushed) == [(True,)], RealClock())
