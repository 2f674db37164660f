"""The ledger against what each member holds: kept, lost, recovered, divergent, phantom; and what readers saw. Pure.

Rows are compared in parts of about a million attempts, so that ten million need little more memory than their own
columns. WAL loses its end, never its middle: what was lost out of order was not lost with the WAL."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from walproof.model.drill import Findings
from walproof.model.load import Attempts, Outcome, Rows, WitnessReport

_WRITER_BITS, _NUMBER_BITS = 22, 40
_PART = 1_000_000


@dataclass(frozen=True, slots=True)
class MemberReading:
    """What one member holds of a ledger; all that a verdict needs of its rows.

    `present`: shape (attempts,), whether the row of that attempt is there. `caught_up`: whether the member had replayed
    everything the leader had when the leader was read; None when that is not known.
    """

    member: str
    present: NDArray[np.bool_]
    duplicate: int = 0
    corrupted: int = 0
    phantom: int = 0
    caught_up: bool | None = None


def lost_rows(attempts: Attempts, readings: Sequence[MemberReading]) -> NDArray[np.bool_]:
    """Which attempts were acknowledged and are not on the surviving leader, whose reading comes first.

    Shape (attempts,). Without any reading nothing is lost.
    """
    if not readings:
        return np.zeros(len(attempts), bool)
    lost: NDArray[np.bool_] = (attempts.outcome == Outcome.ACKNOWLEDGED) & ~readings[0].present
    return lost


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
        chosen, held = np.flatnonzero(attempt_part == part), np.flatnonzero(row_part == part)
        again, wrong, unknown = _compare_part(attempts, chosen, rows, held, present)
        duplicate, corrupted, phantom = duplicate + again, corrupted + wrong, phantom + unknown
    return MemberReading(rows.member, present, duplicate, corrupted, phantom, caught_up)


def _parts(number: NDArray[np.int64], parts: int) -> NDArray[np.uint16]:
    return (number % parts).astype(np.uint16)


def _compare_part(
    attempts: Attempts, chosen: NDArray[np.intp], rows: Rows, held: NDArray[np.intp], present: NDArray[np.bool_]
) -> tuple[int, int, int]:
    """Mark which of the attempts `chosen` are among the rows `held`; (duplicate, corrupted, phantom)."""
    key = keys(attempts.writer[chosen], attempts.number[chosen])
    order = np.argsort(key, kind="stable")
    key, chosen = key[order], chosen[order]
    row_key = keys(rows.writer[held], rows.number[held])
    place = np.searchsorted(key, row_key)
    inside = place < len(key)
    explained = np.zeros(len(row_key), dtype=bool)
    explained[inside] = (key[place[inside]] == row_key[inside]) & (
        attempts.outcome[chosen[place[inside]]] != Outcome.REFUSED
    )
    explained &= row_key >= 0
    at = chosen[place[explained]]
    present[at] = True
    stated, read = rows.stated[held][explained], rows.checksum[held][explained]
    corrupted = int(((read != attempts.checksum[at]) | (read != stated)).sum())
    distinct = len(np.unique(at))
    return int(explained.sum()) - distinct, corrupted, int((~explained).sum())


def lost_out_of_order(attempts: Attempts, leader: MemberReading, lost: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Lost acknowledgements after which an attempt began whose row was kept; shape (attempts,).

    On one timeline of one server that did not crash meanwhile, a commit acknowledged before another began comes first
    in the WAL, and a server that holds a position holds everything before it (manual, "WAL Internals"): a row that is
    missing although a later one is there was not lost with the WAL, it was deleted or hidden. So it is for the rows of
    one writer too, which begins an attempt when the one before has ended. Where several clocks gave the times, "before"
    is by more than they may be apart.
    """
    out_of_order = np.zeros(len(attempts), dtype=bool)
    placed = (attempts.outcome == Outcome.ACKNOWLEDGED) & (attempts.timeline > 0) & (attempts.server >= 0)
    for timeline in np.unique(attempts.timeline[lost]):
        of_timeline = placed & (attempts.timeline == timeline)
        for server in np.unique(attempts.server[of_timeline]):
            chosen = of_timeline & (attempts.server == server)
            kept = attempts.started[chosen & leader.present]
            if len(kept):
                out_of_order |= lost & chosen & (attempts.ended < kept.max() - attempts.clocks_apart_s)
    return out_of_order


_NO_READERS = WitnessReport({})


def judged(
    attempts: Attempts,
    readings: Sequence[MemberReading],
    lost: NDArray[np.bool_],
    witness: WitnessReport = _NO_READERS,
) -> Findings:
    """Counts of a ledger; `readings` and `lost` as in `lost_rows`.

    Phantom, duplicate and corrupted rows are those of the worst member.
    """
    counts = np.bincount(attempts.outcome, minlength=len(Outcome))
    findings = Findings(
        acknowledged=int(counts[Outcome.ACKNOWLEDGED]),
        downgraded=int(counts[Outcome.DOWNGRADED]),
        unknown=int(counts[Outcome.UNKNOWN]),
        refused=int(counts[Outcome.REFUSED]),
        two_leaders_s=two_leaders_s(attempts),
        phantom=max((r.phantom for r in readings), default=0),
        duplicate=max((r.duplicate for r in readings), default=0),
        corrupted=max((r.corrupted for r in readings), default=0),
    )
    if not readings:
        return findings
    leader = readings[0]
    times = attempts.ended[lost]
    findings = replace(
        findings,
        kept=findings.acknowledged - int(lost.sum()),
        lost=int(lost.sum()),
        recovered=int(((attempts.outcome == Outcome.UNKNOWN) & leader.present).sum()),
        downgraded_lost=int(((attempts.outcome == Outcome.DOWNGRADED) & ~leader.present).sum()),
        lost_from=float(times.min()) if len(times) else None,
        lost_to=float(times.max()) if len(times) else None,
        out_of_order=int(lost_out_of_order(attempts, leader, lost).sum()),
        divergent=max((differing(leader, r) for r in readings[1:] if r.caught_up), default=0),
    )
    return _witnessed(findings, attempts, leader, witness)


def differing(leader: MemberReading, other: MemberReading) -> int:
    """Rows that one of the two holds and the other does not."""
    return int((leader.present != other.present).sum())


def _witnessed(findings: Findings, attempts: Attempts, leader: MemberReading, witness: WitnessReport) -> Findings:
    """Add what the readers saw: staleness by standby, long forks, and rows seen on a leader that the survivor lacks."""
    seen = np.array(sorted(set(witness.seen_on_leader)), dtype=np.int64).reshape(-1, 2)
    dirty = np.zeros(0, bool)
    if len(seen):  # the keys of every row are only worth their memory where readers saw something
        held = keys(attempts.writer[leader.present], attempts.number[leader.present])
        dirty = ~np.isin(keys(seen[:, 0].astype(np.int32), seen[:, 1]), held)
    return replace(
        findings,
        fresh_reads=sum(fresh for fresh, _ in witness.fresh_by_member.values()),
        stale_reads=sum(stale for _, stale in witness.fresh_by_member.values()),
        dirty_reads=int(dirty.sum()),
        long_forks=witness.long_forks,
        fresh_somewhere=witness.fresh_somewhere[0],
        fresh_nowhere=witness.fresh_somewhere[1],
    )


def two_leaders_s(attempts: Attempts) -> float:
    """Seconds in which two servers acknowledged on two timelines.

    Proven only when an attempt *started* on one after another one had been acknowledged on the other: a late answer
    of the old leader, sent before the new one was elected, is not two leaders.
    """
    acknowledged = attempts.outcome == Outcome.ACKNOWLEDGED
    spans: list[tuple[int, int, float, float]] = []
    for timeline in _distinct(attempts.timeline[acknowledged]):
        if timeline == 0:
            continue
        of_timeline = acknowledged & (attempts.timeline == timeline)
        for server in _distinct(attempts.server[of_timeline]):
            chosen = of_timeline & (attempts.server == server)
            spans.append((server, timeline, float(attempts.ended[chosen].min()), float(attempts.started[chosen].max())))
    longest = 0.0
    for (server, timeline, first, last), (other_server, other_timeline, other_first, other_last) in combinations(
        spans, 2
    ):
        if timeline != other_timeline and (server != other_server or server == -1):
            longest = max(longest, min(last, other_last) - max(first, other_first))
    return longest


def _distinct(column: NDArray[np.int32] | NDArray[np.int16]) -> list[int]:
    return [int(value) for value in np.unique(column)]
