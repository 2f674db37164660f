"""A price table as the object that `walproof price --json` prints. Shapes values; computes none."""

import math
from typing import Any

from walproof.model.estimate import Estimate
from walproof.model.plan import Arm
from walproof.pricing.estimates import ArmPrice, ClassPrice, Latency, PriceTable

NAMES = ("mean", "p50", "p95", "p99", "p999")
"""Of latencies, as keys; p999 is the 99.9th percentile."""


def table_as_json(table: PriceTable, record: str | None) -> dict[str, Any]:
    """{"record", "baseline", "stopped_by", "arms": […]}; numbers that are not known are null."""
    return {
        "record": record,
        "baseline": str(table.baseline),
        "stopped_by": table.stopped_by,
        "arms": [arm_as_json(price) for price in table.arms],
    }


def arm_as_json(price: ArmPrice) -> dict[str, Any]:
    """One arm: the keys of the schema first, then the factors it was measured under."""
    return {
        **_arm(price.arm),
        "blocks": price.blocks,
        "tps": interval(price.tps),
        "ratio": interval(price.ratio),
        "latency_ms": _values(price.latency),
        "caveats": [str(caveat) for caveat in price.caveats],
        "scenario": price.scenario.text,
        "transactions": price.transactions,
        "failed": price.failed,
        "retries": price.retries,
        "latency_interval_ms": _intervals(price.latency),
        "classes": [_class(c) for c in price.classes],
        "without_stalls": interval(price.without_stalls),
        "stalled_s": number(price.stalled_s),
        "measured_s": number(price.measured_s),
        "wal_bytes_per_transaction": number(price.wal_bytes),
        "full_pages_per_transaction": number(price.full_pages),
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "level": str(arm.level),
        "clients": arm.clients,
        "label": arm.label,
        "workload": arm.workload.text,
        "manner": arm.workload.manner,
        "scale": arm.workload.scale,
        "route": str(arm.route),
        "pool": arm.pool,
        "rate": arm.rate,
        "mix": {str(level): weight for level, weight in arm.mix},
    }


def _class(priced: ClassPrice) -> dict[str, Any]:
    return {
        "level": priced.level,
        "tps": interval(priced.tps),
        "latency_ms": _values(priced.latency),
        "latency_interval_ms": _intervals(priced.latency),
    }


def interval(estimate: Estimate) -> dict[str, float | None]:
    """{"value", "low", "high"}, null where a number is not finite, because JSON has no NaN."""
    return {"value": number(estimate.value), "low": number(estimate.low), "high": number(estimate.high)}


def number(value: float) -> float | None:
    """The number to six significant digits, None when it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _values(latency: Latency) -> dict[str, float | None]:
    values = {name: number(getattr(latency, name).value) for name in NAMES}
    return {**values, "max": number(latency.max_ms)}


def _intervals(latency: Latency) -> dict[str, dict[str, float | None]]:
    return {name: interval(getattr(latency, name)) for name in NAMES}
