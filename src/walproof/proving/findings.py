"""The ledger against the rows: what was kept, lost, recovered, duplicate, corrupted or phantom. Pure.

Works in parts of about a million attempts, so that ten million need little more memory than their own columns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts, Outcome, Rows
from walproof.model.guarantee import Level
from walproof.model.load import WitnessReport
from walproof.model.verdict import Findings

_NUMBER_BITS = 40
_PART = 1_000_000


@dataclass(frozen=True, slots=True)
class Judgement:
    """Findings on the surviving leader, and per other member by how many rows it differs from the leader."""

    findings: Findings
    differs: dict[str, int]


@dataclass(slots=True)
class _Tally:
    """Counts of one member, added up part by part."""

    kept: int = 0
    lost: int = 0
    recovered: int = 0
    downgraded_lost: int = 0
    phantom: int = 0
    duplicate: int = 0
    corrupted: int = 0
    lost_from: float = float("inf")
    lost_to: float = float("-inf")


def keys(writer: NDArray[np.int32], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """One int64 an attempt, of writer (23 bits) and number (40 bits); -1 where either is out of range."""
    key = (writer.astype(np.int64) << _NUMBER_BITS) | number
    outside = (writer < 0) | (writer >= 1 << 22) | (number < 0) | (number >= 1 << _NUMBER_BITS)
    if outside.any():
        key[outside] = -1
    return key


def _parts(number: NDArray[np.int64], parts: int) -> NDArray[np.uint8]:
    return (number % parts).astype(np.uint8)


def _tally_part(
    attempts: Attempts, chosen: NDArray[np.intp], rows: Rows, found: NDArray[np.intp], sums: _Tally
) -> None:
    """Add one part, attempts `chosen` against rows `found`, to the sums."""
    key = keys(attempts.writer[chosen], attempts.number[chosen])
    order = np.argsort(key, kind="stable")
    key, chosen = key[order], chosen[order]
    outcome = attempts.outcome[chosen]
    row_key = keys(rows.writer[found], rows.number[found])
    place = np.searchsorted(key, row_key)
    inside = place < len(key)
    explained = np.zeros(len(row_key), dtype=bool)
    explained[inside] = (key[place[inside]] == row_key[inside]) & (outcome[place[inside]] != Outcome.REFUSED)
    explained &= row_key >= 0
    at = place[explained]
    present = np.zeros(len(key), dtype=bool)
    present[at] = True
    stated, read = rows.stated[found][explained], rows.checksum[found][explained]
    acknowledged = outcome == Outcome.ACKNOWLEDGED
    lost = acknowledged & ~present
    sums.kept += int((acknowledged & present).sum())
    sums.lost += int(lost.sum())
    sums.recovered += int(((outcome == Outcome.UNKNOWN) & present).sum())
    sums.downgraded_lost += int(((outcome == Outcome.DOWNGRADED) & ~present).sum())
    sums.phantom += int((~explained).sum())
    sums.duplicate += int(explained.sum()) - int(present.sum())
    sums.corrupted += int(((read != attempts.checksum[chosen][at]) | (read != stated)).sum())
    if lost.any():
        times = attempts.ended[chosen][lost]
        sums.lost_from = min(sums.lost_from, float(times.min()))
        sums.lost_to = max(sums.lost_to, float(times.max()))


def _tallied(attempts: Attempts, rows: Rows) -> _Tally:
    parts = min(255, max(1, (len(attempts) + _PART - 1) // _PART))
    attempt_part, row_part = _parts(attempts.number, parts), _parts(rows.number, parts)
    sums = _Tally()
    for part in range(parts):
        _tally_part(attempts, np.flatnonzero(attempt_part == part), rows, np.flatnonzero(row_part == part), sums)
    return sums


def _outcomes(attempts: Attempts) -> dict[Outcome, int]:
    counts = np.bincount(attempts.outcome, minlength=len(Outcome))
    return {outcome: int(counts[outcome]) for outcome in Outcome}


def judged(attempts: Attempts, members: Iterable[Rows], witness: WitnessReport | None = None) -> Judgement:
    """Attempts against the rows of every member, the surviving leader first; rows may be given one by one (lazily).

    kept, lost, recovered are judged on the surviving leader; duplicate, corrupted and phantom on the worst member.
    """
    counts = _outcomes(attempts)
    findings = Findings(
        acknowledged=counts[Outcome.ACKNOWLEDGED],
        downgraded=counts[Outcome.DOWNGRADED],
        unknown=counts[Outcome.UNKNOWN],
        refused=counts[Outcome.REFUSED],
        two_leaders_s=two_leaders_s(attempts),
        not_in_effect_s=not_in_effect_s(attempts),
        lost=counts[Outcome.ACKNOWLEDGED],
        downgraded_lost=counts[Outcome.DOWNGRADED],
    )
    differs: dict[str, int] = {}
    leader: _Tally | None = None
    for rows in members:
        sums = _tallied(attempts, rows)
        worst = {
            name: max(getattr(findings, name), getattr(sums, name)) for name in ("phantom", "duplicate", "corrupted")
        }
        findings = replace(findings, **worst)
        if leader is None:
            leader = sums
            findings = replace(
                findings,
                kept=sums.kept,
                lost=sums.lost,
                recovered=sums.recovered,
                downgraded_lost=sums.downgraded_lost,
                lost_from=sums.lost_from if sums.lost else None,
                lost_to=sums.lost_to if sums.lost else None,
            )
            findings = _witnessed(findings, rows, witness)
        else:
            differs[rows.member] = abs(sums.lost - leader.lost) + abs(sums.recovered - leader.recovered)
    return Judgement(findings, differs)


def _witnessed(findings: Findings, rows: Rows, witness: WitnessReport | None) -> Findings:
    """Add what the readers saw: staleness by standby, long forks, and rows seen on a leader that the survivor lacks."""
    if witness is None:
        return findings
    seen = np.array(sorted(set(witness.seen_on_leader)), dtype=np.int64).reshape(-1, 2)
    dirty = ~np.isin(keys(seen[:, 0].astype(np.int32), seen[:, 1]), keys(rows.writer, rows.number))
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
    for i, (server, timeline, first, last) in enumerate(spans):
        for other_server, other_timeline, other_first, other_last in spans[i + 1 :]:
            if timeline != other_timeline and (server != other_server or server == -1):
                longest = max(longest, min(last, other_last) - max(first, other_first))
    return longest


def _distinct(column: NDArray[np.int32] | NDArray[np.int16]) -> list[int]:
    """The distinct values of a column with few of them."""
    return [int(value) for value in np.unique(column)]


def _empty_names(attempts: Attempts) -> NDArray[np.bool_]:
    """Acknowledgements at a remote level given while no standby was named."""
    empty = [i for i, names in enumerate(attempts.standby_names) if not names.strip()]
    remote = [i for i, level in enumerate(Level) if level.remote]
    if not empty:
        return np.zeros(len(attempts), dtype=bool)
    without: NDArray[np.bool_] = np.isin(attempts.names, empty) & np.isin(attempts.level, remote)
    without &= attempts.outcome == Outcome.ACKNOWLEDGED
    return without


def not_in_effect_s(attempts: Attempts, until: float = float("inf")) -> float:
    """Seconds in which a remote level was acknowledged while the standby names were empty: it meant local.

    Only acknowledgements before `until` count. One alone counts as its own duration.
    """
    empty = _empty_names(attempts) & (attempts.ended < until)
    if not empty.any():
        return 0.0
    acknowledged = np.flatnonzero((attempts.outcome == Outcome.ACKNOWLEDGED) & (attempts.ended < until))
    order = acknowledged[np.argsort(attempts.ended[acknowledged], kind="stable")]
    at, without = attempts.ended[order], empty[order]
    both = without[1:] & without[:-1]
    alone = float((attempts.ended[empty] - attempts.started[empty]).max())
    return max(float(np.diff(at)[both].sum()), alone, 1e-6)
