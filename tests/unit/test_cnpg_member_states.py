"""Signs of an instance by Kubernetes: its container, its processes, Chaos Mesh's status; and what they prove."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.model.topology import ClusterView, MemberState
from walproof.proving.fault_happened import Sign, Signs, sign
from walproof.proving.history import DrillRun
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.faults_and_undo_by_chaos_mesh import ChaosMesh
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.member_states_and_failover_steps import CnpgMemberStates, seen_inside
from walproof.targets.configure import NoJournal


class Scene:
    """The stand-in in memory: no SQL answers, so everything here is of Kubernetes alone."""

    def __init__(self, cluster: StandIn) -> None:
        configuration, context = connection("", {"KUBECONFIG": str(cluster.serving.kubeconfig())})
        api, clock = Client(configuration, "default", context), RealClock({})
        self.cluster = cluster
        self.instances = Instances(api, "pg", "cnpg:default/pg", clock, NoJournal)
        self.chaos = ChaosMesh(self.instances)
        self.source = CnpgMemberStates(api, "pg", dict, clock, injected=self.chaos.in_effect)

    def states(self) -> dict[str, MemberState]:
        return {state.member: state for state in self.source.states()}

    def sign(self, fault: Capability, member: str, act: Callable[[], None], *, later: Callable[[], bool]) -> Sign:
        """The sign of a fault from the states before and after `act`, once `later` holds."""
        before = self.states()
        act()
        until(later)
        after = self.states()
        seen = {name: (state,) for name, state in after.items()}
        run = DrillRun((member,), ClusterView(0.0, (), "pg-1"), 1.0, 2.0, 3.0)
        return sign(fault, member, Signs(before, seen, seen), run)


def until(wanted: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with stand_in(tmp_path, speed=20) as running:
        yield Scene(running)


def nothing() -> None:
    """No fault at all: the control."""


def test_a_healthy_instance(scene: Scene) -> None:
    states = scene.states()
    assert set(states) == {"pg-1", "pg-2", "pg-3"}
    one = states["pg-1"]
    assert (one.processes, one.manager, one.stressed, one.chaos) == ("running", "running", False, ())
    assert "@" in one.postmaster and one.container.endswith("/0")


def test_a_container_killed_differs_from_a_pod_deleted_and_from_nothing(scene: Scene) -> None:
    able = scene.instances.faults()
    cnpg = scene.cluster.cnpg
    quiet = scene.sign(Capability.KILL_CONTAINER, "pg-1", nothing, later=lambda: True)
    assert quiet.seen is False and "the one from before" in quiet.what
    killed = scene.sign(
        Capability.KILL_CONTAINER,
        "pg-1",
        lambda: able[Capability.KILL_CONTAINER].inject("pg-1"),
        later=lambda: cnpg.state.member("pg-1").restarts == 1,
    )
    assert killed.seen and "in the same pod (restarts 0 → 1)" in killed.what
    assert cnpg.state.primary == "pg-1"
    deleted = scene.sign(
        Capability.KILL_MEMBER,
        "pg-2",
        lambda: able[Capability.KILL_MEMBER].inject("pg-2"),
        later=lambda: not cnpg.state.member("pg-2").pod,
    )
    assert deleted.seen and deleted.what == "its pod was gone"


def test_a_killed_postmaster_is_another_process(scene: Scene) -> None:
    able = scene.instances.faults()
    cnpg = scene.cluster.cnpg
    found = scene.sign(
        Capability.KILL,
        "pg-1",
        lambda: able[Capability.KILL].inject("pg-1"),
        later=lambda: cnpg.state.primary != "pg-1" and cnpg.state.member("pg-1").ready,
    )
    assert found.seen and "another process" in found.what


def test_frozen_postgresql_under_a_living_manager(scene: Scene) -> None:
    able = scene.instances.faults()[Capability.FREEZE]
    found = scene.sign(Capability.FREEZE, "pg-1", lambda: able.inject("pg-1"), later=lambda: True)
    assert found.seen is True
    frozen = scene.states()["pg-1"]
    assert (frozen.processes, frozen.manager) == ("frozen", "running")
    able.undo("pg-1")
    assert scene.states()["pg-1"].processes == "running"


@pytest.mark.parametrize("fault", [Capability.ISOLATE, Capability.PARTITION, Capability.FAILING_DISK])
def test_the_sign_of_an_experiment_is_its_status(fault: Capability, scene: Scene) -> None:
    quiet = scene.sign(fault, "pg-2", nothing, later=lambda: True)
    assert quiet.seen is False and "did not show it" in quiet.what
    found = scene.sign(fault, "pg-2", lambda: scene.chaos.faults()[fault].inject("pg-2"), later=lambda: True)
    assert found.seen and "Chaos Mesh's status showed it" in found.what
    assert scene.states()["pg-3"].chaos == ()


def test_busy_processors_are_seen_from_inside(scene: Scene) -> None:
    able = scene.chaos.faults()[Capability.CPU_STRESS]
    assert scene.sign(Capability.CPU_STRESS, "pg-2", nothing, later=lambda: True).seen is False
    found = scene.sign(Capability.CPU_STRESS, "pg-2", lambda: able.inject("pg-2"), later=lambda: True)
    assert found.seen and "only compute" in found.what


def test_sigkill_does_not_reach_a_first_process_from_inside(scene: Scene) -> None:
    """Why kill-container sends another signal: the stand-in refuses what the kernel does."""
    scene.instances.run("pg-1", "kill -9 1")
    assert scene.states()["pg-1"].container.endswith("/0") and scene.cluster.cnpg.state.member("pg-1").ready


def test_without_chaos_mesh_nobody_says_what_a_network_drops(scene: Scene) -> None:
    scene.cluster.serving.api.chaos_mesh = False
    assert scene.states()["pg-1"].chaos is None


def test_a_listing_without_processes_tells_nothing() -> None:
    bare = MemberState("pg-1", 0.0)
    assert seen_inside(bare, "") == bare
    only_manager = seen_inside(bare, f"1 (manager) S {'0 ' * 18}77 0\n")
    assert (only_manager.processes, only_manager.manager, only_manager.postmaster) == ("none", "running", "none")
