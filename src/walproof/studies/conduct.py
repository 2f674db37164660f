"""Conducts a declared study on a target: its parts priced, its drills run, its claims judged. The acting part."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from walproof.errors import Error, UsageError
from walproof.estimating.stopping import StoppedBy
from walproof.model.event import ClaimJudged, DrillDone, Emit, Event, Note
from walproof.model.ports import Capability, Target
from walproof.pricing.bench import Bench, OnProgress, RunProgress
from walproof.pricing.design import Question, sample_seconds
from walproof.pricing.run import run_price
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import Shell, run_drills
from walproof.studies.claims import Measured, compare, judgement
from walproof.studies.declaration import DrillPart, Part, Study

NEVER = 0.0001
"""A precision never reached: a study uses its whole budget."""
DRILL_S = 30.0
"""What a drill is taken to cost of the budget."""


@dataclass(frozen=True, slots=True)
class Visit:
    """How a study is run: quickly or in full, the seed, its budget in seconds when not the declared one."""

    quick: bool = False
    seed: int = 1
    budget_s: float | None = None

    def __post_init__(self) -> None:
        """UsageError for a budget that measures nothing or never ends."""
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise UsageError(f"a budget of {self.budget_s:g} s is not valid", "--budget 240, in seconds")


def questions(study: Study, visit: Visit) -> list[tuple[Part, Question]]:
    """What each part asks of price, time shared by their weights and their numbers of arms. Pure."""
    minutes = study.quick_minutes if visit.quick else study.minutes
    whole = 60 * minutes if visit.budget_s is None else visit.budget_s
    repeats = sum(d.quick_repeat if visit.quick else d.repeat for d in study.drill)
    left = max(whole - DRILL_S * repeats, whole / 3)
    weights = [p.share * len(p.levels) * len(p.clients) * len(p.scenarios()) for p in study.part]
    found = []
    for part, weight in zip(study.part, weights, strict=True):
        settings, arms = part.scenarios(), part.arms()
        budget_s = left * weight / sum(weights)
        sample_s = sample_seconds(budget_s, len(arms), len(settings))
        question = Question(settings, arms, study.baseline, sample_s, NEVER, budget_s, visit.seed)
        found.append((part, question))
    return found


def drills_of(study: Study, visit: Visit) -> list[tuple[DrillPart, list[PlannedDrill]]]:
    """Every drill of the study in order, numbered through."""
    numbers = itertools.count(1)
    found = []
    for part in study.drill:
        fault = CATALOGUE[part.fault]
        plan = [
            PlannedDrill(next(numbers), fault, fault.victims[0], part.level, part.route, part.writers)
            for _ in range(part.quick_repeat if visit.quick else part.repeat)
        ]
        found.append((part, plan))
    return found


class Conductor:
    """One run of one study: events go out as they happen and are kept for the judgement at the end."""

    def __init__(
        self, study: Study, target: Target, emit: Emit, keep: Callable[[str, str], object], visit: Visit
    ) -> None:
        self._study, self._target, self._visit, self._keep = study, target, visit, keep
        self._emit = emit
        self.events: list[Event] = []

    def _say(self, event: Event) -> None:
        self.events.append(event)
        self._emit(event)

    def run(self, tell: OnProgress) -> Sequence[ClaimJudged]:
        """Every part, every drill, every claim; what a target cannot do is noted and its claims stay undecided."""
        target = self._target
        bench = Bench(target, self._say, self._visit.seed)
        for part, question in questions(self._study, self._visit):
            reason = self._unable(part)
            if reason:
                self._note(f"part {part.name} is left out: {reason}")
                continue
            if run_price(bench, question, _within(part.name, tell)) is StoppedBy.INTERRUPTED:
                # Price keeps what it has and returns; a study without its other parts judges nothing.
                raise KeyboardInterrupt
        for drilled, plan in drills_of(self._study, self._visit):
            self._drill(drilled, plan, tell)
        measured = Measured(self.events, self._study.part)
        found = [judgement(self._study.name, c, measured, target.clock.now()) for c in self._study.claim]
        for claim in found:
            self._say(claim)
        for figure in self._study.figure:
            self._say(compare(self._study.name, figure, measured, target.clock.now()))
        return found

    def _unable(self, part: Part) -> str | None:
        if part.rtt_ms and (reason := self._target.capabilities().why_not(Capability.SHAPE_LINKS)):
            return reason
        if part.cores and (reason := self._target.capabilities().why_not(Capability.LIMIT_PROCESSORS)):
            return reason
        if part.fsync is not None and (reason := self._target.capabilities().why_not(Capability.CONFIGURE)):
            return reason
        return None

    def _drill(self, part: DrillPart, plan: Sequence[PlannedDrill], tell: OnProgress) -> None:
        tell(RunProgress(0.0, DRILL_S * len(plan), 0, f"{part.name}: {part.fault} at {part.level}"))

        def named(event: Event) -> None:
            if isinstance(event, DrillDone):
                drill = replace(event.drill, evidence={**event.drill.evidence, "part": part.name})
                event = replace(event, drill=drill)
            self._say(event)

        shell = Shell(self._target, named, self._keep, self._visit.seed)
        try:
            run_drills(shell, plan, enough=lambda _: False)
        except Error as error:
            self._note(f"drill {part.name} ended early: {error.message}")

    def _note(self, text: str) -> None:
        self._say(Note(self._target.clock.now(), text))


def _within(part: str, tell: OnProgress) -> OnProgress:
    return lambda progress: tell(replace(progress, doing=f"{part}: {progress.doing}"))
