"""The experiments of Chaos Mesh that the faults of an instance need, as objects to create. Pure.

Each carries our labels, belongs to the Cluster and ends by itself after LONGEST_S: a killed run leaves no fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walproof.model.ports import Capability
from walproof.targets.cnpg import owned
from walproof.targets.cnpg.api import Kind, Tree
from walproof.targets.cnpg.objects import Cluster

NETWORK, IO, STRESS = (
    Kind("chaos-mesh.org", "v1alpha1", plural) for plural in ("networkchaos", "iochaos", "stresschaos")
)
EXPERIMENTS = (NETWORK, IO, STRESS)
_NAMES = {NETWORK.plural: "NetworkChaos", IO.plural: "IOChaos", STRESS.plural: "StressChaos"}
LONGEST_S = 900
"""A drill waits at most 90 s for commits and holds its fault for half a minute; patience may double that."""
_EVERYBODY = ("0.0.0.0/1", "128.0.0.0/1")
"""In two halves: an ipset takes no network of all addresses."""
_API_SERVER = "kubernetes.default.svc"
_VOLUMES = ("/var/lib/postgresql/data", "/var/lib/postgresql/wal")
"""Where CloudNativePG mounts an instance's volume, and the one of its WAL where it has one."""
_EIO, _ENOSPC = 5, 28
_DELAY = "50ms"
_WORKERS = 8
"""Processes that compute, within the container's own limit of processors."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One object of Chaos Mesh, not created yet."""

    kind: Kind
    name: str
    spec: Tree


def partition(namespace: str, member: str, others: Sequence[str]) -> Experiment:
    """The member loses the other instances and the API server, in both directions; clients still reach it."""
    spec = _cut(namespace, member, "both") | {"target": _pods(namespace, others), "externalTargets": [_API_SERVER]}
    return Experiment(NETWORK, _name(Capability.PARTITION, member), spec)


def isolate(namespace: str, member: str) -> Experiment:
    """The member loses everybody, clients and the kubelet's probes too (IPv4)."""
    spec = _cut(namespace, member, "both") | {"externalTargets": list(_EVERYBODY)}
    return Experiment(NETWORK, _name(Capability.ISOLATE, member), spec)


def one_way(namespace: str, source: str, destination: str) -> Experiment:
    """What one instance sends to the other is dropped."""
    spec = _cut(namespace, source, "to") | {"target": _pods(namespace, [destination])}
    return Experiment(NETWORK, f"{_name(Capability.PARTITION_ONE_WAY, source)}-{destination}", spec)


def delayed(namespace: str, member: str, others: Sequence[str]) -> Experiment:
    """What the member sends to the other instances takes 50 ms longer."""
    spec = {
        "action": "delay",
        **_pods(namespace, [member]),
        "direction": "to",
        "target": _pods(namespace, others),
        "delay": {"latency": _DELAY, "jitter": "0ms", "correlation": "0"},
    }
    return Experiment(NETWORK, _name(Capability.LINK_DELAY, member), spec)


def slow_disk(namespace: str, member: str, delay_s: float, *, wal_volume: bool) -> tuple[Experiment, ...]:
    """Each flush takes `delay_s` seconds longer."""
    harm = {"action": "latency", "delay": f"{1000 * delay_s:g}ms", "methods": ["fsync"]}
    return _disks(Capability.SLOW_DISK, namespace, member, harm, wal_volume=wal_volume)


def failing_disk(namespace: str, member: str, *, wal_volume: bool) -> tuple[Experiment, ...]:
    """Each flush fails with EIO."""
    harm = {"action": "fault", "errno": _EIO, "methods": ["fsync"]}
    return _disks(Capability.FAILING_DISK, namespace, member, harm, wal_volume=wal_volume)


def full_disk(namespace: str, member: str, *, wal_volume: bool) -> tuple[Experiment, ...]:
    """Each write fails with ENOSPC."""
    harm = {"action": "fault", "errno": _ENOSPC, "methods": ["write"]}
    return _disks(Capability.FULL_DISK, namespace, member, harm, wal_volume=wal_volume)


def busy_processors(namespace: str, member: str) -> Experiment:
    """Processes that compute next to PostgreSQL, within the container's limit."""
    spec = {**_pods(namespace, [member]), "stressors": {"cpu": {"workers": _WORKERS, "load": 100}}}
    return Experiment(STRESS, _name(Capability.CPU_STRESS, member), spec)


def tree_of(experiment: Experiment, cluster: Cluster) -> Tree:
    """The object to create."""
    meta = cluster.metadata
    owner = {"metadata": {"name": meta.name, "uid": meta.uid}}
    return {
        "apiVersion": f"{experiment.kind.group}/{experiment.kind.version}",
        "kind": _NAMES[experiment.kind.plural],
        "metadata": owned.metadata(experiment.name, owner, {"cnpg.io/cluster": meta.name}),
        "spec": {**experiment.spec, "duration": f"{LONGEST_S}s"},
    }


def fault_of(name: str) -> Capability:
    """The fault that an experiment of this name is part of.

    >>> fault_of("pg-1-walproof-partition-one-way-pg-2"), fault_of("pg-1-walproof-slow-disk-data")
    (<Capability.PARTITION_ONE_WAY: 'partition-one-way'>, <Capability.SLOW_DISK: 'slow-disk'>)
    """
    fits = [fault for fault in Capability if f"{name.rpartition('-walproof-')[2]}-".startswith(f"{fault}-")]
    return max(fits, key=len)


def _name(fault: Capability, member: str) -> str:
    return f"{member}-walproof-{fault}"


def _pods(namespace: str, members: Sequence[str]) -> dict[str, Any]:
    return {"mode": "all", "selector": {"namespaces": [namespace], "pods": {namespace: list(members)}}}


def _cut(namespace: str, member: str, direction: str) -> Tree:
    return {"action": "partition", **_pods(namespace, [member]), "direction": direction}


def _disks(fault: Capability, namespace: str, member: str, harm: Tree, *, wal_volume: bool) -> tuple[Experiment, ...]:
    """One experiment for each volume."""
    found = []
    for path in _VOLUMES if wal_volume else _VOLUMES[:1]:
        spec = {
            **_pods(namespace, [member]),
            "volumePath": path,
            "containerNames": ["postgres"],
            "percent": 100,
            **harm,
        }
        found.append(Experiment(IO, f"{_name(fault, member)}-{path.rpartition('/')[2]}", spec))
    return tuple(found)
