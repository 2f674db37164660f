"""The faults that Kubernetes alone can do on CloudNativePG: journaled, undone, refused where they would not be."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.port import FakeApi, view
from walproof.errors import MachineError, TargetError, UsageError, WaitTimeout
from walproof.model.drill import Capability
from walproof.model.topology import ClusterView
from walproof.records.journal import Journal
from walproof.targets.cnpg.faults_and_undo import FAULT, CnpgRecovery, CnpgSwitchover, Instances, furthest
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, PODS, ApiError, Output
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.simulated.clock import VirtualClock

NAME = "cnpg:default/pg"


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def instances(api: FakeApi, journal: Journal) -> Instances:
    return Instances(api, "pg", NAME, VirtualClock(), lambda: journal)


def test_kill_reads_the_postmasters_pid_and_freeze_meets_every_process(api: FakeApi, journal: Journal) -> None:
    able = instances(api, journal).faults()
    able[Capability.KILL].inject("pg-1")
    (pod, command) = api.commands[-1]
    assert pod == "pg-1" and "postmaster.pid" in command[-1] and "kill -9" in command[-1]
    able[Capability.FREEZE].inject("pg-1")
    assert "kill -STOP" in api.commands[-1][1][-1]
    assert [c.name for c in journal.pending()] == ["freeze pg-1"]
    able[Capability.FREEZE].undo("pg-1")
    assert "kill -CONT" in api.commands[-1][1][-1] and journal.pending() == ()


def test_a_pod_that_the_operator_does_not_list_now_is_thawed(api: FakeApi, journal: Journal) -> None:
    """It is found by its uid: it would stay frozen, and its fault would be gone from the journal."""
    freeze = instances(api, journal).faults()[Capability.FREEZE]
    freeze.inject("pg-1")
    api.change(CLUSTERS, "pg", {"status": {"instanceNames": ["pg-2", "pg-3"]}})
    freeze.undo("pg-1")
    assert "kill -CONT" in api.commands[-1][1][-1] and journal.pending() == ()


def test_a_pod_of_that_name_that_was_not_frozen_is_left_alone(api: FakeApi, journal: Journal) -> None:
    freeze = instances(api, journal).faults()[Capability.FREEZE]
    freeze.inject("pg-1")
    api.objects["pods", "pg-1"]["metadata"]["uid"] = "another"
    api.change(CLUSTERS, "pg", {"status": {"instanceNames": ["pg-2", "pg-3"]}})
    freeze.undo("pg-1")
    assert "kill -STOP" in api.commands[-1][1][-1] and journal.pending() == ()


def test_a_journal_without_the_pods_uid_is_kept_where_the_pod_is_not_listed(api: FakeApi, journal: Journal) -> None:
    run = instances(api, journal)
    journal.note(0.0, NAME, FAULT, "freeze pg-1", before=None, after=None)
    api.change(CLUSTERS, "pg", {"status": {"instanceNames": ["pg-2", "pg-3"]}})
    with pytest.raises(TargetError, match="may be the pod that was frozen"):
        run.undo_left(journal)
    assert [c.name for c in journal.pending()] == ["freeze pg-1"]


def test_a_command_that_fails_is_no_fault(api: FakeApi, journal: Journal) -> None:
    api.output = Output("", "sh: 1: cannot open postmaster.pid\n", 2)
    with pytest.raises(TargetError, match=r"failed \(2\): sh: 1: cannot open postmaster.pid"):
        instances(api, journal).faults()[Capability.KILL].inject("pg-1")


def test_a_pod_is_deleted_with_force_and_an_unknown_one_refused(api: FakeApi, journal: Journal) -> None:
    able = instances(api, journal).faults()
    able[Capability.KILL_MEMBER].inject("pg-2")
    assert ("pods", "pg-2") not in api.objects
    with pytest.raises(UsageError, match="pg-2 has no pod now"):
        able[Capability.KILL_MEMBER].inject("pg-2")


def test_fences_of_others_stay(api: FakeApi, journal: Journal) -> None:
    api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/fencedInstances": '["pg-3"]'}}})
    fence = instances(api, journal).faults()[Capability.STOP]
    fence.inject("pg-2")
    assert json.loads(api.cluster["metadata"]["annotations"]["cnpg.io/fencedInstances"]) == ["pg-3", "pg-2"]
    instances(api, journal).undo_left(journal)
    assert json.loads(api.cluster["metadata"]["annotations"]["cnpg.io/fencedInstances"]) == ["pg-3"]
    assert journal.pending() == ()


@pytest.mark.parametrize("theirs", [["pg-2"], ["*"]])
def test_an_instance_that_another_fenced_is_not_stopped_and_stays_fenced(
    theirs: list[str], api: FakeApi, journal: Journal
) -> None:
    api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/fencedInstances": json.dumps(theirs)}}})
    faults = instances(api, journal)
    with pytest.raises(UsageError, match="pg-2 is fenced already, and not by this run"):
        faults.faults()[Capability.STOP].inject("pg-2")
    faults.undo_all()
    faults.undo_left(journal)
    assert json.loads(api.cluster["metadata"]["annotations"]["cnpg.io/fencedInstances"]) == theirs
    assert journal.pending() == ()


def test_a_fence_that_another_sets_meanwhile_is_not_overwritten(api: FakeApi, journal: Journal) -> None:
    """The annotation is one text: without the version it was read at, theirs would be gone."""
    meanwhile = ['["pg-3"]', '["pg-2", "pg-1"]']

    def theirs() -> None:
        if meanwhile:
            text = meanwhile.pop(0)
            api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/fencedInstances": text}}})

    api.before_patch, fence = theirs, instances(api, journal).faults()[Capability.STOP]
    last = meanwhile.pop()
    fence.inject("pg-2")
    assert json.loads(api.cluster["metadata"]["annotations"]["cnpg.io/fencedInstances"]) == ["pg-3", "pg-2"]
    meanwhile.append(last)
    fence.undo("pg-2")
    assert json.loads(api.cluster["metadata"]["annotations"]["cnpg.io/fencedInstances"]) == ["pg-1"]


def needing_the_operator(api: FakeApi, journal: Journal) -> list[Callable[[], None]]:
    run = instances(api, journal)
    stop, kill = run.faults()[Capability.STOP], run.faults()[Capability.KILL_MEMBER]
    switchover = CnpgSwitchover(run, lambda: view("pg-1"))
    return [lambda: stop.inject("pg-2"), lambda: kill.inject("pg-2"), switchover.switch_over]


def test_what_the_operator_must_do_is_refused_before_anything_where_it_would_not(
    api: FakeApi, journal: Journal
) -> None:
    api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/reconciliationLoop": "disabled"}}})
    before = copy.deepcopy(api.objects)
    for act in needing_the_operator(api, journal):
        with pytest.raises(TargetError, match=r"cnpg\.io/reconciliationLoop is disabled, so the operator does nothing"):
            act()
    api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/reconciliationLoop": None}}})
    api.api.oddities.operator_away = True
    for act in needing_the_operator(api, journal):
        with pytest.raises(TargetError, match=r"operator does not answer: .* no endpoints available") as wrong:
            act()
        assert "kubectl get pods -A -l app.kubernetes.io/name=cloudnative-pg" in wrong.value.hint
    assert api.objects.keys() == before.keys() and journal.pending() == ()
    assert api.cluster["status"] == before["clusters", "pg"]["status"]
    api.forbidden = {("patch", "clusters")}
    needing_the_operator(api, journal)[1]()
    assert ("pods", "pg-2") not in api.objects, "who may not patch the Cluster may delete a pod all the same"


def test_a_paused_operator_is_said_before_anything(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.change(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/reconciliationLoop": "disabled"}}})
    able = CnpgCluster(NAME, CnpgFile(kind="cnpg", cluster="default/pg", reach="pods"), api).capabilities()
    for fault in (Capability.KILL_MEMBER, Capability.STOP, Capability.SWITCHOVER, Capability.LIMIT_PROCESSORS):
        assert "cnpg.io/reconciliationLoop is disabled" in (able.why_not(fault) or "")
    assert able.why_not(Capability.KILL_CONTAINER) is None and able.why_not(Capability.FREEZE) is None
    skipped = able.pitfalls["K2"]()
    assert skipped.reproduced is None and "reconciliationLoop" in skipped.evidence


def test_recovery_undoes_and_waits_for_every_instance(api: FakeApi, journal: Journal) -> None:
    injected = instances(api, journal)
    injected.faults()[Capability.FREEZE].inject("pg-1")
    CnpgRecovery(injected, lambda: view("pg-1")).recover()
    assert "kill -CONT" in api.commands[-1][1][-1] and injected.injected == []
    for change in ({"targetPrimary": "pg-2"}, {"currentPrimary": "pg-2", "targetPrimary": "pg-2"}):
        # A thawed primary is ready and followed for a moment, while its successor is chosen or holds no lease yet.
        api.cluster["status"] |= change
        with pytest.raises(WaitTimeout, match="CLUSTER_HEALTHY"):
            CnpgRecovery(injected, lambda: view("pg-1")).recover()
    api.cluster["status"] |= {"currentPrimary": "pg-1", "targetPrimary": "pg-1"}
    api.remove(PODS, "pg-3")
    with pytest.raises(WaitTimeout, match="CLUSTER_HEALTHY"):
        CnpgRecovery(injected, lambda: view("pg-1")).recover()


@pytest.mark.parametrize("wrong", [TargetError("your command failed"), LookupError("what answered has no key")])
def test_a_command_that_fails_keeps_no_instance_from_being_thawed(
    wrong: Exception, api: FakeApi, journal: Journal
) -> None:
    def fails() -> None:
        raise wrong

    injected = instances(api, journal)
    injected.faults()[Capability.FREEZE].inject("pg-1")
    with pytest.raises(MachineError, match=str(wrong.args[0])):
        CnpgRecovery(injected, lambda: view("pg-1"), (fails,)).recover()
    assert injected.injected == [] and journal.pending() == ()


def test_a_switchover_is_asked_for_in_the_status_as_the_plugin_does(api: FakeApi, journal: Journal) -> None:
    def now() -> ClusterView:
        return view(api.cluster["status"]["targetPrimary"])

    switchover = CnpgSwitchover(instances(api, journal), now)
    switchover.switch_over()
    assert ("patch", "clusters", "pg/status") in api.asked
    status = api.cluster["status"]
    assert (status["targetPrimary"], status["phase"]) == ("pg-3", "Switchover in progress")
    assert status["targetPrimaryTimestamp"].endswith("Z")
    with pytest.raises(TargetError, match="a change of primary is under way: pg-1 to pg-3"):
        switchover.switch_over("pg-2")
    with pytest.raises(UsageError, match="pg-3 leads already"):
        switchover.switch_over("pg-3")


def test_a_switchover_is_not_asked_for_where_a_failover_began_meanwhile(api: FakeApi, journal: Journal) -> None:
    api.before_patch = lambda: api.change(CLUSTERS, "pg", {"status": {"targetPrimary": "pg-2"}})
    with pytest.raises(ApiError, match=r"pg in namespace default was changed by another user meanwhile \(409\)"):
        CnpgSwitchover(instances(api, journal), lambda: view("pg-1")).switch_over("pg-3")
    assert api.cluster["status"]["targetPrimary"] == "pg-2"


def test_nobody_serves_nobody_takes_over() -> None:
    with pytest.raises(TargetError, match="none to hand over to"):
        furthest(view("pg-1", streaming=False))
