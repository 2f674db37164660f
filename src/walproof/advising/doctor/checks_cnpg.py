"""Checks of CloudNativePG: what its spec promises, what it lets pass, what its status hides, and where instances run.

Nodes, zones, evictions, the WAL's volume."""

from collections import Counter
from collections.abc import Iterator

from walproof.advising.doctor.checks_durability import names_of
from walproof.advising.doctor.finding import Check, Hit, Severity, in_pod, patch_cluster
from walproof.model.facts import Facts
from walproof.model.guarantee import read_standby_names

_PLACEMENT_DOCS = "https://cloudnative-pg.io/documentation/current"


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
        f"{_PLACEMENT_DOCS}/scheduling/#pod-affinity-and-anti-affinity",
        "spec.affinity.enablePodAntiAffinity: false",
        _together,
    ),
    Check(
        "cnpg-spread-selects-nobody",
        Severity.WARNING,
        "a topology spread constraint is about no instance",
        "The zones it names are not kept apart: one zone's failure may take every copy.",
        f"{_PLACEMENT_DOCS}/scheduling/#topology-spread-constraints",
        "spec.topologySpreadConstraints with the labels of another application",
        _spread,
    ),
    Check(
        "cnpg-no-disruption-budget",
        Severity.WARNING,
        "nothing keeps a drain from evicting the primary",
        "A node drained, or an autoscaler, ends the primary without a switchover.",
        f"{_PLACEMENT_DOCS}/kubernetes_upgrade/#pod-disruption-budgets",
        "spec.enablePDB: false",
        _no_budget,
    ),
    Check(
        "cnpg-wal-volume-small",
        Severity.WARNING,
        "the volume for WAL is smaller than what is kept of it",
        "A full volume stops PostgreSQL; a standby that needs WAL meanwhile must be copied anew.",
        f"{_PLACEMENT_DOCS}/storage/#volume-for-wal",
        "spec.walStorage.size: 1Gi with max_wal_size 1GB and wal_keep_size 512MB",
        _wal_volume,
    ),
)


DOCS = "https://cloudnative-pg.io/documentation/current"
SYNC = "spec.postgresql.synchronous"
_SMART_S, _LIVENESS_S, _HASTY_S, _DELAY_S = 180.0, 60.0, 10.0, 30.0
"""The first is CloudNativePG's default; the others are twice the default, a third of it, and what a failover takes."""


def _preferred(facts: Facts) -> Iterator[Hit]:
    sync = facts.cnpg.synchronous if facts.cnpg else None
    if sync is None or sync.required:
        return
    if sync.legacy:
        fix = patch_cluster(facts, {"minSyncReplicas": sync.number})
        yield Hit(f"minSyncReplicas: 0, maxSyncReplicas: {sync.number}", fix, "spec")
        return
    fix = patch_cluster(facts, {"postgresql": {"synchronous": {"dataDurability": "required"}}})
    yield Hit(f"dataDurability: preferred ({sync.text})", fix, SYNC)


def _alone(facts: Facts) -> Iterator[Hit]:
    """The promise of the spec against the names in effect: as many must be asked for."""
    sync = facts.cnpg.synchronous if facts.cnpg else None
    if facts.cnpg is None or sync is None or facts.leader is None:
        return
    named = read_standby_names(names_of(facts))
    asked = 0 if named is None else named.k
    if asked < sync.number:
        setting = facts.leader.setting("synchronous_standby_names")
        where = setting.where if setting else ""
        fix = f"bring an instance back: kubectl cnpg status {facts.cnpg.name}"
        if where.rpartition("/")[2].startswith("postgresql.auto.conf"):
            fix = _reset(facts)
        shown = f"'{names_of(facts)}'"
        yield Hit(f"{SYNC} is {sync.text}, synchronous_standby_names is {shown}", fix, where, facts.leader_name)


def _reset(facts: Facts) -> str:
    patch = patch_cluster(facts, {"postgresql": {"enableAlterSystem": False}})
    command = "psql --command 'ALTER SYSTEM RESET ALL' --command 'SELECT pg_reload_conf()'"
    return f"{in_pod(facts, facts.leader_name, command)}; then {patch}"


def _quorum_lost(facts: Facts) -> Iterator[Hit]:
    """Losing a minority of the instances may lose commits that only they had."""
    cnpg = facts.cnpg
    sync = cnpg.synchronous if cnpg else None
    if cnpg is None or sync is None or sync.failover_quorum or not sync.required or sync.legacy:
        return
    minority = (cnpg.instances - 1) // 2
    if sync.number < minority:
        fix = patch_cluster(facts, {"postgresql": {"synchronous": {"failoverQuorum": True}}})
        yield Hit(f"{sync.text} with {cnpg.instances} instances, failoverQuorum: false", fix, SYNC)


def _alter_system(facts: Facts) -> Iterator[Hit]:
    if facts.cnpg is None:
        return
    leader = facts.leader
    names = sorted(
        s.name for s in (leader.settings.values() if leader else ()) if s.file.endswith("/postgresql.auto.conf")
    )
    if names:
        evidence = f"postgresql.auto.conf sets {', '.join(names)}: the operator's own values are not in effect"
        yield Hit(evidence, _reset(facts), "postgresql.auto.conf", facts.leader_name, Severity.ERROR)
    elif facts.cnpg.alter_system:
        fix = patch_cluster(facts, {"postgresql": {"enableAlterSystem": False}})
        yield Hit("enableAlterSystem: true", fix, "spec.postgresql")


def _unsafe_parameters(facts: Facts) -> Iterator[Hit]:
    """Those that are in effect already are found in PostgreSQL itself."""
    for name in ("fsync", "full_page_writes"):
        value = facts.cnpg.parameters.get(name, "on") if facts.cnpg else "on"
        if value.lower() in ("off", "false", "no", "0") and (not facts.leader or facts.leader.value(name) != "off"):
            fix = patch_cluster(facts, {"postgresql": {"parameters": {name: None}}})
            yield Hit(f"{name}: {value}, which admission accepts", fix, "spec.postgresql.parameters")


def _isolation(facts: Facts) -> Iterator[Hit]:
    if facts.cnpg and not facts.cnpg.probes.isolation_check and facts.cnpg.instances > 1:
        fix = patch_cluster(facts, {"probes": {"liveness": {"isolationCheck": {"enabled": True}}}})
        yield Hit("isolationCheck.enabled: false", fix, "spec.probes.liveness")


def _smart_shutdown(facts: Facts) -> Iterator[Hit]:
    probes = facts.cnpg.probes if facts.cnpg else None
    if probes is None:
        return
    if probes.smart_shutdown_s > _SMART_S or probes.smart_shutdown_s >= probes.stop_delay_s:
        evidence = f"smartShutdownTimeout: {probes.smart_shutdown_s:g} s, stopDelay: {probes.stop_delay_s:g} s"
        yield Hit(evidence, patch_cluster(facts, {"smartShutdownTimeout": 30}), "spec")


def _liveness(facts: Facts) -> Iterator[Hit]:
    probes = facts.cnpg.probes if facts.cnpg else None
    if probes and not _HASTY_S <= probes.liveness_s <= _LIVENESS_S:
        fix = patch_cluster(facts, {"livenessProbeTimeout": 30})
        yield Hit(f"the liveness probe gives PostgreSQL {probes.liveness_s:g} s", fix, "spec.probes.liveness")


def _failover_delay(facts: Facts) -> Iterator[Hit]:
    if facts.cnpg and facts.cnpg.probes.failover_delay_s > _DELAY_S:
        evidence = f"failoverDelay: {facts.cnpg.probes.failover_delay_s:g} s"
        yield Hit(evidence, patch_cluster(facts, {"failoverDelay": 0}), "spec")


def _no_spare(facts: Facts) -> Iterator[Hit]:
    cnpg = facts.cnpg
    sync = cnpg.synchronous if cnpg else None
    if cnpg and sync and sync.required and cnpg.instances - 1 <= sync.number:
        evidence = f"{sync.text}, required, with {cnpg.instances} instances"
        yield Hit(evidence, patch_cluster(facts, {"instances": sync.number + 2}), SYNC)


def _fenced(facts: Facts) -> Iterator[Hit]:
    if facts.cnpg and facts.cnpg.fenced:
        listed = ", ".join(facts.cnpg.fenced)
        fix = f"kubectl cnpg fencing off {facts.cnpg.name} '*' --namespace {facts.cnpg.namespace}"
        yield Hit(f"fenced: {listed}", fix, "metadata.annotations")


def _not_ready(facts: Facts) -> Iterator[Hit]:
    cnpg = facts.cnpg
    ready = [pod.name for pod in cnpg.pods if pod.ready] if cnpg else []
    if cnpg and len(ready) < cnpg.instances:
        late = ", ".join(pod.name for pod in cnpg.pods if not pod.ready) or "some have no pod"
        evidence = f"{len(ready)} of {cnpg.instances} instances are ready ({late}); phase: {cnpg.phase}"
        fix = f"kubectl cnpg status {cnpg.name}; kubectl describe pods --selector cnpg.io/cluster={cnpg.name}"
        yield Hit(evidence, fix, "status")


def _disputed(facts: Facts) -> Iterator[Hit]:
    """Who is primary according to SQL, the status and the lease."""
    cnpg = facts.cnpg
    if cnpg is None:
        return
    says = {"status": cnpg.current_primary, "target": cnpg.target_primary, "SQL": facts.leader_name}
    if cnpg.lease_holder is not None:
        says["lease"] = cnpg.lease_holder
    if len(set(says.values())) > 1:
        evidence = ", ".join(f"{who}: {name or 'nobody'}" for who, name in says.items()) + f"; phase: {cnpg.phase}"
        yield Hit(evidence, f"kubectl cnpg status {cnpg.name}; kubectl get lease {cnpg.name} -o yaml", "status")


PROMISES = (
    Check(
        "cnpg-preferred",
        Severity.WARNING,
        "durability is preferred, not required",
        "When the last standby goes, commits are acknowledged on the primary alone within a second, unannounced.",
        f"{DOCS}/replication/#data-durability-and-synchronous-replication",
        "spec.postgresql.synchronous.dataDurability: preferred",
        _preferred,
    ),
    Check(
        "cnpg-acknowledges-alone",
        Severity.ERROR,
        "fewer standbys are waited for than the spec says",
        "Losing the primary now loses acknowledged commits.",
        f"{DOCS}/replication/#data-durability-and-synchronous-replication",
        "dataDurability: preferred and both standbys deleted; or ALTER SYSTEM",
        _alone,
    ),
    Check(
        "cnpg-failover-quorum",
        Severity.WARNING,
        "a minority that is lost may take commits with it",
        "Primary and acknowledging standbys gone together: a standby that lacks commits is promoted.",
        f"{DOCS}/failover/#failover-quorum-quorum-based-failover",
        "instances: 5, number: 1, failoverQuorum: false",
        _quorum_lost,
    ),
    Check(
        "cnpg-alter-system",
        Severity.WARNING,
        "ALTER SYSTEM is allowed",
        "It overrides the operator, which neither sees nor corrects it: synchronous replication can be off, unseen.",
        f"{DOCS}/postgresql_conf/#enabling-alter-system",
        "spec.postgresql.enableAlterSystem: true",
        _alter_system,
    ),
    Check(
        "cnpg-unsafe-parameter",
        Severity.ERROR,
        "fsync or full_page_writes is off in the spec",
        "A crash of the node corrupts the data; replicas are restarted into it too.",
        f"{DOCS}/postgresql_conf/",
        "spec.postgresql.parameters.fsync: off",
        _unsafe_parameters,
    ),
    Check(
        "cnpg-no-spare",
        Severity.WARNING,
        "every standby must answer",
        "One standby restarted, moved or gone stops all commits.",
        f"{DOCS}/replication/#synchronous-replication",
        "instances: 2, number: 1, dataDurability: required",
        _no_spare,
    ),
)
FAILOVER = (
    Check(
        "cnpg-isolation-check-off",
        Severity.WARNING,
        "an isolated primary goes on",
        "Cut off from the API server and its standbys it keeps taking commits that the next primary lacks.",
        f"{DOCS}/instance_manager/#primary-isolation",
        "spec.probes.liveness.isolationCheck.enabled: false",
        _isolation,
    ),
    Check(
        "cnpg-smart-shutdown-long",
        Severity.WARNING,
        "a primary may take long to shut down",
        "It holds its lease meanwhile: nobody else is promoted, no writes (cloudnative-pg#11280).",
        f"{DOCS}/instance_manager/#shutdown-control",
        "spec.smartShutdownTimeout: 600",
        _smart_shutdown,
    ),
    Check(
        "cnpg-liveness",
        Severity.WARNING,
        "the liveness probe is hasty or slow",
        "Too short restarts a busy primary; too long leaves a hanging one there, without writes.",
        f"{DOCS}/instance_manager/#liveness-probe",
        "spec.livenessProbeTimeout: 300",
        _liveness,
    ),
    Check(
        "cnpg-failover-delay",
        Severity.WARNING,
        "failoverDelay is over 30 s",
        "No writes that much longer after the primary failed.",
        f"{DOCS}/failover/#delayed-failover",
        "spec.failoverDelay: 120",
        _failover_delay,
    ),
    Check(
        "cnpg-fenced",
        Severity.ERROR,
        "an instance is fenced",
        "Its PostgreSQL is stopped: no standby, or no writes, until the fence is removed.",
        f"{DOCS}/fencing/",
        "kubectl cnpg fencing on CLUSTER INSTANCE",
        _fenced,
    ),
    Check(
        "cnpg-not-ready",
        Severity.ERROR,
        "an instance is not ready",
        "One copy less; status.phase may say healthy for a minute longer.",
        f"{DOCS}/instance_manager/",
        "kubectl delete pod of a standby",
        _not_ready,
    ),
    Check(
        "cnpg-disputed-primary",
        Severity.ERROR,
        "status, lease and PostgreSQL name different primaries",
        "A failover is under way or stuck: no writes, or writes that the next primary lacks.",
        f"{DOCS}/failover/",
        "freeze PostgreSQL of the primary for a minute",
        _disputed,
    ),
)
CHECKS = (*PROMISES, *FAILOVER, *PLACEMENT)
