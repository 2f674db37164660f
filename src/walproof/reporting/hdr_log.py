"""Latency histograms as HdrHistogram logs (format 1.3, encoding V2), one log an arm, one interval a sample. Pure.

Values are nanoseconds, as tools that read such logs expect; each is the middle of its bucket, which is 1 % wide.
Format: HdrHistogram's AbstractHistogram.encodeIntoByteBuffer, ZigZagEncoding and HistogramLogWriter.
"""

import base64
import re
import struct
import zlib
from collections.abc import Mapping, Sequence

from walproof.model.event import Event
from walproof.model.histogram import quantile_ms
from walproof.model.plan import Arm, Scenario
from walproof.model.sample import SampleResult
from walproof.pricing.estimates import samples_of
from walproof.reporting.wording import utc_time

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
        found = {"": result.histogram, **{f"Tag={name},": one for name, one in result.per_level.items()}}
        lines += [
            f"{tag}{result.started_at - start:.3f},{result.seconds:.3f},{quantile_ms(one, 1.0):.3f},{encoded(one)}"
            for tag, one in found.items()
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
