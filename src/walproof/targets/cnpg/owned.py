"""What marks every object that walproof makes: a label, its maker, and the Cluster that it goes with."""

import base64
import os
import socket
from collections.abc import Mapping
from typing import Any

from walproof.machine.pid_files import identity
from walproof.targets.cnpg.api import Tree

LABELS = {"app.kubernetes.io/managed-by": "walproof"}
OURS = "app.kubernetes.io/managed-by=walproof"
MADE_BY = "walproof/made-by"
"""The annotation that names the machine, the process, when it started, and the machine's boot."""


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
