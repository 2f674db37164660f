"""The stand-in's API server as recorded: admission and RBAC word for word, who may what, versions, owners, pages."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.kubernetes.access import Account, Rule
from tests.fixtures.kubernetes.api import MERGE, Api
from tests.fixtures.kubernetes.kinds import Kind, Refusal, named
from tests.fixtures.kubernetes.real_api import RealStore
from tests.fixtures.kubernetes.stand_in import manifest, stand_in
from tests.fixtures.kubernetes.store import Object, recorded
from tests.fixtures.tiers import each

PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLUSTERS = "/apis/postgresql.cnpg.io/v1/namespaces/default/clusters"
HERE = Path(__file__).parents[1] / "fixtures/kubernetes/recorded"


class Asking:
    """An account's requests; a refusal is raised."""

    def __init__(self, account: Account | None = None, api: Api | None = None) -> None:
        self.api = api or Api()
        self.token = self.api.accounts.add(account or Account())

    def __call__(self, method: str, path: str, body: Any = None, form: str = MERGE) -> Object:
        headers = {"authorization": f"Bearer {self.token}", "content-type": form}
        request = self.api.received(method, path, headers, json.dumps(body).encode() if body is not None else b"")
        return self.api.answer(request)[1]

    def refusal(self, method: str, path: str, body: Any = None, form: str = MERGE) -> tuple[int, str]:
        with pytest.raises(Refusal) as refused:
            self(method, path, body, form)
        return refused.value.code, refused.value.message


def secret(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name, **more}, "data": {"a": "MQ=="}}


def test_an_object_is_made_once_and_changed_onto_its_version_alone() -> None:
    ask = Asking()
    made = ask("POST", SECRETS, secret("one"))
    assert made["metadata"]["uid"] and made["kind"] == "Secret"
    assert ask.refusal("POST", SECRETS, secret("one")) == (409, 'secrets "one" already exists')
    version = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    assert ask("PATCH", f"{SECRETS}/one?dryRun=All", {**version, "data": {"a": None}})["data"] == {}
    assert ask("PATCH", f"{SECRETS}/one", {**version, "data": {"b": "Mg=="}})["data"] == {"a": "MQ==", "b": "Mg=="}
    code, message = ask.refusal("PATCH", f"{SECRETS}/one", version)
    assert code == 409 and "please apply your changes to the latest version" in message
    ask("DELETE", f"{SECRETS}/one")
    assert ask.refusal("GET", f"{SECRETS}/one") == (404, 'secrets "one" not found')


def test_a_list_comes_in_pages_of_those_with_the_labels() -> None:
    ask = Asking()
    for name in ("a", "b", "c"):
        ask("POST", SECRETS, secret(name, labels={"our": "b" if name == "b" else "ac", "all": "yes"}))
    page = ask("GET", f"{SECRETS}?labelSelector=our%3Dac,all%3Dyes&limit=1")
    rest = ask("GET", f"{SECRETS}?labelSelector=our%3Dac,all%3Dyes&limit=1&continue={page['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in page["items"] + rest["items"]] == ["a", "c"]
    assert "continue" not in rest["metadata"]


def test_what_is_owned_goes_with_its_owner_but_the_pods_of_a_job_stay() -> None:
    ask = Asking()
    for kind, policy, left in ((JOBS, None, True), (JOBS, "Background", False), (SECRETS, None, False)):
        owner = ask("POST", kind, {"metadata": {"name": "owner"}, "spec": {"template": {"spec": {}}}})["metadata"]
        ask("POST", SECRETS, secret("owned", ownerReferences=[{"uid": owner["uid"]}]))
        ask("DELETE", f"{kind}/owner", {"propagationPolicy": policy} if policy else None)
        assert bool(ask("GET", SECRETS)["items"]) is left
        if left:
            ask("DELETE", f"{SECRETS}/owned")


def test_the_status_subresource_changes_nothing_else_and_unknown_fields_are_pruned() -> None:
    ask = Asking()
    ask("POST", CLUSTERS, {**manifest(instanses=3), "status": {"phase": "invented"}})
    both = {"status": {"targetPrimary": "pg-2"}, "spec": {"instances": 5}}
    done = ask("PATCH", f"{CLUSTERS}/pg/status", both)
    assert done["status"] == {"targetPrimary": "pg-2"} and done["spec"]["instances"] == 3
    assert "instanses" not in done["spec"] and done["metadata"]["generation"] == 1
    done = ask("PATCH", f"{CLUSTERS}/pg", {"status": {"phase": "x"}, "spec": {"instances": 4}})
    assert done["status"] == {"targetPrimary": "pg-2"} and done["metadata"]["generation"] == 2


ADMISSION = yaml.safe_load((HERE / "admission.yaml").read_text("utf-8"))
NOT_IMITATED = (
    "wal_level=minimal", "wal_log_hints=off", "minSyncReplicas", '"instances":1', '"size":"1Gi"', ":latest",
    '"number":0', '"method":"all"', "standbyNamesPre",
)  # fmt: skip
"""Patches that walproof never writes: they are admitted, or refused in other words."""
IMITATED = [case for case in ADMISSION if not any(one in case["patch"] for one in NOT_IMITATED)]


@each(IMITATED)
def test_the_webhook_answers_as_recorded(case: dict[str, str]) -> None:
    ask, answer = Asking(), "cluster.postgresql.cnpg.io/pg patched"
    ask("POST", CLUSTERS, manifest())
    name, _, value = case["patch"].partition("=")
    given = {"spec": {"postgresql": {"parameters": {name: value}}}}
    try:
        ask("PATCH", f"{CLUSTERS}/pg?dryRun=All", json.loads(case["patch"]) if name.startswith("{") else given)
    except Refusal as refused:
        (cause,) = refused.details["causes"]
        answer = f'The Cluster "pg" is invalid: {cause["field"]}: {cause["message"]}'
    assert answer == case["answer"]


def test_refusals_of_rbac_are_worded_as_recorded() -> None:
    ask, probe = Asking(Account(rules=())), 'User "system:serviceaccount:default:walproof-probe" cannot'
    core, here = 'in API group ""', 'in the namespace "default"'
    cases = {
        ("GET", PODS): f'pods is forbidden: {probe} list resource "pods" {core} {here}',
        ("GET", f"{CLUSTERS}/pg"): f'clusters.postgresql.cnpg.io "pg" is forbidden: {probe} get resource "clusters" '
        f'in API group "postgresql.cnpg.io" {here}',
        ("GET", f"{PODS}/pg-1/log"): f'pods "pg-1" is forbidden: {probe} get resource "pods/log" {core} {here}',
        ("POST", JOBS): f'jobs.batch is forbidden: {probe} create resource "jobs" in API group "batch" {here}',
        ("GET", f"{PODS}?watch=true"): f'pods is forbidden: {probe} watch resource "pods" {core} {here}',
        ("GET", "/api/v1/pods"): f'pods is forbidden: {probe} list resource "pods" {core} at the cluster scope',
    }  # fmt: skip
    for (method, path), expected in cases.items():
        assert ask.refusal(method, path) == (403, expected)


def test_a_verb_taken_away_is_the_only_one_refused_and_asked_for() -> None:
    ask = Asking(Account(without=(Rule(("list",), ("secrets",)),)))
    ask("POST", SECRETS, secret("one"))
    assert ask("GET", f"{SECRETS}/one")["data"] and ask.refusal("GET", SECRETS)[0] == 403
    for verb, expected in (("list", False), ("get", True)):
        asked = {"spec": {"resourceAttributes": {"verb": verb, "resource": "secrets", "namespace": "default"}}}
        review = ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", asked)
        assert review["status"]["allowed"] is expected


def test_what_is_not_imitated_says_so_and_nothing_is_open_to_strangers() -> None:
    account = Account()
    ask = Asking(account)
    for method, path in (("PUT", f"{SECRETS}/one"), ("DELETE", SECRETS), ("GET", f"{SECRETS}?watch=1")):
        code, message = ask.refusal(method, path)
        assert code == 405 and "does not imitate" in message
    assert ask.refusal("PATCH", f"{SECRETS}/one", {}, "application/json-patch+json")[0] == 415
    assert ask.refusal("GET", "/api/v1/namespaces/default/configmaps")[0] == 404
    assert "clusters" in json.dumps(ask("GET", "/apis/postgresql.cnpg.io/v1"))
    account.expired = True
    assert ask.refusal("GET", "/apis/postgresql.cnpg.io/v1") == (401, "Unauthorized")


def test_a_healthy_cluster_is_the_recorded_one(tmp_path: Path) -> None:
    with stand_in(tmp_path) as running:
        found = running.store.find("Cluster", "pg") or {}
        was = recorded("cluster")
        same = set(found["status"]) & set(was["status"])
        assert {key: found["status"][key] for key in same} == {key: was["status"][key] for key in same}
        assert len(same) >= 12 and found["spec"]["postgresql"].keys() <= was["spec"]["postgresql"].keys()
        for pod in recorded("pods"):
            made = running.store.find("Pod", pod["metadata"]["name"]) or {}
            assert made["metadata"]["labels"] == pod["metadata"]["labels"]
            assert made["status"]["phase"] == pod["status"]["phase"]
        lease = running.store.find("Lease", "pg") or {}
        assert lease["spec"].keys() == recorded("lease")["spec"].keys()
        assert lease["spec"]["holderIdentity"] == recorded("lease")["spec"]["holderIdentity"]
        (made,) = running.store.listed(named("EndpointSlice"))[0]
        (end,), (was_end,) = made["endpoints"], recorded("endpointslices")[0]["endpoints"]
        assert (end["targetRef"]["name"], end["conditions"]) == (was_end["targetRef"]["name"], was_end["conditions"])
        assert made["metadata"]["labels"] == recorded("endpointslices")[0]["metadata"]["labels"]


class Server:
    """A real API server's part in a store's reading: it had nothing, takes every write, and its watches are silent."""

    def __init__(self) -> None:
        self.number = 10

    def call(self, *_: object) -> Object:
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    def open(self, *_: object, **__: object) -> Iterator[bytes]:
        threading.Event().wait(60)
        yield b""

    def write(self, method: str, kind: Kind, item: Object, subresource: str = "") -> Object:
        self.number += 1
        meta = {
            "uid": f"{self.number}",
            "namespace": "default",
            **item["metadata"],
            "resourceVersion": f"{self.number}",
        }
        return {**item, "metadata": meta}


def test_behind_a_real_server_an_old_event_neither_changes_nor_brings_back_an_object() -> None:
    store, kind = RealStore(Server()), named("Secret")  # type: ignore[arg-type]
    try:
        first = store.create(kind, {"metadata": {"name": "one", "namespace": "default"}, "data": {"a": "1"}})
        store.update(kind, {**first, "data": {"a": "2"}})
        store.take_in(kind, {"type": "MODIFIED", "object": first})
        assert (store.find("Secret", "one") or {})["data"] == {"a": "2"}
        store.remove(kind, "default", "one")
        store.take_in(
            kind, {"type": "MODIFIED", "object": {**first, "metadata": first["metadata"] | {"resourceVersion": "99"}}}
        )
        assert store.find("Secret", "one") is None
    finally:
        store.close()
