"""Drills and each level's account as tables for the terminal, also a narrow one. Lays out; computes nothing."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from walproof.model.event import DrillDone, Event
from walproof.model.verdict import Drill, Verdict
from walproof.proving.verdicts import bounds, controls
from walproof.reporting.table_width import Fitting, table, with_lines
from walproof.reporting.wording import fault_words, percent, seconds, whole

_STYLE = {Verdict.HELD: "green", Verdict.BROKEN: "bold red", Verdict.UNDECIDED: "yellow", Verdict.SKIPPED: "dim"}


def prove_tables(events: Sequence[Event]) -> list[RenderableType]:
    """The drills one by one, then each level's account over all of them; empty without drills."""
    drills = [e.drill for e in events if isinstance(e, DrillDone)]
    return [_drills(drills), _account(drills)] if drills else []


def _drills(drills: Sequence[Drill]) -> RenderableType:
    counted = ("acknowledged", "lost", "downgraded", "unknown", "refused", "recovered")
    wide: list[list[str | Text]] = [
        [str(d.number), fault_words(d), str(d.level), _verdict(d), *(_count(d, name) for name in counted),
         seconds(d.rto_s), seconds(d.rpo_s), _leaders(d), d.why]
        for d in drills
    ]  # fmt: skip
    narrow: list[list[str | Text]] = [
        [str(d.number), fault_words(d), str(d.level), _verdict(d), *(_count(d, n) for n in ("acknowledged", "lost")),
         seconds(d.rto_s), _leaders(d)]
        for d in drills
    ]  # fmt: skip
    heads = ("#", "fault", "level", "verdict", *(f">{n}" for n in counted), ">RTO", ">RPO", "leader", "why")
    tight = (">#", "fault", "level", "verdict", ">acked", ">lost", ">RTO", "leader")
    return Fitting(
        table("drills", heads, wide, folds="why"),
        with_lines(table("drills", tight, narrow, folds="fault"), [_told(d) for d in drills], "dim"),
    )


def _told(drill: Drill) -> str:
    names = ("downgraded", "unknown", "refused", "recovered")
    rest = [f"{whole(getattr(drill.findings, n))} {n}" for n in names if getattr(drill.findings, n)]
    rest += [f"RPO {seconds(drill.rpo_s)}"] if drill.rpo_s else []
    return f"{drill.number}: {drill.why}" + (f" ({', '.join(rest)})" if rest else "")


def _verdict(drill: Drill) -> Text:
    return Text(f"{drill.verdict.mark} {drill.verdict}", style=_STYLE[drill.verdict])


def _count(drill: Drill, name: str) -> Text:
    count = int(getattr(drill.findings, name))
    return Text(whole(count), style="bold red" if name == "lost" and count else "")


def _leaders(drill: Drill) -> str:
    before, after = (name or "?" for name in (drill.leader_before, drill.leader_after))
    return before if before == after else f"{before} → {after}"


def _account(drills: Sequence[Drill]) -> RenderableType:
    bound, control = bounds(drills), controls(drills)
    rows, notes = [], []
    for level in sorted({d.level for d in drills}, key=lambda lv: lv.strength):
        mine = [d for d in drills if d.level is level]
        count = {v: sum(d.verdict is v for d in mine) for v in Verdict}
        counts = [len(mine), count[Verdict.HELD], count[Verdict.BROKEN], count[Verdict.UNDECIDED]]
        shown = [words or f"none under {fault}: weak" for (fault, lv), words in control.items() if lv is level]
        lost = whole(sum(d.findings.lost for d in mine))
        rows.append([str(level), *(str(c) for c in counts), lost, percent(bound.get(str(level))), "; ".join(shown)])
        notes += [f"{level}, positive control: {'; '.join(shown)}"] if shown else []
    counted = ("level", ">drills", ">held", ">broken", ">undecided", ">lost")
    title = "what each level survived"
    return Fitting(
        table(title, (*counted, ">loss probability under (95 %)", "positive control"), rows, folds="positive control"),
        with_lines(table(title, (*counted, ">P(loss) under"), [r[:-1] for r in rows]), notes, "dim"),
    )
