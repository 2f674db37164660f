"""Data damage that is new since the drill began: what was damaged before proves nothing about the fault. Pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from walproof.model.member_state import MemberState
from walproof.model.units import counted


def new_damage(states: Sequence[MemberState], problems: Mapping[str, str]) -> list[str]:
    """Pages whose checksums failed since each member was first asked, and what amcheck found, one clause each.

    `problems`: as in a History. A counter that was reset meanwhile counts from nought.
    """
    clauses = []
    for member in dict.fromkeys(state.member for state in states):
        known = [s for s in states if s.member == member and s.answers and s.checksum_failures is not None]
        failures = _since_first(known)
        if failures:
            clauses.append(f"{counted(failures, 'page')} of {member} failed their checksum")
    return clauses + [f"{where}: {what}" for where, what in problems.items() if where.startswith("data of ")]


def _since_first(known: Sequence[MemberState]) -> int:
    """How far the counter went up, over every reset."""
    failures = 0
    for before, after in pairwise(known):
        first, second = before.checksum_failures or 0, after.checksum_failures or 0
        reset = second < first or before.stats_reset != after.stats_reset
        failures += second if reset else second - first
    return failures
