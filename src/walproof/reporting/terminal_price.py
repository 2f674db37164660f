"""Prices, breakdown and searches as tables for the terminal, also a narrow one. Lays out; the numbers are pricing's."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from walproof.model.estimate import Estimate
from walproof.model.event import Event, SampleDone, SearchStep
from walproof.model.units import counted
from walproof.pricing.estimates import ArmPrice, PriceTable, price_table
from walproof.pricing.latency_breakdown import Breakdown, breakdowns
from walproof.pricing.soak import Stretch, stretches
from walproof.reporting.offered_load import OFFERED_TITLE, offered_rows
from walproof.reporting.price_section import breakdown_rows, latency_rows
from walproof.reporting.search_section import tried_text
from walproof.reporting.soak_section import HEADS, soak_rows
from walproof.reporting.stall_table import TITLE, stall_rows
from walproof.reporting.table_width import Fitting, table, with_lines
from walproof.reporting.wording import arm_name, interval, latencies, plus_minus, ratio, ratio_heading, workload_name


def price_tables(events: Sequence[Event]) -> list[RenderableType]:
    """A table per scenario, the commit latency breakdown, and the steps of searches; empty when nothing was priced."""
    if not any(isinstance(e, SampleDone | SearchStep) for e in events):
        return []
    found = price_table(events)
    made = [
        _prices(list(arms), str(found.baseline))
        for _, arms in groupby(found.arms, key=lambda p: (p.scenario, workload_name(p)))
    ]
    made += [_latencies(found), _stalls(found)] if found.arms else []
    made += [_offered(found)] if any(p.arm.rate for p in found.arms) else []
    soaked = stretches(events)
    made += [_soak(soaked)] if soaked else []
    parts = breakdowns(events)
    made += [_breakdowns(parts)] if parts else []
    steps = [e for e in events if isinstance(e, SearchStep)]
    made += [_searches(steps)] if steps else []
    return made


def _prices(arms: Sequence[ArmPrice], baseline: str) -> RenderableType:
    title = f"price · {arms[0].scenario.text} · {workload_name(arms[0])}"
    kinds = list(dict.fromkeys(caveat for p in arms for caveat in p.caveats))
    letters = {caveat: "abcdefghijklmnop"[i % 16] for i, caveat in enumerate(kinds)}
    blocks = {p.blocks for p in arms}
    wide, narrow = [], []
    for p in arms:
        first: list[str | Text] = [arm_name(p), str(p.arm.clients), plus_minus(p.tps), ratio(p.ratio)]
        short = Text("".join(letters[d] for d in p.caveats), style="yellow")
        wide.append([*first, *latencies(p.latency), str(p.blocks), Text(", ".join(p.caveats), style="yellow")])
        narrow.append([*first, *latencies(p.latency)[1:], short])
        for one in p.classes:
            mixed: list[str | Text] = [Text(f"  {one.level}", style="dim"), "", plus_minus(one.tps), ""]
            wide.append([*mixed, *latencies(one.latency), "", ""])
            narrow.append([*mixed, *latencies(one.latency)[1:], ""])
    against = ratio_heading(baseline)
    heads = ("level", ">clients", ">tps", f">{against}", ">mean ms", ">p50", ">p95", ">p99", ">blocks", "caveats")
    two_lines = against.replace(" (", "\n(")
    narrow_heads = ("level", ">n", ">tps", f">{two_lines}", ">p50", ">p95", ">p99", "caveat")
    some = f"{min(blocks)}" if len(blocks) == 1 else f"{min(blocks)} to {max(blocks)}"
    notes = [f"n: clients; p50, p95, p99: latency in ms; from {some} blocks"]
    notes += ["caveats: " + "; ".join(f"{letter} {caveat}" for caveat, letter in letters.items())] if kinds else []
    return Fitting(table(title, heads, wide), with_lines(table(title, narrow_heads, narrow), notes, "dim"))


def _first_shown(rows: Sequence[Sequence[str]]) -> int:
    """The first column to show: the scenario, unless it is the same in every row."""
    return 0 if len({row[0] for row in rows}) > 1 else 1


def _latencies(found: PriceTable) -> RenderableType:
    """Percentiles with their intervals; on a narrow terminal without mean and median."""
    heads, rows = latency_rows(found.arms)
    first = _first_shown(rows)
    wide = table("latency (95 % CI)", heads[first:], [row[first:] for row in rows])
    narrow = [[*row[first:3], *row[5:]] for row in rows]
    return Fitting(wide, table("latency (95 % CI)", (*heads[first:3], *heads[5:]), narrow))


def _stalls(found: PriceTable) -> RenderableType:
    heads, rows = stall_rows(found)
    first = _first_shown(rows)
    title = f"{TITLE} per transaction"
    wide = table(title, heads[first:], [row[first:] for row in rows])
    narrow = [[*row[first:3], *row[4:-1]] for row in rows]
    return Fitting(wide, table(title, (*heads[first:3], *heads[4:-1]), narrow))


def _offered(found: PriceTable) -> RenderableType:
    heads, rows = offered_rows(found)
    first = _first_shown([row for _, row in rows])
    narrow = [[*row[first:2], *(cell.partition(" ")[0] for cell in row[2:])] for _, row in rows]
    short = (*heads[first:2], ">n", *(head.removesuffix(" tps").removesuffix(" ms") for head in heads[3:]))
    wide = table(OFFERED_TITLE, heads[first:], [row[first:] for _, row in rows])
    return Fitting(wide, table(f"{OFFERED_TITLE}, tps and ms", short, narrow))


def _soak(found: Sequence[Stretch]) -> RenderableType:
    rows = soak_rows(found)
    heads = ("level", *(f">{row[0]}" for row in rows))
    upright = [[head.removeprefix(">"), *(row[i] for row in rows)] for i, head in enumerate(HEADS) if i]
    return Fitting(table("the soak", HEADS, rows), table("the soak", heads, upright))


def _breakdowns(found: Sequence[Breakdown]) -> RenderableType:
    narrow = [_upright(list(group)) for _, group in groupby(found, key=lambda a: (a.scenario, a.level))]
    return Fitting(table("commit latency breakdown, ms", *breakdown_rows(found)), Group(*narrow))


def _upright(found: Sequence[Breakdown]) -> RenderableType:
    """A breakdown with a row a part and a column a number of clients."""
    names, rows = breakdown_rows(found)
    heads = ("part", *(f">{counted(a.clients, 'client')}" for a in found))
    parts = [[name.removeprefix(">"), *values] for name, *values in zip(names[3:], *(r[3:] for r in rows), strict=True)]
    return table(f"commit latency breakdown at {found[0].level}, ms · {found[0].scenario.text}", heads, parts)


def _searches(steps: Sequence[SearchStep]) -> RenderableType:
    rows = []
    for step in steps:
        found = interval(Estimate(step.value, step.low, step.high))
        rows.append([step.search, tried_text(step), found, step.conclusion])
    wide = table("searches", ("search", "tried", ">found (95 % CI)", "conclusion"), rows)
    narrow = table("searches", ("search and what was tried", ">found (95 % CI)"),
                   [[f"{r[0]}: {r[1]}; {r[3]}", r[2]] for r in rows], folds="search and what was tried")  # fmt: skip
    return Fitting(wide, narrow)
