"""What `walproof observe` counts, by a real server, of tables that stand for its views: names of all versions."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.fixtures.command_line import returned
from tests.fixtures.plain_pair import PlainPair, older_pair, older_versions, plain_pair
from walproof.load.statistics_connection import StatsConnection
from walproof.machine.answering import BoundedLogin
from walproof.machine.clock import RealClock
from walproof.model.topology import ClusterView
from walproof.targets.sql import commit_waits
from walproof.targets.sql.commit_waits import SqlCommitWaits

_STAND_IN = """
CREATE SCHEMA stand_in;
CREATE TABLE stand_in.pg_stat_activity AS SELECT * FROM pg_catalog.pg_stat_activity WITH NO DATA;
CREATE TABLE stand_in.blocked (waiter int, by int[]);
CREATE FUNCTION stand_in.pg_blocking_pids(int) RETURNS int[] LANGUAGE sql
    AS 'SELECT coalesce((SELECT by FROM stand_in.blocked WHERE waiter = $1), ''{}'')';
SET search_path = stand_in, pg_catalog
"""
_WAITS = commit_waits._SQL["waits"].replace(b"$1", b"0")


@pytest.fixture(scope="module", params=["wheel", *older_versions()])
def pair(request: pytest.FixtureRequest) -> Iterator[PlainPair]:
    """The wheel's PostgreSQL; with `make test-versions` the older ones too."""
    with plain_pair() if request.param == "wheel" else older_pair(request.param) as made:
        yield made


@pytest.fixture
def server(pair: PlainPair) -> Iterator["psycopg.Connection[Any]"]:
    """A connection that sees the stand-in until it is rolled back."""
    with psycopg.connect(pair.member_endpoint("n1").client_conninfo()) as connection:
        connection.execute(_STAND_IN.encode())
        yield connection
        connection.rollback()


def session(server: "psycopg.Connection[Any]", pid: int, event: str, backend: str = "client backend") -> None:
    kind, _, name = event.partition(":")
    server.execute(
        "INSERT INTO stand_in.pg_stat_activity (datid, pid, state, application_name, backend_type, wait_event_type,"
        " wait_event) VALUES ((SELECT oid FROM pg_database LIMIT 1), %s, 'active', 'app', %s, %s, %s)",
        (pid, backend, kind or None, name or None),
    )


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        ("IPC:SyncRep", "standby"),
        *(
            (f"IO:{wal}{what}", "flush")
            for wal in ("WAL", "Wal")
            for what in ("Sync", "Write", "InitSync", "InitWrite")
        ),
        ("LWLock:WALWrite", "flush"),
        ("Lock:transactionid", "lock"),
        ("Lock:tuple", "lock"),
        *(
            (e, "")
            for e in ("LWLock:SyncRep", "Extension:SyncRep", "LWLock:WALInsert", "IO:WalRead", "IO:WALCopySync", "")
        ),
    ],
)
def test_a_wait_is_told_by_its_type_and_its_name(server: Any, event: str, counted: str) -> None:
    session(server, 1, event)
    ((*_, standby, flush, lock, _, _),) = server.execute(_WAITS).fetchall()
    assert {"standby": standby, "flush": flush, "lock": lock} == {
        name: int(name == counted) for name in ("standby", "flush", "lock")
    }


@pytest.mark.parametrize(
    ("backend", "seen", "client"),
    [
        ("client backend", 1, 1),
        ("background worker", 1, 0),
        ("autovacuum worker", 1, 0),
        ("logical replication apply worker", 1, 0),
        ("pg_cron launcher", 1, 0),
        ("walsender", 0, 0),
        ("parallel worker", 0, 0),
    ],
)
def test_whatever_may_commit_is_counted_as_its_commits_are(server: Any, backend: str, seen: int, client: int) -> None:
    session(server, 1, "IO:WalSync", backend)
    rows = server.execute(_WAITS).fetchall()
    assert (sum(row[9] for row in rows), sum(row[4] for row in rows)) == (seen, client)


@pytest.mark.parametrize(
    ("blocking", "shares"),
    [
        ([1], (1.0, 0.0)),
        ([2], (0.0, 1.0)),
        ([3], (0.0, 0.0)),
        ([0], (0.0, 0.0)),
        ([1, 3], (0.5, 0.0)),
        ([1, 2, 3, 0], (0.25, 0.25)),
        ([4], (1.0, 0.0)),
        ([5], (0.0, 0.0)),
        ([4, 3], (0.5, 0.0)),
        ([], None),
    ],
)
def test_a_lock_waiter_counts_as_far_as_its_holders_are_in_a_commit_wait(
    server: Any, blocking: list[int], shares: tuple[float, float] | None
) -> None:
    """1 waits for a standby, 2 for the flush, 3 reads, 0 is prepared, 4 is first in a queue behind 1, 5 queues."""
    events = ("IPC:SyncRep", "IO:WalSync", "IO:DataFileRead", "Lock:transactionid", "Lock:tuple", "Lock:tuple")
    for pid, event in enumerate(events, 1):
        session(server, pid, event)
    waiting = {4: [1], **({5: [4]} if blocking == [5] else {}), 6: blocking}
    for pid, by in waiting.items():
        server.execute("INSERT INTO stand_in.blocked VALUES (%s, %s::int[])", (pid, by))
    rows = server.execute(commit_waits._SQL["blockers"]).fetchall()
    assert {row[0] for row in rows} == {3}
    # 4 itself is a waiter behind 1, 5 one behind 4 where it blocks.
    first = [(1.0, 0.0)] + ([(1.0, 0.0)] if blocking == [5] else [])
    assert sorted(row[1:3] for row in rows) == sorted([*first, *([shares] if shares else [])])


@pytest.mark.parametrize(
    ("flush", "replay", "priority", "slot", "state"),
    [
        ("0/1", "0/1", 1, "physical", "streaming"),
        ("0/1", "0/1", 0, "physical", "streaming"),
        ("0/1", "0/1", 0, None, "streaming"),
        (None, None, 1, None, "no standby"),
        ("0/1", None, 0, "physical", "no standby"),
        ("0/1", None, 1, "physical", "streaming"),
        ("0/1", "0/1", 0, "logical", "no standby"),
        ("0/1", "0/1", 1, "logical", "streaming"),
    ],
)
def test_what_streams_counts_as_a_standby_as_in_postgresql(
    server: Any, flush: str | None, replay: str | None, priority: int, slot: str | None, state: str
) -> None:
    """syncrep.c: whatever is named and reports what it flushed; others where they are physical standbys."""
    server.execute(
        "CREATE TABLE stand_in.pg_stat_replication AS SELECT * FROM pg_catalog.pg_stat_replication WITH NO DATA"
    )
    server.execute("CREATE TABLE stand_in.pg_replication_slots (active_pid int, slot_type text)")
    server.execute(
        "INSERT INTO stand_in.pg_stat_replication (pid, application_name, state, flush_lsn, replay_lsn, sync_priority)"
        " VALUES (7, 'n2', 'streaming', %s, %s, %s)",
        (flush, replay, priority),
    )
    server.execute("INSERT INTO stand_in.pg_replication_slots (active_pid, slot_type) VALUES (7, %s)", (slot,))
    ((_, found, *_),) = server.execute(commit_waits._SQL["standbys"]).fetchall()
    assert found == state


@pytest.mark.parametrize(
    ("event", "age_ms", "ages"),
    [
        ("IPC:SyncRep", 1.1e7, [93]),
        ("IO:WalSync", 1.1e7, [93]),
        ("LWLock:WALWrite", None, None),
        ("Lock:tuple", 1.1e7, None),
        ("IPC:SyncRep", -6e7, [-27]),
    ],
)
def test_how_old_a_wait_is_counts_by_quarters_of_a_power_of_2(
    server: Any, event: str, age_ms: float | None, ages: list[int] | None
) -> None:
    """From the later of query_start and state_change; one in the future, as after a step of the clock, is 0.01 ms."""
    session(server, 1, event)
    # In the middle of its bucket: 2.8 to 3.3 hours.
    if age_ms is not None:
        server.execute(
            "UPDATE stand_in.pg_stat_activity SET query_start = clock_timestamp() - %s * interval '1 ms',"
            " state_change = clock_timestamp() - interval '1000 h'",
            (age_ms,),
        )
    assert server.execute(_WAITS).fetchall()[0][12] == ages


@pytest.mark.parametrize(
    ("typed", "level"),
    [
        ("true", "on"),
        ("'1'", "on"),
        ("OFF", "off"),
        ("no", "off"),
        ("'Remote_Apply'", "remote_apply"),
        ("local", "local"),
    ],
)
def test_a_level_of_its_own_is_known_however_it_was_typed(server: Any, typed: str, level: str) -> None:
    server.execute("CREATE ROLE of_its_own")
    server.execute(f"ALTER ROLE of_its_own SET synchronous_commit = {typed}")
    assert ("of_its_own", "", level) in server.execute(commit_waits._SQL["overrides"]).fetchall()


def test_every_statement_is_answered_by_every_version(pair: PlainPair) -> None:
    target: Any = SimpleNamespace(
        name="pair",
        clock=RealClock(),
        observe=lambda: ClusterView(0.0, (), "n1"),
        member_endpoint=pair.member_endpoint,
    )
    with psycopg.connect(
        pair.member_endpoint("n1").client_conninfo(), application_name="writes", autocommit=True
    ) as writing:
        stream = SqlCommitWaits(target).watch(0.2, lambda: False)
        next(stream)
        for _ in range(20):
            writing.execute("BEGIN; SELECT pg_current_xact_id(); COMMIT")
        seen = [next(stream) for _ in range(3)]
    assert {one.leader for one in seen} == {"n1"}
    assert {"walreceiver", "n2"} & {s.name for one in seen for s in one.standbys}
    assert "writes" in {g.application for g in seen[0].groups}
    with closing(StatsConnection(pair.member_endpoint("n1").conninfo(), RealClock())) as connection:
        assert connection.query(commit_waits._SQL["blockers"]) == []


def test_a_statement_is_known_by_its_number_and_wal_by_session_where_sessions_count_it(pair: PlainPair) -> None:
    where = pair.member_endpoint("n1")
    with (
        closing(StatsConnection(where.conninfo(), RealClock())) as connection,
        psycopg.connect(where.client_conninfo(), application_name="numbered") as writing,
    ):
        writing.execute("SET compute_query_id = on")
        numbers = []
        for literal in (1, 2):
            writing.execute(f"SELECT {literal} AS same".encode())
            numbers += [row[3] for row in connection.query(commit_waits._SQL["waits"], "0.001") if row[2] == "numbered"]
        assert len({int(number or 0) for number in numbers} - {0}) == 1
        writing.rollback()
        if connection.version < 18:
            return
        polls = commit_waits._Polls()
        before = polls.add_wal(connection.query(commit_waits._SQL["wal"]), None)
        writing.execute("SELECT pg_logical_emit_message(false, 'walproof', repeat('x', 100000))")
        writing.execute("SELECT pg_stat_force_next_flush()")
        writing.rollback()
        polls.add_wal(connection.query(commit_waits._SQL["wal"]), before)
        assert sum(sums[-1] for names, sums in polls.groups.items() if names[2] == "numbered") >= 100_000


def test_a_member_has_one_connection_at_a_time_and_each_ends_with_observing(
    pair: PlainPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole verb, what finds and describes the members included."""
    opened: list[psycopg.Connection[Any]] = []
    most, lock, connect = Counter[int](), threading.Lock(), BoundedLogin.connect

    def counting(*words: Any, **more: Any) -> "psycopg.Connection[Any]":
        made = connect(*words, **more)
        with lock:
            opened.append(made)
            live = Counter(one.info.port for one in opened if not one.closed)
            most.update({port: max(0, number - most[port]) for port, number in live.items()})
        return made

    monkeypatch.setattr(BoundedLogin, "connect", counting)
    where = pair.endpoint().conninfo(target_session_attrs="")
    code, out = returned("observe", "--target", where, "--duration", "1s", "--record", str(tmp_path / "r"), "--json")
    assert code == 0, out
    assert most == dict.fromkeys(pair.ports.values(), 1)
    assert all(one.closed for one in opened)


@pytest.mark.parametrize(("ends", "most"), [("COMMIT", 0), ("ROLLBACK", 1)])
def test_ids_are_asked_how_they_ended(pair: PlainPair, ends: str, most: int) -> None:
    connection = StatsConnection(pair.member_endpoint("n1").conninfo(), RealClock())
    ids = []
    for number in (0, 100):
        with psycopg.connect(pair.member_endpoint("n1").conninfo(), autocommit=True) as writing:
            for _ in range(number):
                writing.execute(f"BEGIN; SELECT pg_current_xact_id(); {ends}".encode())
        ids.append(str(connection.query(b"SELECT pg_snapshot_xmax(pg_current_snapshot())::text")[0][0]))
    ((*counts,),) = connection.query(commit_waits._SQL["outcomes"], *ids)
    connection.close()
    # Others may take a few ids meanwhile.
    assert int(counts[most] or 0) > 40 > int(counts[1 - most] or 0)
