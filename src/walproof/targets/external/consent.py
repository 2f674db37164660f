"""The gate of external clusters: consent by name, and the caps; every verb asks here before it touches one."""

from collections.abc import Iterable, Iterator
from typing import Any

from walproof.errors import UsageError
from walproof.machine.foreign_text import from_json
from walproof.model.configuration import SETTABLE
from walproof.model.ports import Target

_COMMANDS = ("stop", "kill-member", "freeze", "power-cut", "partition", "isolate", "kill-all", "double-kill")
_SOMEWHERE = (
    "kill-container",
    "crash-restart",
    "partition-one-way",
    "partition-wal",
    "partition-acks",
    "pause-replay",
    "slow-disk",
    "failing-disk",
    "full-disk",
    "cpu-stress",
    "link-delay",
    "dcs-loss",
    "double-power",
    "crash-in-place",
)
MEANS = {
    "load": "makes a database of its own (on CloudNativePG a role too) and puts load on the cluster",
    "existing-tables": "runs the workload on tables that are there: what it changes stays changed",
    "canary": "commits one row per level and second into a table of its own",
    "config": "changes settings, and reverts them",
    "scale": "changes the pods' processors and memory: every instance restarts, and again at the end",
    "restart": "restarts PostgreSQL: sessions are lost",
    "switchover": "hands the leadership over: sessions are lost, writes pause",
    "takeover": "hands the leadership over when the leader shows no sign of life",
    "etcd-leader": "moves etcd's own leader off the machine of Patroni's: every lease in that etcd is renewed",
    "kill": "kills PostgreSQL: by your command, or through Kubernetes",
    "not-in-effect": "measures remote levels although no standby is named",
    **{fault: f"does {fault}: by your command, or through Kubernetes" for fault in _COMMANDS},
    **{fault: f"does {fault}, where the cluster can" for fault in _SOMEWHERE},
}
"""Words of --allow; each fault of `prove` is a consent of its own."""


def read(text: str | None) -> frozenset[str]:
    """The words of `--allow a,b`; UsageError for one that is no consent.

    >>> sorted(read("config, load"))
    ['config', 'load']
    """
    allowed = frozenset(word.strip() for word in (text or "").split(",") if word.strip())
    unknown = sorted(allowed - set(MEANS))
    if unknown:
        raise UsageError(f"--allow {unknown[0]} is no consent", "the words are " + ", ".join(MEANS))
    return allowed


def check(target: Target, doing: str, needed: Iterable[str], allowed: frozenset[str], *, clients: int = 0) -> None:
    """The gate: nothing on a cluster of our own; else UsageError (exit 2) without consent or beyond the caps."""
    if target.external:
        require(doing, needed, allowed, target.name)
        target.capabilities().limits.check(clients)


def require(doing: str, needed: Iterable[str], allowed: frozenset[str], whose: str) -> None:
    """Nothing when every needed word is allowed; else UsageError (exit 2) with the exact flag to add.

    >>> require("applying", ["config"], frozenset({"config"}), "n1")
    """
    wanted = list(dict.fromkeys(needed))
    missing = [word for word in wanted if word not in allowed]
    if missing:
        means = "; ".join(MEANS[word] for word in missing)
        raise UsageError(
            f"{doing} {means} on {whose}, an external cluster, and you did not allow it",
            f"--allow {','.join(dict.fromkeys([*sorted(allowed), *missing]))} consents",
        )


_SETTINGS = ("patroni config", "cnpg spec", "alter-system ")
"""How the kinds of changes begin that revert a setting to a value of the journal's own."""
_TABLES = frozenset(("config", "spec", "postgresql", "parameters", "method", "number", "dataDurability"))
_CONSENTS = {"database": "load", "cnpg role": "load", "load pods": "load", "cnpg resources": "scale"}


def to_revert(changes: Iterable[Any]) -> tuple[str, ...]:
    """What --allow must say before changes of a journal that this user's walproof did not keep are reverted.

    UsageError for a setting that walproof never changes: no journal of walproof's holds it.
    """
    words = []
    for change in changes:
        foreign = sorted(set(_settings(change)) - SETTABLE - _TABLES)
        if foreign:
            raise UsageError(
                f"the journal would set {foreign[0]!r}, which walproof never changes: nothing of it is reverted",
                "it is not walproof's, or was changed since; ask its sender",
            )
        fault = change.name.partition(" ")[0] if change.what == "cnpg fault" else ""
        words.append(fault if fault in MEANS else _CONSENTS.get(change.what, "config"))
    return tuple(dict.fromkeys(words))


def _settings(change: Any) -> Iterator[str]:
    """Every name that the change may set."""
    if not change.what.startswith(_SETTINGS):
        return
    if change.what.startswith("alter-system "):
        yield change.name
        return
    for text in (change.before, change.after):
        try:
            tree = from_json(text or "null")
        except ValueError:
            tree = {"unreadable": ""}
        if isinstance(tree, dict):
            tree.pop("shown", None)
        yield from _names(tree)


def _names(tree: Any) -> Iterator[str]:
    """Keys of tables, and the paths of CloudNativePG's changes, which are lists of a path and a value."""
    if isinstance(tree, dict):
        yield from map(str, tree)
        tree = list(tree.values())
    for one in tree if isinstance(tree, list) else ():
        if isinstance(one, list) and one and isinstance(one[0], list | str):
            yield from map(str, one[0])
        yield from _names(one)
