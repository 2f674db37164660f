"""What no client can hold of a server in threads: so many connections at once, a deadline for what each asks.

A client that breaks off, or asks what no walproof asks, costs no traceback on the terminal."""

import io
import socket
import sys
import threading
import time
from socketserver import BaseServer, ThreadingMixIn
from typing import Any

HEAD_S = 10.0
"""For a whole request head, or a whole response; a byte now and then ends neither."""
MOST_HEAD = 1 << 16
MOST_BODY = 1 << 16
"""Bytes. What asks for an action is far shorter."""
CONNECTIONS = 64


class BoundedMixIn(ThreadingMixIn):
    """A thread for each connection, at most CONNECTIONS at once: further ones are closed at once."""

    daemon_threads = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin its thread; the thread gives its place back."""
        assert isinstance(self, BaseServer)
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the machine starts no further thread
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke, and one line of what should not happen."""
        wrong = sys.exception()
        if not isinstance(wrong, OSError):
            print(f"walproof: a request was not answered: {type(wrong).__name__}", file=sys.stderr)


class BoundedReader(io.RawIOBase):
    """What a connection sends until HEAD_S after it began, MOST_HEAD bytes of it; then OSError."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left, self._until = connection, MOST_HEAD, time.monotonic() + HEAD_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until - time.monotonic()
        if left_s <= 0 or self._left <= 0:
            raise TimeoutError("the request takes too long, or is too long")
        self._connection.settimeout(left_s)
        received = self._connection.recv_into(memoryview(buffer)[: self._left])
        # Of the response that follows: sendall counts it for all that it sends.
        self._connection.settimeout(HEAD_S)
        self._left -= received
        return received
