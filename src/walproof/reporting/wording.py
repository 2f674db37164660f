"""Text of tables and pages from values: numbers with units and intervals, names of arms and faults. Pure."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from walproof.model.drill import Drill, Findings, Recovery
from walproof.model.estimate import Estimate
from walproof.pricing.estimates import ArmPrice, Latency
from walproof.proving.loss_bounds import kind_of

NOT_KNOWN = "–"
UNAVAILABLE = "unavailable"
LOSS_BOUND = "P(loss), 95 % upper bound"

_BYTES = ((1024**2, "MB"), (1024, "kB"), (1, "B"))


def ratio_heading(baseline: str) -> str:
    """The heading of throughput ratios to a level.

    >>> ratio_heading("local")
    'ratio to local (95 % CI)'
    """
    return f"ratio to {baseline} (95 % CI)"


def number(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits, with thousands separators.

    >>> number(12345.6), number(0.012345), number(3.0), number(None), number(math.inf)
    ('12,346', '0.0123', '3.00', '–', '∞')
    """
    if value is None or math.isnan(value):
        return NOT_KNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    places = max(0, min(6, digits - 1 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{places}f}"


def count(value: int | float | None) -> str:
    """A count with thousands separators.

    >>> count(1234567)
    '1,234,567'
    """
    return NOT_KNOWN if value is None else f"{value:,.0f}"


def in_bytes(value: float) -> str:
    """Bytes in the largest unit that keeps them above 1.

    >>> in_bytes(1312.0), in_bytes(300.0), in_bytes(math.nan)
    ('1.3 kB', '300 B', '–')
    """
    if not math.isfinite(value):
        return NOT_KNOWN
    size, unit = next(((size, unit) for size, unit in _BYTES if value >= size), (1, "B"))
    return f"{value / size:.{0 if size == 1 else 1}f} {unit}"


def interval(estimate: Estimate, text: Callable[[float], str] = number) -> str:
    """A value with both ends of its interval, where it has one; what has no upper end is at least the lower one.

    >>> interval(Estimate(1.0, 0.9, 1.1)), interval(Estimate(8.69, 4.0, math.inf))
    ('1.00 (0.900–1.10)', '≥ 4.00')
    >>> interval(Estimate(3.0, 3.0, 3.0)), interval(Estimate(3.0, math.nan, math.nan))
    ('3.00', '3.00')
    """
    if estimate.low == estimate.high or not estimate.known:
        return text(estimate.value)
    if math.isinf(estimate.high):
        return f"≥ {text(estimate.low)}"
    return f"{text(estimate.value)} ({text(estimate.low)}–{text(estimate.high)})"


def bounded(estimate: Estimate) -> str:
    """A value alone; where its interval has no upper end it is at least the lower one.

    >>> bounded(Estimate(1.0, 0.9, 1.1)), bounded(Estimate(8.69, 4.0, math.inf))
    ('1.00', '≥ 4.00')
    """
    return interval(estimate) if math.isinf(estimate.high) else number(estimate.value)


def part(ms: Estimate) -> str:
    """A part of a latency in ms, or what it is at most where it may be nothing.

    >>> part(Estimate(0.5, 0.3, 0.7)), part(Estimate(-0.079, -0.309, 0.151))
    ('0.500 (0.300–0.700)', '≤ 0.151')
    """
    return f"≤ {number(ms.high)}" if ms.covers(0.0) else interval(ms)


def ratio(estimate: Estimate) -> str:
    """A ratio with its interval, two decimals.

    >>> ratio(Estimate(0.891, 0.88, 0.9)), ratio(Estimate(1.0, 1.0, 1.0)), ratio(Estimate(0.5, math.nan, math.nan))
    ('0.89 (0.88–0.90)', '1', '0.50')
    """
    if not math.isfinite(estimate.value):
        return NOT_KNOWN
    return "1" if estimate.low == estimate.high == estimate.value == 1.0 else interval(estimate, "{:.2f}".format)


def seconds(value: float | None) -> str:
    """Seconds: whole above 100, one decimal above 1, else three.

    >>> seconds(0.0123), seconds(3.26), seconds(125.0), seconds(None), seconds(math.inf)
    ('0.012 s', '3.3 s', '125 s', '–', 'endless')
    """
    if value is None or math.isnan(value):
        return NOT_KNOWN
    if math.isinf(value):
        return "endless"
    return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 1 or value == 0 else f"{value:.3f} s"


def percent(share: float | None) -> str:
    """A share as a percentage.

    >>> percent(0.259), percent(0.0012)
    ('26 %', '0.12 %')
    """
    if share is None or not math.isfinite(share):
        return NOT_KNOWN
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def utc_time(at: float) -> str:
    """A time in seconds since the epoch as UTC; "–" where there is no such time.

    >>> utc_time(0.0), utc_time(1e300)
    ('1970-01-01 00:00:00 UTC', '–')
    """
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return NOT_KNOWN  # a record may be a stranger's


def latencies(latency: Latency) -> list[str]:
    """Mean, p50, p95 and p99 in ms."""
    return [bounded(e) for e in (latency.mean, latency.p50, latency.p95, latency.p99)]


def arm_name(price: ArmPrice) -> str:
    arm = price.arm
    level = "mix " + ", ".join(f"{lv} {weight:g}" for lv, weight in arm.mix) if arm.mix else str(arm.level)
    offered = f"at {number(arm.rate)} tps" if arm.rate else ""
    return " ".join(w for w in (level, "" if offered else arm.label, offered) if w)


def workload_name(price: ArmPrice) -> str:
    """The workload, with route and pool where connections are not direct, and how it is sent where that was asked."""
    arm = price.arm
    pool = f"pool {arm.pool}" if arm.pool else ""
    route = "" if arm.route == "direct" and not pool else str(arm.route)
    return ", ".join(w for w in (arm.workload.text, route, pool, arm.workload.manner) if w)


def fault_name(drill: Drill) -> str:
    """The fault, with its victim when that was not the leader, and the guard of an earlier record."""
    return kind_of(drill).what


def verdict_name(drill: Drill) -> str:
    return f"{drill.verdict.mark} {drill.verdict}"


def writers_rto(times: tuple[float, float, float]) -> str:
    """The outages of single writers in words; the page's template asks for it.

    >>> writers_rto((1.0, 2.5, float("inf")))
    'median 1.0 s, p95 2.5 s, worst endless'
    """
    return ", ".join(f"{name} {seconds(s)}" for name, s in zip(("median", "p95", "worst"), times, strict=True))


_FINDINGS = (
    "acknowledged", "lost", "downgraded", "unknown", "refused", "recovered", "phantom", "duplicate", "corrupted",
    "stale_reads", "dirty_reads", "long_forks",
)  # fmt: skip


def finding_counts(findings: Findings) -> dict[str, int]:
    """The counts of a drill's ledger by the name shown for them."""
    return {name.replace("_", " "): getattr(findings, name) for name in _FINDINGS}


OUTAGE_PARTS = {
    "operator": "from the last acknowledgement until the operator named a successor",
    "lease": "until the successor took the primary's lease",
    "detection": "from the last acknowledgement until the old leader was no longer the leader",
    "promotion": "until there was a new leader",
    "restart": "until the old leader led again",
    "endpoint": "until the write service led to the leader",
    "routing": "until a client's attempt reached it",
    "client": "until that attempt was acknowledged",
}
"""What each part of an outage is, in order. Operator, lease and endpoint: where the manager shows its steps."""
_USUAL = ("detection", "promotion", "routing", "client")


def outage_parts(recoveries: Sequence[Recovery]) -> dict[str, str]:
    """The parts that some of these may have, in order; the less usual ones only where they were seen."""
    seen = {part for one in recoveries for part, took in outage_seconds(one).items() if took}
    return {part: what for part, what in OUTAGE_PARTS.items() if part in _USUAL or part in seen}


def outage_seconds(recovery: Recovery) -> dict[str, float | None]:
    """Seconds of each part that an outage may have, None where it was not seen."""
    return {part: getattr(recovery, f"{part}_s") for part in OUTAGE_PARTS}
