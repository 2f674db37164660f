"""Settings entered one after the other on a cluster of paper: each begins from how the cluster was found."""

from pathlib import Path

import pytest

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.priced_fake import FakePriced
from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.guarantee import ConfigChange, ConfigPlan, Difference, SyncReplication
from walproof.model.ports import SILENT, Notebook, Reverting
from walproof.model.sample import Scenario
from walproof.records.journal import Journal
from walproof.targets.external.pricing import ExternalPricing
from walproof.targets.external.target_file import CapsPart
from walproof.targets.lab.scenarios import LabScenarios
from walproof.targets.sql.ledger import NO_DATABASE
from walproof.targets.sql.price import SqlPricer

NAME = "paper"


class Paper:
    """A configuration that is a dictionary in place of servers."""

    def __init__(self, journal: Path) -> None:
        self.journal = Journal(journal)
        self.now: dict[str, str | None] = {"names": "", "commit_delay": "0"}
        self.changes = 0
        self.refused = ""
        self.asked: SyncReplication | None = None
        self.pricing = ExternalPricing(
            SqlPricer(FakePriced()),
            CapsPart(),
            self,
            journal=lambda: self.journal,
            database=NO_DATABASE,
        )

    def plan(self, change: ConfigChange) -> ConfigPlan:
        sync = self.asked = change.replication
        wanted = {**({"names": sync.text} if sync else {}), **change.parameters}
        return ConfigPlan(change, (), tuple(Difference(NAME, n, self.now.get(n), v) for n, v in wanted.items()), "")

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        for one in plan.differences:
            if one.name == self.refused:
                raise RuntimeError
            journal.note(0.0, NAME, "paper", one.name, before=self.now.get(one.name), after=one.after)
            self.now[one.name] = one.after
            self.changes += 1

    def wait(self, plan: ConfigPlan) -> None:
        """It is in effect already."""

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        for change in journal.pending(NAME):
            self.now[change.name] = change.before
            journal.undone(change)
        return []


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path / "journal.jsonl")


def of(quorum: int | None = None, **parameters: str) -> Scenario:
    return Scenario(quorum=quorum, parameters=tuple(parameters.items()))


def test_a_parameter_of_the_scenario_before_is_reverted(paper: Paper) -> None:
    paper.pricing.enter(of(commit_delay="100"))
    assert paper.now == {"names": "", "commit_delay": "100"}
    paper.pricing.enter(of(quorum=1))
    assert paper.now == {"names": "ANY 1", "commit_delay": "0"}
    paper.pricing.enter(Scenario())
    assert paper.now == {"names": "", "commit_delay": "0"}


def test_the_quorum_is_strict_or_degrades_as_asked(paper: Paper) -> None:
    asked = []
    for strict in (True, False, None):
        paper.pricing.enter(Scenario(quorum=1, strict=strict))
        asked.append(paper.asked.strict if paper.asked else "none")
    assert asked == [True, False, None]


def test_the_same_setting_twice_changes_nothing_the_second_time(paper: Paper) -> None:
    paper.pricing.enter(of(quorum=1, commit_delay="100"))
    paper.pricing.enter(of(quorum=1, commit_delay="100"))
    assert paper.changes == 2


def test_a_scenario_that_failed_halfway_is_reverted_at_the_next(paper: Paper) -> None:
    paper.refused = "commit_delay"
    with pytest.raises(RuntimeError):
        paper.pricing.enter(of(quorum=1, commit_delay="100"))
    assert paper.now["names"] == "ANY 1"
    paper.pricing.enter(Scenario())
    assert paper.now == {"names": "", "commit_delay": "0"}


def test_leaving_reverts_everything_and_the_same_scenario_can_be_entered_again(paper: Paper) -> None:
    paper.pricing.enter(of(commit_delay="100"))
    paper.pricing.leave()
    assert paper.now["commit_delay"] == "0"
    paper.pricing.enter(of(commit_delay="100"))
    assert paper.now["commit_delay"] == "100"


@each([
    (Scenario(rtt_ms=3.0), "--rtt"),
    (Scenario(regions="europe"), "--regions"),
    (Scenario(cores=1.0), "--cpu"),
    (Scenario(fsync=False), "fsync"),
    (Scenario(wal_volume=True), "WAL"),
])  # fmt: skip
def test_what_shapes_machines_is_refused_before_anything_is_changed(
    setting: Scenario, word: str, tmp_path: Path
) -> None:
    paper = Paper(tmp_path / "journal")
    with pytest.raises(UsageError, match=word):
        paper.pricing.check(setting)
    assert paper.changes == 0


@each([
    (Scenario(quorum=3), "a quorum of 3"),
    (Scenario(wal_volume=True), "WAL"),
    (Scenario(rtt_ms=-1.0), "round trip"),
    (Scenario(regions="atlantis"), "atlantis"),
])  # fmt: skip
def test_a_lab_refuses_beforehand_what_it_is_not_made_for(setting: Scenario, word: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=word):
        LabScenarios(a_blueprint(tmp_path), RealClock()).check(setting)
