"""Conditions that a study's lab declares, on a target that meets or misses them; and the consent that sizes need."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.fixtures.priced_fake import FakePriced
from tests.fixtures.tiers import each
from walproof.cli.main import walproof
from walproof.model.drill import Capability
from walproof.model.event import ClaimJudged, Event, FigureCompared
from walproof.model.ports import Capabilities
from walproof.model.topology import ClusterView, Description, MemberView, Role
from walproof.pricing.sampling import ignore_progress
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.html_and_markdown import markdown
from walproof.reporting.record_outline import claim_sections, composed
from walproof.reporting.terminal import tables
from walproof.studies.declaration import LabNeeded, shipped
from walproof.studies.run import StudyOptions, consents_needed_on, missed, plan_as_json, plan_lines, run_study


def view(names: str, members: int = 3) -> ClusterView:
    found = tuple(MemberView(f"n{n}", Role.STANDBY, "streaming") for n in range(1, members + 1))
    return ClusterView(0.0, found, "n1", names)


LAB = LabNeeded.model_validate({"members": 3, "quorum": "any1", "wal_volume": True})
ANY_1 = 'ANY 1 ("n2", "n3")'


@each([
    (LAB, True, view(ANY_1), ()),
    (LAB, False, view(ANY_1), ("WAL is with the data, the study has it on a volume of its own",)),
    (LAB, None, view(ANY_1), ("where WAL is written is not known, the study has it on a volume of its own",)),
    (LAB, True, view('ANY 2 ("n2", "n3")'), ("ANY 2, the study has ANY 1",)),
    (LAB, True, view(""), ("asynchronous, the study has ANY 1",)),
    (LAB, True, view(ANY_1, 5), ("5 members, the study has 3",)),
    (LabNeeded(), False, view("", 1), ()),
    (LabNeeded.model_validate({"sync": "off"}), None, view(""), ()),
    (LabNeeded(cores=0.5), None, view(""), ("processors per member: all, the study has 0.5",)),
    (LabNeeded(parameters={"commit_delay": "50"}), None, view(""), ("commit_delay is 0, the study has 50",)),
])  # fmt: skip
def test_only_what_the_study_declares_and_the_target_misses_is_named(
    lab: LabNeeded, wal_volume: bool | None, seen: ClusterView, sentences: tuple[str, ...]
) -> None:
    described = Description("t", ("n1",), {"cpu per member": "all"}, {"commit_delay": "0"}, wal_volume)
    assert tuple(missed(lab, described, seen)) == sentences


class Sized(FakePriced):
    """Priced, and its processors can be limited."""

    def capabilities(self) -> Capabilities:
        return Capabilities(pricing=self, scenario_factors=frozenset({Capability.LIMIT_PROCESSORS}))


def test_a_missed_condition_stands_next_to_each_claim_and_figure(tmp_path: Path) -> None:
    study, _ = shipped("cnpg-powerflex")
    events: list[Event] = []
    with Writer(tmp_path / "record", "study") as writer:

        def emit(event: Event) -> None:
            events.append(event)
            writer(event)

        run_study(study, Sized(), emit, writer.keep, StudyOptions(budget_s=60), ignore_progress)
    judged = [event for event in events if isinstance(event, ClaimJudged | FigureCompared)]
    sentence = "where WAL is written is not known, the study has it on a volume of its own"
    assert len(judged) == len(study.claim) + len(study.figure)
    assert {event.caveats for event in judged} == {(sentence,)}
    assert markdown(composed(read(tmp_path / "record"))).count(sentence) == len(judged)
    shown = io.StringIO()
    Console(file=shown, width=200).print(*tables(claim_sections(events)))
    assert shown.getvalue().count(sentence) == 2


# rows: own-lab, simulated
@each([[], ["--target", "sim"]])
def test_a_dry_run_says_what_how_long_and_on_what_and_does_nothing(
    where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("walproof.cli.study.own_lab", None)
    asked = ["study", "run", "patroni-tradeoff", "--quick", "--dry-run", *where]
    text = CliRunner().invoke(walproof, asked)
    assert text.exit_code == 0, text.output
    assert ("on a lab of its own: 3 members, ANY 1" in text.output) is (not where)
    assert "about 4 min" in text.output and "drill peak: kill-member at on, 1 × about 30 s" in text.output
    assert "needs --allow" not in text.output
    plan = json.loads(CliRunner().invoke(walproof, [*asked, "--json"]).output)
    assert plan["dry_run"] and plan["seconds"] == pytest.approx(4.5 * 60)
    assert [len(part["arms"]) for part in plan["parts"]] == [6] and len(plan["drills"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_the_consent_and_what_is_left_out() -> None:
    study, _ = shipped("cnpg-powerflex")
    plan = plan_as_json(study, StudyOptions(), Sized(external=True))
    assert plan["consents"] == ["load", "scale"] and plan["caveats"]
    unable = plan_as_json(study, StudyOptions(), FakePriced())
    assert unable["seconds"] == 0 and all(part["left_out"] for part in unable["parts"])
    lines = "\n".join(plan_lines(unable, study, StudyOptions()))
    assert "part writes is left out: " in lines and "differs from the study: where WAL is written" in lines


def test_sizes_need_consent_where_they_can_be_had() -> None:
    study, _ = shipped("cnpg-powerflex")
    assert consents_needed_on(Sized(), study) == ("load", "scale")
    assert consents_needed_on(FakePriced(), study) == ("load",)
