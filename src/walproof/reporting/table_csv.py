"""A record as one CSV table, a number a row: what, where, its value, interval, unit; for spreadsheets and scripts."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from walproof.model.estimate import Estimate
from walproof.model.event import DrillDone, Event
from walproof.model.verdict import Drill
from walproof.pricing.estimates import ArmPrice, price_table
from walproof.proving.bounds import bounds
from walproof.reporting.wording import arm_name, finding_counts, outage_seconds, workload_name

HEADS = (
    "record", "kind", "scenario", "workload", "level", "clients", "drill", "fault", "victim", "verdict", "measure",
    "value", "low", "high", "unit", "caveats",
)  # fmt: skip
Row = dict[str, str | int | float]


def table_csv(records: Iterable[tuple[str, Sequence[Event]]]) -> str:
    """The CSV text of records given as (name, events); the first line names the columns."""
    out = io.StringIO()
    writer = csv.DictWriter(out, HEADS, restval="", lineterminator="\n")
    writer.writeheader()
    for name, events in records:
        for row in _rows(events):
            writer.writerow({k: _no_formula(v) for k, v in {"record": name, **row}.items()})
    return out.getvalue()


def _rows(events: Sequence[Event]) -> Iterator[Row]:
    for price in price_table(events).arms:
        yield from _price(price)
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    for drill in drills:
        yield from _drill(drill)
    for kind, bound in bounds(drills).items():
        where: Row = {"kind": "bound", "level": str(kind.level), "fault": kind.fault, "victim": str(kind.victim)}
        yield {**where, "measure": "decided drills", "value": bound.drills}
        yield {**where, "measure": "undecided drills", "value": bound.undecided}
        yield {**where, "measure": "loss probability, upper bound", "value": bound.upper, "unit": "share"}


def _price(price: ArmPrice) -> Iterator[Row]:
    where: Row = {"kind": "price", "scenario": price.scenario.text, "workload": workload_name(price)}
    where |= {"level": arm_name(price), "clients": price.arm.clients, "caveats": "; ".join(price.caveats)}
    found = (
        ("tps", price.tps, "1/s"),
        ("ratio", price.ratio, "of baseline"),
        ("ratio without stalls", price.without_stalls, "of baseline"),
        ("latency mean", price.latency.mean, "ms"),
        ("latency p50", price.latency.p50, "ms"),
        ("latency p95", price.latency.p95, "ms"),
        ("latency p99", price.latency.p99, "ms"),
        ("latency p99.9", price.latency.p999, "ms"),
    )
    for measure, estimate, unit in found:
        yield {**where, "measure": measure, **_estimate(estimate), "unit": unit}
    single = (
        ("latency longest", price.latency.max_ms, "ms"),
        ("stalled", price.stalled_s, "s"),
        ("measured", price.measured_s, "s"),
        ("WAL per transaction", price.wal_bytes, "bytes"),
        ("full-page images per transaction", price.full_pages, ""),
    )
    for measure, value, unit in single:
        if math.isfinite(value):
            yield {**where, "measure": measure, "value": float(f"{value:.6g}"), "unit": unit}
    yield {**where, "measure": "blocks", "value": price.blocks}


def _estimate(estimate: Estimate) -> Row:
    named = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {k: float(f"{v:.6g}") for k, v in named.items() if math.isfinite(v)}


def _drill(drill: Drill) -> Iterator[Row]:
    where: Row = {"kind": "drill", "drill": drill.number, "fault": drill.fault, "victim": str(drill.victim)}
    where |= {"level": str(drill.level), "verdict": str(drill.verdict)}
    counts = finding_counts(drill.findings)
    for name in ("acknowledged", "downgraded", "unknown", "refused", "lost", "recovered"):
        yield {**where, "measure": name, "value": counts[name], "unit": "commits"}
    for name, value in {"rto": drill.rto_s, "rpo": drill.rpo_s, **_away(drill)}.items():
        if value is not None:
            yield {**where, "measure": name, "value": float(f"{value:.6g}"), "unit": "s"}


def _away(drill: Drill) -> dict[str, float | None]:
    """Unavailable seconds, the writers' outages, the parts of the recovery; None for what is not known or endless."""
    writers = dict(zip(("median", "p95", "worst"), drill.writers_rto_s or (), strict=False))
    finite = {f"writers' rto {name}": s if math.isfinite(s) else None for name, s in writers.items()}
    return {"unavailable": drill.unavailable_s, **finite, **outage_seconds(drill.recovery)}


def _no_formula(value: str | int | float) -> str | int | float:
    """A text that a spreadsheet will not run as a formula.

    >>> _no_formula("=1+1"), _no_formula("on"), _no_formula(-3)
    ("'=1+1", 'on', -3)
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
