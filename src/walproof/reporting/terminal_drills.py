"""Drills and results per level as tables for the terminal, also a narrow one. Lays out; computes nothing."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from walproof.model.event import DrillDone, Event
from walproof.model.verdict import Drill, Verdict
from walproof.proving.bounds import bounds, controls, kind_of
from walproof.proving.guard_comparison import compare_guard
from walproof.reporting.guard_rows import HEADS, TITLE, guard_rows
from walproof.reporting.table_width import Fitting, table, with_lines
from walproof.reporting.wording import (
    LOSS_BOUND,
    UNAVAILABLE,
    count,
    fault_name,
    finding_counts,
    percent,
    seconds,
    verdict_name,
)

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
    guard = [table(TITLE, HEADS, guard_rows(compared), folds="fault")] if compared else []
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
