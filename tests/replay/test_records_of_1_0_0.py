"""Records of 1.0.0 open for ever: one of each verb, of a real lab but for the matrix, each with the answer of its day.

An answer may say more later. What it says today keeps its name and its value, but for what was wrong: medians over
levels, faults and drills without an outage, or without the number of drills; a quantile's interval that began below a
lower quantile's, a mean latency's that began below nothing; a round trip of which the last of several measurements was
taken.
"""

import csv
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from walproof.advising.advise import as_json, chosen, read_advice
from walproof.cli.main import main
from walproof.model.guarantee import Level
from walproof.records.codec import encode
from walproof.records.layout import read_header
from walproof.records.reader import Tail, read

FOLDER = Path(__file__).parent / "records"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/events.jsonl"))
JUDGED = sorted(path.parent.name for path in FOLDER.glob("*/rejudge.json"))

Run = Callable[..., str]


@pytest.fixture
def walproof(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a verb among the records, which must succeed; its standard output."""
    monkeypatch.chdir(FOLDER)

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        out, err = capsys.readouterr()
        assert not end.value.code, err
        return out

    return run


def kept(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


def differences(then: Any, now: Any, place: str = "") -> list[str]:
    """Where an answer of today lacks a name of the kept one, or says something else under it."""
    if isinstance(then, dict) and isinstance(now, dict):
        lacking = [f"{place}.{name} is gone" for name in then if name not in now]
        there = [name for name in then if name in now]
        return lacking + [d for name in there for d in differences(then[name], now[name], f"{place}.{name}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [d for n, pair in enumerate(zip(then, now, strict=True)) for d in differences(*pair, f"{place}[{n}]")]
    same = math.isclose(then, now, rel_tol=1e-9) if isinstance(then, float) and isinstance(now, float) else then == now
    return [] if same else [f"{place}: {then!r} is {now!r}"]


def names(tree: Any) -> Any:
    """The names of an answer alone, as if every value were the same; lists by their first entry."""
    if isinstance(tree, dict):
        return {name: names(below) for name, below in tree.items()}
    return [names(one) for one in tree[:1]] if isinstance(tree, list) else None


def test_a_difference_is_noticed_and_an_addition_is_none() -> None:
    then = {"a": [{"b": 1.0}], "c": "held"}
    assert differences(then, {"a": [{"b": 1.0 + 1e-12, "new": 2}], "c": "held", "new": []}) == []
    assert differences(then, {"a": [{"b": 1.1}]}) == [".c is gone", ".a[0].b: 1.0 is 1.1"]
    assert differences(then, {"a": [], "c": "broken"}) != []


def test_there_is_one_of_every_verb() -> None:
    headers = [read_header(FOLDER / name)[0] for name in NAMES]
    assert {(h.format, h.walproof) for h in headers if h} == {(1, "1.0.0")}
    assert {h.verb for h in headers if h} == {"demo", "pitfalls", "price", "prove", "study"}
    assert {*JUDGED} == {"prove", "storm"} and len(NAMES) == 7


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_and_nothing_in_it_is_unknown(name: str) -> None:
    record, tail = read(FOLDER / name), Tail(FOLDER / name)
    assert record.notices == () and record.complete
    assert len(record.events) == (FOLDER / name / "events.jsonl").read_text("utf-8").count("\n")
    assert [encode(e) for e in tail.more()] == [encode(e) for e in record.events]
    assert tail.notices == []


@pytest.mark.parametrize("name", NAMES)
def test_it_is_reported_as_on_its_day(name: str, walproof: Run) -> None:
    assert differences(kept(f"{name}/report.json"), json.loads(walproof("report", name, "--json"))) == []


def test_every_process_prints_the_same_bytes() -> None:
    command = [sys.executable, "-m", "walproof", "report", "price", "--json"]
    seeds = ({**os.environ, "PYTHONHASHSEED": seed} for seed in "12")
    one, two = (subprocess.run(command, cwd=FOLDER, env=env, capture_output=True, check=True).stdout for env in seeds)
    assert one == two


@pytest.mark.parametrize("name", JUDGED)
def test_it_is_judged_again_as_on_its_day(name: str, walproof: Run) -> None:
    now = json.loads(walproof("report", name, "--rejudge", "--json"))
    assert differences(kept(f"{name}/rejudge.json"), now) == []
    assert all(drill["same"] for drill in now["drills"])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_shown_in_every_form(name: str, walproof: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert walproof("report", name).strip()
    assert walproof("report", name, "--markdown").strip()
    walproof("report", name, "--html", str(page))
    assert "</html>" in page.read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(walproof("report", name, "--csv"))))
    answer = kept(f"{name}/report.json")
    assert len(rows) >= len(answer.get("arms", [])) + len(answer.get("drills", []))


@pytest.mark.usefixtures("quick_forecasts")
@pytest.mark.parametrize(("file", "line"), [
    ("advice.json", "advise price prove --rpo 0 --json"),
    ("forecast.json", "forecast price prove --years 1000 --json"),
])  # fmt: skip
def test_advice_and_forecast_are_had_from_it_under_the_same_names(file: str, line: str, walproof: Run) -> None:
    assert differences(names(kept(file)), names(json.loads(walproof(*line.split())))) == []


def test_its_advice_can_be_applied() -> None:
    advice = read_advice((FOLDER / "advice.json").read_text("utf-8"))
    assert differences(kept("advice.json"), as_json(advice)) == []
    choice = chosen(advice, 1)
    assert (choice.level, choice.quorum, choice.strict, choice.clients) == (Level.ON, 1, True, 4)
