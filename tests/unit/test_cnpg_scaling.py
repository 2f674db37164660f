"""Processors and memory of the pods on the stand-in: one roll a size, back to what was declared, also after kill -9."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kubernetes.access import Account, Rule
from tests.fixtures.kubernetes.kinds import Refusal
from tests.fixtures.kubernetes.postgres import MemoryPostgres
from tests.fixtures.kubernetes.stand_in import StandIn, manifest, stand_in
from tests.fixtures.kubernetes.store import Object
from tests.unit.test_cnpg_interruptions import HEALTHY
from walproof.errors import MachineError, NotObtained, TargetError, UsageError
from walproof.machine import signals
from walproof.machine.clock import RealClock
from walproof.model.ports import SILENT, UNTOLD
from walproof.model.sample import Scenario
from walproof.model.waiting import Wait, wait_for
from walproof.records.journal import Journal
from walproof.targets.cnpg import state_and_doctor_facts
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, Kind, Tree
from walproof.targets.cnpg.members import Addresses
from walproof.targets.cnpg.objects import Pod, read
from walproof.targets.cnpg.rbac import Names, for_scaling, refusal
from walproof.targets.cnpg.scaling import CnpgScaling, Roll
from walproof.targets.cnpg.state_and_doctor_facts import pods_of
from walproof.targets.cnpg.target_file import LoadPart

DECLARED = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


@dataclass
class Scaled:
    """The stand-in, a client, a journal, and what scales."""

    running: StandIn
    behind: MemoryPostgres
    client: Client
    journal: Journal
    waits: dict[str, float] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    load: LoadPart = field(default_factory=LoadPart)

    def scaling(self) -> CnpgScaling:
        """Another run's, where it is asked again."""
        return CnpgScaling("cnpg:default/pg", RealClock(self.waits), (self.client, "pg"), lambda: HEALTHY, self.load)

    def without(self, *verbs: tuple[str, str]) -> Client:
        """A client of a user who may do all but these verbs of kinds."""
        account = Account(without=tuple(Rule((verb,), (kind,)) for verb, kind in verbs))
        configuration, context = connection("", {"KUBECONFIG": str(self.running.serving.kubeconfig(account))})
        return Client(configuration, "default", context)

    @property
    def declared(self) -> Any:
        return self.client.get(CLUSTERS, "pg")["spec"].get("resources")

    def sizes(self) -> list[tuple[str | None, str | None]]:
        """Limits of processors and memory of each pod."""
        found = [pod.resources.get("limits", {}) for pod in pods_of(self.client, "pg").values() if pod.ready]
        return [(limits.get("cpu"), limits.get("memory")) for limits in found]

    @property
    def stopped(self) -> list[str]:
        """Members whose PostgreSQL was stopped, in order."""
        return [order.split()[-1] for order in self.behind.done if order.startswith("stop fast")]


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Scaled]:
    yield from _scaled(tmp_path)


def _scaled(folder: Path, **spec: Any) -> Iterator[Scaled]:
    behind = MemoryPostgres()
    with stand_in(folder, postgres=behind, cluster=manifest(**spec), speed=100) as running:
        configuration, context = connection("", {"KUBECONFIG": str(running.serving.kubeconfig())})
        yield Scaled(running, behind, Client(configuration, "default", context), Journal(folder / "journal.jsonl"))


def test_from_size_to_size_every_instance_restarts_once_and_once_more_at_the_end(scaled: Scaled) -> None:
    scaling = scaled.scaling()
    scaling.enter(Scenario(cores=0.5), scaled.journal)
    assert scaled.declared["limits"] == {"cpu": "500m", "memory": "1Gi"}
    assert scaled.sizes() == [("500m", "1Gi")] * 3
    scaling.enter(Scenario(cores=1, memory_mib=2048), scaled.journal)
    assert scaled.declared == {kind: {"cpu": "1", "memory": "2Gi"} for kind in ("requests", "limits")}
    assert scaled.sizes() == [("1", "2Gi")] * 3
    scaling.enter(Scenario(cores=1, memory_mib=2048), scaled.journal)
    assert scaling.undo(scaled.journal) == [] and scaled.journal.pending() == ()
    assert scaled.declared == DECLARED and scaled.sizes() == [(None, "1Gi")] * 3
    assert scaled.stopped == ["pg-3", "pg-2", "pg-1"] * 3


def test_nothing_is_left_of_resources_that_were_not_declared(tmp_path: Path) -> None:
    for scaled in _scaled(tmp_path, resources=None):
        scaling = scaled.scaling()
        scaling.enter(Scenario(cores=2), scaled.journal)
        scaling.undo(scaled.journal)
        assert scaled.declared is None and scaled.sizes() == [(None, None)] * 3


def test_by_switchover_another_instance_leads_afterwards(tmp_path: Path) -> None:
    for scaled in _scaled(tmp_path, primaryUpdateMethod="switchover"):
        scaled.scaling().enter(Scenario(cores=2), scaled.journal)
        assert scaled.sizes() == [("2", "1Gi")] * 3
        assert scaled.running.cnpg.state.primary != "pg-1"


def test_what_a_killed_run_left_is_reverted_by_its_journal(scaled: Scaled) -> None:
    scaled.scaling().enter(Scenario(cores=0.5), scaled.journal)
    # Killed after it had noted the next size, before it patched it: neither changes what was declared.
    after = json.dumps({"limits": {"cpu": "3"}})
    scaled.journal.note(0.0, "cnpg:default/pg", "cnpg resources", "resources", before=json.dumps(DECLARED), after=after)
    assert scaled.scaling().undo(scaled.journal) == []
    assert scaled.declared == DECLARED and scaled.sizes() == [(None, "1Gi")] * 3
    assert scaled.journal.pending() == ()


def test_what_somebody_else_declared_since_is_left_alone(scaled: Scaled) -> None:
    scaling = scaled.scaling()
    scaling.enter(Scenario(cores=0.5), scaled.journal)
    scaled.client.patch(CLUSTERS, "pg", {"spec": {"resources": {"limits": {"cpu": "3"}}}})
    for reverting, noted in ((UNTOLD, 1), (SILENT, 0)):
        assert "changed by another user since: left alone" in scaling.undo(scaled.journal, reverting)[0]
        assert scaled.declared["limits"]["cpu"] == "3" and len(scaled.journal.pending()) == noted


@pytest.mark.parametrize("size", [Scenario(cores=1), Scenario()])
def test_the_next_size_never_replaces_what_another_user_declared_since(size: Scenario, scaled: Scaled) -> None:
    scaling = scaled.scaling()
    scaling.enter(Scenario(cores=0.5), scaled.journal)
    scaled.client.patch(CLUSTERS, "pg", {"spec": {"resources": {"limits": {"cpu": "3"}}}})
    with pytest.raises(TargetError, match="was changed by another user meanwhile"):
        scaling.enter(size, scaled.journal)
    scaling.undo(scaled.journal)
    assert scaled.declared["limits"]["cpu"] == "3" and scaled.journal.pending() == ()


def test_a_cluster_that_is_paused_since_it_was_checked_is_not_patched(scaled: Scaled) -> None:
    """Else the roll and the way back both wait for an operator that does nothing."""
    scaled.client.patch(CLUSTERS, "pg", {"metadata": {"annotations": {"cnpg.io/reconciliationLoop": "disabled"}}})
    with pytest.raises(NotObtained, match="reconciliationLoop"):
        scaled.scaling().enter(Scenario(cores=1), scaled.journal)
    assert scaled.declared == DECLARED and scaled.journal.pending() == ()


@pytest.mark.parametrize("missing", [("pg-3",), ("pg-1", "pg-2", "pg-3")])
def test_an_instance_without_a_pod_is_counted_too(scaled: Scaled, missing: tuple[str, ...]) -> None:
    listed = scaled.client.list

    def without(kind: Kind, labels: str = "") -> list[Tree]:
        return [tree for tree in listed(kind, labels) if tree["metadata"]["name"] not in missing]

    scaled.client.list = without  # type: ignore[method-assign]
    said = scaled.scaling().forecast([Scenario(cores=1)])
    assert "Whether 3 instances with 1 cpu" in said and "an instance is on no node now" in said


@pytest.mark.parametrize("cores", [64, 2.6])
def test_a_size_that_does_not_fit_is_refused_before_anything_is_patched(cores: float, scaled: Scaled) -> None:
    """With 2.6 the standbys would fit on the node of 8, and the primary would be the one that no node takes."""
    scaled.load = LoadPart(image="walproof", pods=1)
    scaling = scaled.scaling()
    words = r"3 instances with \S+ cpu and 256 MiB each and 1 load pod with 0\.5 cpu and 256 MiB each do not fit on the"
    refused = f"{words} nodes: beside what other pods request, node1 has 8 cpu"
    with pytest.raises(NotObtained, match=refused):
        scaling.check(Scenario(cores=cores))
    with pytest.raises(NotObtained, match=refused):
        scaling.enter(Scenario(cores=cores), scaled.journal)
    assert scaled.declared == DECLARED and scaled.stopped == [] and scaled.journal.pending() == ()
    assert "fit on the nodes, each instance where it is now" in scaling.forecast(
        [Scenario(cores=2.4), Scenario(cores=1), Scenario()]
    )


def test_where_nodes_may_not_be_read_the_first_standby_that_is_refused_ends_the_roll(scaled: Scaled) -> None:
    scaled.client = scaled.without(("list", "nodes"))
    scaling = scaled.scaling()
    assert scaling.forecast([Scenario()]) == scaling.taken() == ""
    said = scaling.forecast([Scenario(cores=64)])
    assert "Whether the sizes fit on the nodes is not known" in said and "may not list nodes" in said
    with pytest.raises(NotObtained, match=r"no node takes pg-3: 0/1 nodes are available: 1 Insufficient cpu"):
        scaling.enter(Scenario(cores=64), scaled.journal)
    assert scaled.declared == DECLARED and scaled.sizes() == [(None, "1Gi")] * 3
    assert scaled.stopped == ["pg-3"] and scaled.journal.pending() == ()
    scaling.enter(Scenario(cores=2), scaled.journal)
    assert scaled.sizes() == [("2", "1Gi")] * 3
    assert re.fullmatch(
        r"Every pod was made anew 2 times, in \d+, \d+ s; without a ready primary for \d+, \d+ s of them.",
        scaling.taken(),
    )


def test_the_schedulers_reason_stands_too_where_the_way_back_ends_in_an_error(
    scaled: Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled.client = scaled.without(("list", "nodes"))
    scaling = scaled.scaling()

    def refused(_: object) -> list[str]:
        raise TargetError("the API does not answer")

    monkeypatch.setattr(scaling, "undo", refused)
    with pytest.raises(
        MachineError, match=r"no node takes pg-3: .* Insufficient cpu.*; the API does not answer"
    ) as wrong:
        scaling.enter(Scenario(cores=64), scaled.journal)
    assert not isinstance(wrong.value, NotObtained) and len(scaled.journal.pending()) == 1


def test_a_pod_that_only_bears_the_labels_of_an_instance_ends_no_roll_and_is_never_deleted(
    scaled: Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "never"}
    spec = {"containers": [{"name": "postgres", "resources": {"requests": {"cpu": "1e999999k"}}}]}
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "pg", "controller": True}
    metadata = {"name": "pg-9", "ownerReferences": [owner]}
    liar = read(Pod, {"metadata": metadata, "spec": spec, "status": {"conditions": [unplaced]}})
    labelled = state_and_doctor_facts.pods_labelled
    monkeypatch.setattr(state_and_doctor_facts, "pods_labelled", lambda *of: {**labelled(*of), "pg-9": liar})
    scaling = scaled.scaling()
    scaling.enter(Scenario(cores=0.5), scaled.journal)
    assert scaling.undo(scaled.journal) == [] and scaled.declared == DECLARED
    assert scaled.stopped == ["pg-3", "pg-2", "pg-1"] * 2


def test_a_pod_that_does_not_start_with_it_ends_the_roll_and_is_made_anew(scaled: Scaled) -> None:
    """Too little memory: the operator itself replaces no pod that is not ready."""
    scaling, store = scaled.scaling(), scaled.running.store

    def crashing(pod: Object) -> None:
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        pod["status"] |= {
            "containerStatuses": [{"name": "postgres", "restartCount": 2, "state": state}],
            "conditions": [],
        }

    def crash() -> None:
        while not scaled.over.wait(0.005):
            pod = store.find("Pod", "pg-3")
            if pod and pod["spec"]["containers"][0]["resources"].get("limits", {}).get("memory") == "64Mi":
                with contextlib.suppress(Refusal):
                    store.modify("Pod", "pg-3", crashing)

    thread = threading.Thread(target=crash)
    thread.start()
    try:
        with pytest.raises(NotObtained, match="pg-3 does not start: CrashLoopBackOff: back-off 10s"):
            scaling.enter(Scenario(memory_mib=64), scaled.journal)
    finally:
        scaled.over.set()
        thread.join()
    assert scaled.declared == DECLARED and scaled.sizes() == [(None, "1Gi")] * 3
    assert scaled.journal.pending() == ()


def test_a_primary_that_a_switchover_demotes_is_not_taken_for_one_that_does_not_start() -> None:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    demoted = read(Pod, {"metadata": {"name": "pg-1"}, "status": {"containerStatuses": [waiting]}})
    roll = Roll({"limits": {"cpu": "1"}}, 0.0)
    assert roll.stuck({"pg-1": demoted}, ("pg-1",), 1.0, 60.0) == {}
    assert "does not start" in roll.stuck({"pg-1": demoted}, ("pg-1",), 62.0, 60.0)["pg-1"]
    assert "does not start" in Roll(None, 0.0).stuck({"pg-1": demoted}, ("pg-1",), 1.0, 60.0)["pg-1"]
    assert roll.stuck({}, ("pg-1",), 63.0, 60.0) == {"pg-1": "no pod is made for pg-1"} and roll.away_s == 63.0
    says = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes\x1b[2J\nwalproof: held"}
    unplaced = read(Pod, {"metadata": {"name": "pg-1"}, "status": {"conditions": [says]}})
    why = roll.stuck({"pg-1": unplaced}, ("pg-1",), 64.0, 60.0)["pg-1"]
    assert why == "no node takes pg-1: 0/1 nodes?[2J walproof: held", "one line, without escapes"


def test_what_was_declared_comes_back_although_the_rest_of_the_spec_is_changed_meanwhile(scaled: Scaled) -> None:
    scaling = scaled.scaling()
    scaling.enter(Scenario(cores=0.5, memory_mib=2048), scaled.journal)
    patch, others = scaled.client.patch, [{"logLevel": "debug"}, {"primaryUpdateMethod": "switchover"}]

    def meanwhile(kind: Kind, name: str, body: Any, *args: Any, **named: Any) -> Tree:
        if others:
            patch(kind, name, {"spec": others.pop()})
        return patch(kind, name, body, *args, **named)

    scaled.client.patch = meanwhile  # type: ignore[method-assign]
    assert scaling.undo(scaled.journal) == [] and scaled.declared == DECLARED
    assert scaled.client.get(CLUSTERS, "pg")["spec"]["primaryUpdateMethod"] == "switchover"
    assert scaled.journal.pending() == () and not others


def test_after_a_signal_the_operator_finishes_alone_what_it_can(
    scaled: Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = scaled.scaling()
    scaling.enter(Scenario(cores=0.5), scaled.journal)
    monkeypatch.setattr(signals, "received", lambda: 15)
    # It would wait for this in vain.
    monkeypatch.setattr(scaling, "_observe", lambda: replace(HEALTHY, leader=None))
    assert scaling.undo(scaled.journal) == [] and scaled.declared == DECLARED and scaled.journal.pending() == ()
    wait_for(Wait.CLUSTER_HEALTHY, lambda: scaled.sizes() == [(None, "1Gi")] * 3, RealClock())


def test_what_admission_refuses_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    parameters = {"parameters": {"shared_buffers": "256MB"}}
    for scaled in _scaled(tmp_path, postgresql=parameters):
        scaling = scaled.scaling()
        with pytest.raises(UsageError, match="Memory request is lower than PostgreSQL `shared_buffers` value"):
            scaling.check(Scenario(memory_mib=128))
        scaling.check(Scenario(cores=1, memory_mib=512))
        assert scaled.declared == DECLARED and scaled.stopped == []


@pytest.mark.parametrize(("change", "why"), [
    ({"spec": {"primaryUpdateStrategy": "supervised"}}, "primaryUpdateStrategy is supervised"),
    ({"metadata": {"annotations": {"cnpg.io/reconcilePodSpec": "disabled"}}}, "reconcilePodSpec is disabled"),
    ({"metadata": {"annotations": {"cnpg.io/fencedInstances": '["pg-2"]'}}}, "an instance is fenced"),
    ({"spec": {"nodeMaintenanceWindow": {"inProgress": True, "reusePVC": False}}}, "may delete volumes of a pod"),
])  # fmt: skip
def test_a_cluster_whose_pods_would_not_all_change_is_refused(change: dict[str, Any], why: str, scaled: Scaled) -> None:
    scaled.client.patch(CLUSTERS, "pg", change)
    with pytest.raises(UsageError, match=why):
        scaled.scaling().check(Scenario(cores=1))


@pytest.mark.parametrize(("kind", "verb"), [("clusters", "patch"), ("pods", "delete")])
def test_a_right_that_is_missing_is_named(kind: str, verb: str, scaled: Scaled) -> None:
    wrong = refusal(scaled.without((verb, kind)), for_scaling(Names("pg", ("pg-1",))), "another size of its pods")
    assert wrong is not None and f"this user may not {verb} {kind}" in wrong.message


def test_a_forward_keeps_nothing_open_once_its_client_has_gone(scaled: Scaled) -> None:
    """Else a pod that is made anew would wait for it."""
    addresses = Addresses("port-forward", scaled.client.forward)
    (place, *_) = addresses.places(pods_of(scaled.client, "pg")).values()
    with socket.create_connection(place, timeout=5) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x" and len(scaled.behind.clients("pg-1")) == 1
    wait_for(Wait.PROGRAM_GONE, lambda: scaled.behind.clients("pg-1") == (), RealClock())
    addresses.close()
