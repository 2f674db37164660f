"""A change of a Cluster's spec as values by path: what it touches, what it was, the patch, the undoing. Pure."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from walproof.errors import UsageError
from walproof.model.configuration import ConfigChange, SyncReplication
from walproof.model.guarantee import QuorumKind

Tree = Mapping[str, Any]
KeyPath = tuple[str, ...]
Leaves = dict[KeyPath, Any]

PARAMETERS: KeyPath = ("postgresql", "parameters")
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


def at(tree: Tree, path: KeyPath) -> Any:
    """The value there, None where there is none.

    >>> at({"a": {"b": 1}}, ("a", "b")), at({}, ("a", "b"))
    (1, None)
    """
    here: Any = tree
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    return here


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


def replacing(value: Any, here: Any) -> Any:
    """The merge patch's value that leaves `value` and nothing else where `here` stands.

    >>> replacing({"a": 1}, {"a": 2, "b": 3}), replacing(None, {"a": 2})
    ({'b': None, 'a': 1}, None)
    >>> replacing({"limits": {"memory": "1Gi"}}, {"limits": {"cpu": "2"}})
    {'limits': {'cpu': None, 'memory': '1Gi'}}
    """
    if isinstance(value, Mapping) and isinstance(here, Mapping):
        inside = {key: replacing(of, here.get(key)) for key, of in value.items()}
        return {**{key: None for key in here if key not in value}, **inside}
    return value


def patch_of(leaves: Leaves, spec: Tree, *, whole: bool = False) -> dict[str, Any]:
    """The merge patch of the spec that brings these values; `whole`: and leaves nothing else in their tables.

    >>> patch_of({("a", "b"): 1, ("a", "c"): None}, {})
    {'a': {'b': 1, 'c': None}}
    """
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = replacing(value, at(spec, path)) if whole else value
    return tree


def undoing(before: Leaves, after: Leaves, spec: Tree) -> tuple[Leaves, list[KeyPath]]:
    """(values to bring back, paths that somebody else has changed since).

    >>> undoing({("a",): 1}, {("a",): 2}, {"a": 2})
    ({('a',): 1}, [])
    >>> undoing({("a",): 1}, {("a",): 2}, {"a": 3})
    ({}, [('a',)])
    """
    back: Leaves = {}
    foreign: list[KeyPath] = []
    for path, ours in after.items():
        was, here = before.get(path), at(spec, path)
        if same(was, here) and same(here, was):
            continue
        if same(ours, here):
            back[path] = was
        else:
            foreign.append(path)
    return back, foreign
