"""Checks of CloudNativePG: what its spec promises, what it lets pass, what its status hides, and where instances run.

Nodes, zones, evictions, the WAL's volume."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from walproof.advising.doctor.checks_durability import names_of
from walproof.advising.doctor.finding import (
    Hit,
    Severity,
    checks_of,
    of_cnpg,
    patch_cluster,
    reset_all,
    reset_names,
)
from walproof.machine.quoting import pasted
from walproof.model.cnpg_facts import CnpgFacts, CnpgSync, is_off, why_not_guarded
from walproof.model.facts import Facts
from walproof.model.guarantee import read_standby_names
from walproof.model.units import counted

SYNC = "spec.postgresql.synchronous"
_SMART_S, _DELAY_S = 180.0, 30.0
"""CloudNativePG's default, and what a failover takes."""


def _patched(cnpg: CnpgFacts, evidence: str, where: str, spec: dict[str, Any]) -> Hit:
    """What merging this into the Cluster's spec cures."""
    return Hit(evidence, patch_cluster(cnpg, spec), where)


@of_cnpg
def _cnpg_preferred(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """The former minSyncReplicas is no minimum: the operator heals itself by asking for fewer, down to none."""
    sync = cnpg.synchronous
    if sync is None or sync.required:
        return
    required: dict[str, Any] = {"postgresql": {"synchronous": {"dataDurability": "required"}}}
    if sync.least is None:
        yield _patched(cnpg, f"dataDurability: preferred ({sync.text})", SYNC, required)
        return
    required = {"postgresql": {"synchronous": {"method": "any", "number": sync.promised}}}
    hit = _patched(cnpg, sync.text, "spec", {"minSyncReplicas": 0, "maxSyncReplicas": 0, **required})
    spare = 0 < sync.least < cnpg.instances - 1
    yield replace(hit, severity=Severity.NOTE if spare else None)


@of_cnpg
def _cnpg_acknowledges_alone(facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """The promise of the spec against the names in effect: as many must be asked for; what may degrade keeps one."""
    sync = cnpg.synchronous
    if sync is None or facts.leader is None:
        return
    named = read_standby_names(names_of(facts))
    if (0 if named is None else named.k) < sync.promised:
        setting = facts.leader.setting("synchronous_standby_names")
        where = setting.where if setting else ""
        fix = reset_names(facts) or pasted(
            "bring an instance back: kubectl cnpg status {cnpg.name:argument}", cnpg=cnpg
        )
        declared = sync.text if sync.least is not None else f"{SYNC} is {sync.text}"
        evidence = f"{declared}, synchronous_standby_names is '{names_of(facts)}'"
        yield Hit(evidence, fix, where, facts.leader_name)


@of_cnpg
def _cnpg_failover_quorum(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """Losing a minority of the instances may lose commits that only they had."""
    sync = cnpg.synchronous
    if sync is None or sync.failover_quorum or not sync.required:
        return
    # With as many elsewhere as must answer, admission refuses failoverQuorum (validateFailoverQuorum).
    if sync.number > len(sync.elsewhere) and sync.own_copies < (cnpg.instances - 1) // 2:
        evidence = f"{sync.text} with {cnpg.instances} instances, failoverQuorum: false"
        yield _patched(cnpg, evidence, SYNC, {"postgresql": {"synchronous": {"failoverQuorum": True}}})


@of_cnpg
def _cnpg_guard_refuses(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """By the function that the guard asks at its start."""
    if cnpg.guarded and (reasons := why_not_guarded(cnpg)):
        sync = cnpg.synchronous or CnpgSync()
        number = max(1, sync.number if sync.least is None else sync.least)
        former = {} if sync.least is None else {"minSyncReplicas": 0, "maxSyncReplicas": 0}
        required = {"method": sync.method, "number": number, "dataDurability": "required", "failoverQuorum": True}
        spec = {"failoverDelay": 0, **former, "postgresql": {"synchronous": required}}
        yield _patched(cnpg, f"walproof guard refuses it: {reasons}", "spec", spec)


@of_cnpg
def _cnpg_alter_system(facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    settings = facts.leader.settings.values() if facts.leader else ()
    names = sorted(s.name for s in settings if s.by_alter_system)
    if names:
        evidence = f"postgresql.auto.conf sets {', '.join(names)}: the operator's own values are not in effect"
        yield Hit(evidence, reset_all(facts, cnpg), "postgresql.auto.conf", facts.leader_name, Severity.ERROR)
    elif cnpg.alter_system:
        forbidden = {"postgresql": {"enableAlterSystem": False}}
        yield _patched(cnpg, "enableAlterSystem: true", "spec.postgresql", forbidden)


@of_cnpg
def _cnpg_unsafe_parameter(facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """Those that are in effect already are found in PostgreSQL itself."""
    for name in ("fsync", "full_page_writes"):
        value = cnpg.parameters.get(name, "on")
        if is_off(value) and (not facts.leader or facts.leader.value(name) != "off"):
            evidence = f"{name}: {value}, which admission accepts"
            removed = {"postgresql": {"parameters": {name: None}}}
            yield _patched(cnpg, evidence, "spec.postgresql.parameters", removed)


@of_cnpg
def _cnpg_no_spare(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """Where fewer instances may be named than there are, the operator names another one for one that is not ready."""
    sync = cnpg.synchronous
    if sync is None or not sync.required:
        return
    own = 0 if sync.named_instances == 0 else cnpg.instances - 1
    if own + len(sync.elsewhere) <= sync.number:
        evidence = f"{sync.text}, required, with {counted(cnpg.instances, 'instance')}"
        evidence += f" and {', '.join(sync.elsewhere)} elsewhere" if sync.elsewhere else ""
        more: dict[str, Any] = {"instances": sync.number + 2 - len(sync.elsewhere)}
        if sync.named_instances == 0:
            more = {"postgresql": {"synchronous": {"maxStandbyNamesFromCluster": None}}}
        yield _patched(cnpg, evidence, SYNC, more)


@of_cnpg
def _cnpg_standbys_elsewhere(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """Standbys of standbyNamesPre and standbyNamesPost may be all that have a commit: none of them is promoted here."""
    sync = cnpg.synchronous
    if sync and sync.required and sync.elsewhere and cnpg.instances > 1 and not sync.own_copies:
        number = 1 + len(sync.ahead if sync.method == "first" else sync.elsewhere)
        all_named = {"number": number, "maxStandbyNamesFromCluster": None}
        evidence = f"{sync.text}: {', '.join(sync.elsewhere)} may be all that have a commit"
        yield _patched(cnpg, evidence, SYNC, {"postgresql": {"synchronous": all_named}})


@of_cnpg
def _cnpg_smart_shutdown_long(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    probes = cnpg.probes
    if probes.smart_shutdown_s > _SMART_S or probes.smart_shutdown_s >= probes.stop_delay_s:
        evidence = f"smartShutdownTimeout: {probes.smart_shutdown_s:g} s, stopDelay: {probes.stop_delay_s:g} s"
        yield _patched(cnpg, evidence, "spec", {"smartShutdownTimeout": 30})


@of_cnpg
def _cnpg_fenced(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    if cnpg.fenced:
        fix = pasted("kubectl cnpg fencing off {cnpg.name:argument} '*' --namespace {cnpg.namespace:shell}", cnpg=cnpg)
        yield Hit(f"fenced: {', '.join(cnpg.fenced)}", fix, "metadata.annotations")


@of_cnpg
def _cnpg_not_ready(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    ready = sum(pod.ready for pod in cnpg.pods)
    if ready < cnpg.instances:
        late = ", ".join(pod.name for pod in cnpg.pods if not pod.ready) or "some have no pod"
        evidence = f"{ready} of {cnpg.instances} instances are ready ({late}); phase: {cnpg.phase}"
        fix = pasted(
            "kubectl cnpg status {cnpg.name:argument}; "
            "kubectl describe pods --selector cnpg.io/cluster={cnpg.name:shell}",
            cnpg=cnpg,
        )
        yield Hit(evidence, fix, "status")


@of_cnpg
def _cnpg_disputed_primary(facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """Who is primary according to SQL, the status and the lease; a replica cluster's is in recovery."""
    says = {"status": cnpg.current_primary, "target": cnpg.target_primary}
    if facts.leader or not cnpg.replica:
        says["SQL"] = facts.leader_name
    if cnpg.lease_holder is not None:
        says["lease"] = cnpg.lease_holder
    if len(set(says.values())) > 1:
        evidence = ", ".join(f"{who}: {name or 'no instance'}" for who, name in says.items()) + f"; phase: {cnpg.phase}"
        look = "kubectl cnpg status {cnpg.name:argument}; kubectl get lease {cnpg.name:argument} -o yaml"
        yield Hit(evidence, pasted(look, cnpg=cnpg), "status")


@of_cnpg
def _cnpg_instances_together(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    """How many nodes there are is not asked for: that takes a right on the whole cluster.

    Another affinity makes every pod anew (checkPodSpecIsOutdated of the operator, 1.30: internal/controller).
    """
    if cnpg.instances < 2:
        return
    nodes = Counter(pod.node for pod in cnpg.pods if pod.node)
    shared = {node: [pod.name for pod in cnpg.pods if pod.node == node] for node, n in nodes.items() if n > 1}
    if shared:
        key = cnpg.placement.topology_key
        apart = {"enablePodAntiAffinity": True, "podAntiAffinityType": "required", "topologyKey": key}
        patch = patch_cluster(cnpg, {"affinity": apart})
        fix = pasted(
            "with {cnpg.instances:composed} nodes at least: {patch:composed}; it restarts every instance, and one "
            "without a node of its own stays Pending; one whose volume is bound to its node: "
            "kubectl cnpg destroy {cnpg.name:argument} INSTANCE",
            cnpg=cnpg,
            patch=patch,
        )
        yield Hit("; ".join(f"{', '.join(names)} run on {node}" for node, names in shared.items()), fix, "pods")
    elif not cnpg.placement.anti_affinity:
        enabled = {"affinity": {"enablePodAntiAffinity": True}}
        yield _patched(cnpg, "enablePodAntiAffinity: false", "spec.affinity", enabled)


@of_cnpg
def _cnpg_spread_selects_nobody(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    for key, selects in cnpg.placement.spreads:
        if not selects:
            fix = pasted("give its labelSelector matchLabels: {{cnpg.io/cluster: {cnpg.name:yaml}}}", cnpg=cnpg)
            evidence = f"the constraint over {key} selects no instance of this Cluster"
            yield Hit(evidence, fix, "spec.topologySpreadConstraints")


@of_cnpg
def _cnpg_wal_volume_small(facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    kept = [facts.leader.setting(name) for name in ("max_wal_size", "wal_keep_size")] if facts.leader else []
    needed = sum(float(setting.value) for setting in kept if setting and setting.unit == "MB")
    size = cnpg.wal_volume_mib
    if size is not None and size < needed:
        part = "walStorage" if cnpg.wal_storage else "storage"
        evidence = f"{part}.size is {size:g} MiB, max_wal_size + wal_keep_size is {needed:g} MB"
        larger = {part: {"size": f"{round(2 * needed / 1024) or 1}Gi"}}
        yield _patched(cnpg, evidence, f"spec.{part}", larger)


@of_cnpg
def _cnpg_service_of_all(_facts: Facts, cnpg: CnpgFacts) -> Iterator[Hit]:
    for name in cnpg.services_of_all:
        fix = pasted(
            "cnpg.io/instanceRole: primary in its selector; or let clients use the service {service:words}",
            service=f"{cnpg.name}-rw",
        )
        yield Hit(f"its selector asks for {cnpg.name} and no role", fix, "spec.selector", name)


CHECKS = checks_of("cnpg", globals())
