"""Drills → sections: the survival matrix with its evidence, results per level, outages by part.

Judges nothing."""

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from walproof.model.drill import Drill, Verdict
from walproof.model.guarantee import Level
from walproof.model.units import and_undecided
from walproof.proving.campaign_results import by_recovery
from walproof.proving.loss_bounds import COLUMNS, bounds, controls, kind_of, matrix
from walproof.reporting.outline import (
    Bar,
    BarChart,
    Block,
    Cell,
    Evidence,
    Figure,
    Section,
    Segment,
    Table,
    columns,
    row,
)
from walproof.reporting.wording import (
    LOSS_BOUND,
    UNAVAILABLE,
    count,
    fault_name,
    finding_counts,
    outage_parts,
    outage_seconds,
    percent,
    seconds,
    verdict_name,
)

Cells = dict[tuple[str, Level], list[Drill]]


def drill_sections(drills: Sequence[Drill]) -> tuple[Section, ...]:
    """Sections of what was proved; none without drills."""
    if not drills:
        return ()
    cells = _cells(drills)
    blocks: list[Block] = [_survival_matrix(cells)]
    if sum(any(d.fault == name for d in drills) for name, _, _ in COLUMNS) >= 2:
        blocks.append(_documented(drills))
    blocks.append(_levels(drills))
    intro = "Each cell counts the drills that held among those decided, and links to its evidence."
    made = [Section("survival", "What it survives", intro, tuple(blocks))]
    away = _outage(drills)
    made += [Section("outage", "How long writes were away", "", (away,))] if away else []
    evidence = tuple(
        Evidence(cell.link, f"{fault} at {level}", _worst(of_cell), cell.tone, tuple(of_cell))
        for (fault, level), of_cell in cells.items()
        if (cell := _cell(fault, level, of_cell))
    )
    made.append(Section("evidence", "Evidence", "Open a line to see its drills.", evidence))
    return tuple(made)


def _cells(drills: Sequence[Drill]) -> Cells:
    cells: Cells = {}
    for drill in sorted(drills, key=lambda d: (d.fault, str(d.victim), d.level.strength, d.number)):
        cells.setdefault((fault_name(drill), drill.level), []).append(drill)
    return cells


def _key(fault: str, level: Level) -> str:
    return "cell-" + re.sub(r"[^a-z0-9]+", "-", f"{fault}-{level}".lower()).strip("-")


def _worst(drills: Sequence[Drill]) -> Verdict:
    order = (Verdict.BROKEN, Verdict.EXPECTED_LOSS, Verdict.HELD, Verdict.UNDECIDED, Verdict.SKIPPED)
    return next(v for v in order if any(d.verdict is v for d in drills))


def _survival_matrix(cells: Cells) -> Table:
    levels = [level for level in Level if any(lv is level for _, lv in cells)]
    faults = list(dict.fromkeys(fault for fault, _ in cells))
    rows = tuple(row(fault, *(_cell(fault, lv, cells.get((fault, lv), [])) for lv in levels)) for fault in faults)
    return Table("matrix", "survival matrix", columns("fault", *levels), rows, kind="matrix", page_only=True)


def _cell(fault: str, level: Level, drills: Sequence[Drill]) -> Cell:
    if not drills:
        return Cell("not run", "quiet")
    worst = _worst(drills)
    held = sum(d.verdict is Verdict.HELD for d in drills)
    others = [d for d in drills if d.verdict in (Verdict.BROKEN, Verdict.EXPECTED_LOSS)]
    left = and_undecided(sum(d.verdict is Verdict.UNDECIDED for d in drills))
    key = _key(fault, level)
    if others:
        lost = sum(d.findings.lost for d in drills)
        what = f"{count(lost)} lost" if lost else "broken"
        broken = worst is Verdict.BROKEN
        aside = ", guarantee violated" if broken and any(d.promised for d in others) else "" if broken else f", {worst}"
        return Cell(f"✘ {held}/{held + len(others)} · {what}{aside}{left}", "bad" if broken else "warn", key)
    return Cell(f"✔ {held}/{held}{left}", "good", key) if held else Cell(f"{worst.mark} {worst}", "quiet", key)


def _documented(drills: Sequence[Drill]) -> Table:
    """PostgreSQL's documented guarantees with what was observed for each."""
    levels = [level for level in Level if any(d.level is level for d in drills)]
    observed = matrix(drills, levels)
    rows = []
    for level in levels:
        cells = []
        for name, _, _ in COLUMNS:
            one = observed[level][name]
            tone = "bad" if one.surprising else {"✔": "good", "✘": "warn"}.get(one.mark, "quiet")
            guarantee = "guaranteed" if one.promised else "not guaranteed"
            cells.append(Cell(f"{one.mark} {guarantee}; {one.evidence}", tone))
        rows.append(row(Cell(str(level), str(level)), *cells))
    headings = [heading for _, heading, _ in COLUMNS]
    heads = columns("level", *headings, fold=headings)
    return Table("documented", "documented guarantees, as observed here", heads, tuple(rows), kind="matrix")


def _levels(drills: Sequence[Drill]) -> Table:
    """One row a kind of drill: drills of another fault, victim or loss say nothing about it."""
    control = controls(drills)
    rows = []
    for kind, bound in bounds(drills).items():
        of_kind = [d for d in drills if kind_of(d) == kind]
        lost = sum(d.findings.lost for d in of_kind)
        sums = (sum(d.findings.acknowledged for d in of_kind), sum(d.findings.recovered for d in of_kind))
        what = kind.what
        shown = (control[kind] or "none: weak proof") if kind in control else ""
        cells: list[Cell | str] = [what, Cell(str(kind.level), str(kind.level)), kind.loss]
        cells += [str(bound.drills), str(bound.losing), *map(count, sums)]
        upper = percent(bound.upper if bound.drills else None) + and_undecided(bound.undecided)
        rows.append(row(*cells, Cell(count(lost), "warn" if lost else ""), upper, shown))
    heads = columns(
        "fault", "level", "gone for good", ">drills", ">losing", ">acknowledged", ">recovered", ">lost",
        f">{LOSS_BOUND}", "positive control",
        drop=["acknowledged", "recovered"], letter=["gone for good"], aside=["positive control"],
        fold=["fault"],
    )  # fmt: skip
    return Table("levels", "results per fault and level", heads, tuple(rows))


_COUNTS = ("acknowledged", "lost", "downgraded", "unknown", "refused", "recovered")
_TONE = {Verdict.HELD: "good", Verdict.BROKEN: "bad", Verdict.SKIPPED: "quiet"}


def drill_table(drills: Sequence[Drill]) -> Table:
    """The drills one by one, for where evidence cannot be opened."""
    rows = []
    for d in drills:
        tone = _TONE.get(d.verdict, "warn")
        counts = finding_counts(d.findings)
        counted = [Cell(count(counts[name]), "" if counts[name] else "quiet") for name in _COUNTS]
        counted[1] = replace(counted[1], tone=tone if d.findings.lost else "")
        worst = d.writers_rto_s[2] if d.writers_rto_s else None
        times = [Cell(seconds(s), "" if s else "quiet") for s in (d.rto_s, worst, d.unavailable_s, d.rpo_s)]
        leaders = dict.fromkeys(name or "?" for name in (d.leader_before, d.leader_after))
        where = (str(d.number), fault_name(d), str(d.level), Cell(verdict_name(d), tone))
        rows.append(row(*where, *counted, *times, " → ".join(leaders), d.why))
    aside = (*_COUNTS[2:], "worst writer", "RPO")
    heads = columns(
        ">#", "fault", "level", "verdict", ">acked", *(f">{name}" for name in _COUNTS[1:]), ">RTO", ">worst writer",
        f">{UNAVAILABLE}", ">RPO", "leader", "why",
        line=["why"], aside=aside, drop=[UNAVAILABLE], fold=["fault"],
    )  # fmt: skip
    return Table("drills", "drills", heads, tuple(rows))


def _outage(drills: Sequence[Drill]) -> Figure | None:
    """One row of each fault, level and kind of recovery: a median over several of them is of none."""
    groups = by_recovery(drills)
    if not groups:
        return None
    named = outage_parts([d.recovery for of_group in groups.values() for d in of_group])
    several = len({back_by for _, _, back_by in groups}) > 1  # one for all stands with its bar alone
    bars, rows = [], []
    for (fault, level, back_by), of_group in groups.items():
        times = sorted(d.rto_s for d in of_group if d.rto_s is not None)
        parts = [outage_seconds(d.recovery) for d in of_group]
        middle = {p: _median([one[p] for one in parts]) for p in named}
        segments = tuple(Segment(p, s, f"{p} ({named[p]}): {seconds(s)}") for p, s in middle.items() if s is not None)
        bars.append(Bar(", ".join(filter(None, (f"{fault} at {level}", back_by))), segments, median(times)))
        named_by: list[Cell | str] = [fault, Cell(str(level), str(level)), *([back_by] * several), str(len(of_group))]
        writers = [d.writers_rto_s[2] for d in of_group if d.writers_rto_s]
        away = [d.unavailable_s for d in of_group if d.unavailable_s is not None]
        worst = (times[-1], max(writers, default=None), max(away, default=None))
        rows.append(row(*named_by, *(seconds(middle[p]) for p in named), seconds(median(times)), *map(seconds, worst)))
    names = (
        "fault", "level", *(["back by"] * several), ">drills", *(f">{p}" for p in named),
        ">RTO, median", ">RTO, worst", ">worst writer", f">{UNAVAILABLE}, worst",
    )  # fmt: skip
    drawn = dict.fromkeys(s.name for bar in bars for s in bar.segments)
    legend = tuple((f"{p}: {named[p]}", f"segment{i % 6}") for i, p in enumerate(drawn))
    table = Table("outage", "outage by part, median over drills", columns(*names), tuple(rows), page_only=True)
    caption = "From the last acknowledgement before it to the first of service that lasts; the mark is the median."
    return Figure("outage-parts", "Outage by part", caption, (BarChart("by fault", "s", tuple(bars)),), legend, table)


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None
