"""From findings to a verdict with its weight: held, broken or undecided; promised or not; the bound of clean drills."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from walproof.estimating.binomial import upper_bound
from walproof.model.guarantee import Level, Loss, survives
from walproof.model.verdict import Drill, Findings, Verdict


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that must be true for a drill to mean anything, and the reason to give when it is not."""

    name: str
    holds: bool
    failure: str
    invalidates_loss: bool = True
    """Whether a loss that was found means nothing either when it does not hold."""


def promised(level: Level, loss: Loss | None) -> bool | None:
    """Whether the level is documented to survive the loss; None when nothing is at risk."""
    return None if loss is None else survives(level, loss)


def violations(findings: Findings) -> list[str]:
    """What contradicts "no acknowledged commit is lost and no row is invented", each in a clause."""
    counted = (
        (findings.lost, "acknowledged commit lost", "acknowledged commits lost"),
        (findings.corrupted, "row corrupted", "rows corrupted"),
        (findings.duplicate, "row duplicate", "rows duplicate"),
        (findings.phantom, "phantom row", "phantom rows"),
        (findings.broken_freshness, "acknowledged row not visible at once", "acknowledged rows not visible at once"),
    )
    clauses = [f"{count:,} {one if count == 1 else many}" for count, one, many in counted if count]
    if findings.two_leaders_s > 0:
        clauses.append(f"two leaders acknowledged at once for {findings.two_leaders_s:.1f} s")
    return clauses


def decided(findings: Findings, assumptions: Iterable[Assumption], promise: bool | None) -> tuple[Verdict, str]:
    """The verdict and one sentence why; a failed assumption makes it undecided.

    Acknowledged commits lost are BROKEN at every level; where the level does not promise to keep them, the sentence
    calls it an expected loss.
    """
    failed = [a for a in assumptions if not a.holds]
    invalidating = [a.failure for a in failed if a.invalidates_loss]
    if invalidating:
        return Verdict.UNDECIDED, "; ".join(invalidating)
    reasons = [a.failure for a in failed]
    found = violations(findings)
    if findings.lost and promise is False:
        lost, *others = found
        expected = f"expected loss: {lost}, which this level does not promise to keep"
        return Verdict.BROKEN, "; ".join([expected, *others, *reasons])
    if found:
        promises = ["the level promises to keep them"] if findings.lost and promise else []
        return Verdict.BROKEN, "; ".join([", ".join(found), *promises, *reasons])
    if failed:
        return Verdict.UNDECIDED, "; ".join(reasons)
    return Verdict.HELD, f"all {findings.acknowledged:,} acknowledged commits are there"


def drills_for(bound: float) -> int:
    """How many clean drills allow that bound.

    >>> drills_for(0.05), drills_for(0.26)
    (59, 10)
    """
    drills = 1
    while upper_bound(0, drills) > bound:
        drills += 1
    return drills


def bounds(drills: Iterable[Drill]) -> dict[str, float]:
    """Upper 95 % bound on the probability of a loss per level, over every decided drill of a campaign."""
    counted: dict[str, tuple[int, int]] = {}
    for drill in drills:
        if drill.verdict in (Verdict.HELD, Verdict.BROKEN):
            total, losing = counted.get(str(drill.level), (0, 0))
            counted[str(drill.level)] = (total + 1, losing + (drill.findings.lost > 0))
    return {level: upper_bound(losing, total) for level, (total, losing) in counted.items()}


def controls(drills: Iterable[Drill]) -> Mapping[tuple[str, Level], str]:
    """Per fault and level that held everywhere: which weaker level lost in the same campaign, "" when none (weak)."""
    drills = list(drills)
    losers: dict[str, list[Drill]] = {}
    for drill in drills:
        if drill.findings.lost:
            losers.setdefault(drill.fault, []).append(drill)
    found: dict[tuple[str, Level], str] = {}
    for drill in drills:
        key = (drill.fault, drill.level)
        if drill.verdict is not Verdict.HELD or any(d.level is drill.level for d in losers.get(drill.fault, [])):
            continue
        weaker = [d for d in losers.get(drill.fault, []) if d.level.strength < drill.level.strength]
        best = max(weaker, key=lambda d: d.level.strength, default=None)
        found[key] = "" if best is None else f"{best.level} lost {best.findings.lost:,} under the same fault and load"
    return found
