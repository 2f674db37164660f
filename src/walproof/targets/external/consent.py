"""The gate of external clusters: consent by name, and the caps; every verb asks here before it touches one."""

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from walproof.errors import UsageError
from walproof.model.guarantee import SETTABLE
from walproof.model.ports import Target
from walproof.model.units import listed

_COMMANDS = (
    "stop", "kill-member", "freeze", "hang-postmaster", "hang-manager", "hang-rest", "power-cut", "partition",
    "isolate", "kill-all", "kill-member-all", "power-cut-all", "double-kill",
)  # fmt: skip
_SOMEWHERE = (
    "kill-container", "crash-restart", "partition-one-way", "partition-wal", "partition-acks", "pause-replay",
    "slow-disk", "failing-disk", "full-disk", "cpu-stress", "link-delay", "dcs-loss", "double-power",
    "crash-in-place",
)  # fmt: skip
MEANS = {
    "load": "makes a database of its own (on CloudNativePG a role too) and puts load on the cluster",
    "existing-tables": "runs the workload on tables that are there: what it changes stays changed",
    "canary": "commits one row per level and second into a table of its own",
    "config": "changes settings, and reverts them",
    "scale": "changes the pods' processors and memory: every instance restarts, and again at the end",
    "restart": "restarts PostgreSQL: sessions are lost",
    "switchover": "hands the leadership over: sessions are lost, writes pause",
    "takeover": "deletes the pod of a frozen primary of CloudNativePG and empties its Lease",
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
    allowed = frozenset(listed(text, "allow") if text else ())
    unknown = sorted(allowed - set(MEANS))
    if unknown:
        raise UsageError(f"--allow {unknown[0]} is no consent", "the words are " + ", ".join(MEANS))
    return allowed


def check(
    target: Target,
    doing: str,
    needed: Iterable[str],
    allowed: frozenset[str],
    *,
    clients: int = 0,
    beforehand: str = "",
) -> None:
    """The gate: nothing on a cluster of our own; else UsageError (exit 2) without consent or beyond the caps.

    `beforehand`: sentences about what it costs there, for who has not consented yet.
    """
    if target.external:
        require(doing, needed, allowed, target.name, beforehand)
        target.capabilities().limits.check(clients)


def require(doing: str, needed: Iterable[str], allowed: frozenset[str], whose: str, beforehand: str = "") -> None:
    """Nothing when every needed word is allowed; else UsageError (exit 2) with the exact flag to add.

    >>> require("applying", ["config"], frozenset({"config"}), "n1")
    """
    wanted = list(dict.fromkeys(needed))
    missing = [word for word in wanted if word not in allowed]
    if missing:
        means = "; ".join(MEANS[word] for word in missing)
        raise UsageError(
            f"{doing} {means} on {whose}, an external cluster, and you did not allow it"
            + (f". {beforehand}" if beforehand else ""),
            f"--allow {','.join(dict.fromkeys([*sorted(allowed), *missing]))} consents",
        )


_KUBERNETES = r"[a-z0-9][a-z0-9.-]{0,252}"
_NAMED: dict[str, tuple[str, str, str]] = {
    "database": ("load", ".*", ".*"),
    "cnpg role": ("load", "walproof_[0-9a-f]{8}", f"{_KUBERNETES}-walproof-role"),
    "load pods": ("load", f"{_KUBERNETES}-walproof", "[0-9a-f]{8}"),
    "cnpg chaos": ("config", f"(network|io|stress)chaos {_KUBERNETES}-walproof-[a-z0-9.-]+", ".*"),
    "cnpg fault": ("config", f"(kill|kill-member|kill-container|freeze|stop) {_KUBERNETES}", ".*"),
    "cnpg alter system": ("config", _KUBERNETES, ".*"),
}
"""Kinds of changes that remove or end something: the consent, what walproof calls such things (name, after)."""


class _Patroni(BaseModel):
    config: dict[str, Any]
    shown: dict[str, dict[str, str]]


class _Spec(BaseModel):
    spec: list[tuple[list[str], Any]]
    shown: dict[str, dict[str, str]]


_JSON: dict[str, tuple[str, TypeAdapter[Any], TypeAdapter[Any]]] = {
    "patroni config": ("config", TypeAdapter(_Patroni), TypeAdapter(dict[str, Any])),
    "cnpg spec": ("config", TypeAdapter(_Spec), TypeAdapter(list[tuple[list[str], Any]])),
    "cnpg resources": ("scale", TypeAdapter(dict[str, Any] | None), TypeAdapter(dict[str, Any] | None)),
}
"""Kinds of changes of a manager's configuration: the consent, the shapes of before and after."""
_TABLES = frozenset(("postgresql", "parameters", "method", "number", "dataDurability"))


def to_revert(changes: Iterable[Any]) -> tuple[str, ...]:
    """What --allow must say before changes of a journal that this user's walproof did not keep are reverted.

    UsageError for what walproof never changes, makes or writes: no journal of walproof's holds it.
    """
    return tuple(dict.fromkeys(_consent(change) for change in changes))


def _consent(change: Any) -> str:
    kind = "alter-system" if change.what.startswith("alter-system ") else change.what
    if kind in _NAMED:
        word, name, after = _NAMED[kind]
        if re.fullmatch(name, change.name) and re.fullmatch(after, change.after or ""):
            return word
        raise _not_ours(change.name)
    if kind in _JSON:
        word, *shapes = _JSON[kind]
        try:
            trees = [
                shape.validate_json(text or "null")
                for shape, text in zip(shapes, (change.before, change.after), strict=True)
            ]
        except ValidationError:
            raise _not_ours(change.what) from None
        for name in _names(trees) if word == "config" else ():
            _check(name)
        return word
    _check(change.name if kind == "alter-system" else change.what)
    return "config"


def _check(name: str) -> None:
    if name not in SETTABLE | _TABLES:
        raise _not_ours(name)


def _not_ours(name: str) -> UsageError:
    return UsageError(
        f"the journal holds {name[:80]!r}, which walproof never changes: nothing of it is reverted",
        "it is not walproof's, or was changed since; ask its sender",
    )


def _names(tree: Any) -> frozenset[str]:
    """Every key that the tree may set: keys of tables, and the paths of CloudNativePG's changes."""
    if isinstance(tree, _Patroni):
        return _names(tree.config)
    if isinstance(tree, _Spec):
        return _names(tree.spec)
    if isinstance(tree, dict):
        return frozenset(tree).union(*map(_names, tree.values()))
    if isinstance(tree, list | tuple):
        paths = (one[0] for one in tree if isinstance(one, tuple))
        return frozenset(name for path in paths for name in path).union(*map(_names, tree))
    return frozenset()
