"""One tiny transaction per level per second: what a commit costs now. Each level has a thread and connection."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg

from walproof.errors import TargetError
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.model.topology import Endpoint

TABLE = "walproof_canary"
MARK = "walproof: canary, safe to drop"
GIVE_UP_S = 5.0
"""A frozen server's kernel still answers TCP, so no timeout of the network ends this wait: the canary does."""
SING = f"INSERT INTO {TABLE} VALUES (%s, clock_timestamp()) ON CONFLICT (level) DO UPDATE SET at = excluded.at"


@dataclass(frozen=True, slots=True)
class Chirp:
    """One canary commit: level, outcome word, seconds it took, when it ended (seconds since the epoch)."""

    at: float
    level: Level
    outcome: str
    seconds: float


def _prepare(endpoint: Endpoint) -> None:
    with psycopg.connect(endpoint.conninfo(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        found = connection.execute(
            "SELECT obj_description(to_regclass(%s)), to_regclass(%s) IS NOT NULL", (TABLE, TABLE)
        ).fetchone()
        if found and found[1] and found[0] != MARK:
            raise TargetError(f"a table {TABLE} exists that is not walproof's", "rename it, or name another database")
        if found and not found[1]:
            connection.execute(f"CREATE TABLE {TABLE} (level text PRIMARY KEY, at timestamptz)")
            connection.execute(f"COMMENT ON TABLE {TABLE} IS '{MARK}'")


def _hang_up(descriptor: int) -> None:
    """End a connection from outside: whoever waits on it sees it closed."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)


class Canary:
    """Sends a commit at each level every `pace_s` and tells `heard` of each; close() drops its table."""

    def __init__(
        self, target: Target, levels: Sequence[Level], heard: Callable[[Chirp], None], *, pace_s: float = 1.0
    ) -> None:
        self._target, self._heard, self._pace_s = target, heard, pace_s
        self._closed = threading.Event()
        _prepare(self._endpoint())
        self._threads = [threading.Thread(target=self._sing, args=(level,), daemon=True) for level in levels]
        for thread in self._threads:
            thread.start()

    def _endpoint(self) -> Endpoint:
        return self._target.endpoint("multi-host")

    def close(self) -> None:
        """Stop singing and remove the table; a cluster that does not answer keeps it."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=3)
        try:
            with psycopg.connect(self._endpoint().conninfo(connect_timeout="2"), autocommit=True) as connection:
                connection.execute("SET synchronous_commit = local")
                connection.execute("SET lock_timeout = '2s'")
                connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        except psycopg.Error:
            return

    def _sing(self, level: Level) -> None:
        while not self._closed.is_set():
            try:
                conninfo = self._endpoint().conninfo(
                    connect_timeout="2", tcp_user_timeout="5000", application_name=f"walproof canary {level}"
                )
                with psycopg.connect(conninfo, autocommit=True) as connection:
                    connection.execute(f"SET synchronous_commit = {level}")
                    self._commits(connection, level)
            except psycopg.Error:
                self._closed.wait(self._pace_s)

    def _commits(self, connection: psycopg.Connection, level: Level) -> None:
        warned: list[str] = []
        connection.add_notice_handler(lambda notice: warned.append(notice.message_primary or ""))
        while not self._closed.is_set():
            warned.clear()
            begun = time.monotonic()
            given_up = threading.Timer(GIVE_UP_S, _hang_up, args=(connection.fileno(),))
            given_up.daemon = True
            given_up.start()
            try:
                connection.execute(SING, (str(level),))
            except psycopg.OperationalError:
                self._tell(level, "unknown", time.monotonic() - begun)
                raise
            except psycopg.Error:
                self._tell(level, "refused", time.monotonic() - begun)
                raise
            finally:
                given_up.cancel()
            took = time.monotonic() - begun
            cancelled = any("canceling wait for synchronous replication" in text for text in warned)
            self._tell(level, "downgraded" if cancelled else "acknowledged", took)
            self._closed.wait(max(0.0, self._pace_s - took))

    def _tell(self, level: Level, outcome: str, seconds: float) -> None:
        self._heard(Chirp(self._target.clock.now(), level, outcome, seconds))
