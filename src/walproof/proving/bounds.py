"""What clean drills say about the probability of a loss, and which weaker level lost in the same campaign. Pure."""

from collections.abc import Iterable, Mapping

from walproof.estimating.binomial import upper_bound
from walproof.model.guarantee import Level
from walproof.model.verdict import Drill, Verdict


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
        if drill.verdict.decided:
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
