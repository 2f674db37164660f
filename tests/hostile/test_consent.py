"""Consent that seems enough and is not: words near the right one, another verb's, another fault's."""

from contextlib import closing

import pytest
from starlette.testclient import TestClient

from tests.fixtures.command_line import ended
from tests.fixtures.tiers import each, every
from walproof.errors import UsageError
from walproof.load.ledger.processes import _writer_tasks
from walproof.load.local_runner import LocalWorkspace
from walproof.model.drill import Capability
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder, LoadLimits
from walproof.model.topology import Endpoint
from walproof.proving.faults import CATALOGUE, IN_STORMS
from walproof.targets.choose import choose
from walproof.targets.external import consent
from walproof.targets.external.faults_by_command import NEEDS_UNDO, UNDOES, UserCommands
from walproof.targets.external.target_file import CapsPart
from walproof.targets.simulated.target import Simulated
from walproof.watching.actions import MEMBER_FAULTS, Actions
from walproof.watching.collector import Collector
from walproof.watching.page import TOKEN_HEADER, Page


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    target = choose("sim?members=3")
    assert isinstance(target, Simulated)
    monkeypatch.setattr(target, "external", True)
    return target


def test_every_fault_is_a_consent_of_its_own_and_no_other_stands_for_it(cluster: Simulated) -> None:
    def asked(fault: str) -> None:
        others = frozenset(consent.MEANS) - {fault}
        with pytest.raises(UsageError) as refused:
            consent.check(cluster, "proving", ["load", fault], others)
        assert refused.value.exit_code == 2
        assert fault in refused.value.hint.split(" ")[1].split(",")
        consent.check(cluster, "proving", ["load", fault], frozenset({"load", fault}))

    every(sorted(set(CATALOGUE) - {"none"}), asked)
    assert set(IN_STORMS) <= set(consent.MEANS), "a storm asks for every fault that it may draw"


@each(["LOAD", "load;kill", "all", "*", "none", "load kill", "kill-", "--kill", "löad"])
def test_a_word_near_a_consent_is_none(word: str) -> None:
    with pytest.raises(UsageError, match="is no consent"):
        consent.read(word)


@pytest.mark.parametrize("clicked", sorted(MEMBER_FAULTS))
def test_a_button_does_only_the_fault_that_allow_names(clicked: str, cluster: Simulated) -> None:
    with closing(Collector(cluster)) as collector:
        page = Page(collector, cluster, allowed=frozenset(consent.MEANS) - {clicked})
        client = TestClient(page.app, base_url="http://127.0.0.1")
        answer = client.post("/act", json={"action": clicked, "member": "n1"}, headers={TOKEN_HEADER: page.token})
    assert answer.status_code == 409
    assert f"--allow {clicked}" in answer.json()["error"]
    offered = {a.name for a in Actions(cluster, lambda _: None, frozenset({clicked})).offered() if not a.why_not}
    assert offered == {clicked, "recover"}


@each(sorted(NEEDS_UNDO))
def test_a_fault_that_could_never_be_undone_is_absent_with_its_reason(fault: Capability) -> None:
    commands = UserCommands({fault.value: "true"}, lambda member: Endpoint((("h", 1),)))
    assert commands.faults() == {}
    assert f"[faults] {UNDOES[fault]}" in commands.reasons()[fault]


def test_isolate_given_makes_neither_partition_nor_anything_else_possible() -> None:
    given = {"isolate": "true", "recover": "true", "thaw": "true"}
    commands = UserCommands(given, lambda member: Endpoint((("h", 1),)))
    assert set(commands.faults()) == {Capability.ISOLATE}
    assert "[faults] partition" in commands.reasons()[Capability.PARTITION]


@each(["--target", "--lab"])
def test_a_pitfall_with_a_named_cluster_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ended(capsys, ["prove", "--pitfall", "P1", option, "mine"])
    assert (code, "leaves" in err, "alone" in err) == (2, True, True), err


def test_without_a_target_file_there_are_caps_too() -> None:
    assert CapsPart().max_clients == 64
    with pytest.raises(UsageError, match="max_clients = 64"):
        LoadLimits(CapsPart().max_clients).check(500)


@each([1, 2, 3, 16, 64])
def test_the_writers_of_all_processes_together_stay_below_the_rate(writers: int) -> None:
    order, place = LedgerOrder(Level.ON, writers, rate=100.0), LocalWorkspace()
    tasks = _writer_tasks(order, Endpoint((("h", 1),)), place, range(writers))
    assert sum(task.count for task in tasks) == writers
    assert sum(task.rate or 0.0 for task in tasks) == pytest.approx(100.0)
    assert all(task.count / (task.rate or 0.0) == pytest.approx(writers / 100) for task in tasks)
