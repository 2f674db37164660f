"""`walproof price` from options to exit code, on a fake target in virtual time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import ended, one_sentence
from tests.fixtures.priced_fake import FakePriced
from walproof.model.event import SearchStep
from walproof.records.own_journals import RegisteredJournal
from walproof.records.reader import read
from walproof.reporting.conclusion import conclusion

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def target() -> FakePriced:
    return FakePriced()


@pytest.fixture
def run(target: FakePriced, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the verb in an empty directory; exit code, standard output, standard error."""
    import importlib

    monkeypatch.setattr(importlib.import_module("walproof.cli.price"), "choose", lambda text: target)
    monkeypatch.chdir(tmp_path)

    return lambda *words: ended(capsys, ["price", *words])


def as_json(run: Run, *words: str) -> dict[str, Any]:
    code, out, _ = run(*words, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_two_levels_are_priced_and_the_record_can_be_read(run: Run) -> None:
    found = as_json(run, "--levels", "local,on", "--clients", "1,4", "--budget", "10min", "--record", "rec")
    assert found["stopped_by"] == "precision"
    assert found["record"] == "rec"
    assert [(a["level"], a["clients"]) for a in found["arms"]] == [("local", 1), ("on", 1), ("local", 4), ("on", 4)]
    assert found["arms"][1]["ratio"]["high"] < 1
    record = read(Path("rec"))
    assert record.complete
    assert record.started is not None
    assert record.started.question["levels"] == "local,on"


def test_all_five_levels_are_the_default(run: Run) -> None:
    levels = [a["level"] for a in as_json(run, "--clients", "2", "--budget", "20s")["arms"]]
    assert levels == ["off", "local", "remote_write", "on", "remote_apply"]


def test_a_round_trip_and_a_quorum_are_outer_factors(run: Run, target: FakePriced) -> None:
    found = as_json(
        run, "--levels", "on", "--clients", "1", "--rtt", "0,5ms", "--quorum", "any1,all", "--budget", "30s"
    )
    assert len({a["scenario"] for a in found["arms"]}) == 4
    assert {s.quorum for s in target.entered} == {1, 2}
    assert target.left == 1


def test_ctrl_c_prints_what_there_is_and_resume_goes_on(run: Run, target: FakePriced) -> None:
    target.interrupt_after = 11
    code, out, _ = run("--levels", "on", "--clients", "2", "--record", "rec", "--json")
    assert code == 130
    interrupted = json.loads(out)
    assert (interrupted["stopped_by"], interrupted["arms"][0]["blocks"], target.left) == ("interrupted", 5, 1)
    target.interrupt_after = None
    found = as_json(run, "--resume", "rec")
    assert found["stopped_by"] == "precision"
    assert found["arms"][0]["blocks"] >= 8
    assert {s.arm.clients for s in target.asked} == {2}


def test_a_script_is_kept_in_the_record_and_another_one_is_not_measured_into_it(run: Run, target: FakePriced) -> None:
    Path("a.sql").write_text("SELECT 1;")
    Path("b.sql").write_text("SELECT 2;")
    target.interrupt_after = 4
    run("--levels", "on", "--clients", "2", "--workload", "a.sql@3,b.sql@1", "--record", "rec")
    target.interrupt_after = None
    assert {p.name: p.read_text() for p in read(Path("rec")).kept()} == {"1-a.sql": "SELECT 1;", "2-b.sql": "SELECT 2;"}
    before = Path("rec/events.jsonl").read_bytes()
    Path("b.sql").write_text("SELECT 3;")
    again = ("--resume", "rec", "--workload", "a.sql@3,b.sql@1")
    code, _, err = run(*again)
    assert (code, Path("rec/events.jsonl").read_bytes()) == (2, before)
    assert "b.sql has changed since it was measured" in err
    Path("b.sql").write_text("SELECT 2;")
    assert as_json(run, *again)["arms"][0]["blocks"] >= 8


def test_variables_are_recorded_and_given_again_as_one_reads_them_to_go_on(run: Run, target: FakePriced) -> None:
    Path("a.sql").write_text("SELECT :n, :m;")
    target.interrupt_after = 4
    asked = ("--workload", "a.sql", "-D", "n=1", "--define", "m=2")
    run("--levels", "on", "--clients", "2", *asked, "--record", "rec")
    target.interrupt_after = None
    first = read(Path("rec")).started
    assert first is not None and first.question["define"] == ["n=1", "m=2"]
    code, _, err = run("--resume", "rec", "--workload", "a.sql")
    assert code == 2 and "the record's --define is run as your own code" in err
    code, _, err = run("--resume", "rec", "--workload", "a.sql", "-D", "n=1", "-D", "m=3")
    assert code == 2 and "--define cannot be changed with --resume" in err
    arms = as_json(run, "--resume", "rec", *asked)["arms"]
    assert {arm["manner"] for arm in arms} == {"n=1, m=2"}


def test_a_dry_run_says_what_it_would_do_and_does_nothing(run: Run, target: FakePriced) -> None:
    code, out, _ = run("--levels", "on", "--rtt", "3ms", "--dry-run")
    assert code == 0
    assert "rtt 3 ms" in out
    assert not target.asked
    assert not target.entered
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("words", "says"), [
    (["--levels", "onn"], "not a commit level"),
    (["--levels", ""], "empty"),
    (["--baseline", "x"], "not a commit level"),
    (["--clients", ""], "empty"),
    (["--clients", "0"], "whole number from 1"),
    (["--clients", "-3"], "whole number from 1"),
    (["--clients", "1,,2"], "empty"),
    (["--quorum", "any3"], "larger than the 2 standbys"),
    (["--quorum", "some"], "not a quorum"),
    (["--quorum", "any1", "--mode", "preferred"], "'preferred' is neither strict nor degrading"),
    (["--mode", "strict"], "--mode needs --quorum"),
    (["--workload", "select-only", "--mix", "on=1,off=1"], "select-only"),
    (["--mix", "on"], "not a level and its weight"),
    (["--mix", "on=1,on=2"], "twice"),
    (["--tune"], "limit"),
    (["--limit", "10ms"], "--tune"),
    (["--workload", "absent.sql"], "cannot be read"),
    (["--workload", "nonsense"], "neither a workload"),
    (["--workload", "batch:0"], "whole number"),
    (["--rtt", "-3ms"], "not a duration"),
    (["--precision", "0"], "precision"),
    (["--budget", "0"], "budget"),
    (["--load", "1.5"], "more than the whole"),
    (["--pool", "4"], "--route pgbouncer"),
    (["--route", "pgbouncer", "--pool", "4"], "the pooler before fake is not walproof's own"),
    (["--route", "teleport"], "not a route here"),
    (["--cpu", "0"], "not a number of processors"),
    (["--fsync", "maybe"], "neither on nor off"),
    (["--predict", "many"], "clients"),
    (["--seed", "x"], "whole number"),
    (["--max-clients", "4", "--clients", "16"], "--max-clients"),
    (["--resume", "."], "record"),
    (["--resume", "x", "--record", "y"], "--record"),
])  # fmt: skip
def test_what_is_not_valid_is_one_sentence_and_exit_2(
    words: list[str], says: str, run: Run, target: FakePriced
) -> None:
    one_sentence(run(*words), says)
    assert target.asked == []
    assert list(Path().iterdir()) == []


def test_a_guarantee_not_in_effect_is_refused_and_priced_with_a_caveat_when_allowed(
    run: Run, target: FakePriced
) -> None:
    target.standby_names = ""
    one_sentence(run("--levels", "on", "--clients", "1"), "silently mean local", code=3)
    found = as_json(run, "--levels", "on", "--clients", "1", "--allow", "not-in-effect")
    assert "guarantee not in effect" in found["arms"][1]["caveats"]


def test_an_external_cluster_is_not_loaded_without_consent(run: Run, target: FakePriced) -> None:
    target.external = True
    one_sentence(run("--target", "mine.toml", "--levels", "on"), "--allow load")
    assert target.asked == []


def test_a_record_of_another_format_is_not_continued(run: Run) -> None:
    as_json(run, "--levels", "on", "--clients", "1", "--record", "rec")
    header = next(p for p in Path("rec").iterdir() if p.name != "events.jsonl" and p.suffix == ".json")
    stated = json.loads(header.read_text())
    header.write_text(json.dumps({**stated, "format": 99}))
    one_sentence(run("--resume", "rec"), "this walproof reads format")


def test_an_external_cluster_keeps_a_journal_in_the_record(run: Run, target: FakePriced) -> None:
    target.external = True
    as_json(run, "--target", "mine", "--levels", "on", "--clients", "1", "--allow", "load", "--record", "rec")
    assert isinstance(target.journal, RegisteredJournal)
    assert target.journal.path == Path("rec/journal.jsonl").resolve()


@pytest.mark.parametrize(
    "search", [("--break-even", "--levels", "on"), ("--tune", "--limit", "50ms")], ids=["break-even", "tune"]
)
def test_the_report_of_a_search_opens_with_what_the_search_found(run: Run, search: tuple[str, ...]) -> None:
    found = as_json(run, *search, "--budget", "120s", "--record", "rec")
    events = read(Path("rec")).events
    assert conclusion(events).startswith(found["conclusion"])
    unended = [e for e in events if not (isinstance(e, SearchStep) and "answer" in e.tried)]
    assert conclusion(unended).endswith("steps and came to no end.")
