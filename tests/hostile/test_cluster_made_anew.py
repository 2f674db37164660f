"""A Cluster that is deleted and made anew under its name during a run: nothing is done to the new one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kubernetes.port import FakeApi, view
from tests.fixtures.kubernetes.stand_in import make_anew, stand_in
from tests.fixtures.kubernetes.virtual_guard import world
from tests.fixtures.tiers import each
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange, QuorumKind, SyncReplication
from walproof.model.sample import Scenario
from walproof.records.journal import Journal
from walproof.targets.choose import choose
from walproof.targets.cnpg.cluster_by_uid import ClusterReplaced
from walproof.targets.cnpg.faults_and_undo import CnpgRecovery, CnpgSwitchover
from walproof.targets.cnpg.kubernetes_api import CLUSTERS
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile, LoadPart
from walproof.targets.simulated.clock import VirtualClock

NAME = "cnpg:default/pg"


def injected(fault: str, cluster: CnpgCluster) -> None:
    cluster.capabilities().faults[Capability(fault)].inject("pg-3")


SYNC = ConfigChange(replication=SyncReplication(QuorumKind.ANY, 2))
FAULTS = ("kill", "kill-member", "kill-container", "freeze", "stop", "link-delay")
CHANGES: dict[str, Callable[[CnpgCluster], Any]] = {
    **{fault: partial(injected, fault) for fault in FAULTS},
    "unfenced": lambda c: c.capabilities().faults[Capability.STOP].undo("pg-2"),
    "thawed": lambda c: c.capabilities().faults[Capability.FREEZE].undo("pg-2"),
    "recovered": lambda c: CnpgRecovery(c._instances, lambda: view("pg-1")).recover(),
    "switchover": lambda c: CnpgSwitchover(c._instances, lambda: view("pg-1")).switch_over("pg-2"),
    "configured": lambda c: c.configuration.plan(SYNC),
    "scaled": lambda c: c._scaling.enter(Scenario(cores=1.0), c.journal),
    "ALTER SYSTEM": lambda c: c._instances.ask("pg-3", "ALTER SYSTEM RESET ALL"),
    "role": lambda c: c._own_role.make(c.journal, 15, lambda _: True),
    "load pods": lambda c: c.load_runner().open(),
}


def opened(folder: Path, api: FakeApi) -> CnpgCluster:
    api.api.chaos_mesh = True
    file = CnpgFile(kind="cnpg", cluster="default/pg", reach="pods", load=LoadPart(image="walproof"))
    cluster = CnpgCluster(NAME, file, api)
    cluster.clock, cluster.journal = VirtualClock(), Journal(folder / "journal")
    return cluster


@each(CHANGES)
def test_nothing_is_changed_or_undone_on_the_new_one(change: str, tmp_path: Path) -> None:
    api = FakeApi()
    cluster = opened(tmp_path, api)
    for fault in (Capability.STOP, Capability.FREEZE):
        cluster.capabilities().faults[fault].inject("pg-2")
    api.make_anew()
    api.asked.clear()
    with pytest.raises(ClusterReplaced, match="the Cluster pg was deleted and made anew meanwhile"):
        CHANGES[change](cluster)
    assert {verb for verb, _, _ in api.asked} <= {"get", "list"}


@each(["stop", "unfenced", "role", "configured"])
def test_a_patch_that_is_under_way_is_refused_by_the_api(change: str, tmp_path: Path) -> None:
    """By the uid: the objects here keep their resourceVersion."""
    api = FakeApi()
    cluster = opened(tmp_path, api)
    cluster.capabilities().faults[Capability.STOP].inject("pg-2")
    plan, before = cluster.configuration.plan(SYNC), api.get(CLUSTERS, "pg")
    api.before_patch = api.make_anew
    with pytest.raises(ClusterReplaced):
        cluster.configuration.apply(plan, cluster.journal) if change == "configured" else CHANGES[change](cluster)
    before["metadata"]["uid"] = "anew"
    assert api.cluster == before


def test_the_real_client_and_another_process_leave_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stand_in(tmp_path, speed=40) as here:
        monkeypatch.setenv("KUBECONFIG", str(here.serving.kubeconfig()))
        cluster: Any = choose(NAME)
        make_anew(here.store)
        with pytest.raises(ClusterReplaced):
            cluster.access.api.patch(CLUSTERS, "pg", {"metadata": {"annotations": {"any": "word"}}})
        made = here.store.find("Cluster", "pg")
        assert made and "any" not in made["metadata"].get("annotations", {})
        assert cluster.identity != made["metadata"]["uid"] == choose(NAME).identity


def test_a_guard_ends(tmp_path: Path) -> None:
    with world() as w:
        guard, api = w.guard()
        w.run(guard, 15.0, calm=True)
        assert guard.status().ready
        w.cnpg.freeze("pg-1")
        make_anew(w.cnpg.store)
        with pytest.raises(ClusterReplaced) as wrong:
            w.run(guard, 8.0)
        assert api.writes == [] and "start it again" in wrong.value.hint
