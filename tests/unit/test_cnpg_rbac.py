"""Rights of CloudNativePG: the least Role for each use, and what of it is missing, verb by verb."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.fixtures.kubernetes.access import applied, role_in
from tests.fixtures.kubernetes.port import FakeApi
from tests.fixtures.tiers import each
from walproof.cli.main import walproof
from walproof.errors import UsageError
from walproof.targets.cnpg.kubernetes_api import ACCESS_REVIEWS, CLUSTERS, ApiError, Kind, Tree
from walproof.targets.cnpg.rbac import USES, CnpgRights, Names, missing_of, perhaps_misnamed, rules_for
from walproof.targets.cnpg.state_and_doctor_facts import asked_for_clients_way, facts_of
from walproof.targets.cnpg.target_file import CnpgFile, LoadPart

FILE = CnpgFile(kind="cnpg", cluster="default/pg")
NAMES = Names("pg", ("pg-1", "pg-2", "pg-3"), "pg-app")


class Reviewing(FakeApi):
    """Answers access reviews: allowed is what this Role allows."""

    def __init__(self, role: Mapping[str, Any]) -> None:
        super().__init__()
        self.role = role

    def create(self, kind: Kind, body: Mapping[str, Any]) -> Tree:
        assert kind is ACCESS_REVIEWS
        asked = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": any(_allows(rule, asked) for rule in self.role["rules"])}}


def _allows(rule: Mapping[str, Any], asked: Mapping[str, str]) -> bool:
    """As RBAC matches: group, resource with its subresource, verb, and the name where the rule has names."""
    resource = "/".join(p for p in (asked["resource"], asked.get("subresource", "")) if p)
    named = "resourceNames" not in rule or asked.get("name") in rule["resourceNames"]
    return (
        asked["group"] in rule["apiGroups"]
        and resource in rule["resources"]
        and asked["verb"] in rule["verbs"]
        and named
    )


def role(*uses: str) -> dict[str, Any]:
    return role_in(CnpgRights(FILE, None).role(uses))


@each(USES)
def test_the_role_that_is_printed_is_enough_and_each_verb_of_it_is_needed(use: str) -> None:
    whole = role(use)
    rules = rules_for([use], NAMES)
    assert missing_of(Reviewing(whole), rules) == ()
    for number, rule in enumerate(whole["rules"]):
        for verb in rule["verbs"]:
            less = yaml.safe_load(yaml.safe_dump(whole))
            less["rules"][number]["verbs"].remove(verb)
            lacks = CnpgRights(FILE, lambda less=less: Reviewing(less)).missing([use])  # type: ignore[misc]
            assert lacks == [f"{verb} {'.'.join(p for p in (rule['resources'][0], rule['apiGroups'][0]) if p)}"]


def test_the_doctor_changes_nothing_and_sees_one_secret() -> None:
    verbs = {
        verb for rule in role("doctor")["rules"] if rule["resources"] != ["pods/portforward"] for verb in rule["verbs"]
    }
    assert verbs == {"get", "list"}
    (secrets,) = [rule for rule in role("doctor")["rules"] if rule["resources"] == ["secrets"]]
    assert secrets["resourceNames"] == ["pg-app"] and secrets["verbs"] == ["get"]


def test_a_forward_to_an_instance_is_printed_only_where_it_is_used_and_the_role_says_what_it_amounts_to() -> None:
    """The manager's local server answers it with the credentials of the backup store."""
    within = CnpgFile(kind="cnpg", cluster="default/pg", reach="pods")
    for use in ("doctor", "price", "apply"):
        assert "pods/portforward" not in CnpgRights(within, None).role([use]), use
    assert "pods/portforward" in CnpgRights(within, None).role(["prove"]), "pitfall K7 is kubectl's forward"
    text = CnpgRights(FILE, None).role(["doctor"])
    assert "pods/portforward" in text and "amount to: docs/kubernetes.md, Rights" in text


def test_what_a_use_asks_of_the_api_is_in_its_role() -> None:
    """What the doctor really asks for, against the Role that it prints."""
    from walproof.targets.cnpg.members import CnpgAccess

    api = FakeApi()
    access = CnpgAccess(api, CnpgFile(kind="cnpg", cluster="default/pg", reach="pods"))
    asked_for_clients_way(api, facts_of(access.state))
    asked = {(verb, kind) for verb, kind, _ in api.asked}
    granted = {(v, r) for rule in role("doctor")["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert asked <= granted
    assert granted - asked == {("get", "pods/portforward"), ("create", "pods/portforward")}


def test_instances_are_those_that_the_cluster_has_and_the_role_says_when_to_print_it_again() -> None:
    api = FakeApi()
    api.cluster["status"]["instanceNames"] = ["pg-1", "pg-4"]
    text = CnpgRights(FILE, lambda: api).role(["prove"])
    rules = role_in(text)["rules"]
    for resource in ("pods/exec", "pods/portforward", "pods/log"):
        assert [r["resourceNames"] for r in rules if r["resources"] == [resource]] == [["pg-1", "pg-4"]]
    assert [r.get("resourceNames") for r in rules if r["resources"] == ["pods"]] == [None, ["pg-1", "pg-4"]]
    assert (
        "# The instances are pg-1, pg-4. Print this again when one is added or made anew under another name.\n" in text
    )
    del api.cluster["status"]["instanceNames"]
    assert "are pg-1, pg-2, pg-3. Print" in CnpgRights(FILE, lambda: api).role(["prove"]), "as many as are declared"


def test_instances_that_cannot_be_asked_for_are_guessed_with_a_comment() -> None:
    api = FakeApi()
    api.forbidden = {("get", "clusters")}
    text = CnpgRights(FILE, lambda: api).role(["doctor"])
    assert "pg-1, pg-2, pg-3. They are guessed (" in text and "may not get clusters.postgresql.cnpg.io" in text
    assert "kubectl get cluster pg shows them" in text and role_in(text)["kind"] == "Role"


def test_what_cannot_be_named_is_no_more_than_it_must_be() -> None:
    """Only what RBAC cannot narrow stands without names: lists, creations, and forwards to a Job's pods."""
    open_rules = {(v, r) for rule in role(*USES)["rules"] for r in rule["resources"] for v in rule["verbs"]
                  if "resourceNames" not in rule}  # fmt: skip
    listed = {("list", kind) for kind in ("pods", "endpointslices", "services", "poolers")}
    assert open_rules == {*listed, ("create", "secrets")}
    with_load = role(*USES, "load-pods")["rules"]
    more = {(v, r) for rule in with_load for r in rule["resources"] for v in rule["verbs"]
            if "resourceNames" not in rule} - open_rules  # fmt: skip
    assert more == {("create", "jobs"), ("get", "pods/portforward"), ("create", "pods/portforward")}


def test_load_pods_of_the_target_are_in_its_role() -> None:
    file = CnpgFile(kind="cnpg", cluster="default/pg", load=LoadPart(image="localhost/x"))
    for use, within in (("price", True), ("prove", True), ("doctor", False), ("apply", False)):
        assert ("batch" in CnpgRights(file, None).role([use])) is within, use


def test_chaos_mesh_is_named_only_where_it_is_asked_for() -> None:
    groups = {group for rule in role(*USES)["rules"] for group in rule["apiGroups"]}
    assert "chaos-mesh.org" not in groups
    asked = [rule for rule in role("prove", "chaos-mesh")["rules"] if rule["apiGroups"] == ["chaos-mesh.org"]]
    assert [(rule["resources"], rule["verbs"]) for rule in asked] == [
        ([plural], ["get", "list", "create", "delete"]) for plural in ("networkchaos", "iochaos", "stresschaos")
    ]
    assert "chaos-mesh.org" not in run("--print-rbac", "--for", "prove")[1]
    assert "networkchaos" in run("--print-rbac", "--for", "prove", "--for", "chaos-mesh")[1]
    # A right in every namespace is never part of what is applied: a comment says how it is given.
    text = run("--print-rbac", "--for", "price", "--for", "scale", "--target", "cnpg:db/pg")[1]
    assert "\n# kubectl create clusterrole walproof-nodes --verb list --resource nodes,pods\n" in text
    bound = "clusterrolebinding walproof.pg.nodes.db --clusterrole walproof-nodes --serviceaccount db:walproof.pg"
    assert f"\n# kubectl create {bound}\n" in text and "kind: ClusterRole" not in text
    assert "clusterrole" not in run("--print-rbac", "--for", "price")[1]


@each([USES, ["doctor"], ["missing"]], whole=True)
def test_what_is_printed_has_no_name_of_an_object_of_the_operators(uses: Sequence[str]) -> None:
    """CloudNativePG names a ServiceAccount, a Role and a RoleBinding as the Cluster: apply would overwrite them."""
    names = set()
    for cluster in ("walproof", "walproof-doctor", "walproof-missing"):
        rights = CnpgRights(CnpgFile(kind="cnpg", cluster=f"default/{cluster}"), lambda: Reviewing({"rules": []}))
        text = rights.role_of_missing(["doctor"]) if uses == ["missing"] else rights.role(uses)
        names |= {one["metadata"]["name"] for one in yaml.safe_load_all(text)}
    assert len(names) == 3, "two Clusters of one namespace have one account each"
    assert all(re.fullmatch(r"walproof(\.[a-z0-9-]+)+", name) for name in names)


def test_rules_of_one_kind_stand_together() -> None:
    clusters = [rule for rule in role(*USES)["rules"] if rule["resources"] == ["clusters"]]
    assert [rule["verbs"] for rule in clusters] == [["get", "patch"]]
    with pytest.raises(UsageError, match="'explode' is no use"):
        rules_for(["explode"], NAMES)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(walproof, ["target", "cnpg", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.output


def test_the_command_prints_roles_to_paste() -> None:
    code, text = run("--print-rbac", "--for", "doctor", "--target", "cnpg:db/pg")
    assert code == 0 and role_in(text)["metadata"] == {"name": "walproof.pg.doctor", "namespace": "db"}
    assert applied(text).user == "system:serviceaccount:db:walproof.pg.doctor"
    assert "kubectl create token walproof.pg.doctor --namespace db" in text
    assert role_in(run("--print-rbac")[1])["metadata"]["namespace"] == "NAMESPACE"
    with pytest.raises(UsageError, match="give --print-rbac or --dry-run"):
        run()
    with pytest.raises(UsageError, match="of one cluster only"):
        run("--dry-run")


def test_the_dry_run_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    reviewing = Reviewing(role("doctor"))
    monkeypatch.setattr("walproof.targets.cnpg.rbac.rights", lambda _: CnpgRights(FILE, lambda: reviewing))
    assert run("--dry-run", "--for", "doctor", "--target", "cnpg:default/pg") == (0, "doctor: allowed\n")
    code, text = run("--dry-run", "--for", "doctor", "--for", "apply", "--target", "cnpg:default/pg")
    first, second, *pasted = text.splitlines()
    assert (code, first, second) == (3, "doctor: allowed", "apply: missing: patch clusters.postgresql.cnpg.io")
    lacking = role_in("\n".join(pasted))
    (rule,) = lacking["rules"]
    assert rule["verbs"] == ["patch"] and rule["resourceNames"] == ["pg"]
    assert lacking["metadata"]["name"] not in {
        role(*uses)["metadata"]["name"] for uses in (["apply"], ["price", "apply"])
    }
    reviewing.remove(CLUSTERS, "pg")
    with pytest.raises(ApiError, match=r"there is no .* pg in namespace default"):
        run("--dry-run", "--for", "doctor", "--target", "cnpg:default/pg")


def test_names_that_yaml_takes_for_something_else_are_texts() -> None:
    """kubectl reads YAML 1.1 and 1.2 at once: y is true, 1e3 a number, unless they are quoted."""
    file = CnpgFile(kind="cnpg", cluster="y/1e3", secret="no: 'x'\n- {verbs: ['*']}")
    text = CnpgRights(file, None).role(USES)
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'metadata: {"name": "walproof.1e3", "namespace": "y"}' in values
    assert 'resourceNames: ["1e3"]' in text
    tree = role_in(text)
    (named,) = [
        rule
        for rule in tree["rules"]
        if rule["resources"] == ["secrets"] and file.secret in rule.get("resourceNames", [])
    ]
    assert named["verbs"] == ["get"] and all("*" not in rule["verbs"] for rule in tree["rules"])


def test_context_is_part_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def kept(address: str | None) -> CnpgRights:
        seen.append(address)
        return CnpgRights(FILE, None)

    monkeypatch.setattr("walproof.targets.cnpg.rbac.rights", kept)
    run("--print-rbac", "--target", "cnpg:db/pg", "--context", "me@kind a")
    assert seen == ["cnpg:db/pg?context=me@kind%20a"]
    with pytest.raises(UsageError, match="--context needs --target cnpg"):
        run("--print-rbac", "--context", "a")


@each([
    {"status": None},
    {"status": "x"},
    {"status": {"resourceRules": ["x"]}},
    {"status": {"resourceRules": [{"verbs": 1}]}},
])  # fmt: skip
def test_a_review_that_no_api_server_gives_leaves_the_refusal_as_it_is(answer: Tree) -> None:
    class Strange(FakeApi):
        def create(self, kind: Kind, body: Mapping[str, Any]) -> Tree:
            return answer

    refused = ApiError("may not get", "add a rule", code=403)
    assert perhaps_misnamed(Strange(), "pgg", refused) is refused
    named = {
        "apiGroups": ["*"],
        "resources": ["clusters"],
        "verbs": ["get"],
        "resourceNames": [f"c{n}" for n in range(99)],
    }
    answer |= {"status": {"resourceRules": [named]}}
    assert perhaps_misnamed(Strange(), "pgg", refused).message.endswith(
        "name only " + ", ".join(f"c{n}" for n in range(10))
    )
