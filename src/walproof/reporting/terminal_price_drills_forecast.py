"""Prices, drills and forecasts as tables for the terminal, also a narrow one. Lays out; computes nothing."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from walproof.forecasting.forecast import Forecast, nines
from walproof.forecasting.sensitivity import Effect, Studied, loudest
from walproof.model.drill import Drill, Verdict
from walproof.model.estimate import Estimate
from walproof.model.event import DrillDone, Event, SampleDone, SearchStep
from walproof.model.units import counted
from walproof.pricing.estimates import ArmPrice, PriceTable, price_table
from walproof.pricing.latency_breakdown import Breakdown, breakdowns
from walproof.pricing.soak import Stretch, stretches
from walproof.proving.campaign_results import compare_guard
from walproof.proving.loss_bounds import bounds, controls, kind_of
from walproof.reporting.console_output import Fitting, table, with_lines
from walproof.reporting.drill_section import GUARD_HEADS, GUARD_TITLE, guard_rows
from walproof.reporting.price_section import OFFERED_TITLE, breakdown_rows, latency_rows, offered_rows, tried_text
from walproof.reporting.soak_section import SOAK_HEADS, STALL_TITLE, soak_rows, stall_rows
from walproof.reporting.wording import (
    LOSS_BOUND,
    UNAVAILABLE,
    arm_name,
    count,
    fault_name,
    finding_counts,
    interval,
    latencies,
    number,
    percent,
    plus_minus,
    ratio,
    ratio_heading,
    seconds,
    verdict_name,
    workload_name,
)


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
    title = f"{STALL_TITLE} per transaction"
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
    upright = [[head.removeprefix(">"), *(row[i] for row in rows)] for i, head in enumerate(SOAK_HEADS) if i]
    return Fitting(table("the soak", SOAK_HEADS, rows), table("the soak", heads, upright))


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


_STYLE = {
    Verdict.HELD: "green",
    Verdict.BROKEN: "bold red",
    Verdict.EXPECTED_LOSS: "yellow",
    Verdict.UNDECIDED: "yellow",
    Verdict.SKIPPED: "dim",
}
_TIMES = (">RTO", ">worst writer", f">{UNAVAILABLE}", ">RPO")
_SHOWN = ("acknowledged", "lost", "downgraded", "unknown", "refused", "recovered")


def prove_tables(events: Sequence[Event]) -> list[RenderableType]:
    """The drills one by one, then the results of each level over all of them; empty without drills."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    compared = compare_guard(drills)
    guard = [table(GUARD_TITLE, GUARD_HEADS, guard_rows(compared), folds="fault")] if compared else []
    return [_drills(drills), _levels(drills), *guard] if drills else []


def _drills(drills: Sequence[Drill]) -> RenderableType:
    wide, narrow, notes = [], [], []
    for d in drills:
        counts = finding_counts(d.findings)
        first: list[str | Text] = [str(d.number), fault_name(d), str(d.level), _verdict(d)]
        lost = _STYLE[d.verdict] if d.findings.lost else ""
        shown = [Text(count(counts[name]), style=lost if name == "lost" else "") for name in _SHOWN]
        wide.append([*first, *shown, *_times(d), _leaders(d), d.why])
        narrow.append([*first, *shown[:2], seconds(d.rto_s), _leaders(d)])
        rest = [f"{count(counts[name])} {name}" for name in _SHOWN[2:] if counts[name]]
        rest += [f"RPO {seconds(d.rpo_s)}"] if d.rpo_s else []
        rest += [f"worst writer {seconds(d.writers_rto_s[2])}"] if d.writers_rto_s else []
        notes.append(f"{d.number}: {d.why}" + (f" ({', '.join(rest)})" if rest else ""))
    heads = ("#", "fault", "level", "verdict", *(f">{n}" for n in _SHOWN), *_TIMES, "leader", "why")
    narrow_heads = (">#", "fault", "level", "verdict", ">acked", ">lost", ">RTO", "leader")
    return Fitting(
        table("drills", heads, wide, folds="why"),
        with_lines(table("drills", narrow_heads, narrow, folds="fault"), notes, "dim"),
    )


def _times(drill: Drill) -> list[str]:
    """RTO of the first commit anywhere, of the worst writer, unavailable seconds, RPO."""
    worst = drill.writers_rto_s[2] if drill.writers_rto_s else None
    return [seconds(s) for s in (drill.rto_s, worst, drill.unavailable_s, drill.rpo_s)]


def _verdict(drill: Drill) -> Text:
    return Text(verdict_name(drill), style=_STYLE[drill.verdict])


def _leaders(drill: Drill) -> str:
    before, after = (name or "?" for name in (drill.leader_before, drill.leader_after))
    return before if before == after else f"{before} → {after}"


def _levels(drills: Sequence[Drill]) -> RenderableType:
    """One row a kind of drill: drills of another fault, victim or loss say nothing about it."""
    control = controls(drills)
    rows, notes = [], []
    for kind, bound in bounds(drills).items():
        what = kind.what
        shown = (control[kind] or "none: weak proof") if kind in control else ""
        lost = count(sum(d.findings.lost for d in drills if kind_of(d) == kind))
        counts = [str(bound.drills), str(bound.losing), str(bound.undecided), lost]
        rows.append([what, str(kind.level), kind.loss, *counts, percent(bound.upper if bound.drills else None), shown])
        notes += [f"{what} at {kind.level}, positive control: {shown}"] if shown else []
    heads = ("fault", "level", "gone for good", ">drills", ">losing", ">undecided", ">lost", f">{LOSS_BOUND}")
    title = "what each level survived"
    return Fitting(
        table(title, (*heads, "positive control"), rows, folds="positive control"),
        with_lines(table(title, heads, [r[:-1] for r in rows]), notes, "dim"),
    )


def conclusion(made: Forecast) -> str:
    """The answer in one sentence."""
    at_most = "at most " if made.upper_bound else ""
    minutes = made.minutes
    return (
        f"{made.text}, {made.layout}: {number(minutes.value)} minutes a year without writes "
        f"({number(minutes.low)}–{number(minutes.high)}); "
        f"a lost acknowledged commit in {at_most}{made.p_loss.value:.2g} of years "
        f"({made.p_loss.low:.2g}–{made.p_loss.high:.2g}), {made.p_structural.value:.2g} by structure alone"
    )


def forecast_tables(made: Sequence[Studied]) -> list[RenderableType]:
    """All configurations, the first one's failures, what matters most, then what to be careful about."""
    forecasts = [one for one, _ in made]
    first, effects = made[0]
    guards = dict.fromkeys(one.guard for one in forecasts if one.guard)
    caveats = dict.fromkeys(caveat for one in forecasts for caveat in one.caveats)
    return [
        _configurations(forecasts),
        _parts(first),
        *map(Text, _sensitivity(first, effects)),
        *(Text(f"{one.text}: {one.period.text}") for one in forecasts if one.period),
        *(Text(f"guard: {guard}") for guard in guards),
        *(Text(f"caveat: {caveat}", style="yellow") for caveat in caveats),
    ]


def _interval(estimate: Estimate, form: Callable[[float], str] = number) -> str:
    return f"{form(estimate.value)}\n{form(estimate.low)}–{form(estimate.high)}"


def _chance(probability: float) -> str:
    return f"{probability:.2g}"


def _configurations(forecasts: Sequence[Forecast]) -> Table:
    table = Table(
        "", "minutes a year", "p95", "p99.9", "availability", "P(loss a year)", "by structure", "commits lost a year",
        "transactions/s", "p95, ms",
    )  # fmt: skip
    for one in forecasts:
        upper = "≤ " if one.upper_bound else ""
        table.add_row(
            one.text,
            _interval(one.minutes),
            _interval(one.p95_minutes),
            _interval(one.p999_minutes),
            f"{100 * one.availability.value:.5g} %\n{nines(one.availability.value):.1f} nines",
            upper + _interval(one.p_loss, _chance),
            _interval(one.p_structural, _chance),
            "–" if math.isnan(one.commits) else f"{upper}{number(one.commits, 2)}",
            "–" if one.tps is None else _interval(one.tps),
            "–" if one.p95_ms is None else _interval(one.p95_ms),
        )
    return table


def _parts(one: Forecast) -> Table:
    table = Table(
        "failure", "minutes a year", "takeovers a year", "losses a year", "outage from", "drills of it", title=one.text
    )
    for part in one.parts:
        row = (number(part.minutes), f"{part.takeovers:.3g}", f"{part.losses:.2g}", part.basis, part.drilled)
        table.add_row(part.name, *row)
    return table


def _sensitivity(one: Forecast, effects: Sequence[Effect]) -> list[str]:
    lines = [
        f"  {'then' if rank else 'matters most':12}  {effect.assumption}: "
        f"{number(effect.low)} to {number(effect.high)} minutes a year"
        for rank, effect in enumerate(effects[:3])
    ]
    if name := loudest(one):
        lines.append(f"  for losses    rate of {name}, and drills of it")
    return lines
