"""What marks every object that walproof makes: its name, labels, its maker, and the Cluster that it goes with.

Names of secrets and Jobs are known beforehand, so that a Role can name them: there is one run at a time on a Cluster.
"""

import base64
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from walproof.machine.pid_files import identity
from walproof.targets.cnpg.api import ApiError, Kind, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Owned, OwnedMetadata, read

LABELS = {"app.kubernetes.io/managed-by": "walproof"}
OURS = "app.kubernetes.io/managed-by=walproof"
MADE_BY = "walproof/made-by"
"""The annotation that names the machine, the process, when it started, and the machine's boot."""
RUN = "walproof/run"
"""The label that tells this run's object from one of another run under the same name."""


def load_name(cluster: str) -> str:
    """Of the load's Job and secret; with -999, the last pod's index, at most 63 letters for a Cluster's 50.

    >>> load_name("pg")
    'pg-walproof'
    """
    return f"{cluster}-walproof"


def role_name(cluster: str) -> str:
    """Of the secret of walproof's own role.

    >>> role_name("pg")
    'pg-walproof-role'
    """
    return f"{cluster}-walproof-role"


def maker() -> str:
    """This process, so that it is known again."""
    return f"{socket.gethostname()} {identity(os.getpid())}"


def ended(maker: str) -> bool | None:
    """Whether that process has ended; None where only another machine can tell.

    >>> ended("elsewhere 1 2 3") is None
    True
    """
    host, _, process = maker.partition(" ")
    if host != socket.gethostname():
        return None
    pid = process.partition(" ")[0]
    return not pid.isdigit() or identity(int(pid)) != process


def metadata(name: str, cluster: Tree, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of an object of that name: our label and others, owned by the Cluster."""
    meta = cluster["metadata"]
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": meta["name"], "uid": meta["uid"]}
    labels = {**LABELS, **(more or {})}
    return {"name": name, "labels": labels, "annotations": {MADE_BY: maker()}, "ownerReferences": [owner]}


def secret(meta: Mapping[str, Any], kind: str, values: Mapping[str, str]) -> Tree:
    """A secret with these values."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": dict(meta), "type": kind, "data": data}


def create(api: KubernetesApi, kind: Kind, tree: Tree, over: Callable[[OwnedMetadata], bool] | None = None) -> None:
    """Make it; ApiError where another's object has its name. One of ours whose run is `over` is replaced."""
    name = tree["metadata"]["name"]
    try:
        api.create(kind, tree)
        return
    except ApiError as wrong:
        if wrong.code != 409:
            raise
    there = read(Owned, api.get(kind, name)).metadata
    one = f"{kind.plural[:-1]} {name}"
    if not LABELS.items() <= there.labels.items():
        raise ApiError(f"the {one} is there and not walproof's, so it is left alone", "rename it", code=409)
    if over is None or not over(there):
        host = there.annotations.get(MADE_BY, "").partition(" ")[0] or "an unknown machine"
        raise ApiError(
            f"another run of walproof is at work on this cluster, or was killed: its {one} was made on {host}",
            f"wait for its end; where it was killed: walproof revert, or kubectl delete {one}",
            code=409,
        )
    api.delete(kind, name)
    api.create(kind, tree)


def remove(api: KubernetesApi, kind: Kind, name: str, run: str) -> None:
    """Delete it where it is that run's of walproof; another run may have made one of that name since."""
    try:
        there = read(Owned, api.get(kind, name)).metadata
    except ApiError as wrong:
        if wrong.code != 404:
            raise
        return
    if LABELS.items() <= there.labels.items() and there.labels.get(RUN) == run:
        api.delete(kind, name)
