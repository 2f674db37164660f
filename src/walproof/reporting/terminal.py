"""A record's events as tables for the terminal. Lays out; the numbers are pricing's and proving's."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from walproof.model.estimate import Estimate
from walproof.model.event import ClaimJudged, DrillDone, Event, SearchStep, SliceDone
from walproof.model.verdict import Drill, Verdict
from walproof.pricing.anatomy import Anatomy, anatomies
from walproof.pricing.estimates import ArmPrice, price_table
from walproof.proving.verdicts import bounds, controls
from walproof.reporting.as_json import price_json, prove_json
from walproof.reporting.conclusion import conclusion
from walproof.reporting.outline import Outline
from walproof.reporting.outline import Table as Told
from walproof.reporting.wording import (
    arm_words,
    fault_words,
    number,
    percent,
    place_words,
    plus_minus,
    ratio,
    seconds,
    whole,
)  # fmt: skip

__all__ = [
    "conclusion",
    "outline_tables",
    "price_json",
    "price_tables",
    "prove_json",
    "prove_tables",
    "study_tables",
    "tables",
]

_STYLE = {Verdict.HELD: "green", Verdict.BROKEN: "bold red", Verdict.UNDECIDED: "yellow", Verdict.SKIPPED: "dim"}
_CLAIM = {"reproduced": "green", "not reproduced": "bold red"}


def tables(events: Sequence[Event]) -> list[RenderableType]:
    """Everything the events hold."""
    return [*price_tables(events), *prove_tables(events), *study_tables(events)]


def price_tables(events: Sequence[Event]) -> list[RenderableType]:
    """A table per setting, the anatomy of a commit, and the steps of searches; empty when nothing was priced."""
    if not any(isinstance(e, SliceDone | SearchStep) for e in events):
        return []
    table = price_table(events)
    made = [_prices(list(arms), str(table.baseline)) for _, arms in groupby(table.arms, key=lambda p: p.setting)]
    found = anatomies(events)
    made += [_anatomies(found)] if found else []
    steps = [e for e in events if isinstance(e, SearchStep)]
    made += [_searches(steps)] if steps else []
    return list(made)


def _table(title: str) -> Table:
    """A table without lines, which fits a terminal of 80 columns."""
    return Table(
        title=escape(title), title_justify="left", title_style="bold", caption_justify="left", box=None, pad_edge=False
    )


def _prices(arms: Sequence[ArmPrice], baseline: str) -> Table:
    places = list(dict.fromkeys(place_words(p) for p in arms))
    blocks = sorted({p.blocks for p in arms})
    counted = f"{blocks[0]} blocks" if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]} blocks"
    where = places[0] if len(places) == 1 else "several workloads"
    table = _table(f"price · {arms[0].setting.text} · {where} · {counted}")
    table.add_column("level", no_wrap=True)
    table.add_column("clients", justify="right")
    if len(places) > 1:
        table.add_column("of")
    for name in ("tps", "±", f"of {baseline} (95 %)", "p50 ms", "p95", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("doubts", style="yellow")
    legend = _legend(arms)
    for price in arms:
        place = [place_words(price)] if len(places) > 1 else []
        latency = price.latency
        row = [
            arm_words(price),
            str(price.arm.clients),
            *place,
            whole(price.tps.value),
            _share(price.tps),
            ratio(price.ratio),
        ]
        row += [number(e.value, 2) for e in (latency.p50, latency.p95, latency.p99)]
        table.add_row(*(Text(c) for c in (*row, "".join(legend[d] for d in price.doubts if d in legend))))
        for one in price.classes:
            values = (one.latency.p50, one.latency.p95, one.latency.p99)
            cells = [f"  {one.level}", "", *([""] if place else []), whole(one.tps.value), _share(one.tps), ""]
            table.add_row(*(Text(c) for c in (*cells, *(number(e.value, 2) for e in values), "")), style="dim")
    everywhere = [d for d in arms[0].doubts if all(d in p.doubts for p in arms)] if len(arms) > 1 else []
    said = [f"everywhere: {', '.join(everywhere)}"] if everywhere else []
    table.caption = "; ".join([*said, *(f"{letter}: {doubt}" for doubt, letter in legend.items())]) or None
    return table


def _legend(arms: Sequence[ArmPrice]) -> dict[str, str]:
    """A letter for each doubt that some arms have and others have not."""
    found = dict.fromkeys(str(d) for p in arms for d in p.doubts)
    some = [d for d in found if len(arms) == 1 or not all(d in p.doubts for p in arms)]
    return dict(zip(some, "abcdefghijklmnopqrstuvwxyz", strict=False))


def _share(estimate: Estimate) -> str:
    """Half of the interval's width as a share of the value."""
    return percent(estimate.half_width / estimate.value) if estimate.value else "–"


def _anatomies(found: Sequence[Anatomy]) -> Table:
    """Parts downwards, one column per level and number of clients: few columns fit where many parts do not."""
    table = _table("anatomy of a commit, ms")
    settings = dict.fromkeys(a.setting.text for a in found)
    table.add_column("part", no_wrap=True)
    for one in found:
        where = f"\n{one.setting.text}" if len(settings) > 1 else ""
        table.add_column(f"{one.level}, {one.clients}{where}", justify="right")
    for part in dict.fromkeys(part.name for a in found for part in a.parts):
        known = [{p.name: plus_minus(p.ms) for p in one.parts}.get(part, "") for one in found]
        table.add_row(*(Text(c) for c in (part, *known)))
    table.add_row("sum", *(number(one.sum_ms) for one in found), style="dim")
    table.add_row("measured", *(plus_minus(one.measured) for one in found), style="bold")
    return table


def _searches(steps: Sequence[SearchStep]) -> Table:
    table = _table("searches")
    for name in ("search", "tried", "found (95 %)", "so"):
        table.add_column(name)
    for step in steps:
        tried = ", ".join(f"{name} {value}" for name, value in step.tried.items())
        found = f"{number(step.value)} ({number(step.low)}–{number(step.high)})"
        table.add_row(*(Text(c) for c in (step.search, tried, found, step.conclusion)))
    return table


def prove_tables(events: Sequence[Event]) -> list[RenderableType]:
    """The drills one by one, why each was judged so, then each level's account; empty without drills."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    return [_drills(drills), _reasons(drills), _account(drills)] if drills else []


def _drills(drills: Sequence[Drill]) -> Table:
    counted = ("acked", "lost", "unknown", "recovered", "rto", "rpo")
    table = _table("drills")
    for name in ("#", "fault", "level", "verdict", *counted, "leader"):
        table.add_column(name, justify="right" if name in ("#", *counted) else "left", no_wrap=name != "fault")
    for drill in drills:
        found = drill.findings
        verdict = Text(f"{drill.verdict.mark} {drill.verdict}", style=_STYLE[drill.verdict])
        lost = Text(whole(found.lost), style="bold red" if found.lost else "")
        leaders = [name or "?" for name in (drill.leader_before, drill.leader_after)]
        moved = leaders[0] if leaders[0] == leaders[1] else " → ".join(leaders)
        first = [str(drill.number), fault_words(drill), str(drill.level)]
        counts = [whole(n) for n in (found.unknown, found.recovered)]
        cells: list[str | Text] = [*first, verdict, whole(found.acknowledged), lost, *counts]
        cells += [seconds(drill.rto_s), seconds(drill.rpo_s), moved]
        table.add_row(*(Text(c) if isinstance(c, str) else c for c in cells))
    return table


def _reasons(drills: Sequence[Drill]) -> Text:
    """Why, one line a drill; drills with the same words share a line."""
    said: dict[str, list[str]] = {}
    for drill in drills:
        said.setdefault(drill.why, []).append(str(drill.number))
    return Text("\n".join(f"{', '.join(numbers)}: {why}" for why, numbers in said.items()) + "\n", style="dim")


def _account(drills: Sequence[Drill]) -> Table:
    table = _table("what each level survived")
    table.add_column("level", no_wrap=True)
    for name in ("drills", "held", "broken", "undecided", "lost", "loss under (95 %)"):
        table.add_column(name, justify="right")
    table.add_column("positive control")
    bound, control = bounds(drills), controls(drills)
    for level in sorted({d.level for d in drills}, key=lambda lv: lv.strength):
        mine = [d for d in drills if d.level is level]
        count = {v: sum(d.verdict is v for d in mine) for v in Verdict}
        counts = [len(mine), count[Verdict.HELD], count[Verdict.BROKEN], count[Verdict.UNDECIDED]]
        shown = [words or f"none under {fault}: weak" for (fault, lv), words in control.items() if lv is level]
        lost = sum(d.findings.lost for d in mine)
        cells = [str(level), *(str(c) for c in counts), whole(lost), percent(bound.get(str(level))), "; ".join(shown)]
        table.add_row(*(Text(c) for c in cells))
    return table


def study_tables(events: Sequence[Event]) -> list[RenderableType]:
    """Claims of published studies beside what was measured; empty without claims."""
    claims = [e for e in events if isinstance(e, ClaimJudged)]
    if not claims:
        return []
    table = Table(title="published claims", title_justify="left", title_style="bold", show_lines=True)
    for name in ("study", "claim", "paper", "measured here", "verdict", "why"):
        table.add_column(name, overflow="fold")
    for claim in claims:
        verdict = Text(claim.verdict, style=_CLAIM.get(claim.verdict, "yellow"))
        words = (claim.study, claim.claim, claim.paper, claim.measured)
        table.add_row(*(Text(w) for w in words), verdict, Text(claim.why))
    return [table]


def outline_tables(outline: Outline) -> list[RenderableType]:
    """The tables of an outline, as for a comparison."""
    style = {"good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim"}
    made: list[RenderableType] = []
    for block in (b for section in outline.sections for b in section.blocks if isinstance(b, Told)):
        table = Table(title=escape(block.title), title_justify="left")
        for column in block.columns:
            table.add_column(escape(column.name), justify="right" if column.numeric else "left", overflow="fold")
        for cells in block.rows:
            table.add_row(*(Text(cell.text, style=style.get(cell.tone, "")) for cell in cells))
        made.append(table)
    return made
