"""A connection for the same few statements again and again: prepared, rows as text, an answer in time or an error."""

import os
import select
import socket

import psycopg
from psycopg import errors, pq

from walproof.load.open_session import open_session
from walproof.machine.answering import MOST, received
from walproof.model.ports import Clock

Row = tuple[str | None, ...]


class StatsConnection:
    """One connection to one member; psycopg.Error when it cannot be opened, breaks, or exceeds `timeout_s`.

    The error has the server's SQLSTATE; 57014 (as of statement_timeout) where no answer came at all.
    """

    def __init__(self, conninfo: str, clock: Clock, timeout_s: float = 2.0) -> None:
        self._connection = open_session(conninfo)
        self._wire = socket.socket(fileno=os.dup(self._connection.fileno()))
        self._clock = clock
        self._timeout_s = timeout_s
        self._prepared: dict[bytes, bytes] = {}

    @property
    def version(self) -> int:
        """The server's major version."""
        return self._connection.info.server_version // 10000

    @property
    def process(self) -> int:
        """The process that the other end said it is: the server's own, unless a pooler is in front."""
        return self._connection.info.backend_pid

    def close(self) -> None:
        self._wire.close()
        self._connection.close()

    def query(self, statement: bytes, *values: str) -> list[Row]:
        """The rows of one statement as text; `values` are its $1, $2, …"""
        pg = self._connection.pgconn
        if statement not in self._prepared:
            name = f"q{len(self._prepared)}".encode()
            pg.send_prepare(name, statement)
            self._answer()
            self._prepared[statement] = name
        pg.send_query_prepared(self._prepared[statement], [value.encode() for value in values])
        result = self._answer()
        width, height = range(result.nfields), range(result.ntuples)
        return [tuple(_text(result.get_value(row, column)) for column in width) for row in height]

    def _answer(self) -> pq.abc.PGresult:
        pg, last = self._connection.pgconn, None
        most = received(self._wire) + MOST
        deadline = self._clock.now() + self._timeout_s
        while True:
            while pg.is_busy():
                left_s = deadline - self._clock.now()  # asked each time: rows that never end are always there
                if received(self._wire) > most:
                    raise psycopg.OperationalError("an answer that does not end")
                if left_s <= 0 or not select.select([pg.socket], [], [], left_s)[0]:
                    raise errors.QueryCanceled(f"no answer within {self._timeout_s:g} s")
                pg.consume_input()
            result = pg.get_result()
            if result is None:
                break
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise errors.error_from_result(result)
            last = result
        if last is None:
            raise psycopg.OperationalError("the server sent no result")
        return last


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
