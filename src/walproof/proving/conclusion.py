"""A campaign in sentences: what each level kept, how sure that is, how long the outage was. Pure."""

from collections.abc import Sequence
from statistics import median

from walproof.model.guarantee import Level
from walproof.model.units import and_undecided, counted
from walproof.model.verdict import Drill, Verdict
from walproof.proving.bounds import Kind, bounds, clean_sentence, controls
from walproof.proving.guard_comparison import compare_guard, sentence

_NOTICEABLE_S = 0.5


def _of_level(level: Level, fault: str, drills: Sequence[Drill]) -> str:
    chosen = [d for d in drills if d.level is level and d.fault == fault]
    decided = [d for d in chosen if d.verdict.decided]
    if not decided:
        return f"{level} undecided" if any(d.verdict is Verdict.UNDECIDED for d in chosen) else f"{level} skipped"
    losing = [d for d in decided if d.findings.lost]
    left = and_undecided(sum(d.verdict is Verdict.UNDECIDED for d in chosen))
    if losing:
        lost = sum(d.findings.lost for d in losing)
        where = "" if len(decided) == 1 else f" in {len(losing)} of {len(decided)} drills"
        expected = " (expected loss)" if all(d.verdict is Verdict.EXPECTED_LOSS for d in losing) else ""
        return f"{level} lost {counted(lost, 'acknowledged commit')}{where}{expected}{left}"
    if any(d.verdict is Verdict.BROKEN for d in decided):
        return f"{level} broken: {next(d.why for d in decided if d.verdict is Verdict.BROKEN)}{left}"
    clean = {kind: clean_sentence(bound) for kind, bound in bounds(chosen).items() if bound.drills}
    if len(clean) == 1:
        return f"{level} lost {next(iter(clean.values()))}"
    return f"{level} lost " + " and ".join(f"{text} of {_what(kind)}" for kind, text in clean.items())


def _what(kind: Kind) -> str:
    return f"{kind.victim.named} ({kind.loss})" if kind.loss else kind.victim.named


def conclusion(drills: Sequence[Drill]) -> str:
    """One sentence a fault, the median outage, and whether a weaker level lost in the same campaign."""
    sentences: list[str] = []
    weak = {(kind.fault, kind.level) for kind, control in controls(drills).items() if not control}
    for fault in dict.fromkeys(d.fault for d in drills):
        levels = sorted({d.level for d in drills if d.fault == fault}, key=lambda level: level.strength)
        results = "; ".join(_of_level(level, fault, drills) for level in levels)
        decided = [d for d in drills if d.fault == fault and d.verdict.decided]
        times = [d.rto_s for d in decided if d.rto_s is not None and d.rto_s > _NOTICEABLE_S]
        outage = f"; commits came back after {median(times):.1f} s (median)" if times else ""
        weakly = [str(level) for level in levels if (fault, level) in weak]
        control = f"; weak for {', '.join(weakly)}: no weaker level lost anything in this campaign" if weakly else ""
        sentences.append(f"{fault}: {results}{outage}{control}.")
    compared = sentence(compare_guard(drills))
    return " ".join([*([compared] if compared else []), *sentences])


def control_sentences(drills: Sequence[Drill]) -> list[str]:
    """The positive control of every level that held, for the record."""
    return [
        f"{kind.level} held under {kind.fault} of {_what(kind)}: "
        + (control or "weak proof, no weaker level lost anything in this campaign")
        for kind, control in controls(drills).items()
    ]
