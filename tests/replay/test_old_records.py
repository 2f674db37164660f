"""One record of every verb as version 0.1.0 wrote it (format 1), with what `report --json` of that version printed."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from walproof.cli.main import main
from walproof.model.event import DrillDone, SearchStep
from walproof.records.codec import encode
from walproof.records.layout import FORMAT, read_header
from walproof.records.old_names import FIELDS, VALUES
from walproof.records.reader import Record, Tail, read

FOLDER = Path(__file__).parent / "records"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/events.jsonl"))
CUT_SHORT = {"price-torn": 2}
"""Records without an end: how many notices say so."""
FAULTS, FINDINGS = VALUES["drill-done.drill.fault"], FIELDS["drill-done.drill.findings"]
OLD_WORDS = [
    old for names in (*FIELDS.values(), *VALUES.values()) for old in names if " " in old and not old[0].isdigit()
]
ARM = ("level", "clients", "label", "rate", "blocks", "transactions", "failed")
DRILL = ("level", "verdict", "acknowledged", "downgraded", "unknown", "refused", "lost", "recovered", "rto_s", "rpo_s")
SEARCH = ("search", "value", "low", "high")
CLAIM = ("study", "claim")


Run = Callable[..., str]


@pytest.fixture
def walproof(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb that must succeed; its standard output."""

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        out, err = capsys.readouterr()
        assert not end.value.code, err
        return out

    return run


def before(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name / "report.json").read_text("utf-8"))
    return found


def picked(objects: list[dict[str, Any]], keys: tuple[str, ...]) -> list[list[Any]]:
    return [[one[key] for key in keys] for one in objects]


def test_there_is_one_of_every_verb_and_kind() -> None:
    assert {name.split("-")[0] for name in NAMES} == {"demo", "price", "prove", "pitfall", "study"}
    for name in NAMES:
        header, wrong = read_header(FOLDER / name)
        assert header is not None, wrong
        assert header.format == 1 < FORMAT


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_and_nothing_in_it_is_unknown(name: str) -> None:
    record = read(FOLDER / name)
    assert len(record.notices) == CUT_SHORT.get(name, 0), record.notices
    assert record.complete == (name not in CUT_SHORT)
    lines = (FOLDER / name / "events.jsonl").read_text("utf-8").count("\n")
    assert len(record.events) == lines
    tail = Tail(FOLDER / name)
    assert [encode(e) for e in tail.more()] == [encode(e) for e in record.events]
    assert tail.notices == []


def expected_loss(drill: dict[str, Any]) -> dict[str, Any]:
    """A drill as it was shown then, with the name that an expected loss has today."""
    expected = drill["verdict"] == "broken" and drill["promised"] is False and drill["lost"] > 0
    others = drill["findings"].get("altered", 0) + drill["findings"].get("corrupted", 0)
    return {**drill, "verdict": "expected loss"} if expected and not others else drill


@pytest.mark.parametrize("name", NAMES)
def test_its_numbers_are_those_of_the_version_that_wrote_it(name: str, walproof: Run) -> None:
    old, new = before(name), json.loads(walproof("report", str(FOLDER / name), "--json"))
    assert picked(new.get("arms", []), ARM) == picked(old.get("arms", []), ARM)
    for now, then in zip(new.get("arms", []), old.get("arms", []), strict=True):
        percentiles = {name: ms for name, ms in then["latency_ms"].items() if name != "mean"}
        assert percentiles.items() <= now["latency_ms"].items()
    assert picked(new.get("drills", []), DRILL) == picked([expected_loss(d) for d in old.get("drills", [])], DRILL)
    assert picked(new.get("searches", []), SEARCH) == picked(old.get("searches", []), SEARCH)
    assert picked(new.get("claims", []), CLAIM) == picked(old.get("claims", []), CLAIM)
    faults = [FAULTS.get(d["fault"], d["fault"]) for d in old.get("drills", [])]
    assert [d["fault"] for d in new.get("drills", [])] == faults
    for now, then in zip(new.get("drills", []), old.get("drills", []), strict=True):
        counted = {FINDINGS.get(name, name): count for name, count in then["findings"].items()}
        assert counted.items() <= now["findings"].items()
        assert list(now["assumptions"].values()) == list(then["assumptions"].values())
    environment = new.get("environment") or {}
    assert {name: environment.get(name) for name in old.get("environment") or {}} == (old.get("environment") or {})
    assert (new.get("baseline"), new.get("stopped_by")) == (old.get("baseline"), old.get("stopped_by"))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_shown_in_every_form(name: str, walproof: Run, tmp_path: Path) -> None:
    record, page = str(FOLDER / name), tmp_path / "page.html"
    shown = walproof("report", record)
    assert shown.strip()
    assert walproof("report", record, "--markdown").strip()
    walproof("report", record, "--html", str(page))
    assert "</html>" in page.read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(walproof("report", record, "--csv"))))
    old = before(name)
    assert len(rows) >= len(old.get("arms", ())) + len(old.get("drills", ()))
    assert [word for word in OLD_WORDS if word in shown] == []


def test_an_interrupted_search_of_format_1_is_continued_in_format_2(walproof: Run, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "price-tune", tmp_path / "record")
    events = tmp_path / "record" / "events.jsonl"
    lines = events.read_text("utf-8").splitlines(keepends=True)
    worded_otherwise = [line.replace("within the limit", "below the limit") for line in lines]
    events.write_text("".join(worded_otherwise[: len(lines) // 2]), "utf-8")
    walproof("price", "--resume", str(tmp_path / "record"))
    record, old = read(tmp_path / "record"), read(FOLDER / "price-tune")
    assert record.notices == ()
    assert picked_steps(record) == picked_steps(old)
    assert record.complete


def picked_steps(record: Record) -> list[tuple[dict[str, Any], str]]:
    return [(step.tried, f"{step.value:.3g}") for step in record.of(SearchStep)]


def test_a_record_of_todays_format_is_never_upgraded(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "prove-kill", tmp_path / "record")
    header = json.loads((tmp_path / "record" / "record.json").read_text("utf-8"))
    (tmp_path / "record" / "record.json").write_text(json.dumps({**header, "format": FORMAT}), "utf-8")
    record = read(tmp_path / "record")
    assert len(record.of(DrillDone)) == 2
    assert any("unknown kind" in notice for notice in record.notices)
    assert any("unknown field" in notice for notice in record.notices)
