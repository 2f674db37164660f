"""The outage in the acknowledgements, its end, and which step of the recovery took how long. Pure.

By what clients saw, and by the steps of a failover that the manager shows: operator, lease, promotion, endpoint."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from walproof.model.drill import Findings, Mark, Recovery
from walproof.model.load import Attempts, Outcome
from walproof.model.topology import ClusterView
from walproof.model.units import counted

NOTICEABLE_S = 0.5
"""A pause shorter than this is no outage, however steady the service was before."""
_USUAL_TIMES, _USUAL_SHARE, _MOST_MORE_S = 5, 0.99, 2.0
"""A pause is one beyond so many times the pause that so many before the fault did not exceed, but at most so much more:
one hiccup before the fault, of a checkpoint for instance, must not hide an outage."""
_SUSTAINED_S = 1.0
"""Service that ends again sooner than this, or sooner than the next gap lasts, was a short return: no end of an outage.

A thawed leader acknowledges for a moment before its manager stops it: to a user the outage ends with the next leader.
"""

Gap = tuple[float, float]
"""The acknowledgement before it and the one after it, seconds since the epoch; infinite where none came."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The outage that a fault caused: last acknowledgement before it, first one of service that lasts after it."""

    last_before: float
    first_after: float | None
    noticeable_s: float
    """Gaps longer than this are no usual ones."""
    unavailable_s: float = 0.0
    """Every gap beyond the usual from the fault to the end: an outage that flaps adds up."""
    returns: tuple[tuple[float, float], ...] = ()
    """Short returns within it: first and last acknowledgement of each."""

    @property
    def seconds(self) -> float | None:
        """RTO as clients see it; None when no commit was acknowledged again."""
        return None if self.first_after is None else self.first_after - self.last_before


def acknowledged_at(attempts: Attempts) -> NDArray[np.float64]:
    """Times of success as clients saw it, sorted, seconds since the epoch; downgraded ones are successes too."""
    return np.sort(attempts.ended[_succeeded(attempts)])


def _succeeded(attempts: Attempts) -> NDArray[np.bool_]:
    succeeded: NDArray[np.bool_] = (attempts.outcome == Outcome.ACKNOWLEDGED) | (attempts.outcome == Outcome.DOWNGRADED)
    return succeeded


def outage(
    acknowledged: NDArray[np.float64], fault_at: float, *, stopped_at: float, cleared_at: float = float("inf")
) -> Outage | None:
    """The outage that begins before the fault was cleared and lasts longest; None without any success before it.

    Answers under way when the fault was injected come after its moment and belong to before: the gap, not the fault's
    moment, is what is measured. It ends when service lasts: gaps with a short return between them are one outage, and
    one after which less than a second was seen has no end. Where no gap is longer than usual, the longest one is given.
    `acknowledged` is sorted; `stopped_at`: when the writers were stopped.
    """
    if len(acknowledged) == 0 or acknowledged[0] > fault_at:
        return None
    beyond = _noticeable_s(acknowledged, fault_at)
    gaps = _gaps(acknowledged, fault_at, stopped_at, beyond)
    outages = _joined(gaps, stopped_at)
    if outages and stopped_at - outages[-1][-1][1] < _SUSTAINED_S:
        outages[-1][-1] = (outages[-1][-1][0], math.inf)
    worst = _caused(acknowledged, fault_at, cleared_at, outages)
    end = worst[-1][1]
    return Outage(
        worst[0][0],
        None if end == math.inf else end,
        beyond,
        float(sum(min(end, stopped_at) - begin for begin, end in gaps)),
        tuple((before[1], after[0]) for before, after in pairwise(worst)),
    )


def short_returns(out: Outage, acknowledged: NDArray[np.float64]) -> str:
    """What came back before service lasted, in a clause; "" where nothing did.

    >>> times = np.array([1.0, 9.0, 9.25, 20.0, 21.0])
    >>> short_returns(Outage(1.0, 20.0, 0.5, returns=((9.0, 9.25),)), times)
    '2 commits came back after 8.0 s, then none for 10.8 s'
    >>> short_returns(Outage(1.0, None, 0.5, returns=((9.0, 9.25), (20.0, 21.0))), times)
    '4 commits came back 2 times for a moment, then none'
    """
    if not out.returns:
        return ""
    many = sum(int(((acknowledged >= first) & (acknowledged <= last)).sum()) for first, last in out.returns)
    (first, _), (_, last) = out.returns[0], out.returns[-1]
    when = (
        f"after {first - out.last_before:.1f} s" if len(out.returns) == 1 else f"{len(out.returns)} times for a moment"
    )
    then = "none" if out.first_after is None else f"none for {out.first_after - last:.1f} s"
    return f"{counted(many, 'commit')} came back {when}, then {then}"


def _noticeable_s(acknowledged: NDArray[np.float64], fault_at: float) -> float:
    """Gaps longer than this are longer than usual."""
    gaps = np.diff(acknowledged[acknowledged <= fault_at])
    usual = float(np.quantile(gaps, _USUAL_SHARE)) if len(gaps) else 0.0
    return max(NOTICEABLE_S, min(_USUAL_TIMES * usual, usual + _MOST_MORE_S))


def _gaps(acknowledged: NDArray[np.float64], fault_at: float, stopped_at: float, beyond: float) -> list[Gap]:
    """Gaps after the fault longer than `beyond`, in order; the last one is endless where nothing came any more."""
    begins, ends = acknowledged[:-1], acknowledged[1:]
    chosen = np.flatnonzero((ends > fault_at) & (ends - begins > beyond))
    spans = list(zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True))
    last = float(acknowledged[-1])
    return [*spans, (last, math.inf)] if stopped_at - last > max(beyond, _SUSTAINED_S) else spans


def _joined(gaps: Sequence[Gap], stopped_at: float) -> list[list[Gap]]:
    """Gaps in order as outages: those with a short return between them are one. From the last to the first, because
    it is the whole outage after it that service must outlast.
    """
    outages: list[list[Gap]] = []
    for gap in reversed(gaps):
        begin, end = (outages[0][0][0], outages[0][-1][1]) if outages else (math.inf, math.inf)
        if begin - gap[1] < max(_SUSTAINED_S, min(end, stopped_at) - begin):
            outages[0].insert(0, gap)
        else:
            outages.insert(0, [gap])
    return outages


def _caused(
    acknowledged: NDArray[np.float64], fault_at: float, cleared_at: float, outages: Sequence[list[Gap]]
) -> list[Gap]:
    """The longest of the outages that the fault caused; where no gap is longer than usual, the longest there is."""
    caused = [gaps for gaps in outages if gaps[0][0] < cleared_at or gaps[-1][1] == math.inf]
    if not caused:
        begins, ends = acknowledged[:-1], acknowledged[1:]
        of_fault = (ends > fault_at) & (begins < cleared_at)
        caused = [[gap] for gap in zip(begins[of_fault].tolist(), ends[of_fault].tolist(), strict=True)]
    return max(caused, key=lambda gaps: gaps[-1][1] - gaps[0][0], default=[(float(acknowledged[-1]), math.inf)])


def writers_rto_s(
    attempts: Attempts, fault_at: float, *, stopped_at: float, cleared_at: float = float("inf")
) -> tuple[float, float, float] | None:
    """Outage of single writers, seconds: median, 95th percentile, worst; None where none had committed before.

    Each writer's is found as that of all together is, but its last success may come shortly before the end of the
    drill; infinite for one that committed before the fault and never again.
    """
    chosen = np.flatnonzero(_succeeded(attempts))
    order = chosen[np.lexsort((attempts.ended[chosen], attempts.writer[chosen]))]
    writer, ended = attempts.writer[order], attempts.ended[order]
    outages = []
    for at in np.split(ended, np.flatnonzero(np.diff(writer)) + 1):
        if len(at) and at[0] <= fault_at:
            gaps = _gaps(at, fault_at, stopped_at, _noticeable_s(at, fault_at))
            worst = _caused(at, fault_at, cleared_at, _joined(gaps, stopped_at))
            outages.append(worst[-1][1] - worst[0][0])
    times = np.sort(outages)
    if len(times) == 0:
        return None
    middle, late = (math.ceil(share * len(times)) - 1 for share in (0.5, 0.95))
    return float(times[middle]), float(times[late]), float(times[-1])


def rpo_s(findings: Findings, fault_at: float, last_before: float = 0.0) -> float:
    """From the oldest lost acknowledgement to the fault; 0 if nothing is lost.

    It ends with the last acknowledgement before the outage, or the newest lost one, where those came later: answers
    under way come after the fault's moment.

    >>> rpo_s(Findings(lost=2, lost_from=7.0, lost_to=8.0), 10.0), rpo_s(Findings(), 10.0)
    (3.0, 0.0)
    >>> rpo_s(Findings(lost=1, lost_from=10.25, lost_to=10.25), 10.0, last_before=10.5)
    0.25
    """
    if findings.lost_from is None or findings.lost_to is None:
        return 0.0
    return max(fault_at, last_before, findings.lost_to) - findings.lost_from


def pace(acknowledged: NDArray[np.float64], bins: int = 200) -> tuple[tuple[float, int], ...]:
    """Successes per bin of equal width over the whole drill: (start of the bin, count)."""
    if len(acknowledged) == 0:
        return ()
    width = max(0.1, float(acknowledged[-1] - acknowledged[0]) / bins)
    counts = np.bincount(((acknowledged - acknowledged[0]) / width).astype(np.int64))
    return tuple((float(acknowledged[0] + i * width), int(count)) for i, count in enumerate(counts))


def split(
    attempts: Attempts,
    out: Outage,
    views: Sequence[ClusterView],
    leader_before: str | None,
    elected_at: float | None = None,
) -> tuple[Recovery, tuple[Mark, ...]]:
    """RTO by part, which add up to it, and the marks of the picture.

    detection: last success to `elected_at`, when the manager elected a successor, or where that is not known to the
    first view in which the old leader does not lead; promotion: to the first view with a leader again, or restart where
    that is the old one; routing: to the start of the attempt that succeeded; client: to its success. A part that was
    not seen is None and its time goes to the next one that was.
    """
    if out.first_after is None:
        return _one_after_another(out, {}, leader_before)
    within = [v for v in views if out.last_before < v.at <= out.first_after]
    detected = next((v.at for v in within if v.leader != leader_before), None)
    if elected_at is not None and out.last_before < elected_at <= out.first_after:
        detected = elected_at
    since = [] if detected is None else [v for v in within if v.at >= detected]
    chosen = np.flatnonzero(attempts.ended == out.first_after)
    moments = {
        "detection": None if detected is None else Mark(detected, "detection", leader_before or ""),
        **_leads_again(since, leader_before),
        "routing": Mark(float(attempts.started[chosen].min()), "routing") if len(chosen) else None,
        "client": Mark(out.first_after, "first acknowledgement"),
    }
    return _one_after_another(out, moments, leader_before, at_once=("detection", "promotion", "restart", "client"))


def _one_after_another(
    out: Outage, moments: Mapping[str, Mark | None], leader_before: str | None, *, at_once: Sequence[str] = ()
) -> tuple[Recovery, tuple[Mark, ...]]:
    """The time of each part from the one before it, and the marks; parts `at_once` may come with the one before."""
    marks, lengths = [Mark(out.last_before, "last acknowledgement", leader_before or "")], {}
    for part, mark in moments.items():
        if mark is not None and (part in at_once or mark.at > marks[-1].at):
            lengths[f"{part}_s"] = mark.at - marks[-1].at
            marks.append(mark)
    return Recovery(**lengths), tuple(marks)


def split_by_steps(
    out: Outage, steps: Sequence[Mark], views: Sequence[ClusterView], leader_before: str | None
) -> tuple[Recovery, tuple[Mark, ...]] | None:
    """The parts, which add up to the RTO, and the marks of the picture; None where the manager showed no step.

    operator: last success until it named another target; lease: until that one took it; promotion: until SQL says that
    it leads, or restart where the old leader leads again; endpoint: until the write service leads to it; client: until
    the first success. A part not seen is None, and its time goes to the next one that was.
    """
    end = out.first_after
    if end is None:
        return None
    within = [step for step in steps if out.last_before < step.at <= end]
    if not within:
        return None
    moments = {
        "operator": next((s for s in within if s.what == "operator" and s.member != leader_before), None),
        "lease": next((s for s in within if s.what == "lease" and s.member != leader_before), None),
        **_leads_again([view for view in views if out.last_before < view.at <= end], leader_before),
        "endpoint": next((s for s in reversed(within) if s.what == "endpoint"), None),
        "client": Mark(end, "first acknowledgement"),
    }
    return _one_after_another(out, moments, leader_before)


def _leads_again(views: Sequence[ClusterView], leader_before: str | None) -> dict[str, Mark]:
    """Promotion: the first view with another leader; else restart: the first with the old one after one without."""
    without = next((view.at for view in views if view.leader is None), math.inf)
    other = next((view for view in views if view.leader not in (None, leader_before)), None)
    again = other or next((view for view in views if view.at > without and view.leader is not None), None)
    part = "promotion" if other else "restart"
    return {part: Mark(again.at, part, again.leader or "")} if again else {}


def as_clause(recovery: Recovery) -> str:
    """The parts in words, "" where the manager showed none.

    >>> as_clause(Recovery(promotion_s=4.0, client_s=2.0, operator_s=3.0, lease_s=0.25))
    'outage: operator 3.0 s, lease 0.2 s, promotion 4.0 s, client 2.0 s'
    """
    names = ("operator", "lease", "promotion", "restart", "endpoint", "client")
    parts = {part: getattr(recovery, f"{part}_s") for part in names}
    if not any(parts[part] is not None for part in ("operator", "lease", "endpoint")):
        return ""
    return "outage: " + ", ".join(f"{part} {s:.1f} s" for part, s in parts.items() if s is not None)
