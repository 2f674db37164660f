"""A canary: one tiny commit per level per second, classified as the ledger does. A thread and a connection each.

Those of one database share a table, which the last removes; what a killed one left, the next takes over."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from walproof.errors import ODD, Error, TargetError
from walproof.load.ledger.commit_outcome import SUCCESS, Answer
from walproof.load.open_session import open_session
from walproof.load.own_tables import SCHEMA, comment_on, has_schema, make
from walproof.machine.answering import answering
from walproof.machine.quoting import pasted
from walproof.model.guarantee import Level
from walproof.model.load import Outcome
from walproof.model.ports import Target
from walproof.model.topology import Endpoint

TABLE = "walproof.walproof_canary"
MARK = "walproof: canary, safe to drop"
ANSWER_TIMEOUT_S = 5.0
"""A frozen server's kernel still answers TCP, so no network timeout ends this wait: the canary closes the socket."""
_CREATE = f"""\
CREATE TABLE {TABLE} (level text PRIMARY KEY, at timestamptz);
COMMENT ON TABLE {TABLE} IS '{MARK}'""".encode()
_OWN_SCHEMA = f"COMMENT ON SCHEMA {SCHEMA} IS '{MARK}'".encode()
_HAS_OWN_SCHEMA = "SELECT true FROM pg_namespace WHERE nspname = %s AND obj_description(oid, 'pg_namespace') = %s"
_LEAVE = f"DELETE FROM {TABLE} WHERE level LIKE %s OR at < clock_timestamp() - interval '1 minute'"
"""One row per level and canary; a living one's is never that old but where its pace or its commits are so slow."""
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(b"walproof"[:7]),)
_NO_TABLE = "42P01"
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


@contextmanager
def _changing(endpoint: Endpoint) -> "Iterator[psycopg.Connection[Any]]":
    """A transaction that makes or removes the table, of one canary at a time; its commit waits for no standby."""
    with (
        open_session(endpoint.conninfo(connect_timeout="5")) as connection,
        answering(connection),
        connection.transaction(),
    ):
        connection.execute("SET LOCAL synchronous_commit = local")
        connection.execute("SET LOCAL lock_timeout = '2s'")
        with suppress(psycopg.errors.LockNotAvailable), connection.transaction():  # who holds it longer is no canary
            connection.execute(*_ONE_AT_A_TIME)
        yield connection


def _create_table(endpoint: Endpoint) -> None:
    """Unless it is there. Another role's could have triggers, which would run with our rights."""
    try:
        with _changing(endpoint) as connection:
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
        self._name = secrets.token_hex(4)
        _create_table(self._endpoint())
        self._threads = [threading.Thread(target=self._run, args=(level,), daemon=True) for level in levels]
        for thread in self._threads:
            thread.start()

    def _endpoint(self) -> Endpoint:
        """The first route that follows the leader and keeps sessions: synchronous_commit is set in the session."""
        routes = self._target.routes()
        return self._target.endpoint(next((r for r in routes if r.follows and not r.pools), routes[0]).name)

    def close(self) -> None:
        """Stop probing and remove the table, unless another canary uses it; a cluster that does not answer keeps it."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=3)
        with suppress(psycopg.Error, Error), _changing(self._endpoint()) as connection:
            connection.execute(_LEAVE, (f"% {self._name}",))
            if connection.execute(f"SELECT true FROM {TABLE} LIMIT 1").fetchone() is None:
                connection.execute(f"DROP TABLE {TABLE}")
                if has_schema(connection) and connection.execute(_HAS_OWN_SCHEMA, (SCHEMA, MARK)).fetchone():
                    with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                        connection.execute(f"DROP SCHEMA {SCHEMA}")

    def _run(self, level: Level) -> None:
        while not self._closed.is_set():
            with suppress(psycopg.Error, *ODD):
                conninfo = self._endpoint().conninfo(
                    connect_timeout="2", tcp_user_timeout="5000", application_name=f"walproof canary {level}"
                )
                with open_session(conninfo) as connection:
                    with answering(connection):
                        connection.execute(f"SET synchronous_commit = {level}")
                    self._probe_until_lost(connection, level)
            self._closed.wait(self._pace_s)

    def _probe_until_lost(self, connection: psycopg.Connection, level: Level) -> None:
        warned: list[str] = []
        connection.add_notice_handler(lambda notice: warned.append(notice.sqlstate or ""))
        while not self._closed.is_set():
            warned.clear()
            started = time.monotonic()
            answer = _commit(connection, f"{level} {self._name}", warned)
            seconds = time.monotonic() - started
            if answer.sqlstate == _NO_TABLE:  # a failover lost it, or somebody dropped it: no outcome of a commit
                with suppress(*ODD):
                    _create_table(self._endpoint())
                    return
            self._report(Probe(self._target.clock.now(), level, answer.outcome, seconds))
            if connection.closed or answer.leave_server:
                return
            self._closed.wait(max(0.0, self._pace_s - seconds))


def _commit(connection: psycopg.Connection, row: str, warned: list[str]) -> Answer:
    """The server's answer to one commit; a connection that breaks or stays silent too long has no SQLSTATE."""
    try:
        with answering(connection, ANSWER_TIMEOUT_S):
            connection.execute(UPSERT, (row,))
    except psycopg.Error as error:
        return Answer(error.sqlstate or "", error.diag.severity_nonlocalized or "", tuple(warned))
    return Answer(SUCCESS, warnings=tuple(warned))
