"""CloudNativePG and Jobs behind the API server: what a client sees of faults, patches, exec, port-forward, Jobs."""

import base64
import json
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from tests.fixtures.kubernetes.access import Account, Rule
from tests.fixtures.kubernetes.jobs import Finished, Process, Running
from tests.fixtures.kubernetes.postgres import MemoryPostgres
from tests.fixtures.kubernetes.stand_in import StandIn, manifest, stand_in
from tests.fixtures.kubernetes.store import Object
from tests.fixtures.kubernetes.websocket_client import Client, Refused

CLUSTER = "/apis/postgresql.cnpg.io/v1/namespaces/default/clusters/pg"
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
MERGE = {"content-type": "application/merge-patch+json"}
KILL = ("bash", "-c", "kill -9 $(head -1 /var/lib/postgresql/data/pgdata/postmaster.pid)")


@pytest.fixture
def behind() -> MemoryPostgres:
    return MemoryPostgres()


@pytest.fixture
def cluster(tmp_path: Path, behind: MemoryPostgres) -> Iterator[StandIn]:
    with stand_in(tmp_path, postgres=behind, speed=40) as running:
        yield running


@pytest.fixture
def api(cluster: StandIn) -> Iterator[httpx2.Client]:
    with client(cluster) as opened:
        yield opened


def client(cluster: StandIn) -> httpx2.Client:
    trust = ssl.create_default_context(cafile=str(cluster.serving.authority))
    headers = {"authorization": f"Bearer {cluster.serving.token()}"}
    return httpx2.Client(base_url=cluster.serving.url, verify=trust, headers=headers, timeout=10)


def until(wanted: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def opened(cluster: StandIn, path: str, account: Account | None = None, protocol: str = "v5.channel.k8s.io") -> Client:
    return Client(cluster.serving.url, path, cluster.serving.token(account), cluster.serving.authority, protocol)


def executed(cluster: StandIn, pod: str, *command: str) -> tuple[str, str, Object]:
    query = urlencode([("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")])
    found = opened(cluster, f"{PODS}/{pod}/exec?{query}").channels()
    return found.get(1, b"").decode(), found.get(2, b"").decode(), json.loads(found[3])


def writers(api: httpx2.Client) -> list[str]:
    asked = {"labelSelector": "kubernetes.io/service-name=pg-rw"}
    pieces = api.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", params=asked).json()["items"]
    return [e["targetRef"]["name"] for one in pieces for e in one["endpoints"] if e["conditions"]["ready"]]


def test_a_healthy_cluster_shows_what_was_recorded(api: httpx2.Client) -> None:
    status = api.get(CLUSTER).json()["status"]
    assert status["phase"] == "Cluster in healthy state" and status["readyInstances"] == 3
    assert (status["currentPrimary"], status["targetPrimary"], status["timelineID"]) == ("pg-1", "pg-1", 1)
    asked = {"labelSelector": "cnpg.io/cluster=pg,cnpg.io/instanceRole=primary"}
    assert [one["metadata"]["name"] for one in api.get(PODS, params=asked).json()["items"]] == ["pg-1"]
    lease = api.get("/apis/coordination.k8s.io/v1/namespaces/default/leases/pg").json()["spec"]
    assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("pg-1", 15)
    assert writers(api) == ["pg-1"]
    secret = api.get(f"{SECRETS}/pg-app").json()["data"]
    assert base64.b64decode(secret["username"]) == b"app" and base64.b64decode(secret["password"])
    assert {"uri", "pgpass", "dbname", "host", "port", "jdbc-uri"} <= set(secret)
    budget = api.get("/apis/policy/v1/namespaces/default/poddisruptionbudgets/pg-primary").json()["status"]
    assert budget["disruptionsAllowed"] == 0


def test_killing_the_postmaster_fails_over(cluster: StandIn, api: httpx2.Client, behind: MemoryPostgres) -> None:
    out, _, ended = executed(cluster, "pg-1", *KILL)
    assert (out, ended["status"]) == ("", "Success")
    until(lambda: api.get(CLUSTER).json()["status"]["currentPrimary"] == "pg-2")
    until(lambda: writers(api) == ["pg-2"])
    until(lambda: api.get(CLUSTER).json()["status"]["phase"] == "Cluster in healthy state")
    assert behind.done.index("kill pg-1") < behind.done.index("promote pg-2")
    fields = [(one.field, one.after) for one in cluster.cnpg.timeline if one.subject in ("cluster", "lease")]
    order = [
        ("holder", ""),
        ("phase", "Failing over"),
        ("holder", "pg-2"),
        ("currentPrimary", "pg-2"),
        ("timelineID", "2"),
    ]
    assert [one for one in fields if one in order] == order


def test_a_deleted_pod_comes_back_with_another_uid(cluster: StandIn, api: httpx2.Client) -> None:
    before = api.get(f"{PODS}/pg-1").json()
    api.request("DELETE", f"{PODS}/pg-1", json={"gracePeriodSeconds": 0})
    assert api.get(f"{PODS}/pg-1").status_code == 404
    until(lambda: api.get(f"{PODS}/pg-1").status_code == 200)
    until(lambda: api.get(CLUSTER).json()["status"]["phase"] == "Cluster in healthy state")
    after = api.get(f"{PODS}/pg-1").json()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["podIP"] != before["status"]["podIP"]
    assert after["metadata"]["labels"]["cnpg.io/instanceRole"] == "replica"


def test_a_frozen_primary_is_only_replaced_once_thawed(cluster: StandIn, api: httpx2.Client) -> None:
    executed(cluster, "pg-1", "pkill", "-STOP", "postgres")
    until(lambda: api.get(CLUSTER).json()["status"]["targetPrimary"] == "pg-2")
    time.sleep(0.5)
    assert api.get(CLUSTER).json()["status"]["currentPrimary"] == "pg-1"
    executed(cluster, "pg-1", "pkill", "-CONT", "postgres")
    until(lambda: api.get(CLUSTER).json()["status"]["currentPrimary"] == "pg-2")


def test_a_switchover_is_a_patch_of_the_status(cluster: StandIn, api: httpx2.Client, behind: MemoryPostgres) -> None:
    api.patch(f"{CLUSTER}/status", json={"status": {"targetPrimary": "pg-3"}}, headers=MERGE)
    until(lambda: writers(api) == ["pg-3"])
    assert behind.done.index("stop fast pg-1") < behind.done.index("promote pg-3")


def test_a_watch_sees_the_phases_in_order(cluster: StandIn, api: httpx2.Client) -> None:
    version = api.get(CLUSTER).json()["metadata"]["resourceVersion"]
    cluster.cnpg.kill("pg-1")
    phases: list[str] = []
    query = {"watch": "true", "resourceVersion": version, "fieldSelector": "metadata.name=pg"}
    with api.stream("GET", CLUSTER.rpartition("/")[0], params=query) as answer:
        for line in answer.iter_lines():
            phase = json.loads(line)["object"]["status"]["phase"]
            phases += [phase] if phases[-1:] != [phase] else []
            if len(phases) == 3:
                break
    assert phases == ["Cluster in healthy state", "Failing over", "Cluster in healthy state"]


def test_a_patched_configuration_is_in_effect_until_altered(cluster: StandIn, api: httpx2.Client) -> None:
    def shown(name: str) -> str:
        return executed(cluster, "pg-1", "psql", "-XAtc", f"show {name}")[0].strip()

    assert shown("synchronous_standby_names") == 'ANY 1 ("pg-2","pg-3","pg-1")'
    spec = {"synchronous": {"number": 2}, "parameters": {"synchronous_commit": "remote_apply", "fsync": "off"}}
    api.patch(CLUSTER, json={"spec": {"postgresql": spec}}, headers=MERGE)
    until(lambda: shown("synchronous_commit") == "remote_apply")
    assert shown("fsync") == "off" and shown("synchronous_standby_names").startswith("ANY 2")
    alter = "ALTER SYSTEM SET synchronous_standby_names = ''"
    _, error, ended = executed(cluster, "pg-1", "psql", "-XAtc", alter)
    assert "Permission denied" in error and ended["details"]["causes"][0]["message"] == "1"
    api.patch(CLUSTER, json={"spec": {"postgresql": {"enableAlterSystem": True}}}, headers=MERGE)
    until(lambda: executed(cluster, "pg-1", "psql", "-XAtc", alter)[2]["status"] == "Success")
    api.patch(CLUSTER, json={"spec": {"postgresql": {"synchronous": {"number": 1}}}}, headers=MERGE)
    time.sleep(0.1)
    assert shown("synchronous_standby_names") == ""


def test_managed_roles_and_the_superuser_secret_come_and_go(
    cluster: StandIn, api: httpx2.Client, behind: MemoryPostgres
) -> None:
    api.post(SECRETS, json={"metadata": {"name": "wp"}, "stringData": {"username": "wp", "password": "x"}})
    role = {"name": "wp", "ensure": "present", "login": True, "createdb": True, "passwordSecret": {"name": "wp"}}
    api.patch(CLUSTER, json={"spec": {"managed": {"roles": [role]}}}, headers=MERGE)
    until(lambda: "wp" in behind.members["pg-1"].roles)
    until(lambda: api.get(CLUSTER).json()["status"]["managedRolesStatus"] == {"byStatus": {"reconciled": ["wp"]}})
    api.patch(CLUSTER, json={"spec": {"managed": {"roles": [{**role, "ensure": "absent"}]}}}, headers=MERGE)
    until(lambda: "wp" not in behind.members["pg-1"].roles)
    api.patch(CLUSTER, json={"spec": {"enableSuperuserAccess": True}}, headers=MERGE)
    until(lambda: api.get(f"{SECRETS}/pg-superuser").status_code == 200)
    api.patch(CLUSTER, json={"spec": {"enableSuperuserAccess": False}}, headers=MERGE)
    until(lambda: api.get(f"{SECRETS}/pg-superuser").status_code == 404)


def test_preferred_loses_its_promise_when_both_standbys_go(tmp_path: Path) -> None:
    spec = {"synchronous": {"method": "any", "number": 1, "dataDurability": "preferred"}}
    with stand_in(tmp_path, cluster=manifest(postgresql=spec), speed=20) as cluster, client(cluster) as api:
        for pod in ("pg-2", "pg-3"):
            api.request("DELETE", f"{PODS}/{pod}", json={"gracePeriodSeconds": 0})
        until(lambda: executed(cluster, "pg-1", "psql", "-XAtc", "show synchronous_standby_names")[0] == "\n")
        assert cluster.cnpg.state.names == ""
        until(lambda: cluster.cnpg.state.names == 'ANY 1 ("pg-2","pg-3")')


def test_fencing_is_an_annotation(cluster: StandIn, api: httpx2.Client, behind: MemoryPostgres) -> None:
    fenced = {"metadata": {"annotations": {"cnpg.io/fencedInstances": '["pg-2"]'}}}
    api.patch(CLUSTER, json=fenced, headers=MERGE)
    until(lambda: not behind.alive("pg-2"))
    free = {"metadata": {"annotations": {"cnpg.io/fencedInstances": None}}}
    api.patch(CLUSTER, json=free, headers=MERGE)
    until(lambda: behind.alive("pg-2"))


def test_a_postmaster_that_dies_of_itself_is_noticed(cluster: StandIn, behind: MemoryPostgres) -> None:
    behind.members["pg-1"].running = False
    until(lambda: cluster.cnpg.state.primary == "pg-2")


def test_exec_is_refused_without_the_right_and_where_nothing_runs(cluster: StandIn) -> None:
    path = f"{PODS}/pg-1/exec?command=true&stdout=true"
    with pytest.raises(Refused, match="cannot get resource") as refused:
        opened(cluster, path, Account(without=(Rule(("*",), ("pods/exec",)),)))
    assert refused.value.status == 403
    with pytest.raises(Refused) as unnamed:
        opened(cluster, f"{PODS}/pg-1/exec?command=true")
    assert unnamed.value.status == 400
    ended = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    cluster.store.modify("Pod", "pg-1", lambda pod: pod["status"]["containerStatuses"][0].update(ended))
    with pytest.raises(Refused, match="container not found") as gone:
        opened(cluster, path)
    assert gone.value.status == 500
    _, error, how = executed(cluster, "pg-2", "no-such-program")
    assert "not found" in error and how["reason"] == "NonZeroExitCode"


def test_standard_input_reaches_the_command(cluster: StandIn) -> None:
    talk = opened(cluster, f"{PODS}/pg-1/exec?command=psql&command=-XAt&stdin=true&stdout=true")
    talk.send(b"\0select session_user;")
    talk.send(b"\xff\0")
    assert talk.channels()[1] == b"postgres\n"


def test_port_forward_relays_and_breaks_when_a_client_of_tls_leaves(cluster: StandIn) -> None:
    path = f"{PODS}/pg-1/portforward?ports=5432"
    for first, broken in ((b"plain", 0), (struct.pack("!II", 8, 80877103), 1)):
        talk = opened(cluster, path, protocol="v4.channel.k8s.io")
        assert {talk.receive(), talk.receive()} == {b"\0" + struct.pack("<H", 5432), b"\1" + struct.pack("<H", 5432)}
        talk.send(b"\0" + first)
        assert talk.receive() == b"\0" + first
        talk.close()
        until(lambda count=broken: cluster.serving.api.oddities.broken_forwards == count)  # type: ignore[misc]
    talk = opened(cluster, f"{PODS}/pg-2/portforward?ports=5433", protocol="v4.channel.k8s.io")
    assert b"connection refused" in talk.channels()[1]


def job(name: str, completions: int = 2, **more: Any) -> dict[str, Any]:
    container = {"name": "load", "image": "walproof", "command": [sys.executable, "-c", SCRIPT]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"completions": completions, "parallelism": completions, "completionMode": "Indexed", "template": template}
    return {"metadata": {"name": name}, "spec": {**spec, "backoffLimit": 0, **more}}


SCRIPT = "import os; print('index', os.environ['JOB_COMPLETION_INDEX'])"


def test_an_indexed_job_makes_a_pod_for_each_index_and_their_logs_are_read(tmp_path: Path) -> None:
    with stand_in(tmp_path, runner=lambda pod: Process(pod, {})) as cluster, client(cluster) as api:
        assert api.post(JOBS, json=job("load")).status_code == 201
        until(lambda: bool(api.get(f"{JOBS}/load").json()["status"].get("conditions")))
        status = api.get(f"{JOBS}/load").json()["status"]
        assert (status["succeeded"], status["completedIndexes"]) == (2, "0,1")
        assert status["conditions"][0]["type"] == "Complete"
        pods = api.get(PODS, params={"labelSelector": "job-name=load"}).json()["items"]
        logs = {api.get(f"{PODS}/{pod['metadata']['name']}/log", params={"follow": "true"}).text for pod in pods}
        assert logs == {"index 0\n", "index 1\n"}
        api.delete(f"{JOBS}/load", params={"propagationPolicy": "Background"})
        assert api.get(PODS, params={"labelSelector": "job-name=load"}).json()["items"] == []


class Endless(Finished):
    """Runs until it is killed."""

    over = False

    def poll(self) -> int | None:
        return 137 if self.over else None

    def kill(self) -> None:
        self.over = True


def test_a_lost_load_pod_fails_its_job_and_takes_its_log_along(tmp_path: Path) -> None:
    made: list[Running] = []

    def runner(pod: Object) -> Running:
        made.append(Endless(text="half of it"))
        return made[-1]

    with stand_in(tmp_path, runner=runner) as cluster, client(cluster) as api:
        api.post(JOBS, json=job("load", completions=3))
        until(lambda: api.get(f"{JOBS}/load").json().get("status", {}).get("ready") == 3)
        lost = api.get(PODS, params={"labelSelector": "job-name=load"}).json()["items"][0]["metadata"]["name"]
        assert api.get(f"{PODS}/{lost}/log").text == "half of it"
        cluster.jobs.lose(lost)
        until(lambda: bool(api.get(f"{JOBS}/load").json()["status"].get("conditions")))
        status = api.get(f"{JOBS}/load").json()["status"]
        assert status["conditions"][0]["reason"] == "BackoffLimitExceeded" and status["failed"] == 1
        assert api.get(f"{PODS}/{lost}").json()["status"]["phase"] == "Failed"
        assert api.get(f"{PODS}/{lost}/log").text == ""
    assert all(one.poll() == 137 for one in made)


def test_a_job_without_a_restart_policy_is_refused(api: httpx2.Client) -> None:
    wrong = job("load")
    del wrong["spec"]["template"]["spec"]["restartPolicy"]
    refused = api.post(JOBS, json=wrong)
    assert refused.status_code == 422
    assert refused.json()["details"]["causes"][0]["field"] == "spec.template.spec.restartPolicy"
