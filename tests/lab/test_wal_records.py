"""Records of WAL that real servers wrote, of each version: as many, and as PostgreSQL's own pg_waldump sees them."""

import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.plain_pair import PlainPair, debian_pair, older_pair, older_versions, plain_pair, start, stop
from walproof.salvaging.timelines import position, segment
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record, WalReader

pytestmark = [pytest.mark.lab, pytest.mark.nightly]
SEGMENT = 1 << 24
_MANAGERS = (
    "XLOG Transaction Storage CLOG Database Tablespace MultiXact RelMap Standby Heap2 Heap Btree Hash Gin Gist Sequence"
    " SPGist BRIN CommitTs ReplicationOrigin Generic LogicalMessage"
)
_NAMES = {name.upper(): number for number, name in enumerate(_MANAGERS.split())}
_LINE = re.compile(r"rmgr: (\w+) +len \(rec/tot\): +\d+/ *\d+, tx: +(\d+), lsn: (\S+), prev \S+, desc: (.*)")
_BLOCK = re.compile(r"rel (\d+)/(\d+)/(\d+) blk (\d+)")
_STATEMENTS = """
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t SELECT g, repeat('x', g % 500) FROM generate_series(1, 5000) g;
DO $$ BEGIN FOR i IN 1..100 LOOP BEGIN UPDATE t SET v = v || 'y' WHERE id = i;
    EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$;
DELETE FROM t WHERE id % 7 = 0;
VACUUM t;
CREATE TABLE p (id int, k int) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
INSERT INTO p SELECT g, 1 FROM generate_series(1, 50) g;
UPDATE p SET k = 2 WHERE id < 10;
CREATE TABLE u (id int PRIMARY KEY, v text UNIQUE);
INSERT INTO u SELECT g, g FROM generate_series(1, 5) g;
UPDATE u SET v = 'x' WHERE id = 3;
CREATE SEQUENCE s;
SELECT nextval('s');
TRUNCATE p1;
CHECKPOINT;
SELECT pg_switch_wal();
UPDATE t SET v = 'z' WHERE id < 1000;
BEGIN; INSERT INTO t VALUES (-1, 'p'); PREPARE TRANSACTION 'one';
COMMIT PREPARED 'one';
BEGIN; INSERT INTO t VALUES (-2, 'p'); PREPARE TRANSACTION 'two';
ROLLBACK PREPARED 'two';
SELECT pg_logical_emit_message(true, 'pre', repeat('m', 300000));
DROP TABLE t;
CREATE DATABASE d;
BEGIN; INSERT INTO p VALUES (99, 1); PREPARE TRANSACTION 'it''s'
"""


@pytest.fixture(scope="module", params=["18", "15", *older_versions()])
def version(request: pytest.FixtureRequest) -> Iterator[tuple[int, PlainPair]]:
    """The wheel's PostgreSQL and Debian's; with `make test-versions` the older ones too."""
    made = {"18": plain_pair, "15": debian_pair}.get(request.param, lambda: older_pair(request.param))
    with made() as pair:
        for setting in ("max_prepared_transactions = 10", "wal_compression = on", "wal_keep_size = '1GB'"):
            pair.sql("n1", f"ALTER SYSTEM SET {setting}")
        stop(pair, "n1", "fast")
        start(pair, "n1")
        yield int(request.param), pair


def test_every_record_is_read(version: tuple[int, PlainPair]) -> None:
    major, pair = version
    ((begin,),) = pair.sql("n1", "SELECT pg_current_wal_insert_lsn()::text")
    statements = re.split(r";\n(?!\s)", _STATEMENTS.strip())
    for one in statements:
        with psycopg.connect(pair.member_endpoint("n1").client_conninfo(), autocommit=True) as session:
            session.execute(one.encode())
    ((end,),) = pair.sql("n1", "SELECT pg_current_wal_insert_lsn()::text")
    ((rekeyed, entered),) = pair.sql("n1", "SELECT pg_relation_filenode('u')::int, pg_relation_filenode('p2')::int")
    wal = pair.data("n1") / "pg_wal"

    @lru_cache(2)
    def of(number: int) -> bytes:
        path = wal / segment(1, number, SEGMENT)
        return path.read_bytes() if path.exists() else b""

    def read(at: int, count: int) -> bytes:
        return of(at // SEGMENT)[at % SEGMENT : at % SEGMENT + count]

    ((system,),) = pair.sql("n1", "SELECT system_identifier::text FROM pg_control_system()")
    stop(pair, "n1", "fast")

    first = position(str(begin)) // SEGMENT * SEGMENT
    records = list(WalReader(major, int(str(system)), 1, SEGMENT, read).records(first, 1 << 62))
    assert records[-1].end >= position(str(end))
    lost = LostWal(position(str(begin)), major)
    for one in records:
        lost.add(one)
    assert lost.subtransactions == 100 and [*lost.prepared.values()] == ["it's"] and len(lost.moved) == 1
    went_from, came_to = ({node for _, _, node in some if node >= 16384} for some in (lost.went_from, lost.came_to))
    assert came_to == {rekeyed, entered} and len(went_from) == 2 and went_from & came_to == {rekeyed}
    assert (lost.known_from is not None, lost.undecided, lost.tablespaces) == (True, [], [])
    _compare(pair, wal, first, records)


def _compare(pair: PlainPair, wal: Path, first: int, records: list[Record]) -> None:
    """With pg_waldump, where that version has one: the servers from npm have none."""
    program = pair.bin / "pg_waldump"
    if not program.exists():
        return
    last = segment(1, records[-1].lsn // SEGMENT, SEGMENT)
    argv: list[str | Path] = [program, "-p", wal, segment(1, first // SEGMENT, SEGMENT), last]
    said = subprocess.run(argv, capture_output=True, check=False).stdout.decode(errors="replace")
    lines = [match.groups() for match in map(_LINE.match, said.splitlines()) if match]
    assert len(lines) == len(records)
    for (name, xid, lsn, text), one in zip(lines, records, strict=True):
        assert (position(lsn), int(xid), _NAMES[name.upper()]) == (one.lsn, one.xid, one.manager)
        if one.manager in set(Manager):
            blocks = tuple(((int(a), int(b), int(c)), int(block)) for a, b, c, block in _BLOCK.findall(text))
            assert blocks == one.blocks, text
