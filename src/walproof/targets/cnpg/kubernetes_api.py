"""What the CloudNativePG target asks of a Kubernetes API: a port, the kinds of objects, and what a refusal means.

Only `client.py` knows the Kubernetes client; everything else here knows this port. An error quotes no secret."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from walproof.errors import Error, TargetError, UsageError
from walproof.machine.quoting import pasted
from walproof.machine.untrusted import from_json
from walproof.model.ports import Clock

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
POOLERS = Kind("postgresql.cnpg.io", "v1", "poolers")
PODS = Kind("", "v1", "pods")
SERVICES = Kind("", "v1", "services")
JOBS = Kind("batch", "v1", "jobs")
SECRETS = Kind("", "v1", "secrets")
LEASES = Kind("coordination.k8s.io", "v1", "leases")
ENDPOINTSLICES = Kind("discovery.k8s.io", "v1", "endpointslices")
ACCESS_REVIEWS = Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)
RULES_REVIEWS = Kind("authorization.k8s.io", "v1", "selfsubjectrulesreviews", namespaced=False)


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

    def get(self, kind: Kind, name: str) -> Tree:
        """One object."""

    def list(self, kind: Kind, labels: str = "") -> Sequence[Tree]:
        """Every object with these labels ("a=b,c=d")."""

    def create(self, kind: Kind, body: Mapping[str, Any]) -> Tree:
        """Make an object; what the API made of it."""

    def patch(
        self, kind: Kind, name: str, body: Mapping[str, Any], subresource: str = "", *, dry_run: bool = False
    ) -> Tree:
        """Merge into an object (JSON merge patch: None removes a key); with metadata.resourceVersion only onto that.

        dry_run: everything but the change, admission too.
        """

    def delete(self, kind: Kind, name: str, grace_s: int | None = None, *, uid: str) -> bool:
        """Delete that very object, and what it owns; False: it is gone already, or made anew. grace_s 0 forces."""

    def exec(self, pod: str, command: Sequence[str], container: str = "postgres") -> Output:
        """Run a command in a container and wait for it."""

    def log(self, pod: str, container: str = "postgres", lines: int = 1000) -> str:
        """The last lines of a container's log."""

    def forward(self, pod: str, port: int) -> Any:
        """A connected socket to a port of a pod."""


_CONFLICTS = 8


def patch_as_read(
    api: KubernetesApi,
    kind: Kind,
    name: str,
    change: Callable[[Tree], Tree | None],
    clock: Clock,
    subresource: str = "",
) -> bool:
    """Patch an object onto the version that `change` was worked out from, anew where another user was faster.

    False, and nothing is patched, where `change` gives None. ApiError 409 when others are faster all the time.
    """
    for _ in range(_CONFLICTS):
        tree = api.get(kind, name)
        body = change(tree)
        if body is None:
            return False
        version = {"resourceVersion": tree["metadata"]["resourceVersion"]}
        try:
            api.patch(kind, name, {**body, "metadata": {**body.get("metadata", {}), **version}}, subresource)
            return True
        except ApiError as wrong:
            if wrong.code != 409:
                raise
        clock.pause(0.1)
    raise ApiError(f"{kind.shown} {name} is changed by another user all the time", "do it once more", code=409)


_USER = re.compile(r'User "([^"]+)"')
_CANNOT = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_GROUP = re.compile(r"could not find the requested resource|page not found", re.IGNORECASE)
_DENIED = re.compile(r'^admission webhook "[^"]+" denied the request:\s*')


def refused(verb: str, kind: Kind, name: str, *, code: int, body: str, namespace: str, server: str) -> Error:  # noqa: PLR0913
    """The error of an answer with status 300 or more to `verb` (get, patch …) of an object."""
    stated, which = _message(body), f"{kind.shown} {name}".strip()
    where = f" in namespace {namespace}" if kind.namespaced else ""
    if code == 403:
        return _forbidden(verb, kind, stated, where, name)
    if code == 404:
        return _missing(kind, which, where, stated)
    if code in (400, 422):
        return UsageError(
            f"{which} is refused: {_DENIED.sub('', stated)}",
            pasted("kubectl explain {kind:argument}", kind=kind.plural),
        )
    api, again = f"the API server {server}", "do it once more"
    known = {
        401: (
            f"{api} does not accept this user (401): the credential is missing, wrong or expired",
            "kubectl auth whoami; log in again",
        ),
        409: (f"{which}{where} was changed by another user meanwhile (409)", f"check what changed, then {again}"),
        410: (f"the API server no longer keeps that version of {which} (410)", again),
        429: (
            f"{api} is overloaded, or a disruption budget forbids it (429): {stated}",
            "try again in a minute; kubectl get pdb",
        ),
    }
    return ApiError(*known[code], code=code) if code in known else _failed(verb, which, code, stated, server)


def _forbidden(verb: str, kind: Kind, stated: str, where: str, name: str) -> ApiError:
    """Who may not do what, by the API's own verb and resource where it names them, and the rule that allows just it."""
    user, cannot = _USER.search(stated), _CANNOT.search(stated)
    verb, resource, group = cannot.groups() if cannot else (verb, kind.plural, kind.group)
    shown = f"{resource}.{group}" if group else resource
    # An object that is created has no name yet; a pod that a command is run in has.
    rule = rule_line(group, resource, [verb], [name] if name and (verb != "create" or "/" in resource) else [])
    return ApiError(
        f"{user[1] if user else 'this user'} may not {verb} {shown}{where} (403)",
        f"add to the rules of its Role: {rule}; walproof target cnpg --print-rbac prints a whole one",
        code=403,
    )


def rule_line(group: str, resource: str, verbs: Sequence[str], names: Sequence[str] = ()) -> str:
    """A rule of a Role on one line of YAML.

    >>> rule_line("", "pods/exec", ["get"])
    '- {apiGroups: [""], resources: ["pods/exec"], verbs: ["get"]}'
    """
    named = f"resourceNames: {json.dumps(list(names))}, " if names else ""
    groups, resources, said = map(json.dumps, ([group], [resource], list(verbs)))
    return f"- {{apiGroups: {groups}, resources: {resources}, {named}verbs: {said}}}"


def _missing(kind: Kind, which: str, where: str, stated: str) -> Error:
    if kind.group == CLUSTERS.group and _GROUP.search(stated):
        return ApiError(
            "CloudNativePG is not installed on this Kubernetes: it knows no clusters.postgresql.cnpg.io (404)",
            "is it the right context? kubectl config get-contexts",
            code=404,
        )
    return ApiError(
        f"there is no {which}{where} (404)",
        pasted("kubectl get {kind:shell} --all-namespaces", kind=kind.shown),
        code=404,
    )


def _failed(verb: str, which: str, code: int, stated: str, server: str) -> Error:
    if "webhook" in stated:
        return ApiError(
            f"{verb} {which}: a webhook that the API server asks does not answer ({code}): {stated}",
            "is the operator up? kubectl get pods -A -l app.kubernetes.io/name=cloudnative-pg",
            code=code,
        )
    if 300 <= code < 400:
        return ApiError(f"{server} redirects ({code}), which is not followed", "name the API server itself", code=code)
    return ApiError(f"the API server {server} failed to {verb} {which} ({code}): {stated}", "kubectl get --raw /readyz")


def unanswered(server: str, wrong: BaseException) -> ApiError:
    """The error of a request that got no answer: refused connections, timeouts, names, certificates."""
    text = " ".join(str(wrong).split())
    lower = text.lower()
    if "certificate" in lower or "ssl" in lower:
        return ApiError(
            f"the TLS of the API server {server} is not trusted, or refuses us: {_last(text)}",
            "see certificate-authority and client-certificate in the kubeconfig",
        )
    if "refused" in lower:
        return ApiError(
            f"nothing listens at the API server's address {server} (connection refused)",
            "is it up, and is it the right context? kubectl config current-context",
        )
    if "timed out" in lower or "timeout" in lower:
        return ApiError(f"the API server {server} did not answer in time", "kubectl get --raw /readyz")
    if "resolve" in lower or "name or service" in lower or "getaddrinfo" in lower:
        return ApiError(f"the name of the API server {server} is not known", "see server: in the kubeconfig")
    return ApiError(f"the API server {server} does not answer: {_last(text)}", "kubectl get --raw /readyz")


def _last(text: str) -> str:
    return text if len(text) < 200 else f"… {text[-200:]}"


def _message(body: str) -> str:
    """The Status object's message; the first 200 characters of anything else."""
    try:
        tree = from_json(body)
    except ValueError:
        tree = None
    stated = tree.get("message") if isinstance(tree, dict) else None
    return " ".join(str(stated or body).split())[: 1000 if stated else 200]
