"""Patching only our own keys of a configuration that others change too: what a patch changes, what an undo brings back.

For Patroni's dynamic configuration and a Cluster's spec alike: tables within tables, a merge patch in which None
removes a key. A value that was changed since by another operator is named and left alone. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping
from operator import eq
from typing import Any

from walproof.model.guarantee import Difference, Setting

Tree = Mapping[str, Any]
KeyPath = tuple[str, ...]
Leaves = dict[KeyPath, Any]
"""Values by their path; None is a key that is not there, or is to be removed."""
Same = Callable[[Any, Any], bool]
"""Whether the value that was asked (first) is what stands there."""
PARAMETERS: KeyPath = ("postgresql", "parameters")
"""Where Patroni and CloudNativePG both keep PostgreSQL's parameters."""


def at(tree: Tree, path: KeyPath) -> Any:
    """The value there, None where there is none.

    >>> at({"a": {"b": 1}}, ("a", "b")), at({}, ("a", "b"))
    (1, None)
    """
    here: Any = tree
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    return here


def paths_of(*trees: Tree) -> Iterator[KeyPath]:
    """Paths of the values of these trees: a table in all of them that have it is gone into. Empty tables have none.

    >>> list(paths_of({"a": {"b": 1}, "c": {}}, {"a": {"d": 2}, "c": 3}))
    [('a', 'b'), ('a', 'd'), ('c',)]
    """
    for name in dict.fromkeys(name for tree in trees for name in tree):
        values = [tree[name] for tree in trees if tree.get(name) is not None]
        if values and all(isinstance(value, Mapping) for value in values):
            yield from ((name, *path) for path in paths_of(*values))
        else:
            yield (name,)


def parameters_in(leaves: Leaves) -> dict[str, Any]:
    """PostgreSQL's parameters among them, by name.

    >>> parameters_in({("ttl",): 20, ("postgresql", "parameters", "jit"): "off"})
    {'jit': 'off'}
    """
    return {path[-1]: value for path, value in leaves.items() if path[:-1] == PARAMETERS}


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


def patch_of(leaves: Leaves, replaced: Tree | None = None) -> dict[str, Any]:
    """The merge patch that brings these values; `replaced`: the tree in whose tables it leaves nothing beside them.

    >>> patch_of({("a", "b"): 1, ("a", "c"): None})
    {'a': {'b': 1, 'c': None}}
    """
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value if replaced is None else replacing(value, at(replaced, path))
    return tree


def differences(asked: Leaves, tree: Tree, same: Same = eq) -> tuple[Difference, ...]:
    """What the patch of these values would change."""
    return tuple(
        Difference("cluster", ".".join(path), _text(at(tree, path)), _text(value))
        for path, value in asked.items()
        if not same(value, at(tree, path))
    )


def listed(asked: Mapping[KeyPath, Any]) -> tuple[Setting, ...]:
    """All that the patch of these values sets, whatever it changes.

    >>> listed({("a", "b"): 1, ("c",): None})
    (Setting(name='a.b', value='1'), Setting(name='c', value=None))
    """
    return tuple(Setting(".".join(path), _text(value)) for path, value in asked.items())


def undoing(before: Leaves, ours: Leaves, now: Tree, same: Same = eq) -> tuple[Leaves, list[str]]:
    """(values to bring back where ours still stand, sentences about values that others have changed since).

    `before` are the values at the paths of `ours` before they were set.

    >>> undoing({("a",): 1}, {("a",): 2}, {"a": 2, "z": 9})
    ({('a',): 1}, [])
    >>> undoing({("a",): 1}, {("a",): 2}, {"a": 3})
    ({}, ['cluster: a is 3 now, changed by another user since: left alone'])
    """
    back: Leaves = {}
    left: list[str] = []
    for path, our in ours.items():
        was, here = before.get(path), at(now, path)
        if same(our, was) or (same(was, here) and same(here, was)):
            continue
        # A key that we removed is missing too where another operator removed the table it stood in.
        if same(our, here) and (here is not None or isinstance(at(now, path[:-1]), Mapping)):
            back[path] = was
        else:
            left.append(left_alone(".".join(path), here))
    return back, left


def overlaid(older: Leaves, newer: Leaves, now: Tree, same: Same = eq) -> bool:
    """Whether a value that both set is there as the newer one set it.

    >>> overlaid({("a",): 1}, {("a",): 2}, {"a": 2}), overlaid({("a",): 1}, {("a",): 2, ("b",): 3}, {"a": 1, "b": 3})
    (True, False)
    """
    return any(same(value, at(now, path)) for path, value in newer.items() if path in older)


def left_alone(name: str, value: Any) -> str:
    """The sentence about a value that an undo does not touch."""
    now = "is not set" if value is None else f"is {_text(value)}"
    return f"cluster: {name} {now} now, changed by another user since: left alone"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value)
