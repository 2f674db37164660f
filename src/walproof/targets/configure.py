"""A configuration change from plan to effect; on any error, and on Ctrl-C, what was changed is reverted."""

import json
from typing import Any

from walproof.errors import Error, MachineError, NotUndone, TargetError, UsageError
from walproof.machine.quoting import pasted
from walproof.model.drill import Capability
from walproof.model.guarantee import ConfigChange, ConfigPlan
from walproof.model.ports import Configuration, Notebook, Target
from walproof.targets.external.configuration_patches import KeyPath, paths_of


def configuration_of(target: Target) -> Configuration:
    """What changes that target's configuration; UsageError where nothing can."""
    configuration = target.capabilities().configuration
    if configuration is None:
        reason = target.capabilities().why_not(Capability.CONFIGURE)
        raise UsageError(f"{target.name} has no configuration to apply to: {reason}", "name a lab or a cluster")
    return configuration


def configure(configuration: Configuration, change: ConfigChange, journal: Notebook) -> ConfigPlan:
    """Plan the change, apply it, wait until it is in effect; MachineError without a journal."""
    plan = configuration.plan(change)
    if plan.differences:
        configuration.apply(plan, needed(journal))
        configuration.wait(plan)
    return plan


def applied(configuration: Configuration, plan: ConfigPlan, journal: Notebook) -> None:
    """Apply a plan and wait until it is in effect; on any error or Ctrl-C it is reverted before that goes on."""
    try:
        configuration.apply(plan, journal)
        configuration.wait(plan)
    except (Error, KeyboardInterrupt) as wrong:
        left = configuration.undo(journal)
        if isinstance(wrong, Error):
            wrong.message += "; ".join([f"; {'all else' if left else 'everything'} was reverted", *left])
            wrong.args = (wrong.message,)
        raise


class NoJournal:
    """In place of a journal where a verb keeps none: nothing is written down, so nothing is pending."""

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> None:
        """Nowhere."""

    def undone(self, change: object) -> None:
        """Nothing is."""

    def pending(self, target: str | None = None) -> tuple[()]:
        return ()

    def servers(self) -> frozenset[str]:
        return frozenset()


def noted(journal: Notebook, target: str, what: str, name: str | None = None) -> list[Any]:
    """The pending changes of a kind, newest first; `name`: of that one alone."""
    return [c for c in journal.pending(target) if c.what == what and name in (None, c.name)]


def check_identity(journal: Notebook, target: Target, path: object = None, *, silent: bool = False) -> None:
    """TargetError where changes of the journal at that path were made on another cluster of the target's name.

    Also where it is not known which one answers, unless `silent` ones may be: what walproof froze tells nothing.
    """
    noted_on = {change.cluster for change in journal.pending(target.name)} - {""}
    identity = target.identity if noted_on else ""
    others = noted_on - {identity}
    if not others or (silent and not identity):
        return
    if not identity:
        raise NotUndone(
            f"which cluster answers as {target.name} is not known; the changes were made on {min(others)}: they stay",
            "does a member answer, and may you call pg_control_system() there?",
        )
    again = "let the name mean that cluster again: service, DNS, target file; KUBECONFIG=FILE or context"
    gone = (
        "where it was deleted, or deleted and made anew: walproof revert --target {target:shell}, which undoes what it"
        " finds left there without a journal, then rm {path:path}"
    )
    raise TargetError(
        f"another cluster answers under this name: {target.name} is {identity} now, and the changes were"
        f" made on {min(others)}: they stay",
        again if path is None else f"{again}; {pasted(gone, path=path, target=target.name)}",
    )


def needed(journal: Notebook) -> Notebook:
    """The journal; MachineError when there is none: an external cluster is not changed without one."""
    if isinstance(journal, NoJournal):
        raise MachineError("nothing is changed on an external cluster without a journal", "this verb keeps none")
    return journal


def apart(newer: Any, older: Any) -> bool:
    """Whether both change keys of a manager's configuration, and none in common."""
    keys, others = _keys(newer), _keys(older)
    shared = any(key[: len(other)] == other[: len(key)] for key in keys for other in others)
    return bool(keys and others) and not shared


def _keys(change: Any) -> list[KeyPath]:
    try:
        before, after = json.loads(change.before or "null"), json.loads(change.after or "null")
        return [tuple(path) for path, _ in after] if "spec" in before else list(paths_of(before["config"], after))
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
