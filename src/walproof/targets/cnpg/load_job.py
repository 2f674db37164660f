"""The Job whose pods put load on a Cluster from within, and the secret they log in by. Pure.

Restricted Pod Security admits it: no root, nothing written but memory, no capability, no token of Kubernetes.
"""

from typing import Any

from walproof.load.pods.agent import MEMORY_MIB, PGPASS, TOKEN
from walproof.targets.cnpg import owned
from walproof.targets.cnpg.api import Tree
from walproof.targets.cnpg.credentials import Credential, pgpass
from walproof.targets.cnpg.file import LoadPart

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
    return f"{owned.RUN}={run}"


def load_secret(run: str, credential: Credential, token: str, cluster: Tree) -> Tree:
    """The password file of the load pods, and the token that their agents ask for."""
    meta = owned.metadata(owned.load_name(cluster["metadata"]["name"]), cluster, {owned.RUN: run})
    return owned.secret(meta, "Opaque", {PGPASS: pgpass(credential), TOKEN: token})


def load_job(run: str, load: LoadPart, cluster: Tree) -> Tree:
    """An Indexed Job: one pod an index, none of them ever replaced, for what it knew is lost with it."""
    name = owned.load_name(cluster["metadata"]["name"])
    labels = {**owned.LABELS, "app.kubernetes.io/name": "walproof-load", owned.RUN: run}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owned.metadata(name, cluster, labels),
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
