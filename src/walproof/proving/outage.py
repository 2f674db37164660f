"""The outage in the pace of acknowledgements, and which part of the recovery took how long. Pure; sees no cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts, Outcome
from walproof.model.topology import ClusterView
from walproof.model.verdict import Mark, Recovery


@dataclass(frozen=True, slots=True)
class Outage:
    """The longest silence that the fault can have caused: last acknowledgement before it, first one after it."""

    last_before: float
    first_after: float | None
    usual_gap_s: float
    """The longest silence before the fault, to compare with."""

    @property
    def seconds(self) -> float | None:
        """RTO as clients see it; None when no commit was acknowledged again."""
        return None if self.first_after is None else self.first_after - self.last_before


def acknowledged_at(attempts: Attempts) -> NDArray[np.float64]:
    """Times of success as told to clients, sorted, seconds since the epoch; downgraded ones are successes too."""
    told = (attempts.outcome == Outcome.ACKNOWLEDGED) | (attempts.outcome == Outcome.DOWNGRADED)
    return np.sort(attempts.ended[told])


def outage(
    told: NDArray[np.float64], fault_at: float, *, heal_at: float = float("inf"), stopped_at: float = 0.0
) -> Outage | None:
    """The longest silence that ends after the fault and begins before its healing; None without any success before.

    Answers still under way when the fault struck come after its moment and belong to before: the silence, not the
    fault's moment, is what is measured. `told` is sorted; `stopped_at` is when the writers were told to end.
    """
    if len(told) == 0 or told[0] > fault_at:
        return None
    begins, ends = told[:-1], told[1:]
    before = ends <= fault_at
    usual = float((ends - begins)[before].max()) if before.any() else 0.0
    last = float(told[-1])
    candidates = np.flatnonzero((ends > fault_at) & (begins < heal_at))
    if len(candidates) == 0:
        return Outage(last, None, usual)
    worst = candidates[int(np.argmax((ends - begins)[candidates]))]
    silence = float(ends[worst] - begins[worst])
    if stopped_at - last > max(silence, 1.0):
        return Outage(last, None, usual)
    return Outage(float(begins[worst]), float(ends[worst]), usual)


def pace(told: NDArray[np.float64], bins: int = 200) -> tuple[tuple[float, int], ...]:
    """Successes per bin of equal width over the whole drill: (start of the bin, count)."""
    if len(told) == 0:
        return ()
    width = max(0.1, float(told[-1] - told[0]) / bins)
    counts = np.bincount(((told - told[0]) / width).astype(np.int64))
    return tuple((float(told[0] + i * width), int(count)) for i, count in enumerate(counts))


def _first_started(attempts: Attempts, out: Outage) -> float | None:
    """When the attempt began that gave the first success after the silence."""
    if out.first_after is None:
        return None
    chosen = np.flatnonzero(attempts.ended == out.first_after)
    return float(attempts.started[chosen].min()) if len(chosen) else None


def split(
    attempts: Attempts,
    out: Outage,
    looks: Sequence[ClusterView],
    leader_before: str | None,
    elected_at: float | None = None,
) -> tuple[Recovery, tuple[Mark, ...]]:
    """RTO by part, which add up to it, and the marks of the picture.

    detection: last success to the moment the manager says it elected a successor, where it says so, else to the first
    look in which the old leader is not the leader; promotion: to the first look with a leader again; routing: to the
    start of the attempt that succeeded; client: to its success. A part that was not seen is None and its time goes to
    the next one that was.
    """
    marks = [Mark(out.last_before, "last acknowledgement", leader_before or "")]
    if out.first_after is None:
        return Recovery(), tuple(marks)
    within = [v for v in looks if out.last_before < v.at <= out.first_after]
    doubted = next((v.at for v in within if v.leader != leader_before), None)
    if elected_at is not None and out.last_before < elected_at <= out.first_after:
        doubted = elected_at
    promoted = next((v for v in within if v.leader and doubted is not None and v.at >= doubted), None)
    if promoted is not None and elected_at is not None and promoted.leader == leader_before:
        promoted = next((v for v in within if v.leader and v.leader != leader_before), None)
    started = _first_started(attempts, out)
    moments: list[tuple[str, float | None, str]] = [
        ("detection", doubted, leader_before or ""),
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
