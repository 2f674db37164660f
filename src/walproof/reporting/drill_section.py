"""Drills → sections: the survival matrix with its evidence, each level's account, recovery by part. Judges nothing."""

import re
from collections.abc import Sequence
from statistics import median

from walproof.model.guarantee import Level
from walproof.model.verdict import Drill, Verdict
from walproof.proving.matrix import COLUMNS, matrix
from walproof.proving.verdicts import bounds, controls
from walproof.reporting.outline import Bar, Bars, Block, Cell, Evidence, Figure, Part, Section, Table, columns, row
from walproof.reporting.wording import fault_words, percent, seconds, whole

_SAME = " under the same fault and load"
PARTS = ("detection", "promotion", "routing", "client")
_HOW = {
    "detection": "from the last acknowledgement until the old leader was no longer the leader",
    "promotion": "until there was a new leader",
    "routing": "until a client's attempt reached it",
    "client": "until that attempt was acknowledged",
}


def drill_sections(drills: Sequence[Drill]) -> tuple[Section, ...]:
    """Sections of what was proved; none without drills."""
    if not drills:
        return ()
    cells = _cells(drills)
    blocks: list[Block] = [survival(cells)]
    if sum(any(d.fault == name for d in drills) for name, _, _ in COLUMNS) >= 2:
        blocks.append(_manual(drills))
    blocks.append(_account(drills))
    says = "Each cell counts drills that held out of those decided; it leads to the evidence."
    made = [Section("survival", "What it survives", says, tuple(blocks))]
    recovery = _recovery(drills)
    made += [Section("recovery", "How long writes were away", "", (recovery,))] if recovery else []
    evidence = tuple(
        Evidence(_key(fault, level), f"{fault} at {level}", _worst(found), tuple(found))
        for (fault, level), found in cells.items()
    )
    made.append(Section("evidence", "Evidence, drill by drill", "Open a line to see its drills.", evidence))
    return tuple(made)


def _cells(drills: Sequence[Drill]) -> dict[tuple[str, Level], list[Drill]]:
    found: dict[tuple[str, Level], list[Drill]] = {}
    for drill in sorted(drills, key=lambda d: (d.fault, str(d.victim), d.level.strength, d.number)):
        found.setdefault((fault_words(drill), drill.level), []).append(drill)
    return found


def _key(fault: str, level: Level) -> str:
    return "cell-" + re.sub(r"[^a-z0-9]+", "-", f"{fault}-{level}".lower()).strip("-")


def _worst(found: Sequence[Drill]) -> Verdict:
    order = (Verdict.BROKEN, Verdict.HELD, Verdict.UNDECIDED, Verdict.SKIPPED)
    return next(v for v in order if any(d.verdict is v for d in found))


def survival(cells: dict[tuple[str, Level], list[Drill]]) -> Table:
    """The matrix fault × level."""
    levels = [level for level in Level if any(lv is level for _, lv in cells)]
    faults = list(dict.fromkeys(fault for fault, _ in cells))
    rows = tuple(row(fault, *(_cell(fault, lv, cells.get((fault, lv), [])) for lv in levels)) for fault in faults)
    return Table("matrix", "survival matrix", columns("fault", *levels), rows, kind="matrix")


def _cell(fault: str, level: Level, found: Sequence[Drill]) -> Cell:
    if not found:
        return Cell("not run", "quiet")
    worst = _worst(found)
    held = sum(d.verdict is Verdict.HELD for d in found)
    decided = held + sum(d.verdict is Verdict.BROKEN for d in found)
    key = _key(fault, level)
    if worst is Verdict.BROKEN:
        lost = sum(d.findings.lost for d in found)
        promised = any(d.promised for d in found if d.verdict is Verdict.BROKEN)
        words = f"{whole(lost)} lost" if lost else "broken"
        aside = ", against its promise" if promised else ", never promised" if found[0].promised is False else ""
        return Cell(f"✘ {held}/{decided} · {words}{aside}", "bad" if promised or not lost else "warn", key)
    if worst is Verdict.HELD:
        return Cell(f"✔ {held}/{decided}", "good", key)
    return Cell(f"{worst.mark} {worst}", "quiet", key)


def _manual(drills: Sequence[Drill]) -> Table:
    """PostgreSQL's own table with what was seen in each of its cells."""
    levels = [level for level in Level if any(d.level is level for d in drills)]
    found = matrix(drills, levels)
    rows = []
    for level in levels:
        cells = []
        for name, _, _ in COLUMNS:
            one = found[level][name]
            tone = "bad" if one.surprising else {"✔": "good", "✘": "warn"}.get(one.mark, "quiet")
            promise = "promised" if one.promised else "not promised"
            cells.append(Cell(f"{one.mark} {promise}; {one.evidence}", tone))
        rows.append(row(Cell(str(level), str(level)), *cells))
    heads = columns("level", *(words for _, words, _ in COLUMNS))
    return Table("manual", "the manual's table, as seen here", heads, tuple(rows), kind="matrix")


def _account(drills: Sequence[Drill]) -> Table:
    bound, control = bounds(drills), controls(drills)
    rows = []
    for level in sorted({d.level for d in drills}, key=lambda lv: lv.strength):
        mine = [d for d in drills if d.level is level]
        count = {v: sum(d.verdict is v for d in mine) for v in Verdict}
        mine_only = {fault: words for (fault, lv), words in control.items() if lv is level}
        shown = [f"{fault}: {w.removesuffix(_SAME)}" for fault, w in sorted(mine_only.items()) if w]
        weak = [fault for fault, words in sorted(mine_only.items()) if not words]
        shown += [f"weak proof for {', '.join(weak)}: nothing weaker lost anything there"] if weak else []
        lost = sum(d.findings.lost for d in mine)
        counts = [str(n) for n in (len(mine), count[Verdict.HELD], count[Verdict.BROKEN], count[Verdict.UNDECIDED])]
        sums = [whole(sum(getattr(d.findings, name) for d in mine)) for name in ("acknowledged", "recovered")]
        cells: list[Cell | str] = [Cell(str(level), str(level)), *counts, *sums, Cell(whole(lost), "warn" * bool(lost))]
        rows.append(row(*cells, percent(bound.get(str(level))), "; ".join(shown)))
    names = (
        "level", ">drills", ">held", ">broken", ">undecided", ">acknowledged", ">recovered", ">lost",
        ">loss probability under (95 %)", "positive control",
    )  # fmt: skip
    return Table("levels", "each level's account", columns(*names), tuple(rows))


def _recovery(drills: Sequence[Drill]) -> Figure | None:
    timed = [d for d in drills if d.rto_s is not None and d.verdict is not Verdict.SKIPPED]
    if not timed:
        return None
    bars, rows = [], []
    for fault in dict.fromkeys(fault_words(d) for d in timed):
        mine = [d for d in timed if fault_words(d) == fault]
        times = sorted(d.rto_s for d in mine if d.rto_s is not None)
        middle = {p: _middle([getattr(d.recovery, f"{p}_s") for d in mine]) for p in PARTS}
        parts = tuple(Part(p, s, f"{p} ({_HOW[p]}): {seconds(s)}") for p, s in middle.items() if s is not None)
        bars.append(Bar(fault, parts, median(times)))
        rows.append(
            row(fault, str(len(mine)), *(seconds(middle[p]) for p in PARTS), seconds(median(times)), seconds(times[-1]))
        )
    names = ("fault", ">drills", *(f">{p}" for p in PARTS), ">RTO, middle", ">RTO, worst")
    legend = tuple((f"{p}: {_HOW[p]}", f"part{i}") for i, p in enumerate(PARTS))
    table = Table("recovery", "outage by part, median over drills", columns(*names), tuple(rows))
    says = "From the last acknowledgement before a fault to the first after it; the mark is the median of the whole."
    return Figure("recovery-parts", "Outage by part", says, (Bars("by fault", "s", tuple(bars)),), legend, table)


def _middle(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None
