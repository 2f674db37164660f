"""The stand-in of CloudNativePG against what was recorded of a real one: failovers, a frozen primary, admission, RBAC.

Nothing else tests the stand-in: what it does beyond the recordings is judged by the tests that use it.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.kubernetes.access import Account
from tests.fixtures.kubernetes.api import MERGE, Api
from tests.fixtures.kubernetes.events import Machine, next_due
from tests.fixtures.kubernetes.kinds import Refusal, named
from tests.fixtures.kubernetes.stand_in import manifest, stand_in
from tests.fixtures.kubernetes.state import HEALTHY, PENDING, Cluster, Cut, Member, Server, Synchronous, healthy
from tests.fixtures.kubernetes.store import Object
from tests.fixtures.kubernetes.store import recorded as recorded_object
from tests.fixtures.kubernetes.timeline import Changed, Run, advance, differences, names, recorded
from tests.fixtures.tiers import each

MACHINE = Machine()
HERE = Path(__file__).parents[1] / "fixtures/kubernetes/recorded"
TOGETHER_S = 0.5
"""Changes recorded closer than this came in either order from run to run."""
LATE = ("a_delete_pod_force_2", "rw-endpoints", 1.353)
"""In the two other runs of the same fault these endpoints went 0.28 s after it, before readyInstances changed."""


def three(**setting: Any) -> Cluster:
    return healthy(tuple(Member(name) for name in ("pg-1", "pg-2", "pg-3")), synchronous=Synchronous(**setting))


def begun(run: Run) -> tuple[Cluster, tuple[Changed, ...]]:
    """The recorded fault, by the letter that its run begins with, and what changes with it at once."""
    start, primary = run.start, run.start.primary
    if run.name.startswith("f"):
        start, _ = advance(MACHINE, start, run.changes[0].at_s)
        after = MACHINE.switch_over(start, next(one.after for one in run.changes if one.field == "targetPrimary"))
        return after, tuple(differences(start, after))
    faults: dict[str, Callable[[Cluster, str], Cluster]] = {
        "a": MACHINE.delete_pod, "b": MACHINE.kill_postmaster, "c": MACHINE.kill_container, "e": MACHINE.freeze,
        "d": lambda c, name: MACHINE.cut_network(c, name, Cut.ALL),
        "d2": lambda c, name: MACHINE.cut_network(c, name, Cut.ALL_BUT_PROBES),
    }  # fmt: skip
    gone = (Changed(0.0, f"pod {primary}", "exists", "True", "False"),) if run.name.startswith("a") else ()
    return faults[run.name.split("_")[0]](start, primary), gone


def replayed(run: Run) -> tuple[Changed, ...]:
    after, changes = begun(run)
    if run.cleared_s is not None:
        after, more = advance(MACHINE, after, run.cleared_s)
        changes += more
        after = (MACHINE.thaw if run.name.startswith("e") else MACHINE.mend_network)(after, run.start.primary)
    return changes + advance(MACHINE, after, run.changes[-1].at_s + 3)[1]


def key(change: Changed) -> tuple[str, str, str, str]:
    return change.subject, change.field, change.before, change.after


def compared(run: Run, mine: tuple[Changed, ...]) -> list[str]:
    """What was recorded and does not come, comes and was not recorded, comes in another order, or at another time."""
    left, pairs, wrong = list(mine), [], []
    for one in run.changes:
        if (other := next((m for m in left if key(m) == key(one)), None)) is None:
            wrong.append(f"missing {one}")
            continue
        left.remove(other)
        pairs.append((one, other))
    wrong += [f"added {one}" for one in left if one.at_s < run.changes[-1].at_s - 3]
    wrong += [f"late {a}: {b.at_s}" for a, b in pairs if abs(a.at_s - b.at_s) > 1.5 + 0.1 * a.at_s]
    known = [(a, x) for a, x in pairs if (run.name, a.subject, a.at_s) != LATE]
    return wrong + [
        f"disordered {a}, {b}; here {x.at_s} and {y.at_s}"
        for a, x in known for b, y in known if a.at_s + TOGETHER_S < b.at_s and x.at_s >= y.at_s
    ]  # fmt: skip


@each(names())
def test_a_recorded_failover_is_replayed(name: str) -> None:
    assert compared(recorded(name), replayed(recorded(name))) == []


def test_the_comparison_notices_a_change_left_out_added_moved_or_late() -> None:
    run = recorded("b_kill9_postmaster_1")
    mine = replayed(run)
    one = next(one for one in mine if one.field == "currentPrimary")
    without = tuple(other for other in mine if other is not one)
    changed = {"missing": without, "disordered": (*without, replace(one, at_s=0.1)),
               "added": (*mine, replace(one, before="x")), "late": (*without, replace(one, at_s=90.0))}  # fmt: skip
    unseen = [said for said, them in changed.items() if not any(w.startswith(said) for w in compared(run, them))]
    assert unseen == []


PROMPT = replace(MACHINE.delays, unready_after_freeze_s=0.1, failover_after_unready_s=0.1)


@pytest.mark.nightly
@each([(delays, *fault) for delays in (MACHINE.delays, PROMPT)
       for fault in (("freeze", "thaw"), ("cut_network", "mend_network"))])  # fmt: skip
def test_a_fault_cleared_after_any_step_leaves_a_healthy_cluster(delays: Any, fault: str, undo: str) -> None:
    machine = Machine()
    machine.delays = delays
    faulty, steps = getattr(machine, fault)(three(), "pg-1"), 0
    while (due_s := next_due(faulty)) is not None and due_s < 200:
        faulty, steps = machine.step(faulty), steps + 1
        after, _ = advance(machine, getattr(machine, undo)(faulty, "pg-1"), faulty.now_s + 300)
        assert (after.phase, after.primary) == (HEALTHY, after.target), f"cleared at {faulty.now_s} s"
    assert steps > 10


FROZEN = dict(yaml.safe_load((HERE / "frozen_primary.yaml").read_text("utf-8")))


def first(changes: list[Changed], subject: str, field: str, after: str) -> float:
    return next((c.at_s for c in changes if (c.subject, c.field, c.after) == (subject, field, after)), float("inf"))


def deleted_by_hand(run: dict[str, Any], machine: Machine = MACHINE) -> dict[str, float]:
    """The recorded run's acts against the machine, and when what it recorded comes here."""
    old, new, _ = run["members"]
    start = machine.freeze(healthy(tuple(Member(name) for name in run["members"])), old)
    cluster, seen = advance(machine, start, run["pod_deleted"])
    changes = list(seen)
    cluster, at_s = machine.delete_pod(cluster, old), run["lease_deleted"]
    while cluster.now_s < (at_s or 60) and (at_s or cluster.target in (old, PENDING)):
        cluster, seen = advance(machine, cluster, cluster.now_s + 0.05)
        changes += seen
    changes += advance(machine, machine.delete_lease(cluster), 40.0)[1]
    return {
        "failing_over": first(changes, "cluster", "phase", "Failing over"),
        "pending": first(changes, "cluster", "targetPrimary", PENDING),
        "target": first(changes, "cluster", "targetPrimary", new),
        "reclaimed": first(changes, "lease", "holder", old),
        "lease_held": first(changes, "lease", "holder", new),
        "current": first(changes, "cluster", "currentPrimary", new),
        "writes": first(changes, "rw-endpoints", "pg-rw", f"{new} ready=True"),
        "healthy": first(changes, "cluster", "phase", HEALTHY),
    }


def late(run: dict[str, Any], mine: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Runs differ by up to 0.5 s, a watcher looks every few tenths; healthy comes when a probe of 10 s says so."""
    close_s = {key: 3.0 if key == "healthy" else 0.8 + 0.02 * run[key] for key in mine.keys() & run.keys()}
    return {key: (run[key], mine[key]) for key, close in close_s.items() if abs(mine[key] - run[key]) > close}


@each(FROZEN.items())
def test_a_frozen_primary_deleted_by_hand_is_replayed(name: str, run: dict[str, Any]) -> None:
    mine = deleted_by_hand(run)
    assert late(run, mine) == {} and len(mine.keys() & run.keys()) >= 2
    order = [key for key in run if key in mine]
    assert sorted(order, key=run.__getitem__) == sorted(order, key=mine.__getitem__)


def test_the_times_recorded_would_notice_a_lease_that_is_not_reclaimed() -> None:
    class Forgets(Machine):
        def lease_reclaimed(self, cluster: Cluster, name: str) -> Cluster:
            return cluster

    assert late(FROZEN["first_try"], deleted_by_hand(FROZEN["first_try"], Forgets())).keys() == {"reclaimed", "writes"}


@pytest.mark.nightly
@each([
    ({}, "pg-3"),
    ({"pg-3": {"ready": False}}, None),
    ({"pg-3": {"reports": False}}, "pg-2"),
    ({"pg-3": {"server": Server.FROZEN}}, "pg-2"),
    ({"pg-2": {"reports": False}}, "pg-3"),
    ({"pg-2": {"ready": False}}, "pg-3"),
    ({"pg-2": {"reports": False}, "pg-3": {"reports": False}}, None),
    ({"pg-3": {"fenced": True}}, "pg-2"),
])  # fmt: skip
def test_the_most_wal_of_those_that_report_is_elected_and_waited_for(changes: Any, chosen: str | None) -> None:
    """The rule that the simulation of a frozen primary rests on; evaluatePodReadinessGuards and its neighbours."""
    for quorum in (False, True):
        cluster, _ = advance(MACHINE, MACHINE.freeze(three(failover_quorum=quorum), "pg-1"), 1.6)
        cluster = MACHINE.terminate(cluster, "pg-1", 2.0).with_member("pg-3", received=7)
        for name, change in changes.items():
            cluster = cluster.with_member(name, **change)
        too_few = quorum and any({"ready", "reports", "server"} & change.keys() for change in changes.values())
        assert advance(MACHINE, cluster, 8.0)[0].target == ("pg-1" if too_few else chosen or PENDING), quorum


PODS, JOBS = "/api/v1/namespaces/default/pods", "/apis/batch/v1/namespaces/default/jobs"
CLUSTERS = "/apis/postgresql.cnpg.io/v1/namespaces/default/clusters"


def asked(api: Api, account: Account, method: str, path: str, body: Any = None) -> Object:
    headers = {"authorization": f"Bearer {api.accounts.add(account)}", "content-type": MERGE}
    return api.answer(api.received(method, path, headers, json.dumps(body).encode()))[1]


NOT_IMITATED = (
    "wal_level=minimal", "wal_log_hints=off", "minSyncReplicas", '"instances":1', '"size":"1Gi"', ":latest",
    '"number":0', '"method":"all"', "standbyNamesPre",
)  # fmt: skip
"""Patches that walproof never writes: they are admitted, or refused in other words."""
ADMISSION = yaml.safe_load((HERE / "admission.yaml").read_text("utf-8"))


@each([case for case in ADMISSION if not any(one in case["patch"] for one in NOT_IMITATED)])
def test_the_webhook_answers_as_recorded(case: dict[str, str]) -> None:
    api, answer = Api(), "cluster.postgresql.cnpg.io/pg patched"
    asked(api, Account(), "POST", CLUSTERS, manifest())
    name, _, value = case["patch"].partition("=")
    given = {"spec": {"postgresql": {"parameters": {name: value}}}}
    body = json.loads(case["patch"]) if name.startswith("{") else given
    try:
        asked(api, Account(), "PATCH", f"{CLUSTERS}/pg?dryRun=All", body)
    except Refusal as refused:
        (cause,) = refused.details["causes"]
        answer = f'The Cluster "pg" is invalid: {cause["field"]}: {cause["message"]}'
    assert answer == case["answer"]


_HERE = 'in the namespace "default"'


@each([
    ("GET", PODS, f'pods is forbidden: {{}} list resource "pods" in API group "" {_HERE}'),
    ("GET", f"{CLUSTERS}/pg", 'clusters.postgresql.cnpg.io "pg" is forbidden: {} get resource "clusters" '
     f'in API group "postgresql.cnpg.io" {_HERE}'),
    ("GET", f"{PODS}/pg-1/log", f'pods "pg-1" is forbidden: {{}} get resource "pods/log" in API group "" {_HERE}'),
    ("POST", JOBS, f'jobs.batch is forbidden: {{}} create resource "jobs" in API group "batch" {_HERE}'),
    ("GET", f"{PODS}?watch=true", f'pods is forbidden: {{}} watch resource "pods" in API group "" {_HERE}'),
    ("GET", "/api/v1/pods", 'pods is forbidden: {} list resource "pods" in API group "" at the cluster scope'),
])  # fmt: skip
def test_refusals_of_rbac_are_worded_as_recorded(method: str, path: str, said: str) -> None:
    with pytest.raises(Refusal) as refused:
        asked(Api(), Account(rules=()), method, path)
    probe = 'User "system:serviceaccount:default:walproof-probe" cannot'
    assert (refused.value.code, refused.value.message) == (403, said.format(probe))


def test_a_healthy_cluster_is_the_recorded_one(tmp_path: Path) -> None:
    with stand_in(tmp_path) as running:
        found, was = running.store.find("Cluster", "pg") or {}, recorded_object("cluster")
        same = found["status"].keys() & was["status"].keys()
        assert {key: found["status"][key] for key in same} == {key: was["status"][key] for key in same}
        assert len(same) >= 12 and found["spec"]["postgresql"].keys() <= was["spec"]["postgresql"].keys()
        for pod in recorded_object("pods"):
            made = running.store.find("Pod", pod["metadata"]["name"]) or {}
            assert made["metadata"]["labels"] == pod["metadata"]["labels"]
            assert made["status"]["phase"] == pod["status"]["phase"]
        lease, was = running.store.find("Lease", "pg") or {}, recorded_object("lease")
        assert lease["spec"].keys() == was["spec"].keys()
        assert lease["spec"]["holderIdentity"] == was["spec"]["holderIdentity"]
        ((made,), _), (was, *_) = running.store.listed(named("EndpointSlice")), recorded_object("endpointslices")
        (end,), (was_end,) = made["endpoints"], was["endpoints"]
        assert (end["targetRef"]["name"], end["conditions"]) == (was_end["targetRef"]["name"], was_end["conditions"])
        assert made["metadata"]["labels"] == was["metadata"]["labels"]
