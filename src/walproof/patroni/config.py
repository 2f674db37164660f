"""Patroni's dynamic configuration as a value: merging as PATCH does, flattening, undoing, sync mode, timeouts. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from walproof.errors import UsageError
from walproof.model.guarantee import QuorumKind, SyncReplication

Tree = dict[str, Any]


def merged(config: Tree, change: Tree) -> Tree:
    """What PATCH /config makes of it: objects merge, null removes, anything else replaces (patroni/utils.py).

    >>> merged({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    result = dict(config)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merged(result[name], value)
        elif isinstance(value, dict):
            result[name] = merged({}, value)
        else:
            result[name] = value
    return result


def within(config: Tree, change: Tree) -> Tree:
    """The part of a configuration that a change would touch, and nothing else.

    >>> within({"ttl": 30, "a": {"b": 1, "c": 2}}, {"a": {"b": 5, "d": 6}, "z": 1})
    {'a': {'b': 1}}
    """
    found: Tree = {}
    for name in change:
        if name in config:
            inner, here = change[name], config[name]
            both = isinstance(inner, dict) and isinstance(here, dict)
            found[name] = within(here, inner) if both else here
    return found


def flat(config: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted name; the dots of parameters with a prefix of their own (pg_stat_statements.max) stay.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found


def undoing(before: Tree, after: Tree, now: Tree) -> tuple[Tree, list[str]]:
    """(the PATCH that takes our own change back, dotted names that somebody else changed since).

    >>> undoing({"a": 1}, {"a": 2}, {"a": 2, "z": 9})
    ({'a': 1}, [])
    >>> undoing({"a": 1}, {"a": 2}, {"a": 3})
    ({}, ['a'])
    """
    patch: Tree = {}
    foreign: list[str] = []
    for name in dict.fromkeys((*before, *after)):
        was, ours, here = before.get(name), after.get(name), now.get(name)
        if was in (ours, here):
            continue
        if all(isinstance(v, dict) or v is None for v in (was, ours, here)) and here is not None:
            inner, others = undoing(was or {}, ours or {}, here)
            foreign += [f"{name}.{o}" for o in others]
            if inner:
                patch[name] = inner
        elif here == ours:
            patch[name] = was
        else:
            foreign.append(name)
    return patch, foreign


def follows(config: Tree, change: Tree) -> bool:
    """Whether every key of the change has its value in the configuration (None: is not in it).

    >>> follows({"a": 1, "z": 9}, {"a": 1, "b": None}), follows({"a": 1}, {"a": None})
    (True, False)
    """
    here, wanted = flat(within(config, change)), flat(change)
    return all(
        here.get(name) == value
        for name, value in {**dict.fromkeys(here), **wanted}.items()
        if {} not in (value, here.get(name))
    )


LEAST = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
DEFAULTS = {"ttl": 30, "loop_wait": 10, "retry_timeout": 10}
"""Patroni's timeouts, s: the smallest it takes (config.py, _validate_and_adjust_timeouts), and where none is set."""


def least_ttl(loop_wait: float, retry_timeout: float) -> float:
    """The ttl that these two need, s: Patroni of 3.2 and later keeps loop_wait within it."""
    return loop_wait + 2 * retry_timeout


def times(config: Mapping[str, Any], *, adjusted: bool = True) -> tuple[int, int]:
    """ttl and loop_wait as Patroni takes them; /config keeps them raw. adjusted: whether it is 3.2 or later.

    >>> times({}), times({"ttl": "soon", "loop_wait": 0}), times({"ttl": 5, "loop_wait": 15})
    ((30, 10), (30, 1), (20, 1))
    """
    ttl, loop_wait, retry_timeout = (max(LEAST[n], whole(config.get(n), d, d)) for n, d in DEFAULTS.items())
    longest = ttl - int(least_ttl(0, retry_timeout)) if adjusted else loop_wait
    return ttl, max(LEAST["loop_wait"], min(loop_wait, longest))


def odd_times(config: Mapping[str, Any]) -> list[str]:
    """Which of these are no whole number: Patroni refuses that configuration and keeps the former (config.py).

    >>> odd_times({"ttl": "60s", "loop_wait": "5", "retry_timeout": None})
    ['ttl', 'retry_timeout']
    """

    def is_odd(value: Any) -> bool:
        try:
            int(value)
        except (TypeError, ValueError, OverflowError):
            return True
        return False

    return [name for name in DEFAULTS if name in config and is_odd(config[name])]


def whole(value: object, default: int, odd: int = 0) -> int:
    """A number of a document that somebody else wrote; odd: for what is none."""
    try:
        return default if value is None else int(float(str(value)))
    except (ValueError, OverflowError):
        return odd


class SyncMode(StrEnum):
    """Patroni's synchronous_mode, and `strict` for its `on` that never degrades."""

    OFF = "off"
    ON = "on"
    QUORUM = "quorum"
    STRICT = "strict"

    def replication(self, number: int) -> SyncReplication:
        """What the mode means, for so many standbys."""
        if self is SyncMode.OFF:
            return SyncReplication(None, 0)
        method = QuorumKind.ANY if self is SyncMode.QUORUM else QuorumKind.FIRST
        return SyncReplication(method, number, self is SyncMode.STRICT)


def sync_keys(sync: SyncReplication, version: tuple[int, ...] = (4, 1)) -> Tree:
    """Patroni's keys for synchronous replication: quorum mode needs 4.0, and older ones know only true and false.

    >>> sync_keys(SyncMode.STRICT.replication(2))
    {'synchronous_mode': 'on', 'synchronous_mode_strict': True, 'synchronous_node_count': 2}
    >>> sync_keys(SyncReplication(QuorumKind.ANY, 1))
    {'synchronous_mode': 'quorum', 'synchronous_node_count': 1}
    """
    four = version >= (4,)
    if sync.method is None or sync.number == 0:
        return {"synchronous_mode": "off" if four else False, "synchronous_mode_strict": False}
    if sync.method is QuorumKind.ANY and not four:
        raise UsageError("this Patroni has no quorum mode (it came with 4.0)", f"--quorum first{sync.number}")
    mode = "quorum" if sync.method is QuorumKind.ANY else ("on" if four else True)
    strict = {} if sync.strict is None else {"synchronous_mode_strict": sync.strict}
    return {"synchronous_mode": mode, **strict, "synchronous_node_count": sync.number}
