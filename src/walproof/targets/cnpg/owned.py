"""What marks every object that walproof makes: a label, and the Cluster as the owner that it goes with. Pure."""

import base64
from collections.abc import Mapping
from typing import Any

from walproof.targets.cnpg.api import Tree

LABELS = {"app.kubernetes.io/managed-by": "walproof"}


def metadata(name: str, cluster: Tree, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Of an object of that name: our label and others, owned by the Cluster."""
    meta = cluster["metadata"]
    owner = {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": meta["name"], "uid": meta["uid"]}
    return {"name": name, "labels": {**LABELS, **(more or {})}, "ownerReferences": [owner]}


def secret(meta: Mapping[str, Any], kind: str, values: Mapping[str, str]) -> Tree:
    """A secret with these values."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": dict(meta), "type": kind, "data": data}
