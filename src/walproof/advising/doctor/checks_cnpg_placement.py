"""Checks of where CloudNativePG's instances run and what they write on: nodes, zones, evictions, the WAL's volume."""

from collections import Counter
from collections.abc import Iterator

from walproof.advising.doctor.finding import Check, Hit, Severity, patch_cluster
from walproof.model.facts import Facts

DOCS = "https://cloudnative-pg.io/documentation/current"


def _together(facts: Facts) -> Iterator[Hit]:
    """A cluster of one node cannot do better: only instances that could run apart are found."""
    cnpg = facts.cnpg
    if cnpg is None or cnpg.instances < 2:
        return
    if not cnpg.placement.anti_affinity:
        fix = patch_cluster(facts, {"affinity": {"enablePodAntiAffinity": True}})
        yield Hit("enablePodAntiAffinity: false", fix, "spec.affinity")
        return
    nodes = Counter(pod.node for pod in cnpg.pods if pod.node)
    crowded = [node for node, count in nodes.items() if count > 1]
    if len(nodes) > 1 and crowded and len(nodes) < cnpg.instances:
        listed = ", ".join(pod.name for pod in cnpg.pods if pod.node == crowded[0])
        fix = patch_cluster(facts, {"affinity": {"podAntiAffinityType": "required"}})
        yield Hit(f"{listed} run on {crowded[0]}", fix, "pods")


def _spread(facts: Facts) -> Iterator[Hit]:
    for key, selects in facts.cnpg.placement.spreads if facts.cnpg else ():
        if not selects:
            name = facts.cnpg.name if facts.cnpg else ""
            fix = f"give its labelSelector matchLabels: {{cnpg.io/cluster: {name}}}"
            evidence = f"the constraint over {key} selects no instance of this Cluster"
            yield Hit(evidence, fix, "spec.topologySpreadConstraints")


def _no_budget(facts: Facts) -> Iterator[Hit]:
    if facts.cnpg and not facts.cnpg.placement.enable_pdb and facts.cnpg.instances > 1:
        yield Hit("enablePDB: false", patch_cluster(facts, {"enablePDB": True}), "spec")


def _megabytes(facts: Facts, name: str) -> float:
    setting = facts.leader.setting(name) if facts.leader else None
    return float(setting.value) if setting and setting.unit == "MB" else 0.0


def _wal_volume(facts: Facts) -> Iterator[Hit]:
    size = facts.cnpg.wal_volume_mib if facts.cnpg else None
    needed = _megabytes(facts, "max_wal_size") + _megabytes(facts, "wal_keep_size")
    if facts.cnpg is None or size is None or size >= needed:
        return
    part = "walStorage" if facts.cnpg.wal_storage else "storage"
    evidence = f"{part}.size is {size:g} MiB, max_wal_size + wal_keep_size is {needed:g} MB"
    fix = patch_cluster(facts, {part: {"size": f"{round(2 * needed / 1024) or 1}Gi"}})
    yield Hit(evidence, fix, f"spec.{part}")


PLACEMENT = (
    Check(
        "cnpg-instances-together",
        Severity.WARNING,
        "instances share a node that could run apart",
        "One node's failure takes the primary and the standby that has its commits.",
        f"{DOCS}/scheduling/#pod-affinity-and-anti-affinity",
        "spec.affinity.enablePodAntiAffinity: false",
        _together,
    ),
    Check(
        "cnpg-spread-selects-nobody",
        Severity.WARNING,
        "a topology spread constraint is about no instance",
        "The zones it names are not kept apart: one zone's failure may take every copy.",
        f"{DOCS}/scheduling/#topology-spread-constraints",
        "spec.topologySpreadConstraints with the labels of another application",
        _spread,
    ),
    Check(
        "cnpg-no-disruption-budget",
        Severity.WARNING,
        "nothing keeps a drain from evicting the primary",
        "A node drained, or an autoscaler, ends the primary without a switchover.",
        f"{DOCS}/kubernetes_upgrade/#pod-disruption-budgets",
        "spec.enablePDB: false",
        _no_budget,
    ),
    Check(
        "cnpg-wal-volume-small",
        Severity.WARNING,
        "the volume for WAL is smaller than what is kept of it",
        "A full volume stops PostgreSQL; a standby that needs WAL meanwhile must be copied anew.",
        f"{DOCS}/storage/#volume-for-wal",
        "spec.walStorage.size: 1Gi with max_wal_size 1GB and wal_keep_size 512MB",
        _wal_volume,
    ),
)
