"""Objects that walproof creates: name, labels, owner; Chaos Mesh's experiments; what killed runs left, and its removal.

An experiment ends by itself after LONGEST_S. Names of secrets and Jobs are known beforehand, so that a Role can name
them: there is one run at a time on a Cluster."""

import base64
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from walproof.machine.pid_files import identity
from walproof.model.drill import Capability
from walproof.targets.cnpg.kubernetes_api import JOBS, SECRETS, ApiError, Kind, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Cluster, Metadata, Object, read

LABELS = {"app.kubernetes.io/managed-by": "walproof"}
OURS = "app.kubernetes.io/managed-by=walproof"
MADE_BY = "walproof/made-by"
"""The annotation that names the machine, the process, when it started, and the machine's boot."""
RUN = "walproof/run"
"""The label that tells this run's object from one of another run under the same name."""


def load_name(cluster: str) -> str:
    """Of the load's Job and secret; with -999, the last pod's index, at most 63 letters for a Cluster's 50.

    >>> load_name("pg")
    'pg-walproof'
    """
    return f"{cluster}-walproof"


def role_name(cluster: str) -> str:
    """Of the secret of walproof's own role.

    >>> role_name("pg")
    'pg-walproof-role'
    """
    return f"{cluster}-walproof-role"


def maker() -> str:
    """This process, so that it is known again."""
    return f"{socket.gethostname()} {identity(os.getpid())}"


def ended(maker: str) -> bool | None:
    """Whether that process has ended; None where only another machine can tell.

    >>> ended("elsewhere 1 2 3") is None
    True
    """
    host, _, process = maker.partition(" ")
    if host != socket.gethostname():
        return None
    pid = process.partition(" ")[0]
    return not pid.isdigit() or identity(int(pid)) != process


def metadata(name: str, cluster: Tree, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of an object of that name: our label and others, owned by the Cluster."""
    meta = cluster["metadata"]
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": meta["name"], "uid": meta["uid"]}
    labels = {**LABELS, **(more or {})}
    return {"name": name, "labels": labels, "annotations": {MADE_BY: maker()}, "ownerReferences": [owner]}


def secret(meta: Mapping[str, Any], kind: str, values: Mapping[str, str]) -> Tree:
    """A secret with these values."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": dict(meta), "type": kind, "data": data}


def create(api: KubernetesApi, kind: Kind, tree: Tree, over: Callable[[Metadata], bool] | None = None) -> None:
    """Make it; ApiError where another's object has its name. One of ours whose run is `over` is replaced."""
    name = tree["metadata"]["name"]
    try:
        api.create(kind, tree)
        return
    except ApiError as wrong:
        if wrong.code != 409:
            raise
    there = read(Object, api.get(kind, name)).metadata
    one = f"{kind.plural[:-1]} {name}"
    if not LABELS.items() <= there.labels.items():
        raise ApiError(f"the {one} is there and not walproof's, so it is left alone", "rename it", code=409)
    if over is None or not over(there):
        host = there.annotations.get(MADE_BY, "").partition(" ")[0] or "an unknown machine"
        raise ApiError(
            f"another run of walproof is at work on this cluster, or was killed: its {one} was made on {host}",
            f"wait for its end; where it was killed: walproof revert, or kubectl delete {one}",
            code=409,
        )
    api.delete(kind, name)
    api.create(kind, tree)


def remove(api: KubernetesApi, kind: Kind, name: str, run: str) -> None:
    """Delete it where it is that run's of walproof; another run may have made one of that name since."""
    try:
        there = read(Object, api.get(kind, name)).metadata
    except ApiError as wrong:
        if wrong.code != 404:
            raise
        return
    if LABELS.items() <= there.labels.items() and there.labels.get(RUN) == run:
        api.delete(kind, name)


NETWORK, IO, STRESS = (
    Kind("chaos-mesh.org", "v1alpha1", plural) for plural in ("networkchaos", "iochaos", "stresschaos")
)
EXPERIMENTS = (NETWORK, IO, STRESS)
_NAMES = {NETWORK.plural: "NetworkChaos", IO.plural: "IOChaos", STRESS.plural: "StressChaos"}
LONGEST_S = 900
"""A drill waits at most 90 s for commits and holds its fault for half a minute; patience may double that."""
_ALL_ADDRESSES = ("0.0.0.0/1", "128.0.0.0/1")
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
    """The member loses every peer, clients and the kubelet's probes too (IPv4)."""
    spec = _cut(namespace, member, "both") | {"externalTargets": list(_ALL_ADDRESSES)}
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
        "metadata": metadata(experiment.name, owner, {"cnpg.io/cluster": meta.name}),
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
    experiments = []
    for path in _VOLUMES if wal_volume else _VOLUMES[:1]:
        spec = {
            **_pods(namespace, [member]),
            "volumePath": path,
            "containerNames": ["postgres"],
            "percent": 100,
            **harm,
        }
        experiments.append(Experiment(IO, f"{_name(fault, member)}-{path.rpartition('/')[2]}", spec))
    return tuple(experiments)


@dataclass(frozen=True, slots=True)
class Left:
    """One object of walproof's that belongs to a Cluster."""

    kind: Kind
    meta: Metadata

    @property
    def ended(self) -> bool | None:
        """Whether the walproof that made it has ended; None where that was on another machine."""
        return ended(self.meta.annotations.get(MADE_BY, ""))


def left_behind(api: KubernetesApi, cluster: str) -> tuple[Left, ...]:
    """Everything of ours that the Cluster owns, of any run; what cannot be read or listed is left out."""
    load, role = load_name(cluster), role_name(cluster)
    asked: list[tuple[Kind, Callable[[], Sequence[Tree]]]] = [
        *((kind, partial(_named, api, kind, name)) for kind, name in ((JOBS, load), (SECRETS, load), (SECRETS, role))),
        *((kind, partial(api.list, kind, OURS)) for kind in EXPERIMENTS),
    ]
    owned: list[Left] = []
    for kind, ask in asked:
        try:
            objects = [read(Object, tree).metadata for tree in ask()]
        except ApiError as wrong:
            if wrong.code not in (403, 404):
                raise
            continue
        ours = [one for one in objects if LABELS.items() <= one.labels.items()]
        owned += [Left(kind, one) for one in ours if cluster in [owner.name for owner in one.owner_references]]
    return tuple(owned)


def _named(api: KubernetesApi, kind: Kind, name: str) -> Sequence[Tree]:
    return [api.get(kind, name)]


def swept(api: KubernetesApi, cluster: str) -> list[str]:
    """Delete what no running walproof owns; sentences about what another machine's walproof may still own."""
    sentences = []
    for left in left_behind(api, cluster):
        if left.ended:
            api.delete(left.kind, left.meta.name)
        elif left.ended is None:
            where = left.meta.annotations.get(MADE_BY, "").split(" ")[0] or "an unknown machine"
            what = f"{left.kind.plural[:-1]} {left.meta.name}"
            sentences.append(f"{what} was made by walproof on {where}, where it may still run: left alone")
    return sentences
