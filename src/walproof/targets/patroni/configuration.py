"""Configuration through Patroni: its dynamic configuration patched over REST, awaited on every member, reverted."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.model.configuration import ConfigChange, ConfigPlan, Difference
from walproof.model.guarantee import QuorumKind, read_standby_names
from walproof.model.ports import Clock, Notebook
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import flat, merged, sync_keys, undoing
from walproof.patroni.rest import PatroniRest
from walproof.targets.sql.connection import connected
from walproof.targets.sql.values import same_value

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
        now = self._rest.config()
        before, after = flat(now), flat(merged(now, self._tree(change)))
        differences = tuple(
            Difference("cluster", name, _text(before.get(name)), _text(after.get(name)))
            for name in dict.fromkeys((*before, *after))
            if before.get(name) != after.get(name)
        )
        return ConfigPlan(change, differences, _version(now))

    def _tree(self, change: ConfigChange) -> Tree:
        if "synchronous_standby_names" in change.parameters:
            raise UsageError("Patroni writes synchronous_standby_names itself", "set synchronous replication instead")
        sync = sync_keys(change.replication, self._rest.version()) if change.replication is not None else {}
        parameters = {"postgresql": {"parameters": dict(change.parameters)}} if change.parameters else {}
        return {**change.manager, **sync, **parameters}

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Patch it, journaled before; TargetError when somebody changed it since the plan."""
        before = self._rest.config()
        if _version(before) != plan.version:
            raise TargetError(
                f"the configuration of {self._target} was changed by somebody else meanwhile", "do it once more"
            )
        tree = self._tree(plan.change)
        after = merged(before, tree)
        changed = _changed(before, after)
        note = {"config": before, "shown": {m: self._shown(m, changed) for m in self._members()}}
        journal.note(
            self._clock.now(), self._target, CONFIG, "config", before=json.dumps(note), after=json.dumps(after)
        )
        self._rest.patch(tree)

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until Patroni states it, every member's new sessions show it and the quorum counts."""
        tree = self._tree(plan.change)

        def stated() -> Tree | None:
            config = self._rest.config()
            return config if merged(config, tree) == config else None

        wait_for(Wait.SETTING_IN_EFFECT, lambda: stated() is not None, self._clock, pace_s=0.3, times=4)
        self._await(
            stated() or self._rest.config(), {m: dict.fromkeys(plan.change.parameters) for m in self._members()}
        )

    def undo(self, journal: Notebook) -> list[str]:
        """Exactly the earlier configuration where nobody changed it since, else only our own keys."""
        left: list[str] = []
        for change in journal.pending(self._target):
            if change.what != CONFIG:
                continue
            note, after = json.loads(change.before or "{}"), json.loads(change.after or "{}")
            before, now = note["config"], self._rest.config()
            wanted = before
            if now in (before, after):
                # Also where it seems undone: /config may still show what was before the change (see below).
                self._rest.replace(before)
            else:
                patch, foreign = undoing(before, after, now)
                left += [f"cluster: {name} was changed by somebody else since: left alone" for name in foreign]
                wanted = merged(now, patch)
                if patch:
                    self._rest.patch(patch)
            # Never what /config says just after: Patroni answers from a view that may be a loop old.
            self._await(wanted, {} if left else note["shown"])
            journal.undone(change)
        return left

    def _await(self, wanted: Tree, shown: Mapping[str, Mapping[str, str | None]]) -> None:
        """In effect: Patroni states it, every member's new sessions show it, the quorum counts.

        shown: per member what a parameter that `wanted` does not set was before, None where nobody knows.
        """
        parameters = _parameters(wanted)

        def in_effect() -> bool:
            return self._rest.config() == wanted and all(self._has(m, n, parameters) for m, n in shown.items())

        wait_for(Wait.SETTING_IN_EFFECT, in_effect, self._clock, pace_s=0.3, times=4)
        self._await_sync(wanted)

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
            if name in parameters and not same_value(_conf(parameters[name]), row["setting"], row["unit"]):
                return False
            if name not in parameters and before is not None and row["setting"] != before:
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


def _changed(before: Tree, after: Tree) -> list[str]:
    """Parameters of PostgreSQL that differ."""
    was, then = _parameters(before), _parameters(after)
    return [name for name in dict.fromkeys((*was, *then)) if was.get(name) != then.get(name)]


def _text(value: Any) -> str | None:
    return None if value is None else (value if isinstance(value, str) else json.dumps(value))


def _conf(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _parameters(config: Tree) -> Tree:
    return dict((config.get("postgresql") or {}).get("parameters") or {})
