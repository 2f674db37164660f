"""A canary: one tiny commit per level per second, classified as the ledger does. A thread and a connection each.

Those of one database share a table, which the last removes; what a killed one left, the next takes over. Where the
server does not answer, a level has at most two sessions there: one at work, and one that asks whether it still is."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from walproof.errors import ODD, TargetError
from walproof.load.ledger.commit_outcome import SUCCESS, Answer
from walproof.load.open_session import open_session
from walproof.load.own_tables import SCHEMA, comment_on, has_schema, make
from walproof.load.repeated_logins import LOGIN, first_answer
from walproof.machine.answering import answering
from walproof.machine.quoting import pasted
from walproof.machine.untrusted import one_line
from walproof.model.guarantee import Level
from walproof.model.load import Outcome
from walproof.model.ports import Target
from walproof.model.topology import Endpoint

TABLE = "walproof.walproof_canary"
MARK = "walproof: canary, safe to drop"
ANSWER_TIMEOUT_S = 5.0
"""A frozen server's kernel still answers TCP, so no network timeout ends this wait: the canary has the commit cancelled
there, and closes the socket."""
GRACE_S = 2.0
"""For a cancelling, and what comes of it."""
_CHANGE_S, _LOOK_S, _LOOK_AGAIN_S = 10.0, 0.05, 0.5
_CREATE = f"""\
CREATE TABLE {TABLE} (level text PRIMARY KEY, at timestamptz);
COMMENT ON TABLE {TABLE} IS '{MARK}'""".encode()
_OWN_SCHEMA = f"COMMENT ON SCHEMA {SCHEMA} IS '{MARK}'".encode()
_HAS_OWN_SCHEMA = "SELECT true FROM pg_namespace WHERE nspname = %s AND obj_description(oid, 'pg_namespace') = %s"
_LEAVE = f"DELETE FROM {TABLE} WHERE level LIKE %s OR at < clock_timestamp() - interval '1 minute'"
"""One row per level and canary; a living one's is never that old but where its pace or its commits are so slow."""
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(b"walproof"[:7]),)
_NO_TABLE = "42P01"
_END_EARLIER = """\
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE starts_with(application_name, %s) AND usename = session_user AND pid <> pg_backend_pid()
AND state IS DISTINCT FROM 'idle'"""
UPSERT = f"INSERT INTO {TABLE} VALUES (%s, clock_timestamp()) ON CONFLICT (level) DO UPDATE SET at = excluded.at"


@dataclass(frozen=True, slots=True)
class Probe:
    """One canary commit: when it ended (seconds since the epoch), level, outcome, seconds it took."""

    at: float
    level: Level
    outcome: Outcome
    seconds: float

    @property
    def outcome_name(self) -> str:
        """acknowledged, downgraded, unknown or refused."""
        return self.outcome.name.lower()

    @property
    def acknowledged(self) -> bool:
        """Acknowledged without the warning that the wait for standbys was cancelled."""
        return self.outcome is Outcome.ACKNOWLEDGED

    @property
    def unknown(self) -> bool:
        """The commit may or may not exist."""
        return self.outcome is Outcome.UNKNOWN


def _outlast(connection: psycopg.Connection) -> None:
    """From here on TCP waits for as long as a commit may take: a login gives up sooner."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * ANSWER_TIMEOUT_S))


@contextmanager
def _in_time(connection: psycopg.Connection, within_s: float, ended: threading.Event) -> Iterator[threading.Event]:
    """What is not answered in time, or until `ended`, is cancelled in the server, and then cut off; the event says so.

    A session that waits there for a standby or a lock does not notice that it is cut off.
    """
    answered, late = threading.Event(), threading.Event()

    def watch() -> None:
        until = time.monotonic() + within_s
        while not answered.wait(_LOOK_S):
            if ended.is_set() or time.monotonic() > until:
                late.set()
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=GRACE_S)  # cancel() waits for a frozen server
                return

    watcher = threading.Thread(target=watch, name="canary", daemon=True)
    with answering(connection, within_s + GRACE_S):
        watcher.start()
        try:
            yield late
        finally:
            answered.set()
            watcher.join()


def _not_ended(connection: psycopg.Connection, name: str, within_s: float, closed: threading.Event) -> list[int]:
    """Ends the sessions whose names begin so and that are at work, all but this one; process ids of those that stay.

    None where the server does not let this role see that.
    """
    until = time.monotonic() + within_s
    with suppress(psycopg.errors.InsufficientPrivilege):
        while pids := _end_earlier(connection, name):
            if time.monotonic() >= until or closed.wait(_LOOK_AGAIN_S):
                return pids
    return []


def _end_earlier(connection: psycopg.Connection, name: str) -> list[int]:
    with connection.transaction():
        # A role that the DSN asks for may neither see nor end what is of who logs in.
        connection.execute("SET LOCAL ROLE none")
        return [int(pid) for pid, _ in connection.execute(_END_EARLIER, (name,)).fetchall()]


@contextmanager
def _changing(endpoint: Endpoint, name: str) -> "Iterator[psycopg.Connection[Any]]":
    """A transaction that makes or removes the table, of one canary at a time; its commit waits for no standby.

    TargetError where another session whose name begins so is at work, and cannot be ended.
    """
    never = threading.Event()
    with (
        open_session(endpoint.conninfo(connect_timeout="5", application_name=name)) as connection,
        _in_time(connection, _CHANGE_S, never),
    ):
        if pids := _not_ended(connection, name, GRACE_S, never):
            raise TargetError(f"its session of pid {', '.join(map(str, pids))} there is still at work")
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = local")
            connection.execute("SET LOCAL lock_timeout = '2s'")
            # Who holds it longer is no canary.
            with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
                connection.execute(*_ONE_AT_A_TIME)
            yield connection


def _create_table(endpoint: Endpoint, name: str) -> None:
    """Unless it is there. Another role's could have triggers, which would run with our rights."""
    try:
        with _changing(endpoint, name) as connection:
            had_schema = has_schema(connection)
            if comment_on(connection, TABLE, MARK) is None:
                make(connection, TABLE, _CREATE)
            if not had_schema:
                connection.execute(_OWN_SCHEMA)
    except psycopg.Error as wrong:
        what = f"the canary's table cannot be made: {' '.join(str(wrong).split())}"
        raise TargetError(
            what,
            pasted("as the database's owner: CREATE SCHEMA walproof AUTHORIZATION {user:sql_name}", user=endpoint.user),
        ) from None


class Canary:
    """Commits at each level every `pace_s` and reports each probe; close() drops the table that no other one uses.

    TargetError when a table of that name exists that is not walproof's.
    """

    def __init__(
        self, target: Target, levels: Sequence[Level], report: Callable[[Probe], None], *, pace_s: float = 1.0
    ) -> None:
        rate = target.capabilities().limits.rate
        # Each level commits once per pace: all together stay below the cap of the target.
        self._pace_s = max(pace_s, len(levels) / rate) if rate else pace_s
        self._target, self._report = target, report
        self._closed = threading.Event()
        self._one_logs_in = threading.Lock()
        self._name = secrets.token_hex(4)
        _create_table(self._endpoint(), self._session_name("table"))
        self._threads = [threading.Thread(target=self._run, args=(level,), daemon=True) for level in levels]
        for thread in self._threads:
            thread.start()

    def _endpoint(self) -> Endpoint:
        """The first route that follows the leader and keeps sessions: synchronous_commit is set in the session."""
        routes = self._target.routes()
        return self._target.endpoint(next((r for r in routes if r.follows and not r.pools), routes[0]).name)

    def _session_name(self, *what: str) -> str:
        """What the server shows: it tells this canary's sessions from all others there."""
        return " ".join(("walproof canary", self._name, *what))

    def close(self) -> str:
        """Stop probing, end what is at work and remove the table, unless another canary uses it.

        What stays on the cluster and why, in one sentence; "" where nothing does.
        """
        self._closed.set()
        until = time.monotonic() + 2 * GRACE_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
        try:
            self._remove()
        except (psycopg.Error, *ODD) as wrong:
            return f"the canary's table {TABLE} stays, until another canary ends there: {one_line(wrong, 300)}"
        return ""

    def _remove(self) -> None:
        with _changing(self._endpoint(), self._session_name()) as connection:
            connection.execute(_LEAVE, (f"% {self._name}",))
            if connection.execute(f"SELECT true FROM {TABLE} LIMIT 1").fetchone() is None:
                connection.execute(f"DROP TABLE {TABLE}")
                if has_schema(connection) and connection.execute(_HAS_OWN_SCHEMA, (SCHEMA, MARK)).fetchone():
                    with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                        connection.execute(f"DROP SCHEMA {SCHEMA}")

    def _run(self, level: Level) -> None:
        while not self._closed.is_set():
            with suppress(psycopg.Error, *ODD), self._session(level) as connection:
                if self._is_alone(connection, level):
                    self._probe_until_lost(connection, level)
            self._closed.wait(self._pace_s)

    @contextmanager
    def _its_turn(self) -> Iterator[None]:
        """One level after another logs in, until closed."""
        with self._one_logs_in:
            if self._closed.is_set():
                raise TargetError("the canary is closed")
            yield

    @contextmanager
    def _session(self, level: Level) -> Iterator[psycopg.Connection]:
        name = self._session_name(level)
        with ExitStack() as opened:
            with self._its_turn(), first_answer(endpoint := self._endpoint()):
                connection = opened.enter_context(open_session(endpoint.conninfo(**LOGIN, application_name=name)))
                _outlast(connection)
                with _in_time(connection, ANSWER_TIMEOUT_S, self._closed):
                    connection.execute(f"SET synchronous_commit = {level}")
                    _not_ended(connection, name, 0.0, self._closed)
            yield connection

    def _is_alone(self, connection: psycopg.Connection, level: Level) -> bool:
        """Whether no commit before is at work there any more; else this one is unknown too, and none joins that."""
        started = time.monotonic()
        with _in_time(connection, 2 * ANSWER_TIMEOUT_S, self._closed):
            stays = _not_ended(connection, self._session_name(level), ANSWER_TIMEOUT_S, self._closed)
        if stays:
            self._report(Probe(self._target.clock.now(), level, Outcome.UNKNOWN, time.monotonic() - started))
        return not stays

    def _probe_until_lost(self, connection: psycopg.Connection, level: Level) -> None:
        warned: list[str] = []
        connection.add_notice_handler(lambda notice: warned.append(notice.sqlstate or ""))
        while not self._closed.is_set():
            warned.clear()
            started = time.monotonic()
            answer = _commit(connection, f"{level} {self._name}", warned, self._closed)
            seconds = time.monotonic() - started
            if answer.sqlstate == _NO_TABLE:  # a failover lost it, or somebody dropped it: no outcome of a commit
                with suppress(*ODD):
                    _create_table(self._endpoint(), self._session_name("table", level))
                    return
            self._report(Probe(self._target.clock.now(), level, answer.outcome, seconds))
            if connection.closed or answer.leave_server:
                return
            self._closed.wait(max(0.0, self._pace_s - seconds))


def _commit(connection: psycopg.Connection, row: str, warned: list[str], ended: threading.Event) -> Answer:
    """The server's answer to one commit. A connection that breaks has no SQLSTATE, nor has what came too late."""
    with _in_time(connection, ANSWER_TIMEOUT_S, ended) as late:
        try:
            connection.execute(UPSERT, (row,))
            answer = Answer(SUCCESS, warnings=tuple(warned))
        except psycopg.Error as error:
            answer = Answer(error.sqlstate or "", error.diag.severity_nonlocalized or "", tuple(warned))
    return Answer("") if late.is_set() else answer
