"""Drills with a guard against the same drills without: outages with intervals, and what was lost. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from walproof.estimating.binomial import upper_bound
from walproof.estimating.quantiles import median_interval
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.model.units import counted
from walproof.model.verdict import Drill, Victim


@dataclass(frozen=True, slots=True)
class Arm:
    """Decided drills of one arm: how many, the median outage in s with its interval, the worst, commits lost."""

    drills: int
    rto_s: Estimate
    worst_s: float
    lost: int
    loss_bound: float
    """Upper 95 % bound of the probability that a drill loses something."""


@dataclass(frozen=True, slots=True)
class GuardComparison:
    """One fault at one level, with a guard and without."""

    fault: str
    victim: Victim
    level: Level
    with_guard: Arm
    without: Arm


def compare_guard(drills: Sequence[Drill]) -> list[GuardComparison]:
    """Every fault, victim and level that has decided drills of both arms, in the order they were run."""
    decided = [d for d in drills if d.verdict.decided and d.rto_s is not None]
    found = []
    for fault, victim, level in dict.fromkeys((d.fault, d.victim, d.level) for d in decided):
        same = [d for d in decided if (d.fault, d.victim, d.level) == (fault, victim, level)]
        arms = [[d for d in same if d.guarded is guarded] for guarded in (True, False)]
        if all(arms):
            found.append(GuardComparison(fault, victim, level, _arm(arms[0]), _arm(arms[1])))
    return found


def _arm(drills: Sequence[Drill]) -> Arm:
    times = [d.rto_s for d in drills if d.rto_s is not None]
    losing = sum(d.findings.lost > 0 for d in drills)
    lost = sum(d.findings.lost for d in drills)
    return Arm(len(drills), median_interval(times), max(times), lost, upper_bound(losing, len(drills)))


def sentence(found: Sequence[GuardComparison]) -> str:
    """The comparison over all faults in one sentence, "" where nothing was compared."""
    if not found:
        return ""
    best = max(c.with_guard.worst_s for c in found)
    medians = sorted(c.with_guard.rto_s.value for c in found), sorted(c.without.rto_s.value for c in found)
    guarded, alone = (_range(values) for values in medians)
    lost = sum(c.with_guard.lost for c in found)
    losses = counted(lost, "acknowledged commit") if lost else "nothing acknowledged"
    return f"With a guard commits came back after {guarded} (worst {best:.1f} s) instead of {alone}; lost: {losses}."


def _range(values: Sequence[float]) -> str:
    low, high = f"{values[0]:.1f}", f"{values[-1]:.1f}"
    return f"{low} s" if low == high else f"{low} to {high} s"
