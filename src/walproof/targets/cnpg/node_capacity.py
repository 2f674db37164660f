"""Whether instances of another size, and the load pods, fit on the nodes: allocatable less what pods there request.

Never guessed: known to fit, known not to, or not known. Reads nodes and the pods of all namespaces, changes nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any

from walproof.errors import TargetError
from walproof.model.units import counted
from walproof.targets.cnpg.kubernetes_api import ApiError, Kind, KubernetesApi
from walproof.targets.cnpg.objects import Condition, Metadata, PodStatus, Read, read
from walproof.targets.cnpg.target_file import LoadPart

NODES = Kind("", "v1", "nodes", namespaced=False)
EVERY_POD = Kind("", "v1", "pods", namespaced=False)
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGTPE", 1)}
LOAD_LABEL = ("app.kubernetes.io/name", "walproof-load")
"""Of load pods: they are counted as asked, not as they stand there."""


def quantity(text: object) -> Decimal:
    """Kubernetes' quantity as a number, exactly; ArithmeticError for what is none.

    >>> quantity("700m") == quantity("0.7"), quantity("2048Mi") == quantity("2Gi"), quantity("1e3")
    (True, True, Decimal('1E+3'))
    """
    words = str(text)
    if words[-2:] in _BINARY:
        return Decimal(words[:-2]) * _BINARY[words[-2:]]
    if words[-1:] in _POWERS:
        return Decimal(words[:-1]).scaleb(_POWERS[words[-1]])
    return Decimal(words)


@dataclass(frozen=True, slots=True)
class Amount:
    """Processors in cores and memory in bytes."""

    cores: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cores + other.cores, self.memory + other.memory)

    def times(self, number: int) -> "Amount":
        """So many of it; negative to take away."""
        return Amount(self.cores * number, self.memory * number)

    def larger(self, other: "Amount") -> "Amount":
        """The larger of each."""
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


class Toleration(Read):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether it lets a pod onto a node with that taint."""
        named = self.key in ("", taint.key) and (self.operator == "Exists" or self.value == taint.value)
        return named and self.effect in ("", taint.effect)


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
        taints = [t for t in self.spec.taints if t.effect != "PreferNoSchedule"]
        tolerated = all(any(one.covers(taint) for one in tolerations) for taint in taints)
        return ready and not self.spec.unschedulable and tolerated and selector.items() <= self.metadata.labels.items()


class Requesting(Read):
    """A container, or one that runs before them or beside them (Always)."""

    name: str = ""
    restart_policy: str = ""
    resources: dict[str, Any] = {}


class PlacedSpec(Read):
    node_name: str = ""
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    containers: list[Requesting] = []
    init_containers: list[Requesting] = []
    overhead: dict[str, str] = {}


class Placed(Read):
    """Any pod, as the scheduler counts it."""

    metadata: Metadata
    spec: PlacedSpec = PlacedSpec()
    status: PodStatus = PodStatus()

    @property
    def amount(self) -> Amount:
        """Kubernetes' component-helpers/resource/helpers.go, PodRequests: all containers, or a larger first step."""
        beside, first = Amount(), Amount()
        for one in self.spec.init_containers:
            first = first.larger(beside + requested(one.resources))
            beside += requested(one.resources) if one.restart_policy == "Always" else Amount()
        return _sum([beside, *(requested(c.resources) for c in self.spec.containers)]).larger(first) + requested(
            {"requests": self.spec.overhead}
        )

    def resized(self, wanted: Mapping[str, Any]) -> Amount:
        """What it requests once PostgreSQL's container has these resources."""
        present = _sum(requested(c.resources) for c in self.spec.containers if c.name == "postgres")
        return self.amount + present.times(-1) + requested(wanted)


def _sum(amounts: Iterable[Amount]) -> Amount:
    return reduce(Amount.__add__, amounts, Amount())


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether they fit, None where that is not known; and a sentence."""

    answer: bool | None
    text: str


def fit(api: KubernetesApi, instances: Sequence[str], wanted: Mapping[str, Any], load: LoadPart) -> Fit:
    """Whether these instances with the wanted resources, and the load pods, fit on the nodes as they are now."""
    unknown = "whether the sizes fit on the nodes is not known"
    try:
        nodes = [read(Node, tree) for tree in api.list(NODES)]
        pods = [read(Placed, tree) for tree in api.list(EVERY_POD)]
        return _judged(nodes, pods, {(api.namespace, name) for name in instances}, wanted, load)
    except TargetError as wrong:
        refused = isinstance(wrong, ApiError) and wrong.code == 403
        given = "walproof target cnpg --print-rbac --for scale prints the ClusterRole" if refused else wrong.hint
        return Fit(None, f"{unknown}: {wrong.message}; {given}")
    except ArithmeticError:
        return Fit(None, f"{unknown}: a pod's or a node's resources are no quantities")


def _judged(
    nodes: Sequence[Node],
    pods: Sequence[Placed],
    ours: set[tuple[str, str]],
    wanted: Mapping[str, Any],
    load: LoadPart,
) -> Fit:
    """Pure. Known to fit: each where it is now, wherever the load pods go. Known not to: not in any arrangement."""
    placed = [p for p in pods if p.spec.node_name and p.status.phase not in ("Succeeded", "Failed")]
    own = [p for p in placed if (p.metadata.namespace, p.metadata.name) in ours]
    free = {n.metadata.name: _allocatable(n) for n in nodes}
    where = [p.spec.node_name for p in own]
    needed = {node: _sum(p.resized(wanted) for p in own if p.spec.node_name == node) for node in where}
    for pod in placed:
        if pod not in own and LOAD_LABEL not in pod.metadata.labels.items() and pod.spec.node_name in free:
            free[pod.spec.node_name] += pod.amount.times(-1)
    each = requested({"requests": load.requests, "limits": load.limits}) if load.image else Amount()
    loads = load.pods if load.image else 0
    what = f"{len(ours)} instances with {requested(wanted).text} each" + (
        f" and {counted(loads, 'load pod')} with {each.text} each" if loads else ""
    )
    if len(own) < len(ours):
        return Fit(None, f"whether {what} fit on the nodes is not known: an instance is on no node now")
    open_to = {n.metadata.name for n in nodes if n.takes(own[0].spec.tolerations, own[0].spec.node_selector)}
    to_load = {n.metadata.name for n in nodes if n.takes((), load.node_selector)} if loads else set()
    left = "; ".join(f"{name} has {free[name].text}" for name in sorted(open_to | to_load)) or "no node takes a pod"
    sizes = [p.resized(wanted) for p in own]
    least = Amount(min(one.cores for one in sizes), min(one.memory for one in sizes))
    slots = sum(free[name].holds(least, len(own)) for name in open_to)
    room = _sum(free[name].larger(Amount()) for name in open_to | to_load)
    if slots < len(own) or not room.holds(_sum([*needed.values(), each.times(loads)]), 1):
        return Fit(False, f"{what} do not fit on the nodes: beside what other pods request, {left}")
    after = {name: amount + needed.get(name, Amount()).times(-1) for name, amount in free.items()}
    stay = all(name in open_to and after[name].holds(each.times(loads), 1) for name in needed)
    if stay and sum(after[name].holds(each, loads) for name in to_load) >= loads:
        return Fit(True, f"{what} fit on the nodes, each instance where it is now: beside other pods' requests, {left}")
    return Fit(None, f"whether {what} fit on the nodes is not known: some would have to move; {left}")


def _allocatable(node: Node) -> Amount:
    return requested({"requests": node.status.allocatable})
