"""The printed Role, on an API server that keeps to it: enough for every verb, and for nothing else."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures.kubernetes.access import Account, Rule, applied, role_in
from tests.fixtures.kubernetes.kinds import CHAOS, named
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from tests.fixtures.kubernetes.state import HEALTHY
from tests.fixtures.tiers import every
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.model.waiting import Wait, wait_for
from walproof.records.journal import Journal
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.created_objects import left_behind, swept
from walproof.targets.cnpg.credentials_and_own_role import OwnRole
from walproof.targets.cnpg.faults_and_undo import CnpgSwitchover, Instances
from walproof.targets.cnpg.faults_and_undo_by_chaos_mesh import ChaosMesh
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, JOBS, PODS, SECRETS, ApiError
from walproof.targets.cnpg.members import CnpgAccess
from walproof.targets.cnpg.rbac import (
    CHAOS_FAULTS,
    CHAOS_MESH,
    LOAD_PODS,
    SCALE,
    USES,
    CnpgRights,
    Names,
    for_experiment,
    for_fault,
    refused_faults,
    rules_for,
)
from walproof.targets.cnpg.rbac import Rule as Needed
from walproof.targets.cnpg.state_and_doctor_facts import pods_of
from walproof.targets.cnpg.target_file import CnpgFile
from walproof.targets.configure import NoJournal
from walproof.targets.simulated.clock import VirtualClock

NAME = "cnpg:default/pg"
FILE = CnpgFile(kind="cnpg", cluster="default/pg", reach="port-forward")
MEMBERS = ("pg-1", "pg-2", "pg-3")
NAMES = Names("pg", MEMBERS)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path, speed=40) as started:
        yield started


def client(running: StandIn, *uses: str) -> Client:
    """One whose user may do what is printed for these uses, by a user who may read the Cluster."""
    administrator, context = connection("", {"KUBECONFIG": str(running.serving.kubeconfig(None, "administrator"))})
    printed = CnpgRights(FILE, lambda: Client(administrator, "default", context)).role(uses)
    return client_of(running, applied(printed))


def client_of(running: StandIn, account: Account) -> Client:
    configuration, context = connection("", {"KUBECONFIG": str(running.serving.kubeconfig(account, "least"))})
    return Client(configuration, "default", context)


def others(running: StandIn) -> None:
    """What else lies in the namespace: a secret, a Job, a pod."""
    pod = running.store.get(named("Pod"), "default", "pg-1")
    pod["metadata"] = {"name": "bank-0", "namespace": "default", "labels": {}}
    running.store.create(named("Pod"), pod)
    running.store.create(
        named("Secret"), {"metadata": {"name": "bank", "namespace": "default"}, "data": {"key": "eA=="}}
    )
    job = {"metadata": {"name": "backup", "namespace": "default"}, "spec": {"suspend": True, "template": {}}}
    running.store.create(named("Job"), job | {"spec": {"suspend": True, "parallelism": 1, "template": {"spec": {}}}})


def test_it_reaches_nothing_else_in_the_namespace(running: StandIn) -> None:
    others(running)
    api = client(running, *USES, SCALE, CHAOS_MESH)
    refused: list[Callable[[], object]] = [
        lambda: api.list(SECRETS, created_objects.OURS),
        lambda: api.list(SECRETS),
        lambda: api.get(SECRETS, "bank"),
        lambda: api.delete(SECRETS, "bank", uid="1"),
        lambda: api.delete(SECRETS, "pg-app", uid="1"),
        lambda: api.list(JOBS),
        lambda: api.delete(JOBS, "backup", uid="1"),
        lambda: api.create(JOBS, {"metadata": {"name": "mine"}}),
        lambda: api.get(PODS, "bank-0"),
        lambda: api.exec("bank-0", ["sh", "-c", "env"]),
        lambda: api.forward("bank-0", 5432),
        lambda: api.log("bank-0"),
        lambda: api.delete(PODS, "bank-0", grace_s=0, uid="1"),
        lambda: api.patch(CLUSTERS, "other", {"spec": {}}),
    ]
    for act in refused:
        with pytest.raises(ApiError, match=r"may not \w+ .* \(403\)"):
            act()
    with pytest.raises(ApiError, match=r"\(403\)"):
        client(running, *USES, LOAD_PODS).delete(JOBS, "backup", uid="1")
    left = [
        (kind, running.store.find(kind, name))
        for kind, name in (("Pod", "bank-0"), ("Secret", "bank"), ("Job", "backup"))
    ]
    assert all(item is not None for _, item in left)


Act = Callable[[], None]


def acts(api: Client, journal: Journal) -> dict[Capability, tuple[Act, Act]]:
    """Injection and undo of every fault that this user may do to the standby pg-2, but for the switchover."""
    instances = Instances(api, "pg", NAME, RealClock(), lambda: journal)
    chaos = ChaosMesh(instances)
    able = {**instances.faults(), **chaos.faults()}
    pairs = {fault: (partial(one.inject, "pg-2"), partial(one.undo, "pg-2")) for fault, one in able.items()}
    if (slow := chaos.slow_disk()) is not None:
        pairs[Capability.SLOW_DISK] = partial(slow.inject, "pg-2", 0.1), partial(slow.undo, "pg-2")
    if (one_way := chaos.one_way()) is not None:
        both = ("pg-2", "pg-3")
        pairs[Capability.PARTITION_ONE_WAY] = partial(one_way.inject, *both), partial(one_way.undo, *both)
    return {fault: pair for fault, pair in pairs.items() if fault not in refused_faults(api, NAMES)}


RULES = {**for_fault(NAMES), **{fault: for_experiment(kind, NAMES) for fault, kind in CHAOS_FAULTS.items()}}
INTO_ONE = tuple(fault for fault in RULES if fault is not Capability.SWITCHOVER)
each_fault = pytest.mark.parametrize(
    "fault",
    [INTO_ONE[0], *(pytest.param(one, marks=pytest.mark.nightly) for one in INTO_ONE[1:-1]), INTO_ONE[-1]],
    ids=str,
)  # fmt: skip
"""One of the target's own and one of Chaos Mesh with every push."""


def of(*rules: Needed) -> Account:
    return Account(rules=tuple(Rule(one.verbs, (one.kind.plural,), (one.kind.group,), one.names) for one in rules))


@each_fault
def test_every_fault_is_done_and_undone_under_it(running: StandIn, tmp_path: Path, fault: Capability) -> None:
    """Under what is printed for prove and Chaos Mesh, and under no more than its own rules and the doctor's."""
    journal = Journal(tmp_path / "journal.jsonl")
    printed = client(running, "prove", *([CHAOS_MESH] if fault in CHAOS_FAULTS else []))
    least = client_of(running, of(*rules_for(["doctor"], NAMES), *RULES[fault]))
    for api in (printed, least):
        wait_for(Wait.CLUSTER_HEALTHY, lambda: settled(running, printed), RealClock(), pace_s=0.02)
        assert printed.log("pg-2") is not None
        inject, undo = acts(api, journal)[fault]
        inject()
        undo()
        assert journal.pending() == ()


def settled(running: StandIn, api: Client) -> bool:
    """Whether the operator says healthy and every instance is ready."""
    ready = [name for name, pod in pods_of(api, "pg").items() if pod.ready]
    return running.cnpg.state.phase == HEALTHY and tuple(ready) == MEMBERS


@each_fault
def test_a_fault_that_could_not_be_ended_is_not_begun(running: StandIn, tmp_path: Path, fault: Capability) -> None:
    """Each verb of its rules taken away: it is skipped then. Where it is tried all the same nothing is left of it."""
    journal = Journal(tmp_path / "journal.jsonl")

    def taken_away(verb: str, resource: str) -> None:
        account = of(*rules_for(["doctor"], NAMES), *RULES[fault])
        everything = acts(client_of(running, account), journal)[fault]
        account.without = (Rule((verb,), (resource,)),)
        assert fault not in acts(client_of(running, account), journal)
        begins = "create" if fault in CHAOS_FAULTS else {"pods/exec": "get", "clusters": "patch"}.get(resource, verb)
        if verb == begins and resource == RULES[fault][0].kind.plural:
            with pytest.raises(ApiError, match=rf"may not {verb} {resource}"):
                everything[0]()
            assert journal.pending() == ()
        assert [kind for kind in CHAOS if running.store.listed(kind)[0]] == []

    every([(verb, rule.kind.plural) for rule in RULES[fault] for verb in rule.verbs], taken_away)


def primary_of(running: StandIn) -> str:
    return str((running.store.find("Cluster", "pg") or {})["status"]["currentPrimary"])


def test_a_switchover_is_done_under_it(running: StandIn) -> None:
    api = client(running, "prove")

    def observe() -> ClusterView:
        primary = primary_of(running)
        roles = {name: Role.LEADER if name == primary else Role.STANDBY for name in MEMBERS}
        members = tuple(MemberView(name, role, "running") for name, role in roles.items())
        return ClusterView(0.0, members, primary, "")

    CnpgSwitchover(Instances(api, "pg", "", RealClock(), NoJournal), observe).switch_over("pg-2")
    assert primary_of(running) == "pg-2"


def test_a_role_of_its_own_comes_and_goes_under_it_and_is_swept_without_its_journal(
    running: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, journal = client(running, "price"), Journal(tmp_path / "journal.jsonl")
    own = OwnRole(api, "pg", NAME, VirtualClock())
    made = own.make(journal, 15, lambda _: True)
    left = own.left(journal)
    assert left is not None and left.password == made.password
    assert [one.meta.name for one in left_behind(api, "pg")] == ["pg-walproof-role", made.user]
    lost = Journal(tmp_path / "lost.jsonl")
    monkeypatch.setattr(pid_files, "identity", lambda pid: "another")
    assert own.adopt(lost) and [change.name for change in lost.pending()] == [made.user]
    own.remove(lost, lambda _: True)
    assert left_behind(api, "pg") == () and swept(api, "pg") == []
    spec = (running.store.find("Cluster", "pg") or {})["spec"]
    assert not (spec.get("managed") or {}).get("roles")


def test_a_name_that_is_wrong_is_said_to_be_perhaps_wrong_with_those_that_the_role_names(running: StandIn) -> None:
    """RBAC decides before the name is looked for: a Cluster that is not there is a 403 too."""
    with pytest.raises(ApiError) as wrong:
        CnpgAccess(client(running, "doctor"), CnpgFile(kind="cnpg", cluster="default/pgg"))
    message, hint = wrong.value.message, wrong.value.hint
    assert "may not get clusters.postgresql.cnpg.io in namespace default (403)" in message
    assert "there may be no Cluster pgg there; this user's rights name only pg" in message
    assert "is the name right?" in hint and 'resourceNames: ["pgg"], verbs: ["get"]' in hint
    with pytest.raises(ApiError, match="rights name no Cluster there by name"):
        CnpgAccess(client_of(running, Account(rules=())), FILE)
    with pytest.raises(ApiError, match=r"there is no clusters.postgresql.cnpg.io pgg in namespace default \(404\)"):
        CnpgAccess(client_of(running, Account()), CnpgFile(kind="cnpg", cluster="default/pgg"))


def test_members_are_reached_by_forwards_under_it(running: StandIn) -> None:
    access = CnpgAccess(client(running, "doctor"), FILE)
    assert tuple(access.members()) == MEMBERS
    for name in MEMBERS:
        with contextlib.closing(access.api.forward(name, 5432)):
            pass


def test_a_status_that_names_pods_of_others_gets_none_of_them_into_the_role() -> None:
    def kept_out(name: str) -> None:
        api = FakeApi()
        api.cluster["status"]["instanceNames"] = ["pg-1", name]
        text = CnpgRights(FILE, lambda: api).role(USES)
        assert role_in(text) == role_in(CnpgRights(FILE, None).role(USES)), "the three that are guessed"
        comments = text[: text.index("apiVersion")].splitlines()
        assert len(comments) == 3 and all(line.startswith("# ") for line in comments)
        assert "which is no name of the operator's" in comments[1]

    lines = "pg-1\n- apiGroups: ['*']\n  resources: ['*']\n  verbs: ['*']"
    every(["bank-0", lines, "pg-", "pg-1-x", "*", "pg2-1", ""], kept_out)
