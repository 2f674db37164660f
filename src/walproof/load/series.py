"""A sample second by second: transactions and latencies of the logs, WAL and checkpoints as polled. Pure but the files.

Everything is counted by when it ended.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from walproof.load.pgbench_log import OUR_CLOCK, Ahead, pieces
from walproof.model.sample import Series

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
        transactions=tuple(len(found) for found in per_second),
        p50_ms=tuple(_quantile(found, 0.5) for found in per_second),
        p99_ms=tuple(_quantile(found, 0.99) for found in per_second),
        max_ms=tuple(_quantile(found, 1.0) for found in per_second),
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
