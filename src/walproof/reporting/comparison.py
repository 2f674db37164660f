"""Several records side by side → an outline: what was changed, what came out differently, and whether that is real."""

import math
from collections.abc import Sequence
from statistics import median

from walproof.estimating.intervals import BETWEEN_RUNS, change, shares_differ, shifted
from walproof.estimating.observed_waits import Cause, observation
from walproof.model.drill import Drill, Verdict
from walproof.model.estimate import Caveat, Estimate
from walproof.model.event import Described, DrillDone
from walproof.model.observed_waits import WaitsSeen
from walproof.model.sample import Arm, Scenario
from walproof.model.units import and_undecided
from walproof.pricing.estimates import UNKNOWN, ArmPrice, PriceTable, price_table
from walproof.proving.campaign_results import back_after
from walproof.records.reader import Record
from walproof.reporting.conclusion import sentences
from walproof.reporting.observe_section import seen_of
from walproof.reporting.outline import Cell, Outline, Prose, Section, Table, columns, row
from walproof.reporting.wording import (
    NOT_KNOWN,
    arm_name,
    count,
    fault_name,
    interval,
    percent,
    ratio,
    seconds,
    workload_name,
)


def compared(records: Sequence[Record]) -> Outline:
    """The outline of a comparison; every record is compared with the first."""
    names = _names(records)
    tables = [price_table(r.events) for r in records]
    prices = _prices(names, tables)
    drills = _drills(names, [[e.drill for e in r.events if isinstance(e, DrillDone)] for r in records])
    waits = _waits(names, [seen_of(r.events) for r in records])
    each = tuple(f"{n}: {' '.join(sentences(r.events, t))}" for n, r, t in zip(names, records, tables, strict=True))
    notices = tuple(f"{n}: {notice}" for n, r in zip(names, records, strict=True) for notice in r.notices)
    sections = (
        *prices,
        *drills,
        *waits,
        *_differences(names, records),
        Section("records", "Each record by itself", "", (Prose(each),)),
    )
    facts = tuple(("record", name) for name in names)
    return Outline(f"{len(records)} records side by side", facts, _conclusion(prices, drills, waits), notices, sections)


def _names(records: Sequence[Record]) -> list[str]:
    """A short name for each record, its directory; a number is added where two are called the same."""
    plain = [r.directory.resolve().name for r in records]
    return [n if plain.count(n) == 1 else f"{n} ({i})" for i, n in enumerate(plain, 1)]


def _prices(names: Sequence[str], tables: Sequence[PriceTable]) -> tuple[Section, ...]:
    by_arm: list[dict[tuple[Scenario, Arm], ArmPrice]] = [{(p.scenario, p.arm): p for p in t.arms} for t in tables]
    arms = list(dict.fromkeys(key for prices in by_arm for key in prices))
    if not arms:
        return ()
    rows = []
    for key in arms:
        of_arm = [prices.get(key) for prices in by_arm]
        first = next(p for p in of_arm if p is not None)
        cells: list[Cell | str] = [Cell(arm_name(first), str(first.arm.level)), str(first.arm.clients)]
        cells += [f"{first.scenario.text}, {workload_name(first)}"]
        cells += [NOT_KNOWN if p is None else _price(p) for p in of_arm]
        rows.append(row(*cells, *(_change(of_arm[0], p, len(arms) * (len(tables) - 1)) for p in of_arm[1:])))
    heads = columns("level", ">clients", "scenario", *(f">{n}" for n in names), *(f"{n}: change" for n in names[1:]))
    baseline = tables[0].baseline
    intro = (
        f"Throughput ratio to {baseline} in the same block, so that a faster or busier machine does not count "
        f"as a change; for {baseline} itself transactions per second. "
        "Intervals hold for all comparisons at once (95 %). One run each does not show how much runs of one thing "
        f"differ: assumed are {percent(BETWEEN_RUNS['ratio'])} for a ratio and {percent(BETWEEN_RUNS['tps'])} for "
        "transactions per second (one standard deviation)."
    )
    return (Section("prices", "What it costs, side by side", intro, (Table("prices", "prices", heads, tuple(rows)),)),)


def _is_baseline(price: ArmPrice) -> bool:
    return price.ratio.low == price.ratio.high == 1.0


def _price(price: ArmPrice) -> str:
    return f"{interval(price.tps)} tps" if _is_baseline(price) else ratio(price.ratio)


def _change(before: ArmPrice | None, after: ArmPrice | None, among: int) -> Cell:
    if before is None or after is None:
        return Cell("only in one", "quiet")
    if Caveat.OTHER_LEVEL in (*before.caveats, *after.caveats):
        return Cell(str(Caveat.OTHER_LEVEL), "quiet")
    if _is_baseline(before) or _is_baseline(after):
        factor = change(before.tps, after.tps, among, BETWEEN_RUNS["tps"])
    else:
        factor = change(before.ratio, after.ratio, among, BETWEEN_RUNS["ratio"])
    few = "too few blocks to say" if before.blocks < 2 or after.blocks < 2 else ""
    return _changed(factor, Cell("faster", "good"), Cell("slower", "bad"), few)


def _changed(factor: Estimate, larger: Cell, smaller: Cell, few: str = "") -> Cell:
    """A factor with its interval, and whether that is real; few: why that cannot be said."""
    if not math.isfinite(factor.value):
        return Cell(NOT_KNOWN, "quiet")
    said = larger if factor.value > 1 else smaller
    if few or factor.covers(1.0):
        said = Cell(few or "no real difference", "quiet")
    text = f"{factor.value - 1:+.1%} ({factor.low - 1:+.1%} to {factor.high - 1:+.1%})"
    return Cell(f"{text}: {said.text}", said.tone)


def _waits(names: Sequence[str], seen: Sequence[Sequence[WaitsSeen]]) -> tuple[Section, ...]:
    """Milliseconds per commit of several observations; () where fewer than two observed."""
    if sum(map(bool, seen)) < 2:
        return ()
    whole, longer, shorter = "a commit itself, in all", Cell("longer", "bad"), Cell("shorter", "good")
    waits = [{whole: (of := observation(one)).commit_wait_ms, **of.causes_ms} if one else {} for one in seen]
    among, between = (1 + len(Cause)) * (len(seen) - 1), BETWEEN_RUNS["latency"]
    rows = []
    for what in (whole, *Cause):
        ms = [one.get(what, UNKNOWN) for one in waits]
        changes = [_changed(change(ms[0], one, among, between), longer, shorter) for one in ms[1:]]
        rows.append(row(str(what), *map(interval, ms), *changes))
    heads = columns("what is waited for, ms", *(f">{n}" for n in names), *(f"{n}: change" for n in names[1:]))
    intro = (
        "Milliseconds per commit. Intervals of changes hold for all comparisons at once (95 %), "
        f"and between runs of one thing a standard deviation of {percent(between)} is assumed."
    )
    table = Table("waits", "waits per commit", heads, tuple(rows))
    return (Section("waits", "What commits wait for, side by side", intro, (table,)),)


def _drills(names: Sequence[str], drills: Sequence[Sequence[Drill]]) -> tuple[Section, ...]:
    cells = {(fault_name(d), d.level) for of_record in drills for d in of_record if d.verdict.decided}
    if not cells:
        return ()
    rows, alpha = [], 0.05 / (len(cells) * (len(names) - 1))
    for fault, level in sorted(cells, key=lambda c: (c[0], c[1].strength)):
        of_cell = [[d for d in of_record if (fault_name(d), d.level) == (fault, level)] for of_record in drills]
        first, *others = ([d for d in one if d.verdict.decided] for one in of_cell)
        differences = [_drill_change(first, one, alpha) for one in others]
        rows.append(row(fault, Cell(str(level), str(level)), *map(_losses, of_cell), *differences))
    heads = columns("fault", "level", *names, *(f"{n}: change" for n in names[1:]))
    intro = (
        "Losses are compared by Fisher's exact test, outages by Mann and Whitney's; both at 95 % over all rows at once."
    )
    table = Table("drills", "losses and outages", heads, tuple(rows))
    return (Section("drills", "What it survives, side by side", intro, (table,)),)


def _losses(drills: Sequence[Drill]) -> str:
    decided = [d for d in drills if d.verdict.decided]
    left = and_undecided(sum(d.verdict is Verdict.UNDECIDED for d in drills))
    if not decided:
        return f"{NOT_KNOWN}{left}"
    losing = sum(d.findings.lost > 0 for d in decided)
    lost = f"lost in {losing} of {len(decided)} ({count(sum(d.findings.lost for d in decided))})"
    return f"{lost}{left}, RTO {back_after(decided) or NOT_KNOWN}"


def _drill_change(before: Sequence[Drill], after: Sequence[Drill], alpha: float) -> Cell:
    if not before or not after:
        return Cell("only in one", "quiet")
    losing = [(sum(d.findings.lost > 0 for d in drills), len(drills)) for drills in (before, after)]
    times = [[d.rto_s for d in drills if d.rto_s is not None] for drills in (before, after)]
    changes, tone = [], "quiet"
    if shares_differ(losing[0], losing[1], alpha):
        worse = losing[1][0] * losing[0][1] > losing[0][0] * losing[1][1]
        changes.append("loses more often" if worse else "loses less often")
        tone = "bad" if worse else "good"
    if shifted(times[0], times[1], alpha):
        longer_s = median(times[1]) - median(times[0])
        changes.append(f"outage {'longer' if longer_s > 0 else 'shorter'} by {seconds(abs(longer_s))}")
        tone = "bad" if longer_s > 0 and tone != "good" else tone if tone != "quiet" else "good"
    few = min(len(before), len(after)) < 4
    return Cell("; ".join(changes) or ("too few drills to say" if few else "no real difference"), tone)


def _differences(names: Sequence[str], records: Sequence[Record]) -> tuple[Section, ...]:
    """Options, machine and settings: only what differs."""
    facts = [_facts(r) for r in records]
    keys = [k for k in dict.fromkeys(k for one in facts for k in one) if len({one.get(k) for one in facts}) > 1]
    if not keys:
        return (Section("changed", "What was changed", "Nothing that the records know of.", ()),)
    rows = tuple(row(k, *(one.get(k, NOT_KNOWN) for one in facts)) for k in keys)
    table = Table("changed", "what differs", columns("fact", *names), rows)
    return (Section("changed", "What was changed", "", (table,)),)


def _facts(record: Record) -> dict[str, str]:
    described = next((e.description for e in reversed(record.events) if isinstance(e, Described)), None)
    first = record.started
    facts = {"command": first.command, "seed": str(first.seed)} if first else {}
    facts |= {f"option {k}": str(v) for k, v in first.question.items()} if first else {}
    facts["walproof"] = first.version if first else record.written_by
    if described:
        facts |= {"target": described.target, "members": ", ".join(described.members)}
        facts |= dict(described.facts) | {f"setting {k}": v for k, v in described.settings.items()}
    return facts


def _conclusion(prices: Sequence[Section], drills: Sequence[Section], waits: Sequence[Section]) -> tuple[str, ...]:
    summary = []
    for what, sections in (("price", prices), ("survival", drills), ("commit wait", waits)):
        rows = [cells for s in sections for block in s.blocks if isinstance(block, Table) for cells in block.rows]
        marked = [c for cells in rows for c in cells if c.tone in ("good", "bad")]
        if not rows:
            continue
        if not marked:
            summary.append(f"No {what} changed beyond chance ({len(rows)} compared).")
            continue
        worse, better = (sum(c.tone == tone for c in marked) for tone in ("bad", "good"))
        changed = [f"{n} {direction}" for n, direction in ((worse, "worse"), (better, "better")) if n]
        summary.append(f"{what.capitalize()}, {len(rows)} compared: {' and '.join(changed)} beyond chance.")
    return tuple(summary) or ("The records have nothing in common that could be compared.",)
