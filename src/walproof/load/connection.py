"""A light connection for counters: prepared once, answers as text, and never waits longer than it is told."""

import select

import psycopg
from psycopg import pq

from walproof.model.ports import Clock

Row = tuple[str | None, ...]


class Line:
    """One connection to one member; psycopg.Error when it cannot be made, breaks, or does not answer in time."""

    def __init__(self, conninfo: str, clock: Clock, longest_s: float = 2.0) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._clock = clock
        self._longest_s = longest_s
        self._names: dict[bytes, bytes] = {}

    @property
    def version(self) -> int:
        """The server's major version."""
        return self._connection.info.server_version // 10000

    def close(self) -> None:
        """Close it; safe to call twice."""
        self._connection.close()

    def ask(self, query: bytes) -> list[Row]:
        """The rows of one statement as text."""
        pg = self._connection.pgconn
        if query not in self._names:
            name = f"q{len(self._names)}".encode()
            pg.send_prepare(name, query)
            self._answer()
            self._names[query] = name
        pg.send_query_prepared(self._names[query], None)
        found = self._answer()
        width, height = range(found.nfields), range(found.ntuples)
        return [tuple(_text(found.get_value(row, column)) for column in width) for row in height]

    def _answer(self) -> pq.abc.PGresult:
        pg, last = self._connection.pgconn, None
        until = self._clock.now() + self._longest_s
        while True:
            while pg.is_busy():
                if not select.select([pg.socket], [], [], max(0.0, until - self._clock.now()))[0]:
                    raise psycopg.OperationalError(f"no answer within {self._longest_s:g} s")
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                break
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise psycopg.OperationalError(result.get_error_message())
            last = result
        if last is None:
            raise psycopg.OperationalError("the server said nothing")
        return last


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
