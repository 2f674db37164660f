"""Stalls, the slowest transactions and WAL of every arm: the rows of one table. The numbers are pricing's."""

import math

from walproof.pricing.estimates import ArmPrice, PriceTable
from walproof.reporting.wording import NOT_KNOWN, arm_name, interval, number, ratio

TITLE = "tail, stalls and WAL"
CAPTION = (
    "stalled: seconds, of those measured, in which no transaction ended for 0.1 s or longer; they count in the ratio. "
    "WAL and full-page images per transaction, as the leader counted them."
)
_BYTES = ((1024**2, "MB"), (1024, "kB"), (1, "B"))


def stall_rows(table: PriceTable) -> tuple[tuple[str, ...], list[list[str]]]:
    """Headings and rows: scenario, level, clients, the ratio without stalls, the slowest transactions, stalls, WAL."""
    heads = (
        "scenario", "level", ">clients", ">ratio without stalls", ">p99.9 ms", ">longest ms",
        ">stalled", ">WAL", ">full pages",
    )  # fmt: skip
    return heads, [_row(p) for p in table.arms]


def _row(p: ArmPrice) -> list[str]:
    stalled = NOT_KNOWN if math.isnan(p.stalled_s) else f"{p.stalled_s:.1f} of {p.measured_s:.0f} s"
    slowest = (interval(p.latency.p999), number(p.latency.max_ms))
    written = (in_bytes(p.wal_bytes), number(p.full_pages, 2))
    trimmed = "" if p.ratio.low == p.ratio.high == 1.0 else ratio(p.without_stalls)
    return [p.scenario.text, arm_name(p), str(p.arm.clients), trimmed, *slowest, stalled, *written]


def in_bytes(value: float) -> str:
    """Bytes in the largest unit that keeps them above 1.

    >>> in_bytes(1312.0), in_bytes(300.0), in_bytes(math.nan)
    ('1.3 kB', '300 B', '–')
    """
    if not math.isfinite(value):
        return NOT_KNOWN
    size, unit = next(((size, unit) for size, unit in _BYTES if value >= size), (1, "B"))
    return f"{value / size:.{0 if size == 1 else 1}f} {unit}"
