"""Exported histograms, read back by a decoder of the format's own, written here from its description."""

import base64
import math
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.command_line import ended
from tests.fixtures.tiers import each
from tests.unit.test_cli_price import run, target  # noqa: F401
from walproof.model.estimate import bucketed, pooled, quantile_ms
from walproof.pricing.estimates import samples_of
from walproof.records.reader import read
from walproof.reporting.json_csv_hdrhistogram import encoded

Run = Callable[..., tuple[int, str, str]]


def decoded(text: str) -> dict[int, int]:
    """Lowest value in ns of each place → its count, of a compressed V2 histogram in base64."""
    raw = base64.b64decode(text, validate=True)
    cookie, length = struct.unpack_from(">ii", raw)
    assert (cookie & ~0xF0, len(raw)) == (0x1C849304, 8 + length)
    body = zlib.decompress(raw[8:])
    cookie, length, offset, digits, lowest, highest, ratio = struct.unpack_from(">iiiiqqd", body)
    assert (cookie & ~0xF0, length, offset, digits, lowest, ratio) == (0x1C849303, len(body) - 40, 0, 3, 1, 1.0)
    found, index, place = {}, 0, 40
    while place < len(body):
        value = shift = 0
        while True:
            byte = body[place]
            place += 1
            value |= (byte if shift == 56 else byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift == 63:
                break
        number = (value >> 1) ^ -(value & 1)
        if number < 0:
            index -= number
            continue
        if number:
            bucket, sub = (index >> 10) - 1, (index & 1023) + 1024
            found[sub - 1024 if bucket < 0 else sub << bucket] = number
        index += 1
    assert all(value <= highest for value in found)
    return found


@given(st.dictionaries(st.integers(0, 2200), st.integers(1, 2**40), max_size=60))
def test_every_count_comes_back_within_a_thousandth_of_its_value(histogram: dict[int, int]) -> None:
    # Buckets near the microsecond lie closer than one of HdrHistogram's places.
    expected: dict[int, int] = {}
    for bucket, count in histogram.items():
        value = min(3_600_000_000_000, round(1e6 * quantile_ms({bucket: 1}, 0.5)))
        step = 2 ** max(0, value.bit_length() - 11)
        expected[value // step * step] = expected.get(value // step * step, 0) + count
    assert decoded(encoded(histogram)) == expected


@each([0.5, 0.99, 0.999])
def test_percentiles_of_the_export_are_those_of_the_latencies(share: float) -> None:
    latencies = np.random.default_rng(1).lognormal(1.0, 0.8, 50_000)
    found = sorted(decoded(encoded(bucketed(latencies))).items())
    rank = math.ceil(share * len(latencies))
    reached = np.cumsum([count for _, count in found])
    value = found[int(np.searchsorted(reached, rank))][0] / 1e6
    assert value == pytest.approx(float(np.quantile(latencies, share)), rel=0.015)


def test_a_record_is_written_as_one_log_an_arm(run: Run, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run("--levels", "on", "--clients", "4", "--budget", "20s", "--record", "rec")
    code, out, err = ended(capsys, ["report", "rec", "--histograms", "logs"])
    assert (code, out, err) == (0, "", "2 histogram logs: logs\n")
    names = sorted(path.name for path in Path("logs").iterdir())
    assert {re.sub(r"^\d+-", "", name) for name in names} == {
        f"{level}-4-clients-tpcb-like-direct-default-settings.hlog" for level in ("local", "on")
    }
    ((_, blocks),) = samples_of(read(Path("rec")).events).items()
    for name in names:
        lines = Path("logs", name).read_text().splitlines()
        rows = [line.split(",") for line in lines if line[0].isdigit()]
        counted = sum(sum(decoded(row[3]).values()) for row in rows)
        own = [r.histogram for found in blocks.values() for a, r in found.items() if f"-{a.level}-" in name]
        assert counted == sum(pooled(own).values())
        assert float(rows[0][0]) == 0.0
        assert "#[Histogram log format version 1.3]" in lines


def test_the_classes_of_a_mix_are_tagged(run: Run, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run("--mix", "on=10,local=90", "--clients", "4", "--budget", "20s", "--record", "rec")
    ended(capsys, ["report", "rec", "--histograms", "logs"])
    (mixed,) = Path("logs").glob("*-mix-*.hlog")
    assert {line.partition(",")[0] for line in mixed.read_text().splitlines() if line.startswith("Tag=")} == {
        "Tag=on",
        "Tag=local",
    }


def test_what_holds_no_latencies_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run("--levels", "on", "--clients", "4", "--budget", "20s", "--record", "rec")
    assert ended(capsys, ["report", "rec", "rec", "--histograms", "logs"])[0] == 2
    Path("file").write_text("")
    assert ended(capsys, ["report", "rec", "--histograms", "file/logs"])[0] == 3
