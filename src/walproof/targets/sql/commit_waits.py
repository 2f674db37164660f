"""Polls what a leader's sessions wait for: one read-only connection, one query in flight, under 1 % of a processor.

Stops when the server is in distress, and says so. Writes nothing, not even a temporary table."""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean

import psycopg

from walproof.errors import TargetError
from walproof.load.sampler import counted, counters_of, counters_statement
from walproof.load.statistics_connection import Row, StatsConnection
from walproof.machine.quoting import pasted
from walproof.machine.sql_file import statements
from walproof.machine.untrusted import one_line
from walproof.model.guarantee import Level
from walproof.model.observed_waits import SessionSums, StandbySeen, WaitsSeen
from walproof.model.ports import Target
from walproof.targets.sql.connection import check_version, connection_error

SHARE = 0.007
"""Of one processor, that polls may take by the fastest of each kind: on average one takes a fifth more, and what is
read once a stretch of time takes up to 0.2 %."""
FASTEST_S, SLOWEST_S = 0.05, 30.0
"""Between two polls."""
_SLEPT_S = 0.005
"""That a poll sleeps on the server before it looks: see commit_waits.sql."""
_REMEMBERED = 100
"""Polls of which the fastest says what one costs: the others waited for a processor meanwhile."""
_SLOW_S, _SLOW_POLLS = 0.5, 5
"""The server is in distress when so many polls in a row took as long."""
_DISTRESS = ("57014", "55P03", "53")
"""SQLSTATEs, or their class: a timeout, a lock not had, too little disk, memory or connections."""
ATTEMPTS = 6
"""In a row without a stretch of time seen: then the member is gone. Pauses double from 1 s: half a minute in all."""
_ENDS_S = 0.2
"""How soon it notices that it shall end."""
_EVERY = {"standbys": 4, "blockers": 8, "wal": 20}
"""Polls from one look at the standbys' lags, at what blocks lock waiters, at who writes WAL, to the next."""
_MOST_GROUPS = 200
"""Groups of sessions in one event. From half as many on statements, then sessions, are no longer told apart."""
_CONNECTING = {
    "application_name": "walproof observe",
    "connect_timeout": "5",
    "gssencmode": "disable",
    "options": "-c default_transaction_read_only=on -c statement_timeout=2000 -c lock_timeout=500 -c jit=off",
}
_SQL = {name: text.encode() for name, text in statements("walproof.targets.sql", "commit_waits.sql").items()}


def pace_s(costs_s: Mapping[str, Sequence[float]]) -> float:
    """Seconds between polls so that they take at most SHARE of a processor, by what the queries of each kind took.

    >>> pace_s({}), pace_s({"waits": [0.0002]}), pace_s({"waits": [0.004, 0.002], "standbys": [0.004]})
    (0.05, 0.05, 0.428571)
    """
    cost = sum(min(took) / _EVERY.get(name, 1) for name, took in costs_s.items())
    return min(SLOWEST_S, max(FASTEST_S, round(cost / SHARE, 6)))


@dataclass(slots=True)
class _Polls:
    """Added up since the last event; groups by (database, role, application, statement); see WaitsSeen."""

    count: int = 0
    groups: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    standbys: dict[Row, list[Row]] | None = None
    blocked: float = 0.0
    blocked_by_flush: float = 0.0
    blockers: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    longest_ms: float = 0.0
    ages: Counter[int] = field(default_factory=Counter)

    def add_waits(self, rows: list[Row]) -> None:
        """One poll of sessions."""
        self.count += 1
        for row in rows:
            *numbers, longest_ms = (float(n or 0) for n in row[4:12])
            self.ages.update(int(age) for age in (row[12] or "{}")[1:-1].split(",") if age)
            self._add(row[:4], (*numbers, 0.0))
            self.longest_ms = max(self.longest_ms, longest_ms)

    def add_wal(self, rows: list[Row], before: Mapping[str, float] | None) -> dict[str, float]:
        """What sessions wrote since the look `before`; returns what each has written until now."""
        now = {str(row[3]): float(row[4] or 0) for row in rows}
        if before is not None:
            for row in rows:
                risen = now[str(row[3])] - before.get(str(row[3]), 0.0)
                self._add((*row[:3], ""), (*(0.0,) * 7, max(0.0, risen)))
        return now

    def _add(self, names: Row, numbers: Sequence[float]) -> None:
        database, role, application, statement = (name or "" for name in names)
        key = (database, role, application, statement)
        if key not in self.groups and len(self.groups) >= _MOST_GROUPS / 2:
            key = (database, role, application, "others")
        if key not in self.groups and len(self.groups) >= _MOST_GROUPS:
            key = ("others", "others", "others", "others")
        self.groups[key] = [a + b for a, b in zip(self.groups.get(key, [0.0] * 8), numbers, strict=True)]

    def add_standbys(self, rows: list[Row]) -> None:
        """One look at standbys, by name and process; those that are gone count no more."""
        before = self.standbys or {}
        self.standbys = {(row[0], row[8]): [*before.get((row[0], row[8]), ()), row] for row in rows}

    def add_blockers(self, rows: list[Row]) -> None:
        """One look at what blocks lock waiters: those asked for stand for all that waited."""
        for waiting, standby, flush, application in rows:
            each = float(waiting or 0) / len(rows)
            self.blocked += each
            self.blocked_by_flush += each * float(flush or 0)
            self.blockers[application or ""] += each * float(standby or 0)


def _standby(rows: list[Row]) -> StandbySeen:
    lags = [[float(v) for row in rows if (v := row[i]) is not None] for i in (2, 3, 4)]
    write, flush, replay = (round(fmean(values), 4) if values else None for values in lags)
    behind = (int(rows[-1][5] or 0), int(rows[-1][6] or 0), int(rows[-1][7] or 0))
    return StandbySeen(str(rows[-1][0]), str(rows[-1][1]), (write, flush, replay), behind)


class SqlCommitWaits:
    """CommitWaits of any target that speaks SQL."""

    def __init__(self, target: Target, typed: Callable[[str, str], str] = lambda _leader, statement: statement) -> None:
        """typed: how an administrator of that leader types a statement."""
        self._target, self._clock, self._typed = target, target.clock, typed
        self._random = random.Random(1)
        self._costs: dict[str, deque[float]] = {}
        self._slow, self._due, self._polls, self._failures, self._leader = 0, 0.0, 0, 0, ""
        self._wal: dict[str, float] | None = None
        """Bytes by session as last looked at; None before the first look at this server."""
        self._standbys: tuple[StandbySeen, ...] = ()
        """As last looked at: where polls are rare, not every event has a look of its own."""

    def watch(self, every_s: float, ended: Callable[[], bool]) -> Iterator[WaitsSeen]:
        """What was polled in each `every_s`; see model.ports."""
        with ExitStack() as opened:
            connection: StatsConnection | None = self._open(opened)
            while not ended():
                try:
                    connection = connection or self._open(opened)
                    seen = self._seen(connection, every_s, ended)
                except (psycopg.Error, TargetError) as wrong:
                    opened.close()
                    connection = None
                    self._pause(wrong if isinstance(wrong, TargetError) else _said(self._leader, wrong), ended)
                    continue
                if seen is not None:
                    self._failures = 0
                    yield seen

    def _pause(self, said: TargetError, ended: Callable[[], bool]) -> None:
        """Before the next attempt, ever longer; TargetError in distress and after ATTEMPTS in a row."""
        if isinstance(said, _Distress):
            raise said
        if self._failures == ATTEMPTS:
            why = f"{self._leader} is gone: {ATTEMPTS} attempts in a row failed, the last with: {said.message}"
            raise TargetError(why, "walproof doctor")
        due = self._clock.now() + 2.0**self._failures
        self._failures += 1
        while not ended() and (left := due - self._clock.now()) > 0:
            self._clock.pause(min(_ENDS_S, left))

    def _open(self, opened: ExitStack) -> StatsConnection:
        leader = self._target.observe().leader
        if leader is None:
            raise TargetError(f"{self._target.name} has no leader that answers just now", "walproof doctor")
        self._leader, self._wal = leader, None
        try:
            connection = StatsConnection(self._target.member_endpoint(leader).conninfo(**_CONNECTING), self._clock)
            opened.callback(connection.close)
            ((sees, process, standby, role),) = connection.query(_SQL["rights"])
        except psycopg.Error as wrong:
            raise _said(leader, wrong) from None
        check_version(10_000 * connection.version, leader)
        if process != str(connection.process):
            pooled = f"a connection pooler answers in place of {leader}, which shows one server as several"
            raise TargetError(pooled, "name the server itself")
        if sees != "t":
            grant = self._typed(leader, pasted("GRANT pg_monitor TO {role:sql_name}", role=role or ""))
            raise TargetError(f"{role} may not see what other sessions wait for on {leader}", grant)
        if standby == "t":
            raise TargetError(f"{leader} is a standby, where no commit waits", "name the leader")
        return connection

    def _seen(self, connection: StatsConnection, every_s: float, ended: Callable[[], bool]) -> WaitsSeen | None:
        """What is polled within `every_s`, with what the counters rose by; None where it ended before a poll."""
        level = Level(str(connection.query(_SQL["level"])[0][0]))
        overrides = tuple((str(r), str(d), Level(str(own))) for r, d, own in connection.query(_SQL["overrides"]))
        counters = counters_statement(connection)
        before, began = counters_of(connection.query(counters)[0]), self._clock.now()
        polls = _Polls()
        while not ended() and (not polls.count or self._clock.now() < began + every_s):
            if self._clock.now() >= self._due:
                self._poll(connection, polls)
                # Polls at equal distances could keep step with the load.
                # The first ones, which plan and read from disk, do not say what one costs.
                pace = min(pace_s(self._costs), FASTEST_S * 2.0 ** min(self._polls, 10))
                self._due = self._clock.now() + pace * self._random.uniform(0.5, 1.5)
            until = self._due if not polls.count else min(self._due, began + every_s)
            self._clock.pause(min(_ENDS_S, max(0.0, until - self._clock.now())))
        if not polls.count:
            return None
        if polls.standbys is not None:
            self._standbys = tuple(_standby(rows) for rows in polls.standbys.values())
        at, after = self._clock.now(), counters_of(connection.query(counters)[0])
        first, new_ids = before.next_id or 0, counted(before, after, "next_id") or 0
        ((committed, aborted),) = connection.query(_SQL["outcomes"], str(first), str(first + new_ids))
        return WaitsSeen(
            at=at, seconds=at - began, polls=polls.count, leader=self._leader, level=level, standby_names=after.names,
            groups=tuple(SessionSums(*key, *(round(n, 4) for n in sums)) for key, sums in polls.groups.items()),
            standbys=self._standbys, transaction_ids=new_ids, committed=int(committed or 0), aborted=int(aborted or 0),
            commits=counted(before, after, "committed") or 0, rollbacks=counted(before, after, "rolled_back") or 0,
            blocked=round(polls.blocked, 4), blocked_by_flush=round(polls.blocked_by_flush, 4),
            blockers={name: round(share, 4) for name, share in polls.blockers.items() if share},
            longest_ms=round(polls.longest_ms, 3), ages=dict(polls.ages), overrides=overrides,
            checkpoint=after.checkpoints > before.checkpoints,
        )  # fmt: skip

    def _poll(self, connection: StatsConnection, polls: _Polls) -> None:
        """One poll of sessions; now and then of standbys and blockers too. TargetError in distress."""
        self._polls += 1
        polls.add_waits(self._timed(connection, "waits", _SLEPT_S))
        took = self._costs["waits"][-1]
        self._slow = self._slow + 1 if took > _SLOW_S else 0
        if self._slow >= _SLOW_POLLS:
            raise _Distress(self._leader, f"looks at its statistics took {took:.1f} s")
        if self._polls % _EVERY["standbys"] == 1:
            polls.add_standbys(self._timed(connection, "standbys"))
        if self._polls % _EVERY["blockers"] == 1 and any(n[6] for n in polls.groups.values()):
            polls.add_blockers(self._timed(connection, "blockers"))
        if self._polls % _EVERY["wal"] == 1 and connection.version >= 18:
            # The first look, which plans, would slow down all polls until the next.
            rows = connection.query(_SQL["wal"]) if self._wal is None else self._timed(connection, "wal")
            self._wal = polls.add_wal(rows, self._wal)

    def _timed(self, connection: StatsConnection, name: str, *slept_s: float) -> list[Row]:
        began = self._clock.now()
        rows = connection.query(_SQL[name], *map(str, slept_s))
        took = self._clock.now() - began - sum(slept_s)
        self._costs.setdefault(name, deque(maxlen=_REMEMBERED)).append(max(0.0, took))
        return rows


class _Distress(TargetError):
    """The server is not to be asked again."""

    def __init__(self, leader: str, why: str) -> None:
        hint = "what was seen so far is kept; look at its processors, disks and locks first"
        super().__init__(f"{leader} is in distress: {why}; observing has stopped", hint)


def _said(leader: str, wrong: psycopg.Error) -> TargetError:
    """By SQLSTATE: messages are in the server's language (lc_messages)."""
    if (wrong.sqlstate or "").startswith(_DISTRESS):
        return _Distress(leader, f"a look at its statistics ended with SQLSTATE {wrong.sqlstate}: {one_line(wrong)}")
    return connection_error(wrong)
