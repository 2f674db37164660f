"""What an answer of the Kubernetes API means, as one sentence and the next thing to type. Pure; quotes no secret."""

import json
import re
from collections.abc import Sequence

from walproof.errors import Error, UsageError
from walproof.machine.foreign_text import from_json
from walproof.targets.cnpg.api import CLUSTERS, ApiError, Kind

_USER = re.compile(r'User "([^"]+)"')
_CANNOT = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_GROUP = re.compile(r"could not find the requested resource|page not found", re.IGNORECASE)
_DENIED = re.compile(r'^admission webhook "[^"]+" denied the request:\s*')


def refused(verb: str, kind: Kind, name: str, *, code: int, body: str, namespace: str, server: str) -> Error:  # noqa: PLR0913
    """The error of an answer with status 300 or more to `verb` (get, patch …) of an object."""
    stated, which = _message(body), f"{kind.shown} {name}".strip()
    where = f" in namespace {namespace}" if kind.namespaced else ""
    if code == 401:
        return ApiError(
            f"the API server {server} does not accept this user (401): the credential is missing, wrong or expired",
            "kubectl auth whoami; log in again",
            code=code,
        )
    if code == 403:
        return _forbidden(verb, kind, stated, where, name)
    if code == 404:
        return _missing(kind, which, where, stated)
    if code == 409:
        return ApiError(
            f"{which}{where} was changed by somebody else meanwhile (409)",
            "check what changed, then do it once more",
            code=409,
        )
    if code == 410:
        return ApiError(f"the API server no longer keeps that version of {which} (410)", "do it once more", code=code)
    if code in (400, 422):
        return UsageError(f"{which} is refused: {_DENIED.sub('', stated)}", f"kubectl explain {kind.plural}")
    return _busy(verb, which, code, stated, server)


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
    return f'- {{apiGroups: ["{group}"], resources: ["{resource}"], {named}verbs: {json.dumps(list(verbs))}}}'


def _missing(kind: Kind, which: str, where: str, stated: str) -> Error:
    if kind.group == CLUSTERS.group and _GROUP.search(stated):
        return ApiError(
            "CloudNativePG is not installed on this Kubernetes: it knows no clusters.postgresql.cnpg.io (404)",
            "is it the right context? kubectl config get-contexts",
            code=404,
        )
    return ApiError(f"there is no {which}{where} (404)", f"kubectl get {kind.shown} --all-namespaces", code=404)


def _busy(verb: str, which: str, code: int, stated: str, server: str) -> Error:
    if code == 429:
        return ApiError(
            f"the API server {server} is overloaded, or a disruption budget forbids it (429): {stated}",
            "try again in a minute; kubectl get pdb",
            code=code,
        )
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
