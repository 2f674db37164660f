"""Polls what a leader's sessions wait for: one read-only connection, one query in flight, under 1 % of a processor.

Stops when the server is in distress, and says so. Writes nothing, not even a temporary table."""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import psycopg

from walproof.errors import TargetError
from walproof.load import sampler
from walproof.load.sampler import counters_of, counters_statement
from walproof.load.statistics_connection import Row, StatsConnection
from walproof.machine.sql_file import statements
from walproof.machine.untrusted import one_line
from walproof.model.guarantee import Level
from walproof.model.observed_waits import SessionSums, StandbySeen, WaitsSeen
from walproof.model.ports import Target
from walproof.model.standby_names import quoted
from walproof.targets.sql.connection import connection_error

SHARE = 0.01
"""Of one processor, that polls may take."""
FASTEST_S, SLOWEST_S = 0.05, 30.0
"""Between two polls."""
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
_EVERY = {"standbys": 2, "blockers": 4}
"""Polls from one look at the standbys' lags, and at what blocks lock waiters, to the next."""
_MOST_GROUPS = 200
"""Groups of sessions told apart in one event; the rest are summed up."""
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
    (0.05, 0.05, 0.4)
    """
    cost = sum(min(took) / _EVERY.get(name, 1) for name, took in costs_s.items())
    return min(SLOWEST_S, max(FASTEST_S, round(cost / SHARE, 6)))


@dataclass(slots=True)
class _Polls:
    """Added up since the last event; groups by (database, role, application, statement); see WaitsSeen."""

    count: int = 0
    groups: dict[tuple[str, str, str, str], list[float]] = field(default_factory=dict)
    standbys: dict[str, list[Row]] = field(default_factory=dict)
    blocked: float = 0.0
    blocked_by_flush: float = 0.0
    blockers: dict[str, float] = field(default_factory=dict)
    longest_ms: float = 0.0

    def add_waits(self, rows: list[Row]) -> None:
        """One poll of sessions."""
        self.count += 1
        for row in rows:
            database, role, application, statement = (name or "" for name in row[:4])
            key, numbers = (database, role, application, statement), [float(n or 0) for n in row[4:]]
            if key not in self.groups and len(self.groups) >= _MOST_GROUPS:
                key = ("others", "others", "others", "")
            self.groups[key] = [a + b for a, b in zip(self.groups.get(key, [0.0] * 7), numbers, strict=False)]
            self.longest_ms = max(self.longest_ms, numbers[7])

    def add_blockers(self, rows: list[Row]) -> None:
        """One look at what blocks lock waiters: those asked for stand for all that waited."""
        for waiting, standby, flush, application in rows:
            each, name = float(waiting or 0) / len(rows), application or ""
            self.blocked += each
            self.blocked_by_flush += each * float(flush or 0)
            if standby_share := float(standby or 0):
                self.blockers[name] = self.blockers.get(name, 0.0) + each * standby_share


def _standby(name: str, rows: list[Row]) -> StandbySeen:
    lags = [[float(v) for row in rows if (v := row[i]) is not None] for i in (2, 3, 4)]
    write, flush, replay = (round(fmean(values), 4) if values else None for values in lags)
    behind = (int(rows[-1][5] or 0), int(rows[-1][6] or 0), int(rows[-1][7] or 0))
    return StandbySeen(name, str(rows[-1][1]), (write, flush, replay), behind)


class SqlCommitWaits:
    """CommitWaits of any target that speaks SQL."""

    def __init__(self, target: Target, typed: Callable[[str, str], str] = lambda _leader, statement: statement) -> None:
        """typed: how an administrator of that leader types a statement."""
        self._target, self._clock, self._typed = target, target.clock, typed
        self._random = random.Random(1)
        self._costs: dict[str, deque[float]] = {}
        self._slow, self._due, self._polls, self._failures = 0, 0.0, 0, 0
        self._standbys: tuple[StandbySeen, ...] = ()
        """As last looked at: where polls are rare, not every event has a look of its own."""

    def watch(self, every_s: float, ended: Callable[[], bool]) -> Iterator[WaitsSeen]:
        """What was polled in each `every_s`; see model.ports."""
        connection: StatsConnection | None
        leader, connection = self._open()
        try:
            while not ended():
                try:
                    if connection is None:
                        leader, connection = self._open()
                    seen = self._seen(leader, connection, every_s, ended)
                except (psycopg.Error, TargetError) as wrong:
                    if connection is not None:
                        connection.close()
                    connection = None
                    self._pause(leader, wrong if isinstance(wrong, TargetError) else _said(leader, wrong), ended)
                    continue
                if seen is not None:
                    self._failures = 0
                    yield seen
        finally:
            if connection is not None:
                connection.close()

    def _pause(self, leader: str, said: TargetError, ended: Callable[[], bool]) -> None:
        """Before the next attempt, ever longer; TargetError in distress and after ATTEMPTS in a row."""
        if isinstance(said, _Distress):
            raise said
        if self._failures == ATTEMPTS:
            why = f"{leader} is gone: {ATTEMPTS} attempts in a row failed, the last with: {said.message}"
            raise TargetError(why, "walproof doctor")
        due = self._clock.now() + 2.0**self._failures
        self._failures += 1
        while not ended() and (left := due - self._clock.now()) > 0:
            self._clock.pause(min(_ENDS_S, left))

    def _open(self) -> tuple[str, StatsConnection]:
        leader = self._target.observe().leader
        if leader is None:
            raise TargetError(f"{self._target.name} has no leader that answers just now", "walproof doctor")
        connection = None
        try:
            connection = StatsConnection(self._target.member_endpoint(leader).conninfo(**_CONNECTING), self._clock)
            ((sees, process, standby, role),) = connection.query(_SQL["rights"])
        except psycopg.Error as wrong:
            if connection:
                connection.close()
            raise _said(leader, wrong) from None
        blind = f"{role} may not see what other sessions wait for on {leader}"
        grant = self._typed(leader, f"GRANT pg_monitor TO {quoted(role or '')}")
        checks = (
            (process != str(connection.process), _behind_pooler(leader)),
            (sees != "t", TargetError(blind, grant)),
            (standby == "t", TargetError(f"{leader} is a standby, where no commit waits", "name the leader")),
        )
        for failed, why in checks:
            if failed:
                connection.close()
                raise why
        return leader, connection

    def _seen(
        self, leader: str, connection: StatsConnection, every_s: float, ended: Callable[[], bool]
    ) -> WaitsSeen | None:
        """What is polled within `every_s`, with what the counters rose by; None where it ended before a poll."""
        level = Level(str(connection.query(_SQL["level"])[0][0]))
        overrides = tuple((str(r), str(d), Level(str(own))) for r, d, own in connection.query(_SQL["overrides"]))
        before, began = self._counters(connection), self._clock.now()
        polls = _Polls()
        while not ended() and (not polls.count or self._clock.now() < began + every_s):
            if self._clock.now() >= self._due:
                self._poll(leader, connection, polls)
                # Polls at equal distances could keep step with the load.
                # The first ones, which plan and read from disk, do not say what one costs.
                pace = min(pace_s(self._costs), FASTEST_S * 2.0 ** min(self._polls, 10))
                self._due = self._clock.now() + pace * self._random.uniform(0.5, 1.5)
            until = self._due if not polls.count else min(self._due, began + every_s)
            self._clock.pause(min(_ENDS_S, max(0.0, until - self._clock.now())))
        if not polls.count:
            return None
        self._standbys = tuple(_standby(name, rows) for name, rows in polls.standbys.items()) or self._standbys
        at, after = self._clock.now(), self._counters(connection)
        first = before.next_id or 0
        new_ids = max(0, (after.next_id or 0) - first) if first else 0
        ((committed, aborted),) = connection.query(_SQL["outcomes"], str(first), str(first + new_ids))
        return WaitsSeen(
            at=at, seconds=at - began, polls=polls.count, leader=leader, level=level, standby_names=after.names,
            groups=tuple(SessionSums(*key, *(round(n, 4) for n in sums)) for key, sums in polls.groups.items()),
            standbys=self._standbys, transaction_ids=new_ids, commits=_rise(before, after, "committed"),
            rollbacks=_rise(before, after, "rolled_back"), committed=int(committed or 0), aborted=int(aborted or 0),
            blocked=round(polls.blocked, 4), blocked_by_flush=round(polls.blocked_by_flush, 4),
            blockers={name: round(share, 4) for name, share in polls.blockers.items()},
            longest_ms=round(polls.longest_ms, 3), checkpoint=after.checkpoints > before.checkpoints,
            overrides=overrides,
        )  # fmt: skip

    def _poll(self, leader: str, connection: StatsConnection, polls: _Polls) -> None:
        """One poll of sessions; now and then of standbys and blockers too. TargetError in distress."""
        self._polls += 1
        polls.add_waits(self._timed(connection, "waits"))
        took = self._costs["waits"][-1]
        self._slow = self._slow + 1 if took > _SLOW_S else 0
        if self._slow >= _SLOW_POLLS:
            raise _Distress(leader, f"looks at its statistics took {took:.1f} s")
        if self._polls % _EVERY["standbys"] == 1:
            for row in self._timed(connection, "standbys"):
                polls.standbys.setdefault(str(row[0]), []).append(row)
        if self._polls % _EVERY["blockers"] == 1 and any(n[6] for n in polls.groups.values()):
            polls.add_blockers(self._timed(connection, "blockers"))

    def _timed(self, connection: StatsConnection, name: str) -> list[Row]:
        began = self._clock.now()
        rows = connection.query(_SQL[name])
        self._costs.setdefault(name, deque(maxlen=_REMEMBERED)).append(self._clock.now() - began)
        return rows

    @staticmethod
    def _counters(connection: StatsConnection) -> sampler.Counters:
        return counters_of(connection.query(counters_statement(connection))[0])


def _rise(before: sampler.Counters, after: sampler.Counters, name: str) -> int:
    return max(0, (getattr(after, name) or 0) - (getattr(before, name) or 0))


def _behind_pooler(leader: str) -> TargetError:
    return TargetError(
        f"a connection pooler answers in place of {leader}, which shows one server as several", "name the server itself"
    )


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
