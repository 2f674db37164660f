"""A campaign in sentences: what each level kept, how sure that is, how long the outage was. Pure."""

from collections.abc import Sequence
from statistics import median

from walproof.estimating.binomial import upper_bound
from walproof.model.guarantee import Level
from walproof.model.units import counted
from walproof.model.verdict import Drill, Verdict
from walproof.proving.bounds import controls


def _of_level(level: Level, fault: str, drills: Sequence[Drill]) -> str:
    chosen = [d for d in drills if d.level is level and d.fault == fault]
    decided = [d for d in chosen if d.verdict.decided]
    if not decided:
        return f"{level} undecided" if chosen and chosen[0].verdict is Verdict.UNDECIDED else f"{level} skipped"
    losing = [d for d in decided if d.findings.lost]
    if losing:
        lost = sum(d.findings.lost for d in losing)
        where = "" if len(decided) == 1 else f" in {len(losing)} of {len(decided)} drills"
        expected = " (expected loss)" if all(d.promised is False for d in losing) else ""
        return f"{level} lost {counted(lost, 'acknowledged commit')}{where}{expected}"
    if any(d.verdict is Verdict.BROKEN for d in decided):
        return f"{level} broken: {next(d.why for d in decided if d.verdict is Verdict.BROKEN)}"
    bound = upper_bound(0, len(decided))
    return f"{level} lost nothing in {counted(len(decided), 'drill')} (loss in at most {bound:.0%} of drills)"


def conclusion(drills: Sequence[Drill]) -> str:
    """One sentence a fault, the median outage, and whether a weaker level lost in the same campaign."""
    sentences: list[str] = []
    weak = {key for key, control in controls(drills).items() if not control and key[1] is not Level.OFF}
    for fault in dict.fromkeys(d.fault for d in drills):
        levels = sorted({d.level for d in drills if d.fault == fault}, key=lambda level: level.strength)
        results = "; ".join(_of_level(level, fault, drills) for level in levels)
        times = [d.rto_s for d in drills if d.fault == fault and d.rto_s is not None and d.rto_s > 0.5]
        outage = f"; commits came back after {median(times):.1f} s (median)" if times else ""
        weakly = [str(level) for level in levels if (fault, level) in weak]
        control = f"; weak for {', '.join(weakly)}: no weaker level lost anything in this campaign" if weakly else ""
        sentences.append(f"{fault}: {results}{outage}{control}.")
    return " ".join(sentences)


def control_sentences(drills: Sequence[Drill]) -> list[str]:
    """The positive control of every level that held, for the record."""
    return [
        f"{level} held under {fault}: " + (control or "weak proof, no weaker level lost anything in this campaign")
        for (fault, level), control in controls(drills).items()
    ]
