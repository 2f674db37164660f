"""COPY's binary format into numpy columns, a million rows at a time. Pure."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walproof.errors import TargetError
from walproof.model.attempt import Rows

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER = len(_SIGNATURE) + 8
_END = b"\xff\xff"
_FIXED = [("fields", ">i2"), ("l1", ">i4"), ("writer", ">i4"), ("l2", ">i4"), ("number", ">i8")]
_STATED = [("l3", ">i4"), ("stated", ">i8"), ("l4", ">i4")]
SUMMED = np.dtype([*_FIXED, *_STATED, ("checksum", ">i8")])
"""A row of (int4, int8, int8, int8): 46 bytes."""
_PREFIX = np.dtype([*_FIXED, *_STATED])


def _body(raw: bytes) -> memoryview:
    """Between COPY's header and its trailer (manual, COPY, binary format)."""
    if raw[: len(_SIGNATURE)] != _SIGNATURE or raw[-2:] != _END:
        raise TargetError("a member's answer to COPY is cut short", "it may have restarted: try again")
    return memoryview(raw)[_HEADER:-2]


def summed_rows(member: str, raw: bytes) -> Rows:
    """Rows whose payload checksum the member computed."""
    body = _body(raw)
    if len(body) % SUMMED.itemsize:
        raise TargetError(f"{member} holds a ledger of another shape", "drop the table walproof.walproof_ledger")
    rows = np.frombuffer(body, SUMMED)
    return _columns(member, rows, rows["checksum"].astype(np.uint32))


def payload_rows(member: str, raw: bytes) -> Rows:
    """Rows with payloads: their CRC-32 is computed here; fast when every payload has the same length."""
    body = _body(raw)
    if not len(body):
        return _columns(member, np.empty(0, _PREFIX), np.empty(0, np.uint32))
    size = struct.unpack_from(">i", body, _PREFIX.itemsize - 4)[0]
    width = _PREFIX.itemsize + size
    if len(body) % width == 0:
        table = np.frombuffer(body, np.dtype([*_PREFIX.descr, ("payload", f"V{size}")]))
        if (table["l4"] == size).all() and (table["fields"] == 4).all():
            return _columns(member, table, _sums(body, range(_PREFIX.itemsize, len(body) + 1, width), size))
    return _uneven(member, body)


def _sums(body: memoryview, starts: range, size: int) -> NDArray[np.uint32]:
    crc = zlib.crc32
    return np.fromiter((crc(body[at : at + size]) for at in starts), np.uint32, count=len(starts))


def _uneven(member: str, body: memoryview) -> Rows:
    """Payloads of several lengths, row by row: a torn or corrupted row may be shorter than the others."""
    prefixes, sums, at = [], [], 0
    while at < len(body):
        prefix = np.frombuffer(body[at : at + _PREFIX.itemsize], _PREFIX)
        size = int(prefix["l4"][0])
        at += _PREFIX.itemsize
        sums.append(zlib.crc32(body[at : at + size]))
        prefixes.append(prefix)
        at += size
    return _columns(member, np.concatenate(prefixes), np.array(sums, np.uint32))


def _columns(member: str, rows: NDArray[Any], checksum: NDArray[np.uint32]) -> Rows:
    return Rows(
        member,
        rows["writer"].astype(np.int32),
        rows["number"].astype(np.int64),
        checksum,
        rows["stated"].astype(np.uint32),
    )
