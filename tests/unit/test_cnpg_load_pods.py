"""Load pods: the Job that is made, what reaches it and comes back, a pod that is lost, what a killed run leaves."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fixtures.kubernetes.access import Account, Rule, role_in, rules_of
from tests.fixtures.kubernetes.jobs import Finished, LoadPodRunner
from tests.fixtures.kubernetes.kinds import named
from tests.fixtures.kubernetes.stand_in import StandIn, stand_in
from tests.fixtures.kubernetes.store import recorded
from tests.fixtures.tiers import each
from walproof.errors import TargetError, UsageError
from walproof.load.ledger.processes import RunningLedger
from walproof.load.pods import remote
from walproof.load.pods.remote import LoadLost, RemoteWorkspace
from walproof.machine.clock import RealClock
from walproof.model.guarantee import Level
from walproof.model.load import LedgerOrder
from walproof.model.ports import Reverting
from walproof.model.topology import Endpoint
from walproof.records.journal import Journal
from walproof.targets.cnpg import creating_load_pods
from walproof.targets.cnpg.client import Client
from walproof.targets.cnpg.creating_load_pods import LOAD, LoadPods, load_job, load_secret
from walproof.targets.cnpg.credentials_and_own_role import Credential
from walproof.targets.cnpg.kubeconfig import connection
from walproof.targets.cnpg.kubernetes_api import ApiError, KubernetesApi
from walproof.targets.cnpg.rbac import CnpgRights
from walproof.targets.cnpg.target_file import CnpgFile, LoadPart, read_address
from walproof.targets.configure import NoJournal

TARGET = "cnpg:default/pg?context=here"
IMAGE = "localhost/walproof:test"
PATHS = os.pathsep.join(path for path in sys.path if os.path.isabs(path))
PASSWORD = "pa:ss\\word"
NOBODY = Endpoint((("127.0.0.1", 9),), options=(("connect_timeout", "2"),))


@dataclass
class Who:
    """Logs in as app; members are at 10.0.0.1 as seen from within."""

    api: KubernetesApi
    file: CnpgFile
    credential: Credential = field(default_factory=lambda: Credential("app", PASSWORD))

    def from_within(self, place: tuple[str, int]) -> tuple[str, int]:
        return ("10.0.0.1", 5432) if place[0] == "127.0.0.1" else place

    def write_service(self) -> tuple[str, int]:
        return "localhost", 5432


@dataclass
class Running:
    """A stand-in with load pods of it."""

    cluster: StandIn
    pods: LoadPods
    journal: Journal
    runner: LoadPodRunner

    def objects(self, *kinds: str) -> list[str]:
        """Names of everything of ours."""
        found = [item for kind in kinds for item in self.cluster.store.listed(named(kind))[0]]
        ours = [i for i in found if i["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "walproof"]
        return [str(item["metadata"]["name"]) for item in ours]


def client(cluster: StandIn, account: Account | None = None) -> Client:
    configuration, context = connection("", {"KUBECONFIG": str(cluster.serving.kubeconfig(account))})
    return Client(configuration, "default", context)


@contextmanager
def running(folder: Path, pods: int = 1, account: Account | None = None) -> Iterator[Running]:
    runner, journal = LoadPodRunner(), Journal(folder / "journal")
    with stand_in(folder, runner=runner) as cluster:
        file = CnpgFile(kind="cnpg", cluster="default/pg", load=LoadPart(image=IMAGE, pods=pods))
        made = LoadPods(Who(client(cluster, account), file), TARGET, RealClock(), lambda: journal)
        try:
            yield Running(cluster, made, journal, runner)
        finally:
            made.close()


def ended(workspace: RemoteWorkspace, *argv: str) -> str:
    process = workspace.start(argv, "output")
    assert process.wait(20) and process.exit_code == 0
    return workspace.fetch("output")[0].read_text()


def until(wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not wanted():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


class Garbling:
    """Unpacks anything to the same."""

    def decompress(self, body: bytes, most: int) -> bytes:
        return b"1\n2\n"


def job(pods: int = 2, **more: Any) -> dict[str, Any]:
    return load_job("run1", LoadPart(image=IMAGE, pods=pods, **more), recorded("cluster"))


def restricted_violations(spec: dict[str, Any]) -> list[str]:
    """Each control of the restricted Pod Security Standard that a pod's spec breaks (kubernetes.io/docs/concepts)."""
    pod, volumes = spec.get("securityContext", {}), {"name", "configMap", "emptyDir", "projected", "secret"}
    found = [f"hostNamespaces: {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [f"volume type {kind}" for one in spec.get("volumes", []) for kind in one if kind not in volumes]
    for container in spec["containers"]:
        own = {**pod, **container.get("securityContext", {})}
        broken = {
            "privileged": own.get("privileged"),
            "allowPrivilegeEscalation != false": own.get("allowPrivilegeEscalation") is not False,
            "unrestricted capabilities": own.get("capabilities") != {"drop": ["ALL"]},
            "runAsNonRoot != true": own.get("runAsNonRoot") is not True,
            "runAsUser=0": own.get("runAsUser") == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "hostPorts": any(port.get("hostPort") for port in container.get("ports", [])),
        }
        found += [name for name, is_broken in broken.items() if is_broken]
    return found


def test_the_job_is_admitted_where_pods_are_restricted() -> None:
    spec = job()["spec"]["template"]["spec"]
    assert restricted_violations(spec) == []
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] and not spec["automountServiceAccountToken"]
    loose = json.loads(json.dumps(spec).replace('"runAsNonRoot": true', '"runAsNonRoot": false'))
    assert restricted_violations(loose) == ["runAsNonRoot != true"]


def test_the_job_is_indexed_spread_ours_and_its_owner_is_the_cluster() -> None:
    made = job(pods=3, requests={"cpu": "2"}, limits={}, pull_secret="registry", node_selector={"load": "yes"})
    spec = made["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"], spec["backoffLimit"]) == (
        3,
        3,
        "Indexed",
        0,
    )
    pod = spec["template"]["spec"]
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert pod["imagePullSecrets"] == [{"name": "registry"}] and pod["nodeSelector"] == {"load": "yes"}
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "2"}, "limits": {}}
    for one in (made, load_secret("run1", Credential("app", PASSWORD), "token", recorded("cluster"))):
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "walproof"
        assert one["metadata"]["ownerReferences"][0]["uid"] == recorded("cluster")["metadata"]["uid"]
    # What selects instances must never select a load pod.
    assert not [label for label in spec["template"]["metadata"]["labels"] if label.startswith("cnpg.io/")]


def test_where_load_runs_stands_in_the_address_or_in_the_target_file(tmp_path: Path) -> None:
    load = read_address("cnpg:db/pg?context=a&load-image=registry.example/walproof:1&load-pods=3")[1].load
    assert (load.image, load.pods) == ("registry.example/walproof:1", 3)
    assert read_address("cnpg:db/pg")[1].load.image == ""
    with pytest.raises(UsageError, match="load pods need an image"):
        read_address("cnpg:db/pg?load-pods=3")
    with pytest.raises(UsageError, match=r"load\.pods"):
        read_address("cnpg:db/pg?load-image=a&load-pods=0")
    path = tmp_path / "c.toml"
    path.write_text('kind = "cnpg"\ncluster = "db/pg"\n[load]\nimage = "a/b:1"\npods = 2\nrequests = { cpu = "1" }\n')
    load = read_address(str(path))[1].load
    assert (load.image, load.pods, load.requests, load.limits) == ("a/b:1", 2, {"cpu": "1"}, {"memory": "1Gi"})


def test_programs_run_in_every_pod_and_what_they_write_comes_back_whole(tmp_path: Path) -> None:
    with running(tmp_path, pods=2) as here:
        first, second = here.pods.open()
        assert first.directory != second.directory and len(here.runner.pods) == 2
        first.put("words", "from here")
        assert ended(first, "cat", "words") == "from here"
        assert ended(second, "/nowhere/of/ours/pgbench", "--version").startswith("pgbench (PostgreSQL)")
        big = ended(second, sys.executable, "-c", "print('0123456789' * 1_500_000)")
        assert len(big) == 15_000_001
        assert [path.stat().st_size for path in second.fetch("output", head=100)] == [100]
        # The second directory of a pod is another one, and a closed one is gone.
        again, _ = here.pods.open()
        assert again.directory != first.directory and len(here.runner.pods) == 2
        assert [path.read_text() for path in first.fetch("words")] == ["from here"]
        assert again.fetch("words") == ()
        first.close()
        assert first.fetch("words") == ()


def test_the_password_is_in_the_secret_and_in_a_private_file_alone(tmp_path: Path) -> None:
    with running(tmp_path) as here:
        (place,) = here.pods.open()
        (pod,) = here.runner.pods.values()
        seen = place.seen_from_there(Endpoint((("127.0.0.1", 40001), ("127.0.0.1", 40002)), passfile="/proc/1/fd/3"))
        assert seen.hosts[0] == ("10.0.0.1", 5432) and seen.hosts[-1] == ("127.0.0.1", 5432)
        passfile = Path(str(seen.passfile))
        assert passfile.read_text() == "*:*:*:*:pa\\:ss\\\\word\n" and passfile.stat().st_mode & 0o777 == 0o600
        public = [*pod.command, *pod.environment.values(), here.journal.path.read_text(), pod.log()]
        public += Path(f"/proc/{pod.process.pid}/environ").read_text().split("\0")
        public += [Path(f"/proc/{pod.process.pid}/cmdline").read_text(), repr(here.pods._places)]
        jobs = here.cluster.store.listed(named("Job"))[0] + here.cluster.store.listed(named("Pod"))[0]
        (secret,) = [i for i in here.cluster.store.listed(named("Secret"))[0] if i["metadata"]["name"] in str(jobs)]
        token = base64.b64decode(secret["data"]["token"]).decode()
        assert len(token) >= 43
        for text in (*public, json.dumps(jobs)):
            assert not [hidden for hidden in ("pa:ss", "pa\\:ss", token) if hidden in text]
    until(lambda: not passfile.exists())


def test_everything_goes_when_it_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, pods=2) as here:
        here.pods.open()
        assert len(here.objects("Job")) == 1 and len(here.objects("Secret")) == 1 and len(here.objects("Pod")) == 2
        assert [change.what for change in here.journal.pending(TARGET)] == [LOAD]
        here.pods.close()
        assert here.objects("Job", "Secret", "Pod") == [] and here.journal.pending() == ()
        until(lambda: all(pod.poll() is not None for pod in here.runner.pods.values()))
        here.pods.close()


def test_what_a_killed_run_left_is_removed_by_its_journal(tmp_path: Path) -> None:
    with running(tmp_path) as here:
        here.pods.open()
        later = LoadPods(Who(client(here.cluster), here.pods._login.file), TARGET, RealClock(), NoJournal)
        later.remove(Journal(tmp_path / "journal"))
        assert here.objects("Job", "Secret", "Pod") == [] and Journal(tmp_path / "journal").pending() == ()


def test_a_pod_that_another_job_of_that_name_made_is_none_of_the_loads(tmp_path: Path) -> None:
    with running(tmp_path) as here:
        here.pods.open()
        (ours,) = here.runner.pods
        theirs, told = here.cluster.store.find("Pod", ours) or {}, list[str]()
        theirs["metadata"]["name"], theirs["metadata"]["ownerReferences"][0]["uid"] = "theirs", "of another"
        here.cluster.store.create(named("Pod"), theirs)
        here.pods.remove(here.journal, Reverting(lambda _, name: told.append(name)))
        assert told == [ours, "pg-walproof", "pg-walproof"]


def test_a_job_that_may_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    rights = rules_of(_role("price", "prove", "load-pods"))
    without = Account(rules=rights, without=(Rule(("create",), ("jobs",)),))
    with running(tmp_path, account=without) as here:
        with pytest.raises(ApiError, match=r"may not create jobs\.batch"):
            here.pods.open()
        assert here.objects("Job", "Secret", "Pod") == [] and here.journal.pending() == ()


def _role(*uses: str) -> list[dict[str, Any]]:
    printed = CnpgRights(CnpgFile(kind="cnpg", cluster="default/pg"), None).role(uses)
    rules: list[dict[str, Any]] = role_in(printed)["rules"]
    return rules


@each(["price", "prove"])
def test_the_printed_role_is_enough_for_load_pods(use: str, tmp_path: Path) -> None:
    with running(tmp_path, account=Account(rules=rules_of(_role(use, "load-pods")))) as here:
        (place,) = here.pods.open()
        assert ended(place, "echo", "done") == "done\n"
        here.pods.close()
        assert here.objects("Job", "Secret", "Pod") == []


def test_no_role_holds_a_job_but_where_load_pods_are_asked_for() -> None:
    for use in ("doctor", "price", "prove", "apply"):
        assert not [rule for rule in _role(use) if "jobs" in rule["resources"]]
    jobs = [rule for rule in _role("price", "load-pods") if "jobs" in rule["resources"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in jobs] == [
        (["create"], None),
        (["get", "delete"], ["pg-walproof"]),
    ]


def test_a_lost_pod_is_named_and_the_next_load_gets_new_ones(tmp_path: Path) -> None:
    with running(tmp_path, pods=2) as here:
        _, second = here.pods.open()
        process = second.start(("sleep", "600"), "output")
        lost = sorted(here.runner.pods)[1]
        here.cluster.jobs.lose(lost)
        until(lambda: process.exit_code == remote.LOST)
        assert second.lost == f"the load pod {lost} ended: NodeLost, exit code 137" and second.fetch("output") == ()
        with pytest.raises(LoadLost, match=lost):
            second.put("more", "")
        assert len(here.pods.open()) == 2 and len(here.runner.pods) == 4
        assert len(here.objects("Job")) == 1


def test_a_pod_that_is_deleted_is_lost(tmp_path: Path) -> None:
    with running(tmp_path) as here:
        (place,) = here.pods.open()
        (name,) = here.runner.pods
        process = place.start(("sleep", "600"), "output")
        here.cluster.store.remove(named("Pod"), "default", name)
        until(lambda: process.exit_code == remote.LOST)
        with pytest.raises(LoadLost, match=f"the load pod {name} was deleted"):
            place.put("more", "")


def test_an_api_server_that_is_gone_for_a_while_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as here:
        (place,) = here.pods.open()
        process = place.start(("sh", "-c", "sleep 1; echo done"), "output")
        odd = here.cluster.serving.api.oddities
        odd.unreachable_for(2.0)
        here.pods._places[0].pod.close()
        assert process.wait(30) and process.exit_code == 0 and not odd.unreachable
        assert place.fetch("output")[0].read_text() == "done\n" and place.lost == ""


def test_an_image_of_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creating_load_pods, "checksum", lambda: "0123456789abcdef")
    with running(tmp_path) as here:
        with pytest.raises(TargetError, match=f"the image {IMAGE} holds other code than this walproof"):
            here.pods.open()
        assert here.objects("Job", "Secret", "Pod") == [] and here.journal.pending() == ()


def test_a_pod_that_ends_at_once_says_how(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with stand_in(tmp_path, runner=lambda *_: Finished(code=127)) as cluster:
        file = CnpgFile(kind="cnpg", cluster="default/pg", load=LoadPart(image=IMAGE))
        pods = LoadPods(Who(client(cluster), file), TARGET, RealClock(), lambda: journal)
        with pytest.raises(TargetError, match=r"ended at once: Error, exit code 127"):
            pods.open()
        assert journal.pending() == ()


def test_a_file_that_comes_back_damaged_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as here:
        (place,) = here.pods.open()
        ended(place, "seq", "1000")
        monkeypatch.setattr(zlib, "decompressobj", Garbling)
        assert place.start(("seq", "1001"), "output").wait(60)
        assert place.fetch("output") == () and "output of the load pod" in place.lost
        assert place.lost.endswith("came back damaged twice")


def test_clocks_of_pods_are_compared_with_ours(tmp_path: Path) -> None:
    """These pods share our machine's clocks: the difference must be nothing, within its uncertainty."""
    with running(tmp_path) as here:
        (place,) = here.pods.open()
        clock = place.clock()
        ours = RealClock().now() - time.monotonic()
        assert abs(clock.offset_s - ours) <= clock.uncertainty_s + 1e-4
        assert abs(clock.ahead_s - (time.time() - RealClock().now())) <= clock.uncertainty_s + 1e-4
        assert "known to ±" in here.pods.facts()["load pods' clocks"]


def test_a_ledger_in_pods_whose_pod_is_lost_is_incomplete(tmp_path: Path) -> None:
    with running(tmp_path, pods=2) as here:
        ledger = RunningLedger(LedgerOrder(Level.ON, writers=4), NOBODY, [("pg-1", NOBODY)], here.pods)
        until(lambda: ledger.progress().writers_alive == 4)
        lost = sorted(here.runner.pods)[0]
        os.kill(here.runner.pods[lost].process.pid, signal.SIGKILL)
        until(lambda: lost in ledger.progress().last_error)
        ledger.stop()
        assert ledger.incomplete().startswith(f"the load pod {lost} ended") and "missing" in ledger.incomplete()


def test_a_ledger_in_pods_that_ended_well_is_complete(tmp_path: Path) -> None:
    with running(tmp_path, pods=2) as here:
        ledger = RunningLedger(LedgerOrder(Level.ON, writers=4), NOBODY, [("pg-1", NOBODY)], here.pods)
        until(lambda: ledger.progress().writers_alive == 4)
        attempts = ledger.stop()
        assert ledger.incomplete() == "" and len(attempts) == 0
        assert 0 < attempts.clocks_apart_s < 5


def test_the_agent_ends_what_it_started_when_nobody_asks_any_more(tmp_path: Path) -> None:
    """The other side was killed with -9: load must not go on for ever."""
    (tmp_path / "pgpass").write_text("")
    (tmp_path / "token").write_text("of this run")
    command = [sys.executable, "-m", "walproof.load.pods.agent", "--listen", "127.0.88.1:7198", "--silent", "3"]
    agent = subprocess.Popen([*command, "--secret", str(tmp_path)], env={**os.environ, "PYTHONPATH": PATHS})
    connect = partial(socket.create_connection, ("127.0.88.1", 7198))
    pod = remote.RemotePod("pod", "of this run", connect, lambda: "", RealClock())
    place = RemoteWorkspace(pod, RealClock(), lambda endpoint: endpoint)
    place.start(("sleep", "600"), "output")
    (started,) = psutil.Process(agent.pid).children()
    assert agent.wait(60) == 3
    assert not psutil.pid_exists(started.pid) and not Path(place.directory).exists()
