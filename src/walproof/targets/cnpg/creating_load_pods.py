"""Creates the Job of load pods, waits until all of them are ready, and removes it. load/pods/agent.py runs in each.

Journaled before it is created; the password and the run's token reach the pods by a secret of ours alone. Restricted
Pod Security admits it. This file starts no pgbench: the agent does."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from walproof.errors import Error, TargetError, WaitTimeout
from walproof.load.pods.agent import MEMORY_MIB, PGPASS, TOKEN, checksum
from walproof.load.pods.remote import Hello, RemotePod, RemoteWorkspace
from walproof.machine.quoting import pasted
from walproof.machine.signals import shielded
from walproof.model.ports import SILENT, Clock, Closes, Notebook, Reverting
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.credentials_and_own_role import Credential
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, JOBS, SECRETS, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Pod
from walproof.targets.cnpg.rbac import Names, for_load, refusal
from walproof.targets.cnpg.state_and_doctor_facts import pods_labelled
from walproof.targets.cnpg.target_file import CnpgFile, LoadPart
from walproof.targets.configure import needed, noted
from walproof.targets.sql.connection import pgpass_line

PORT = 7447
"""Of the pod's own loopback."""
CONTAINER = "load"
_SECRET = "/run/walproof/secret"
_SHM = "/dev/shm"
_KEPT_S = 600
"""How long Kubernetes keeps a Job that has ended by itself."""


def pods_of_run(run: str) -> str:
    """The label selector of a run's load pods; those of a Job before it, of the same name, may still be ending.

    >>> pods_of_run("1a2b")
    'walproof/run=1a2b'
    """
    return f"{created_objects.RUN}={run}"


def load_secret(run: str, credential: Credential, token: str, cluster: Tree) -> Tree:
    """The password file of the load pods, and the token that their agents ask for."""
    meta = created_objects.metadata(
        created_objects.load_name(cluster["metadata"]["name"]), cluster, {created_objects.RUN: run}
    )
    return created_objects.secret(meta, "Opaque", {PGPASS: pgpass_line(credential.password), TOKEN: token})


def load_job(run: str, load: LoadPart, cluster: Tree) -> Tree:
    """An Indexed Job: one pod an index, none of them ever replaced, for what it knew is lost with it."""
    name = created_objects.load_name(cluster["metadata"]["name"])
    labels = {**created_objects.LABELS, "app.kubernetes.io/name": "walproof-load", created_objects.RUN: run}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": created_objects.metadata(name, cluster, labels),
        "spec": {
            "completions": load.pods,
            "parallelism": load.pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(name, load, cluster["metadata"]["name"])},
        },
    }


def _pod(name: str, load: LoadPart, cluster: str) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if load.pull_secret:
        more["imagePullSecrets"] = [{"name": load.pull_secret}]
    if load.node_selector:
        more["nodeSelector"] = dict(load.node_selector)
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "topologySpreadConstraints": [_spread(name)],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_away_from(cluster)]}},
        "containers": [_container(load)],
        "volumes": [
            # Any user of this pod may read it, and there is but one: the image's user is not known beforehand.
            {"name": "secret", "secret": {"secretName": name, "defaultMode": 0o444}},
            # A full one is an error of the load; memory beyond the limit kills the pod.
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{MEMORY_MIB}Mi"}},
        ],
        **more,
    }


def _container(load: LoadPart) -> dict[str, Any]:
    agent = ["python3", "-m", "walproof.load.pods.agent", "--listen", f"127.0.0.1:{PORT}", "--secret", _SECRET]
    return {
        "name": CONTAINER,
        "image": load.image,
        "imagePullPolicy": "IfNotPresent",
        "command": agent,
        "env": [{"name": "TMPDIR", "value": _SHM}, {"name": "HOME", "value": _SHM}],
        "resources": {"requests": dict(load.requests), "limits": dict(load.limits)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "secret", "mountPath": _SECRET, "readOnly": True},
            {"name": "memory", "mountPath": _SHM},
        ],
    }


def _spread(name: str) -> dict[str, Any]:
    """Over nodes, as evenly as can be."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"job-name": name}},
    }


def _away_from(cluster: str) -> dict[str, Any]:
    """Rather not on a node of an instance, whose processors the load would take."""
    instances = {"matchLabels": {"cnpg.io/cluster": cluster}}
    return {
        "weight": 100,
        "podAffinityTerm": {"labelSelector": instances, "topologyKey": "kubernetes.io/hostname"},
    }


LOAD = "load pods"
"""What the journal calls them; its name is the Job's and the secret's, `after` the run's."""
_HEARTBEAT_S = 5.0
Pods = Callable[[], Mapping[str, Pod]]


class Login(Protocol):
    """Who the load logs in as, and where members are as seen from within (targets/cnpg/members.py)."""

    api: KubernetesApi
    file: CnpgFile
    credential: Credential

    def from_within(self, place: tuple[str, int]) -> tuple[str, int]:
        """The address of a pod for what is an address of it here."""

    def write_service(self) -> tuple[str, int]:
        """The service that leads to the primary."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A pod that answers, its password file, and the address of the write service as it is known there."""

    pod: RemotePod
    passfile: str
    service: tuple[str, int] | None


class LoadPods:
    """The load pods of one Cluster: made with the first load that is asked for, kept until closed."""

    def __init__(self, login: Login, target: str, clock: Clock, journal: Callable[[], Notebook]) -> None:
        """`target` is what the journal calls the cluster."""
        self._login, self._target, self._clock, self._journal = login, target, clock, journal
        self._api, self._load = login.api, login.file.load
        self._token = ""
        self._places: list[_Place] = []
        self._heartbeat: Closes | None = None

    def pgbench(self) -> Path:
        """Its name: each pod knows where its image has it."""
        return Path("pgbench")

    def open(self) -> tuple[RemoteWorkspace, ...]:
        """A work directory in each pod. Pods are made where there are none, and made anew where one was lost."""
        if any(place.pod.lost for place in self._places):
            self.close()
        if not self._places:
            try:
                self._start()
            except (Error, KeyboardInterrupt):
                with suppress(Error), shielded():
                    self.close()
                raise
        return tuple(RemoteWorkspace(p.pod, self._clock, partial(self._seen, p)) for p in self._places)

    def facts(self) -> dict[str, str]:
        clocks = [place.pod.clock() for place in self._places if not place.pod.lost]
        facts = {"load": f"from within: {self._load.pods} of {self._load.image}"}
        if clocks:
            worst_ms = 1000 * max(clock.uncertainty_s for clock in clocks)
            facts["load pods' clocks"] = f"known to ± {worst_ms:.1f} ms"
        return facts

    def close(self) -> None:
        """Remove the Job, its pods and the secret; what cannot be removed now stays in the journal."""
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None
        for place in self._places:
            place.pod.close()
        self._places.clear()
        self.remove(self._journal())

    def remove(self, journal: Notebook, reverting: Reverting = SILENT) -> None:
        """Remove what the journal says was made, and wait until its pods are gone. Safe twice."""
        for change in noted(journal, self._target, LOAD):
            run, job = str(change.after), created_objects.find(self._api, JOBS, change.name)
            pods = partial(self._pods, run, job.meta.uid if job else "")
            for name in pods():
                reverting.tell("pod", name)
            for kind in (JOBS, SECRETS):
                created_objects.remove(self._api, kind, change.name, run, reverting)
            with suppress(WaitTimeout):
                wait_for(Wait.PROGRAM_GONE, partial(_none, pods), self._clock)
            journal.undone(change)

    def _start(self) -> None:
        wrong = refusal(self._api, for_load(Names(self._login.file.name, ())), "load from within")
        if wrong is not None:
            raise wrong
        name, run = created_objects.load_name(self._login.file.name), secrets.token_hex(4)
        tree, self._token = self._api.get(CLUSTERS, self._login.file.name), secrets.token_urlsafe(32)
        with shielded():
            needed(self._journal()).note(self._clock.now(), self._target, LOAD, name, before=None, after=run)
            secret = load_secret(run, self._login.credential, self._token, tree)
            created_objects.create(self._api, SECRETS, secret)
            job = created_objects.create(self._api, JOBS, load_job(run, self._load, tree))
        pods, listed = dict[str, Pod](), partial(self._pods, run, job)

        def ready() -> bool:
            pods.clear()
            pods.update(listed())
            _refuse(pods)
            return len(pods) == self._load.pods and all(pod.ready for pod in pods.values())

        try:
            wait_for(Wait.LOAD_PODS, ready, self._clock, pace_s=0.2)
        except WaitTimeout as wrong:
            raise TargetError(
                f"{wrong}: {_what_they_say(pods)}",
                pasted("kubectl describe job,pod -l job-name={name:shell}", name=name),
            ) from None
        self._places = [self._joined(listed, pod) for pod in pods]
        self._heartbeat = self._clock.every(_HEARTBEAT_S, self._beat)

    def _pods(self, run: str, job: str) -> dict[str, Pod]:
        """Of our Job (its uid) alone: another pod with this label would be told the run's token."""
        pods = pods_labelled(self._api, pods_of_run(run))
        return {name: pod for name, pod in pods.items() if pod.metadata.is_controlled_by(JOBS, "Job", job)}

    def _joined(self, pods: Pods, name: str) -> _Place:
        """The agent of a pod, asked what it is; TargetError where its image holds other code than this."""
        connect, gone = partial(self._api.forward, name, PORT), partial(_gone, pods, name)
        pod = RemotePod(name, self._token, connect, gone, self._clock)
        host, port = self._login.write_service()
        hello = pod.checked(Hello, "hello", resolve=[host])
        if hello.code != checksum():
            raise TargetError(
                f"the image {self._load.image} holds other code than this walproof", "build it from this version"
            )
        pod.clock()
        address = hello.addresses.get(host)
        return _Place(pod, hello.passfile, (address, port) if address else None)

    def _beat(self) -> None:
        """Ask every pod for the time: that keeps it going, and its clock known."""
        for place in self._places:
            with suppress(Error, OSError):
                place.pod.measure_clock()

    def _seen(self, place: _Place, endpoint: Endpoint) -> Endpoint:
        """The endpoint from within; one that follows the leader gets the write service too.

        A pod that is made anew has another address, the service keeps its own.
        """
        hosts = tuple(map(self._login.from_within, endpoint.hosts))
        if len(hosts) > 1 and place.service is not None:
            hosts = (*hosts, place.service)
        return replace(endpoint, hosts=hosts, passfile=place.passfile)


def _none(pods: Pods) -> bool:
    return not pods()


def _gone(pods: Pods, name: str) -> str:
    """Why that pod is no more, "" where it seems to be there."""
    pod = pods().get(name)
    if pod is None or pod.metadata.deletion_timestamp is not None:
        return f"the load pod {name} was deleted"
    return f"the load pod {name} ended{_ended(pod)}" if pod.status.phase in ("Failed", "Succeeded") else ""


def _refuse(pods: dict[str, Pod]) -> None:
    """TargetError where a pod has ended or will not start by itself."""
    for name, pod in pods.items():
        if pod.status.phase in ("Failed", "Succeeded"):
            raise TargetError(
                f"the load pod {name} ended at once{_ended(pod)}", pasted("kubectl logs {name:argument}", name=name)
            )
        if pod.failing is not None:
            raise TargetError(
                f"the load pod {name} does not start: {pod.failing}",
                "is the image where the cluster can pull it, or loaded into its nodes? docs/kubernetes.md",
            )


def _ended(pod: Pod) -> str:
    terminated = [s.state.terminated for s in pod.status.container_statuses if s.state.terminated is not None]
    if not terminated:
        return f": {pod.status.reason}" if pod.status.reason else ""
    return f": {terminated[0].reason}, exit code {terminated[0].exit_code}"


def _what_they_say(pods: dict[str, Pod]) -> str:
    """What keeps pods from being ready, in Kubernetes' words."""
    if not pods:
        return "no pod was made"
    messages = [c.message for pod in pods.values() for c in pod.status.conditions if c.status == "False" and c.message]
    return messages[0] if messages else ", ".join(f"{name} is {pod.status.phase}" for name, pod in pods.items())
