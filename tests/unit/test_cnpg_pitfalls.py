"""CloudNativePG's pitfalls on the stand-in: reproduced, and not where the defect is mended."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.kubernetes import admission
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.kubernetes.postgres import Executed, MemoryPostgres
from tests.fixtures.kubernetes.stand_in import StandIn, manifest, stand_in
from tests.fixtures.kubernetes.state import HEALTHY
from walproof.errors import TargetError, UsageError
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability, Finding
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.records.journal import Journal
from walproof.studies.pitfalls.catalogue import ON_TARGET, PitfallRun, exit_code, run_on_target, target_pitfalls
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.faults_and_undo_by_chaos_mesh import ChaosMesh
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, LEASES, PODS
from walproof.targets.cnpg.pitfalls import ALTERED, AlterSystem, CnpgPitfalls
from walproof.targets.configure import NoJournal
from walproof.targets.simulated.clock import VirtualClock

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


def pitfalls(cluster: StandIn, journal: Journal | None = None) -> CnpgPitfalls:
    configuration, context = connection("", {"KUBECONFIG": str(cluster.serving.kubeconfig())})
    api = Client(configuration, "default", context)
    instances = Instances(api, "pg", "cnpg:default/pg", RealClock({}), lambda: journal or NoJournal())
    return CnpgPitfalls(
        instances,
        lambda: Thaw(cluster, instances),
        lambda place: Endpoint((place,)),
        watched_s=30 / SPEED,
        late_s=10 / SPEED,
    )


def test_k1_a_frozen_primary_keeps_its_lease(cluster: StandIn) -> None:
    found = pitfalls(cluster).frozen_keeps_its_lease()
    assert found.reproduced and "pg-1 still held the lease" in found.evidence
    assert cluster.cnpg.state.member("pg-1").server.value == "running"


def test_k1_is_not_there_where_a_frozen_primary_gives_its_lease_up(cluster: StandIn) -> None:
    cluster.cnpg.machine.delays = replace(cluster.cnpg.machine.delays, frozen_releases_s=1.0)
    found = replace(pitfalls(cluster), watched_s=30.0).frozen_keeps_its_lease()
    assert not found.reproduced and "took over" in found.evidence


class NothingToRecover:
    def recover(self) -> None:
        pass


def test_k1_is_judged_by_the_status_before_there_was_a_lease() -> None:
    """CloudNativePG 1.24 to 1.29."""
    api, clock = FakeApi(), VirtualClock()
    api.remove(LEASES, "pg")
    api.change(CLUSTERS, "pg", {"status": {"targetPrimary": "pg-2"}})
    instances = Instances(api, "pg", "cnpg:default/pg", clock, NoJournal)
    k1 = CnpgPitfalls(instances, NothingToRecover, lambda place: Endpoint((place,)), watched_s=5.0)
    kept = k1.frozen_keeps_its_lease()
    assert kept.reproduced and "pg-1 still was the primary by the Cluster's status, and there is no lease" in (
        kept.evidence
    )
    clock.after(2.0, lambda: api.change(CLUSTERS, "pg", {"status": {"currentPrimary": "pg-2"}}))
    found = k1.frozen_keeps_its_lease()
    assert found.reproduced is False and "took over after 2 s" in found.evidence


@pytest.fixture
def preferred(tmp_path: Path) -> Iterator[StandIn]:
    synchronous = {"method": "any", "number": 1, "dataDurability": "preferred"}
    with stand_in(tmp_path, cluster=manifest(postgresql={"synchronous": synchronous}), speed=SPEED) as running:
        yield running


def test_k2_preferred_becomes_local_without_a_word(preferred: StandIn) -> None:
    found = replace(pitfalls(preferred), watched_s=30.0).silently_local()
    assert found.reproduced and "acknowledged by pg-1 alone" in found.evidence


def test_k2_is_not_there_where_durability_is_required(cluster: StandIn) -> None:
    found = pitfalls(cluster).silently_local()
    assert not found.reproduced and "(required) stayed" in found.evidence


@pytest.fixture
def alterable(tmp_path: Path) -> Iterator[StandIn]:
    synchronous = {"method": "any", "number": 1, "dataDurability": "required"}
    given = {"synchronous": synchronous, "enableAlterSystem": True}
    with stand_in(tmp_path, cluster=manifest(postgresql=given), speed=SPEED) as running:
        yield running


def names(running: StandIn) -> str:
    return running.cnpg.postgres.psql("pg-1", "SHOW synchronous_standby_names", ()).stdout.decode().strip()


def test_k3_alter_system_wins_and_is_reset(alterable: StandIn, tmp_path: Path) -> None:
    before, journal = names(alterable), Journal(tmp_path / "journal.jsonl")
    found = pitfalls(alterable, journal).alter_system_overrides()
    assert found.reproduced and "not corrected" in found.evidence
    assert names(alterable) == before != "" and journal.pending() == ()


def test_k3_is_not_there_where_somebody_corrects_it(alterable: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = alterable.cnpg.postgres
    assert isinstance(memory, MemoryPostgres)
    psql = memory.psql

    def corrected(member: str, sql: str, arguments: tuple[str, ...] = ()) -> Executed:
        """Once it was seen in effect."""
        answer = psql(member, sql, arguments)
        if sql.startswith("SHOW") and not answer.stdout.strip():
            memory.members[member].altered.clear()
        return answer

    monkeypatch.setattr(memory, "psql", corrected)
    found = pitfalls(alterable).alter_system_overrides()
    assert found.reproduced is False and "was in effect" in found.evidence


def test_k3_is_not_there_where_alter_system_is_not_allowed(cluster: StandIn, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    found = pitfalls(cluster, journal).alter_system_overrides()
    assert found.reproduced is False and "enableAlterSystem" in found.evidence and "Permission denied" in found.evidence
    assert journal.pending() == ()


def test_what_somebody_else_altered_is_left_alone(alterable: StandIn) -> None:
    alterable.cnpg.postgres.psql("pg-1", "ALTER SYSTEM SET synchronous_standby_names = 'mine'", ())
    with pytest.raises(TargetError, match="ALTER SYSTEM sets synchronous_standby_names already"):
        pitfalls(alterable).alter_system_overrides()
    assert names(alterable) == "mine"


def test_what_a_killed_run_altered_is_reset(alterable: StandIn, tmp_path: Path) -> None:
    before, journal = names(alterable), Journal(tmp_path / "journal.jsonl")
    instances = pitfalls(alterable, journal).instances
    journal.note(0.0, instances.target, ALTERED, "pg-1", before=None, after=None)
    alterable.cnpg.postgres.psql("pg-1", "ALTER SYSTEM SET synchronous_standby_names = ''", ())
    assert names(alterable) == ""
    AlterSystem(instances).undo_left(journal)
    assert names(alterable) == before and journal.pending() == ()


def test_what_was_altered_stays_noted_while_its_member_has_no_pod(tmp_path: Path) -> None:
    """The file is on the instance's volume, which the next pod has; it goes with an instance that is listed no more."""
    api, journal = FakeApi(), Journal(tmp_path / "journal.jsonl")
    instances = Instances(api, "pg", "cnpg:default/pg", VirtualClock(), lambda: journal)
    for member in ("pg-1", "pg-2"):
        journal.note(0.0, instances.target, ALTERED, member, before=None, after=None)
    api.remove(PODS, "pg-2")
    for _ in range(2):
        with pytest.raises(TargetError, match="ALTER SYSTEM on pg-2 is not undone: pg-2 has no pod now"):
            AlterSystem(instances).undo_left(journal)
        assert [change.name for change in journal.pending()] == ["pg-2"]
    api.cluster["status"]["instanceNames"].remove("pg-2")
    AlterSystem(instances).undo_left(journal)
    assert journal.pending() == ()


def isolating(cluster: StandIn) -> CnpgPitfalls:
    found = pitfalls(cluster)
    return replace(found, isolation=ChaosMesh(found.instances).faults()[Capability.ISOLATE])


def test_k6_an_isolated_primary_holds_its_lease_once_it_is_reachable_again(cluster: StandIn) -> None:
    found = isolating(cluster).isolated_keeps_its_lease()
    assert found.reproduced and "held its lease for" in found.evidence and "no instance served" in found.evidence
    assert cluster.cnpg.state.phase == HEALTHY and cluster.store.listed(named("NetworkChaos"))[0] == []


def test_k6_is_not_there_where_it_shuts_down_at_once(cluster: StandIn) -> None:
    cluster.cnpg.machine.delays = replace(cluster.cnpg.machine.delays, shutdown_after_kill_s=0.5)
    found = replace(isolating(cluster), late_s=60 / SPEED).isolated_keeps_its_lease()  # unmended it takes 79.5 / SPEED
    assert found.reproduced is False and cluster.cnpg.state.phase == HEALTHY


def test_k6_is_skipped_where_nothing_can_isolate_a_member(cluster: StandIn) -> None:
    found = replace(pitfalls(cluster), not_isolated="Chaos Mesh is not installed").isolated_keeps_its_lease()
    assert found == Finding(None, "skipped, because Chaos Mesh is not installed")
    done = PitfallRun(ON_TARGET[0], found, 0.0)
    assert done.verdict == "skipped" and exit_code([done]) == 4


def test_k7_is_skipped_without_kubectl(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = pitfalls(cluster).forward_breaks_under_tls()
    assert found.reproduced is None and "kubectl is not installed" in found.evidence


def test_k7_is_undecided_where_kubectl_does_not_forward(
    cluster: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho error: no pod >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(TargetError, match="kubectl port-forward does not start: error: no pod"):
        pitfalls(cluster).forward_breaks_under_tls()


def test_k4_the_phase_is_late(cluster: StandIn) -> None:
    found = pitfalls(cluster).healthy_during_an_outage()
    assert found.reproduced and "Cluster in healthy state" in found.evidence


def test_k4_is_not_there_where_the_phase_follows_at_once(cluster: StandIn) -> None:
    prompt = replace(cluster.cnpg.machine.delays, unready_after_freeze_s=0.1, failover_after_unready_s=0.1)
    cluster.cnpg.machine.delays = prompt
    slow = replace(pitfalls(cluster), late_s=5.0)
    assert not slow.healthy_during_an_outage().reproduced


def test_k5_fsync_off_is_admitted_and_nothing_is_changed(cluster: StandIn) -> None:
    before = cluster.store.find("Cluster", "pg")
    assert pitfalls(cluster).admits_fsync_off().reproduced
    after = cluster.store.find("Cluster", "pg")
    assert before is not None and after is not None and before["spec"] == after["spec"]


def test_k5_is_not_there_where_they_are_fixed(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FIXED", frozenset((*admission.FIXED, "fsync", "full_page_writes")))
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
