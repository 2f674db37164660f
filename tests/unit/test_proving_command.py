"""`walproof prove` from options to exit code, on simulated clusters in virtual time."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from tests.fixtures.command_line import ended
from walproof.errors import TargetError, WaitTimeout
from walproof.model.drill import Capability
from walproof.model.event import DrillDone, Ended, Note
from walproof.model.load import LedgerOrder
from walproof.proving.history import decode
from walproof.records.reader import read
from walproof.targets.simulated.cluster import Nature
from walproof.targets.simulated.ledger_rows_and_member_states import SimulatedRun
from walproof.targets.simulated.target import Simulated

Run = Callable[..., tuple[int, str, str]]
QUICK = "sim?slowness=3"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the verb in an empty directory; exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: ended(capsys, ["prove", *arguments])


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """The simulated cluster that every --target means."""
    one = Simulated(Nature(slowness=3))
    monkeypatch.setattr(importlib.import_module("walproof.cli.prove"), "choose", lambda text: one)
    return one


def drill_of(out: str) -> dict[str, Any]:
    """The only drill of an answer."""
    (drill,) = json.loads(out)["drills"]
    return cast(dict[str, Any], drill)


def test_json_is_one_object_with_the_keys_of_the_schema(run: Run) -> None:
    code, out, _ = run("--target", QUICK, "--fault", "kill", "--levels", "off,on", "--json", "--record", "rec")
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    assert found["record"] == "rec"
    wanted = {
        "fault", "level", "acknowledged", "downgraded", "unknown", "refused", "lost", "recovered", "rto_s", "rpo_s",
        "leader_before", "leader_after", "timeline_before", "timeline_after", "verdict", "why",
    }  # fmt: skip
    assert all(wanted <= set(drill) for drill in found["drills"])
    by_level = {drill["level"]: drill for drill in found["drills"]}
    assert by_level["off"]["verdict"] == "expected loss"
    assert by_level["off"]["lost"] > 0
    assert by_level["off"]["why"].startswith("expected loss: ")
    assert by_level["on"]["verdict"] == "held"
    assert found["loss_bound"]["on"] == pytest.approx(0.95)
    assert "off lost" in found["positive_control"]["kill on"]


def test_everything_held_is_exit_0_and_the_record_can_be_read(run: Run) -> None:
    code, out, err = run("--target", QUICK, "--levels", "on", "--repeat", "2", "--record", "rec")
    assert code == 0
    assert "on lost nothing in 2 drills" in out
    assert "drill 2: kill at on" in err
    kinds = [type(event) for event in read(Path("rec")).events]
    assert kinds.count(DrillDone) == 2
    assert kinds[-1] is Ended


def test_nothing_but_names_emptied_is_exit_4(run: Run) -> None:
    code, _, _ = run("--target", "sim?lie=names&slowness=3", "--levels", "on")
    assert code == 4


def test_a_gate_exceeded_is_exit_1_and_junit_says_why(run: Run) -> None:
    words = ("--levels", "on", "--require", "rpo=0,rto=30s", "--junit", "out.xml")
    assert run("--target", QUICK, *words)[0] == 0
    code, _, _ = run("--target", "sim?odd=late&slowness=3", *words)
    assert code == 1
    failure = ElementTree.parse("out.xml").getroot().find("testsuite/testcase/failure")
    assert failure is not None
    assert "30 s are allowed" in failure.attrib["message"]


def test_until_bound_stops_as_soon_as_the_bound_is_reached(run: Run) -> None:
    _, out, _ = run("--target", QUICK, "--levels", "on", "--until-bound", "30%", "--writers", "4", "--json")
    found = json.loads(out)
    assert len(found["drills"]) == 9
    assert found["loss_bound"]["on"] <= 0.30


def test_a_storm_on_an_honest_cluster_holds(run: Run) -> None:
    code, out, _ = run("--target", QUICK, "--levels", "on", "--storm", "6", "--writers", "4", "--json")
    found = json.loads(out)
    assert code in (0, 4)
    assert len(found["drills"]) == 6
    assert all(len(drill["strikes"]) == 4 for drill in found["drills"])
    assert all(drill["lost"] == 0 for drill in found["drills"])


def test_a_dry_run_shows_what_each_storm_would_be(run: Run) -> None:
    _, text, _ = run("--target", "sim", "--levels", "on", "--storm", "2", "--storm-faults", "3", "--dry-run")
    _, out, _ = run("--target", "sim", "--levels", "on", "--storm", "2", "--storm-faults", "3", "--dry-run", "--json")
    storms = [drill["storm"] for drill in json.loads(out)["drills"]]
    assert [len(storm) for storm in storms] == [3, 3]
    assert all(clause in text for storm in storms for clause in storm)


def test_the_matrix_is_the_table_of_documented_guarantees(run: Run) -> None:
    _, out, _ = run("--target", "sim?slowness=2", "--matrix", "--quick", "--writers", "32", "--json")
    table = json.loads(out)["matrix"]
    assert list(table) == ["off", "local", "remote_write", "on", "remote_apply"]
    for level, row in table.items():
        for column, cell in row.items():
            if cell["promised"]:
                assert cell["mark"] == "✔", (level, column, cell)
    assert table["off"]["kill-all"]["mark"] == "✘"
    assert table["remote_write"]["double-power"]["mark"] == "✘"
    assert table["on"]["none"]["mark"] == "✘"


def test_a_fault_that_no_member_takes_over_from_is_told_before(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    able, fence = Simulated.capabilities, "writes stop for as long as it is fenced"
    here = {Capability.STOP: fence}
    monkeypatch.setattr(Simulated, "capabilities", lambda self: replace(able(self), no_takeover=here))
    monkeypatch.setattr(target, "external", True, raising=False)
    words = ("--fault", "stop,kill", "--levels", "on")
    _, text, _ = run(*words, "--dry-run")
    assert text.count(f"no RTO:   {fence}; held for 10 s") == 1
    _, out, _ = run(*words, "--dry-run", "--json")
    assert {d["fault"]: d["no_rto"] for d in json.loads(out)["drills"]} == {"stop": fence, "kill": None}
    code, _, errors = run(*words)
    assert code == 2 and f"you did not allow it. stop: {fence}" in " ".join(errors.split()), errors


def test_a_dry_run_tells_the_story_and_does_nothing(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("--target", QUICK, "--fault", "kill,partition", "--levels", "on", "--dry-run")
    assert code == 0
    assert "the postmaster is killed with -9" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [
    ("--levels", "sometimes"),
    ("--require", "speed=3"),
    ("--victim", "cluster", "--fault", "kill"),
    ("--client-timeout", "0s"),
])  # fmt: skip
def test_an_option_that_is_not_valid_is_exit_2_with_a_hint_and_no_record(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    code, out, err = run("--target", QUICK, *words)
    assert (code, out) == (2, "")
    assert "hint:" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_cannot_be_written_is_exit_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("--target", QUICK, "--record", "file/rec")
    assert code == 3
    assert "hint:" in err


def test_an_external_cluster_is_not_broken_without_consent(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "external", True)
    code, _, err = run("--target", "service=mine", "--fault", "kill", "--levels", "on")
    assert code == 2
    assert "--allow load,kill" in err
    assert target.world.timeline == 1
    assert run("--target", "service=mine", "--fault", "kill", "--levels", "on", "--allow", "load,kill")[0] == 0


def test_a_fault_the_target_cannot_do_is_skipped_and_never_a_pass(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable = replace(target.capabilities(), faults={}, reasons={Capability.KILL: "it is welded shut"})
    monkeypatch.setattr(target, "capabilities", lambda: unable)
    code, out, _ = run("--levels", "on", "--json")
    assert (code, drill_of(out)["why"]) == (4, "skipped, because it is welded shut")


def unable(*_: object) -> str:
    raise TargetError("role app may not use amcheck", "GRANT it")


def test_data_that_may_not_be_checked_is_stated_and_rows_are_compared(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target.capabilities().ledger, "check_data", unable)
    code, out, _ = run("--fault", "kill", "--levels", "on", "--json")
    drill = drill_of(out)
    assert (code, drill["verdict"]) == (0, "held")
    assert drill["why"].startswith("all ") and "were not checked, only rows compared" in drill["why"]
    assert drill["evidence"]["n2 unchecked"] == "role app may not use amcheck: GRANT it"


def never(*_: object) -> None:
    raise WaitTimeout("timed out after 120 s waiting for the cluster to be healthy", "read the logs")


def test_a_cluster_that_does_not_recover_is_undecided_and_its_logs_are_kept(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target.faults, "recover", never)
    code, out, _ = run("--fault", "freeze", "--levels", "on", "--repeat", "3", "--record", "rec", "--json")
    assert (code, drill_of(out)["verdict"]) == (4, "undecided")
    kept = sorted(path.name for path in Path("rec").rglob("*.log"))
    assert kept == ["drill-1-n1.log", "drill-1-n2.log", "drill-1-n3.log"]


def refused(member: str) -> None:
    raise TargetError(f"{member} is already down", "")


def test_a_fault_that_is_refused_at_the_last_moment_is_undecided(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never injected: no RTO, no outage, and none is cleared."""
    monkeypatch.setattr(target.faults, "kill", refused)
    code, out, _ = run("--levels", "on", "--json")
    drill = drill_of(out)
    assert code == 4
    assert "could not be done: n1 is already down" in drill["why"]
    assert (drill["rto_s"], drill["unavailable_s"], drill["writers_rto_s"]) == (None, None, None)
    code, out, err = run("--levels", "on")
    assert (code, "drill 1" in err, "cleared" in err, "in effect" in err) == (4, True, False, False), err


def test_writers_that_never_commit_are_undecided_not_an_error(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ledger = target.ledger.open_ledger

    def silent(order: LedgerOrder) -> SimulatedRun:
        found = open_ledger(order)
        target.world.held_until = float("inf")
        return found

    monkeypatch.setattr(target.ledger, "open_ledger", silent)
    code, out, _ = run("--levels", "on", "--json")
    assert code == 4
    assert "WRITERS_UP" in drill_of(out)["why"]


def test_no_fault_comes_before_every_writer_is_up(run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = SimulatedRun.progress
    monkeypatch.setattr(SimulatedRun, "progress", lambda run: replace(progress(run), connected=9))
    code, out, _ = run("--levels", "on", "--writers", "16", "--json")
    assert code == 4
    assert "WRITERS_UP" in drill_of(out)["why"]


def test_ctrl_c_recovers_first_then_tells_what_was_found(
    run: Run, target: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, recover = target.faults.kill, target.faults.recover
    killed: list[str] = []
    recovered: list[bool] = []

    def killing(member: str) -> None:
        kill(member)
        killed.append(member)
        if len(killed) == 2:
            raise KeyboardInterrupt

    def recovering() -> None:
        recovered.append(True)
        recover()

    monkeypatch.setattr(target.faults, "kill", killing)
    monkeypatch.setattr(target.faults, "recover", recovering)
    code, out, _ = run("--levels", "on", "--repeat", "5", "--record", "rec", "--json")
    assert code == 130
    assert len(json.loads(out)["drills"]) == 1
    assert len(recovered) == 2
    assert target.observe().healthy
    events = read(Path("rec")).events
    assert isinstance(events[-1], Ended)
    assert events[-1].stopped_by == "interrupted"
    assert any(isinstance(e, Note) and "cleared first" in e.text for e in events)


def test_every_verdict_is_derived_again_from_the_kept_histories(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--target", QUICK, "--fault", "kill,partition", "--levels", "off,on,remote_apply", "--record", "rec")
    code, out, _ = ended(capsys, ["report", "rec", "--rejudge"])
    assert (code, "6 of 6 verdicts" in out) == (0, True)


def test_a_verdict_that_is_not_what_its_history_says_is_found(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("--target", QUICK, "--levels", "off,on", "--record", "rec")
    events = Path("rec/events.jsonl")
    events.write_text(events.read_text().replace('"verdict":"expected loss"', '"verdict":"held"'))
    code, out, _ = ended(capsys, ["report", "rec", "--rejudge"])
    assert code == 1
    assert "1 of 2 verdicts" in out
    assert "now it is expected loss" in out


def test_a_damaged_history_is_one_sentence(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("--target", QUICK, "--levels", "on", "--record", "rec")
    kept = Path("rec/files/drill-1.history")
    kept.write_bytes(kept.read_bytes()[:-9])
    code, _, err = ended(capsys, ["report", "rec", "--rejudge"])
    assert code == 2
    assert "drill-1.history: the history is damaged" in err
    kept.unlink()
    code, _, err = ended(capsys, ["report", "rec", "--rejudge"])
    assert code == 2
    assert "keeps no histories" in err


def test_a_writer_waits_for_an_answer_as_long_as_asked(run: Run) -> None:
    words = ("--fault", "kill", "--levels", "on", "--client-timeout", "1s", "--record", "r", "--json")
    code, _, err = run("--target", QUICK, *words)
    assert code == 0, err
    assert decode(Path("r/files/drill-1.history").read_bytes()).planned.client_timeout_s == 1.0
