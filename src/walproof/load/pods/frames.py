"""Requests and answers on one connection: a header as JSON and bytes, both with their length before them."""

import json
import socket
import struct
from typing import Any

Header = dict[str, Any]
_LENGTHS = struct.Struct(">II")
_MOST = 1 << 26
"""Bytes of either: files travel in pieces that are far smaller."""


def send(connection: socket.socket, header: Header, body: bytes = b"") -> None:
    """Send one; OSError when the connection breaks."""
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)


def receive(connection: socket.socket) -> tuple[Header, bytes]:
    """The next one; OSError when the connection ends before it is whole, or says what no frame says."""
    lengths = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    if max(lengths) > _MOST:
        raise OSError("no frame is so long")
    try:
        header = json.loads(_exactly(connection, lengths[0]))
    except ValueError:
        raise OSError("the header is no JSON") from None
    if not isinstance(header, dict):
        raise OSError("the header is no object")
    return header, _exactly(connection, lengths[1])


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(min(1 << 16, size - len(found)))
        if not piece:
            raise OSError("the connection ended")
        found += piece
    return bytes(found)
