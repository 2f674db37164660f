"""Requests and answers on one connection: a header as JSON and bytes, both with their length before them.

Neither side believes the other: what is too long, no JSON or no name of a file is refused before anything is done.
"""

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from walproof.machine.foreign_text import from_json

Header = dict[str, Any]
_LENGTHS = struct.Struct(">II")
_MOST_HEADER, _MOST_BODY = 1 << 20, 1 << 26
"""Bytes: files travel in pieces that are far smaller; a script that is put there is one body."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Malformed(Exception):
    """What no walproof sends."""


def is_file_name(name: str) -> bool:
    """Whether it is one safe component: no folder, no hidden file, nothing but letters, digits, dots and dashes.

    >>> is_file_name("log.7.1"), is_file_name("../log"), is_file_name("/log"), is_file_name(".log"), is_file_name("a b")
    (True, False, False, False, False)
    """
    return _NAME.fullmatch(name) is not None


def file_name(text: object) -> str:
    """The name of a file in one folder; ValueError for anything else."""
    if not isinstance(text, str) or not is_file_name(text):
        raise ValueError(f"{str(text)[:80]!r} is no name of a file")
    return text


def send(connection: socket.socket, header: Header, body: bytes = b"") -> None:
    """Send one; OSError when the connection breaks."""
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)


def receive(
    connection: socket.socket, admit: Callable[[Header], None] = lambda _: None, *, within_s: float | None = None
) -> tuple[Header, bytes]:
    """The next one; OSError when the connection, or `within_s`, ends before it is whole; Malformed for what is none.

    `admit` may raise for a header: then its body is not read.
    """
    until = None if within_s is None else time.monotonic() + within_s
    of_header, of_body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size, until))
    if of_header > _MOST_HEADER or of_body > _MOST_BODY:
        raise Malformed(f"a header of {of_header} and a body of {of_body} bytes")
    try:
        header = from_json(_exactly(connection, of_header, until))
    except ValueError:
        raise Malformed("a header that is no JSON") from None
    if not isinstance(header, dict):
        raise Malformed("a header that is no object")
    admit(header)
    return header, _exactly(connection, of_body, until)


def _exactly(connection: socket.socket, size: int, until: float | None) -> bytes:
    found = bytearray()
    while len(found) < size:
        # One byte now and then is no silence, so that the connection's own limit would never end it.
        if until is not None and time.monotonic() > until:
            raise TimeoutError("it takes too long")
        piece = connection.recv(min(1 << 16, size - len(found)))
        if not piece:
            raise OSError("the connection ended")
        found += piece
    return bytes(found)
