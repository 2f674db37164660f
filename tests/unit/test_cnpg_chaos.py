"""Faults through Chaos Mesh: valid experiments, in effect once it says so, gone when undone, left by nobody."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kubernetes.access import Account, Rule
from tests.fixtures.kubernetes.admission import custom, pruned, schema_of
from tests.fixtures.kubernetes.chaos_mesh import seconds_of
from tests.fixtures.kubernetes.kinds import CHAOS
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.kubernetes.stand_in import StandIn, manifest, stand_in
from tests.fixtures.kubernetes.state import Cut
from tests.fixtures.kubernetes.store import recorded
from tests.fixtures.tiers import each
from walproof.errors import TargetError
from walproof.machine.pid_files import here, machine
from walproof.model.drill import Capability, Victim
from walproof.model.waiting import Wait
from walproof.proving.faults import CATALOGUE
from walproof.proving.inject import happens_here, no_takeover, why_skipped
from walproof.records.journal import Journal
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.created_objects import IO, LONGEST_S, MADE_BY, NETWORK, STRESS, Experiment
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.faults_and_undo_by_chaos_mesh import ChaosMesh
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.rbac import CHAOS_FAULTS
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.configure import NoJournal
from walproof.targets.simulated.clock import VirtualClock

BOOT = here().partition(" ")[2]

NAME, LEADER = "cnpg:default/pg", Victim.LEADER
OWNER = Cluster.model_validate(recorded("cluster"))
EVERY: tuple[Experiment, ...] = (
    created_objects.partition("default", "pg-1", ["pg-2", "pg-3"]),
    created_objects.isolate("default", "pg-1"),
    created_objects.one_way("default", "pg-1", "pg-2"),
    created_objects.delayed("default", "pg-1", ["pg-2", "pg-3"]),
    *created_objects.disk_fault(Capability.SLOW_DISK, "default", "pg-1", wal_volume=True, delay_s=0.02),
    *created_objects.disk_fault(Capability.FAILING_DISK, "default", "pg-1", wal_volume=False),
    *created_objects.disk_fault(Capability.FULL_DISK, "default", "pg-1", wal_volume=False),
    created_objects.busy_processors("default", "pg-1"),
)


@each(EVERY)
def test_an_experiment_is_valid_and_nothing_of_it_is_pruned(experiment: Experiment) -> None:
    tree = created_objects.tree_of(experiment, OWNER)
    kind = next(k for k in CHAOS if k.plural == experiment.kind.plural)
    assert tree["apiVersion"] == kind.api_version and tree["kind"] == kind.name
    assert pruned(schema_of(kind), tree)["spec"] == tree["spec"]
    custom(kind, tree)


@each(EVERY)
def test_an_experiment_is_ours_belongs_to_the_cluster_and_ends_by_itself(experiment: Experiment) -> None:
    meta = (tree := created_objects.tree_of(experiment, OWNER))["metadata"]
    assert meta["labels"]["app.kubernetes.io/managed-by"] == "walproof"
    assert [(one["kind"], one["uid"]) for one in meta["ownerReferences"]] == [("Cluster", OWNER.metadata.uid)]
    assert seconds_of(tree["spec"]["duration"]) == LONGEST_S
    assert tree["spec"]["selector"] == {"namespaces": ["default"], "pods": {"default": ["pg-1"]}}


def test_no_drill_outlasts_the_duration() -> None:
    """It would lift its own fault while it still waits for commits."""
    longest = max(CATALOGUE[fault.value].hold_s for fault in CHAOS_FAULTS)
    assert 4 * (Wait.FIRST_COMMIT_AFTER.seconds + longest + Wait.CHAOS_INJECTED.seconds) < LONGEST_S


def test_a_partition_spares_clients_and_an_isolation_nobody() -> None:
    cut = {e.name: e.spec for e in EVERY}
    assert cut["pg-1-walproof-partition"]["target"]["selector"]["pods"] == {"default": ["pg-2", "pg-3"]}
    assert cut["pg-1-walproof-partition"]["externalTargets"] == ["kubernetes.default.svc"]
    assert cut["pg-1-walproof-isolate"]["externalTargets"] == ["0.0.0.0/1", "128.0.0.0/1"]
    assert cut["pg-1-walproof-partition-one-way-pg-2"]["direction"] == "to"
    assert [e.spec["volumePath"] for e in EVERY if e.kind is IO and e.spec["action"] == "latency"] == [
        "/var/lib/postgresql/data",
        "/var/lib/postgresql/wal",
    ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, cluster=manifest(), speed=20) as running:
        yield running


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def client(cluster: StandIn, tmp_path: Path, account: Account | None = None) -> Client:
    path = cluster.serving.kubeconfig(account)
    configuration, context = connection("", {"KUBECONFIG": str(path), "HOME": str(tmp_path)})
    return Client(configuration, "default", context)


def chaos(api: Any, journal: Journal | None = None, clock: Any = None) -> ChaosMesh:
    from walproof.machine.clock import RealClock

    return ChaosMesh(Instances(api, "pg", NAME, clock or RealClock({}), lambda: journal or NoJournal()))


def until(wanted: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def left(cluster: StandIn) -> list[str]:
    return [item["metadata"]["name"] for kind in CHAOS for item in cluster.store.listed(kind)[0]]


@pytest.mark.parametrize(("fault", "cut"), [(Capability.ISOLATE, Cut.ALL), (Capability.PARTITION, Cut.ALL_BUT_CLIENTS)])
def test_a_cut_is_in_effect_when_inject_returns_and_over_when_undo_does(
    fault: Capability, cut: Cut, cluster: StandIn, tmp_path: Path, journal: Journal
) -> None:
    chaotic = chaos(client(cluster, tmp_path), journal)
    chaotic.faults()[fault].inject("pg-2")
    assert cluster.cnpg.state.member("pg-2").cut is cut
    assert [c.name for c in journal.pending()] == [f"networkchaos pg-2-walproof-{fault}"]
    chaotic.faults()[fault].undo("pg-2")
    assert cluster.cnpg.state.member("pg-2").cut is Cut.NONE
    assert left(cluster) == [] and journal.pending() == () and chaotic.injected == []


def test_disks_one_way_and_processors(cluster: StandIn, tmp_path: Path, journal: Journal) -> None:
    chaotic = chaos(client(cluster, tmp_path), journal)
    slow, one_way = chaotic.slow_disk(), chaotic.one_way()
    assert slow is not None and one_way is not None
    slow.inject("pg-1", 0.02)
    one_way.inject("pg-1", "pg-2")
    for fault in (Capability.FAILING_DISK, Capability.FULL_DISK, Capability.CPU_STRESS, Capability.LINK_DELAY):
        chaotic.faults()[fault].inject("pg-3")
    assert len(left(cluster)) == len(journal.pending()) == 6
    assert cluster.cnpg.state.member("pg-1").cut is Cut.PEERS
    slow.undo("pg-1")
    one_way.undo("pg-1", "pg-2")
    assert len(left(cluster)) == 4
    chaotic.undo_all()
    assert left(cluster) == [] and journal.pending() == ()


def test_what_a_killed_run_left_is_undone_and_replaced(cluster: StandIn, tmp_path: Path, journal: Journal) -> None:
    api = client(cluster, tmp_path)
    chaos(api, journal).faults()[Capability.ISOLATE].inject("pg-2")
    again = chaos(api, journal)
    again.faults()[Capability.ISOLATE].inject("pg-2")
    assert left(cluster) == ["pg-2-walproof-isolate"]
    chaos(api, journal).undo_left(journal)
    assert left(cluster) == [] and journal.pending() == ()
    assert cluster.cnpg.state.member("pg-2").cut is Cut.NONE


def test_its_duration_ends_it_without_us(cluster: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(created_objects, "LONGEST_S", 20)
    chaos(client(cluster, tmp_path)).faults()[Capability.ISOLATE].inject("pg-2")
    until(lambda: cluster.cnpg.state.member("pg-2").cut is Cut.NONE)


def test_its_owner_takes_it_along(cluster: StandIn, tmp_path: Path) -> None:
    chaos(client(cluster, tmp_path)).faults()[Capability.CPU_STRESS].inject("pg-2")
    made = cluster.store.find("StressChaos", "pg-2-walproof-cpu-stress")
    owner = cluster.store.find("Cluster", "pg")
    assert made and owner and made["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]


def test_what_is_never_injected_is_no_fault(cluster: StandIn, tmp_path: Path, journal: Journal) -> None:
    cluster.chaos.stuck = "unable to flush ip sets for pod pg-2"
    clock = _Hurried()
    with pytest.raises(TargetError, match=r"CHAOS_INJECTED\): unable to flush ip sets for pod pg-2"):
        chaos(client(cluster, tmp_path), journal, clock).faults()[Capability.ISOLATE].inject("pg-2")
    until(lambda: left(cluster) == [])
    assert journal.pending() == ()


class _Hurried(VirtualClock):
    """Virtual seconds that take a hundredth of real ones."""

    def pause(self, seconds: float) -> None:
        time.sleep(seconds / 100)
        super().pause(seconds)


def _target(api: Any, **faults: str) -> CnpgCluster:
    file = CnpgFile(kind="cnpg", cluster="default/pg", reach="pods", faults=faults)
    return CnpgCluster(NAME, file, api)


def test_where_chaos_mesh_is_installed_it_goes_before_a_command(cluster: StandIn, tmp_path: Path) -> None:
    target = _target(client(cluster, tmp_path), isolate="cut {host}", recover="mend {host}", freeze="stop {host}")
    able = target.capabilities()
    assert "the pod is deleted with force" in happens_here(target, CATALOGUE["kill-member"])
    assert "transactions under way are cut" in happens_here(target, CATALOGUE["switchover"])
    assert [happens_here(target, CATALOGUE[name]) for name in ("freeze", "kill", "double-kill", "none")] == [""] * 4
    fenced = no_takeover(target, CATALOGUE["stop"], LEADER)
    assert fenced == "writes stop for as long as it is fenced; no instance takes over"
    others = (("stop", Victim.STANDBY), ("kill", LEADER))
    assert [no_takeover(target, CATALOGUE[name], victim) for name, victim in others] == [""] * 2
    by_command = _target(client(cluster, tmp_path), stop="stop {host}", recover="start {host}")
    assert no_takeover(by_command, CATALOGUE["stop"], LEADER) == ""
    able.faults[Capability.ISOLATE].inject("pg-2")
    assert cluster.cnpg.state.member("pg-2").cut is Cut.ALL
    able.faults[Capability.ISOLATE].undo("pg-2")
    assert left(cluster) == []


def test_what_a_killed_run_left_is_found_by_its_label_without_its_journal(
    cluster: StandIn, tmp_path: Path, journal: Journal
) -> None:
    api = client(cluster, tmp_path)
    for number, (member, maker) in enumerate(
        (("pg-2", f"{machine()} 999999999 1 {BOOT}"), ("pg-3", "elsewhere 7 1 a-boot"))
    ):
        chaos(api).faults()[Capability.ISOLATE].inject(member)
        cluster.store.modify(
            "NetworkChaos",
            f"{member}-walproof-isolate",
            lambda one, by=maker: one["metadata"]["annotations"].update({MADE_BY: by}),  # type: ignore[misc]
        )
        assert len(left(cluster)) == number + 1
    (sentence,) = _target(api).revert(journal)
    assert left(cluster) == ["pg-3-walproof-isolate"] and "made by walproof on elsewhere" in sentence
    assert cluster.cnpg.state.member("pg-2").cut is Cut.NONE


def test_without_chaos_mesh_the_commands_do_it_or_it_is_skipped() -> None:
    target = _target(FakeApi(), isolate="cut {host}", recover="mend {host}")
    able = target.capabilities()
    assert Capability.ISOLATE in able.faults and able.why_not(Capability.ISOLATE) is None
    assert able.why_not(Capability.PARTITION) == (
        "Chaos Mesh is not installed (no networkchaos.chaos-mesh.org), and the target file has no command for it "
        "([faults] partition = …)"
    )
    for fault in ("slow-disk", "failing-disk", "full-disk", "partition-one-way", "cpu-stress", "link-delay"):
        assert str(why_skipped(target, CATALOGUE[fault])).startswith("Chaos Mesh is not installed")
    assert "no command for it" in str(able.why_not(Capability.POWER_CUT))
    assert Capability.POWER_CUT in _target(FakeApi(), **{"power-cut": "a", "recover": "b"}).capabilities().faults


SEES = Rule(("get",), ("clusters",), ("postgresql.cnpg.io",))


def test_rights_that_are_missing_are_named(cluster: StandIn, tmp_path: Path) -> None:
    some = Rule(("get", "list", "create", "delete"), ("networkchaos",), ("chaos-mesh.org",))
    api = client(cluster, tmp_path, Account(rules=(some, Rule(("list",), ("pods",), ("",)), SEES)))
    missing = chaos(api).why_not()
    assert set(missing) == {IO, STRESS} and NETWORK not in missing
    assert missing[IO] == (
        "this user may not get iochaos.chaos-mesh.org, list iochaos.chaos-mesh.org, create iochaos.chaos-mesh.org, "
        "delete iochaos.chaos-mesh.org in namespace default, which a fault by iochaos.chaos-mesh.org needs; add to the "
        'rules of its Role: - {apiGroups: ["chaos-mesh.org"], resources: ["iochaos"], '
        'verbs: ["get", "list", "create", "delete"]} (walproof target cnpg --print-rbac --for chaos-mesh)'
    )
    assert 'resources: ["pods/exec"]' in missing[STRESS], "its sign shows inside the container alone"


def test_where_it_is_not_installed_nobody_knows_its_kinds(cluster: StandIn, tmp_path: Path) -> None:
    api = client(cluster, tmp_path)
    assert api.serves(NETWORK)
    cluster.serving.api.chaos_mesh = False
    assert not api.serves(NETWORK)
    assert chaos(api).faults() == {} and chaos(api).slow_disk() is None and chaos(api).one_way() is None


def test_a_status_of_no_pods_is_no_injection() -> None:
    """AllInjected is true of an empty selection."""
    from walproof.targets.cnpg.chaos_mesh_objects import ChaosExperiment

    conditions = [{"type": "AllInjected", "status": "True"}, {"type": "Selected", "status": "False"}]
    tree = {"metadata": {"name": "x"}, "status": {"conditions": conditions}}
    assert not read(ChaosExperiment, tree).status.holds("AllInjected")
    tree = json.loads(json.dumps(tree).replace("False", "True"))
    assert read(ChaosExperiment, tree).status.holds("AllInjected")


def test_an_experiment_that_is_not_valid_is_refused_by_the_stand_in(cluster: StandIn, tmp_path: Path) -> None:
    """The control: its schema and its webhook do refuse."""
    api = client(cluster, tmp_path)
    wrong = replace(EVERY[0], spec={**EVERY[0].spec, "action": "cut"})
    with pytest.raises(Exception, match='Unsupported value: "cut"'):
        api.create(NETWORK, created_objects.tree_of(wrong, OWNER))
    nobody = replace(EVERY[1], spec={k: v for k, v in EVERY[1].spec.items() if k != "externalTargets"})
    with pytest.raises(Exception, match="cannot be both empty"):
        api.create(NETWORK, created_objects.tree_of(nobody, OWNER))
