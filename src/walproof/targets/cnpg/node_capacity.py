"""Whether instances of another size, and the load pods, fit on the nodes: allocatable less what pods there request.

Never guessed: known to fit, known not to, or not known. Reads nodes and the pods of all namespaces, changes nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

from walproof.errors import NotObtained, TargetError
from walproof.model.units import counted, quantity
from walproof.targets.cnpg.kubernetes_api import ApiError, Kind, KubernetesApi
from walproof.targets.cnpg.objects import Condition, Metadata, Pod, Read, Toleration, read
from walproof.targets.cnpg.target_file import LoadPart

NODES = Kind("", "v1", "nodes", namespaced=False)
EVERY_POD = Kind("", "v1", "pods", namespaced=False)


@dataclass(frozen=True, slots=True)
class Amount:
    """Processors in cores and memory in bytes."""

    cores: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cores + other.cores, self.memory + other.memory)

    def __sub__(self, other: "Amount") -> "Amount":
        return self + other.times(-1)

    def times(self, number: int) -> "Amount":
        return Amount(self.cores * number, self.memory * number)

    def larger(self, other: "Amount") -> "Amount":
        return Amount(max(self.cores, other.cores), max(self.memory, other.memory))

    def holds(self, each: "Amount", most: int) -> int:
        """How many of `each` it holds, at most so many."""
        # By trying, as a server may answer 1e999999.
        fitting = (n for n in range(most, 0, -1) if each.cores * n <= self.cores and each.memory * n <= self.memory)
        return next(fitting, 0)

    @property
    def text(self) -> str:
        """
        >>> Amount(Decimal("0.50"), Decimal(2**28)).text
        '0.5 cpu and 256 MiB'
        """
        return f"{float(self.cores):.4g} cpu and {float(self.memory) / 2**20:.0f} MiB"


def requested(resources: Mapping[str, Any]) -> Amount:
    """What a container requests: its limits where it names none; ArithmeticError."""
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Amount(quantity(given.get("cpu", 0)), quantity(given.get("memory", 0)))


class Taint(Read):
    key: str
    value: str = ""
    effect: str = ""

    def keeps_off(self, tolerations: Sequence[Toleration]) -> bool:
        """Whether it keeps a new pod with these tolerations off its node."""
        tolerating = (t for t in tolerations if t.key in ("", self.key) and t.effect in ("", self.effect))
        tolerated = any(t.operator == "Exists" or t.value == self.value for t in tolerating)
        return self.effect != "PreferNoSchedule" and not tolerated


class NodeSpec(Read):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Read):
    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []


class Node(Read):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    def takes(self, tolerations: Sequence[Toleration], selector: Mapping[str, str]) -> bool:
        """Whether the scheduler may put a new pod here, as far as taints and the node selector say."""
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
        kept_off = self.spec.unschedulable or any(taint.keeps_off(tolerations) for taint in self.spec.taints)
        return ready and not kept_off and selector.items() <= self.metadata.labels.items()


def amount_of(pod: Pod) -> Amount:
    """What a pod requests (Kubernetes' component-helpers/resource/helpers.go, PodRequests): all containers, or a
    larger first step; ArithmeticError."""
    beside, first = Amount(), Amount()
    for one in pod.spec.init_containers:
        first = first.larger(beside + requested(one.resources))
        if one.restart_policy == "Always":
            beside += requested(one.resources)
    together = _sum([beside, *(requested(c.resources) for c in pod.spec.containers)])
    return together.larger(first) + requested({"requests": pod.spec.overhead})


def _resized(pod: Pod, wanted: Mapping[str, Any]) -> Amount:
    """What it requests once PostgreSQL's container has these resources."""
    present = _sum(requested(c.resources) for c in pod.spec.containers if c.name == "postgres")
    return amount_of(pod) - present + requested(wanted)


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.__add__, amounts, Amount())


def fit(api: KubernetesApi, instances: Collection[str], wanted: Mapping[str, Any], load: LoadPart, job: str) -> str:
    """Whether these instances with the wanted resources, and the load pods of that Job, fit on the nodes as they are.

    A sentence: they do, or that is not known. NotObtained where they are known not to. The Job's pods are counted as
    asked, not as they stand there.
    """
    unknown = "whether the sizes fit on the nodes is not known"
    try:
        nodes = [read(Node, tree) for tree in api.list(NODES)]
        placed = [pod for pod in (read(Pod, tree) for tree in api.list(EVERY_POD)) if pod.spec.node_name]
        running = [pod for pod in placed if pod.status.phase not in ("Succeeded", "Failed")]
        here = [p for p in running if p.metadata.namespace == api.namespace]
        own = [p for p in here if p.metadata.name in instances]
        loading = [p for p in here if p.metadata.labels.get("job-name") == job]
        others = [p for p in running if p not in own and p not in loading]
        what = f"{len(instances)} instances with {requested(wanted).text} each"
        if not own or len(own) < len(instances):
            return f"whether {what} fit on the nodes is not known: an instance is on no node now"
        return _judged(nodes, others, [(pod, _resized(pod, wanted)) for pod in own], load, what)
    except NotObtained:
        raise
    except TargetError as wrong:
        refused = isinstance(wrong, ApiError) and wrong.code == 403
        given = "walproof target cnpg --print-rbac --for scale prints the ClusterRole" if refused else wrong.hint
        return f"{unknown}: {wrong.message}; {given}"
    except ArithmeticError:
        return f"{unknown}: a pod's or a node's resources are no quantities"


def _judged(
    nodes: Sequence[Node], others: Sequence[Pod], own: Sequence[tuple[Pod, Amount]], load: LoadPart, what: str
) -> str:
    """Pure. Known to fit: each where it is now, wherever the load pods go. Known not to: not in any arrangement."""
    free = {n.metadata.name: requested({"requests": n.status.allocatable}) for n in nodes}
    for pod in others:
        if pod.spec.node_name in free:
            free[pod.spec.node_name] -= amount_of(pod)
    loads, each = load.pods if load.image else 0, requested({"requests": load.requests, "limits": load.limits})
    what += f" and {counted(loads, 'load pod')} with {each.text} each" if loads else ""
    first, _ = own[0]
    open_to = {n.metadata.name for n in nodes if n.takes(first.spec.tolerations, first.spec.node_selector)}
    to_load = {n.metadata.name for n in nodes if loads and n.takes((), load.node_selector)}
    left = "; ".join(f"{name} has {free[name].text}" for name in sorted(open_to | to_load)) or "no node takes a pod"
    sizes = [size for _, size in own]
    least = Amount(min(one.cores for one in sizes), min(one.memory for one in sizes))
    slots = sum(free[name].holds(least, len(own)) for name in open_to)
    room = _sum(free[name].larger(Amount()) for name in open_to | to_load)
    if slots < len(own) or not room.holds(_sum([*sizes, each.times(loads)]), 1):
        raise NotObtained(
            f"{what} do not fit on the nodes: beside what other pods request, {left}",
            "ask for smaller --cpu, --memory or fewer --load-pods",
        )
    if all(pod.spec.node_name in open_to for pod, _ in own):
        for pod, size in own:
            free[pod.spec.node_name] -= size
        stay = all(free[pod.spec.node_name].holds(each.times(loads), 1) for pod, _ in own)
        if stay and sum(free[name].holds(each, loads) for name in to_load) >= loads:
            return f"{what} fit on the nodes, each instance where it is now: beside other pods' requests, {left}"
    return f"whether {what} fit on the nodes is not known: some would have to move; {left}"
