"""A ledger's columns as few bytes: differences that are small, byte by byte, compressed. Pure.

Attempts are ordered by writer and number first: within a writer an attempt starts just after the last one ended. WAL
positions are stored in the order in which the answers came, where they hardly differ from one to the next.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts

MICROSECONDS = 1_000_000
_SIZE = struct.Struct("<I")
_EFFORT = 6
_SMALL = {"outcome": np.int8, "level": np.int8, "server": np.int16, "timeline": np.int32, "names": np.int16}
"""Columns that hardly change from one attempt of a writer to its next, with their types."""


class Damaged(ValueError):
    """The bytes are not what was written."""


def order(attempts: Attempts) -> NDArray[np.intp]:
    """The places of the attempts by writer and number."""
    return np.lexsort((attempts.number, attempts.writer))


def pack(attempts: Attempts, origin: float) -> bytes:
    """Attempts that are already in order, times counted from `origin` (seconds since the epoch) in microseconds."""
    answered = ~np.isnan(attempts.ended)
    started = np.rint((attempts.started - origin) * MICROSECONDS).astype(np.int64)
    ended = np.where(answered, np.rint((np.nan_to_num(attempts.ended) - origin) * MICROSECONDS), 0).astype(np.int64)
    by_answer = _by_answer(ended, answered)
    parts = [
        _packed(_steps(attempts.writer.astype(np.int64))),
        _packed(_steps(attempts.number) - 1),
        np.packbits(answered).tobytes(),
        _packed(started - _reference(started, ended, answered)),
        _packed((ended - started)[answered]),
        _packed(_steps(attempts.lsn[by_answer].view(np.int64))),
        _packed(attempts.lsn[~answered].view(np.int64)),
        *(_packed(_steps(getattr(attempts, name).astype(np.int64))) for name in _SMALL),
    ]
    return b"".join(_framed(part) for part in parts)


def unpack(data: bytes, size: int, origin: float) -> dict[str, NDArray[np.generic]]:
    """The columns of `size` attempts by the names of Attempts, but for checksums, which are zero; Damaged."""
    frames = _Frames(data, size)
    writer = np.cumsum(frames.integers(size)).astype(np.int32)
    number = np.cumsum(frames.integers(size) + 1)
    answered = frames.bits(size)
    count = int(answered.sum())
    gap = frames.integers(size)
    duration = np.zeros(size, np.int64)
    duration[answered] = frames.integers(count)
    started, ended = _times(gap, duration, answered)
    del gap, duration
    lsn = np.zeros(size, np.int64)
    lsn[_by_answer(ended, answered)] = np.cumsum(frames.integers(count))
    lsn[~answered] = frames.integers(size - count)
    columns: dict[str, NDArray[np.generic]] = {
        "writer": writer,
        "number": number,
        "started": origin + started / MICROSECONDS,
        "ended": np.where(answered, origin + ended / MICROSECONDS, np.nan),
        "lsn": lsn.view(np.uint64),
        "checksum": np.broadcast_to(np.zeros((), np.uint32), (size,)),
    }
    del started, ended
    for name, kind in _SMALL.items():
        columns[name] = np.cumsum(frames.integers(size)).astype(kind)
    frames.end()
    return columns


def _by_answer(ended: NDArray[np.int64], answered: NDArray[np.bool_]) -> NDArray[np.intp]:
    places = np.flatnonzero(answered)
    return places[np.argsort(ended[places], kind="stable")]


def _reference(started: NDArray[np.int64], ended: NDArray[np.int64], answered: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What each start is counted from: the end of the attempt before, its start where it was not answered."""
    before = np.where(answered, ended, started)
    return np.concatenate((np.zeros(1, np.int64), before[:-1]))[: len(started)]


def _times(
    gap: NDArray[np.int64], duration: NDArray[np.int64], answered: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends from gaps and durations: each start is the sum of everything before it."""
    lasted = np.where(answered, duration, 0)
    started = np.cumsum(gap) + np.concatenate((np.zeros(1, np.int64), np.cumsum(lasted)[:-1]))[: len(gap)]
    return started, started + lasted


def _steps(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each value less the one before it; the first as it is."""
    steps = values.copy()
    steps[1:] -= values[:-1]
    return steps


def _packed(values: NDArray[np.int64]) -> bytes:
    """Signed integers as byte planes: their width, then the lowest byte of all, the next byte of all …"""
    unsigned = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max(1, (int(unsigned.max()).bit_length() + 7) // 8) if len(unsigned) else 1
    planes = unsigned.view(np.uint8).reshape(-1, 8)[:, :width]
    return bytes([width]) + np.ascontiguousarray(planes.T).tobytes()


def _framed(part: bytes) -> bytes:
    squeezed = zlib.compress(part, _EFFORT)
    return _SIZE.pack(len(squeezed)) + squeezed


class _Frames:
    """Reads one part after the other; never allocates more than the sizes allow."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._at, self._most = data, 0, 8 * size + 1

    def _next(self) -> bytes:
        try:
            (size,) = _SIZE.unpack_from(self._data, self._at)
            part = self._data[self._at + 4 : self._at + 4 + size]
            self._at += 4 + size
            reader = zlib.decompressobj()
            plain = reader.decompress(part, self._most)
        except (struct.error, zlib.error) as wrong:
            raise Damaged(str(wrong)) from None
        if len(part) != size or not reader.eof:
            raise Damaged("a part is cut short")
        return plain

    def integers(self, count: int) -> NDArray[np.int64]:
        """So many signed integers."""
        plain = self._next()
        width = plain[0] if plain else 0
        if not 1 <= width <= 8 or len(plain) != 1 + width * count:
            raise Damaged("a column has another length")
        unsigned = np.zeros((count, 8), np.uint8)
        unsigned[:, :width] = np.frombuffer(plain, np.uint8, offset=1).reshape(width, count).T
        values = unsigned.view(np.uint64).reshape(count)
        return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)

    def bits(self, count: int) -> NDArray[np.bool_]:
        """So many bits."""
        plain = self._next()
        if len(plain) != (count + 7) // 8:
            raise Damaged("a column of bits has another length")
        return np.unpackbits(np.frombuffer(plain, np.uint8), count=count).astype(bool)

    def end(self) -> None:
        """Damaged when anything is left."""
        if self._at != len(self._data):
            raise Damaged("there is more than was written")


def pack_bits(columns: list[NDArray[np.bool_]]) -> bytes:
    """Columns of bits, one after the other."""
    return b"".join(_framed(np.packbits(column).tobytes()) for column in columns)


def unpack_bits(data: bytes, size: int, count: int) -> list[NDArray[np.bool_]]:
    """`count` columns of `size` bits each; Damaged."""
    frames = _Frames(data, size)
    found = [frames.bits(size) for _ in range(count)]
    frames.end()
    return found
