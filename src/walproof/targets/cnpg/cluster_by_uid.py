"""The Kubernetes API as a run uses it once a Cluster is opened: it knows that Cluster by its uid, not by its name."""

from collections.abc import Mapping
from typing import Any

from walproof.errors import UsageError
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, ApiError, Kind, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Object, read


class ClusterReplaced(ApiError):
    """The Cluster that was opened was deleted and made anew under its name; to this run it is gone (404)."""


class ClusterByUid:
    """Reads and patches a Cluster only while it has the uid that was opened; all else is the API's own."""

    def __init__(self, api: KubernetesApi, uid: str) -> None:
        self._api, self.uid = api, uid
        self.namespace, self.context = api.namespace, api.context
        self.serves, self.list, self.create, self.delete = api.serves, api.list, api.create, api.delete
        self.exec, self.log, self.forward = api.exec, api.log, api.forward

    def get(self, kind: Kind, name: str) -> Tree:
        """As the API's; ClusterReplaced."""
        tree = self._api.get(kind, name)
        if kind == CLUSTERS and (uid := read(Object, tree).metadata.uid) != self.uid:
            raise ClusterReplaced(
                f"the Cluster {name} was deleted and made anew meanwhile: its uid is {uid} now, not {self.uid}",
                "walproof leaves the new one alone; start it again to mean that one",
                code=404,
            )
        return tree

    def patch(
        self, kind: Kind, name: str, body: Mapping[str, Any], subresource: str = "", *, dry_run: bool = False
    ) -> Tree:
        """As the API's; ClusterReplaced. The API server itself refuses another uid (422).

        Of a status it does not: a patch of that is onto a resourceVersion, which no two objects share.
        """
        if kind != CLUSTERS:
            return self._api.patch(kind, name, body, subresource, dry_run=dry_run)
        onto = {**body.get("metadata", {}), "uid": self.uid}
        assert not subresource or "resourceVersion" in onto, "a status is patched as it was read"
        try:
            return self._api.patch(kind, name, {**body, "metadata": onto}, subresource, dry_run=dry_run)
        except UsageError:
            self.get(kind, name)
            raise
