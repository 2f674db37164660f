"""A record → its outline: conclusion first, caveats where they belong, environment and command last. Pure."""

import math
from collections.abc import Sequence

from walproof.model.drill import Drill, Verdict
from walproof.model.event import (
    ClaimJudged,
    Described,
    DrillDone,
    Event,
    FigureCompared,
    Told,
    is_simulated,
)
from walproof.model.guarantee import Level
from walproof.model.sample import Scenario
from walproof.model.units import and_undecided, counted
from walproof.pricing.estimates import ArmPrice, PriceTable, price_table
from walproof.proving.loss_bounds import worst_bounds
from walproof.records.reader import Record
from walproof.reporting.conclusion import sentences
from walproof.reporting.drill_section import drill_sections
from walproof.reporting.observe_section import observe_sections
from walproof.reporting.outline import Cell, Outline, Prose, Section, Table, columns, row
from walproof.reporting.price_section import price_sections
from walproof.reporting.wording import (
    LOSS_BOUND,
    NOT_KNOWN,
    bounded,
    count,
    interval,
    number,
    percent,
    ratio,
    ratio_heading,
    utc_time,
)

_GUARANTEES = {
    Level.OFF: "nothing after a crash",
    Level.LOCAL: "a crash of PostgreSQL on the leader",
    Level.REMOTE_WRITE: "loss of the leader, and a crash of PostgreSQL on the standby",
    Level.ON: "loss of the leader, and a power cut on the standby",
    Level.REMOTE_APPLY: "the same, and reads on that standby see the commit at once",
}
"""What a commit survives by PostgreSQL's documentation."""


def composed(record: Record) -> Outline:
    events = record.events
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    table = price_table(events)
    sections = (
        *claim_sections(events),
        *_summary(table, drills),
        *price_sections(events, table),
        *drill_sections(drills),
        *observe_sections(events),
        *_notes(events),
        *_environment(record),
    )
    simulated = ("Everything here is simulated: nothing was measured.",) if is_simulated(events) else ()
    return Outline(_title(record), _facts(record), sentences(events, table), (*simulated, *record.notices), sections)


def results(events: Sequence[Event], table: PriceTable | None = None) -> tuple[Section, ...]:
    """What came out, without what the page adds: a summary, notes, the environment; () of a record of nothing.

    `table`: the price table of these events where it is computed already, which takes long.
    """
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    priced = price_sections(events, table or price_table(events))
    return (*claim_sections(events), *priced, *drill_sections(drills), *observe_sections(events))


def _title(record: Record) -> str:
    titles = {
        "price": "What a commit costs",
        "prove": "What a commit survives",
        "study": "A published study, repeated",
        "observe": "What commits wait for",
    }
    return titles.get(record.started.verb if record.started else "", "What a commit costs, and what it survives")


def _facts(record: Record) -> tuple[tuple[str, str], ...]:
    first = record.started
    described = next((e.description for e in record.events if isinstance(e, Described)), None)
    return (
        *((("command", f"walproof {first.verb}"), ("started", utc_time(first.at))) if first else ()),
        *((("target", f"{described.target}, {counted(len(described.members), 'member')}"),) if described else ()),
        ("record", record.directory.name),
    )


def _summary(table: PriceTable, drills: Sequence[Drill]) -> tuple[Section, ...]:
    """Price and proof of each level side by side, at the most clients of the first scenario."""
    arms = [p for p in table.arms if p.scenario == table.arms[0].scenario and not (p.arm.mix or p.arm.label)]
    most = max((p.arm.clients for p in arms), default=0)
    by_level = {p.arm.level: p for p in reversed(arms) if p.arm.clients == most and p.arm.rate is None}
    levels = [level for level in Level if level in by_level or any(d.level is level for d in drills)]
    if not levels:
        return ()
    bound = worst_bounds(drills)
    caveats = any(p.caveats for p in by_level.values())
    names = ["level", "guaranteed to survive", *([f">{ratio_heading(table.baseline)}", ">p95 ms"] if arms else [])]
    names += [">drills", ">commits lost", f">{LOSS_BOUND}"] if drills else []
    names += ["caveats"] if caveats else []
    rows = []
    for lv in levels:
        cells: list[Cell | str] = [Cell(str(lv), str(lv)), _GUARANTEES[lv]]
        cells += _cost(by_level.get(lv)) if arms else ()
        cells += _proof(lv, drills, bound) if drills else ()
        cells += [Cell(", ".join(by_level[lv].caveats) if lv in by_level else "", "warn")] if caveats else []
        rows.append(row(*cells))
    where = f" ({arms[0].scenario.text})" if arms and arms[0].scenario != Scenario() else ""
    title = f"commit levels, with {counted(most, 'client')}{where}" if arms else "commit levels"
    return (Section("summary", "Summary", "", (Table("summary", title, columns(*names), tuple(rows)),)),)


def _cost(price: ArmPrice | None) -> tuple[Cell | str, ...]:
    if price is None or not math.isfinite(price.ratio.value):
        return NOT_KNOWN, NOT_KNOWN
    return ratio(price.ratio), bounded(price.latency.p95)


def _proof(level: Level, drills: Sequence[Drill], bound: dict[Level, float]) -> tuple[Cell | str, ...]:
    of_level = [d for d in drills if d.level is level]
    if not of_level:
        return NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
    lost = sum(d.findings.lost for d in of_level)
    violated = any(d.verdict is Verdict.BROKEN for d in of_level)
    tone = "good" if not lost else "bad" if violated else "warn"
    lost_cell = Cell(count(lost), tone if level in bound else "")
    left = and_undecided(sum(d.verdict is Verdict.UNDECIDED for d in of_level))
    return str(len(of_level)), lost_cell, percent(bound.get(level)) + left


def claim_sections(events: Sequence[Event]) -> tuple[Section, ...]:
    """Claims and figures of published studies against what was measured; () without claims."""
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    figures = [e for e in events if isinstance(e, FigureCompared)]
    if not claims:
        return ()
    tone = {"reproduced": "good", "not reproduced": "bad"}
    caveats = ("other than the study",) if any(c.caveats for c in claims) else ()
    rows = tuple(
        row(
            *(c.study, c.claim, c.paper, c.measured, Cell(c.verdict, tone.get(c.verdict, "quiet")), c.why),
            *(Cell("; ".join(c.caveats), "warn") for _ in caveats),
        )
        for c in claims
    )
    heads = columns(
        "study", "claim", "the paper's figure", "measured here", "verdict", "why", *caveats,
        title=["study"], line=["why", *caveats], fold=["claim", "the paper's figure", "measured here"],
    )  # fmt: skip
    tables = [Table("claims", "claims of the paper", heads, rows)]
    if figures:
        rows = tuple(
            row(
                *(f.figure, f.unit, number(f.paper), interval(f.measured)),
                *(Cell("; ".join(f.caveats), "warn") for _ in caveats),
            )
            for f in figures
        )
        heads = columns(
            "figure of the paper", "unit", ">the paper's figure", ">measured here (95 % CI)", *caveats,
            fold=["figure of the paper"], line=caveats,
        )  # fmt: skip
        tables.append(Table("figures", "figures of the paper and figures measured here", heads, rows))
    return (Section("studies", "Compared with the published figures", "", tuple(tables)),)


def _notes(events: Sequence[Event]) -> tuple[Section, ...]:
    notes = tuple(dict.fromkeys(e.text for e in events if isinstance(e, Told)))
    return (Section("notes", "Notes of the run", "", (Prose(notes),)),) if notes else ()


def _environment(record: Record) -> tuple[Section, ...]:
    described = next((e.description for e in reversed(record.events) if isinstance(e, Described)), None)
    first = record.started
    blocks: list[Prose | Table] = []
    if first:
        blocks.append(Prose((first.command,), code=True))
        options = (*first.question.items(), ("seed", first.seed), ("walproof", first.version))
        rows = tuple(row(str(k), str(v)) for k, v in options)
        blocks.append(Table("question", "options of the run", columns("option", "value"), rows))
    if described:
        facts = (row("members", ", ".join(described.members)), *(row(k, v) for k, v in described.facts.items()))
        blocks.append(Table("machine", "where it ran", columns("fact", "value"), facts))
        settings = tuple(row(k, v) for k, v in described.settings.items())
        blocks.append(Table("settings", "settings in effect", columns("parameter", "value"), settings))
    kept = tuple(row(p.name) for p in record.kept())
    blocks += [Table("files", "files kept in the record", columns("file"), kept)] if kept else []
    return (Section("environment", "Environment", "", tuple(blocks)),) if blocks else ()
