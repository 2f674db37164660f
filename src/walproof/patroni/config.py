"""Patroni's keys for synchronous replication, as its dynamic configuration takes them, and its versions. Pure."""

from enum import StrEnum
from typing import Any

from walproof.errors import UsageError
from walproof.model.guarantee import AskedQuorum, QuorumKind, SyncReplication
from walproof.model.units import counted


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, () when unknown.

    >>> version_of("4.1.0")
    (4, 1, 0)
    """
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


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


def mode_and_number(sync: SyncMode | None, quorum: AskedQuorum | None, members: int) -> tuple[SyncMode, int]:
    """Synchronous mode and number of standbys as asked; UsageError where they differ or there are too few members.

    >>> mode_and_number(None, (QuorumKind.FIRST, 2), 4)
    (<SyncMode.ON: 'on'>, 2)
    """
    standbys = members - 1
    kind, asked = quorum or (None, 1)
    fitting = SyncMode.ON if kind is QuorumKind.FIRST else SyncMode.QUORUM
    sync = sync or (fitting if standbys or kind else SyncMode.OFF)
    number = asked or max(1, standbys)
    method = sync.replication(number).method
    # All of them is both: any two of two standbys are the first two.
    if kind and (method is None or (method is not kind and asked)):
        raise UsageError(f"--sync {sync} cannot wait for {kind} {number}", "leave --sync or --quorum out")
    if method and number > standbys:
        raise UsageError(
            f"a quorum of {number} needs as many standbys; {counted(members, 'member')} have {standbys}",
            f"--members {number + 1}, or a smaller --quorum",
        )
    return sync, number


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
