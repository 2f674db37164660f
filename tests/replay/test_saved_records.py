"""Records of real runs, kept: every later walproof must read them whole and derive the same findings from them."""

import json
from pathlib import Path

import pytest

from walproof.model.drill import Verdict
from walproof.model.event import DrillDone, SampleDone
from walproof.records.reader import Record, read
from walproof.records.writer import Writer
from walproof.reporting.html_and_markdown import markdown, page
from walproof.reporting.json_csv_hdrhistogram import record_json
from walproof.reporting.record_outline import composed

DEMO = Path(__file__).parent / "records" / "demo"
"""`walproof demo` on a busy machine of two cores, three members, PostgreSQL 18: ten arms in five blocks, two drills."""


@pytest.fixture(scope="module")
def demo() -> Record:
    return read(DEMO)


def test_a_saved_record_is_read_whole(demo: Record) -> None:
    assert demo.notices == ()
    assert demo.complete
    assert len(demo.of(SampleDone)) == 51
    assert len(demo.of(DrillDone)) == 2


def test_its_findings_are_those_of_the_day(demo: Record) -> None:
    found = record_json(demo.events, "demo", demo.notices)
    drills = {d["level"]: d for d in found["drills"]}
    assert (drills["off"]["verdict"], drills["off"]["lost"]) == (Verdict.EXPECTED_LOSS, 359)
    assert (drills["on"]["verdict"], drills["on"]["lost"]) == (Verdict.HELD, 0)
    assert found["loss_bound"]["on"] == pytest.approx(0.95)
    assert {(a["level"], a["clients"]) for a in found["arms"]} == {
        (level, n) for level in ("off", "local", "remote_write", "on", "remote_apply") for n in (1, 16)
    }
    for arm in found["arms"]:
        assert arm["tps"]["low"] <= arm["tps"]["value"] <= arm["tps"]["high"]
        assert "too few blocks" in arm["caveats"]
    assert "off lost 359 acknowledged commits" in found["conclusion"].lower()


def test_a_record_derives_the_same_page_every_time(demo: Record) -> None:
    assert page(composed(demo)) == page(composed(read(DEMO)))
    assert markdown(composed(demo)) == markdown(composed(read(DEMO)))


def test_writing_it_again_loses_nothing(demo: Record, tmp_path: Path) -> None:
    with Writer(tmp_path / "again", "demo") as emit:
        for event in demo.events:
            emit(event)
    assert read(tmp_path / "again").events == demo.events


def test_it_reads_as_from_a_later_walproof_too(demo: Record, tmp_path: Path) -> None:
    with Writer(tmp_path / "later", "demo") as emit:
        for event in demo.events:
            emit(event)
    lines = [json.loads(line) for line in (tmp_path / "later" / "events.jsonl").read_text().splitlines()]
    for line in lines:
        line["mood"] = {"new": ["field"]}
    lines.insert(3, {"kind": "foreseen", "at": 1.0, "what": "something of the future"})
    (tmp_path / "later" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = read(tmp_path / "later")
    assert record.events == demo.events
    assert len(record.notices) == 2
