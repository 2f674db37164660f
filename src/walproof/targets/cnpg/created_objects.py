"""Objects that walproof creates: name, labels, owner; Chaos Mesh's experiments; what killed runs left, and its removal.

An experiment ends by itself after LONGEST_S. Names of secrets and Jobs are known beforehand, so that a Role can name
them: there is one run at a time on a Cluster."""

import base64
import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from walproof.machine.clock import now
from walproof.machine.pid_files import ended, is_this, name_of_machine, this_process
from walproof.machine.quoting import Pasted, pasted
from walproof.machine.untrusted import one_line
from walproof.model.drill import Capability
from walproof.model.ports import SILENT, Reverting
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, JOBS, SECRETS, ApiError, Kind, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Cluster, Metadata, Object, read

LABELS = {"app.kubernetes.io/managed-by": "walproof"}
OURS = "app.kubernetes.io/managed-by=walproof"
MADE_BY = "walproof/made-by"
"""The annotation that names the machine, the process, when it started, and the machine's boot."""
MARK = "made by walproof; safe to drop"
"""The comment on a role, before its maker."""
ROLES = Kind("postgresql.cnpg.io", "v1", "managed roles")
"""Entries of spec.managed.roles."""
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


def metadata(name: str, cluster: Tree, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of an object of that name: our label and others, owned by the Cluster."""
    meta = cluster["metadata"]
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": meta["name"], "uid": meta["uid"]}
    labels = {**LABELS, **(more or {})}
    return {"name": name, "labels": labels, "annotations": {MADE_BY: this_process()}, "ownerReferences": [owner]}


def secret(meta: Mapping[str, Any], kind: str, values: Mapping[str, str]) -> Tree:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": dict(meta), "type": kind, "data": data}


def create(api: KubernetesApi, kind: Kind, tree: Tree) -> str:
    """Make it; its uid. ApiError where another's object has its name, with what is known of that run if it is ours."""
    try:
        return read(Object, api.create(kind, tree)).metadata.uid
    except ApiError as wrong:
        there = find(api, kind, tree["metadata"]["name"]) if wrong.code == 409 else None
        raise wrong if there is None else there.refusal(api.namespace) from None


def find(api: KubernetesApi, kind: Kind, name: str) -> "Left | None":
    """The object of that name, ours or not."""
    try:
        return Left(kind, read(Object, api.get(kind, name)).metadata)
    except ApiError as wrong:
        if wrong.code != 404:
            raise
        return None


def remove(api: KubernetesApi, kind: Kind, name: str, run: str, reverting: Reverting = SILENT) -> None:
    """Delete it where it is that run's of walproof; another run may have made one of that name since."""
    there = find(api, kind, name)
    if there is not None and there.ours and there.meta.labels.get(RUN) == run:
        api.delete(kind, name, uid=there.meta.uid)
        reverting.tell(there.kind_name, name)


NETWORK, IO, STRESS = (
    Kind("chaos-mesh.org", "v1alpha1", plural) for plural in ("networkchaos", "iochaos", "stresschaos")
)
EXPERIMENTS = (NETWORK, IO, STRESS)
SINGULAR = {
    NETWORK.plural: "NetworkChaos",
    IO.plural: "IOChaos",
    STRESS.plural: "StressChaos",
    JOBS.plural: "job",
    SECRETS.plural: "secret",
    ROLES.plural: "role",
}
LONGEST_S = 900
"""A drill waits at most 90 s for commits and holds its fault for half a minute; patience may double that."""
_ALL_ADDRESSES = ("0.0.0.0/1", "128.0.0.0/1")
"""In two halves: an ipset takes no network of all addresses."""
_API_SERVER = "kubernetes.default.svc"
_VOLUMES = ("/var/lib/postgresql/data", "/var/lib/postgresql/wal")
"""Where CloudNativePG mounts an instance's volume, and the one of its WAL where it has one."""
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


def disk_fault(
    fault: Capability, namespace: str, member: str, *, wal_volume: bool, delay_s: float = 0.0
) -> tuple[Experiment, ...]:
    """Flushes that take longer or fail, or writes that find the disk full: an experiment for each volume."""
    harms: dict[Capability, Tree] = {
        Capability.SLOW_DISK: {"action": "latency", "delay": f"{1000 * delay_s:g}ms", "methods": ["fsync"]},
        Capability.FAILING_DISK: {"action": "fault", "errno": errno.EIO, "methods": ["fsync"]},
        Capability.FULL_DISK: {"action": "fault", "errno": errno.ENOSPC, "methods": ["write"]},
    }
    spec = {**_pods(namespace, [member]), "containerNames": ["postgres"], "percent": 100, **harms[fault]}
    paths = _VOLUMES if wal_volume else _VOLUMES[:1]
    names = {path: f"{_name(fault, member)}-{path.rpartition('/')[2]}" for path in paths}
    return tuple(Experiment(IO, name, {**spec, "volumePath": path}) for path, name in names.items())


def busy_processors(namespace: str, member: str) -> Experiment:
    """Processes that compute next to PostgreSQL, within the container's limit."""
    spec = {**_pods(namespace, [member]), "stressors": {"cpu": {"workers": _WORKERS, "load": 100}}}
    return Experiment(STRESS, _name(Capability.CPU_STRESS, member), spec)


def tree_of(experiment: Experiment, cluster: Cluster) -> Tree:
    meta = cluster.metadata
    owner = {"metadata": {"name": meta.name, "uid": meta.uid}}
    return {
        "apiVersion": f"{experiment.kind.group}/{experiment.kind.version}",
        "kind": SINGULAR[experiment.kind.plural],
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


@dataclass(frozen=True, slots=True)
class Left:
    """One object that belongs to a Cluster, or a role that it manages; walproof's own where it carries our label."""

    kind: Kind
    meta: Metadata

    @property
    def ours(self) -> bool:
        return LABELS.items() <= self.meta.labels.items()

    @property
    def maker(self) -> str:
        """The machine and the process that made it, "" where it does not say."""
        return self.meta.annotations.get(MADE_BY, "")

    def over(self, reverting: Reverting = SILENT) -> bool | None:
        """Whether the walproof that made it has ended; None where only another machine can tell."""
        return ended(self.maker, reverting.ended_on)

    @property
    def kind_name(self) -> str:
        """In the singular: job, secret, NetworkChaos."""
        return SINGULAR[self.kind.plural]

    @property
    def text(self) -> str:
        return f"{self.kind_name} {self.meta.name}"

    def by_hand(self, namespace: str) -> Pasted:
        if self.kind is ROLES:
            return pasted("take {name:yaml} out of spec.managed.roles", name=self.meta.name)
        one = f"{self.kind_name}/{self.meta.name}"
        return pasted("kubectl delete {one:shell} -n {namespace:shell}", namespace=namespace, one=one)

    def check_ours(self, namespace: str) -> None:
        """ApiError where another run made it, or a run that was killed."""
        if not is_this(self.maker):
            raise self.refusal(namespace)

    def refusal(self, namespace: str) -> ApiError:
        """The error of a run that finds it there: whose it is, how old, and what to do."""
        if not self.ours:
            return ApiError(f"the {self.text} is there and not walproof's, so it is left alone", "rename it", code=409)
        host = name_of_machine(self.maker)
        made, run, over = self.meta.creation_timestamp, one_line(self.meta.labels.get(RUN, ""), 63), self.over()
        old_s = now() - made.timestamp() if made else None
        age = "" if old_s is None else f" {old_s:.0f} s ago" if old_s < 120 else f" {old_s / 60:.0f} min ago"
        says = f"its {self.text}{f' ({RUN}={run})' if run else ''} was made{age} on {host or 'an unknown machine'}"
        state, hint = "is at work on", "wait for its end"
        if over is None:
            state = "is at work on, or was killed on,"
            again = self.by_hand(namespace)
            if host:
                by_option = "walproof revert --target cnpg:NAMESPACE/NAME --ended-on {host:shell}"
                again = pasted("walproof revert on {host:words}, or " + by_option, host=host)
            hint += f"; where it was killed: {again}"
        elif over:
            state, hint = "was killed on", "walproof revert removes what it left"
        else:
            says += f", process {self.maker.split()[1]}"
        return ApiError(f"another run of walproof {state} this cluster: {says}", hint, code=409)


def left_behind(api: KubernetesApi, cluster: str, unread: set[str] | None = None) -> tuple[Left, ...]:
    """Everything of ours that the Cluster owns, of any run; `unread` gets each kind that may not be read."""
    tree, load, role = api.get(CLUSTERS, cluster), load_name(cluster), role_name(cluster)
    asked: list[tuple[Kind, Callable[[], Iterable[Tree]]]] = [
        *(
            (kind, lambda of=(kind, name): [api.get(*of)])
            for kind, name in ((JOBS, load), (SECRETS, load), (SECRETS, role))
        ),
        *((kind, partial(api.list, kind, OURS)) for kind in EXPERIMENTS),
        (ROLES, lambda: map(_as_object, managed_roles(tree))),
    ]
    uid = read(Object, tree).metadata.uid
    owned: list[Left] = []
    for kind, ask in asked:
        try:
            objects = [Left(kind, read(Object, tree).metadata) for tree in ask()]
        except ApiError as wrong:
            if wrong.code not in (403, 404):
                raise
            if unread is not None and wrong.code == 403 and (kind not in EXPERIMENTS or api.serves(kind)):
                unread.add(kind.plural)
            continue
        ours = [one for one in objects if one.ours]
        owned += [o for o in ours if kind is ROLES or uid in [owner.uid for owner in o.meta.owner_references]]
    return tuple(owned)


def managed_roles(cluster: Tree) -> list[dict[str, Any]]:
    return list(((cluster["spec"].get("managed") or {}).get("roles")) or [])


def _as_object(role: Mapping[str, Any]) -> Tree:
    """With our label where it has our comment and such a name as walproof gives."""
    name, comment = str(role.get("name")), str(role.get("comment") or "")
    ours = comment.startswith(MARK) and re.fullmatch("walproof_[0-9a-f]{8}", name)
    made_by = comment.removeprefix(MARK).removeprefix(": ")
    return {"metadata": {"name": name, "labels": LABELS if ours else {}, "annotations": {MADE_BY: made_by}}}


def refuse_beside(api: KubernetesApi, cluster: str) -> None:
    """ApiError where another run is at work on the Cluster, or was killed and not reverted."""
    for left in left_behind(api, cluster):
        left.check_ours(api.namespace)


def swept(api: KubernetesApi, cluster: str, reverting: Reverting = SILENT) -> list[str]:
    """Delete what no running walproof owns; sentences about what another machine's walproof may still own."""
    sentences = []
    for left in left_behind(api, cluster):
        over, host = left.over(reverting), name_of_machine(left.maker)
        if over and left.kind is not ROLES:
            api.delete(left.kind, left.meta.name, uid=left.meta.uid)
            reverting.tell(left.kind_name, left.meta.name)
        elif over is None:
            sentences.append(
                f"{left.text} was made by walproof on {host or 'an unknown machine'}, where it may still run: left"
                f" alone ({'--ended-on' if host else left.by_hand(api.namespace)} where it has ended)"
            )
    return sentences
