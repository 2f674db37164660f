"""Whether sizes fit on nodes: what is certain, what is not, and the scheduler's way of counting. Pure."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import each
from walproof.errors import NotObtained
from walproof.targets.cnpg.kubernetes_api import ApiError, Kind, Tree
from walproof.targets.cnpg.node_capacity import NODES, amount_of, fit
from walproof.targets.cnpg.objects import Pod, read
from walproof.targets.cnpg.target_file import LoadPart

NONE, LOAD = LoadPart(), LoadPart(image="walproof")
NAMES = ("pg-1", "pg-2", "pg-3")
READY = [{"type": "Ready", "status": "True"}]


def node(name: str, cpu: str = "2", *, spec: Tree | None = None, ready: bool = True, **labels: str) -> Tree:
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi"}, "conditions": READY if ready else []}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "status": status}


def pod(name: str, where: str, cpu: str = "100m", namespace: str = "default", **more: Any) -> Tree:
    container = {"name": "postgres", "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}}}
    spec = {"nodeName": where, "containers": [container], **more}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {"phase": "Running"}}


class Listed:
    """Nodes and pods of all namespaces."""

    namespace = "default"

    def __init__(self, nodes: list[Tree], pods: list[Tree]) -> None:
        self.nodes, self.pods = nodes, pods

    def list(self, kind: Kind, labels: str = "") -> list[Tree]:
        return self.nodes if kind == NODES else self.pods


def answer(nodes: list[Tree], pods: list[Tree], cpu: str, load: LoadPart = NONE) -> bool | None:
    wanted = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": "256Mi"}}
    try:
        said = fit(Listed(nodes, pods), NAMES, wanted, load, "pg-walproof")  # type: ignore[arg-type]
    except NotObtained:
        return False
    assert ("is not known" in said) != ("each instance where it is now" in said)
    return None if "is not known" in said else True


ONE = [pod(name, "a") for name in NAMES]
EACH = [pod(name, where) for name, where in zip(NAMES, "abc", strict=True)]
SYSTEM = pod("etcd", "a", "950m", "kube-system")
OURS, OTHERS, THEIRS = (
    {**made, "metadata": {**made["metadata"], "labels": {"app.kubernetes.io/name": "walproof-load", "job-name": job}}}
    for made, job in (
        (pod("load", "a", "950m"), "pg-walproof"),
        (pod("load", "a", "950m"), "pg2-walproof"),
        (pod("load", "a", "950m", "tenant"), "pg-walproof"),
    )
)


@each([
        ([node("a")], ONE, "0.6", NONE, True),
        ([node("a")], [*ONE, SYSTEM], "350m", NONE, True),
        ([node("a")], [*ONE, SYSTEM], "351m", NONE, False),
        ([node("a")], [*ONE, SYSTEM], "350m", LOAD, False),
        ([node("a")], [*ONE, OURS], "0.5", LOAD, True),
        ([node("a")], [*ONE, OTHERS], "0.5", LOAD, False),
        ([node("a")], [*ONE, THEIRS], "0.5", LOAD, False),
        ([node("a")], [*ONE, {**SYSTEM, "status": {"phase": "Succeeded"}}], "0.6", NONE, True),
        ([node("a"), node("b")], ONE, "0.8", NONE, None),
        ([node("a"), node("b", spec={"taints": [{"key": "x", "effect": "NoSchedule"}]})], ONE, "0.8", NONE, False),
        ([node("a"), node("b", spec={"unschedulable": True})], ONE, "0.8", NONE, False),
        ([node("a"), node("b", ready=False)], ONE, "0.8", NONE, False),
        ([node(name) for name in "abc"], EACH, "2", NONE, True),
        ([node(name) for name in "abc"], EACH, "2.1", NONE, False),
        ([node(name) for name in "abc"], EACH, "1.8", LOAD, None),
        ([*(node(name) for name in "abc"), node("d", role="load")], EACH, "1.5", LOAD, True),
        ([node("a"), node("b"), node("c", spec={"unschedulable": True})], EACH, "1", NONE, None),
        ([node("a")], [ONE[0], ONE[1], pod("pg-3", "")], "0.1", NONE, None),
    ])  # fmt: skip
def test_sizes_fit_do_not_or_it_is_not_known(
    nodes: list[Tree], pods: list[Tree], cpu: str, load: LoadPart, fits: bool | None
) -> None:
    assert answer(nodes, pods, cpu, load) is fits


def test_taints_and_selectors_are_the_pods_own() -> None:
    tainted = node("b", spec={"taints": [{"key": "db", "value": "yes", "effect": "NoSchedule"}]}, tier="db")
    tolerating: Tree = {"tolerations": [{"key": "db", "value": "yes"}], "nodeSelector": {"tier": "db"}}
    pods = [pod(name, "b", **tolerating) for name in NAMES]
    assert answer([node("a"), tainted], pods, "0.6") is True
    assert answer([node("a"), tainted], pods, "0.7") is False
    assert answer([node("a"), tainted], pods, "0.5", LOAD) is True


@each([
    ({"containers": [{"resources": {"limits": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "500m"}}}]}, 1.5),
    ({"initContainers": [{"resources": {"requests": {"cpu": "3"}}}], "containers": [{}]}, 3),
    ({"initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
     {"resources": {"requests": {"cpu": "3"}}}], "containers": [{"resources": {"requests": {"cpu": "2"}}}]}, 4),
    ({"containers": [{"resources": {"requests": {"cpu": "2"}}}], "overhead": {"cpu": "250m"}}, 2.25),
])  # fmt: skip
def test_a_pod_requests_what_the_scheduler_counts(spec: Mapping[str, Any], cores: float) -> None:
    assert amount_of(read(Pod, {"metadata": {"name": "p"}, "spec": dict(spec)})).cores == cores


def test_what_may_not_be_read_or_is_no_quantity_is_not_known() -> None:
    class Refusing(Listed):
        def list(self, kind: Kind, labels: str = "") -> list[Tree]:
            raise ApiError("this user may not list nodes (403)", "add to the rules", code=403)

    unknown = fit(Refusing([], []), NAMES, {}, NONE, "pg-walproof")  # type: ignore[arg-type]
    assert "is not known" in unknown and "may not list nodes" in unknown
    assert answer([node("a", cpu="many")], ONE, "1") is None


@each(["Infinity", "NaN", "1e999999999", "1e999999999Ei", "-1", "", "0x10"])
def test_a_server_that_answers_odd_quantities_is_believed_at_most(cpu: str) -> None:
    assert answer([node("a", cpu=cpu)], ONE, "1") in (None, True, False)
    assert answer([node("a")], [*ONE, pod("x", "a", cpu)], "1") in (None, True, False)


@given(st.lists(st.integers(1, 30), min_size=3, max_size=3), st.integers(1, 25), st.integers(0, 10))
def test_what_is_said_to_fit_can_be_placed_in_the_operators_order(able: list[int], tenths: int, other: int) -> None:
    """One after another, each where it is, load pods first and as badly as can be; what is not said is not checked."""
    nodes = [node(name, f"{cpu}00m") for name, cpu in zip("abc", able, strict=True)]
    pods = [*EACH, pod("other", "a", f"{other}00m", "kube-system")]
    fits = answer(nodes, pods, f"{tenths}00m", LOAD)
    worst = [cpu - (other if name == "a" else 0) - 5 for name, cpu in zip("abc", able, strict=True)]
    if fits:
        assert all(left >= tenths for left in worst)
    if fits is False:
        free = [max(0, cpu - (other if name == "a" else 0)) for name, cpu in zip("abc", able, strict=True)]
        assert sum(left // tenths for left in free) < 3 or sum(free) < 3 * tenths + 5
