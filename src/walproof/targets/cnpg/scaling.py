"""Vertical scaling: processors and memory of the pods, by patches of spec.resources; and pricing at another size.

Journaled before. From one size to the next each instance restarts once, one after another, and once more at the end:
standbys first, the primary last, and none before all are active (CloudNativePG 1.30, internal/controller:
cluster_upgrade.go, rolloutRequiredInstances; cluster_controller.go, allInstancesAreActive)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from walproof.errors import MachineError, NotObtained, UsageError, WaitTimeout
from walproof.machine import signals
from walproof.model.ports import SILENT, Clock, Notebook, Reverting
from walproof.model.sample import Scenario
from walproof.model.topology import ClusterView
from walproof.model.units import counted, quantity
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.targets.cnpg.configuration import ClusterSpec
from walproof.targets.cnpg.created_objects import load_name
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, PODS, ApiError, KubernetesApi, Tree, patch_as_read
from walproof.targets.cnpg.node_capacity import fit
from walproof.targets.cnpg.objects import Cluster, Pod, read
from walproof.targets.cnpg.state_and_doctor_facts import fenced_in, paused, pods_of
from walproof.targets.cnpg.target_file import LoadPart
from walproof.targets.configure import noted
from walproof.targets.external.configuration_patches import KeyPath, at, left_alone, patch_of

RESOURCES = "cnpg resources"
"""What the journal calls a change of the pods' processors and memory."""
_PATH: KeyPath = ("resources",)
_NOT_RECONCILED = "cnpg.io/reconcilePodSpec"
Resources = Mapping[str, Any] | None
"""spec.resources; None where the Cluster declares none."""
_PRIMARY_AWAY = {
    "restart": "about 13 s (recorded: a primary's fast shutdown up to 1.4 s, a pod's start until it is ready 11 s)",
    "switchover": "about 9 s (recorded: 8.96, 9.09, 9.13 s)",
}
"""Seconds without writes before any was measured, by primaryUpdateMethod; docs/kubernetes.md names the recordings."""
_EACH_S = 60.0
"""What one pod may take to be made anew, beyond its smart shutdown."""

_AS_DECLARED = Scenario()
"""A size that changes nothing."""


def resources_of(size: Scenario, declared: Resources) -> Resources:
    """Requests and limits alike where a size is given, the rest as declared.

    >>> resources_of(Scenario(cores=0.5), {"limits": {"memory": "1Gi"}})
    {'limits': {'memory': '1Gi', 'cpu': '500m'}, 'requests': {'cpu': '500m'}}
    """
    amounts: dict[str, str] = {}
    if size.cores is not None:
        amounts["cpu"] = f"{size.cores:.0f}" if size.cores == int(size.cores) else f"{1000 * size.cores:.0f}m"
    if size.memory_mib is not None:
        amounts["memory"] = f"{size.memory_mib}Mi"
    if not amounts:
        return declared
    given = dict(declared or {})
    return given | {kind: {**(given.get(kind) or {}), **amounts} for kind in ("limits", "requests")}


def equal(one: Resources, other: Resources) -> bool:
    """Whether two declarations are the same; an empty one is none.

    Quantities count by their value: the operator's mutating webhook writes 2048Mi anew as 2Gi, and 1000m as 1.

    >>> equal(None, {}), equal({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1", "memory": "1Gi"}})
    (True, False)
    >>> equal({"limits": {"cpu": "1", "memory": "2048Mi"}}, {"limits": {"cpu": "1000m", "memory": "2Gi"}})
    True
    """
    return bool(_values(one or {}) == _values(other or {}))


def _values(resources: Any) -> Any:
    if isinstance(resources, Mapping):
        return {name: _values(of) for name, of in resources.items() if of not in (None, {}, [])}
    try:
        return resources if isinstance(resources, list) else quantity(resources)
    except ArithmeticError:
        return resources


def why_not_scaled(cluster: Cluster) -> str | None:
    """Why this Cluster's instances would not all be restarted with other resources, in one clause; None: they are."""
    unready = cluster.status.ready_instances < cluster.spec.instances
    waits = "an instance is not ready, and the operator replaces no pod before all are" if unready else None
    return _why_not_rolled(cluster) or waits


def _why_not_rolled(cluster: Cluster) -> str | None:
    """As why_not_scaled; but just after a roll the status may not count the last instance as ready yet."""
    if (why := paused(cluster)) is not None:
        return why
    if cluster.spec.primary_update_strategy == "supervised":
        return "primaryUpdateStrategy is supervised: the operator would wait for a person before the primary"
    if cluster.metadata.annotations.get(_NOT_RECONCILED) == "disabled":
        return f"the annotation {_NOT_RECONCILED} is disabled, so the operator changes no pod"
    if fenced_in(cluster):
        return "an instance is fenced, and the operator changes no fenced pod"
    if cluster.spec.node_maintenance_window.in_progress:
        # cluster_controller.go, processUnschedulableInstances: without reusePVC the volumes of such a pod are deleted.
        return "a node maintenance window is in progress: the operator may delete volumes of a pod that no node takes"
    return None


class CnpgScaling:
    """Brings a size into effect on every instance, and what was declared back."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        cluster: tuple[KubernetesApi, str],
        observe: Callable[[], ClusterView],
        load: LoadPart,
    ) -> None:
        """`target` is what the journal calls the cluster; `cluster` the API and the Cluster's name."""
        self.target, self._clock, self._observe, self._load = target, clock, observe, load
        self._api, self._name = cluster
        self._spec = ClusterSpec(*cluster, clock)
        self.entered = _AS_DECLARED
        """What is in effect now."""
        self._rolls: list[Roll] = []

    def check(self, size: Scenario) -> None:
        """Refuse what this Cluster, its admission or its nodes do not take; changes nothing."""
        if size == _AS_DECLARED:
            return
        tree = self._spec.read()
        reason = why_not_scaled(read(Cluster, tree))
        if reason is not None:
            raise UsageError(
                f"processors and memory of {self.target} are not changed: {reason}", "leave --cpu and --memory out"
            )
        wanted = resources_of(size, at(tree["spec"], _PATH))
        self._spec.try_patch({_PATH: wanted}, tree["spec"])
        self._fit(wanted, tree)

    def _fit(self, wanted: Resources, tree: Tree) -> str:
        instances = read(Cluster, tree).status.instance_names
        return fit(self._api, instances, wanted or {}, self._load, load_name(self._name))

    def forecast(self, scenarios: Sequence[Scenario]) -> str:
        """What the sizes of these scenarios cost, and whether they fit; "" for none, NotObtained: one does not."""
        sizes = dict.fromkeys(one.size for one in scenarios if one.size != _AS_DECLARED)
        if not sizes:
            return ""
        tree = self._spec.read()
        cluster, declared = read(Cluster, tree), at(tree["spec"], _PATH)
        fits = dict.fromkeys(self._fit(resources_of(size, declared), tree) for size in sizes)
        method, smart_s = cluster.spec.primary_update_method, cluster.spec.smart_shutdown_timeout
        return (
            f"Each of {counted(len(sizes), 'size')}, and what is declared at the end, makes every instance's pod anew, "
            f"standbys first, the primary last, by {method}: each time no writes for {_PRIMARY_AWAY[method]}; where "
            f"other clients stay connected, a pod that ends lets in no new ones for up to {smart_s:.0f} s more. "
            f"{'. '.join(text[:1].upper() + text[1:] for text in fits)}."
        )

    def taken(self) -> str:
        if not self._rolls:
            return ""
        took = ", ".join(f"{roll.until - roll.began:.0f}" for roll in self._rolls)
        away = ", ".join(f"{roll.away_s:.0f}" for roll in self._rolls)
        times = counted(len(self._rolls), "time")
        return f"Every pod was made anew {times}, in {took} s; without a ready primary for {away} s of them."

    def enter(self, size: Scenario, journal: Notebook) -> None:
        """Every instance runs with that size; NotObtained, and everything as declared, where it cannot be had.

        TargetError, and nothing is patched, where another user has changed the resources since they were entered.
        """
        if size == _AS_DECLARED:
            if self.undo(journal):
                raise self._spec.changed()
            return
        former = noted(journal, self.target, RESOURCES)
        tree = self._spec.read()
        here = at(tree["spec"], _PATH)
        declared = json.loads(former[-1].before) if former else here
        if not any(equal(here, one) for one in (declared, *_patched(former))):
            raise self._spec.changed()
        if (why := _why_not_rolled(read(Cluster, tree))) is not None:
            raise NotObtained(why, "leave --cpu and --memory out")
        wanted = resources_of(size, declared)
        self._fit(wanted, tree)
        # Before the first change: one that fails halfway is reverted too.
        self.entered = size
        before, after = json.dumps(declared), json.dumps(wanted)
        journal.note(self._clock.now(), self.target, RESOURCES, "resources", before=before, after=after)
        self._spec.patch({_PATH: wanted}, tree, whole=True)
        for change in former:
            journal.undone(change)
        try:
            self._await(wanted, back=False)
        except (NotObtained, WaitTimeout) as wrong:
            try:
                said = "; ".join((wrong.message, *self.undo(journal)))
            except MachineError as worse:
                raise MachineError(f"{wrong.message}; {worse.message}", worse.hint or "walproof revert") from None
            raise NotObtained(said, "kubectl describe pod shows what the scheduler lacks") from None

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """What was declared, on every instance; sentences about what another user has changed since, which stays.

        After a signal the last steps are the operator's own: it is not waited for where every pod is one it replaces.
        """
        changes = noted(journal, self.target, RESOURCES)
        if not changes:
            return []
        declared = json.loads(changes[-1].before)
        left = self._restore(declared, _patched(changes), reverting)
        if not left:
            self._await(declared, back=True)
        for change in () if left and reverting.keeps else changes:
            journal.undone(change)
        self.entered = _AS_DECLARED
        return left

    def _restore(self, declared: Resources, ours: Sequence[Resources], reverting: Reverting) -> list[str]:
        """Patch back what was declared where ours still stands; read anew where the rest of the spec was changed."""
        left: list[str] = []

        def back(tree: Tree) -> Tree | None:
            here = at(tree["spec"], _PATH)
            if equal(here, declared):
                return None
            if not any(equal(here, one) for one in ours):
                left.append(left_alone("resources", here))
                return None
            return {"spec": patch_of({_PATH: declared}, tree["spec"])}

        if patch_as_read(self._api, CLUSTERS, self._name, back, self._clock):
            reverting.tell("setting", "resources")
        return left

    def _await(self, wanted: Resources, *, back: bool) -> None:
        """Every instance ready with these resources; NotObtained at the first that will not be, unless it goes back."""
        roll, spec = Roll(wanted, self._clock.now()), read(Cluster, self._spec.read()).spec

        def done() -> bool:
            try:
                cluster, pods = read(Cluster, self._spec.read()), pods_of(self._api, self._name)
            except ApiError as wrong:
                if wrong.code in (401, 403, 404):
                    raise
                return False
            names = cluster.status.instance_names
            stuck = roll.stuck(pods, names, self._clock.now(), placed_s)
            for name, why in stuck.items():
                if not back:
                    raise NotObtained(why, "")
                if name in pods and not equal(pods[name].resources, wanted):
                    # Of the size before: the operator of older versions replaces no pod that is not ready.
                    self._api.delete(PODS, name, uid=pods[name].metadata.uid)
            if len(pods) < cluster.spec.instances:
                return False
            if back and signals.received() is not None:
                # A primary too: walproof's database and role are removed next.
                led = any(pod.ready and pod.leads for pod in pods.values())
                replaced = all(p.ready or p.ending or equal(p.resources, wanted) for p in pods.values())
                return led and replaced and not stuck
            every = all(pod.ready and equal(pod.resources, wanted) for pod in pods.values())
            return every and self._observe().healthy

        placed_s = longest_s(Wait.POD_PLACED, self._clock)
        longest = spec.instances * (spec.smart_shutdown_timeout + _EACH_S) / Wait.INSTANCES_SCALED.seconds
        wait_for(Wait.INSTANCES_SCALED, done, self._clock, pace_s=0.5, times=max(1.0, longest))
        self._rolls.append(roll)


@dataclass(slots=True)
class Roll:
    """One change of all pods: when it began and was last looked at, seconds of it without a ready primary."""

    wanted: Resources
    began: float
    until: float = 0.0
    away_s: float = 0.0
    since: dict[str, float] = field(default_factory=dict)
    """Since when an instance has had no pod, or one that does not start."""

    def stuck(self, pods: Mapping[str, Pod], instances: Sequence[str], now: float, placed_s: float) -> dict[str, str]:
        """Look at the pods; by instance why it will not be ready by itself: no pod for placed_s, no start, no node.

        A container that crashes is one of the wanted size, or fails for placed_s: a primary that a switchover demotes
        waits in CrashLoopBackOff for some 20 s (recorded in failover/f).
        """
        if not any(pod.ready and pod.leads for pod in pods.values()):
            self.away_s += now - max(self.until, self.began)
        self.until = now
        self.since = {
            name: self.since.get(name, now) for name in {*instances, *pods} if name not in pods or pods[name].failing
        }
        lasting = {name for name, first in self.since.items() if now - first > placed_s}
        failing = {n for n, p in pods.items() if p.failing and (n in lasting or equal(p.resources, self.wanted))}
        return {
            **{name: f"no pod is made for {name}" for name in lasting - pods.keys()},
            **{name: f"{name} does not start: {pods[name].failing}" for name in failing},
            **{name: f"no node takes {name}: {pod.unplaced}" for name, pod in pods.items() if pod.unplaced},
        }


def _patched(changes: Sequence[Any]) -> list[Resources]:
    return [json.loads(change.after) for change in changes]
