"""Settings entered one after the other on a cluster of yours: each begins from how the cluster was found."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.blueprints import a_blueprint
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.guarantee import QuorumKind
from walproof.model.plan import Scenario
from walproof.model.topology import Endpoint
from walproof.records.journal import Journal
from walproof.targets.external.cluster import OwnCluster
from walproof.targets.external.target_file import TargetFile
from walproof.targets.lab.scenarios import LabSettings
from walproof.targets.sql.alter_system import Notebook
from walproof.targets.sql.connection import Ways

NAME = "yours"
PLACE = (("127.0.0.1", 1),)


class Paper(OwnCluster):
    """Parameters kept in a dictionary in place of servers."""

    def __init__(self, journal: Path) -> None:
        ways = Ways(PLACE, "postgres", "postgres", None, ())
        super().__init__(NAME, TargetFile(kind="postgres", dsn="host=a"), ways, {"n1": Endpoint(PLACE, "p", "u", None)})
        self.journal = Journal(journal)
        self.now: dict[str, str | None] = {"names": "", "commit_delay": "0"}
        self.changes = 0

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        for name, value in parameters.items():
            self._journal().note(0.0, NAME, "paper", name, before=self.now.get(name), after=value)
            self.now[name] = value
            self.changes += 1

    def set_quorum(self, kind: QuorumKind, k: int) -> None:
        self.set_parameters({"names": f"{kind} {k}"})

    def put_back(self, journal: Notebook) -> list[str]:
        for change in journal.pending(NAME):
            self.now[change.name] = change.before
            journal.undone(change)
        return []


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path / "journal.jsonl")


def of(quorum: int | None = None, **parameters: str) -> Scenario:
    return Scenario(quorum=quorum, parameters=tuple(parameters.items()))


def test_a_parameter_of_the_setting_before_is_put_back(paper: Paper) -> None:
    paper.enter(of(commit_delay="100"))
    assert paper.now == {"names": "", "commit_delay": "100"}
    paper.enter(of(quorum=1))
    assert paper.now == {"names": "ANY 1", "commit_delay": "0"}
    paper.enter(Scenario())
    assert paper.now == {"names": "", "commit_delay": "0"}


def test_the_same_setting_twice_changes_nothing_the_second_time(paper: Paper) -> None:
    paper.enter(of(quorum=1, commit_delay="100"))
    paper.enter(of(quorum=1, commit_delay="100"))
    assert paper.changes == 2


def test_a_setting_that_failed_halfway_is_put_back_at_the_next(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    set_parameters: Callable[[dict[str, str | None]], None] = paper.set_parameters

    def refused(parameters: dict[str, str | None]) -> None:
        if "commit_delay" in parameters:
            raise RuntimeError
        set_parameters(parameters)

    monkeypatch.setattr(paper, "set_parameters", refused)
    with pytest.raises(RuntimeError):
        paper.enter(of(quorum=1, commit_delay="100"))
    assert paper.now["names"] == "ANY 1"
    paper.enter(Scenario())
    assert paper.now == {"names": "", "commit_delay": "0"}


def test_leaving_puts_everything_back_and_the_same_setting_can_be_entered_again(paper: Paper) -> None:
    paper.enter(of(commit_delay="100"))
    paper.leave()
    assert paper.now["commit_delay"] == "0"
    paper.enter(of(commit_delay="100"))
    assert paper.now["commit_delay"] == "100"


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        (Scenario(rtt_ms=3.0), "--rtt"),
        (Scenario(regions="europe"), "--regions"),
        (Scenario(cores=1.0), "--cpu"),
        (Scenario(fsync=False), "fsync"),
        (Scenario(wal_volume=True), "WAL"),
    ],
)
def test_what_shapes_machines_is_refused_before_anything_is_changed(
    tmp_path: Path, setting: Scenario, word: str
) -> None:
    yours = Paper(tmp_path / "journal")
    with pytest.raises(UsageError, match=word):
        yours.check(setting)
    assert yours.changes == 0


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        (Scenario(quorum=3), "a quorum of 3"),
        (Scenario(wal_volume=True), "WAL"),
        (Scenario(rtt_ms=-1.0), "round trip"),
        (Scenario(regions="atlantis"), "atlantis"),
    ],
)
def test_a_lab_refuses_beforehand_what_it_is_not_made_for(tmp_path: Path, setting: Scenario, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        LabSettings(a_blueprint(tmp_path), RealClock()).check(setting)
