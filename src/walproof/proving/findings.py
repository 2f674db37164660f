"""The ledger against what each member holds: kept, lost, recovered, divergent, phantom; and what readers saw. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts, Outcome
from walproof.model.load import WitnessReport
from walproof.model.verdict import Findings
from walproof.proving.order import lost_out_of_order
from walproof.proving.reading import MemberReading, keys, lost_rows

_NO_READERS = WitnessReport({})


def judged(attempts: Attempts, readings: Sequence[MemberReading], witness: WitnessReport = _NO_READERS) -> Findings:
    """Counts of a ledger. Kept and lost are judged on the surviving leader, whose reading comes first.

    Phantom, duplicate and corrupted rows are those of the worst member. Without any reading nothing is lost.
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
    lost = lost_rows(attempts, leader)
    times = attempts.ended[lost]
    findings = replace(
        findings,
        kept=findings.acknowledged - int(lost.sum()),
        lost=int(lost.sum()),
        recovered=int(((attempts.outcome == Outcome.UNKNOWN) & leader.present).sum()),
        downgraded_lost=int(((attempts.outcome == Outcome.DOWNGRADED) & ~leader.present).sum()),
        lost_from=float(times.min()) if len(times) else None,
        lost_to=float(times.max()) if len(times) else None,
        out_of_order=int(lost_out_of_order(attempts, leader).sum()),
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
    """The distinct values of a column with few of them."""
    return [int(value) for value in np.unique(column)]
