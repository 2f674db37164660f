"""The spec of one Cluster as it is read and patched: onto the version that was read, never over somebody's change."""

from typing import Any

from walproof.errors import TargetError
from walproof.model.ports import Clock
from walproof.targets.cnpg.api import CLUSTERS, ApiError, KubernetesApi, Tree
from walproof.targets.cnpg.changes import Leaves, patch_of

_CONFLICTS = 8
"""The status is written every few moments, and each time the version changes that a patch names."""


def version_of(tree: Tree) -> str:
    """Of the spec alone: the status changes by itself."""
    return f"{tree['metadata'].get('uid', '')}/{tree['metadata'].get('generation', 0)}"


class ClusterSpec:
    """Reads and patches it."""

    def __init__(self, api: KubernetesApi, name: str, clock: Clock) -> None:
        self._api, self._name, self._clock = api, name, clock

    def read(self) -> Tree:
        """The whole object."""
        return self._api.get(CLUSTERS, self._name)

    def changed(self) -> TargetError:
        """The error where somebody else was faster."""
        return TargetError(
            f"the spec of Cluster {self._name} was changed by somebody else meanwhile",
            "check what changed (kubectl get cluster -o yaml), then do it once more",
        )

    def patch(self, asked: Leaves, tree: Tree, *, whole: bool = False) -> None:
        """Onto the version that was read; again where only the status was written since, else TargetError.

        whole: leaves nothing else in the tables of `asked`.
        """
        planned = version_of(tree)
        for _ in range(_CONFLICTS):
            version = tree["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": patch_of(asked, tree["spec"], whole=whole)}
            try:
                self._api.patch(CLUSTERS, self._name, body)
                return
            except ApiError as wrong:
                if wrong.code != 409:
                    raise
            tree = self.read()
            if version_of(tree) != planned:
                raise self.changed()
            self._clock.pause(0.1)
        raise self.changed()

    def try_patch(self, asked: Leaves, spec: dict[str, Any]) -> None:
        """Ask the API whether it would take it, admission too (UsageError, ApiError); changes nothing."""
        body = {"spec": patch_of(asked, spec, whole=True)}
        self._api.patch(CLUSTERS, self._name, body, dry_run=True)
