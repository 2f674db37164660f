"""What the CloudNativePG target asks of a Kubernetes API: a port, and the kinds of objects that are asked for.

Only `client.py` knows the Kubernetes client; everything else here knows this port.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from walproof.errors import TargetError

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object as the API's paths name it: group ("" is core), version, plural; in a namespace or not."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def shown(self) -> str:
        """As kubectl and RBAC write it: clusters.postgresql.cnpg.io, pods."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def within(self, subresource: str) -> "Kind":
        """A subresource as RBAC names it: pods/exec; itself for ""."""
        return replace(self, plural=f"{self.plural}/{subresource}") if subresource else self

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """The path of one object, or of all of them.

        >>> Kind("", "v1", "pods").path("db", "pg-1", "exec")
        '/api/v1/namespaces/db/pods/pg-1/exec'
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if self.namespaced else ""
        return root + within + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


CLUSTERS = Kind("postgresql.cnpg.io", "v1", "clusters")
PODS = Kind("", "v1", "pods")
JOBS = Kind("batch", "v1", "jobs")
SERVICES = Kind("", "v1", "services")
SECRETS = Kind("", "v1", "secrets")
LEASES = Kind("coordination.k8s.io", "v1", "leases")
ENDPOINTSLICES = Kind("discovery.k8s.io", "v1", "endpointslices")
DISRUPTION_BUDGETS = Kind("policy", "v1", "poddisruptionbudgets")
ACCESS_REVIEWS = Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)


class ApiError(TargetError):
    """The API refused or did not answer; `code` is its HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, hint: str = "", *, code: int = 0) -> None:
        super().__init__(message, hint)
        self.code = code


@dataclass(frozen=True, slots=True)
class Output:
    """What a command in a container printed, and its exit code."""

    text: str
    errors: str
    code: int


class KubernetesApi(Protocol):
    """One namespace of a Kubernetes API. Every method raises ApiError (UsageError where admission refuses values)."""

    namespace: str
    context: str
    """The kubeconfig's context, "" inside the cluster."""

    def serves(self, kind: Kind) -> bool:
        """Whether this Kubernetes knows the kind at all: its custom resource definition may not be installed."""
        ...

    def get(self, kind: Kind, name: str) -> Tree:
        """One object."""
        ...

    def list(self, kind: Kind, labels: str = "") -> Sequence[Tree]:
        """Every object with these labels ("a=b,c=d")."""
        ...

    def create(self, kind: Kind, body: Mapping[str, Any]) -> Tree:
        """Make an object; what the API made of it."""
        ...

    def patch(
        self, kind: Kind, name: str, body: Mapping[str, Any], subresource: str = "", *, dry_run: bool = False
    ) -> Tree:
        """Merge into an object (JSON merge patch: None removes a key); with metadata.resourceVersion only onto that.

        dry_run: everything but the change, admission too.
        """
        ...

    def delete(self, kind: Kind, name: str, grace_s: int | None = None) -> None:
        """Delete an object and what it owns; gone already is fine. grace_s 0 forces."""
        ...

    def exec(self, pod: str, command: Sequence[str], container: str = "postgres") -> Output:
        """Run a command in a container and wait for it."""
        ...

    def log(self, pod: str, container: str = "postgres", lines: int = 1000) -> str:
        """The last lines of a container's log."""
        ...

    def forward(self, pod: str, port: int) -> Any:
        """A connected socket to a port of a pod."""
        ...
