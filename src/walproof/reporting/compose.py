"""A record → its outline: conclusion first, caveats where they belong, environment and command last. Pure."""

import math
from collections.abc import Sequence

from walproof.model.event import ClaimJudged, Described, DrillDone, Event, FigureCompared, Note
from walproof.model.guarantee import Level, Loss, survives
from walproof.model.verdict import Drill
from walproof.pricing.estimates import ArmPrice, PriceTable, price_table
from walproof.proving.verdicts import bounds
from walproof.records.reader import Record
from walproof.reporting.conclusion import sentences
from walproof.reporting.drill_section import drill_sections
from walproof.reporting.outline import Cell, Outline, Prose, Section, Table, columns, row
from walproof.reporting.price_section import price_sections
from walproof.reporting.wording import NOT_KNOWN, found, moment, number, percent, ratio, whole

_PROMISES = {
    Level.OFF: "nothing after a crash",
    Level.LOCAL: "a crash of PostgreSQL on the leader",
    Level.REMOTE_WRITE: "the leader gone, PostgreSQL crashed on the standby",
    Level.ON: "the leader gone, power cut on the standby",
    Level.REMOTE_APPLY: "the same, and seen by reads on that standby at once",
}


def composed(record: Record) -> Outline:
    """The outline of one record."""
    events = record.events
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    table = price_table(events)
    sections = (
        *_claims(events),
        *_glance(table, drills),
        *price_sections(events, table),
        *drill_sections(drills),
        *_notes(events),
        *_environment(record),
    )
    return Outline(
        _title(record), _facts(record), sentences(events, table), (*_simulated(events), *record.notices), sections
    )


def _title(record: Record) -> str:
    verb = record.started.verb if record.started else ""
    titles = {
        "price": "What a commit costs",
        "prove": "What a commit survives",
        "demo": "What a commit costs, and what it survives",
        "study": "A published study, repeated",
    }
    return titles.get(verb, "What a commit costs, and what it survives")


def _simulated(events: Sequence[Event]) -> tuple[str, ...]:
    described = next((e.description for e in events if isinstance(e, Described)), None)
    simulated = described is not None and described.facts.get("kind", "").startswith("simulated")
    return ("Everything here is simulated by the target called pretend: nothing was measured.",) if simulated else ()


def _facts(record: Record) -> tuple[str, ...]:
    begun = record.started
    described = next((e.description for e in record.events if isinstance(e, Described)), None)
    return (
        *((f"walproof {begun.verb}", moment(begun.at)) if begun else ()),
        *((f"target {described.target}", f"{len(described.members)} members") if described else ()),
        f"record {record.directory.name}",
    )


def _glance(table: PriceTable, drills: Sequence[Drill]) -> tuple[Section, ...]:
    """Price and proof of each level side by side, at the most clients of the first setting."""
    arms = [p for p in table.arms if p.scenario == table.arms[0].scenario and not (p.arm.mix or p.arm.label)]
    most = max((p.arm.clients for p in arms), default=0)
    by_level = {p.arm.level: p for p in reversed(arms) if p.arm.clients == most and p.arm.rate is None}
    levels = [level for level in Level if level in by_level or any(d.level is level for d in drills)]
    if not levels:
        return ()
    bound = bounds(drills)
    doubted = any(p.caveats for p in by_level.values())
    names = ["level", "promises to survive", *([f">of {table.baseline}'s throughput", ">p95 ms"] if arms else [])]
    names += [">drills", ">commits lost", ">loss probability under"] if drills else []
    names += ["caveats about the price"] if doubted else []
    rows = []
    for lv in levels:
        cells: list[Cell | str] = [Cell(str(lv), str(lv)), _PROMISES[lv]]
        cells += _cost(by_level.get(lv)) if arms else ()
        cells += _proof(lv, drills, bound) if drills else ()
        cells += [Cell(", ".join(by_level[lv].caveats) if lv in by_level else "", "warn")] if doubted else []
        rows.append(row(*cells))
    where = f" ({arms[0].scenario.text})" if arms and arms[0].scenario.text != "as it is" else ""
    title = f"the promises, with {most} clients{where}" if arms else "the promises"
    return (Section("glance", "At a glance", "", (Table("glance", title, columns(*names), tuple(rows)),)),)


def _cost(price: ArmPrice | None) -> tuple[Cell | str, ...]:
    if price is None or not math.isfinite(price.ratio.value):
        return NOT_KNOWN, NOT_KNOWN
    return ratio(price.ratio), number(price.latency.p95.value)


def _proof(level: Level, drills: Sequence[Drill], bound: dict[str, float]) -> tuple[Cell | str, ...]:
    mine = [d for d in drills if d.level is level]
    if not mine:
        return NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
    lost = sum(d.findings.lost for d in mine)
    against = any(d.promised for d in mine if d.findings.lost) or (lost and survives(level, Loss.LEADER_GONE))
    tone = "good" if not lost else "bad" if against else "warn"
    return str(len(mine)), Cell(whole(lost), tone if str(level) in bound else ""), percent(bound.get(str(level)))


def _claims(events: Sequence[Event]) -> tuple[Section, ...]:
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    figures = [e for e in events if isinstance(e, FigureCompared)]
    if not claims:
        return ()
    tone = {"reproduced": "good", "not reproduced": "bad"}
    rows = tuple(
        row(c.study, c.claim, c.paper, c.measured, Cell(c.verdict, tone.get(c.verdict, "quiet")), c.why) for c in claims
    )
    heads = columns("study", "claim", "the paper's figure", "measured here", "verdict", "why")
    tables = [Table("claims", "claims of the paper", heads, rows)]
    if figures:
        rows = tuple(row(f.figure, f.unit, number(f.paper), found(f.measured)) for f in figures)
        heads = columns("the paper's", "in", ">the paper's figure", ">measured here (95 %)")
        tables.append(Table("figures", "figures of the paper beside ours", heads, rows))
    return (Section("studies", "Beside the published figures", "", tuple(tables)),)


def _notes(events: Sequence[Event]) -> tuple[Section, ...]:
    notes = tuple(dict.fromkeys(e.text for e in events if isinstance(e, Note)))
    return (Section("notes", "Noted on the way", "", (Prose(notes),)),) if notes else ()


def _environment(record: Record) -> tuple[Section, ...]:
    described = next((e.description for e in reversed(record.events) if isinstance(e, Described)), None)
    begun = record.started
    blocks: list[Prose | Table] = []
    if begun:
        blocks.append(Prose((begun.command,), code=True))
        asked = tuple(row(str(k), str(v)) for k, v in begun.question.items())
        more = (row("seed", str(begun.seed)), row("walproof", begun.version))
        blocks.append(Table("question", "what was asked", columns("word", "value"), (*asked, *more)))
    if described:
        members = row("members", ", ".join(described.members))
        facts = (members, *(row(k, v) for k, v in described.facts.items()))
        blocks.append(Table("machine", "where it ran", columns("fact", "value"), facts))
        settings = tuple(row(k, v) for k, v in described.settings.items())
        blocks.append(Table("settings", "settings in effect", columns("parameter", "value"), settings))
    kept = tuple(row(p.name) for p in record.kept())
    blocks += [Table("files", "files kept in the record", columns("file"), kept)] if kept else []
    return (Section("environment", "Where it ran, and how to repeat it", "", tuple(blocks)),) if blocks else ()
