"""Patroni's keys for timeouts and synchronous replication, as its dynamic configuration has them. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from walproof.errors import UsageError
from walproof.model.guarantee import QuorumKind, SyncReplication

LEAST = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
DEFAULTS = {"ttl": 30, "loop_wait": 10, "retry_timeout": 10}
"""Patroni's timeouts, s: the smallest it takes (config.py, _validate_and_adjust_timeouts), and where none is set."""


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, () when unknown.

    >>> version_of("4.1.0")
    (4, 1, 0)
    """
    return tuple(int(part) for part in text.split(".") if part.isdigit())


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
    """A number of a document that another user wrote; odd: for what is none."""
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


def sync_keys(sync: SyncReplication, version: tuple[int, ...] = (4, 1)) -> dict[str, Any]:
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
