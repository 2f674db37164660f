"""CloudNativePG's pitfalls on the stand-in: reproduced, and not where the defect is mended."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.kubernetes import cluster_rules
from tests.fixtures.kubernetes.operator.state import HEALTHY
from tests.fixtures.kubernetes.stand_in import StandIn, manifest, stand_in
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.studies.pitfalls.catalogue import ON_TARGET, target_pitfalls
from walproof.studies.pitfalls.run import run_on_target
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.faults import Instances
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.pitfalls import CnpgPitfalls

SPEED = 20.0


class Thaw:
    """The cluster healthy again, by Kubernetes alone: no SQL answers in memory."""

    def __init__(self, cluster: StandIn, instances: Instances) -> None:
        self.cluster, self.instances = cluster, instances

    def recover(self) -> None:
        self.instances.undo_all()
        cnpg = self.cluster.cnpg
        wait_for(Wait.CLUSTER_HEALTHY, lambda: cnpg.state.phase == HEALTHY, self.instances.clock)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, speed=SPEED) as running:
        yield running


def pitfalls(cluster: StandIn) -> CnpgPitfalls:
    configuration, context = connection("", {"KUBECONFIG": str(cluster.serving.kubeconfig())})
    api = Client(configuration, "default", context)
    instances = Instances(api, "pg", "cnpg:default/pg", RealClock({}), lambda: None)
    return CnpgPitfalls(instances, lambda: Thaw(cluster, instances), watched_s=30 / SPEED, late_s=10 / SPEED)


def test_k1_a_frozen_primary_keeps_its_lease(cluster: StandIn) -> None:
    found = pitfalls(cluster).frozen_keeps_its_lease()
    assert found.reproduced and "pg-1 still held the lease" in found.evidence
    assert cluster.cnpg.state.member("pg-1").server.value == "running"


def test_k1_is_not_there_where_a_frozen_primary_gives_its_lease_up(cluster: StandIn) -> None:
    cluster.cnpg.delays = replace(cluster.cnpg.delays, frozen_releases_s=1.0)
    found = pitfalls(cluster).frozen_keeps_its_lease()
    assert not found.reproduced and "took over" in found.evidence


@pytest.fixture
def preferred(tmp_path: Path) -> Iterator[StandIn]:
    synchronous = {"method": "any", "number": 1, "dataDurability": "preferred"}
    with stand_in(tmp_path, cluster=manifest(postgresql={"synchronous": synchronous}), speed=SPEED) as running:
        yield running


def test_k2_preferred_becomes_local_without_a_word(preferred: StandIn) -> None:
    found = pitfalls(preferred).silently_local()
    assert found.reproduced and "acknowledged by pg-1 alone" in found.evidence


def test_k2_is_not_there_where_durability_is_required(cluster: StandIn) -> None:
    found = pitfalls(cluster).silently_local()
    assert not found.reproduced and "(required) stayed" in found.evidence


def test_k4_the_phase_is_late(cluster: StandIn) -> None:
    found = pitfalls(cluster).healthy_during_an_outage()
    assert found.reproduced and "Cluster in healthy state" in found.evidence


def test_k4_is_not_there_where_the_phase_follows_at_once(cluster: StandIn) -> None:
    prompt = replace(cluster.cnpg.delays, unready_after_freeze_s=0.1, failover_after_unready_s=0.1)
    cluster.cnpg.delays = prompt
    slow = replace(pitfalls(cluster), late_s=5.0)
    assert not slow.healthy_during_an_outage().reproduced


def test_k5_fsync_off_is_admitted_and_nothing_is_changed(cluster: StandIn) -> None:
    before = cluster.store.find("Cluster", "pg")
    assert pitfalls(cluster).admits_fsync_off().reproduced
    after = cluster.store.find("Cluster", "pg")
    assert before is not None and after is not None and before["spec"] == after["spec"]


def test_k5_is_not_there_where_they_are_fixed(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_rules, "FIXED", frozenset((*cluster_rules.FIXED, "fsync", "full_page_writes")))
    found = pitfalls(cluster).admits_fsync_off()
    assert not found.reproduced and "Can't set fixed configuration parameter" in found.evidence


def test_they_are_run_by_number_and_an_error_is_undecided(cluster: StandIn) -> None:
    assert target_pitfalls("all") == ON_TARGET and [p.number for p in target_pitfalls("k5")] == ["K5"]
    with pytest.raises(UsageError, match="'K9' is no pitfall of a target"):
        target_pitfalls("K9")
    able, words = pitfalls(cluster).by_number(), list[str]()
    assert set(able) == {p.number for p in ON_TARGET}
    (run,) = run_on_target(able, target_pitfalls("K5"), words.append)
    assert run.verdict == "reproduced" and "cloudnative-pg#5506" in words[0]
    (missing,) = run_on_target({}, target_pitfalls("K5"), words.append)
    assert missing.verdict == "undecided"
