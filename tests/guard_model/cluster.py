"""What the model remembers: one leader `a`, its standbys b, c, d, the keys in the DCS, the guards. Sets are bit masks.

A delayed, dropped or cut-off process is one that does not move for a while, so partitions, freezes and crashes need no
state of their own: every move may come at any time or never. A standby's disk survives its crash (level `on`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

NOBODY, LEADER, GUARDS = -1, 10, 20
"""Holders of the leader key other than the standbys 0, 1, …: nobody, the leader, and GUARDS + i for guard i."""


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster. any_of: ANY k of the standbys; else FIRST k, which Patroni writes with exactly k names."""

    standbys: int
    k: int
    any_of: bool = True
    commits: int = 1
    guards: int = 2
    seals: int = 2
    """How often the guards together may seal."""
    changes: int = 1
    """How often the leader may begin to change synchronous_standby_names and /sync."""
    catches_up: bool = True
    """The leader drops a voter from /sync only when the ones left hold every acknowledged commit. Patroni's resolver
    does not wait for that: without it, two failures in a row lose a commit with no guard at all."""
    releases_early: bool = False
    """The member that holds the key may release it before it is promoted (watchdog, pre_promote, its own crash)."""
    failsafe: bool = False
    """Patroni's failsafe_mode is on while the guard acts."""
    operator: bool = False
    """Somebody may ask for a failover to standby b (/failover)."""

    def __str__(self) -> str:
        return f"{self.standbys + 1} members, {'ANY' if self.any_of else 'FIRST'} {self.k} of {self.standbys}"


class Guard(NamedTuple):
    """A guard at work: the /sync it saw; once it has sealed, who followed the leader then, what it has found since."""

    voters: int
    quorum: int
    sealed: bool
    followed: int
    checked: int
    seen: tuple[int, ...]
    """The received position of each standby when it was found sealed, 0 before."""


class Plan(NamedTuple):
    """What is left of a leader's cycle that began while it held the key. current: its /sync is still the newest."""

    current: bool
    steps: tuple[tuple[str, int, int], ...]


class State(NamedTuple):
    """Everything. Positions count commits; the leader's own WAL holds all of them."""

    received: tuple[int, ...]
    acknowledged: int
    primary: bool
    k: int
    names: int
    """k, names: synchronous_standby_names."""
    voters: int
    quorum: int
    """voters, quorum: /sync."""
    key: int
    conninfo: int
    """Standbys whose primary_conninfo names the old leader."""
    reread: int
    """Standbys whose startup process has such a primary_conninfo: a walreceiver may run or start at any time."""
    returning: int
    """Standbys whose HA cycle has read the old leader's key and is about to set primary_conninfo."""
    elected: int
    """Standbys whose HA cycle has votes enough and is about to take the key."""
    ready: int
    base: int
    """ready, base: who has caught up with the position at the last change of names (Patroni's SyncHandler)."""
    plan: Plan | None
    changes: int
    guards: tuple[Guard | None, ...]
    seals: int
    failsafe: int
    """Standbys that got POST /failsafe from the leader."""
    failover: int
    """0: nobody asked yet; 1: /failover names standby b; 2: gone."""
    promoted: int
    resumed: bool
    """A commit was acknowledged by the promoted one."""


def first_state(size: Size) -> State:
    """A healthy cluster: every standby streams; nothing is replicated yet."""
    everyone = (1 << size.standbys) - 1
    named = everyone if size.any_of else (1 << size.k) - 1
    quorum = size.standbys - size.k if size.any_of else 0
    return State(
        (0,) * size.standbys, 0, True, size.k, named, named, quorum, LEADER, everyone, everyone, 0, 0, named, 0, None,
        size.changes, (None,) * size.guards, size.seals, 0, 0, NOBODY, False,
    )  # fmt: skip


def members(mask: int) -> Iterator[int]:
    """The standbys in a mask."""
    return (s for s in range(mask.bit_length()) if mask >> s & 1)


def mask_of(standbys: Iterable[int]) -> int:
    """The mask of these standbys."""
    return sum(1 << s for s in standbys)


def name(member: int) -> str:
    """b, c, d for the standbys; `a` leads at first."""
    if member >= GUARDS:
        return f"guard {member - GUARDS + 1}"
    return {LEADER: "a", NOBODY: "nobody"}.get(member) or "bcdef"[member]


def lost(state: State) -> bool:
    """Whether the promoted standby lacks a commit that was acknowledged, before its promotion or since."""
    return state.promoted >= 0 and state.acknowledged > state.received[state.promoted]
