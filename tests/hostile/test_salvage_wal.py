"""What users write into the WAL: in their text may stand whole records, with right checksums; none is ever read."""

import json
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.command_line import Run as Walproof
from tests.fixtures.lost_rows import SALVAGER
from tests.fixtures.own_folder import own_folder
from tests.fixtures.plain_pair import PlainPair, plain_pair, promote, stop, wheel_bin
from tests.fixtures.wal_writer import COMMIT, WalWriter, ended, read
from tests.lab.test_salvage import _run, _typed
from walproof.salvaging.timelines import position
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record

__all__ = ["own_folder"]
SEGMENT, MESSAGES = 1 << 20, 21


def commit_bytes(xid: int, before: int) -> bytes:
    """A commit as it stands in the WAL behind the record that begins at `before`."""
    written = WalWriter(SEGMENT, last=before)
    at = written.add(Manager.TRANSACTION, COMMIT, xid, ended(xid).data) - SEGMENT
    return bytes(written.pages[SEGMENT][at : written.at - SEGMENT])


def forged(xid: int, near: int) -> bytes:
    """Commits behind each place nearby, one after another."""
    return b"".join(commit_bytes(xid, near + 8 * n) for n in range(60))


@pytest.mark.parametrize("end", [None, 5000, 9000], ids=["whole", "torn", "torn behind its page"])
def test_records_within_a_text_are_no_records(end: int | None) -> None:
    written = WalWriter(SEGMENT)
    first = written.add(Manager.TRANSACTION, COMMIT, 6, ended(6).data)
    text = written.add(MESSAGES, 0, 7, forged(666, written.at) * 4, end=end)
    found = read(written, SEGMENT)
    assert [one.lsn for one in found] == [first, text][: 1 if end else 2]
    lost = LostWal(SEGMENT)
    for one in found:
        lost.add(one)
    assert (lost.xids, lost.undecided) == ({6}, [])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "too short"), (ended(7, COMMIT, 8).data[:-30], "too short"),
        ((1 << 63).to_bytes(8, "little") + b"\0\0\0\0", "no time"),
        ((1 << 62).to_bytes(8, "little") + b"\0\0\0\0", "no time"),
        (ended(7).data + b"\x02\0\0\0" + b"\xff" * 8, "too short"),
    ],
    ids=["empty", "cut off", "before 1970", "after 10000", "four billion subtransactions"],
)  # fmt: skip
def test_a_record_that_no_server_writes_is_told_in_one_sentence(data: bytes, says: str) -> None:
    lost = LostWal(SEGMENT)
    with pytest.raises(ValueError, match=f"the record at 0/100000 .*{says}"):
        lost.add(Record(SEGMENT, SEGMENT + 8, 7, Manager.TRANSACTION, COMMIT | 0x80, (), data))
    assert lost.xids == set()


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
        pair.sql("n2", SALVAGER)
        _run(pair, "n1", ["CHECKPOINT"])
        with psycopg.connect(pair.member_endpoint("n1").client_conninfo()) as victim:
            victim.execute("UPDATE acc SET v = 'never' WHERE id = 1")
            _forge_commits(pair)
            _run(pair, "n1", ["CREATE TABLE lost AS SELECT 1 AS id"])
            _forge_commits(pair)
            stop(pair, "n1")
            victim.close()
        _, out, err = walproof(*_typed(pair, "--out", "lost", "--json"))
        assert out, err
        told = json.loads(out)
        assert (told["undecided"], told["lost_transactions"]) == ([], 1), (told, err)
        assert list(Path("lost").rglob("*.acc.sql")) == []


def _forge_commits(pair: PlainPair) -> None:
    """Texts that hold commits of the transaction that is open, and lines as pg_waldump prints one."""
    conninfo = make_conninfo(pair.member_endpoint("n1").client_conninfo(), user="attacker", password="attacker")
    with psycopg.connect(conninfo, autocommit=True) as one:
        ((xid,),) = one.execute("SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid'").fetchall()
        ((found,),) = one.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        line = f"rmgr: Transaction len (rec/tot): 34/34, tx: {xid}, lsn: {found}, prev {found}, desc: COMMIT\n"
        one.execute(
            "SELECT pg_logical_emit_message(false, %s, %s::bytea)", (line, forged(int(xid), position(str(found))))
        )
    time.sleep(1)  # the WAL writer flushes it
