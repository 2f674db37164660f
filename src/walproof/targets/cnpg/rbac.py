"""The least that each use needs of Kubernetes' RBAC, as Roles to paste, and which of it this user lacks.

Asked before anything is done: what is refused is named with the rule that allows it."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import yaml

from walproof.errors import Error, TargetError, UsageError
from walproof.model.drill import Capability
from walproof.targets.cnpg.created_objects import load_name, role_name
from walproof.targets.cnpg.kubernetes_api import ACCESS_REVIEWS, CLUSTERS, ApiError, KubernetesApi, rule_line
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.target_file import EXAMPLE, CnpgFile, LoadPart, read_address


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
_MUCH = ("clusters", "jobs", "secrets")
_AMOUNTS_TO = "What patch clusters, create jobs and create secrets amount to: docs/kubernetes.md, Rights."
_STREAM = ("get", "create")
"""A WebSocket is opened by GET; newer API servers ask for create too."""


def _reading(names: "Names") -> tuple[Rule, ...]:
    return (
        Rule(CNPG, "clusters", ("get",), (names.cluster,)),
        Rule("", "pods", ("list",)),
        Rule("", "secrets", ("get",), (names.secret,)),
        Rule("coordination.k8s.io", "leases", ("get",), (names.cluster,)),
        Rule("discovery.k8s.io", "endpointslices", ("list",)),
        Rule("", "pods/portforward", _STREAM, names.instances),
    )


def for_fault(cluster: str, instances: Sequence[str]) -> dict[Capability, tuple[Rule, ...]]:
    """What each fault of these instances needs, as Kubernetes up to 1.34 asks it."""
    signals = (Rule("", "pods/exec", ("get",), tuple(instances)),)
    return {
        Capability.KILL: signals,
        Capability.KILL_CONTAINER: signals,
        Capability.FREEZE: signals,
        Capability.KILL_MEMBER: (Rule("", "pods", ("delete",), tuple(instances)),),
        Capability.STOP: _changing(cluster),
        Capability.SWITCHOVER: (Rule(CNPG, "clusters/status", ("patch",), (cluster,)),),
    }


def for_own_role(cluster: str) -> tuple[Rule, ...]:
    """What a role of walproof's own needs, and the secret of its password."""
    return (*_changing(cluster), *_owned("", "secrets", role_name(cluster)))


def for_scaling(cluster: str, instances: Sequence[str]) -> tuple[Rule, ...]:
    """What other processors and memory of the pods need: a pod that no node takes is deleted."""
    return (*_changing(cluster), Rule("", "pods", ("delete",), tuple(instances)))


def for_load(cluster: str) -> tuple[Rule, ...]:
    """What load pods need as 1.34 asks it, and their secret; a Job's pods have names that are not known beforehand."""
    name = load_name(cluster)
    return (*_owned("batch", "jobs", name), *_owned("", "secrets", name), Rule("", "pods/portforward", ("get",)))


def _changing(cluster: str) -> tuple[Rule, ...]:
    return (Rule(CNPG, "clusters", ("patch",), (cluster,)),)


def _owned(group: str, resource: str, name: str) -> tuple[Rule, ...]:
    """An object of walproof's own: RBAC knows no name when it is created."""
    return Rule(group, resource, ("create",)), Rule(group, resource, ("get", "delete"), (name,))


def _breaking(names: "Names") -> tuple[Rule, ...]:
    return (
        Rule("", "pods/exec", _STREAM, names.instances),
        Rule("", "pods/log", ("get",), names.instances),
        Rule("", "pods", ("delete",), names.instances),
        Rule(CNPG, "clusters/status", ("patch",), (names.cluster,)),
    )


FOR_CHAOS = tuple(
    Rule("chaos-mesh.org", plural, ("get", "list", "create", "delete"))
    for plural in ("networkchaos", "iochaos", "stresschaos")
)
"""Faults of the network, disks and processors."""
USES = ("doctor", "price", "prove", "apply")
CHAOS_MESH, SCALE, LOAD_PODS = "chaos-mesh", "scale", "load-pods"
FURTHER = (LOAD_PODS, SCALE, CHAOS_MESH)
"""Further uses: load from within, other sizes of the pods, Chaos Mesh's faults; meant only where they are named."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a Role names: the Cluster, the secret of the user, the instances."""

    cluster: str
    secret: str
    instances: tuple[str, ...]


def rules_for(uses: Iterable[str], names: Names) -> tuple[Rule, ...]:
    """What these uses need together, each verb once; UsageError for what is no use."""
    further = {
        CHAOS_MESH: FOR_CHAOS,
        SCALE: for_scaling(names.cluster, names.instances),
        LOAD_PODS: (*for_load(names.cluster), Rule("", "pods/portforward", _STREAM)),
    }
    rules: list[Rule] = []
    for use in uses:
        if use in further:
            rules += further[use]
            continue
        if use not in USES:
            raise UsageError(f"{use!r} is no use of a target", f"the uses are {', '.join((*USES, *FURTHER))}")
        rules += _reading(names)
        rules += _changing(names.cluster) if use != "doctor" else ()
        rules += for_own_role(names.cluster) if use in ("price", "prove") else ()
        rules += _breaking(names) if use == "prove" else ()
    return _together(rules)


def _together(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules of one kind of object and the same names as one."""
    merged: dict[tuple[str, str, tuple[str, ...]], Rule] = {}
    for rule in rules:
        key = (rule.group, rule.resource, rule.names)
        verbs = dict.fromkeys((*(merged[key].verbs if key in merged else ()), *rule.verbs))
        merged[key] = replace(rule, verbs=tuple(verbs))
    return tuple(merged.values())


def role_text(rules: Sequence[Rule], uses: Sequence[str], namespace: str, notes: Sequence[str] = ()) -> str:
    """A Role with these rules, what to know of it, and how it is given to a user."""
    name = f"walproof-{uses[0]}" if len(uses) == 1 else "walproof"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [_tree(rule) for rule in rules],
    }
    bind = f"# then: kubectl create rolebinding {name} --namespace {namespace} --role {name} --user USER\n"
    head = "".join(f"# {' '.join(line.split())}\n" for line in (", ".join(uses), *notes))
    return f"{head}{yaml.safe_dump(role, sort_keys=False)}{bind}"


def _tree(rule: Rule) -> dict[str, list[str]]:
    names = {"resourceNames": list(rule.names)} if rule.names else {}
    return {"apiGroups": [rule.group], "resources": [rule.resource], **names, "verbs": list(rule.verbs)}


def missing_of(api: KubernetesApi, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The verbs that this user may not use, asked one by one (SelfSubjectAccessReview); changes nothing."""
    missing = []
    for rule in rules:
        for verb in rule.verbs:
            lacking = [name for name in rule.names or ("",) if not _allowed(api, rule, verb, name)]
            if lacking:
                missing.append(replace(rule, verbs=(verb,), names=tuple(filter(None, lacking))))
    return _together(missing)


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

    @cached_property
    def _named(self) -> tuple[Names, str]:
        """What the Role names, and what to know of the instances' names."""
        file, guessed = self._file, ""
        try:
            instances = self._instances()
        except Error as wrong:
            instances = tuple(f"{file.name}-{number}" for number in (1, 2, 3))
            guessed = f" They are guessed ({wrong.message}): kubectl get cluster {file.name} shows them."
        listed = ", ".join(instances)
        return Names(file.name, file.secret or f"{file.name}-app", instances), (
            f"The instances are {listed}.{guessed} Print this again when one is added or made anew under another name."
        )

    def _instances(self) -> tuple[str, ...]:
        cluster = read(Cluster, self._api().get(CLUSTERS, self._file.name))
        for name in cluster.status.instance_names:
            # A user who may write the status would else add pods of others to a Role that an administrator pastes.
            if re.fullmatch(rf"{re.escape(self._file.name)}-[0-9]{{1,9}}", name) is None:
                raise TargetError(f"its status has an instance {name[:80]!r}, which is no name of the operator's", "")
        counted = tuple(f"{self._file.name}-{number}" for number in range(1, cluster.spec.instances + 1))
        return tuple(cluster.status.instance_names) or counted

    def _api(self) -> KubernetesApi:
        if self._connect is None:
            raise UsageError("rights can be asked of one cluster only", f"--target {EXAMPLE}")
        return self._connect()

    def _rules(self, uses: Sequence[str]) -> tuple[Rule, ...]:
        within = self._file.load.image and {"price", "prove"} & set(uses)
        return rules_for(dict.fromkeys((*uses, LOAD_PODS)) if within else uses, self._named[0])

    def _role(self, rules: Sequence[Rule], uses: Sequence[str]) -> str:
        much = any(rule.resource in _MUCH and {"patch", "create"} & set(rule.verbs) for rule in rules)
        return role_text(rules, uses, self._file.namespace, (self._named[1], *([_AMOUNTS_TO] if much else [])))

    def role(self, uses: Sequence[str]) -> str:
        """The Role of these uses; its instances are those of the Cluster where it can be asked, else guessed."""
        return self._role(self._rules(uses), uses)

    def _missing(self, uses: Sequence[str]) -> tuple[Rule, ...]:
        return missing_of(self._api(), self._rules(uses))

    def missing(self, uses: Sequence[str]) -> Sequence[str]:
        """Verb by verb."""
        return [f"{verb} {rule.shown}" for rule in self._missing(uses) for verb in rule.verbs]

    def role_of_missing(self, uses: Sequence[str]) -> str:
        """The Role of what is missing."""
        return self._role(self._missing(uses), uses)


def rights(address: str | None) -> CnpgRights:
    """The rights that the cluster of an address needs; without one, of a Cluster named CLUSTER."""
    if address is None:
        file = CnpgFile.model_construct(kind="cnpg", cluster="NAMESPACE/CLUSTER", secret="", load=LoadPart())
        return CnpgRights(file, None)
    _, file = read_address(address)

    def connect() -> KubernetesApi:
        from walproof.targets.cnpg.client import Client
        from walproof.targets.cnpg.kubeconfig import connection

        configuration, context = connection(file.context, os.environ)
        return Client(configuration, file.namespace, context)

    return CnpgRights(file, connect)


def refusal(api: KubernetesApi, rules: Sequence[Rule], doing: str) -> ApiError | None:
    """The error where `doing` needs a right that this user lacks; None too where the API does not say."""
    try:
        missing = missing_of(api, rules)
    except Error:
        # Then the API itself will refuse what it does not allow.
        return None
    if not missing:
        return None
    listed = ", ".join(f"{verb} {rule.shown}" for rule in missing for verb in rule.verbs)
    return ApiError(
        f"this user may not {listed} in namespace {api.namespace}, which {doing} needs",
        f"add to the rules of its Role: {' '.join(rule.line for rule in missing)}",
        code=403,
    )


def refused_faults(api: KubernetesApi, cluster: str, instances: Sequence[str]) -> dict[Capability, str]:
    """The faults that this user may not do, each with the reason in one clause."""
    reasons = {}
    for fault, rules in for_fault(cluster, instances).items():
        wrong = refusal(api, rules, str(fault))
        if wrong is not None:
            reasons[fault] = f"{wrong.message}; {wrong.hint}"
    return reasons
