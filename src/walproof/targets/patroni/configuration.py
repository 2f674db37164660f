"""Configuration through Patroni: its dynamic configuration patched over REST, awaited on every member, reverted.

Only our own keys are ever written; what another operator has set meanwhile is compared key by key and left alone.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.model.guarantee import ConfigChange, ConfigPlan, Difference, QuorumKind, read_standby_names
from walproof.model.ports import Clock, Notebook
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import flat, follows, merged, sync_keys, undoing, within
from walproof.patroni.rest import PatroniRest
from walproof.targets.sql.connection import connected
from walproof.targets.sql.settings import same_value

Tree = dict[str, Any]
CONFIG = "patroni config"
"""What the journal calls a change of the dynamic configuration."""
_ROWS = "SELECT name, setting, coalesce(unit, '') AS unit, pending_restart FROM pg_settings WHERE name = ANY(%s)"


class PatroniConfiguration:
    """Plans, applies and undoes changes of one cluster."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        rest: PatroniRest,
        members: Callable[[], Mapping[str, Endpoint]],
        observe: Callable[[], ClusterView],
    ) -> None:
        self._target, self._clock, self._rest = target, clock, rest
        self._members, self._observe = members, observe

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What patching the dynamic configuration would change; synchronous_standby_names is Patroni's own."""
        now, tree = self._rest.config(), self._tree(change)
        before, after = flat(now), flat(merged(now, tree))
        differences = tuple(
            Difference("cluster", name, _text(before.get(name)), _text(after.get(name)))
            for name in dict.fromkeys((*before, *after))
            if before.get(name) != after.get(name)
        )
        return ConfigPlan(change, differences, _version(within(now, tree)))

    def _tree(self, change: ConfigChange) -> Tree:
        if "synchronous_standby_names" in change.parameters:
            raise UsageError("Patroni writes synchronous_standby_names itself", "set synchronous replication instead")
        sync = sync_keys(change.replication, self._rest.version()) if change.replication is not None else {}
        parameters = {"postgresql": {"parameters": dict(change.parameters)}} if change.parameters else {}
        return {**change.manager, **sync, **parameters}

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Patch our keys, journaled before; TargetError when somebody changed one of them since the plan."""
        tree = self._tree(plan.change)
        now = self._rest.newest_config()
        before, after = within(now, tree), within(merged(now, tree), tree)
        if _version(before) != plan.version:
            raise TargetError(
                f"the configuration of {self._target} was changed by somebody else meanwhile", "do it once more"
            )
        names = list(_parameters(tree))
        note = {"config": before, "shown": {m: self._shown(m, names) for m in self._members()}}
        journal.note(
            self._clock.now(), self._target, CONFIG, "config", before=json.dumps(note), after=json.dumps(after)
        )
        self._rest.patch(tree)

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until Patroni states it, every member's new sessions show it and the quorum counts."""
        self._await(self._tree(plan.change), {})

    def undo(self, journal: Notebook) -> list[str]:
        """Patch back those of our keys that still are as we set them; sentences about what others set since."""
        left: list[str] = []
        for change in journal.pending(self._target):
            if change.what != CONFIG:
                continue
            note, after = json.loads(change.before or "{}"), json.loads(change.after or "{}")
            now = self._rest.newest_config()
            patch, foreign = undoing(note["config"], after, now)
            values = flat(now)
            left += [_left(name, values.get(name)) for name in foreign]
            if patch:
                self._rest.patch(patch)
                self._await(patch, note["shown"])
            journal.undone(change)
        return left

    def _await(self, change: Tree, shown: Mapping[str, Mapping[str, str]]) -> None:
        """In effect: Patroni states it, every member's new sessions show it, the quorum counts.

        shown: per member what parameters that the change removes were before they were first set.
        """
        parameters = _parameters(change)
        known = {m: {n: shown.get(m, {}).get(n) for n in parameters} for m in self._members()}

        def in_effect() -> bool:
            return follows(self._rest.config(), change) and all(self._has(m, n, parameters) for m, n in known.items())

        wait_for(Wait.SETTING_IN_EFFECT, in_effect, self._clock, pace_s=0.3, times=4)
        if any(name.startswith("synchronous_") for name in change):
            self._await_sync(self._rest.config())

    def _shown(self, member: str, names: list[str]) -> dict[str, str]:
        """pg_settings.setting by name; {} when the member does not answer."""
        try:
            rows = self._rows(member, names)
        except TargetError:
            return {}
        return {name: str(row["setting"]) for name, row in rows.items()}

    def _rows(self, member: str, names: list[str]) -> dict[str, Mapping[str, Any]]:
        """Rows of pg_settings by name; TargetError when the member is gone or does not answer."""
        endpoint = self._members().get(member)
        if endpoint is None:
            raise TargetError(f"{member} is no member any more", "patronictl list")
        with connected(endpoint) as connection:
            found = connection.execute(_ROWS, ([n.lower() for n in names],)).fetchall()
        return {str(row["name"]): row for row in found}

    def _has(self, member: str, names: Mapping[str, str | None], parameters: Tree) -> bool:
        try:
            rows = self._rows(member, list(names))
        except TargetError:
            return False
        for name, before in names.items():
            row = rows.get(name.lower())
            if row is None:
                raise UsageError(f"PostgreSQL of {member} has no parameter {name}", "leave it out")
            if row["pending_restart"]:
                raise UsageError(f"{name} takes effect only at a restart", "patronictl restart CLUSTER --pending")
            value = parameters[name]
            if value is not None and not same_value(_conf(value), row["setting"], row["unit"]):
                return False
            if value is None and before is not None and row["setting"] != before:
                return False
        return True

    def _await_sync(self, wanted: Tree) -> None:
        mode = str(wanted.get("synchronous_mode", "off")).lower()
        asked = min(int(wanted.get("synchronous_node_count") or 1), len(self._members()) - 1)
        kind = QuorumKind.ANY if mode == "quorum" else QuorumKind.FIRST
        sync = mode in ("true", "on", "quorum")

        def counts() -> bool:
            view = self._observe()
            if not sync:
                return not view.standby_names
            named = read_standby_names(view.standby_names)
            # The kind and the number too: a smaller quorum is in effect only once the larger one is gone.
            met = named is not None and (named.kind, named.k) == (kind, asked) and len(view.synchronous) >= asked
            return met or not asked

        wait_for(Wait.QUORUM_NAMED, counts, self._clock, pace_s=0.3)


def _version(config: Tree) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _left(name: str, value: Any) -> str:
    now = "is not set" if value is None else f"is {_text(value)}"
    return f"cluster: {name} {now} now, changed by somebody else since: left alone"


def _text(value: Any) -> str | None:
    return None if value is None else (value if isinstance(value, str) else json.dumps(value))


def _conf(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _parameters(config: Tree) -> Tree:
    return dict((config.get("postgresql") or {}).get("parameters") or {})
