"""Vertical scaling: processors and memory of the pods, by patches of spec.resources; and pricing at another size.

Journaled before. From one size to the next each instance restarts once, one after another, and once more at the end."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from walproof.errors import NotObtained, UsageError, WaitTimeout
from walproof.model.ports import SILENT, Clock, Notebook, Pricing, Reverting
from walproof.model.sample import Checkpoints, Sample, SampleResult, Scenario, Workload
from walproof.model.topology import ClusterView
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.targets.cnpg.configuration import ClusterSpec, same
from walproof.targets.cnpg.kubernetes_api import PODS, KubernetesApi, Tree
from walproof.targets.cnpg.objects import Cluster, Pod, read
from walproof.targets.cnpg.state_and_doctor_facts import fenced_in, pods_of
from walproof.targets.configure import needed, noted
from walproof.targets.external.configuration_patches import KeyPath, at, left_alone

RESOURCES = "cnpg resources"
"""What the journal calls a change of the pods' processors and memory."""
_PATH: KeyPath = ("resources",)
_NOT_RECONCILED = "cnpg.io/reconcilePodSpec"
Resources = Mapping[str, Any] | None
"""spec.resources; None where the Cluster declares none."""


@dataclass(frozen=True, slots=True)
class PodSize:
    """What a pod of an instance has; None is as declared."""

    cores: float | None = None
    memory_mib: int | None = None


def resources_of(size: PodSize, declared: Resources) -> Resources:
    """Requests and limits alike where a size is given, the rest as declared.

    >>> resources_of(PodSize(cores=0.5), {"limits": {"memory": "1Gi"}})
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

    >>> equal(None, {}), equal({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1", "memory": "1Gi"}})
    (True, False)
    """
    return same(one or {}, other or {}) and same(other or {}, one or {})


def why_not_scaled(cluster: Cluster) -> str | None:
    """Why this Cluster's instances would not all be restarted with other resources, in one clause; None: they are."""
    if cluster.spec.primary_update_strategy == "supervised":
        return "primaryUpdateStrategy is supervised: the operator would wait for a person before the primary"
    if cluster.metadata.annotations.get(_NOT_RECONCILED) == "disabled":
        return f"the annotation {_NOT_RECONCILED} is disabled, so the operator changes no pod"
    if fenced_in(cluster):
        return "an instance is fenced, and the operator changes no fenced pod"
    return None


class CnpgScaling:
    """Brings a size into effect on every instance, and what was declared back."""

    def __init__(
        self, target: str, clock: Clock, cluster: tuple[KubernetesApi, str], observe: Callable[[], ClusterView]
    ) -> None:
        """`target` is what the journal calls the cluster; `cluster` the API and the Cluster's name."""
        self.target, self._clock, self._observe = target, clock, observe
        self._api, self._name = cluster
        self._spec = ClusterSpec(*cluster, clock)
        self.entered = PodSize()
        """What is in effect now."""

    def check(self, size: PodSize) -> None:
        """Refuse what this Cluster or its admission does not take; changes nothing."""
        if size == PodSize():
            return
        tree = self._spec.read()
        reason = why_not_scaled(read(Cluster, tree))
        if reason is not None:
            raise UsageError(
                f"processors and memory of {self.target} are not changed: {reason}", "leave --cpu and --memory out"
            )
        self._spec.try_patch({_PATH: resources_of(size, at(tree["spec"], _PATH))}, tree["spec"])

    def enter(self, size: PodSize, journal: Notebook) -> None:
        """Every instance runs with that size; NotObtained, and everything as declared, where it cannot be had."""
        if size == self.entered:
            return
        if size == PodSize():
            self.undo(journal)
            return
        former = noted(journal, self.target, RESOURCES)
        tree = self._spec.read()
        declared = json.loads(former[-1].before) if former else at(tree["spec"], _PATH)
        wanted = resources_of(size, declared)
        # Before the first change: one that fails halfway is reverted too.
        self.entered = size
        journal.note(
            self._clock.now(),
            self.target,
            RESOURCES,
            "resources",
            before=json.dumps(declared),
            after=json.dumps(wanted),
        )
        self._spec.patch({_PATH: wanted}, tree, whole=True)
        for change in former:
            journal.undone(change)
        try:
            self._await(wanted)
        except (NotObtained, WaitTimeout) as wrong:
            self.undo(journal)
            raise NotObtained(wrong.message, "kubectl describe pod shows what the scheduler lacks") from None

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """What was declared, on every instance; sentences about what another user has changed since, which stays."""
        changes = noted(journal, self.target, RESOURCES)
        if not changes:
            return []
        declared, ours = json.loads(changes[-1].before), [json.loads(change.after) for change in changes]
        tree = self._spec.read()
        here = at(tree["spec"], _PATH)
        left = []
        if not equal(here, declared):
            if any(equal(here, one) for one in ours):
                self._spec.patch({_PATH: declared}, tree, whole=True)
                reverting.tell("setting", "resources")
            else:
                left = [left_alone("resources", here)]
        if not left:
            self._await(declared)
        for change in changes:
            journal.undone(change)
        self.entered = PodSize()
        return left

    def _await(self, wanted: Resources) -> None:
        seen: dict[str, float] = {}

        def done() -> bool:
            pods = pods_of(self._api, self._name)
            for name, pod in pods.items():
                if pod.unplaced is None:
                    seen.pop(name, None)
                elif not equal(pod.resources, wanted):
                    # Of the size before: the operator replaces no pod that is not ready.
                    self._api.delete(PODS, name)
                elif self._clock.now() - seen.setdefault(name, self._clock.now()) > placed_s:
                    raise NotObtained(f"no node takes {name}: {pod.unplaced}", "kubectl describe nodes")
            return self._runs(pods, wanted) and self._observe().healthy

        placed_s = longest_s(Wait.POD_PLACED, self._clock)
        wait_for(Wait.INSTANCES_SCALED, done, self._clock, pace_s=0.5)

    def _runs(self, pods: Mapping[str, Pod], wanted: Resources) -> bool:
        """Whether every instance there should be is ready with these resources."""
        tree: Tree = self._spec.read()
        here = [pod for pod in pods.values() if pod.ready and equal(pod.resources, wanted)]
        return len(here) == len(pods) >= read(Cluster, tree).spec.instances


class CnpgPricing:
    """Takes processors and memory of a scenario upon itself, and leaves the rest to `within`."""

    def __init__(self, within: Pricing, scaling: CnpgScaling, journal: Callable[[], Notebook]) -> None:
        self._within, self._scaling, self._journal = within, scaling, journal

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs."""
        self._within.prepare(workload)

    def check(self, scenario: Scenario) -> None:
        """Refuse what this Cluster does not take, and what shapes machines."""
        self._within.check(_otherwise(scenario))
        self._scaling.check(_size(scenario))

    def enter(self, scenario: Scenario) -> dict[str, float]:
        """The pods' size first, then quorum and parameters; NotObtained where the size cannot be had."""
        size = _size(scenario)
        if size != self._scaling.entered:
            self._scaling.enter(size, needed(self._journal()))
        return self._within.enter(_otherwise(scenario))

    def leave(self) -> None:
        """The size that was declared, and what every external cluster reverts."""
        try:
            self._scaling.undo(self._journal())
        finally:
            self._within.leave()

    def checkpoints(self) -> Checkpoints:
        """The leader's last checkpoint."""
        return self._within.checkpoints()

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample."""
        return self._within.run_sample(planned, seconds, seed)


def _size(scenario: Scenario) -> PodSize:
    return PodSize(scenario.cores, scenario.memory_mib)


def _otherwise(scenario: Scenario) -> Scenario:
    """What is left of it for every external cluster."""
    return replace(scenario, cores=None, memory_mib=None)
