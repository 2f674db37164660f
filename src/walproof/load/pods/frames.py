"""Requests and answers on one connection: a header as JSON and bytes, both with their length before them.

Neither side believes the other: what is too long, no JSON or no name of a file is refused before anything is done.
"""

import json
import re
import socket
import struct
from collections.abc import Callable
from typing import Any

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


def receive(connection: socket.socket, admit: Callable[[Header], None] = lambda _: None) -> tuple[Header, bytes]:
    """The next one; OSError when the connection ends before it is whole, Malformed for what no frame is.

    `admit` may raise for a header: then its body is not read.
    """
    of_header, of_body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    if of_header > _MOST_HEADER or of_body > _MOST_BODY:
        raise Malformed(f"a header of {of_header} and a body of {of_body} bytes")
    try:
        header = json.loads(_exactly(connection, of_header))
    except (ValueError, RecursionError):
        raise Malformed("a header that is no JSON") from None
    if not isinstance(header, dict):
        raise Malformed("a header that is no object")
    admit(header)
    return header, _exactly(connection, of_body)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(min(1 << 16, size - len(found)))
        if not piece:
            raise OSError("the connection ended")
        found += piece
    return bytes(found)
