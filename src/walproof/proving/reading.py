"""A member's rows compared with the attempts: which are there, and what else is. Pure.

Works in parts of about a million attempts, so that ten million need little more memory than their own columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts, Outcome, Rows

_WRITER_BITS, _NUMBER_BITS = 22, 40
_PART = 1_000_000


@dataclass(frozen=True, slots=True)
class MemberReading:
    """What one member holds of a ledger; all that a verdict needs of its rows.

    `present`: shape (attempts,), whether the row of that attempt is there. `caught_up`: whether the member had replayed
    everything the leader had when the leader was read; None when nobody can tell.
    """

    member: str
    present: NDArray[np.bool_]
    duplicate: int = 0
    corrupted: int = 0
    phantom: int = 0
    caught_up: bool | None = None


def lost_rows(attempts: Attempts, leader: MemberReading) -> NDArray[np.bool_]:
    """Which attempts were acknowledged and are not there; shape (attempts,)."""
    found: NDArray[np.bool_] = (attempts.outcome == Outcome.ACKNOWLEDGED) & ~leader.present
    return found


def keys(writer: NDArray[np.int32], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """One int64 an attempt, of writer (22 bits) and number (40 bits); -1 where either is out of range."""
    key = (writer.astype(np.int64) << _NUMBER_BITS) | number
    key[(writer >> _WRITER_BITS != 0) | (number >> _NUMBER_BITS != 0)] = -1  # a negative one, shifted, is -1
    return key


def compared(attempts: Attempts, rows: Rows, *, caught_up: bool | None = None) -> MemberReading:
    """The rows of one member against the attempts: a row of no attempt, or of a refused one, is a phantom."""
    parts = 1 + len(attempts) // _PART
    attempt_part, row_part = _parts(attempts.number, parts), _parts(rows.number, parts)
    present = np.zeros(len(attempts), dtype=bool)
    duplicate = corrupted = phantom = 0
    for part in range(parts):
        chosen, found = np.flatnonzero(attempt_part == part), np.flatnonzero(row_part == part)
        again, wrong, unknown = _compare_part(attempts, chosen, rows, found, present)
        duplicate, corrupted, phantom = duplicate + again, corrupted + wrong, phantom + unknown
    return MemberReading(rows.member, present, duplicate, corrupted, phantom, caught_up)


def _parts(number: NDArray[np.int64], parts: int) -> NDArray[np.uint16]:
    return (number % parts).astype(np.uint16)


def _compare_part(
    attempts: Attempts, chosen: NDArray[np.intp], rows: Rows, found: NDArray[np.intp], present: NDArray[np.bool_]
) -> tuple[int, int, int]:
    """Mark which of the attempts `chosen` are among the rows `found`; (duplicate, corrupted, phantom)."""
    key = keys(attempts.writer[chosen], attempts.number[chosen])
    order = np.argsort(key, kind="stable")
    key, chosen = key[order], chosen[order]
    row_key = keys(rows.writer[found], rows.number[found])
    place = np.searchsorted(key, row_key)
    inside = place < len(key)
    explained = np.zeros(len(row_key), dtype=bool)
    explained[inside] = (key[place[inside]] == row_key[inside]) & (
        attempts.outcome[chosen[place[inside]]] != Outcome.REFUSED
    )
    explained &= row_key >= 0
    at = chosen[place[explained]]
    present[at] = True
    stated, read = rows.stated[found][explained], rows.checksum[found][explained]
    corrupted = int(((read != attempts.checksum[at]) | (read != stated)).sum())
    distinct = len(np.unique(at))
    return int(explained.sum()) - distinct, corrupted, int((~explained).sum())
