"""Drills as a table of PostgreSQL's documented guarantees, level × what is lost, with each cell's evidence. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from walproof.model.guarantee import Level, Loss, survives
from walproof.model.units import and_undecided, counted
from walproof.model.verdict import Drill, Verdict
from walproof.proving.bounds import bounds

COLUMNS: tuple[tuple[str, str, Loss | None], ...] = (
    ("kill-all", "local disk, after a PostgreSQL crash", Loss.POSTGRES_CRASH),
    ("kill", "leader lost, a standby takes over", Loss.LEADER_GONE),
    ("double-kill", "… after a PostgreSQL crash of the standby", Loss.LEADER_AND_STANDBY_POSTGRES),
    ("double-power", "… after a power cut of the standby", Loss.LEADER_AND_STANDBY_POWER),
    ("none", "visible on a standby at once", None),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is documented, what was seen (✔ held, ✘ lost, ? undecided, – not run), and the evidence."""

    promised: bool
    mark: str
    evidence: str

    @property
    def surprising(self) -> bool:
        """Whether a documented guarantee was broken."""
        return self.promised and self.mark == "✘"


def cell(level: Level, column: str, drills: Sequence[Drill]) -> Cell:
    """The cell of a level and a column (the fault's name)."""
    loss = next(what for name, _, what in COLUMNS if name == column)
    promised = level is Level.REMOTE_APPLY if loss is None else survives(level, loss)
    chosen = [d for d in drills if d.level is level and _of_column(d, column, loss)]
    decided = [d for d in chosen if d.verdict.decided and (loss is None or d.loss in ("", loss))]
    if not chosen:
        return Cell(promised, "–", "not run")
    if not decided:
        return _nothing_decided(promised, chosen[-1])
    shown = _freshness(promised, decided) if loss is None else _losses(promised, decided)
    return replace(shown, evidence=shown.evidence + and_undecided(len(chosen) - len(decided)))


def _of_column(drill: Drill, column: str, loss: Loss | None) -> bool:
    """Whether a drill is of a column; every leader that crashed and was started again in place is of the first one."""
    return drill.fault == column or (loss is Loss.POSTGRES_CRASH and drill.loss == loss)


def _nothing_decided(promised: bool, drill: Drill) -> Cell:
    """Where no drill was of this column in fact: a leader restarted in place is no lost leader."""
    if drill.verdict.decided:
        return Cell(promised, "?", f"{drill.loss} instead: {drill.why}")
    return Cell(promised, drill.verdict.mark, drill.why)


def _losses(promised: bool, decided: list[Drill]) -> Cell:
    losing = [d for d in decided if d.verdict is not Verdict.HELD]
    if losing:
        worst = max(d.findings.lost for d in losing)
        lost = "expected loss" if all(d.verdict is Verdict.EXPECTED_LOSS for d in losing) else "lost"
        return Cell(promised, "✘", f"{lost} in {len(losing)} of {len(decided)}, up to {counted(worst, 'commit')}")
    worst_kind = max(bounds(decided).values(), key=lambda bound: bound.upper)
    return Cell(promised, "✔", f"0 of {len(decided)} lost, loss in at most {worst_kind.upper:.0%} of drills")


def _freshness(promised: bool, decided: list[Drill]) -> Cell:
    fresh = sum(d.findings.fresh_somewhere for d in decided)
    stale = sum(d.findings.fresh_nowhere for d in decided)
    if fresh + stale == 0:
        return Cell(promised, "?", "no standby could be read")
    return Cell(promised, "✘" if stale else "✔", f"{fresh} of {fresh + stale} rows visible at once on some standby")


def matrix(drills: Sequence[Drill], levels: Sequence[Level] = tuple(Level)) -> dict[Level, dict[str, Cell]]:
    """Level → column → cell."""
    return {level: {name: cell(level, name, drills) for name, _, _ in COLUMNS} for level in levels}
