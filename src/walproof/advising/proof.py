"""Whether drills decide what a configuration loses with the leader: held, broken or undecided, and why. Pure.

A drill decides for the level and the quorum that it was drilled with, and only where a leader was gone for good. That
one level held proves no other: a stronger one promises no less, and was not seen to keep it. What lost commits speaks
against every weaker promise that did not hold itself."""

from walproof.model.advice import DrillSummary, Evidence, PricedArm
from walproof.model.guarantee import Level


def waits_for_standby(arm: PricedArm) -> bool:
    """Whether its commits are on another member when they are acknowledged."""
    return arm.level.remote and arm.quorum > 0


def effective_level(arm: PricedArm) -> Level:
    """The level in effect: without standby names every remote level is local."""
    return Level.LOCAL if arm.level.remote and arm.quorum == 0 else arm.level


def leader_drills(evidence: Evidence, level: Level) -> tuple[DrillSummary, ...]:
    return tuple(d for d in evidence.drills if d.level is level and d.victim == "leader")


def _counts(drill: DrillSummary, arm: PricedArm) -> bool:
    """Whether it may speak of the arm at all: a simulated cluster tells nothing about a real one."""
    return arm.simulated or not drill.simulated


def _of_quorum(drill: DrillSummary, arm: PricedArm) -> bool:
    """Whether it was drilled with the arm's quorum; records that do not say count."""
    same = (drill.quorum_kind, drill.quorum) == (arm.quorum_kind, arm.quorum)
    return same or drill.quorum is None or not waits_for_standby(arm)


def _decides(drill: DrillSummary, arm: PricedArm) -> bool:
    return drill.decided > 0 and drill.at_risk and _of_quorum(drill, arm) and _counts(drill, arm)


def undecided(arm: PricedArm, evidence: Evidence) -> str:
    """Why no drill decides whether the arm loses commits with the leader, as a clause; "" where one does."""
    level = effective_level(arm)
    drills = leader_drills(evidence, level)
    if any(_decides(d, arm) for d in drills):
        return ""
    real = [d for d in drills if _counts(d, arm)]
    decided = [d for d in real if d.decided]
    if not drills:
        why = "was never drilled"
    elif not real:
        why = "was drilled on a simulated cluster only"
    elif not decided:
        why = "was drilled, and every drill was left undecided"
    elif not any(d.at_risk for d in decided):
        faults = ", ".join(dict.fromkeys(d.fault for d in decided))
        why = f"was drilled under {faults} only, where no leader was gone for good"
    else:
        quorums = ", ".join(dict.fromkeys(d.quorum_text for d in decided if d.at_risk))
        why = f"was drilled with {quorums}, never with {arm.quorum_kind} {arm.quorum}"
    return f"{level} {why}{_neighbours(arm, evidence)}"


def _neighbours(arm: PricedArm, evidence: Evidence) -> str:
    """What held at another level with the same quorum, and why that does not decide."""
    level = effective_level(arm)
    held = {d.level for d in evidence.drills if d.victim == "leader" and not d.broken and _decides(d, arm)}
    weaker = [one for one in held if one.remote and one.strength < level.strength]
    if weaker and waits_for_standby(arm):
        return f" ({max(weaker, key=lambda one: one.strength)} held, and {level} promises no less)"
    stronger = [one for one in held if one.strength > level.strength]
    return f" ({min(stronger, key=lambda one: one.strength)} held, and promises more)" if stronger else ""


def refuting(arm: PricedArm, evidence: Evidence) -> DrillSummary | None:
    """Drills that lost commits although what they were drilled with promises at least as much; None without any.

    A stronger level's loss counts where the arm's own did not hold.
    """
    own = undecided(arm, evidence) == ""
    for drill in evidence.drills:
        level = effective_level(arm)
        stronger = drill.level.remote and drill.level.strength > level.strength and not own
        as_much = drill.quorum is None or drill.quorum >= arm.quorum
        lost = drill.broken > 0 and drill.victim == "leader" and _counts(drill, arm)
        if lost and as_much and (drill.level is level or stronger):
            return drill
    return None


def drilled(arm: PricedArm, evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What decided drills of the arm's level and quorum found; drills of its level that decide nothing about it, and
    why.
    """
    decided: list[str] = []
    others: list[str] = []
    for drill in (d for d in evidence.drills if d.level is effective_level(arm)):
        if not _counts(drill, arm):
            others.append(f"simulated, not drilled: {drill.text}")
        elif not _of_quorum(drill, arm):
            others.append(f"with {drill.quorum_text} instead: {drill.text}")
        else:
            (decided if drill.decided else others).append(drill.text)
    return tuple(decided), tuple(others)
