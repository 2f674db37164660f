"""Statistics of every member during a sample: counters before and after, wait events and lags polled in between.

One connection per member, kept over samples. A member that does not answer is left out, never an error."""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from statistics import fmean

import psycopg

from walproof.load import local_runner
from walproof.load.local_runner import Machine, Used
from walproof.load.pgbench_log import Mark
from walproof.load.statistics_connection import Row, StatsConnection
from walproof.machine.sql_file import statements
from walproof.model.ports import Clock
from walproof.model.sample import MemberWindow, Window
from walproof.model.topology import Endpoint

_STATEMENTS = statements("walproof.load", "member_statistics.sql")
_COUNTERS = {version: _STATEMENTS[f"counters_{version}"].encode() for version in (18, 17, 14)}
_WAITS = _STATEMENTS["waits"].encode()
_LAGS = _STATEMENTS["lags"].encode()
_FLUSH = _STATEMENTS["flush"].encode()
_REPLAYED = b"SELECT pg_last_wal_replay_lsn() - '0/0'"
_CHECKPOINTER, _AUTOVACUUM, _WAL_WRITER = "checkpointer", "autovacuum worker", "walwriter"
_SETTLE_EVERY_S = 0.005
_LAGS_EVERY = 4
_RETRY_AFTER_S = 10.0
_TERMINATE = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walproof-load'"
_CONNECTING = {
    "application_name": "walproof",
    "connect_timeout": "2",
    "gssencmode": "disable",
    "options": "-c synchronous_commit=local",
}
Pids = Callable[[str], Iterable[int]]


@dataclass(frozen=True, slots=True)
class Counters:
    """One member's counters: WAL position in bytes, flushes and their ms, checkpoints, names in effect, streaming.

    full_pages: page images in the WAL that its statistics know of, which are reported_wal bytes. next_id: the next
    transaction id. committed, rolled_back: transactions, as reported.
    """

    lsn: int | None
    flushes: int | None
    flush_ms: float | None
    checkpoints: int
    names: str
    streaming: int
    full_pages: int | None = None
    reported_wal: int | None = None
    next_id: int | None = None
    committed: int | None = None
    rolled_back: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment (epoch s): per member, the machine, the load's own processes, all known processes."""

    at: float
    counters: dict[str, Counters]
    members: dict[str, Used]
    machine: Machine
    client: Used
    known: Used


@dataclass(slots=True)
class Polled:
    """Polled during a sample: sessions per wait event, lags per standby in ms (write, flush, replay), polls so far.

    writing: those with a transaction id. background: in how many polls the checkpointer or an autovacuum worker was at
    work, or the WAL writer flushed. marks: for a series, and how many polls with a checkpoint the last one had seen.
    """

    waits: dict[str, int] = field(default_factory=dict)
    background: dict[str, int] = field(default_factory=dict)
    lags: dict[str, list[tuple[float | None, float | None, float | None]]] = field(default_factory=dict)
    count: int = 0
    writing: int = 0
    marks: list[Mark] = field(default_factory=list)
    marked: int = 0


class Sampler:
    """Reads statistics of all members; `pids` gives a member's processes, `others` all further ones of the target."""

    def __init__(
        self,
        members: Mapping[str, Endpoint],
        clock: Clock,
        pids: Pids | None = None,
        others: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self._members = dict(members)
        self._pids = pids
        self._others = others
        self._clock = clock
        self._connections: dict[str, StatsConnection] = {}
        self._retry_at: dict[str, float] = {}
        """By member that did not answer: when it is tried again."""
        self._left: tuple[float, int] | None = None
        self.others_ids: float | None = None
        """Transaction ids a second that others took between the last two samples."""

    @property
    def names(self) -> Set[str]:
        return self._members.keys()

    def connect(self) -> None:
        """Connect to every member beforehand, so that it does not cost the sample."""
        for member in self._members:
            self._connected(member)

    def snapshot(self, at: float, client: Iterable[int]) -> Snapshot:
        """Counters of every member now; `client` are the load's own processes."""
        counters = {name: c for name in self._members if (c := self._counters(name)) is not None}
        members = {name: local_runner.used(self._pids(name)) for name in self._members} if self._pids else {}
        others = self._others() if self._others else ()
        known = local_runner.used({*others, *(pid for u in members.values() for pid in u.cpu_s)}, disk=False)
        return Snapshot(
            at, counters, members, local_runner.machine_usage(), local_runner.used(client, disk=False), known
        )

    def poll(self, leader: str, polled: Polled) -> None:
        """Add the leader's wait events now; its standbys' lags every fourth time."""
        for event, count, writing in self._query(leader, _WAITS):
            if event in (_CHECKPOINTER, _AUTOVACUUM, _WAL_WRITER):
                polled.background[event] = polled.background.get(event, 0) + 1
            else:
                polled.waits[str(event)] = polled.waits.get(str(event), 0) + int(count or 0)
                polled.writing += int(writing or 0)
        if polled.count % _LAGS_EVERY == _LAGS_EVERY - 1:
            for name, *lags in self._query(leader, _LAGS):
                write, flush, replay = map(_float, lags)
                polled.lags.setdefault(str(name), []).append((write, flush, replay))
        polled.count += 1

    def mark(self, leader: str, polled: Polled) -> None:
        """Note where the leader's WAL is now, and whether a checkpoint ran since the last mark."""
        counters = self._counters(leader)
        seen = polled.background.get(_CHECKPOINTER, 0)
        polled.marks.append(Mark(self._clock.now(), counters.lsn if counters else None, seen > polled.marked))
        polled.marked = seen

    def settle(self, leader: str, most_s: float) -> float | None:
        """Wait until the leader's WAL is flushed and every standby that answers has replayed it.

        Seconds it took, infinite when it was not so after most_s; None when the leader does not answer.
        """
        started = self._clock.now()
        flushed = self._query(leader, _FLUSH)
        if not flushed:
            return None
        wanted = int(flushed[0][0] or 0)
        if self._left and (following := self._next_id(leader)) is not None:
            at, first = self._left
            # One of them is that of the message which flushed.
            self.others_ids = max(0, following - first - 1) / max(1e-3, self._clock.now() - at)
        behind = [name for name in self._members if name != leader]
        while True:
            behind = [name for name in behind if self._replayed(name, wanted) is False]
            took = self._clock.now() - started
            if not behind or took >= most_s:
                return took if not behind else math.inf
            self._clock.pause(_SETTLE_EVERY_S)

    def load_ended(self, leader: str) -> None:
        """Note which transaction id is the next after the load's."""
        following = self._next_id(leader)
        self._left = None if following is None else (self._clock.now(), following)

    def _next_id(self, leader: str) -> int | None:
        counters = self._counters(leader)
        return counters.next_id if counters else None

    def _replayed(self, member: str, wanted: int) -> bool | None:
        """Whether a standby has replayed that far; None when it does not answer or is none."""
        for (replayed,) in self._query(member, _REPLAYED):
            return None if replayed is None else int(replayed) >= wanted
        return None

    def end_load(self, leader: str) -> None:
        """Terminate the load's sessions on the leader, which hang when no standby answers."""
        self._query(leader, _TERMINATE)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _query(self, member: str, statement: bytes) -> list[Row]:
        connection = self._connected(member)
        if connection is None:
            return []
        try:
            return connection.query(statement)
        except psycopg.Error:
            self._disconnect(member)
            return []

    def _connected(self, member: str) -> StatsConnection | None:
        """The member's connection, opened when there is none; None until a failed member is tried again."""
        if member not in self._connections and self._clock.now() >= self._retry_at.get(member, 0.0):
            try:
                conninfo = self._members[member].conninfo(**_CONNECTING)
                self._connections[member] = StatsConnection(conninfo, self._clock)
            except (psycopg.Error, KeyError):
                self._disconnect(member)
        return self._connections.get(member)

    def _disconnect(self, member: str) -> None:
        connection = self._connections.pop(member, None)
        if connection is not None:
            connection.close()
        self._retry_at[member] = self._clock.now() + _RETRY_AFTER_S

    def _counters(self, member: str) -> Counters | None:
        connection = self._connected(member)
        if connection is None:
            return None
        return next(map(counters_of, self._query(member, counters_statement(connection))), None)


def counters_statement(connection: StatsConnection) -> bytes:
    """What reads the counters of a server of that version."""
    return _COUNTERS[next((version for version in _COUNTERS if connection.version >= version), min(_COUNTERS))]


def counters_of(row: Row) -> Counters:
    lsn, flushes, flush_ms, checkpoints, names, streaming, *more = row
    first = (_int(lsn), _int(flushes), _float(flush_ms), _int(checkpoints) or 0, names or "")
    return Counters(*first, _int(streaming) or 0, *map(_int, more))


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def window(before: Snapshot, after: Snapshot, polled: Polled, leader: str) -> Window:
    """The difference of two snapshots, with what was polled in between. Pure."""
    seconds = max(after.at - before.at, 1e-3)
    members = {name: _member(name, before, after, polled, seconds) for name in {*after.counters, *after.members}}
    total = max(after.machine.total - before.machine.total, 1e-3)
    client = local_runner.cpu_between(before.client, after.client)
    at_end = after.counters.get(leader)
    at_begin = before.counters.get(leader)
    seen = sum(polled.waits.values())
    return Window(
        waits={event: count / seen for event, count in sorted(polled.waits.items())} if seen else {},
        members=members,
        stolen=_stolen(before, after, client, total),
        client_cores=client / seconds,
        machine_busy=(after.machine.busy - before.machine.busy) / total,
        checkpoints=max(0, at_end.checkpoints - at_begin.checkpoints) if at_end and at_begin else 0,
        checkpointing=polled.background.get(_CHECKPOINTER, 0) / max(1, polled.count),
        vacuuming=polled.background.get(_AUTOVACUUM, 0) / max(1, polled.count),
        leader=leader,
        standby_names=at_end.names if at_end else "",
        streaming=at_end.streaming if at_end else 0,
        looks=seen,
        writing=polled.writing,
        wal_writer=polled.background.get(_WAL_WRITER, 0),
    )


def _stolen(before: Snapshot, after: Snapshot, client: float, total: float) -> float:
    """Share of processor time that went to a hypervisor, or to processes of neither target nor load."""
    taken = after.machine.stolen - before.machine.stolen
    if after.known.cpu_s:
        processes = after.machine.processes - before.machine.processes
        taken += max(0.0, processes - client - local_runner.cpu_between(before.known, after.known))
    return max(0.0, taken / total)


def _member(name: str, before: Snapshot, after: Snapshot, polled: Polled, seconds: float) -> MemberWindow:
    old, new = before.counters.get(name), after.counters.get(name)
    cpu = reads = writes = None
    if name in before.members and name in after.members and after.members[name].cpu_s:
        cpu = local_runner.cpu_between(before.members[name], after.members[name]) / seconds
        reads = local_runner.bytes_between(before.members[name].read, after.members[name].read)
        writes = local_runner.bytes_between(before.members[name].written, after.members[name].written)
    # A PostgreSQL 18 walreceiver reports its flushes only when it ends: none counted means that none is known.
    flushes = (_difference(old.flushes, new.flushes) or None) if old and new else None
    spent = _difference(old.flush_ms, new.flush_ms) if old and new else None
    lags = polled.lags.get(name, [])
    write, flush, replay = (_mean([stage[i] for stage in lags]) for i in range(3))
    return MemberWindow(
        cpu_cores=cpu,
        disk_reads=reads,
        disk_writes=writes,
        wal_flushes=None if flushes is None else int(flushes),
        wal_flush_ms=spent / flushes if flushes and spent else None,
        wal_bytes=counted(old, new, "lsn"),
        wal_full_pages=_full_pages(old, new),
        write_lag_ms=write,
        flush_lag_ms=flush,
        replay_lag_ms=replay,
        transaction_ids=counted(old, new, "next_id"),
        rolled_back=_rolled_back(old, new),
    )


def _rolled_back(old: Counters | None, new: Counters | None) -> float | None:
    """The share of transactions rolled back, of those reported; None when none is."""
    ended, rolled_back = (counted(old, new, name) for name in ("committed", "rolled_back"))
    return None if ended is None or rolled_back is None else rolled_back / max(1, ended + rolled_back)


def _full_pages(old: Counters | None, new: Counters | None) -> int | None:
    """Page images in the WAL between the two: their share in what statistics report, of all that was written.

    A backend that is kept busy reports its WAL once a second at most (PostgreSQL 15 to 18, PGSTAT_MIN_INTERVAL in
    src/backend/utils/activity/pgstat.c; 14: PGSTAT_STAT_INTERVAL, twice), images and bytes together, but the position
    is of the moment. None where less than half is reported: in a short sample none of it may be.
    """
    pages, reported, written = (counted(old, new, name) for name in ("full_pages", "reported_wal", "lsn"))
    if pages is None or not reported or not written or reported < written / 2:
        return None
    return round(pages * written / reported)


def counted(old: Counters | None, new: Counters | None, name: str) -> int | None:
    """By how much a counter rose; None when that is not known."""
    rise = _difference(getattr(old, name), getattr(new, name)) if old and new else None
    return None if rise is None else int(rise)


def _difference(old: float | None, new: float | None) -> float | None:
    """None when either is unknown, or when the counter was reset in between."""
    return None if old is None or new is None or new < old else new - old


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None
