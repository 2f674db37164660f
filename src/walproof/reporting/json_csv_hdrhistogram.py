"""A record for programs: the object of `--json`, one CSV table with a number a row, and latency histograms as
HdrHistogram logs (format 1.3, encoding V2; one log an arm, one interval a sample). Shapes values only."""

import base64
import csv
import io
import math
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from walproof.model.drill import Drill
from walproof.model.estimate import quantile_ms
from walproof.model.event import ClaimJudged, Described, DrillDone, Event, FigureCompared, SampleDone, SearchStep
from walproof.model.sample import Arm, SampleResult, Scenario
from walproof.pricing.estimates import ArmPrice, price_table, samples_of
from walproof.pricing.latency_breakdown import breakdown_as_json, breakdowns
from walproof.pricing.results_and_gate import NAMES, arm_as_json, number, table_as_json
from walproof.pricing.soak import soak_as_json, stretches
from walproof.proving.campaign_results import drills_as_json
from walproof.proving.loss_bounds import bounds
from walproof.reporting.conclusion import conclusion
from walproof.reporting.observe_section import observe_json, seen_of
from walproof.reporting.outline import Outline, Table
from walproof.reporting.wording import arm_name, finding_counts, outage_seconds, utc_time, workload_name


def price_json(events: Sequence[Event], record: str | None) -> dict[str, Any]:
    """The object of `price --json` from events alone."""
    prices = table_as_json(price_table(events), record)
    soaked = stretches(events)
    return {
        **prices,
        "conclusion": conclusion(events),
        "breakdown": [breakdown_as_json(a) for a in breakdowns(events)],
        **({"soak": soak_as_json(soaked)} if soaked else {}),
    }


def prove_json(events: Sequence[Event], record: str | None) -> dict[str, Any]:
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    return {**drills_as_json(drills, record), "conclusion": conclusion(events)}


def record_json(events: Sequence[Event], record: str, notices: Sequence[str]) -> dict[str, Any]:
    """Everything `report --json` prints: price, drills, claims, searches, environment, notices."""
    content: dict[str, Any] = {"record": record, "notices": list(notices), "conclusion": conclusion(events)}
    if any(isinstance(e, SampleDone) for e in events):
        content |= price_json(events, record)
    if any(isinstance(e, DrillDone) for e in events):
        content |= prove_json(events, record)
    content |= {"observed": observe_json(seen)} if (seen := seen_of(events)) else {}
    steps = [e for e in events if isinstance(e, SearchStep)]
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    figures = [e for e in events if isinstance(e, FigureCompared)]
    described = next((e.description for e in reversed(events) if isinstance(e, Described)), None)
    content |= {"searches": [asdict(s) for s in steps]} if steps else {}
    content |= {"claims": [asdict(c) for c in claims]} if claims else {}
    content |= {"figures": [asdict(f) for f in figures]} if figures else {}
    content |= {"environment": asdict(described)} if described else {}
    return content


def outline_json(outline: Outline) -> dict[str, Any]:
    """A comparison: its conclusion and its tables as lists of objects, text as on the page."""
    tables = {
        block.key: [{c.name: cell.text for c, cell in zip(block.columns, cells, strict=True)} for cells in block.rows]
        for section in outline.sections
        for block in section.blocks
        if isinstance(block, Table)
    }
    return {"conclusion": " ".join(outline.sentences), **tables}


CSV_HEADS = (
    "record", "kind", "scenario", "workload", "level", "clients", "drill", "fault", "victim", "verdict", "measure",
    "value", "low", "high", "unit", "caveats",
)  # fmt: skip
Row = dict[str, str | int | float]
_MEASURES = {
    "tps": ("tps", "1/s"),
    "ratio": ("ratio", "of baseline"),
    "without_stalls": ("ratio without stalls", "of baseline"),
    **{name: (f"latency {name.replace('999', '99.9')}", "ms") for name in NAMES},
    "max": ("latency longest", "ms"),
    "stalled_s": ("stalled", "s"),
    "measured_s": ("measured", "s"),
    "wal_bytes_per_transaction": ("WAL per transaction", "bytes"),
    "full_pages_per_transaction": ("full-page images per transaction", ""),
    "blocks": ("blocks", ""),
}
"""Fields of an arm's JSON, as a row of the CSV names them, with their units."""


def table_csv(records: Iterable[tuple[str, Sequence[Event]]]) -> str:
    """The CSV text of records given as (name, events); the first line names the columns."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_HEADS, restval="", lineterminator="\n")
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
    arm = arm_as_json(price)
    fields = {**arm, **arm["latency_interval_ms"], "max": arm["latency_ms"]["max"]}
    for name, (measure, unit) in _MEASURES.items():
        values = fields[name] if isinstance(fields[name], dict) else {"value": fields[name]}
        known = {k: v for k, v in values.items() if math.isfinite(v)}
        if known or len(values) > 1:
            yield {**where, "measure": measure, **known, "unit": unit}


def _drill(drill: Drill) -> Iterator[Row]:
    where: Row = {"kind": "drill", "drill": drill.number, "fault": drill.fault, "victim": str(drill.victim)}
    where |= {"level": str(drill.level), "verdict": str(drill.verdict)}
    counts = finding_counts(drill.findings)
    for name in ("acknowledged", "downgraded", "unknown", "refused", "lost", "recovered"):
        yield {**where, "measure": name, "value": counts[name], "unit": "commits"}
    for name, value in {"rto": drill.rto_s, "rpo": drill.rpo_s, **_away(drill)}.items():
        if value is not None and math.isfinite(value):
            yield {**where, "measure": name, "value": number(value), "unit": "s"}


def _away(drill: Drill) -> dict[str, float | None]:
    """Unavailable seconds, the writers' outages, the parts of the recovery; None for what is not known."""
    names = (f"writers' rto {name}" for name in ("median", "p95", "worst"))
    writers = dict(zip(names, drill.writers_rto_s or (), strict=False))
    return {"unavailable": drill.unavailable_s, **writers, **outage_seconds(drill.recovery)}


def _no_formula(value: str | int | float) -> str | int | float:
    """A text that a spreadsheet will not run as a formula.

    >>> _no_formula("=1+1"), _no_formula("on"), _no_formula(-3)
    ("'=1+1", 'on', -3)
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


_COOKIE, _COMPRESSED_COOKIE = 0x1C849303 | 0x10, 0x1C849304 | 0x10
_DIGITS = 3
_HALF = 11 - 1
"""Three significant digits take 2048 sub-buckets, 2**11."""
_HIGHEST_NS = 3_600_000_000_000
_NS_PER_MS = 1_000_000


def histogram_logs(events: Sequence[Event]) -> dict[str, str]:
    """File name → text of a log, for every arm of a record under every scenario; empty when nothing was priced."""
    logs: dict[str, str] = {}
    for scenario, blocks in samples_of(events).items():
        arms: dict[Arm, list[SampleResult]] = {}
        for _, measured in sorted(blocks.items()):
            for arm, result in measured.items():
                arms.setdefault(arm, []).append(result)
        for arm, results in arms.items():
            name = f"{len(logs) + 1:02}-{_slug(scenario, arm)}.hlog"
            logs[name] = _log(scenario, arm, sorted(results, key=lambda r: r.started_at))
    return logs


def _slug(scenario: Scenario, arm: Arm) -> str:
    level = "mix" if arm.mix else str(arm.level)
    words = (level, f"{arm.clients}-clients", arm.workload.text, arm.route, arm.label, scenario.text)
    return "-".join(re.sub(r"[^\w.]+", "-", word).strip("-") for word in words if word)


def _log(scenario: Scenario, arm: Arm, results: Sequence[SampleResult]) -> str:
    start = results[0].started_at
    level = "a mix" if arm.mix else str(arm.level)
    lines = [
        f"#[walproof: latency in nanoseconds at {level}, {arm.clients} clients, {arm.workload.text}, {scenario.text}]",
        "#[Histogram log format version 1.3]",
        f"#[StartTime: {start:.3f} (seconds since epoch), {utc_time(start)}]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    for result in results:
        histograms = {"": result.histogram, **{f"Tag={name},": one for name, one in result.per_level.items()}}
        lines += [
            f"{tag}{result.started_at - start:.3f},{result.seconds:.3f},{quantile_ms(one, 1.0):.3f},{encoded(one)}"
            for tag, one in histograms.items()
            if one
        ]
    return "\n".join([*lines, ""])


def encoded(histogram: Mapping[int, int]) -> str:
    """A histogram of our buckets in HdrHistogram's compressed V2 encoding, as base64."""
    counts: dict[int, int] = {}
    for bucket, count in histogram.items():
        value_ns = min(_HIGHEST_NS, round(quantile_ms({bucket: 1}, 0.5) * _NS_PER_MS))
        counts[_index(value_ns)] = counts.get(_index(value_ns), 0) + count
    payload, reached = bytearray(), 0
    for index in sorted(counts):
        zeros = index - reached
        payload += _varint(0 if zeros == 1 else -zeros) if zeros else b""
        payload += _varint(counts[index])
        reached = index + 1
    header = struct.pack(">iiiiqqd", _COOKIE, len(payload), 0, _DIGITS, 1, _HIGHEST_NS, 1.0)
    packed = zlib.compress(header + bytes(payload))
    return base64.b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(packed)) + packed).decode()


def _index(value_ns: int) -> int:
    """The place of a value among the counts: buckets double, each has 1024 sub-buckets (the first 2048)."""
    bucket = max(0, value_ns.bit_length() - _HALF - 1)
    return ((bucket + 1) << _HALF) + (value_ns >> bucket) - (1 << _HALF)


def _varint(value: int) -> bytes:
    """ZigZag LEB128 of a 64-bit integer, in nine bytes at most.

    >>> _varint(-300).hex(), _varint(1).hex()
    ('d704', '02')
    """
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest >= 0x80 and len(out) < 8:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
