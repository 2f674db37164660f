"""A ledger's columns as few bytes: differences that are small, byte by byte, compressed. Pure.

Attempts are ordered by writer and number first: within a writer an attempt starts just after the last one ended. WAL
positions are stored in the order in which the answers came, where they hardly differ from one to the next."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from walproof.model.load import Attempts

MICROSECONDS = 1_000_000
_SIZE = struct.Struct("<I")
_EFFORT = 6
_PART = 1_000_000
_SMALL = {"outcome": np.int8, "level": np.int8, "server": np.int16, "timeline": np.int32, "names": np.int16}
"""Columns that hardly change from one attempt of a writer to its next, with their types."""


class Damaged(ValueError):
    """The bytes are not what was written."""


def order(attempts: Attempts) -> NDArray[np.intp]:
    return np.lexsort((attempts.number, attempts.writer))


def pack(attempts: Attempts, places: NDArray[np.intp], origin: float) -> bytes:
    """Attempts in the order of `places`, times counted from `origin` (seconds since the epoch) in microseconds."""
    return b"".join(_framed(part) for part in _columns(attempts, places, origin))


def _columns(attempts: Attempts, places: NDArray[np.intp], origin: float) -> Iterator[bytes]:
    """Column after column, each made when the one before it has been compressed."""
    yield _packed(_steps(attempts.writer[places].astype(np.int64)))
    yield _packed(_steps(attempts.number[places]) - 1)
    answered = ~np.isnan(attempts.ended)[places]
    yield np.packbits(answered).tobytes()
    ended = _microseconds(attempts.ended[places], origin)
    lsn = places[_by_answer(ended, answered)]
    by_answer = _packed(_steps(attempts.lsn[lsn].view(np.int64)))
    del lsn
    started = _microseconds(attempts.started[places], origin)
    yield _packed(_gaps(started, ended, answered))
    ended -= started
    yield _packed(ended[answered])
    del started, ended
    yield by_answer
    yield _packed(attempts.lsn[places[~answered]].view(np.int64))
    for name in _SMALL:
        yield _packed(_steps(getattr(attempts, name)[places].astype(np.int64)))


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    """Parts of a column that are worked on at once, so that what is in between needs little memory."""
    return ((first, first + _PART) for first in range(0, size, _PART))


def _microseconds(seconds: NDArray[np.float64], origin: float) -> NDArray[np.int64]:
    """Microseconds since `origin`, 0 for NaN, in the memory of `seconds`."""
    microseconds = seconds.view(np.int64)
    for first, end in _ranges(len(seconds)):
        microseconds[first:end] = np.rint(np.nan_to_num(seconds[first:end] - origin) * MICROSECONDS)
    return microseconds


def _seconds(microseconds: NDArray[np.int64], origin: float) -> NDArray[np.float64]:
    """Seconds since the epoch, in the memory of `microseconds`."""
    seconds = microseconds.view(np.float64)
    for first, end in _ranges(len(seconds)):
        seconds[first:end] = origin + microseconds[first:end] / MICROSECONDS
    return seconds


def unpack(data: bytes, size: int, origin: float) -> dict[str, NDArray[np.generic]]:
    """The columns of `size` attempts by the names of Attempts, but for checksums, which are zero; Damaged."""
    frames = _Frames(data, size)
    writer = _summed(frames.integers(size)).astype(np.int32)
    number = frames.integers(size)
    number += 1
    number = _summed(number)
    answered = frames.bits(size)
    count = int(answered.sum())
    started = frames.integers(size)
    ended = np.zeros(size, np.int64)
    ended[answered] = frames.integers(count)
    started[1:] += ended[:-1]
    ended += _summed(started)
    by_answer = _by_answer(ended, answered)
    columns: dict[str, NDArray[np.generic]] = {"writer": writer, "number": number}
    columns["started"], columns["ended"] = _seconds(started, origin), _seconds(ended, origin)
    columns["ended"][~answered] = np.nan
    lsn = np.zeros(size, np.int64)
    lsn[by_answer] = _summed(frames.integers(count))
    lsn[~answered] = frames.integers(size - count)
    columns["lsn"] = lsn.view(np.uint64)
    columns["checksum"] = np.broadcast_to(np.zeros((), np.uint32), (size,))
    del started, ended, by_answer, lsn
    for name, kind in _SMALL.items():
        columns[name] = _summed(frames.integers(size)).astype(kind)
    frames.end()
    return columns


def _by_answer(ended: NDArray[np.int64], answered: NDArray[np.bool_]) -> NDArray[np.intp]:
    places = np.flatnonzero(answered)
    return places[np.argsort(ended[places], kind="stable")]


def _gaps(started: NDArray[np.int64], ended: NDArray[np.int64], answered: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Each start counted from the end of the attempt before, from its start where it was not answered."""
    gaps = started.copy()
    gaps[1:] -= np.where(answered, ended, started)[:-1]
    return gaps


def _steps(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each value less the one before it, the first as it is; in the memory of the values."""
    for first, end in reversed(list(_ranges(len(values) - 1))):
        values[1:][first:end] -= values[:-1][first:end]
    return values


def _summed(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of which these are the steps, in their memory."""
    return np.cumsum(steps, out=steps)


def _packed(values: NDArray[np.int64]) -> bytes:
    """Signed integers as byte planes: their width, then the lowest byte of all, the next byte of all …"""
    largest = max(2 * int(values.max()), -2 * int(values.min()) - 1) if len(values) else 0
    width = max(1, (largest.bit_length() + 7) // 8)
    planes = np.empty((width, len(values)), np.uint8)
    for first, end in _ranges(len(values)):
        unsigned = (values[first:end] << 1) ^ (values[first:end] >> 63)
        planes[:, first:end] = unsigned.view(np.uint8).reshape(-1, 8)[:, :width].T
    return b"".join((bytes([width]), planes.data))


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
        planes = np.frombuffer(plain, np.uint8, offset=1).reshape(width, count)
        values = np.zeros(count, np.int64)
        for first, end in _ranges(count):
            unsigned = np.zeros((planes[0, first:end].size, 8), np.uint8)
            unsigned[:, :width] = planes[:, first:end].T
            plain_values = unsigned.view(np.uint64).reshape(-1)
            one = np.uint64(1)
            values[first:end] = (plain_values >> one).view(np.int64) ^ -(plain_values & one).view(np.int64)
        return values

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
    columns = [frames.bits(size) for _ in range(count)]
    frames.end()
    return columns
