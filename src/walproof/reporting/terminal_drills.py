"""Drills and results per level as tables for the terminal, also a narrow one. Lays out; computes nothing."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from walproof.model.event import DrillDone, Event
from walproof.model.verdict import Drill, Verdict
from walproof.proving.bounds import bounds, controls
from walproof.reporting.table_width import Fitting, table, with_lines
from walproof.reporting.wording import (
    LOSS_BOUND,
    count,
    fault_name,
    finding_counts,
    is_expected_loss,
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
_SHOWN = ("acknowledged", "lost", "downgraded", "unknown", "refused", "recovered")


def prove_tables(events: Sequence[Event]) -> list[RenderableType]:
    """The drills one by one, then the results of each level over all of them; empty without drills."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    return [_drills(drills), _levels(drills)] if drills else []


def _drills(drills: Sequence[Drill]) -> RenderableType:
    wide, narrow, notes = [], [], []
    for d in drills:
        counts = finding_counts(d.findings)
        first: list[str | Text] = [str(d.number), fault_name(d), str(d.level), _verdict(d)]
        lost = "yellow" if is_expected_loss(d) else "bold red" if d.findings.lost else ""
        shown = [Text(count(counts[name]), style=lost if name == "lost" else "") for name in _SHOWN]
        wide.append([*first, *shown, seconds(d.rto_s), seconds(d.rpo_s), _leaders(d), d.why])
        narrow.append([*first, *shown[:2], seconds(d.rto_s), _leaders(d)])
        rest = [f"{count(counts[name])} {name}" for name in _SHOWN[2:] if counts[name]]
        rest += [f"RPO {seconds(d.rpo_s)}"] if d.rpo_s else []
        notes.append(f"{d.number}: {d.why}" + (f" ({', '.join(rest)})" if rest else ""))
    heads = ("#", "fault", "level", "verdict", *(f">{n}" for n in _SHOWN), ">RTO", ">RPO", "leader", "why")
    narrow_heads = (">#", "fault", "level", "verdict", ">acked", ">lost", ">RTO", "leader")
    return Fitting(
        table("drills", heads, wide, folds="why"),
        with_lines(table("drills", narrow_heads, narrow, folds="fault"), notes, "dim"),
    )


def _verdict(drill: Drill) -> Text:
    return Text(verdict_name(drill), style="yellow" if is_expected_loss(drill) else _STYLE[drill.verdict])


def _leaders(drill: Drill) -> str:
    before, after = (name or "?" for name in (drill.leader_before, drill.leader_after))
    return before if before == after else f"{before} → {after}"


def _levels(drills: Sequence[Drill]) -> RenderableType:
    bound, control = bounds(drills), controls(drills)
    rows, notes = [], []
    for level in sorted({d.level for d in drills}, key=lambda lv: lv.strength):
        of_level = [d for d in drills if d.level is level]
        verdicts = [sum(d.verdict is v for d in of_level) for v in (Verdict.HELD, Verdict.BROKEN, Verdict.UNDECIDED)]
        shown = [text or f"none under {fault}: weak" for (fault, lv), text in control.items() if lv is level]
        lost = count(sum(d.findings.lost for d in of_level))
        counts = [str(level), str(len(of_level)), *map(str, verdicts), lost]
        rows.append([*counts, percent(bound.get(str(level))), "; ".join(shown)])
        notes += [f"{level}, positive control: {'; '.join(shown)}"] if shown else []
    heads = ("level", ">drills", ">held", ">broken", ">undecided", ">lost", f">{LOSS_BOUND}")
    title = "what each level survived"
    return Fitting(
        table(title, (*heads, "positive control"), rows, folds="positive control"),
        with_lines(table(title, heads, [r[:-1] for r in rows]), notes, "dim"),
    )
