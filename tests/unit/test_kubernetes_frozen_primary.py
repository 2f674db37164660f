"""The stand-in's operator, managers, kubelet and Lease when a frozen primary's pod is deleted, against the recordings.

The machine alone first (pure), then over HTTPS what walproof would send: deletion in order, compare-and-swap.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.kubernetes.events import Machine
from tests.fixtures.kubernetes.stand_in import StandIn, manifest, stand_in
from tests.fixtures.kubernetes.state import PENDING, Cluster, Cut, Member, Server, Synchronous, healthy
from tests.fixtures.kubernetes.timeline import Changed, advance
from tests.fixtures.tiers import each
from tests.unit.test_kubernetes_stand_in import Asking
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for

MACHINE = Machine()
RECORDED = Path(__file__).parents[1] / "fixtures/kubernetes/recorded/frozen_primary.yaml"


@cache
def recorded() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(RECORDED.read_text("utf-8")))


def frozen(*members: str, **setting: Any) -> Cluster:
    names = members or ("pg-1", "pg-2", "pg-3")
    start = healthy(tuple(Member(name) for name in names), synchronous=Synchronous(**setting))
    return MACHINE.freeze(start, names[0])


def until(cluster: Cluster, at_s: float) -> tuple[Cluster, list[Changed]]:
    after, changes = advance(MACHINE, cluster, at_s)
    return after, list(changes)


def first(changes: list[Changed], subject: str, field: str, after: str) -> float:
    return next((c.at_s for c in changes if (c.subject, c.field, c.after) == (subject, field, after)), float("inf"))


def replayed(run: dict[str, Any]) -> dict[str, float]:
    """The recorded run's acts against the machine, and when what it recorded comes here."""
    old, new, _ = run["members"]
    cluster, changes = until(frozen(*run["members"]), run["pod_deleted"])
    cluster = MACHINE.delete_pod(cluster, old)
    if (deleted_s := run["lease_deleted"]) is None:
        while cluster.target in (old, PENDING) and cluster.now_s < 60:
            cluster, more = until(cluster, cluster.now_s + 0.05)
            changes += more
    else:
        cluster, more = until(cluster, deleted_s)
        changes += more
    cluster = MACHINE.delete_lease(cluster)
    _, more = until(cluster, 40.0)
    changes += more
    return {
        "failing_over": first(changes, "cluster", "phase", "Failing over"),
        "pending": first(changes, "cluster", "targetPrimary", PENDING),
        "target": first(changes, "cluster", "targetPrimary", new),
        "reclaimed": first(changes, "lease", "holder", old),
        "lease_held": first(changes, "lease", "holder", new),
        "current": first(changes, "cluster", "currentPrimary", new),
        "writes": first(changes, "rw-endpoints", "pg-rw", f"{new} ready=True"),
        "healthy": first(changes, "cluster", "phase", "Cluster in healthy state"),
    }


@each(recorded())
def test_a_frozen_primary_deleted_by_hand_is_replayed(name: str) -> None:
    run = recorded()[name]
    mine = replayed(run)
    recorded_s = {key: s for key, s in run.items() if key in mine}
    assert len(recorded_s) >= 2
    # Runs differ by up to 0.5 s, a watcher looks every few tenths; healthy comes when a probe of 10 s says so.
    close_s = {key: 3.0 if key == "healthy" else 0.8 + 0.02 * s for key, s in recorded_s.items()}
    late = {key: (s, mine[key]) for key, s in recorded_s.items() if abs(mine[key] - s) > close_s[key]}
    assert late == {}
    assert sorted(recorded_s, key=recorded_s.__getitem__) == sorted(recorded_s, key=mine.__getitem__)


def test_the_recordings_times_would_notice_a_lease_that_is_not_reclaimed() -> None:
    class Forgets(Machine):
        def lease_reclaimed(self, cluster: Cluster, name: str) -> Cluster:
            return cluster

    forgetful = Forgets()
    cluster, _ = advance(forgetful, frozen(), 1.5)
    cluster = forgetful.delete_lease(forgetful.delete_pod(cluster, "pg-1"))
    _, changes = advance(forgetful, cluster, 40.0)
    assert first(list(changes), "rw-endpoints", "pg-rw", "pg-2 ready=True") < 15  # recorded: 23.2


def in_order(grace_s: float = 2.0, **setting: Any) -> Cluster:
    cluster, _ = until(frozen(**setting), 1.6)
    return MACHINE.terminate(cluster, "pg-1", grace_s)


@each([0.5, 2.0, 5.0, 10.0])
def test_a_frozen_pod_deleted_in_order_lingers_and_its_manager_renews_until_the_grace_period_is_over(
    grace_s: float,
) -> None:
    ends_s = 1.6 + max(grace_s, 2.0)
    before, _ = until(in_order(grace_s), ends_s - 0.1)
    one = before.member("pg-1")
    assert one.terminating and one.pod and one.server is Server.FROZEN and before.lease.holder == "pg-1"
    emptied, _ = until(MACHINE.empty_lease(before), ends_s - 0.05)
    assert not emptied.lease.holder
    after, _ = until(in_order(grace_s), ends_s + 0.5)
    assert not after.member("pg-1").pod and after.member("pg-1").server is Server.DOWN
    assert after.lease.holder == "pg-1", "nothing released it: a killed manager cannot"


@pytest.mark.parametrize("how", ["delete_lease", "empty_lease"])
@pytest.mark.parametrize("at_s", [1.7, 2.2])
def test_a_dying_manager_takes_its_lease_again_whether_it_was_deleted_or_emptied(how: str, at_s: float) -> None:
    cluster, _ = until(in_order(), at_s)
    taken, _ = until(getattr(MACHINE, how)(cluster), at_s + 0.5)
    assert not taken.lease.holder
    again, _ = until(taken, at_s + 1.35)
    assert again.lease.holder == "pg-1" and again.lease.exists
    later, _ = until(again, 19.0)
    assert later.primary == "pg-1", "its 15 seconds have to run out"
    assert until(later, 24.0)[0].primary == "pg-2"


@each(["delete_lease", "empty_lease"])
def test_the_chosen_manager_takes_a_dead_holders_lease_at_its_next_try(how: str) -> None:
    cluster, _ = until(in_order(), 5.0)
    assert cluster.target == "pg-2" and not cluster.member("pg-1").pod
    after, changes = until(getattr(MACHINE, how)(cluster), 12.0)
    assert after.primary == "pg-2" and cluster.now_s < first(changes, "lease", "holder", "pg-2") <= cluster.now_s + 2.0


@each([5, 15, 60])
def test_a_dead_holders_lease_runs_out_only_after_its_duration(duration_s: int) -> None:
    cluster = in_order()
    cluster = replace(cluster, lease=replace(cluster.lease, duration_s=duration_s))
    named_s = first(until(cluster, 30.0)[1], "cluster", "targetPrimary", "pg-2")
    held_s = first(until(cluster, 120.0)[1], "lease", "holder", "pg-2")
    assert duration_s <= held_s - named_s <= duration_s + 2.1


def test_the_operator_names_no_target_while_a_wal_receiver_runs() -> None:
    cluster, _ = until(in_order(grace_s=4.0), 4.9)
    assert cluster.target == PENDING
    assert until(cluster, 7.5)[0].target == "pg-2"
    cut = MACHINE.cut_network(in_order(grace_s=4.0), "pg-1", Cut.PEERS)
    assert until(cut, 3.5)[0].target == "pg-2", "a stream that was cut keeps nobody waiting"


@each([(("pg-2", "pg-3"), 1, True), (("pg-2",), 1, False), (("pg-2",), 2, True)])
def test_failover_quorum_is_asked(ready: tuple[str, ...], number: int, elected: bool) -> None:
    cluster = in_order(number=number, failover_quorum=True)
    for name in ("pg-2", "pg-3"):
        cluster = cluster if name in ready else cluster.with_member(name, ready=False)
    after, _ = until(cluster, 8.0)
    assert (after.target == "pg-2") == elected
    without = in_order(number=number)
    without = without.with_member("pg-3", ready="pg-3" in ready)
    assert until(without, 8.0)[0].target == "pg-2"


CHOSEN = {
    "the most WAL": ({}, "pg-3"),
    "the most WAL is not ready": ({"pg-3": {"ready": False}}, None),
    "the most WAL does not report": ({"pg-3": {"reports": False}}, "pg-2"),
    "the most WAL is frozen": ({"pg-3": {"server": Server.FROZEN}}, "pg-2"),
    "the other does not report": ({"pg-2": {"reports": False}}, "pg-3"),
    "the other is not ready": ({"pg-2": {"ready": False}}, "pg-3"),
    "none reports": ({"pg-2": {"reports": False}, "pg-3": {"reports": False}}, None),
    "the most WAL is fenced": ({"pg-3": {"fenced": True}}, "pg-2"),
}


@pytest.mark.parametrize("quorum", [False, True])
@pytest.mark.parametrize(("changes", "chosen"), CHOSEN.values(), ids=CHOSEN)
def test_the_most_wal_of_those_that_report_is_elected_and_waited_for(
    changes: dict[str, dict[str, Any]], chosen: str | None, quorum: bool
) -> None:
    cluster = in_order(failover_quorum=quorum).with_member("pg-3", received=7)
    for name, change in changes.items():
        cluster = cluster.with_member(name, **change)
    too_few = quorum and any({"ready", "reports", "server"} & change.keys() for change in changes.values())
    assert until(cluster, 8.0)[0].target == ("pg-1" if too_few else chosen or PENDING)


def test_a_pod_on_a_lost_node_lingers_and_its_manager_renews() -> None:
    cluster, _ = until(MACHINE.lose_node(in_order()), 120.0)
    assert cluster.member("pg-1").pod and cluster.lease.holder == "pg-1" and cluster.primary == "pg-1"


def test_a_deleted_primarys_pod_is_not_made_again_before_its_successor_is_promoted() -> None:
    after, changes = until(in_order(), 60.0)
    made_s = first(changes, "pod pg-1", "exists", "True")
    assert first(changes, "cluster", "currentPrimary", "pg-2") < made_s < 60
    assert after.member("pg-1").ready and after.primary == "pg-2"


def test_thawed_while_it_is_deleted_it_shuts_down_in_order_and_gives_its_lease_up() -> None:
    cluster, _ = until(in_order(grace_s=10.0), 3.0)
    after, changes = until(MACHINE.thaw(cluster, "pg-1"), 12.0)
    assert first(changes, "lease", "holder", "") < 4.0 and after.primary == "pg-2"


POD = "/api/v1/namespaces/default/pods/pg-1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/pg"


def waited(holds: Callable[[], object]) -> None:
    wait_for(Wait.CLUSTER_HEALTHY, lambda: bool(holds()), RealClock())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, cluster=manifest(), speed=10.0) as cluster:
        cluster.cnpg.execute(cluster.store.find("Pod", "pg-1") or {}, ("sh", "-c", "kill -STOP 10"))
        yield cluster


def test_the_api_deletes_a_pod_in_order_by_its_uid_and_empties_a_lease_by_compare_and_swap(running: StandIn) -> None:
    ask, cnpg = Asking(api=running.serving.api), running.cnpg
    pod = ask("GET", POD)
    body = {"gracePeriodSeconds": 2, "preconditions": {"uid": "another"}}
    assert ask.refusal("DELETE", POD, body)[0] == 409 and "deletionTimestamp" not in ask("GET", POD)["metadata"]
    ask("DELETE", POD, {**body, "preconditions": {"uid": pod["metadata"]["uid"]}})
    assert ask("GET", POD)["metadata"]["deletionGracePeriodSeconds"] == 2
    waited(lambda: running.store.find("Pod", "pg-1") is None)
    waited(lambda: cnpg.state.target == "pg-2")
    assert ask.refusal("PATCH", LEASE, {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": ""}})[0] == 409
    version = ask("GET", LEASE)["metadata"]["resourceVersion"]
    ask("PATCH", LEASE, {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}})
    waited(lambda: cnpg.state.primary == "pg-2" and ask("GET", LEASE)["spec"]["holderIdentity"] == "pg-2")
    waited(lambda: (running.store.find("Pod", "pg-1") or pod)["metadata"]["uid"] != pod["metadata"]["uid"])


@each(["DELETE", "PATCH"])
def test_a_living_managers_lease_deleted_or_emptied_is_its_own_again(how: str, running: StandIn) -> None:
    ask = Asking(api=running.serving.api)
    ask(how, LEASE, {"spec": {"holderIdentity": ""}} if how == "PATCH" else None)
    waited(lambda: (running.store.find("Lease", "pg") or {"spec": {}})["spec"].get("holderIdentity") == "pg-1")


def test_a_pod_on_a_node_that_is_not_ready_stays(running: StandIn) -> None:
    ask = Asking(api=running.serving.api)
    running.cnpg.lose_node()
    ask("DELETE", POD, {"gracePeriodSeconds": 2})
    waited(lambda: running.cnpg.state.target == "pg-2")
    assert running.store.find("Pod", "pg-1") and ask("GET", LEASE)["spec"]["holderIdentity"] == "pg-1"
    conditions = (running.store.find("Node", "node1", "") or {})["status"]["conditions"]
    assert [one["status"] for one in conditions] == ["Unknown"]
