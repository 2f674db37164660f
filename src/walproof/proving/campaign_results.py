"""A campaign in sentences and as the object that `walproof prove --json` prints. Pure.

What each level kept, how sure that is, and how long the outage was."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from walproof.model.drill import Drill, Verdict
from walproof.model.guarantee import Level
from walproof.model.units import and_undecided, counted
from walproof.proving.gate import Gate, exceeded
from walproof.proving.loss_bounds import Kind, bounds, clean_sentence, controls, kind_of, matrix, worst_bounds
from walproof.proving.options import ProveOptions
from walproof.proving.outage import NOTICEABLE_S


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{low} s" if low == high else f"{low} to {high} s"


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


def by_recovery(drills: Iterable[Drill]) -> dict[tuple[str, Level, str], list[Drill]]:
    """Decided drills with an outage by fault with its victim, level, and how writes came back: one median is of one."""
    decided = [d for d in drills if d.verdict.decided and d.rto_s is not None]
    groups: dict[tuple[str, Level, str], list[Drill]] = {}
    for drill in sorted(decided, key=lambda d: (kind_of(d).what, d.level.strength, d.back_by)):
        groups.setdefault((kind_of(drill).what, drill.level, drill.back_by), []).append(drill)
    return groups


_MOST_MEDIANS = 4
"""More of them are given as a range for each fault."""


def back_after(drills: Iterable[Drill]) -> str:
    """Median outages beyond the usual gap with the number of drills, and the worst of several; "" where there was none.

    Each is named by what it differs in from the others. Many are a range of medians for each fault.
    """
    groups = {
        group: times
        for group, of_group in by_recovery(drills).items()
        if (times := [d.rto_s for d in of_group if d.rto_s is not None and d.rto_s > NOTICEABLE_S])
    }
    if not groups:
        return ""
    differs = [len(set(column)) > 1 for column in zip(*groups, strict=True)]
    many = len(groups) > _MOST_MEDIANS
    shown: dict[tuple[str, ...], list[list[float]]] = {}
    for group, times in groups.items():
        parts = group[:1] if many else group
        named = tuple(str(part) for part, differing in zip(parts, differs, strict=False) if differing and part)
        shown.setdefault(named, []).append(times)
    texts = []
    for named, of_name in shown.items():
        drills_of = counted(sum(map(len, of_name)), "drill")
        middle = f"median{'s' * many} of {drills_of}" if any(len(times) > 1 for times in of_name) else drills_of
        texts.append(f"{_range([median(times) for times in of_name])} ({', '.join((*named, middle))})")
    how = "; medians by level and kind of recovery" if many else ""
    several = any(len(times) > 1 for times in groups.values())
    worst = f"{';' if many else ','} {max(map(max, groups.values())):.1f} s at worst" if several or many else ""
    return ", ".join(texts) + how + worst


def conclusion(drills: Sequence[Drill]) -> str:
    """One sentence a fault, the outages, and whether a weaker level lost in the same campaign."""
    sentences: list[str] = []
    weak = {(kind.fault, kind.level) for kind, control in controls(drills).items() if not control}
    for fault in dict.fromkeys(d.fault for d in drills):
        levels = sorted({d.level for d in drills if d.fault == fault}, key=lambda level: level.strength)
        results = "; ".join(_of_level(level, fault, drills) for level in levels)
        took = back_after([d for d in drills if d.fault == fault])
        outage = f"; commits came back after {took}" if took else ""
        weakly = [str(level) for level in levels if (fault, level) in weak]
        control = f"; weak for {', '.join(weakly)}: no weaker level lost anything in this campaign" if weakly else ""
        sentences.append(f"{fault}: {results}{outage}{control}.")
    return " ".join(sentences)


def control_sentences(drills: Sequence[Drill]) -> list[str]:
    """The positive control of every level that held, for the record."""
    return [
        f"{kind.level} held under {kind.fault} of {_what(kind)}: "
        + (control or "weak proof, no weaker level lost anything in this campaign")
        for kind, control in controls(drills).items()
    ]


_COUNTS = ("acknowledged", "downgraded", "unknown", "refused", "lost", "recovered")
_KEYS = (
    "fault", "level", *_COUNTS, "rto_s", "rpo_s", "leader_before", "leader_after", "timeline_before", "timeline_after",
    "verdict", "why", "number", "victim", "victims", "loss", "unavailable_s", "writers_rto_s", "writers", "guarded",
    "strikes", "route", "promised", "recovery", "findings", "assumptions", "evidence", "marks",
)  # fmt: skip


def drill_as_json(drill: Drill) -> dict[str, Any]:
    """The keys of the schema first, then everything else that is known."""
    whole = asdict(drill)
    every = {**whole, **{name: whole["findings"][name] for name in _COUNTS}}
    return {name: every[name] for name in _KEYS}


def drills_as_json(drills: Sequence[Drill], record: str | None) -> dict[str, Any]:
    """{"record", "drills", "loss_bound", "bounds"}; a bound is one object a kind of drill: level, fault, victim, …."""
    return {
        "record": record,
        "drills": [drill_as_json(drill) for drill in drills],
        "loss_bound": worst_bounds(drills),
        "bounds": [{**asdict(kind), **asdict(bound)} for kind, bound in bounds(drills).items()],
    }


def answer_as_json(
    options: ProveOptions, drills: Sequence[Drill], record: str | None, limits: Gate | None = None
) -> dict[str, Any]:
    """{"record", "drills", "loss_bound", …}."""
    answer: dict[str, Any] = {
        **drills_as_json(drills, record),
        "positive_control": {
            f"{kind.what} {kind.level}": control or None for kind, control in controls(drills).items()
        },
        "conclusion": conclusion(drills),
    }
    if options.matrix:
        table = matrix(drills, options.levels)
        answer["matrix"] = {str(lv): {c: asdict(one) for c, one in row.items()} for lv, row in table.items()}
    if limits is not None:
        answer["exceeded"] = [f"drill {d.number}: {over}" for d in drills if (over := exceeded(limits, d))]
    return answer
