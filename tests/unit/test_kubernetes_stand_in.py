"""The API server of the tests' own, asked over real HTTPS: objects, watches, patches, admission, RBAC, oddities."""

import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.fixtures.kubernetes.access import Account, Rule
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.server import Serving, serving

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
CLUSTERS = "/apis/postgresql.cnpg.io/v1/namespaces/default/clusters"
MERGE = {"content-type": "application/merge-patch+json"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("api")) as server:
        server.api.store.create(named("Namespace"), {"metadata": {"name": "default"}})
        yield server


@pytest.fixture
def server(shared: Serving) -> Iterator[Serving]:
    yield shared
    store = shared.api.store
    for kind in ("ConfigMap", "Pod", "Job", "Cluster", "PodDisruptionBudget"):
        for item in store.listed(named(kind))[0]:
            if store.find(kind, item["metadata"]["name"]):
                store.remove(named(kind), "default", item["metadata"]["name"])


def client(server: Serving, account: Account | None = None) -> httpx2.Client:
    trust = ssl.create_default_context(cafile=str(server.authority))
    headers = {"authorization": f"Bearer {server.token(account)}"}
    return httpx2.Client(base_url=server.url, verify=trust, headers=headers, timeout=10)


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def cluster(**spec: Any) -> dict[str, Any]:
    given = {"instances": 3, "storage": {"size": "2Gi"}, "imageName": "localhost/postgresql:15.20", **spec}
    given.setdefault("postgresql", {"synchronous": {"method": "any", "number": 1}})
    return {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": {"name": "pg"}, "spec": given}


def test_objects_are_created_read_changed_and_deleted(server: Serving) -> None:
    with client(server) as api:
        made = api.post(MAPS, json=config_map("one")).json()
        assert made["metadata"]["uid"] and made["kind"] == "ConfigMap"
        assert api.post(MAPS, json=config_map("one")).json()["reason"] == "AlreadyExists"
        stale = {**made, "data": {"a": "2"}}
        changed = api.put(f"{MAPS}/one", json=stale).json()
        assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        refused = api.put(f"{MAPS}/one", json=stale)
        assert refused.status_code == 409 and "please apply your changes to the latest version" in refused.text
        other = {"preconditions": {"uid": "another"}}
        assert api.request("DELETE", f"{MAPS}/one", json=other).status_code == 409
        assert api.delete(f"{MAPS}/one").json()["status"] == "Success"
        missing = api.get(f"{MAPS}/one")
        assert missing.status_code == 404
        assert missing.json()["message"] == 'configmaps "one" not found'


def test_names_are_generated_and_dry_runs_store_nothing(server: Serving) -> None:
    with client(server) as api:
        first = api.post(MAPS, json={"metadata": {"generateName": "g-"}}).json()["metadata"]["name"]
        assert first.startswith("g-") and len(first) == 7
        assert api.post(f"{MAPS}?dryRun=All", json=config_map("dry")).status_code == 201
        assert api.get(f"{MAPS}/dry").status_code == 404


def test_lists_obey_selectors_and_come_in_pages(server: Serving) -> None:
    with client(server) as api:
        for name in ("a", "b", "c"):
            api.post(MAPS, json=config_map(name, walproof=name))
        seen = api.get(MAPS, params={"labelSelector": "walproof in (a,c)"}).json()
        assert [item["metadata"]["name"] for item in seen["items"]] == ["a", "c"]
        assert "kind" not in seen["items"][0]
        one = api.get(MAPS, params={"fieldSelector": "metadata.name=b"}).json()["items"]
        assert [item["metadata"]["name"] for item in one] == ["b"]
        page = api.get(MAPS, params={"limit": "2"}).json()
        rest = api.get(MAPS, params={"limit": "2", "continue": page["metadata"]["continue"]}).json()
        assert len(page["items"]) == 2 and len(rest["items"]) == 1
        assert api.get(MAPS, params={"fieldSelector": "data.a=1"}).status_code == 400


def test_what_an_owner_owned_goes_with_it(server: Serving) -> None:
    with client(server) as api:
        owner = api.post(MAPS, json=config_map("owner")).json()["metadata"]
        owned = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
        for name in ("child", "left"):
            child = config_map(name)
            child["metadata"]["ownerReferences"] = [owned]
            api.post(MAPS, json=child)
        free = json.dumps([{"op": "remove", "path": "/metadata/ownerReferences"}])
        form = {"content-type": "application/json-patch+json"}
        assert api.patch(f"{MAPS}/left", content=free, headers=form).status_code == 200
        api.delete(f"{MAPS}/owner")
        assert api.get(f"{MAPS}/child").status_code == 404
        assert api.get(f"{MAPS}/left").status_code == 200


def watched(api: httpx2.Client, path: str, count: int, **query: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    with api.stream("GET", path, params={"watch": "true", "timeoutSeconds": "5", **query}) as answer:
        for line in answer.iter_lines():
            events.append(json.loads(line))
            if len(events) == count:
                break
    return events


def test_a_watch_goes_on_where_the_list_ended(server: Serving) -> None:
    with client(server) as api, client(server) as other:
        version = api.get(MAPS).json()["metadata"]["resourceVersion"]

        def write() -> None:
            other.post(MAPS, json=config_map("seen", keep="yes"))
            other.patch(f"{MAPS}/seen", json={"metadata": {"labels": {"keep": "no"}}}, headers=MERGE)
            other.delete(f"{MAPS}/seen")

        writing = threading.Timer(0.1, write)
        writing.start()
        events = watched(api, MAPS, 2, resourceVersion=version, labelSelector="keep=yes")
        writing.join()
        assert [one["type"] for one in events] == ["ADDED", "DELETED"]


def test_bookmarks_name_the_version_and_an_old_watch_is_gone(server: Serving) -> None:
    with client(server) as api:
        api.post(MAPS, json=config_map("first"))
        version = api.get(MAPS).json()["metadata"]["resourceVersion"]
        events = watched(api, MAPS, 1, resourceVersion=version, allowWatchBookmarks="true")
        assert events[0]["type"] == "BOOKMARK"
        api.post(MAPS, json=config_map("second"))
        server.api.store.compact()
        gone = api.get(MAPS, params={"watch": "true", "resourceVersion": version})
        assert gone.status_code == 410 and gone.json()["reason"] == "Expired"


def test_compaction_ends_an_open_watch_that_is_behind_with_an_error_event(server: Serving) -> None:
    store = server.api.store
    with client(server) as api:
        version = api.get(MAPS).json()["metadata"]["resourceVersion"]

        def compact() -> None:
            with store.changed:
                store.create(named("ConfigMap"), {"metadata": {"name": "x", "namespace": "default"}})
                store.compact()

        later = threading.Timer(0.2, compact)
        later.start()
        events = watched(api, MAPS, 1, resourceVersion=version)
        later.join()
        assert events[0]["type"] == "ERROR" and events[0]["object"]["code"] == 410


def test_core_types_take_strategic_patches_and_custom_ones_do_not(server: Serving) -> None:
    form = {"content-type": "application/strategic-merge-patch+json"}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}}
    with client(server) as api:
        api.post(PODS, json=pod)
        patch = {"spec": {"containers": [{"name": "a", "image": "2"}]}}
        done = api.patch(f"{PODS}/p", json=patch, headers=form).json()["spec"]["containers"]
        assert [(one["name"], one.get("image")) for one in done] == [("a", "2"), ("b", None)]
        merged = api.patch(f"{PODS}/p", json=patch, headers=MERGE).json()["spec"]["containers"]
        assert len(merged) == 1
        api.post(CLUSTERS, json=cluster())
        assert api.patch(f"{CLUSTERS}/pg", json={}, headers=form).status_code == 415


def test_the_status_subresource_changes_nothing_else(server: Serving) -> None:
    with client(server) as api:
        api.post(CLUSTERS, json={**cluster(), "status": {"phase": "invented"}})
        assert "status" not in api.get(f"{CLUSTERS}/pg").json()
        both = {"status": {"targetPrimary": "pg-2"}, "spec": {"instances": 5}}
        done = api.patch(f"{CLUSTERS}/pg/status", json=both, headers=MERGE).json()
        assert done["status"] == {"targetPrimary": "pg-2"} and done["spec"]["instances"] == 3
        main = api.patch(
            f"{CLUSTERS}/pg", json={"status": {"phase": "x"}, "spec": {"instances": 4}}, headers=MERGE
        ).json()
        assert main["status"] == {"targetPrimary": "pg-2"}
        assert main["metadata"]["generation"] == 2


def test_unknown_fields_are_pruned_or_refused_when_strict(server: Serving) -> None:
    with client(server) as api:
        wrong = cluster(instanses=3)
        refused = api.post(f"{CLUSTERS}?fieldValidation=Strict", json=wrong)
        assert refused.status_code == 400 and 'unknown field "spec.instanses"' in refused.json()["message"]
        assert "instanses" not in api.post(CLUSTERS, json=wrong).json()["spec"]


def refusal_shown(answer: httpx2.Response) -> str:
    """As kubectl prints a Status of reason Invalid."""
    details = answer.json()["details"]
    causes = [f"{one['field']}: {one['message']}" for one in details["causes"]]
    shown = causes[0] if len(causes) == 1 else "".join(f" * {one}" for one in causes)
    return f'The {details["kind"]} "{details["name"]}" is invalid: {shown}'


RECORDED = yaml.safe_load(
    (Path(__file__).parents[1] / "fixtures/kubernetes/recorded/admission.yaml").read_text("utf-8")
)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(case["patch"]))
def test_the_webhook_answers_as_recorded(server: Serving, case: dict[str, str]) -> None:
    given = cluster(bootstrap={"initdb": {"database": "app"}})
    with client(server) as api:
        api.post(CLUSTERS, json=given)
        text = json.loads(case["patch"]) if case["patch"].startswith("{") else parameter(case["patch"])
        answer = api.patch(f"{CLUSTERS}/pg?dryRun=All", json=text, headers=MERGE)
        if case["answer"].endswith("patched"):
            assert answer.status_code == 200, answer.text
        else:
            assert answer.status_code == 422
            assert refusal_shown(answer) == case["answer"]


def parameter(assignment: str) -> dict[str, Any]:
    name, _, value = assignment.partition("=")
    return {"spec": {"postgresql": {"parameters": {name: value}}}}


def test_refusals_of_rbac_are_worded_as_recorded(server: Serving) -> None:
    probe = 'User "system:serviceaccount:default:walproof-probe"'
    here = 'in the namespace "default"'
    nothing = Account(rules=())
    cases = {
        (
            "GET",
            PODS,
        ): f'pods is forbidden: {probe} cannot list resource "pods" in API group "" {here}',
        ("GET", f"{CLUSTERS}/pg"): (
            f'clusters.postgresql.cnpg.io "pg" is forbidden: {probe} cannot get resource "clusters" '
            'in API group "postgresql.cnpg.io" in the namespace "default"'
        ),
        ("GET", f"{PODS}/pg-1/log"): (
            f'pods "pg-1" is forbidden: {probe} cannot get resource "pods/log" in API group "" {here}'
        ),
        ("POST", "/apis/batch/v1/namespaces/default/jobs"): (
            f'jobs.batch is forbidden: {probe} cannot create resource "jobs" in API group "batch" {here}'
        ),
        ("GET", f"{PODS}?watch=true"): (
            f'pods is forbidden: {probe} cannot watch resource "pods" in API group "" {here}'
        ),
        ("GET", "/api/v1/nodes"): (
            f'nodes is forbidden: {probe} cannot list resource "nodes" in API group "" at the cluster scope'
        ),
    }
    with client(server, nothing) as api:
        for (method, path), expected in cases.items():
            answer = api.request(method, path)
            assert (answer.status_code, answer.json()["message"]) == (403, expected)


def test_a_verb_taken_away_is_the_only_one_refused_and_asked_for(server: Serving) -> None:
    lacking = Account(without=(Rule(("list",), ("configmaps",)),))
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    with client(server, lacking) as api:
        api.post(MAPS, json=config_map("one"))
        assert api.get(f"{MAPS}/one").status_code == 200
        assert api.get(MAPS).status_code == 403
        for verb, expected in (("list", False), ("get", True)):
            asked = {"spec": {"resourceAttributes": {"verb": verb, "resource": "configmaps", "namespace": "default"}}}
            assert api.post(review, json=asked).json()["status"]["allowed"] is expected


def test_tokens_expire_even_in_the_middle_of_a_watch(server: Serving) -> None:
    account = Account()
    with client(server, account) as api:
        threading.Timer(0.3, lambda: setattr(account, "expired", True)).start()
        assert watched(api, MAPS, 99, resourceVersion=str(server.api.store.version)) == []
        assert api.get(MAPS).status_code == 401
        assert httpx2.get(f"{server.url}{MAPS}", verify=False).status_code == 401


def test_oddities_are_switched_on_and_count_down(server: Serving) -> None:
    odd = server.api.oddities
    with client(server) as api:
        api.post(MAPS, json=config_map("one"))
        odd.conflicts, odd.too_many_requests, odd.retry_after_s = 1, 1, 3
        busy = api.get(MAPS)
        assert (busy.status_code, busy.headers["retry-after"]) == (429, "3")
        change = {"data": {"a": "9"}}
        assert api.patch(f"{MAPS}/one", json=change, headers=MERGE).status_code == 409
        assert api.patch(f"{MAPS}/one", json=change, headers=MERGE).status_code == 200
        odd.unreachable_for(0.4)
        with pytest.raises(httpx2.TransportError):
            api.get(MAPS)
    with client(server) as fresh:
        with pytest.raises(httpx2.TransportError):
            fresh.get(MAPS)
        threading.Event().wait(0.45)
        assert fresh.get(MAPS).status_code == 200


def test_an_outage_resets_an_open_watch(server: Serving) -> None:
    with client(server) as api:
        threading.Timer(0.2, lambda: server.api.oddities.unreachable_for(0.2)).start()
        with pytest.raises(httpx2.TransportError):
            watched(api, MAPS, 99, resourceVersion=str(server.api.store.version))
    threading.Event().wait(0.3)


def test_an_eviction_obeys_the_disruption_budget(server: Serving) -> None:
    budget = {"metadata": {"name": "pg-primary"}, "spec": {"selector": {"matchLabels": {"role": "primary"}}}}
    budget["status"] = {"disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1}
    pod = {"metadata": {"name": "p", "labels": {"role": "primary"}}, "spec": {"containers": [{"name": "a"}]}}
    with client(server) as api:
        api.post(PODS, json=pod)
        api.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", json=budget)
        refused = api.post(f"{PODS}/p/eviction", json={"metadata": {"name": "p"}})
        assert refused.status_code == 429
        assert "pg-primary needs 1 healthy pods and has 1" in refused.json()["details"]["causes"][0]["message"]
        api.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/pg-primary")
        assert api.post(f"{PODS}/p/eviction", json={"metadata": {"name": "p"}}).status_code == 201
        assert api.get(f"{PODS}/p").status_code == 404


def test_discovery_and_the_kubeconfig_lead_to_every_kind(server: Serving) -> None:
    given = yaml.safe_load(server.kubeconfig().read_text())
    assert given["clusters"][0]["cluster"]["server"] == server.url
    with client(server) as api:
        assert api.get("/version").json()["gitVersion"] == "v1.34.4"
        groups = {one["name"] for one in api.get("/apis").json()["groups"]}
        assert {"batch", "postgresql.cnpg.io", "policy", "coordination.k8s.io"} <= groups
        names = {one["name"] for one in api.get("/api/v1").json()["resources"]}
        assert {"pods", "pods/exec", "pods/portforward", "secrets"} <= names
        assert api.get("/apis/nothing/v1/things").status_code == 404
