"""The doctor's facts of a Cluster, from what Kubernetes says. Pure."""

from functools import partial

from walproof.machine.foreign_text import from_json
from walproof.model.facts_cnpg import CnpgFacts, CnpgPlacement, CnpgPod, CnpgProbes, CnpgSync
from walproof.targets.cnpg.objects import Cluster, ClusterSpec, Pod, Spread
from walproof.targets.cnpg.state import FENCED, State

_PERIOD_S, _FAILURES = 10.0, 3
"""Of CloudNativePG's liveness probe, as the recorded pods have them."""


def facts_of(state: State) -> CnpgFacts:
    """Everything that the checks read."""
    cluster, spec, status = state.cluster, state.cluster.spec, state.cluster.status
    return CnpgFacts(
        cluster.metadata.namespace,
        cluster.metadata.name,
        spec.instances,
        status.ready_instances,
        status.phase,
        status.current_primary,
        status.target_primary,
        state.holder,
        _synchronous(spec),
        spec.postgresql.enable_alter_system,
        dict(spec.postgresql.parameters),
        _probes(spec),
        _placement(cluster),
        spec.storage.size,
        spec.wal_storage.size if spec.wal_storage else "",
        fenced_in(cluster),
        tuple(map(_pod, state.pods.values())),
        _resources(spec),
        state.refusals,
    )


def fenced_in(cluster: Cluster) -> tuple[str, ...]:
    """Names of the annotation that fences instances ("*" is all); () for what is no list of names."""
    try:
        names = from_json(cluster.metadata.annotations.get(FENCED, "[]"))
    except ValueError:
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _pod(pod: Pod) -> CnpgPod:
    return CnpgPod(
        pod.metadata.name, pod.metadata.labels.get("cnpg.io/instanceRole", ""), pod.spec.node_name, pod.ready
    )


def _resources(spec: ClusterSpec) -> str:
    """Requests and limits in words: "requests cpu 100m, memory 256Mi; limits memory 1Gi"."""
    kinds = ((kind, spec.resources.get(kind) or {}) for kind in ("requests", "limits"))
    return "; ".join(f"{kind} " + ", ".join(f"{n} {v}" for n, v in of.items()) for kind, of in kinds if of)


def _synchronous(spec: ClusterSpec) -> CnpgSync | None:
    sync = spec.postgresql.synchronous
    if sync is not None:
        return CnpgSync(sync.method, sync.number, sync.data_durability != "preferred", sync.failover_quorum)
    if spec.max_sync_replicas > 0:
        return CnpgSync("any", spec.max_sync_replicas, required=spec.min_sync_replicas > 0, legacy=True)
    return None


def _probes(spec: ClusterSpec) -> CnpgProbes:
    liveness = spec.probes.liveness
    period = liveness.period_seconds or _PERIOD_S
    unresponsive = spec.liveness_probe_timeout or period * (liveness.failure_threshold or _FAILURES)
    return CnpgProbes(
        liveness.isolation_check.enabled,
        unresponsive,
        spec.smart_shutdown_timeout,
        spec.stop_delay,
        spec.failover_delay,
    )


def _placement(cluster: Cluster) -> CnpgPlacement:
    spec = cluster.spec
    affinity = spec.affinity
    selects = partial(_selects, cluster=cluster.metadata.name)
    return CnpgPlacement(
        affinity.enable_pod_anti_affinity is not False,
        affinity.pod_anti_affinity_type == "required",
        affinity.topology_key,
        tuple((spread.topology_key, selects(spread)) for spread in spec.topology_spread_constraints),
        spec.enable_pdb,
    )


def _selects(spread: Spread, cluster: str) -> bool:
    """Whether the constraint is about this cluster's pods; expressions are taken to be."""
    selector = spread.label_selector
    if selector is None:
        return False
    wanted = selector.match_labels
    known = {"cnpg.io/cluster": cluster, "cnpg.io/podRole": "instance"}
    return bool(wanted or selector.match_expressions) and all(known.get(k, v) == v for k, v in wanted.items())
