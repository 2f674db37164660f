"""One observation of a Cluster's objects (Cluster, pods, lease, write service's endpoints), and the doctor's facts.

Reads only."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from walproof.machine.untrusted import from_json
from walproof.model.access_path import AccessPath, Pool, reads_by_name
from walproof.model.cnpg_facts import CnpgFacts, CnpgPlacement, CnpgPod, CnpgProbes, CnpgSync
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.targets.cnpg.kubernetes_api import (
    CLUSTERS,
    ENDPOINTSLICES,
    LEASES,
    PODS,
    POOLERS,
    SERVICES,
    ApiError,
    KubernetesApi,
    Tree,
)
from walproof.targets.cnpg.objects import Cluster, ClusterSpec, Lease, Pod, Probe, ServiceEndpoints, Spread, read
from walproof.targets.sql.observe import NOT_KNOWN, NOT_STREAMING

Answer = TypeVar("Answer")
FENCED = "cnpg.io/fencedInstances"
RECONCILIATION = "cnpg.io/reconciliationLoop"
"""`disabled` ends the operator's reconciliation at once (internal/controller/cluster_controller.go:313, v1.30.0)."""

TAKEN, GUARDED = "walproof/takeover", "walproof/guard"
"""The guard's own annotation: who announced the last takeover, of which pod (its uid), and, for a reader, when in
seconds since the epoch; and the one by which an owner says that a guard watches the Cluster."""


@dataclass(frozen=True, slots=True)
class State:
    """What Kubernetes says; the lease is None before 1.30 or where it may not be read, the endpoints likewise."""

    cluster: Cluster
    pods: Mapping[str, Pod]
    lease: Lease | None = None
    writable: tuple[str, ...] | None = None
    """Pods that the write service leads to now."""
    refusals: tuple[str, ...] = ()
    """What may not be read of the last two, and the rule that allows it."""

    @property
    def instances(self) -> tuple[str, ...]:
        """Names of the instances, with a pod now or not."""
        return tuple(dict.fromkeys((*self.cluster.status.instance_names, *self.pods)))

    @property
    def holder(self) -> str | None:
        """The holder of the primary's lease, "" for none."""
        return None if self.lease is None else self.lease.spec.holder_identity or ""


def instances_of(name: str) -> str:
    """The label selector of a cluster's instances.

    >>> instances_of("pg")
    'cnpg.io/cluster=pg,cnpg.io/podRole=instance'
    """
    return f"cnpg.io/cluster={name},cnpg.io/podRole=instance"


def pods_of(api: KubernetesApi, name: str) -> dict[str, Pod]:
    """The cluster's instances by their pod's name, in order."""
    return _pods_of(api, read(Cluster, api.get(CLUSTERS, name)))


def _pods_of(api: KubernetesApi, cluster: Cluster) -> dict[str, Pod]:
    """A pod with their label could else have another application's one killed in a drill: the operator names its own.

    Who makes a pod writes its labels and its owner, and who may write a status its names: it takes both.
    """
    name, uid, listed = cluster.metadata.name, cluster.metadata.uid, cluster.status.instance_names
    numbered = re.compile(rf"{re.escape(name)}-[0-9]{{1,9}}")
    pods = pods_labelled(api, instances_of(name)).items()
    return {pod: one for pod, one in pods if pod in listed and numbered.fullmatch(pod) and is_instance(one, uid)}


def is_instance(pod: Pod, uid: str) -> bool:
    """Whether the operator made it for the Cluster of that uid: a StatefulSet of its name names its pods alike."""
    return pod.metadata.is_controlled_by(CLUSTERS, "Cluster", uid)


def pods_labelled(api: KubernetesApi, labels: str) -> dict[str, Pod]:
    """Pods with these labels by name, in order."""
    pods = [read(Pod, tree) for tree in api.list(PODS, labels)]
    return {pod.metadata.name: pod for pod in sorted(pods, key=lambda pod: pod.metadata.name)}


def pods_named(api: KubernetesApi, names: Iterable[str]) -> dict[str, Pod]:
    """These pods by name, without those that the API has no more (404)."""
    found = {}
    for name in names:
        tree = _optional(partial(api.get, PODS, name))
        if isinstance(tree, ApiError):
            raise tree
        if tree is not None:
            found[name] = read(Pod, tree)
    return found


def state_of(api: KubernetesApi, name: str) -> State:
    """Ask for everything; ApiError when Cluster or pods cannot be read. Lease and endpoints may be missing."""
    cluster = read(Cluster, api.get(CLUSTERS, name))
    return with_who_serves(api, State(cluster, _pods_of(api, cluster)))


def with_who_serves(api: KubernetesApi, state: State) -> State:
    """The state with the lease and the write service's endpoints as they are now."""
    name = state.cluster.metadata.name
    lease, writable = _optional(partial(_lease, api, name)), _optional(partial(_writable, api, state.cluster))
    refusals = tuple(f"{one.message}; {one.hint}" for one in (lease, writable) if isinstance(one, ApiError))
    return replace(
        state,
        lease=None if isinstance(lease, ApiError) else lease,
        writable=None if isinstance(writable, ApiError) else writable,
        refusals=refusals,
    )


def _optional(asked: Callable[[], Answer]) -> Answer | ApiError | None:
    """What is there; None where there is none, the error where it may not be read."""
    try:
        return asked()
    except ApiError as wrong:
        if wrong.code not in (403, 404):
            raise
        return wrong if wrong.code == 403 else None


def _lease(api: KubernetesApi, name: str) -> Lease:
    return read(Lease, api.get(LEASES, name))


def _writable(api: KubernetesApi, cluster: Cluster) -> tuple[str, ...]:
    service = cluster.status.write_service or f"{cluster.metadata.name}-rw"
    slices = api.list(ENDPOINTSLICES, f"kubernetes.io/service-name={service}")
    return tuple(
        endpoint.target_ref.name
        for tree in slices
        for endpoint in read(ServiceEndpoints, tree).endpoints or ()
        if endpoint.conditions.ready is not False
    )


def joined(view: ClusterView, state: State, *, sees_replication: bool = True) -> ClusterView:
    """What SQL says and what Kubernetes says in one view: every instance by its pod's name, with the pod's uid.

    Who leads is what SQL says. Where two say so, the holder of the lease does, or else the status's primary: an
    isolated former primary goes on as one until it is stopped. Kubernetes alone never makes a leader: its status
    stays healthy for up to a minute of an outage. A user that does not see replication's details is given a standby
    as running where its pod is ready. Pure.
    """
    members = tuple(_joined(name, view.member(name), state.pods.get(name)) for name in state.instances)
    if not sees_replication:
        members = tuple(_taken_to_follow(m, state.pods.get(m.name)) for m in members)
    leaders = [m.name for m in members if m.role is Role.LEADER]
    preferred = [name for name in (state.holder, state.cluster.status.current_primary) if name in leaders]
    leader = view.leader if view.leader in leaders else None
    if len(leaders) > 1 and preferred:
        leader = preferred[0]
    member = next((m for m in members if m.name == leader), None)
    return replace(
        view,
        members=members,
        leader=leader,
        standby_names=(member.standby_names or "") if member else view.standby_names,
    )


def _taken_to_follow(member: MemberView, pod: Pod | None) -> MemberView:
    unproven = member.role is Role.STANDBY and member.state in (NOT_STREAMING, NOT_KNOWN)
    return replace(member, state="running") if unproven and pod is not None and pod.ready else member


def _joined(name: str, seen: MemberView | None, pod: Pod | None) -> MemberView:
    seen = seen or MemberView(name, Role.UNKNOWN, "unreachable")
    if pod is None:
        return replace(seen, role=Role.UNKNOWN, state="no pod", identity="")
    seen = replace(seen, identity=pod.metadata.uid, address=pod.status.pod_ip or seen.address)
    if seen.role is not Role.UNKNOWN:
        return seen
    if pod.metadata.deletion_timestamp is not None:
        return replace(seen, state="deleted")
    return replace(seen, state="unreachable" if pod.status.phase in ("Running", "") else pod.status.phase.lower())


_PERIOD_S, _FAILURES = 10.0, 3
"""Of CloudNativePG's probes, as the recorded pods have them."""


def facts_of(state: State) -> CnpgFacts:
    cluster, spec, status = state.cluster, state.cluster.spec, state.cluster.status
    return CnpgFacts(
        namespace=cluster.metadata.namespace,
        name=cluster.metadata.name,
        instances=spec.instances,
        phase=status.phase,
        current_primary=status.current_primary,
        target_primary=status.target_primary,
        replica=cluster.is_replica,
        lease_holder=state.holder,
        synchronous=_synchronous(spec),
        alter_system=spec.postgresql.enable_alter_system,
        parameters=dict(spec.postgresql.parameters),
        probes=_probes(spec),
        placement=_placement(cluster),
        storage=spec.storage.requested,
        wal_storage=spec.wal_storage.requested if spec.wal_storage else "",
        fenced=fenced_in(cluster),
        guarded=not {TAKEN, GUARDED}.isdisjoint(cluster.metadata.annotations),
        pods=tuple(CnpgPod(name, pod.spec.node_name, pod.ready) for name, pod in state.pods.items()),
        resources=_resources(spec),
        refusals=state.refusals,
    )


_ROLES = {"cnpg.io/instanceRole", "role", "cnpg.io/instanceName", "cnpg.io/poolerName"}
"""By which a Service selects some instances of a Cluster; the operator's own poolers have a name of their own."""


def _below(tree: Any, *path: str) -> Mapping[str, Any]:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


def _for_all(service: Mapping[str, Any], cluster: str) -> bool:
    """Whether it leads to instances of any role; the operator owns its -r and -any (pkg/specs/services.go)."""
    selector, owned = _below(service, "spec", "selector"), "ownerReferences" in _below(service, "metadata")
    pods = selector.get("cnpg.io/cluster"), selector.get("cnpg.io/podRole", "instance")
    return pods == (cluster, "instance") and not owned and not _ROLES & selector.keys()


def pool_of(pooler: Mapping[str, Any]) -> Pool:
    name, spec, its = str(_below(pooler, "metadata").get("name")), _below(pooler, "spec"), ("spec", "pgbouncer")
    settings = {key: str(value) for key, value in _below(pooler, *its, "parameters").items()}
    paused = _below(pooler, *its).get("paused") is True
    return Pool(name, {}, settings, int(spec.get("instances", 1)), paused=paused)


def with_clients_way(
    facts: CnpgFacts, services: Iterable[Tree], poolers: Iterable[Tree]
) -> tuple[CnpgFacts, AccessPath]:
    """The facts with the Services that lead writes to any instance; and the Cluster's own poolers."""
    names = (str(_below(one, "metadata").get("name")) for one in services if _for_all(one, facts.name))
    pools = [pool_of(one) for one in poolers if _below(one, "spec", "cluster").get("name") == facts.name]
    of_all = tuple(name for name in names if not reads_by_name(name))
    return replace(facts, services_of_all=of_all), AccessPath(pools=tuple(pools))


_CHECKS = {SERVICES: "cnpg-service-of-all is", POOLERS: "pooler-alone, pooler-paused and PgBouncer's are"}


def asked_for_clients_way(api: KubernetesApi, facts: CnpgFacts) -> tuple[CnpgFacts, AccessPath]:
    """The same of what the API lists; refusals say what is not checked where it may not be listed."""
    given = {kind: _optional(partial(api.list, kind)) for kind in _CHECKS}
    refused = {kind: wrong for kind, wrong in given.items() if isinstance(wrong, ApiError)}
    refusals = [f"{wrong.message}: {_CHECKS[kind]} not checked; {wrong.hint}" for kind, wrong in refused.items()]
    listed = {kind: one for kind, one in given.items() if one and not isinstance(one, ApiError)}
    facts = replace(facts, refusals=(*facts.refusals, *refusals))
    return with_clients_way(facts, listed.get(SERVICES, ()), listed.get(POOLERS, ()))


def fenced_in(cluster: Cluster) -> tuple[str, ...]:
    """Names of the annotation that fences instances ("*" is all); () for what is no list of names."""
    try:
        names = from_json(cluster.metadata.annotations.get(FENCED, "[]"))
    except ValueError:
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def paused(cluster: Cluster) -> str | None:
    """Why the operator does nothing for this Cluster, in one clause; None where it does."""
    if cluster.metadata.annotations.get(RECONCILIATION) == "disabled":
        return f"the annotation {RECONCILIATION} is disabled, so the operator does nothing for this Cluster"
    return None


def _resources(spec: ClusterSpec) -> str:
    """Requests and limits in words: "requests cpu 100m, memory 256Mi; limits memory 1Gi"."""
    kinds = ((kind, spec.resources.get(kind) or {}) for kind in ("requests", "limits"))
    return "; ".join(f"{kind} " + ", ".join(f"{n} {v}" for n, v in of.items()) for kind, of in kinds if of)


def _synchronous(spec: ClusterSpec) -> CnpgSync | None:
    sync = spec.postgresql.synchronous
    if sync is not None:
        return CnpgSync(
            sync.method,
            sync.number,
            sync.data_durability == "required",
            sync.failover_quorum,
            named_instances=sync.max_standby_names_from_cluster,
            ahead=tuple(sync.standby_names_pre),
            behind=tuple(sync.standby_names_post),
        )
    former = spec.max_sync_replicas
    return CnpgSync("any", former, required=False, least=spec.min_sync_replicas) if former > 0 else None


def _seconds_of(probe: Probe, whole_s: float | None = None) -> float:
    """How long it may fail: whole_s where the Cluster sets no number of failures (pkg/specs/pods.go, 1.30)."""
    period = probe.period_seconds or _PERIOD_S
    return period * probe.failure_threshold if probe.failure_threshold else whole_s or period * _FAILURES


def _probes(spec: ClusterSpec) -> CnpgProbes:
    liveness, readiness = spec.probes.liveness, spec.probes.readiness
    return CnpgProbes(
        isolation_check=liveness.isolation_check.enabled,
        liveness_s=_seconds_of(liveness, spec.liveness_probe_timeout),
        readiness_s=_seconds_of(readiness),
        readiness_least_s=_seconds_of(readiness) - (readiness.period_seconds or _PERIOD_S),
        readiness_streams=readiness.type == "streaming",
        startup_s=_seconds_of(spec.probes.startup, spec.start_delay),
        smart_shutdown_s=spec.smart_shutdown_timeout,
        stop_delay_s=spec.stop_delay,
        failover_delay_s=spec.failover_delay,
    )


def _placement(cluster: Cluster) -> CnpgPlacement:
    spec, affinity = cluster.spec, cluster.spec.affinity
    return CnpgPlacement(
        anti_affinity=affinity.enable_pod_anti_affinity is not False,
        topology_key=affinity.topology_key,
        spreads=tuple(
            (spread.topology_key, _selects(spread, cluster.metadata.name))
            for spread in spec.topology_spread_constraints
        ),
        enable_pdb=spec.enable_pdb,
    )


def _selects(spread: Spread, cluster: str) -> bool:
    """Whether the constraint is about this cluster's pods; expressions are taken to be."""
    selector = spread.label_selector
    if selector is None:
        return False
    wanted = selector.match_labels
    known = {"cnpg.io/cluster": cluster, "cnpg.io/podRole": "instance"}
    return bool(wanted or selector.match_expressions) and all(known.get(k, v) == v for k, v in wanted.items())
