"""Configuration by patches of the Cluster: onto the version that was read, in effect when SQL says so, reverted.

Only our own keys are ever written; what another operator has set meanwhile is compared key by key and left alone."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.model.guarantee import (
    ConfigChange,
    ConfigPlan,
    QuorumKind,
    SyncReplication,
    read_standby_names,
)
from walproof.model.ports import SILENT, Clock, Notebook, Reverting
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, KubernetesApi, Tree, patch_as_read
from walproof.targets.configure import noted
from walproof.targets.external.configuration_patches import (
    PARAMETERS,
    KeyPath,
    Leaves,
    at,
    differences,
    left_alone,
    listed,
    overlaid,
    parameters_in,
    patch_of,
    undoing,
)
from walproof.targets.external.settings_of_members import MemberSettings, in_effect

SYNCHRONOUS: KeyPath = ("postgresql", "synchronous")
"""One value: half of it is refused."""
FIXED = frozenset((resources.files("walproof.targets.cnpg") / "fixed_parameters.txt").read_text("utf-8").split())
"""Parameters that the operator fixes: admission answers "Can't set fixed configuration parameter"."""


def asked_of(change: ConfigChange, spec: Tree) -> Leaves:
    """What a change asks of the spec, by path; None removes. UsageError for a parameter that the operator fixes."""
    fixed = sorted(set(change.parameters) & FIXED)
    if "synchronous_standby_names" in fixed:
        raise UsageError(
            "CloudNativePG writes synchronous_standby_names itself", "set synchronous replication instead (--quorum)"
        )
    if fixed:
        raise UsageError(f"{', '.join(fixed)} is fixed by CloudNativePG and cannot be set", "leave it out")
    leaves: Leaves = {(*PARAMETERS, name): value for name, value in change.parameters.items()}
    if change.replication is not None:
        leaves.update(_synchronous(change.replication, spec))
    leaves.update({(name,): value for name, value in change.manager.items()})
    return leaves


def _synchronous(sync: SyncReplication, spec: Tree) -> Leaves:
    """The former minSyncReplicas and maxSyncReplicas go: the two cannot stand together."""
    legacy: Leaves = {(name,): 0 for name in ("minSyncReplicas", "maxSyncReplicas") if spec.get(name)}
    if sync.method is None or sync.number == 0:
        return {**legacy, SYNCHRONOUS: None}
    method = "any" if sync.method is QuorumKind.ANY else "first"
    durability = "preferred" if sync.strict is False else "required"
    return {**legacy, SYNCHRONOUS: {"method": method, "number": sync.number, "dataDurability": durability}}


def same(asked: Any, here: Any) -> bool:
    """Whether what stands there is what was asked; the API adds defaults to a table, and they are no difference.

    >>> same({"number": 1}, {"number": 1, "failoverQuorum": False}), same(None, {}), same("1", 1)
    (True, False, True)
    """
    if isinstance(asked, Mapping) and isinstance(here, Mapping):
        return all(same(value, here.get(key)) for key, value in asked.items())
    if asked is None or here is None or isinstance(asked, Mapping) or isinstance(here, Mapping):
        return asked is None and here is None
    return str(asked) == str(here)


def version_of(tree: Tree) -> str:
    """Of the spec alone: the status changes by itself."""
    return f"{tree['metadata'].get('uid', '')}/{tree['metadata'].get('generation', 0)}"


class ClusterSpec:
    """Reads and patches it."""

    def __init__(self, api: KubernetesApi, name: str, clock: Clock) -> None:
        self._api, self._name, self._clock = api, name, clock

    def read(self) -> Tree:
        return self._api.get(CLUSTERS, self._name)

    def changed(self) -> TargetError:
        """The error where another user was faster."""
        return TargetError(
            f"the spec of Cluster {self._name} was changed by another user meanwhile",
            "check what changed (kubectl get cluster -o yaml), then do it once more",
        )

    def patch(self, asked: Leaves, tree: Tree, *, whole: bool = False) -> None:
        """Onto the version that was read; again where only the status was written since, else TargetError.

        whole: leaves nothing else in the tables of `asked`.
        """
        planned = version_of(tree)

        def changed(now: Tree) -> Tree:
            if version_of(now) != planned:
                raise self.changed()
            return {"spec": patch_of(asked, now["spec"] if whole else None)}

        patch_as_read(self._api, CLUSTERS, self._name, changed, self._clock)

    def try_patch(self, asked: Leaves, spec: dict[str, Any]) -> None:
        """Ask the API whether it would take it, admission too (UsageError, ApiError); changes nothing."""
        body = {"spec": patch_of(asked, spec)}
        self._api.patch(CLUSTERS, self._name, body, dry_run=True)


SPEC = "cnpg spec"
"""What the journal calls a change of the Cluster's spec."""


class CnpgConfiguration:
    """Plans, applies and undoes changes of one Cluster."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        cluster: tuple[KubernetesApi, str],
        members: Callable[[], Mapping[str, Endpoint]],
        observe: Callable[[], ClusterView],
    ) -> None:
        """`cluster` is the API and the Cluster's name."""
        self._target, self._clock = target, clock
        self._spec = ClusterSpec(*cluster, clock)
        self._members, self._observe = members, observe
        self._settings = MemberSettings(members)

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What a patch would change; UsageError for what the operator fixes or would restart every instance for."""
        tree = self._spec.read()
        asked = asked_of(change, tree["spec"])
        self._refuse_restarts(list(parameters_in(asked)))
        return ConfigPlan(change, listed(asked), differences(asked, tree["spec"], same), version_of(tree))

    def _refuse_restarts(self, names: list[str]) -> None:
        answers = (self._settings.rows(member, names) for member in self._members()) if names else ()
        rows = next((rows for rows in answers if rows is not None), None)
        for name in names if rows is not None else ():
            row = (rows or {}).get(name.lower())
            if row is None and "." not in name:
                raise UsageError(f"PostgreSQL has no parameter {name}", "leave it out; CloudNativePG would take it")
            if row is not None and row["context"] == "postmaster":
                raise UsageError(
                    f"{name} takes effect only at a restart: CloudNativePG would restart every instance for it",
                    "patch the Cluster yourself in a maintenance window, and leave it out here",
                )

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Patch our keys, journaled before; TargetError when another user changed the spec since the plan."""
        tree = self._spec.read()
        if version_of(tree) != plan.version:
            raise self._spec.changed()
        asked = asked_of(plan.change, tree["spec"])
        before = {path: at(tree["spec"], path) for path in asked}
        shown = self._settings.shown(list(parameters_in(asked)))
        note = json.dumps({"spec": list(before.items()), "shown": shown})
        journal.note(self._clock.now(), self._target, SPEC, "spec", before=note, after=json.dumps(list(asked.items())))
        self._spec.patch(asked, tree)

    def wait(self, plan: ConfigPlan) -> None:
        self._await(asked_of(plan.change, self._spec.read()["spec"]), {})

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """Patch back those of our keys that still are as we set them; sentences about what others set since."""
        left: list[str] = []
        for change in noted(journal, self._target, SPEC):
            note = json.loads(change.before or "{}")
            tree = self._spec.read()
            ours = _set_by(change)
            if reverting.stays(change, partial(_overlaid, ours, tree["spec"])):
                continue
            before = _loaded(note["spec"])
            back, foreign = undoing(before, ours, tree["spec"], same)
            foreign += _kept(back, before, ours, tree["spec"])
            left += foreign
            if back:
                self._spec.patch(back, tree)
                self._await(back, note["shown"])
            if not (foreign and reverting.keeps):
                journal.undone(change)
            for path in back:
                reverting.tell("setting", ".".join(path))
        return left

    def _await(self, asked: Leaves, shown: Mapping[str, Mapping[str, str]]) -> None:
        """In effect; `shown` is per member what parameters that are removed were before they were first set."""
        parameters = parameters_in(asked)

        def shows(member: str) -> bool:
            rows = self._settings.rows(member, list(parameters))
            return rows is not None and in_effect(rows, parameters, shown.get(member, {}))

        if parameters:
            wait_for(Wait.SETTING_IN_EFFECT, lambda: all(map(shows, self._members())), self._clock, pace_s=0.1, times=4)
        if SYNCHRONOUS in asked:
            wanted, former = asked[SYNCHRONOUS], bool(asked.get(("maxSyncReplicas",)))
            wait_for(Wait.QUORUM_NAMED, lambda: self._counts(wanted, former), self._clock, pace_s=0.1)

    def _counts(self, wanted: Mapping[str, Any] | None, former: bool) -> bool:
        """Whether the names that are in effect on the leader are those of the spec, and as many standbys count.

        former: whether the former keys name some, as many as are ready.
        """
        view = self._observe()
        named = read_standby_names(view.standby_names)
        if view.leader is None or wanted is None or named is None:
            return view.leader is not None and wanted is None and (named is not None) is former
        kind = QuorumKind.ANY if wanted.get("method") == "any" else QuorumKind.FIRST
        able = len([m for m in view.members if m.sync_state])
        met = (named.kind, named.k) == (kind, wanted["number"])
        elsewhere = sum(view.member(name) is None for name in named.names)
        # Where the user may not see replication's details, the names alone tell; of standbys elsewhere they always do.
        return met and (len(view.synchronous) >= named.k - elsewhere or not able)


def _kept(back: Leaves, before: Leaves, ours: Leaves, spec: Tree) -> list[str]:
    """Narrows `back` to our own keys of each table; sentences about those that others set beside them since."""
    sentences = []
    for path in [path for path in back if isinstance(ours[path], Mapping)]:
        was, here, name = before.get(path) or {}, at(spec, path), ".".join(path)
        beside = sorted({*was, *here} - {*ours[path]})
        # What the API adds by default is false: no user's.
        theirs = [key for key in beside if (here.get(key) or False) != (was.get(key) or False)]
        sentences += [left_alone(f"{name}.{key}", here.get(key)) for key in theirs]
        if was:
            back[path] = {key: was.get(key) for key in ours[path]}
        elif theirs:
            del back[path]
            sentences.append(f"cluster: {name} stays with it, for half of it is refused: remove it where it may go")
    return sentences


def _set_by(change: Any) -> Leaves:
    return _loaded(json.loads(change.after or "[]"))


def _overlaid(ours: Leaves, spec: Tree, newer: Any) -> bool:
    return overlaid(ours, _set_by(newer), spec, same)


def _loaded(stored: list[list[Any]]) -> Leaves:
    return {tuple(path): value for path, value in stored}
