"""pgbench's per-transaction logs as columns: latencies, how late an open loop started, the sample second by second.

Millions of lines a second: fields are turned into numbers by whole columns, never line by line."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from walproof.errors import MachineError
from walproof.model.estimate import bucketed, pooled, quantile_ms
from walproof.model.sample import Series


@dataclass(frozen=True, slots=True)
class Lag:
    """Sums over transactions: how many, start in s after the sample's, its square, lag in s, start times lag."""

    count: int = 0
    at: float = 0.0
    at_squared: float = 0.0
    lag: float = 0.0
    at_lag: float = 0.0

    def plus(self, start_s: NDArray[np.float64], lag_s: NDArray[np.float64], within: tuple[float, float]) -> "Lag":
        """With these transactions too, where they really started between two times; all in seconds, shape (n,)."""
        inside = (start_s >= within[0]) & (start_s <= within[1])
        at, lag = start_s[inside] - within[0], lag_s[inside]
        return Lag(
            self.count + len(at),
            self.at + float(at.sum()),
            self.at_squared + float((at * at).sum()),
            self.lag + float(lag.sum()),
            self.at_lag + float((at * lag).sum()),
        )

    @property
    def mean_s(self) -> float:
        """Mean lag in seconds, 0 of nothing."""
        return self.lag / self.count if self.count else 0.0

    @property
    def rise(self) -> float:
        """Seconds by which the lag rises a second: where the load carries a share c of what is offered, 1 - c.

        >>> late = Lag().plus(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3]), (0.0, 9.0))
        >>> round(late.rise, 6), round(late.mean_s, 6), Lag().rise
        (0.1, 0.2, 0.0)
        """
        if self.count < 3:
            return 0.0
        spread = self.at_squared - self.at**2 / self.count
        return (self.at_lag - self.at * self.lag / self.count) / spread if spread > 0 else 0.0


SPAN_S = 0.01
"""How finely it is kept when transactions ended."""
STALL_S = 0.1
"""A time this long in which nothing ends is a stall."""
_PIECE = 8 << 20
_SPACE, _LINE, _ZERO = 32, 10, 48
Ahead = Mapping[Path, float]
"""By log: how many seconds the clock that wrote it is ahead of ours; 0 of logs that are not there."""
OUR_CLOCK: Ahead = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Columns:
    """Logged transactions: which one of its client's (from 1), latency and end in µs (end since the epoch), script.

    lag: of an open loop, how much later than intended it started, in µs, which its latency includes; else 0. Failed
    ones are counted apart.
    """

    number: NDArray[np.int64]
    latency_us: NDArray[np.int64]
    script: NDArray[np.int64]
    end_us: NDArray[np.int64]
    lag_us: NDArray[np.int64]
    failed: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Logs of one sample, added up.

    transactions: all of them, early ones too. credit: transactions counted by the share of them that lies within the
    times asked for, so that neither starting nor stopping biases throughput. Of those started within them: sum of
    latencies in ms, histograms of latency, of all and per script number, the first start and last end (epoch s).
    ends: the spans of SPAN_S since the epoch in which any transaction ended. lag: how late an open loop's started.
    """

    transactions: int = 0
    failed: int = 0
    credit: float = 0.0
    began: float = float("inf")
    ended: float = 0.0
    sum_ms: float = 0.0
    histogram: dict[int, int] = field(default_factory=dict)
    per_script: dict[int, dict[int, int]] = field(default_factory=dict)
    ends: frozenset[int] = frozenset()
    lag: Lag = Lag()

    @property
    def mean_ms(self) -> float:
        """Mean latency, NaN of nothing."""
        counted = sum(self.histogram.values())
        return self.sum_ms / counted if counted else float("nan")

    def stalled_s(self, since: float, until: float) -> float:
        """Seconds between two times (epoch s) in stalls."""
        return float(sum(end - begin for begin, end in self.stalls(since, until)))

    def stalls(self, since: float, until: float) -> list[tuple[float, float]]:
        """Begin and end (epoch s) of stalls: times in which no client's transaction ended for STALL_S or longer.

        Where transactions are slow or few by nature, a stall is ten times their median latency or their usual gap.
        """
        usual_s = (until - since) / max(1.0, self.credit)
        least_s = max(STALL_S, 10 * usual_s, quantile_ms(self.histogram, 0.5) / 100 if self.histogram else 0.0)
        spans = (span * SPAN_S for span in sorted(self.ends))
        edges = np.array([since, *(at for at in spans if since < at < until), until])
        long = np.flatnonzero(np.diff(edges) - SPAN_S >= least_s)
        return [(float(edges[i] + SPAN_S), float(edges[i + 1])) for i in long]


def pieces(path: Path, size: int = _PIECE, *, paced: bool = False, ahead: Ahead = OUR_CLOCK) -> Iterator[Columns]:
    """The log in pieces of about `size` bytes, by our clock; a last line cut short (pgbench was killed) is left out.

    paced: pgbench had a --rate, so that its lines hold the schedule lag.
    """
    ahead_us = round(1e6 * ahead.get(path, 0.0))
    rest = b""
    with path.open("rb") as file:
        while block := file.read(size):
            lines, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                piece = columns(lines + newline, paced=paced)
                yield replace(piece, end_us=piece.end_us - ahead_us) if ahead_us else piece


def warm_from(paths: Sequence[Path], since: float, until: float, *, ahead: Ahead = OUR_CLOCK) -> float:
    """When every client has ended its second transaction, epoch s, but never later than half-way to `until`.

    A client's first transaction connects, prepares its statements and fills its session's caches; with many clients
    that is a good part of a short sample. Only the first piece of each log is read.
    """
    seconds = [piece.end_us[piece.number == 2] for path in paths for piece in islice(pieces(path, ahead=ahead), 1)]
    warm = max((float(ends.max()) / 1e6 for ends in seconds if len(ends)), default=since)
    return min(max(since, warm), (since + until) / 2)


def columns(text: bytes, *, paced: bool = False) -> Columns:
    """Columns of complete lines; MachineError when lines have differing numbers of fields.

    Line: client, number, latency µs or "failed"/"skipped", script, end s, end µs, then lag and retries where asked;
    with --rate the latency counts from the scheduled start (manual, pgbench, --rate).
    """
    raw = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((raw == _SPACE) | (raw == _LINE))
    per_line = int(np.argmax(raw[ends[:64]] == _LINE)) + 1
    if per_line < 6 or len(ends) % per_line or not (raw[ends[per_line - 1 :: per_line]] == _LINE).all():
        raise MachineError("pgbench's log has lines of differing shape", "is another pgbench writing there?")
    table = ends.reshape(-1, per_line)
    starts = table + 0
    starts[:, 1:] = table[:, :-1] + 1
    latency_from = starts[:, 2]
    good = raw[latency_from] - np.uint8(_ZERO) < 10
    failed = int(len(good) - np.count_nonzero(good))
    if failed:
        table, starts = table[good], starts[good]
    seconds = _number(raw, starts[:, 4], table[:, 4])
    lagging = paced and per_line > 6
    return Columns(
        _number(raw, starts[:, 1], table[:, 1]),
        _number(raw, starts[:, 2], table[:, 2]),
        _number(raw, starts[:, 3], table[:, 3]),
        seconds * 1_000_000 + _number(raw, starts[:, 5], table[:, 5]),
        _number(raw, starts[:, 6], table[:, 6]) if lagging else np.zeros(len(seconds), dtype=np.int64),
        failed,
    )


def _number(raw: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Decimal numbers between positions, digit by digit for all rows at once."""
    value = np.zeros(len(start), dtype=np.int64)
    if len(start) == 0:
        return value
    length = end - start
    for place in range(int(length.max())):
        here = length > place
        if here.all():
            value = value * 10 + (raw[start + place].astype(np.int64) - _ZERO)
        else:
            value[here] = value[here] * 10 + (raw[start[here] + place].astype(np.int64) - _ZERO)
    return value


def summary(
    paths: Sequence[Path],
    since: float = 0.0,
    until: float = float("inf"),
    *,
    scripts: int = 1,
    paced: bool = False,
    ahead: Ahead = OUR_CLOCK,
) -> Summary:
    """These logs added up; latencies of transactions started at `since` or later, credit up to `until` (epoch s).

    paced: pgbench had a --rate; then a transaction starts when it was scheduled, and its credit when it did start.
    """
    total = Summary()
    for path in paths:
        for piece in pieces(path, paced=paced, ahead=ahead):
            total = _plus(total, piece, (since, until), scripts)
    return total


def _credit(latency_ms: NDArray[np.float64], end_s: NDArray[np.float64], within: tuple[float, float]) -> float:
    """The sum of the shares of transactions that lie within those two times."""
    length = np.maximum(latency_ms / 1000, 1e-6)
    inside = np.minimum(end_s, within[1]) - np.maximum(end_s - length, within[0])
    return float(np.clip(inside / length, 0, 1).sum())


def _plus(total: Summary, piece: Columns, within: tuple[float, float], scripts: int) -> Summary:
    latency_ms = piece.latency_us / 1000.0
    end_s = piece.end_us / 1e6
    lag_ms = piece.lag_us / 1000.0
    total = replace(
        total,
        transactions=total.transactions + len(latency_ms),
        failed=total.failed + piece.failed,
        credit=total.credit + _credit(latency_ms - lag_ms, end_s, within),
        ends=total.ends | frozenset(np.unique(piece.end_us // round(1e6 * SPAN_S)).tolist()),
        lag=total.lag.plus(end_s - (latency_ms - lag_ms) / 1000, lag_ms / 1000, within),
    )
    counted = end_s - latency_ms / 1000 >= within[0]
    if not counted.any():
        return total
    latency_ms, end_s, script = latency_ms[counted], end_s[counted], piece.script[counted]
    per_script = dict(total.per_script)
    if scripts > 1:
        for number in range(scripts):
            of_script = bucketed(latency_ms[script == number])
            per_script[number] = pooled([per_script.get(number, {}), of_script])
    return replace(
        total,
        began=min(total.began, float((end_s - latency_ms / 1000).min())),
        ended=max(total.ended, float(end_s.max())),
        sum_ms=total.sum_ms + float(latency_ms.sum()),
        histogram=pooled([total.histogram, bucketed(latency_ms)]),
        per_script=per_script,
    )


_EDGE_S = 0.15
"""By how much a second may reach beyond the first and last mark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The leader at one moment (epoch s): its WAL position in bytes, whether a checkpoint ran since the last mark."""

    at: float
    lsn: int | None
    checkpoint: bool


def series(
    paths: Sequence[Path],
    within: tuple[float, float],
    stalls: Sequence[tuple[float, float]],
    marks: Sequence[Mark],
    *,
    ahead: Ahead = OUR_CLOCK,
) -> Series:
    """The whole seconds between two times (epoch s); stalls as begin and end."""
    since, seconds = within[0], math.floor(within[1] - within[0] + 1e-6)
    read = [
        (piece.end_us / 1e6 - since, piece.latency_us / 1000.0) for path in paths for piece in pieces(path, ahead=ahead)
    ]
    ends = np.concatenate([np.zeros(0), *(end for end, _ in read)])
    latency = np.concatenate([np.zeros(0), *(ms for _, ms in read)])
    per_second = [latency[(ends >= k) & (ends < k + 1)] for k in range(seconds)]
    return Series(
        started_at=since,
        transactions=tuple(len(latencies) for latencies in per_second),
        p50_ms=tuple(_quantile(latencies, 0.5) for latencies in per_second),
        p99_ms=tuple(_quantile(latencies, 0.99) for latencies in per_second),
        max_ms=tuple(_quantile(latencies, 1.0) for latencies in per_second),
        stalled_s=tuple(_overlap(stalls, since + k) for k in range(seconds)),
        wal_bytes=_wal(marks, since, seconds),
        checkpoint=tuple(any(m.checkpoint and k < m.at - since <= k + 2 for m in marks) for k in range(seconds)),
    )


def _quantile(latency_ms: NDArray[np.float64], q: float) -> float | None:
    return round(float(np.quantile(latency_ms, q)), 3) if len(latency_ms) else None


def _overlap(stalls: Sequence[tuple[float, float]], begin: float) -> float:
    """Seconds of stalls in the second that begins then."""
    return round(sum(max(0.0, min(end, begin + 1) - max(start, begin)) for start, end in stalls), 3)


def _wal(marks: Sequence[Mark], since: float, seconds: int) -> tuple[int | None, ...]:
    """WAL written in each second: positions interpolated between marks, None outside of them."""
    known = [(m.at - since, m.lsn) for m in marks if m.lsn is not None]
    if len(known) < 2:
        return (None,) * seconds
    at = np.array([one[0] for one in known])
    lsn = np.array([one[1] for one in known], dtype=np.float64)
    edges = np.interp(np.arange(seconds + 1), at, lsn)
    inside = [at[0] - _EDGE_S <= k and k + 1 <= at[-1] + _EDGE_S for k in range(seconds)]
    return tuple(round(edges[k + 1] - edges[k]) if inside[k] else None for k in range(seconds))
