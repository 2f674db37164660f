"""The doctor on a CloudNativePG cluster: nothing on the recorded healthy one, every seeded fault, fixes it can take."""

import json
import re
from dataclasses import replace
from typing import Any

from tests.fixtures.cnpg.seeds import CNPG_SEEDS, OVERRIDDEN, apart, guarded, healthy, seen
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.seeds import SEEDS
from tests.fixtures.sick import setting, with_member, with_settings
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.advising.doctor.finding import Severity
from walproof.model.cnpg_facts import why_not_guarded
from walproof.model.facts import Facts, Sender
from walproof.targets.cnpg.kubernetes_api import POOLERS, SERVICES
from walproof.targets.cnpg.state_and_doctor_facts import GUARDED, TAKEN


def ids(facts: Facts) -> list[str]:
    return [f.id for f in diagnosed(facts)]


def test_of_the_recorded_healthy_cluster_only_its_one_node_is_found() -> None:
    assert diagnosed(healthy()) == ()
    (node,) = diagnosed(seen(FakeApi()))
    assert (node.id, node.evidence) == ("cnpg-instances-together", "pg-1, pg-2, pg-3 run on node1")
    assert node.severity is Severity.WARNING and "every copy" in node.could_cost
    body = """'{"spec":{"affinity":{"enablePodAntiAffinity":true,"podAntiAffinityType":"required","""
    assert body in node.fix and '"topologyKey":"kubernetes.io/hostname"' in node.fix and "stays Pending" in node.fix


@each([{"data_checksums": "off"}, {"fsync": "off"}, {"wal_receiver_timeout": "0ms"}])
def test_what_all_instances_have_in_common_is_found_once(fault: dict[str, str]) -> None:
    """A real cluster without checksums gave three findings with one and the same fix."""
    (found,) = diagnosed(with_settings(healthy(), "*", **fault))
    assert found.member in ("pg-1, pg-2, pg-3", "pg-2, pg-3")
    (one,) = diagnosed(with_settings(healthy(), "pg-2", **fault))
    assert (one.member, one.fix) == ("pg-2", found.fix)


def test_the_clusters_own_name_among_the_standbys_is_no_ghost() -> None:
    assert '"pg-1"' in healthy().leader.value("synchronous_standby_names")  # type: ignore[union-attr]
    ghost = with_settings(healthy(), "*", synchronous_standby_names='ANY 1 ("pg-2","pg-3","pg-9")')
    (found,) = diagnosed(ghost)
    assert found.id == "names-match-nobody" and "pg-9" in found.evidence and "kubectl cnpg status pg" in found.fix


@each([n for n in CNPG_SEEDS if n != "cnpg-acknowledges-alone"])
def test_a_seed_is_found_alone(name: str) -> None:
    assert ids(CNPG_SEEDS[name]) in ([name], [name, "cnpg-not-ready"], ["cnpg-not-ready", name])


def test_page_writes_off_in_the_spec_are_found_as_fsync_is() -> None:
    assert ids(healthy(postgresql={"parameters": {"full_page_writes": "off"}})) == ["cnpg-unsafe-parameter"]


def test_alter_system_that_overrides_the_operator_is_an_error_and_its_cure_is_stated() -> None:
    found = {f.id: f for f in diagnosed(OVERRIDDEN)}
    assert found["cnpg-alter-system"].severity is Severity.ERROR
    assert "synchronous_standby_names" in found["cnpg-alter-system"].evidence
    alone = found["cnpg-acknowledges-alone"]
    assert alone.evidence == "spec.postgresql.synchronous is ANY 1, synchronous_standby_names is ''"
    assert "ALTER SYSTEM RESET ALL" in alone.fix and '"enableAlterSystem":false' in alone.fix


def test_preferred_without_standbys_is_found_where_it_is_in_effect() -> None:
    assert "cnpg-acknowledges-alone" in ids(CNPG_SEEDS["cnpg-acknowledges-alone"])
    assert "cnpg-acknowledges-alone" not in ids(CNPG_SEEDS["cnpg-preferred"])
    fewer = with_settings(
        healthy(postgresql={"synchronous": {"number": 2}}), "*", synchronous_standby_names='ANY 1 ("pg-2","pg-3")'
    )
    assert "cnpg-acknowledges-alone" in ids(fewer)


def former(least: int, most: int, names: str, **spec: object) -> Facts:
    """A Cluster with minSyncReplicas and maxSyncReplicas, and the names in effect."""
    spec = {"postgresql": {"synchronous": None}, "minSyncReplicas": least, "maxSyncReplicas": most, **spec}
    return with_settings(healthy(**spec), "*", synchronous_standby_names=names)


BOTH = '("pg-2","pg-3")'


# rows: all ready, degraded, one of two, no minimum, two instances, both, below the minimum
@each([
    (former(1, 2, f"ANY 2 {BOTH}"), [("cnpg-preferred", "note")]),
    (former(1, 2, 'ANY 1 ("pg-2")'), [("cnpg-preferred", "note")]),
    (former(1, 1, f"ANY 1 {BOTH}"), [("cnpg-preferred", "note")]),
    (former(0, 2, 'ANY 1 ("pg-2")'), [("cnpg-preferred", "warning")]),
    (former(1, 1, 'ANY 1 ("pg-2")', instances=2), [("cnpg-preferred", "warning")]),
    (former(2, 2, f"ANY 2 {BOTH}"), [("cnpg-preferred", "warning")]),
    (former(2, 2, 'ANY 1 ("pg-2")'), [("cnpg-acknowledges-alone", "error"), ("cnpg-preferred", "warning")]),
])  # fmt: skip
def test_the_former_keys_sink_with_the_standbys_that_are_ready(facts: Facts, found: list[tuple[str, str]]) -> None:
    """getSyncReplicasData of the operator: max, min while fewer are ready, then as many as are ready, down to none."""
    assert [(f.id, str(f.severity)) for f in diagnosed(facts)] == found


def test_the_former_keys_are_replaced_by_what_is_required() -> None:
    (found,) = diagnosed(former(1, 2, f"ANY 2 {BOTH}"))
    assert found.evidence == "minSyncReplicas: 1, maxSyncReplicas: 2"
    body = json.loads(found.fix.split("--patch '")[1].rstrip("'"))["spec"]
    assert (body["minSyncReplicas"], body["maxSyncReplicas"]) == (0, 0)
    assert body["postgresql"]["synchronous"] == {"method": "any", "number": 1}
    (alone, *_) = diagnosed(former(1, 2, ""))
    assert alone.evidence == "minSyncReplicas: 1, maxSyncReplicas: 2, synchronous_standby_names is ''"


def preferred(names: str) -> Facts:
    sync = {"number": 2, "dataDurability": "preferred"}
    return with_settings(healthy(postgresql={"synchronous": sync}), "*", synchronous_standby_names=names)


def test_preferred_degrades_as_promised_while_a_standby_is_named() -> None:
    assert ids(preferred('ANY 1 ("pg-2")')) == ["cnpg-preferred"]
    assert "cnpg-acknowledges-alone" in ids(preferred(""))


DR = Sender("dr-1", sync_state="quorum", slot="dr"), Sender("dr-2", sync_state="quorum", slot="dr2")


# rows: none, none, no spare, any, first, behind, first, ahead, one more, capped, alone here
@each([
    ({"maxStandbyNamesFromCluster": 0, "standbyNamesPre": ["dr-1", "dr-2"]}, 3, ["cnpg-standbys-elsewhere"]),
    ({"maxStandbyNamesFromCluster": 0, "standbyNamesPre": ["dr-1"]}, 3, ["cnpg-no-spare", "cnpg-standbys-elsewhere"]),
    ({"standbyNamesPost": ["dr-1"]}, 3, ["cnpg-standbys-elsewhere"]),
    ({"standbyNamesPost": ["dr-1"], "method": "first"}, 3, []),
    ({"standbyNamesPre": ["dr-1"], "method": "first"}, 3, ["cnpg-standbys-elsewhere"]),
    ({"standbyNamesPre": ["dr-1"], "number": 2}, 3, []),
    ({"maxStandbyNamesFromCluster": 1}, 3, []),
    ({"standbyNamesPre": ["dr-1", "dr-2"]}, 1, []),
])  # fmt: skip
def test_standbys_elsewhere_count_and_are_no_copy_of_this_cluster(
    sync: dict[str, Any], instances: int, found: list[str]
) -> None:
    facts = healthy(instances=instances, postgresql={"synchronous": sync})
    leader = facts.leader
    assert leader is not None
    names = [*sync.get("standbyNamesPre", ()), "pg-2", "pg-3", "pg-1", *sync.get("standbyNamesPost", ())]
    text = f"{sync.get('method', 'any').upper()} {sync.get('number', 1)} ({','.join(map(json.dumps, names))})"
    facts = with_settings(facts, "*", synchronous_standby_names=text)
    facts = with_member(facts, "pg-1", senders=(*leader.senders, *DR))
    assert [name for name in ids(facts) if name != "first-where-any-would-do"] == found


# rows: quorum, smart, delay, wal, affinity, spread
@each([
    healthy(instances=3, postgresql={"synchronous": {"number": 1, "failoverQuorum": True}}),
    healthy(smartShutdownTimeout=30),
    healthy(failoverDelay=10),
    healthy(walStorage={"size": "4Gi"}),
    healthy(affinity={"podAntiAffinityType": "required"}),
    healthy(topologySpreadConstraints=[{"topologyKey": "zone",
     "labelSelector": {"matchLabels": {"cnpg.io/cluster": "pg"}}}]),
])  # fmt: skip
def test_what_is_well_made_is_not_found(facts: Facts) -> None:
    assert ids(facts) == []


@each(SEEDS)
def test_every_fix_can_be_taken_by_cloudnativepg(name: str) -> None:
    """The operator refuses ALTER SYSTEM, and there is no patronictl: every finding there has another fix."""
    cnpg = CNPG_SEEDS[name] if name in CNPG_SEEDS else replace(SEEDS[name], patroni=None, cnpg=healthy().cnpg)
    for found in diagnosed(cnpg):
        assert "ALTER SYSTEM SET" not in found.fix and "ALTER SYSTEM RESET recovery" not in found.fix, found
        assert "patronictl" not in found.fix and "Patroni" not in found.fix, found
        assert "postgresql.conf" not in found.fix.replace(".auto.conf", ""), found
        for body in re.findall(r"--patch '(.*?)'", found.fix):
            assert set(json.loads(body)) == {"spec"}
            assert "kubectl patch cluster pg --namespace default --type merge" in found.fix


DEFAULTS = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")


def test_default_keepalives_are_silent_only_while_replication_ends_dead_peers_itself() -> None:
    facts = healthy()
    default = {name: setting(name, "0", "default") for name in DEFAULTS}
    leader = {**facts.leader.settings, **default}  # type: ignore[union-attr]
    quiet = with_member(facts, "pg-1", settings=leader)
    assert ids(quiet) == []
    waiting = {**leader, "wal_sender_timeout": setting("wal_sender_timeout", "0ms")}
    assert {"keepalives-long", "user-timeout-off"} & set(ids(with_member(facts, "pg-1", settings=waiting)))


def test_fsync_in_effect_is_found_once_with_a_patch() -> None:
    off = with_settings(healthy(postgresql={"parameters": {"fsync": "off"}}), "*", fsync="off")
    found = diagnosed(off)
    assert {f.id for f in found} == {"fsync-off"}
    assert found[0].fix.endswith("""--patch '{"spec":{"postgresql":{"parameters":{"fsync":"on"}}}}'""")


def service(name: str, owner: str = "", **selector: str) -> dict[str, Any]:
    owners = {"ownerReferences": [{"kind": "Cluster", "name": owner}]} if owner else {}
    return {"metadata": {"name": name, **owners}, "spec": {"selector": {"cnpg.io/cluster": "pg", **selector}}}


INSTANCE = {"cnpg.io/podRole": "instance"}
SERVICES_MADE = {
    "of all": (service("pg-external", **INSTANCE), ["cnpg-service-of-all"]),
    "of all by the cluster alone": (service("shop"), ["cnpg-service-of-all"]),
    "the operator's -r": (service("pg-r", "pg", **INSTANCE), []),
    "of the primary": (service("pg-lb", **{"cnpg.io/instanceRole": "primary"}), []),
    "for reads": (service("pg-readers", **INSTANCE), []),
    "of another": (service("other", **{"cnpg.io/cluster": "other"}), []),
    "of the poolers": (service("pg-pool", **{"cnpg.io/podRole": "pooler"}), []),
    "without a selector": ({"metadata": {"name": "headless"}, "spec": {"selector": None}}, []),
}


@each(SERVICES_MADE)
def test_the_live_cluster_has_its_services(name: str) -> None:
    made, found = SERVICES_MADE[name]
    api = apart()
    api.put(SERVICES, made)
    assert ids(seen(api)) == found


def pooler(cluster: str = "pg", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "way"}, "spec": {"cluster": {"name": cluster}, "instances": 2, **spec}}


@each([
    (pooler(instances=1), ["pooler-alone"]),
    (pooler(pgbouncer={"paused": True}), ["pooler-paused"]),
    (pooler(pgbouncer={"parameters": {"server_lifetime": "86400"}}), ["pgbouncer-keeps-server"]),
    (pooler(), []),
    (pooler("other", instances=1), []),
])  # fmt: skip
def test_the_live_cluster_has_its_poolers(made: dict[str, Any], found: list[str]) -> None:
    api = apart()
    api.put(POOLERS, made)
    assert ids(seen(api)) == found


def test_what_is_not_checked_without_a_right_is_said() -> None:
    api = apart()
    api.forbidden = {("list", "services"), ("list", "poolers")}
    services, poolers = diagnosed(seen(api))
    assert {services.id, poolers.id} == {"rights-missing"}
    assert "may not list" in services.evidence and "cnpg-service-of-all is not checked" in services.evidence
    assert "pooler-paused" in poolers.evidence and 'resources: ["poolers"], verbs: ["list"]' in poolers.fix
    assert services.severity is Severity.NOTE


def quorum(**spec: Any) -> dict[str, Any]:
    return {"postgresql": {"synchronous": {"failoverQuorum": True}}, **spec}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no quorum": ("failoverQuorum is not true", {}),
    "asynchronous": ("dataDurability is not required; failoverQuorum is not true",
     {"postgresql": {"synchronous": None}}),
    "preferred": ("dataDurability is not required", {"postgresql": {"synchronous": {"failoverQuorum": True,
     "dataDurability": "preferred"}}}),
    "the former keys": ("dataDurability is not required; failoverQuorum is not true",
     {"postgresql": {"synchronous": None}, "minSyncReplicas": 2, "maxSyncReplicas": 2}),
    "elsewhere": ("standbyNamesPre or standbyNamesPost is set", {"postgresql": {"synchronous": {"failoverQuorum": True,
     "standbyNamesPost": ["dr"], "number": 2}}}),
    "delay": ("failoverDelay is set", quorum(failoverDelay=20)),
    "streaming": ("a streaming readiness probe", quorum(probes={"readiness": {"type": "streaming"}})),
    "hasty": ("within 7 s", quorum(probes={"readiness": {"periodSeconds": 6, "failureThreshold": 2}})),
    "one instance": ("there is no standby", quorum(instances=1)),
}  # fmt: skip


@each(REFUSED.values())
def test_what_the_guard_would_refuse_is_found_where_one_watches(reasons: str, spec: dict[str, Any]) -> None:
    facts = guarded(**spec)
    assert facts.cnpg is not None
    (found,) = (f for f in diagnosed(facts) if f.id == "cnpg-guard-refuses")
    assert reasons in found.evidence and found.evidence.endswith(why_not_guarded(facts.cnpg))
    wanted = json.loads(found.fix.split("--patch '")[1].rstrip("'"))["spec"]
    sync = wanted["postgresql"]["synchronous"]
    assert sync["dataDurability"] == "required" and sync["failoverQuorum"] is True and sync["number"] > 0
    assert wanted.get("maxSyncReplicas", 0) == 0 and ("maxSyncReplicas" in wanted) == ("maxSyncReplicas" in spec)
    assert "cnpg-guard-refuses" not in ids(healthy(**spec)), "no guard is meant"


@each([GUARDED, TAKEN])
def test_what_the_guard_takes_is_not_found(annotation: str) -> None:
    for spec in (quorum(), quorum(probes={"readiness": {"periodSeconds": 7, "failureThreshold": 2}})):
        assert "cnpg-guard-refuses" not in ids(guarded(annotation, **spec))
    assert "cnpg-guard-refuses" in ids(guarded(annotation))
