"""The level that ran: what each acknowledged commit itself waited for, against what was asked. Pure.

Every row returns the level and the standby names of its own commit; settings that void any level (fsync) and a ledger
table that is not an ordinary one any more are looked for before and after."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from walproof.model.guarantee import Level, Quorum, read_standby_names
from walproof.model.load import Attempts, Outcome
from walproof.model.standby_names import folded
from walproof.model.topology import MemberState
from walproof.model.units import counted

_LEVELS = tuple(Level)
_MOMENT_S = 1.0
"""A new leader that has named no standby for longer than this does without one."""


@dataclass(frozen=True, slots=True)
class Weaker:
    """Acknowledged commits that waited for less than was asked, and why in one clause with its length."""

    attempts: NDArray[np.bool_]
    """Shape (attempts,)."""
    cause: str


def acknowledged(attempts: Attempts, until: float = float("inf")) -> NDArray[np.bool_]:
    """Which attempts were acknowledged before `until`."""
    in_time: NDArray[np.bool_] = (attempts.outcome == Outcome.ACKNOWLEDGED) & (attempts.ended < until)
    return in_time


def lasting_s(attempts: Attempts, chosen: NDArray[np.bool_]) -> float:
    """Seconds in which acknowledged commits were of the chosen ones; one alone counts as its own duration."""
    if not chosen.any():
        return 0.0
    every = np.flatnonzero(attempts.outcome == Outcome.ACKNOWLEDGED)
    order = every[np.argsort(attempts.ended[every], kind="stable")]
    at, among = attempts.ended[order], chosen[order]
    both = among[1:] & among[:-1]
    alone = float((attempts.ended[chosen] - attempts.started[chosen]).max())
    return max(float(np.diff(at)[both].sum()), alone, 1e-6)


def quorums(attempts: Attempts) -> tuple[Quorum | None, ...]:
    """What each text of `attempts.standby_names` asks for; None where it is empty."""
    return tuple(read_standby_names(names) for names in attempts.standby_names)


def _with_names(attempts: Attempts, chosen: NDArray[np.bool_], wanted: Iterable[int]) -> NDArray[np.bool_]:
    named: NDArray[np.bool_] = chosen & np.isin(attempts.names, list(wanted))
    return named


def before_named(attempts: Attempts, level: Level, timeline: int | None) -> NDArray[np.bool_]:
    """Acknowledgements at a remote level on timelines after `timeline` that came before any with a standby named there.

    A new leader serves a moment before it names one; what comes more than a second after its first acknowledgement is
    no such moment any more.
    """
    early = np.zeros(len(attempts), dtype=bool)
    empty = unnamed(attempts, level)
    for newer in np.unique(attempts.timeline[empty & (attempts.timeline > (timeline or 0))]):
        there = acknowledged(attempts) & (attempts.timeline == newer)
        named = attempts.ended[there & ~empty]
        until = attempts.ended[there].min() + _MOMENT_S
        early |= empty & there & (attempts.ended < min(until, named.min(initial=np.inf)))
    return early


def unnamed(attempts: Attempts, level: Level) -> NDArray[np.bool_]:
    """Acknowledgements at a remote level that were given while no standby was named; shape (attempts,)."""
    empty = [i for i, quorum in enumerate(quorums(attempts)) if quorum is None]
    return _with_names(attempts, acknowledged(attempts), empty if level.remote else [])


def weaker(
    attempts: Attempts,
    asked: Level,
    chosen: NDArray[np.bool_],
    *,
    declared: str,
    members: Sequence[str],
    senders: Sequence[str],
) -> list[Weaker]:
    """Every way in which the acknowledged commits `chosen` (shape (attempts,)) waited for less than was asked.

    `declared`: standby names when the drill began; `senders`: application names that streamed from anywhere.
    """
    ways = _other_levels(attempts, asked, chosen)
    if asked.remote:
        ways += _fewer(attempts, asked, chosen, declared)
        ways += _anybody(attempts, chosen, set(map(folded, members)), set(map(folded, senders)))
    return ways


def _other_levels(attempts: Attempts, asked: Level, chosen: NDArray[np.bool_]) -> list[Weaker]:
    ways = []
    for index, level in enumerate(_LEVELS):
        ran = chosen & (attempts.level == index)
        if level is asked or not ran.any():
            continue
        count = counted(int(ran.sum()), "acknowledged commit")
        if level.strength < asked.strength:
            ways.append(Weaker(ran, f"{count} ran at {level}, not at {asked}"))
    silent = chosen & (attempts.level < 0)
    if silent.any():
        count = counted(int(silent.sum()), "acknowledged commit")
        ways.append(Weaker(silent, f"{count} did not say at which level they ran"))
    return ways


def _fewer(attempts: Attempts, asked: Level, chosen: NDArray[np.bool_], declared: str) -> list[Weaker]:
    """No standby named, or fewer waited for than at another moment of the same drill."""
    ways = []
    none = _with_names(attempts, chosen, [i for i, q in enumerate(quorums(attempts)) if q is None])
    if none.any():
        lasted = lasting_s(attempts, none)
        ways.append(Weaker(none, f"{asked} was acknowledged for {lasted:.1f} s with no standby named: it meant local"))
    seen = [q for i, q in enumerate(quorums(attempts)) if q is not None and (attempts.names[chosen] == i).any()]
    first = read_standby_names(declared)
    most = max((q.k for q in (*seen, first) if q is not None), default=0)
    less = [i for i, q in enumerate(quorums(attempts)) if q is not None and q.k < most]
    reduced = _with_names(attempts, chosen, less)
    if reduced.any():
        names = " or ".join(sorted({attempts.standby_names[i] for i in np.unique(attempts.names[reduced])}))
        lasted = lasting_s(attempts, reduced)
        ways.append(Weaker(reduced, f"for {lasted:.1f} s only {names} was waited for, not {most} standbys"))
    if not ways and not seen and chosen.any():
        ways.append(Weaker(chosen, f"{asked} was not seen in effect: no standby names came back with its commits"))
    return ways


def _anybody(attempts: Attempts, chosen: NDArray[np.bool_], members: set[str], senders: set[str]) -> list[Weaker]:
    """`*` counts any program that streams: it means standbys only when nothing but members did."""
    star = [i for i, q in enumerate(quorums(attempts)) if q is not None and q.open]
    open_to_all = _with_names(attempts, chosen, star)
    if not open_to_all.any() or (senders and senders <= members):
        return []
    return [Weaker(open_to_all, "the standby names are *: any program that streams counts, a pg_receivewal too")]


def void(states: Sequence[MemberState]) -> list[str]:
    """Settings seen on any member that void what every level promises, one clause each."""
    clauses = []
    for name, meaning in (("fsync", "nothing is flushed"), ("full_page_writes", "pages may be torn")):
        where = sorted({s.member for s in states if s.settings.get(name) == "off"})
        if where:
            clauses.append(f"{name} is off on {', '.join(where)}: {meaning}")
    return clauses


def overrides(states: Sequence[MemberState]) -> str:
    """Roles, databases and functions that set the level themselves, for the sentence that names the cause; "" if none.

    >>> overrides([MemberState("n1", 0.0, overrides=("walproof: synchronous_commit=off",))])
    'walproof: synchronous_commit=off'
    """
    return "; ".join(sorted({text for state in states for text in state.overrides}))


def odd_table(states: Sequence[MemberState]) -> list[str]:
    """What makes the ledger's table another one than walproof made, one clause each."""
    tables = [state.table for state in states if state.table is not None]
    clauses = []
    if any(table.persistence == "u" for table in tables):
        clauses.append("the ledger's table is unlogged: a crash empties it by design")
    names = sorted({name for table in tables for name in table.triggers})
    if names:
        clauses.append(f"the ledger's table has triggers or rules of others: {', '.join(names)}")
    if any(table.row_security for table in tables):
        clauses.append("the ledger's table has row security: rows may be hidden")
    return clauses
