"""What each verb and each fault asks of Kubernetes' RBAC: Roles to paste, and what of them this user lacks.

The only place that says so. Asked before anything is done: what is refused is named with the rule that allows it."""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from walproof.errors import Error, TargetError, UsageError
from walproof.machine.quoting import pasted
from walproof.model.drill import Capability
from walproof.targets.cnpg.access_reviews import Review, Reviewed
from walproof.targets.cnpg.created_objects import EXPERIMENTS, IO, NETWORK, STRESS, load_name, role_name
from walproof.targets.cnpg.kubernetes_api import (
    ACCESS_REVIEWS,
    CLUSTERS,
    ENDPOINTSLICES,
    JOBS,
    LEASES,
    PODS,
    POOLERS,
    RULES_REVIEWS,
    SECRETS,
    SERVICES,
    ApiError,
    Kind,
    KubernetesApi,
    rule_line,
)
from walproof.targets.cnpg.node_rights import optional
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.target_file import EXAMPLE, CnpgFile, LoadPart, read_address


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on a kind of object; `names` only on these objects, where RBAC can tell them (not for list and create)."""

    kind: Kind
    """With its subresource: pods/exec."""
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """As it stands among a Role's rules."""
        return rule_line(self.kind.group, self.kind.plural, self.verbs, self.names)


_AMOUNTS_TO = "What its rights amount to: docs/kubernetes.md, Rights."
_STREAM = ("get", "create")
"""A WebSocket is opened by GET; API servers from 1.35 on ask for create too."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a Role names: the Cluster, its instances, the user's secret; whether members are reached by forwards."""

    cluster: str
    instances: tuple[str, ...]
    secret: str = ""
    forwarded: bool = True


def _reading(names: Names) -> tuple[Rule, ...]:
    return (
        Rule(CLUSTERS, ("get",), (names.cluster,)),
        Rule(PODS, ("list",)),
        Rule(SECRETS, ("get",), (names.secret,)),
        Rule(LEASES, ("get",), (names.cluster,)),
        Rule(ENDPOINTSLICES, ("list",)),
        *((_forwarding(names),) if names.forwarded else ()),
    )


def _forwarding(names: Names) -> Rule:
    return Rule(PODS.within("portforward"), _STREAM, names.instances)


def _executing(names: Names) -> Rule:
    return Rule(PODS.within("exec"), _STREAM, names.instances)


def for_fault(names: Names) -> dict[Capability, tuple[Rule, ...]]:
    """What each fault by Kubernetes alone, its undo and its sign call, beyond what is read of every cluster."""
    signals = (_executing(names),)
    return {
        Capability.KILL: signals,
        Capability.KILL_CONTAINER: signals,
        Capability.FREEZE: signals,
        Capability.KILL_MEMBER: (Rule(PODS, ("delete",), names.instances),),
        Capability.STOP: _changing(names),
        Capability.SWITCHOVER: (Rule(CLUSTERS.within("status"), ("patch",), (names.cluster,)),),
    }


CHAOS_FAULTS: dict[Capability, Kind] = {
    Capability.PARTITION: NETWORK,
    Capability.ISOLATE: NETWORK,
    Capability.PARTITION_ONE_WAY: NETWORK,
    Capability.LINK_DELAY: NETWORK,
    Capability.SLOW_DISK: IO,
    Capability.FAILING_DISK: IO,
    Capability.FULL_DISK: IO,
    Capability.CPU_STRESS: STRESS,
}
"""What Chaos Mesh does, by the kind of its experiment."""


def for_experiment(kind: Kind, names: Names) -> tuple[Rule, ...]:
    """What an experiment of Chaos Mesh needs; that processors are busy shows inside the container alone."""
    sign = (_executing(names),) if kind is STRESS else ()
    return (Rule(kind, ("get", "list", "create", "delete")), *sign)


def for_own_role(names: Names) -> tuple[Rule, ...]:
    """What a role of walproof's own needs, and the secret of its password."""
    return (*_changing(names), *_owned(SECRETS, role_name(names.cluster)))


def for_scaling(names: Names) -> tuple[Rule, ...]:
    """What other processors and memory of the pods need: a pod that no node takes is deleted."""
    return (*_changing(names), Rule(PODS, ("delete",), names.instances))


def for_load(names: Names) -> tuple[Rule, ...]:
    """What load pods and their secret need; a Job's pods have names that are not known beforehand."""
    name = load_name(names.cluster)
    return (*_owned(JOBS, name), *_owned(SECRETS, name), Rule(PODS.within("portforward"), _STREAM))


def for_guard(names: Names) -> tuple[Rule, ...]:
    """What a guard reads, and may do about a frozen primary: annotate, delete its pod, empty its Lease."""
    once = ("get", "patch")
    return (
        Rule(CLUSTERS, once, (names.cluster,)),
        Rule(PODS, ("get", "delete"), names.instances),
        Rule(LEASES, once, (names.cluster,)),
    )


def for_forward_by_kubectl(names: Names) -> tuple[Rule, ...]:
    """What kubectl port-forward asks for first (pitfall K7); the list of pods shows no less."""
    return (Rule(PODS, ("get",), names.instances),)


def _changing(names: Names) -> tuple[Rule, ...]:
    return (Rule(CLUSTERS, ("patch",), (names.cluster,)),)


def _owned(kind: Kind, name: str) -> tuple[Rule, ...]:
    """An object of walproof's own: RBAC knows no name when it is created."""
    return Rule(kind, ("create",)), Rule(kind, ("get", "delete"), (name,))


def _breaking(names: Names) -> tuple[Rule, ...]:
    """Every fault by Kubernetes alone, every pitfall, and logs for drills that do not hold."""
    faults = (rule for rules in for_fault(names).values() for rule in rules)
    logs = Rule(PODS.within("log"), ("get",), names.instances)
    return (*faults, *for_forward_by_kubectl(names), _forwarding(names), logs)


USES = ("doctor", "price", "prove", "apply")
CHAOS_MESH, SCALE, LOAD_PODS, GUARD = "chaos-mesh", "scale", "load-pods", "guard"
FURTHER = (LOAD_PODS, SCALE, CHAOS_MESH, GUARD)
"""Further uses: load from within, other sizes of the pods, Chaos Mesh's faults; meant only where they are named."""


def rules_for(uses: Iterable[str], names: Names) -> tuple[Rule, ...]:
    """What these uses need together, each verb once; UsageError for what is no use."""
    reading, own_role = _reading(names), for_own_role(names)
    rules = {
        "doctor": (*reading, Rule(SERVICES, ("list",)), Rule(POOLERS, ("list",))),
        "price": (*reading, *own_role),
        "prove": (*reading, *own_role, *_breaking(names)),
        "apply": (*reading, *_changing(names)),
        CHAOS_MESH: tuple(rule for kind in EXPERIMENTS for rule in for_experiment(kind, names)),
        SCALE: for_scaling(names),
        LOAD_PODS: for_load(names),
        # The list is what every verb opens the target with: the guard itself asks for each pod by its name.
        GUARD: (*for_guard(names), Rule(PODS, ("list",)), Rule(SECRETS, ("get",), (names.secret,))),
    }
    wanted = tuple(uses)
    for use in wanted:
        if use not in rules:
            raise UsageError(f"{use!r} is no use of a target", f"the uses are {', '.join((*USES, *FURTHER))}")
    return _together(rule for use in wanted for rule in rules[use])


def _together(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules of one kind of object and the same names as one."""
    merged: dict[tuple[Kind, tuple[str, ...]], Rule] = {}
    for rule in rules:
        key = (rule.kind, rule.names)
        verbs = dict.fromkeys((*(merged[key].verbs if key in merged else ()), *rule.verbs))
        merged[key] = replace(rule, verbs=tuple(verbs))
    return tuple(merged.values())


_MOST_NAMED = 10
_RBAC = "rbac.authorization.k8s.io"


def _document(version: str, kind: str, name: str, namespace: str, *lines: str) -> str:
    """One object as YAML, every value quoted: a namespace y or a Cluster 1e3 is a text, whatever else it looks like."""
    meta = json.dumps({"name": name, "namespace": namespace})
    return "\n".join((f"apiVersion: {version}", f"kind: {kind}", f"metadata: {meta}", *lines, ""))


def _role(name: str, namespace: str, rules: Iterable[Rule]) -> str:
    return _document(f"{_RBAC}/v1", "Role", name, namespace, "rules:", *(rule.line for rule in rules))


def _comments(*lines: str) -> str:
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


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
    resource, _, subresource = rule.kind.plural.partition("/")
    asked = {"namespace": api.namespace, "verb": verb, "group": rule.kind.group, "resource": resource, "name": name}
    if subresource:
        asked["subresource"] = subresource
    return _review(api, ACCESS_REVIEWS, "SelfSubjectAccessReview", {"resourceAttributes": asked}).allowed


def _review(api: KubernetesApi, kind: Kind, name: str, spec: Mapping[str, object]) -> Reviewed:
    """A review of this user's own rights, which each user known to the API may ask for (system:basic-user)."""
    body = {"apiVersion": f"{kind.group}/{kind.version}", "kind": name, "metadata": {}, "spec": spec}
    return read(Review, api.create(kind, body)).status


def named_instances(cluster: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names, as a status has them; TargetError where one is none of the operator's.

    Who may write the status would else add pods of others to a Role that an administrator pastes, or to what a guard
    deletes.
    """
    for name in (names := tuple(names)):
        if re.fullmatch(rf"{re.escape(cluster)}-[0-9]{{1,9}}", name) is None:
            raise TargetError(f"its status has an instance {name[:80]!r}, which is no name of the operator's", "")
    return names


class CnpgRights:
    """The rights that one Cluster needs, or any one."""

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
            known = pasted("kubectl get cluster {name:argument} shows them.", name=file.name)
            guessed = f" They are guessed ({wrong.message}): {known}"
        listed = ", ".join(instances)
        return Names(file.name, instances, file.login_secret, file.reach != "pods"), (
            f"The instances are {listed}.{guessed} Print this again when one is added or made anew under another name."
        )

    def _instances(self) -> tuple[str, ...]:
        cluster = read(Cluster, self._api().get(CLUSTERS, self._file.name))
        counted = tuple(f"{self._file.name}-{number}" for number in range(1, cluster.spec.instances + 1))
        return named_instances(self._file.name, cluster.status.instance_names) or counted

    def _api(self) -> KubernetesApi:
        if self._connect is None:
            raise UsageError("rights can be asked of one cluster only", f"--target {EXAMPLE}")
        return self._connect()

    def _rules(self, uses: Sequence[str]) -> tuple[Rule, ...]:
        within = self._file.load.image and {"price", "prove"} & set(uses)
        return rules_for(dict.fromkeys((*uses, LOAD_PODS)) if within else uses, self._named[0])

    def _printed(self, *part: str) -> str:
        """The objects' name: with a dot, unlike a Cluster's, as which the operator names three of its own."""
        return ".".join(("walproof", self._file.name, *part))

    def role(self, uses: Sequence[str]) -> str:
        """A ServiceAccount, the Role of these uses, and what binds them; guesses instances that cannot be asked for."""
        name, space = self._printed(*uses[: len(uses) == 1]), self._file.namespace
        rules, role = self._rules(uses), {"apiGroup": _RBAC, "kind": "Role", "name": name}
        account = {"kind": "ServiceAccount", "name": name, "namespace": space}
        bound = (f"roleRef: {json.dumps(role)}", "subjects:", f"- {json.dumps(account)}")
        objects = (
            _document("v1", "ServiceAccount", name, space),
            _role(name, space, rules),
            _document(f"{_RBAC}/v1", "RoleBinding", name, space, *bound),
        )
        return (
            _comments(", ".join(uses), self._named[1], _AMOUNTS_TO)
            + "---\n".join(objects)
            + _comments(
                "Apply all of it with kubectl apply -f -. A kubeconfig of this account: docs/kubernetes.md, Rights.",
                pasted(
                    "Its token: kubectl create token {name:shell} --namespace {space:shell} --duration 8h",
                    name=name,
                    space=space,
                ),
                *(optional(name, space) if SCALE in uses else ()),
            )
        )

    def _missing(self, uses: Sequence[str]) -> tuple[Rule, ...]:
        missing = missing_of(self._api(), self._rules(uses))
        if not missing:
            # RBAC allows what is not there as well: the Cluster itself is asked for.
            self._instances()
        return missing

    def missing(self, uses: Sequence[str]) -> Sequence[str]:
        return [f"{verb} {rule.kind.shown}" for rule in self._missing(uses) for verb in rule.verbs]

    def role_of_missing(self, uses: Sequence[str]) -> str:
        """A Role of what is missing, beside the one there is: one of the same name would take the rest away."""
        rules, name, space = self._missing(uses), self._printed("missing"), self._file.namespace
        bind = pasted(
            "kubectl create rolebinding {name:shell} --namespace {space:shell} --role {name:shell}",
            name=name,
            space=space,
        )
        then = f"then: {bind} --user USER (--serviceaccount NAMESPACE:NAME); or add the rules to the Role there is"
        return _comments(", ".join(uses), self._named[1], _AMOUNTS_TO) + _role(name, space, rules) + _comments(then)


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
    listed = ", ".join(f"{verb} {rule.kind.shown}" for rule in missing for verb in rule.verbs)
    return ApiError(
        f"this user may not {listed} in namespace {api.namespace}, which {doing} needs",
        f"add to the rules of its Role: {' '.join(rule.line for rule in missing)}",
        code=403,
    )


def refused_faults(api: KubernetesApi, names: Names) -> dict[Capability, str]:
    """The faults by Kubernetes alone that this user may not do or not undo, each with the reason in one clause."""
    wrong = {fault: refusal(api, rules, str(fault)) for fault, rules in for_fault(names).items()}
    return {fault: f"{one.message}; {one.hint}" for fault, one in wrong.items() if one is not None}


def perhaps_misnamed(api: KubernetesApi, cluster: str, wrong: ApiError) -> ApiError:
    """The 403 of a Cluster, with those that this user may get: where a Role names them, a wrong name is one too."""
    try:
        review = _review(api, RULES_REVIEWS, "SelfSubjectRulesReview", {"namespace": api.namespace})
    except Error:
        return wrong
    rules = [rule for rule in review.resource_rules if {"*", CLUSTERS.group} & set(rule.api_groups)]
    gets = [rule for rule in rules if {"*", "get"} & set(rule.verbs)]
    named = (rule.resource_names for rule in gets if {"*", CLUSTERS.plural} & set(rule.resources))
    names = list(dict.fromkeys(name[:100] for several in named for name in several))
    listed = f"only {', '.join(names[:_MOST_NAMED])}" if names else "no Cluster there by name"
    return ApiError(
        f"{wrong.message}: there may be no Cluster {cluster} there; this user's rights name {listed}",
        f"is the name right? {wrong.hint}",
        code=wrong.code,
    )
