"""The outage in the acknowledgements, and which part of the recovery took how long. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts, Outcome
from walproof.model.topology import ClusterView
from walproof.model.verdict import Mark, Recovery


@dataclass(frozen=True, slots=True)
class Outage:
    """The longest gap that the fault can have caused: last acknowledgement before it, first one after it."""

    last_before: float
    first_after: float | None
    usual_gap_s: float
    """The longest gap before the fault, to compare with."""

    @property
    def seconds(self) -> float | None:
        """RTO as clients see it; None when no commit was acknowledged again."""
        return None if self.first_after is None else self.first_after - self.last_before


def acknowledged_at(attempts: Attempts) -> NDArray[np.float64]:
    """Times of success as clients saw it, sorted, seconds since the epoch; downgraded ones are successes too."""
    success = (attempts.outcome == Outcome.ACKNOWLEDGED) | (attempts.outcome == Outcome.DOWNGRADED)
    return np.sort(attempts.ended[success])


def outage(
    acknowledged: NDArray[np.float64], fault_at: float, *, cleared_at: float = float("inf"), stopped_at: float = 0.0
) -> Outage | None:
    """The longest gap that ends after the fault and starts before it was cleared; None without any success before.

    Answers under way when the fault was injected come after its moment and belong to before: the gap, not the fault's
    moment, is what is measured. `acknowledged` is sorted; `stopped_at` is when the writers were stopped.
    """
    if len(acknowledged) == 0 or acknowledged[0] > fault_at:
        return None
    begins, ends = acknowledged[:-1], acknowledged[1:]
    before = ends <= fault_at
    usual = float((ends - begins)[before].max()) if before.any() else 0.0
    last = float(acknowledged[-1])
    candidates = np.flatnonzero((ends > fault_at) & (begins < cleared_at))
    if len(candidates) == 0:
        return Outage(last, None, usual)
    worst = candidates[int(np.argmax((ends - begins)[candidates]))]
    gap = float(ends[worst] - begins[worst])
    if stopped_at - last > max(gap, 1.0):
        return Outage(last, None, usual)
    return Outage(float(begins[worst]), float(ends[worst]), usual)


def pace(acknowledged: NDArray[np.float64], bins: int = 200) -> tuple[tuple[float, int], ...]:
    """Successes per bin of equal width over the whole drill: (start of the bin, count)."""
    if len(acknowledged) == 0:
        return ()
    width = max(0.1, float(acknowledged[-1] - acknowledged[0]) / bins)
    counts = np.bincount(((acknowledged - acknowledged[0]) / width).astype(np.int64))
    return tuple((float(acknowledged[0] + i * width), int(count)) for i, count in enumerate(counts))


def _first_started(attempts: Attempts, out: Outage) -> float | None:
    """When the attempt started that gave the first success after the gap."""
    if out.first_after is None:
        return None
    chosen = np.flatnonzero(attempts.ended == out.first_after)
    return float(attempts.started[chosen].min()) if len(chosen) else None


def split(
    attempts: Attempts,
    out: Outage,
    views: Sequence[ClusterView],
    leader_before: str | None,
    elected_at: float | None = None,
) -> tuple[Recovery, tuple[Mark, ...]]:
    """RTO by part, which add up to it, and the marks of the picture.

    detection: last success to `elected_at`, when the manager elected a successor, or where that is not known to the
    first view in which the old leader does not lead; promotion: to the first view with a leader again; routing: to the
    start of the attempt that succeeded; client: to its success. A part that was not seen is None and its time goes to
    the next one that was.
    """
    marks = [Mark(out.last_before, "last acknowledgement", leader_before or "")]
    if out.first_after is None:
        return Recovery(), tuple(marks)
    within = [v for v in views if out.last_before < v.at <= out.first_after]
    detected = next((v.at for v in within if v.leader != leader_before), None)
    if elected_at is not None and out.last_before < elected_at <= out.first_after:
        detected = elected_at
    promoted = next((v for v in within if v.leader and detected is not None and v.at >= detected), None)
    if promoted is not None and elected_at is not None and promoted.leader == leader_before:
        promoted = next((v for v in within if v.leader and v.leader != leader_before), None)
    started = _first_started(attempts, out)
    moments: list[tuple[str, float | None, str]] = [
        ("detection", detected, leader_before or ""),
        ("promotion", promoted.at if promoted else None, (promoted.leader or "") if promoted else ""),
        ("routing", started, ""),
        ("client", out.first_after, ""),
    ]
    lengths: dict[str, float | None] = {}
    reached = out.last_before
    for name, at, member in moments:
        if at is None or (name == "routing" and at <= reached):
            lengths[name] = None
            continue
        lengths[name] = at - reached
        reached = at
        marks.append(Mark(at, "first acknowledgement" if name == "client" else name, member))
    return Recovery(lengths["detection"], lengths["promotion"], lengths["routing"], lengths["client"]), tuple(marks)
