"""The least that each use needs of Kubernetes' RBAC, as Roles to paste, and which of it this user lacks."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import yaml

from walproof.errors import UsageError
from walproof.model.ports import Capability
from walproof.targets.cnpg.api import ACCESS_REVIEWS, KubernetesApi
from walproof.targets.cnpg.api_errors import rule_line
from walproof.targets.cnpg.file import EXAMPLE, CnpgFile, read_address


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on a kind of object; `names` only on these objects, where RBAC can tell them (not for list and create)."""

    group: str
    resource: str
    """With its subresource: pods/exec."""
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """clusters.postgresql.cnpg.io, pods/exec."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def line(self) -> str:
        """As it stands among a Role's rules."""
        return rule_line(self.group, self.resource, self.verbs, self.names)


CNPG = "postgresql.cnpg.io"
_STREAM = ("get", "create")
"""A WebSocket is opened by GET; newer API servers ask for create too."""


def _reading(name: str, secret: str) -> tuple[Rule, ...]:
    return (
        Rule(CNPG, "clusters", ("get",), (name,)),
        Rule("", "pods", ("list",)),
        Rule("", "secrets", ("get",), (secret,)),
        Rule("coordination.k8s.io", "leases", ("get",), (name,)),
        Rule("discovery.k8s.io", "endpointslices", ("list",)),
        Rule("", "pods/portforward", _STREAM),
    )


def for_fault(name: str) -> dict[Capability, tuple[Rule, ...]]:
    """What each fault needs, as Kubernetes up to 1.34 asks it."""
    signals = (Rule("", "pods/exec", ("get",)),)
    return {
        Capability.KILL: signals,
        Capability.KILL_CONTAINER: signals,
        Capability.FREEZE: signals,
        Capability.KILL_MEMBER: (Rule("", "pods", ("delete",)),),
        Capability.STOP: _changing(name),
        Capability.SWITCHOVER: (Rule(CNPG, "clusters/status", ("patch",), (name,)),),
    }


def for_own_role(name: str) -> tuple[Rule, ...]:
    """What a role of walproof's own needs."""
    return (*_changing(name), *_OWN_ROLE)


def for_scaling(name: str) -> tuple[Rule, ...]:
    """What other processors and memory of the pods need: a pod that no node takes is deleted."""
    return (*_changing(name), *_SCALING)


_SCALING = (Rule("", "pods", ("delete",)),)


def _changing(name: str) -> tuple[Rule, ...]:
    return (Rule(CNPG, "clusters", ("patch",), (name,)),)


_OWN_ROLE = (Rule("", "secrets", ("list", "create", "delete")),)
"""The password of walproof's own role."""


LOAD = (Rule("batch", "jobs", ("list", "create", "delete")), Rule("", "secrets", ("create", "delete")))
"""Load pods and the secret they log in by; they are reached as members are."""


def _breaking(name: str) -> tuple[Rule, ...]:
    return (
        Rule("", "pods/exec", _STREAM),
        Rule("", "pods/log", ("get",)),
        Rule("", "pods", ("delete",)),
        Rule(CNPG, "clusters/status", ("patch",), (name,)),
    )


_CHAOS = tuple(
    Rule("chaos-mesh.org", plural, ("get", "list", "create", "delete"))
    for plural in ("networkchaos", "iochaos", "stresschaos")
)
"""Faults of the network, disks and processors."""
USES = ("doctor", "price", "prove", "apply")
CHAOS_MESH = "chaos-mesh"
SCALE = "scale"
FURTHER = (CHAOS_MESH, SCALE)
"""Further uses, for Chaos Mesh's faults and for other sizes of the pods; meant only where they are named."""


def rules_for(uses: Iterable[str], name: str, secret: str) -> tuple[Rule, ...]:
    """What these uses need together, each verb once; UsageError for what is no use."""
    rules: list[Rule] = []
    for use in uses:
        if use == CHAOS_MESH:
            rules += _CHAOS
            continue
        if use == SCALE:
            rules += for_scaling(name)
            continue
        if use not in USES:
            raise UsageError(f"{use!r} is no use of a target", f"the uses are {', '.join((*USES, *FURTHER))}")
        rules += _reading(name, secret)
        rules += _changing(name) if use != "doctor" else ()
        rules += (*_OWN_ROLE, *LOAD) if use in ("price", "prove") else ()
        rules += _breaking(name) if use == "prove" else ()
    return _together(rules)


def _together(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules of one kind of object and the same names as one."""
    found: dict[tuple[str, str, tuple[str, ...]], Rule] = {}
    for rule in rules:
        key = (rule.group, rule.resource, rule.names)
        verbs = dict.fromkeys((*(found[key].verbs if key in found else ()), *rule.verbs))
        found[key] = replace(rule, verbs=tuple(verbs))
    return tuple(found.values())


def role_text(rules: Sequence[Rule], uses: Sequence[str], namespace: str) -> str:
    """A Role with these rules, and how it is given to somebody."""
    name = f"walproof-{uses[0]}" if len(uses) == 1 else "walproof"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [_tree(rule) for rule in rules],
    }
    bind = f"# then: kubectl create rolebinding {name} --namespace {namespace} --role {name} --user USER\n"
    return f"# {', '.join(uses)}\n{yaml.safe_dump(role, sort_keys=False)}{bind}"


def _tree(rule: Rule) -> dict[str, list[str]]:
    names = {"resourceNames": list(rule.names)} if rule.names else {}
    return {"apiGroups": [rule.group], "resources": [rule.resource], **names, "verbs": list(rule.verbs)}


def missing_of(api: KubernetesApi, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The verbs that this user may not use, asked one by one (SelfSubjectAccessReview); changes nothing."""
    found = []
    for rule in rules:
        for verb in rule.verbs:
            for name in rule.names or ("",):
                if not _allowed(api, rule, verb, name):
                    found.append(replace(rule, verbs=(verb,)))
    return _together(found)


def _allowed(api: KubernetesApi, rule: Rule, verb: str, name: str) -> bool:
    resource, _, subresource = rule.resource.partition("/")
    asked = {"namespace": api.namespace, "verb": verb, "group": rule.group, "resource": resource, "name": name}
    if subresource:
        asked["subresource"] = subresource
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": asked},
    }
    answer = api.create(ACCESS_REVIEWS, body)
    return bool((answer.get("status") or {}).get("allowed"))


class CnpgRights:
    """The rights that one Cluster needs, or any one."""

    uses: Sequence[str] = USES

    def __init__(self, file: CnpgFile, connect: Callable[[], KubernetesApi] | None) -> None:
        """`connect` gives the API to ask; None where no cluster is named."""
        self._file, self._connect = file, connect

    def _rules(self, uses: Sequence[str]) -> tuple[Rule, ...]:
        return rules_for(uses, self._file.name, self._file.secret or f"{self._file.name}-app")

    def role(self, uses: Sequence[str]) -> str:
        """The Role of these uses."""
        return role_text(self._rules(uses), uses, self._file.namespace)

    def _missing(self, uses: Sequence[str]) -> tuple[Rule, ...]:
        if self._connect is None:
            raise UsageError("rights can be asked of one cluster only", f"--target {EXAMPLE}")
        return missing_of(self._connect(), self._rules(uses))

    def missing(self, uses: Sequence[str]) -> Sequence[str]:
        """Verb by verb."""
        return [f"{verb} {rule.shown}" for rule in self._missing(uses) for verb in rule.verbs]

    def role_of_missing(self, uses: Sequence[str]) -> str:
        """The Role of what is missing."""
        return role_text(self._missing(uses), uses, self._file.namespace)


def rights(address: str | None) -> CnpgRights:
    """The rights that the cluster of an address needs; without one, of a Cluster named CLUSTER."""
    if address is None:
        file = CnpgFile.model_construct(kind="cnpg", cluster="NAMESPACE/CLUSTER", secret="")
        return CnpgRights(file, None)
    _, file = read_address(address)

    def connect() -> KubernetesApi:
        from walproof.targets.cnpg.client import Client
        from walproof.targets.cnpg.kubeconfig import connection

        configuration, context = connection(file.context, os.environ)
        return Client(configuration, file.namespace, context)

    return CnpgRights(file, connect)
