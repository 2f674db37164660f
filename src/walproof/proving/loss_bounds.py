"""What clean drills say about the probability of a loss, and which weaker level lost in the same campaign. Pure.

Drills count together only when level, fault, victim and what was gone in fact are the same. The matrix shows them
against PostgreSQL's documented guarantees, level × what is lost, with each cell's evidence."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from walproof.estimating.intervals import upper_bound
from walproof.model.drill import Drill, Verdict, Victim
from walproof.model.guarantee import Level, Loss, survives
from walproof.model.units import and_undecided, counted


@dataclass(frozen=True, slots=True)
class Kind:
    """Drills that count together. `loss`: what was gone in fact (Drill.loss), "" where nothing was.

    `guarded`: as of the drills (Drill.guarded), which only earlier records hold.
    """

    level: Level
    fault: str
    victim: Victim
    loss: str = ""
    guarded: bool = False

    @property
    def what(self) -> str:
        """The fault with its victim, and the guard.

        >>> Kind(Level.ON, "kill", Victim.LEADER, guarded=True).what
        'kill, guarded'
        """
        return self.victim.with_fault(self.fault) + (", guarded" if self.guarded else "")


@dataclass(frozen=True, slots=True)
class Bound:
    """Decided drills of a kind, those that lost something, those left undecided, and the upper 95 % bound of P(loss).

    Undecided drills are counted with every kind of their level, fault and victim: they might have been of any.
    """

    drills: int
    losing: int
    undecided: int
    upper: float


def drills_for(bound: float) -> int:
    """How many clean drills allow that bound.

    >>> drills_for(0.05), drills_for(0.26)
    (59, 10)
    """
    drills = 1
    while upper_bound(0, drills) > bound:
        drills += 1
    return drills


def kind_of(drill: Drill) -> Kind:
    """What the drill counts together with."""
    return Kind(drill.level, drill.fault, drill.victim, drill.loss if drill.verdict.decided else "", drill.guarded)


def bounds(drills: Iterable[Drill]) -> dict[Kind, Bound]:
    """The bound of each kind, weakest level first; of one with undecided drills only it is 1."""
    every = list(drills)
    decided: dict[Kind, list[Drill]] = {}
    for drill in (d for d in every if d.verdict.decided):
        decided.setdefault(kind_of(drill), []).append(drill)
    undecided = Counter(kind_of(d) for d in every if d.verdict is Verdict.UNDECIDED)
    alone = [k for k in undecided if not any(_same_question(k, other) for other in decided)]
    by_kind = {}
    for kind in sorted((*decided, *alone), key=lambda k: (k.fault, str(k.victim), k.guarded, k.level.strength, k.loss)):
        of_kind = decided.get(kind, [])
        losing = sum(d.findings.lost > 0 for d in of_kind)
        open_ones = sum(count for other, count in undecided.items() if _same_question(kind, other))
        by_kind[kind] = Bound(len(of_kind), losing, open_ones, upper_bound(losing, len(of_kind)))
    return by_kind


def _same_question(kind: Kind, other: Kind) -> bool:
    return replace(kind, loss="") == replace(other, loss="")


def worst_bounds(drills: Iterable[Drill]) -> dict[Level, float]:
    """The largest bound of each level over every kind of drill that was decided."""
    worst: dict[Level, float] = {}
    for kind, bound in bounds(drills).items():
        if bound.drills:
            worst[kind.level] = max(worst.get(kind.level, 0.0), bound.upper)
    return worst


def reached(drills: Iterable[Drill], asked: Iterable[Kind], bound: float) -> bool:
    """Whether every kind asked for lost something or has a bound that low.

    What was gone in fact must be what was asked: a leader restarted in place says nothing about a lost leader.
    """
    by_kind = bounds(drills)

    def settled(kind: Kind) -> bool:
        one = by_kind.get(kind)
        return one is not None and one.drills > 0 and (one.losing > 0 or one.upper <= bound)

    return all(settled(kind) for kind in asked)


def controls(drills: Iterable[Drill]) -> dict[Kind, str]:
    """For each kind that held in every decided drill: which weaker level lost under it, in how many of its drills.

    "" when none did (weak proof).

    The weaker level's drill counts for the same fault, victim, loss in fact, route and number of writers only. Kinds of
    which nothing could be lost, and `off`, below which there is no level, need no control.
    """
    decided = [d for d in drills if d.verdict.decided]
    control_of: dict[Kind, str] = {}
    for kind in dict.fromkeys(kind_of(d) for d in decided):
        of_kind = [d for d in decided if kind_of(d) == kind]
        if kind.level is Level.OFF or not kind.loss or any(d.verdict is not Verdict.HELD for d in of_kind):
            continue
        weaker = [d for d in decided if any(_controls(d, held) for held in of_kind)]
        best = max((d.level for d in weaker if d.findings.lost), key=lambda level: level.strength, default=None)
        of_best = [d.findings.lost for d in weaker if d.level is best]
        share = f"{sum(lost > 0 for lost in of_best)} of {counted(len(of_best), 'drill')}"
        control_of[kind] = f"{best} lost {sum(of_best):,} in {share}" if best else ""
    return control_of


def _controls(lost: Drill, held: Drill) -> bool:
    names = ("fault", "victim", "loss", "route", "writers", "guarded")
    same = all(getattr(lost, name) == getattr(held, name) for name in names)
    return same and lost.level.strength < held.level.strength


def clean_sentence(bound: Bound) -> str:
    """How sure clean drills make it, as a clause.

    >>> clean_sentence(Bound(2, 0, 1, 0.776))
    'nothing in 2 drills (loss in at most 78% of drills), 1 undecided'
    """
    clean = f"nothing in {counted(bound.drills, 'drill')} (loss in at most {bound.upper:.0%} of drills)"
    return clean + and_undecided(bound.undecided)


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


def matrix(drills: Sequence[Drill], levels: Sequence[Level]) -> dict[Level, dict[str, Cell]]:
    """Level → column → cell."""
    return {level: {name: cell(level, name, drills) for name, _, _ in COLUMNS} for level in levels}
