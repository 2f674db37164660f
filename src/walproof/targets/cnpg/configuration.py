"""Configuration by patches of the Cluster: onto the version that was read, in effect when SQL says so, reverted.

Only our own keys are ever written; what somebody else has set meanwhile is compared key by key and left alone.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.model.configuration import ConfigChange, ConfigPlan, Difference
from walproof.model.guarantee import QuorumKind, read_standby_names
from walproof.model.ports import Clock, Notebook
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.api import KubernetesApi, Tree
from walproof.targets.cnpg.changes import PARAMETERS, SYNCHRONOUS, Leaves, asked_of, at, same, undoing
from walproof.targets.cnpg.cluster_spec import ClusterSpec, version_of
from walproof.targets.sql.connection import connected
from walproof.targets.sql.values import same_value

SPEC = "cnpg spec"
"""What the journal calls a change of the Cluster's spec."""
_ROWS = "SELECT name, setting, coalesce(unit, '') AS unit, context FROM pg_settings WHERE name = ANY(%s)"
Rows = Mapping[str, Mapping[str, Any]]


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

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What a patch would change; UsageError for what the operator fixes or would restart every instance for."""
        tree = self._spec.read()
        asked = asked_of(change, tree["spec"])
        self._refuse_restarts([path[-1] for path in asked if path[:-1] == PARAMETERS])
        return ConfigPlan(change, tuple(_differences(asked, tree["spec"])), version_of(tree))

    def _refuse_restarts(self, names: list[str]) -> None:
        answers = iter(self._shown_rows(names).values())
        rows = next(answers, None)
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
        """Patch our keys, journaled before; TargetError when somebody changed the spec since the plan."""
        tree = self._spec.read()
        if version_of(tree) != plan.version:
            raise self._spec.changed()
        asked = asked_of(plan.change, tree["spec"])
        before = {path: at(tree["spec"], path) for path in asked}
        shown = self._shown([path[-1] for path in asked if path[:-1] == PARAMETERS])
        note = json.dumps({"spec": _stored(before), "shown": shown})
        journal.note(self._clock.now(), self._target, SPEC, "spec", before=note, after=json.dumps(_stored(asked)))
        self._spec.patch(asked, tree)

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until every member's new sessions show it and the quorum counts."""
        self._await(asked_of(plan.change, self._spec.read()["spec"]), {})

    def undo(self, journal: Notebook) -> list[str]:
        """Patch back those of our keys that still are as we set them; sentences about what others set since."""
        left: list[str] = []
        for change in journal.pending(self._target):
            if change.what != SPEC:
                continue
            note = json.loads(change.before or "{}")
            tree = self._spec.read()
            back, foreign = undoing(_loaded(note["spec"]), _loaded(json.loads(change.after or "[]")), tree["spec"])
            left += [_left(".".join(path), at(tree["spec"], path)) for path in foreign]
            if back:
                self._spec.patch(back, tree, whole=True)
                self._await(back, note["shown"])
            journal.undone(change)
        return left

    def _await(self, asked: Leaves, shown: Mapping[str, Mapping[str, str]]) -> None:
        """In effect; `shown` is per member what parameters that are removed were before they were first set."""
        parameters = {path[-1]: value for path, value in asked.items() if path[:-1] == PARAMETERS}

        def in_effect() -> bool:
            return all(self._has(m, parameters, shown.get(m, {})) for m in self._members())

        if parameters:
            wait_for(Wait.SETTING_IN_EFFECT, in_effect, self._clock, pace_s=0.1, times=4)
        if SYNCHRONOUS in asked:
            wanted = asked[SYNCHRONOUS]
            wait_for(Wait.QUORUM_NAMED, lambda: self._counts(wanted), self._clock, pace_s=0.1)

    def _shown(self, names: list[str]) -> dict[str, dict[str, str]]:
        rows = self._shown_rows(names).items()
        return {member: {name: str(row["setting"]) for name, row in of.items()} for member, of in rows}

    def _shown_rows(self, names: list[str]) -> dict[str, Rows]:
        """Rows of pg_settings of every member that answers."""
        found: dict[str, Rows] = {}
        for member in self._members() if names else ():
            try:
                found[member] = self._rows(member, names)
            except TargetError:
                continue
        return found

    def _rows(self, member: str, names: list[str]) -> Rows:
        """Rows of pg_settings by name; TargetError when the member does not answer."""
        with connected(self._members()[member]) as connection:
            rows = connection.execute(_ROWS, ([name.lower() for name in names],)).fetchall()
        return {str(row["name"]): row for row in rows}

    def _has(self, member: str, wanted: Mapping[str, str | None], before: Mapping[str, str]) -> bool:
        try:
            rows = self._rows(member, list(wanted))
        except TargetError:
            return False
        for name, value in wanted.items():
            row = rows.get(name.lower())
            if row is None:
                return False
            if value is not None and not same_value(str(value), row["setting"], row["unit"]):
                return False
            if value is None and before.get(name, row["setting"]) != row["setting"]:
                return False
        return True

    def _counts(self, wanted: Mapping[str, Any] | None) -> bool:
        """Whether the names that are in effect on the leader are those of the spec, and as many standbys count."""
        view = self._observe()
        named = read_standby_names(view.standby_names)
        if view.leader is None or wanted is None or named is None:
            return view.leader is not None and wanted is None and named is None
        kind = QuorumKind.ANY if wanted.get("method") == "any" else QuorumKind.FIRST
        able = len([m for m in view.members if m.sync_state])
        met = (named.kind, named.k) == (kind, wanted["number"])
        # Where the user may not see replication's details, the names alone tell.
        return met and (len(view.synchronous) >= named.k or not able)


def _differences(asked: Leaves, spec: Tree) -> list[Difference]:
    return [
        Difference("cluster", ".".join(path), _text(at(spec, path)), _text(value))
        for path, value in asked.items()
        if not same(value, at(spec, path))
    ]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _left(name: str, value: Any) -> str:
    now = "is not set" if value is None else f"is {_text(value)}"
    return f"cluster: {name} {now} now, changed by somebody else since: left alone"


def _stored(leaves: Leaves) -> list[list[Any]]:
    return [[list(path), value] for path, value in leaves.items()]


def _loaded(stored: list[list[Any]]) -> Leaves:
    return {tuple(path): value for path, value in stored}
