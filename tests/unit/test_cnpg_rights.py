"""Each verb of the printed Role taken away in turn: the error names it and gives the rule, and nothing is half done.

That each fault calls no more than its own rules allow is shown in tests/hostile/test_least_role.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.access import Account, Rule, role_in, rules_of
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from tests.fixtures.tiers import each
from walproof.advising.doctor.catalogue import diagnosed
from walproof.errors import Error
from walproof.model.drill import Capability, Finding
from walproof.model.facts import Facts, MemberFacts
from walproof.model.guarantee import ConfigChange
from walproof.records.journal import Journal
from walproof.targets.cnpg import pitfalls
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.configuration import CnpgConfiguration
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.rbac import CHAOS_FAULTS, CHAOS_MESH, SCALE, USES, CnpgRights, Names, for_fault
from walproof.targets.cnpg.state_and_doctor_facts import asked_for_clients_way, facts_of
from walproof.targets.cnpg.target import CnpgCluster
from walproof.targets.cnpg.target_file import CnpgFile, LoadPart
from walproof.targets.external.cluster import ExternalCluster
from walproof.targets.simulated.clock import VirtualClock

FILE = CnpgFile(kind="cnpg", cluster="default/pg", reach="port-forward", load=LoadPart(image="localhost/none"))
USED = (*USES, SCALE, CHAOS_MESH)
PRINTED = role_in(CnpgRights(FILE, None).role(USED))["rules"]
VERBS = [
    (rule["apiGroups"][0], resource, verb, tuple(rule.get("resourceNames", ())))
    for rule in PRINTED
    for resource in rule["resources"]
    for verb in rule["verbs"]
]
ONE_EACH = list({resource: row for row in VERBS for resource in [row[1]]}.values())
"""One verb of each resource."""
INSTANCES = ("pg-1", "pg-2", "pg-3")
LATER = ("pods/portforward", "create", INSTANCES)
"""Asked by API servers after 1.34 alone, and of nothing that has to be undone."""
FAULTS = (*for_fault(Names("pg", INSTANCES)), *CHAOS_FAULTS)
OTHERS = (Capability.PRICE, Capability.LEDGER, Capability.LIMIT_PROCESSORS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with stand_in(tmp_path_factory.mktemp("api"), speed=40) as started:
        yield started


@pytest.fixture(autouse=True)
def without_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQL would say: the user may not make databases, roles come and go as they are asked for."""
    monkeypatch.setattr(CnpgCluster, "_may", lambda _: (False, 15))
    monkeypatch.setattr(CnpgCluster, "_usable", lambda _, credential: True)
    monkeypatch.setattr(CnpgCluster, "_gone", lambda _, role: True)
    monkeypatch.setattr(CnpgCluster, "leader", lambda _: "pg-1")
    monkeypatch.setattr(pitfalls, "breaks_under_tls", lambda *_: Finding(None, ""))
    monkeypatch.setattr(ExternalCluster, "open_database", lambda _: None)
    monkeypatch.setattr(CnpgConfiguration, "_await", lambda *_: None)


def refusals(running: StandIn, account: Account, folder: Path) -> list[str]:
    """Everything that each use says it may not do, with the hint; then all is undone."""
    configuration, context = connection("", {"KUBECONFIG": str(running.serving.kubeconfig(account, folder.name))})
    refused: list[str] = []
    try:
        cluster = CnpgCluster("cnpg:default/pg", FILE, Client(configuration, "default", context))
    except Error as wrong:
        return [f"{wrong.message}; {wrong.hint}"]
    cluster.clock, cluster.journal = VirtualClock(), Journal(folder / "journal.jsonl")
    member = MemberFacts("pg-1", "", leader=True, monitor=True, superuser=True)
    facts = Facts("", (member,), cnpg=asked_for_clients_way(cluster.access.api, facts_of(cluster.access.state))[0])
    refused += [f"{f.evidence}; {f.fix}" for f in diagnosed(facts) if f.id == "rights-missing"]
    for act in (
        cluster.open_database,
        lambda: changed(cluster),
        lambda: kept_logs(cluster),
        cluster.load_runner().open,
    ):
        try:
            act()
        except Error as wrong:
            refused.append(f"{wrong.message}; {wrong.hint}")
    refused.append(cluster.granting_amcheck(cluster._own_user) if cluster._own_user else "")
    able = cluster.capabilities()
    refused += [able.why_not(one) or "" for one in (*FAULTS, *OTHERS)]
    refused += [able.pitfalls[number]().evidence for number in ("K5", "K7")]
    cluster.revert(cluster.journal)
    assert cluster.journal.pending() == () and cluster._instances.injected == [] and cluster._chaos.injected == []
    return [sentence for sentence in refused if "may not" in sentence]


def changed(cluster: CnpgCluster) -> None:
    plan = cluster.configuration.plan(ConfigChange({"work_mem": "5MB"}))
    assert cluster.journal is not None
    cluster.configuration.apply(plan, cluster.journal)


def kept_logs(cluster: CnpgCluster) -> None:
    logs = cluster.capabilities().logs
    assert logs is not None
    logs.logs("pg-1")


def ours(running: StandIn) -> list[str]:
    """What is left of us: labelled objects, roles in the spec, our parameter."""
    label = "app.kubernetes.io/managed-by"
    listed = [item["metadata"] for kind in ("Secret", "Job") for item in running.store.listed(named(kind))[0]]
    left = [str(meta["name"]) for meta in listed if meta.get("labels", {}).get(label) == "walproof"]
    spec = (running.store.find("Cluster", "pg") or {})["spec"]
    left += [str(role["name"]) for role in (spec.get("managed") or {}).get("roles", [])]
    return left + [name for name in spec["postgresql"]["parameters"] if name == "work_mem"]


def test_the_printed_role_is_enough(running: StandIn, tmp_path: Path) -> None:
    assert refusals(running, Account(rules=rules_of(PRINTED)), tmp_path) == []
    assert ours(running) == []


@each(sorted(VERBS, key=lambda row: row not in ONE_EACH), push=len(ONE_EACH))
def test_a_verb_that_is_missing_is_named_with_its_rule(
    group: str, resource: str, verb: str, names: tuple[str, ...], running: StandIn, tmp_path: Path
) -> None:
    account = Account(rules=rules_of(PRINTED), without=(Rule((verb,), (resource,), (group,), names),))
    refused = refusals(running, account, tmp_path)
    if (resource, verb, names) == LATER:
        assert refused == []
    else:
        shown = f"{resource}.{group}" if group else resource
        assert refused
        for sentence in refused:
            assert f"may not {verb} {shown}" in sentence
            assert f'- {{apiGroups: ["{group}"], resources: ["{resource}"], ' in sentence
            assert f'verbs: ["{verb}"]}}' in sentence
    assert ours(running) == []
