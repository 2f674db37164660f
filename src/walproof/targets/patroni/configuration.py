"""Configuration through Patroni: its dynamic configuration patched over REST, awaited on every member, reverted.

Only our own keys are ever written; what another operator has set meanwhile is compared key by key and left alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from walproof.errors import TargetError, UsageError
from walproof.machine.quoting import pasted
from walproof.model.facts import PatroniFacts
from walproof.model.guarantee import ConfigChange, ConfigPlan, QuorumKind, SyncReplication, read_standby_names
from walproof.model.patroni_values import synchronous_mode, synchronous_node_count
from walproof.model.ports import SILENT, Clock, Notebook, Reverting
from walproof.model.topology import ClusterView, Endpoint
from walproof.model.units import counted
from walproof.model.waiting import Wait, wait_for
from walproof.patroni.config import sync_keys
from walproof.patroni.known_cluster import listing_of, members_in, shown
from walproof.patroni.rest import PatroniRest, facts_of
from walproof.targets.configure import noted
from walproof.targets.external.configuration_patches import (
    PARAMETERS,
    KeyPath,
    Leaves,
    Tree,
    at,
    differences,
    listed,
    overlaid,
    parameters_in,
    patch_of,
    paths_of,
    undoing,
)
from walproof.targets.external.settings_of_members import MemberSettings, in_effect

CONFIG = "patroni config"
"""What the journal calls a change of the dynamic configuration."""


NAMES: KeyPath = (*PARAMETERS, "synchronous_standby_names")
"""Names that an operator set: Patroni writes them only while it names no standby itself."""


def asked_of(change: ConfigChange, version: tuple[int, ...], config: Tree | None = None) -> Leaves:
    """What a change asks of the dynamic configuration of Patroni of that version, by path; UsageError for what is its
    own. config: as it is now; standby names in it would keep a cluster synchronous that is to be asynchronous.
    """
    if "synchronous_standby_names" in change.parameters:
        raise UsageError("Patroni writes synchronous_standby_names itself", "set synchronous replication instead")
    sync = sync_keys(change.replication, version) if change.replication is not None else {}
    own = {**change.manager, **sync}
    parameters = {(*PARAMETERS, name): value for name, value in change.parameters.items()}
    if change.replication is not None and not change.replication.asked and at(config or {}, NAMES):
        parameters[NAMES] = None
    return {**{path: at(own, path) for path in paths_of(own)}, **parameters}


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
        self._settings = MemberSettings(members)

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What patching the dynamic configuration would change; synchronous_standby_names is Patroni's own."""
        now, asked = self._rest.config(), self._asked(change)
        if change.replication is not None:
            self._check_able(change.replication, now)
        return ConfigPlan(change, listed(asked), differences(asked, now, _same), _version(_values(now, asked)))

    def _asked(self, change: ConfigChange) -> Leaves:
        if change.replication is None:
            return asked_of(change, ())
        return asked_of(change, self._rest.version(), self._rest.config())

    def _able(self, config: Tree) -> PatroniFacts:
        return replace(facts_of(self._rest), config=dict(config))

    def _check_able(self, asked: SyncReplication, config: Tree) -> None:
        """UsageError for more standbys than may be synchronous, for which Patroni would silently ask for fewer.

        And for standby names that stay whatever is patched: patroni.yml and ALTER SYSTEM go over it.
        """
        # How far a standby is behind passes, and /cluster tells it late: Patroni decides, which is waited for.
        patroni = self._able({**config, "maximum_lag_on_syncnode": None})
        view = self._observe()
        rows = self._settings.rows(view.leader or "", NAMES[-1:]) or {}
        stay = any(str(row.get("file", "")).endswith("/postgresql.auto.conf") for row in rows.values())
        stay = stay or (not asked.asked and patroni.synchronous == "off" and not at(config, NAMES))
        if stay and (asked.asked or view.standby_names):
            raise UsageError(
                f"synchronous_standby_names is {view.standby_names!r} by patroni.yml or ALTER SYSTEM, which Patroni's "
                "dynamic configuration does not change",
                "remove it there first",
            )
        if asked.asked > len(patroni.able):
            barred = ", ".join(f"{name} ({why})" for name, why in patroni.barred.items()) or "no other standby is there"
            able = len(patroni.able)
            raise UsageError(
                f"{counted(asked.asked, 'standby')} cannot be synchronous here, {able or 'none'} can: {barred}",
                f"ask for any{able} or first{able}, or let Patroni name the others" if able else "patronictl list",
            )

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Patch our keys, journaled before; TargetError when another user changed one of them since the plan."""
        asked = self._asked(plan.change)
        newest = self._rest.newest_config()
        before = _values(newest, asked)
        if _version(before) != plan.version:
            raise TargetError(
                f"the configuration of {self._target} was changed by another user meanwhile", "do it once more"
            )
        shown = self._settings.shown(list(parameters_in(asked)))
        # Names by patroni.yml or ALTER SYSTEM, which are in effect again once Patroni names no standby.
        theirs = plan.change.replication is not None and synchronous_mode(newest) == "off" and not at(newest, NAMES)
        names = self._observe().standby_names if theirs else ""
        who = listing_of(self._rest.members())
        note = json.dumps({"config": _stored(before), "shown": shown, "names": names, **who})
        after = json.dumps(_stored(asked))
        change = journal.note(self._clock.now(), self._target, CONFIG, "config", before=note, after=after)
        if _values(self._rest.newest_config(), asked) != before:
            # By a revert that ended just before it was noted: what it put back would be lost.
            journal.undone(change)
            raise TargetError(f"the configuration of {self._target} was changed meanwhile", "do it once more")
        self._rest.patch(patch_of(asked))

    def wait(self, plan: ConfigPlan) -> None:
        """Wait until Patroni states it, every member's new sessions show it and the quorum counts."""
        sync = plan.change.replication
        self._await(self._asked(plan.change), {}, None if sync is None else sync.asked)

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        """Patch back those of our keys that still are as we set them; sentences about what others set since."""
        left: list[str] = []
        for change in noted(journal, self._target, CONFIG):
            note, ours = _noted(change)
            was = _values(note["config"], ours)
            by_hand = pasted("curl -X PATCH -d {patch:shell} REST/config", patch=json.dumps(patch_of(was)))
            if stays := elsewhere(self._rest, note, f"{', '.join(map('.'.join, ours))}: set", by_hand):
                left.append(stays)
                continue
            now = self._rest.newest_config()
            if reverting.stays(change, partial(_overlaid, ours, now)):
                continue
            back, foreign = undoing(was, ours, now, _same)
            left += foreign
            if back:
                self._rest.patch(patch_of(back))
                self._await(back, note["shown"], None, note.get("names", ""))
            if not (foreign and reverting.keeps):
                journal.undone(change)
            for path in back:
                reverting.tell("setting", ".".join(path))
        return left

    def _await(
        self, asked: Leaves, shown: Mapping[str, Mapping[str, str]], number: int | None = None, names: str = ""
    ) -> None:
        """In effect: Patroni states it, every member's new sessions show it, the quorum counts.

        shown: per member what parameters that are removed were before they were first set. number: of standbys that
        must answer, whoever left since it was planned; None, as in an undo: as many as can be named now. names: those
        that the dynamic configuration does not have and that are in effect where Patroni names no standby.
        """
        # Patroni does not write an operator's names while it names standbys itself: what counts is the leader's.
        parameters = parameters_in({path: value for path, value in asked.items() if path != NAMES})
        members = list(self._members())

        def done() -> bool:
            config = self._rest.config()
            stated = all(_same(value, at(config, path)) for path, value in asked.items())
            return stated and all(self._shows(m, parameters, shown.get(m, {})) for m in members)

        wait_for(Wait.SETTING_IN_EFFECT, done, self._clock, pace_s=0.3, times=4)
        if any(path[0].startswith("synchronous_") or path == NAMES for path in asked):
            self._await_sync(self._rest.config(), number, names)

    def _shows(self, member: str, parameters: Mapping[str, Any], before: Mapping[str, str]) -> bool:
        rows = self._settings.rows(member, list(parameters))
        if rows is None:
            return False
        for name, value in parameters.items():
            row = rows.get(name.lower())
            if row is None:
                raise UsageError(f"PostgreSQL of {member} has no parameter {name}", "leave it out")
            # One that stands as it should is pending until the member reloads: after an undo.
            if row["pending_restart"] and not in_effect(rows, {name: value}, before):
                raise UsageError(f"{name} takes effect only at a restart", "patronictl restart CLUSTER --pending")
        return not any(row["pending_restart"] for row in rows.values()) and in_effect(rows, parameters, before)

    def _await_sync(self, wanted: Tree, number: int | None, names: str) -> None:
        mode = synchronous_mode(wanted)
        asked = min(synchronous_node_count(wanted), len(self._able(wanted).able)) if number is None else number
        kept = read_standby_names(str(at(wanted, NAMES) or names))
        kind = QuorumKind.ANY if mode == "quorum" else QuorumKind.FIRST

        def counts() -> bool:
            view = self._observe()
            if number is not None and view.leader is None:
                return False  # nobody says which names are in effect
            if mode == "off":
                return read_standby_names(view.standby_names) == kept
            named = read_standby_names(view.standby_names)
            # The kind and the number too: a smaller quorum is in effect only once the larger one is gone.
            met = named is not None and (named.kind, named.k) == (kind, asked) and "*" not in named.names
            return not asked or (met and len(view.synchronous) >= asked)

        wait_for(Wait.QUORUM_NAMED, counts, self._clock, pace_s=0.3)


def elsewhere(rest: PatroniRest, note: object, done: str, by_hand: str) -> str:
    """The sentence that a change stays, since the cluster that answers lists none of the members that the note names.

    "" where it lists one, or the note names none, as until 1.0.0. `done`: what was done; `by_hand`: what undoes it.
    """
    noted = members_in(note)
    if not noted or {*noted} & {*rest.members()}:
        return ""
    return (
        f"{done} on the cluster of {shown(noted)}, and that of {shown(rest.members()) or 'no member'} answers: left"
        " alone. Let rest name a member of the former; if all its members were replaced since, as pods are, run"
        f" {by_hand} there, then remove the journal"
    )


def _noted(change: Any) -> tuple[Any, Leaves]:
    """What stood there before, and our own values."""
    note, after = json.loads(change.before or "{}"), json.loads(change.after or "{}")
    return note, _values(after, paths_of(note["config"], after))


def _overlaid(ours: Leaves, config: Tree, newer: Any) -> bool:
    return overlaid(ours, _noted(newer)[1], config, _same)


def _values(config: Tree, paths: Iterable[KeyPath]) -> Leaves:
    return {path: at(config, path) for path in paths}


def _stored(leaves: Leaves) -> dict[str, Any]:
    """The keys that are there, as the journal holds them."""
    return patch_of({path: value for path, value in leaves.items() if value is not None})


def _same(ours: Any, here: Any) -> bool:
    """Whether a patch leaves what is there: Patroni compares the texts (utils.py, patch_config)."""
    return ours == here or (None not in (ours, here) and str(ours) == str(here))


def _version(values: Leaves) -> str:
    return hashlib.sha256(json.dumps(list(values.values()), sort_keys=True).encode()).hexdigest()
