"""Short questions over a socket: whoever answers in place of a server ends neither our patience nor our memory.

No timeout of the server's would do. Linux only: what came is asked of TCP (linux/tcp.h)."""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any, Protocol

import psycopg
from psycopg.abc import PQGenConn

MOST = 64 << 20
"""Bytes of an answer."""
_LOGIN = 1 << 20
"""Bytes of a login: certificates, a hundred parameters."""
_LOOK_S = 0.05
_RECEIVED = struct.Struct("=128xQ")
"""tcpi_bytes_received of struct tcp_info."""


class BoundedLogin(psycopg.Connection[Any]):
    """One whose login is bounded too: psycopg limits its time, and nobody what is sent meanwhile."""

    @classmethod
    def _connect_gen(cls, *words: Any, **more: Any) -> "PQGenConn[BoundedLogin]":
        login = super()._connect_gen(*words, **more)
        wants = next(login)
        while True:
            ready = yield wants
            if _received_by(wants[0]) > _LOGIN:
                login.close()
                raise psycopg.OperationalError("a login that does not end")
            try:
                wants = login.send(ready)
            except StopIteration as done:
                opened: BoundedLogin = done.value
                return opened


class Wired(Protocol):
    def fileno(self) -> int:
        """The socket's descriptor."""


@contextlib.contextmanager
def answering(connection: Wired, within_s: float = 10.0, most: int | None = None) -> Iterator[None]:
    """A member that logs us in and then is silent, or whose rows never end, is cut off in time, and at `most` bytes.

    Cut off at the socket, where libpq waits; psycopg.OperationalError then.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as wire:
        answered = threading.Event()
        limits = within_s, most or MOST
        watch = threading.Thread(target=_watch, args=(wire, *limits, answered), name="answering", daemon=True)
        watch.start()
        try:
            yield
        finally:
            answered.set()
            watch.join()


def _watch(wire: socket.socket, within_s: float, most: int, answered: threading.Event) -> None:
    until, most = monotonic() + within_s, received(wire) + most
    while not answered.wait(min(_LOOK_S, within_s)):
        if monotonic() > until or received(wire) > most:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
            return


def received(wire: socket.socket) -> int:
    """Bytes that came in so far; 0 where that is not TCP."""
    with contextlib.suppress(OSError, struct.error):
        return int(_RECEIVED.unpack(wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size))[0])
    return 0


def _received_by(descriptor: int) -> int:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as wire:
        return received(wire)
    return 0
