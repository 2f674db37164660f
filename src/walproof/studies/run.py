"""Runs a declared study on a target: its parts priced, its drills run, its claims judged. The file that acts.

What the study's lab declares and the target misses becomes a caveat."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from walproof.errors import Error, UsageError
from walproof.estimating.intervals import StoppedBy
from walproof.model.drill import Capability
from walproof.model.event import DrillDone, Emit, Event, Note
from walproof.model.guarantee import read_standby_names
from walproof.model.ports import Target
from walproof.model.topology import ClusterView, Description
from walproof.model.units import counted
from walproof.pricing.command import question_as_json, question_lines
from walproof.pricing.run import run_price
from walproof.pricing.sampling import Bench, OnProgress, Question, RunProgress, sample_seconds
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.inject import why_skipped
from walproof.proving.observer import Keep
from walproof.proving.run import Shell, run_drills
from walproof.studies.claims import Measured, claim_judged, figure_compared
from walproof.studies.declaration import DrillPart, LabNeeded, Study, StudyPart


def missed(lab: LabNeeded, described: Description, view: ClusterView) -> Iterator[str]:
    """One sentence for each condition that the study declares and the target, as found, does not meet."""
    declared, members = lab.model_fields_set, len(view.members)
    if "members" in declared and members != lab.members:
        yield f"{counted(members, 'member')}, the study has {lab.members}"
    if declared & {"sync", "quorum"}:
        wanted, quorum = lab.replication, read_standby_names(view.standby_names)
        here = None if quorum is None else (quorum.kind, quorum.k)
        if here != (None if wanted.method is None else (wanted.method, wanted.number)):
            shown = "asynchronous" if quorum is None else f"{quorum.kind} {quorum.k}"
            yield f"{shown}, the study has {wanted.text.removesuffix(' strict')}"
    if "wal_volume" in declared:
        asked, seen = (
            "on a volume of its own" if own else "with the data" for own in (lab.wal_volume, described.wal_volume)
        )
        if described.wal_volume is None:
            yield f"where WAL is written is not known, the study has it {asked}"
        elif described.wal_volume is not lab.wal_volume:
            yield f"WAL is {seen}, the study has it {asked}"
    if lab.cores is not None and (limit := described.facts.get("cpu per member", "not known")) != f"{lab.cores:g}":
        yield f"processors per member: {limit}, the study has {lab.cores:g}"
    for name, value in lab.parameters.items():
        setting = described.settings.get(name, "not known")
        if setting != value:
            yield f"{name} is {setting}, the study has {value}"


NEVER = 0.0001
"""A precision never reached: a study uses its whole budget."""
DRILL_S = 30.0
"""What a drill is assumed to take of the budget."""


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """How a study is run: quickly or in full, the seed, its budget in seconds when not the declared one."""

    quick: bool = False
    seed: int = 1
    budget_s: float | None = None

    def __post_init__(self) -> None:
        """UsageError for a budget that measures nothing or never ends."""
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise UsageError(f"a budget of {self.budget_s:g} s is not valid", "--budget 240, in seconds")


def questions(study: Study, options: StudyOptions) -> list[tuple[StudyPart, Question]]:
    """The price question of each part, time shared by their weights and their numbers of arms. Pure."""
    minutes = study.quick_minutes if options.quick else study.minutes
    total_s = 60 * minutes if options.budget_s is None else options.budget_s
    repeats = sum(d.quick_repeat if options.quick else d.repeat for d in study.drill)
    left_s = max(total_s - DRILL_S * repeats, total_s / 3)
    weights = [p.share * len(p.levels) * len(p.clients) * len(p.scenarios()) for p in study.part]
    asked = []
    for part, weight in zip(study.part, weights, strict=True):
        scenarios, arms = part.scenarios(), part.arms()
        budget_s = left_s * weight / sum(weights)
        sample_s = sample_seconds(budget_s, len(arms), len(scenarios))
        asked.append((part, Question(scenarios, arms, study.baseline, sample_s, NEVER, budget_s, options.seed)))
    return asked


def drills_of(study: Study, options: StudyOptions) -> list[tuple[DrillPart, list[PlannedDrill]]]:
    """Every drill of the study in order, numbered through. Pure."""
    numbers = itertools.count(1)
    plans = []
    for part in study.drill:
        fault = CATALOGUE[part.fault]
        plan = [
            PlannedDrill(next(numbers), fault, fault.victims[0], part.level, part.route, part.writers)
            for _ in range(part.quick_repeat if options.quick else part.repeat)
        ]
        plans.append((part, plan))
    return plans


def consents_needed(study: Study) -> tuple[str, ...]:
    """The names that --allow must give on any external cluster, whose settings no study changes."""
    return ("load", *dict.fromkeys(drill.fault for drill in study.drill if CATALOGUE[drill.fault].steps))


def consents_needed_on(target: Target, study: Study) -> tuple[str, ...]:
    """And on this one: where its processors can be limited, a part that asks for it restarts its instances."""
    limited = any(part.cores for part in study.part) and not target.capabilities().why_not(Capability.LIMIT_PROCESSORS)
    return (*consents_needed(study), *(["scale"] if limited else []))


def most_clients(study: Study) -> int:
    """How many connections it writes with at a time at most."""
    return max((*(c for part in study.part for c in part.clients), *(d.writers for d in study.drill)), default=0)


def plan_as_json(study: Study, options: StudyOptions, target: Target | None) -> dict[str, Any]:
    """What a run would do, for how long, on what consent; without a target on a lab of its own. It only reads."""
    lab = study.lab
    own = f"a lab of its own: {counted(lab.members, 'member')}, {lab.replication.text}"
    if target is not None:
        target.capabilities().limits.check(most_clients(study))
    parts = [
        {"name": part.name, "left_out": _why_not(target, part) if target else None, **question_as_json(question)}
        for part, question in questions(study, options)
    ]
    drills: list[dict[str, Any]] = [
        {
            "name": part.name,
            "fault": part.fault,
            "level": part.level,
            "repeat": len(plan),
            "left_out": why_skipped(target, CATALOGUE[part.fault]) if target else None,
        }
        for part, plan in drills_of(study, options)
    ]
    done = [one["budget_s"] for one in parts if not one["left_out"]]
    return {
        "dry_run": True,
        "study": study.name,
        "target": target.name if target else own,
        "parts": parts,
        "drills": drills,
        "seconds": sum(done) + DRILL_S * sum(one["repeat"] for one in drills if not one["left_out"]),
        "consents": list(consents_needed_on(target, study)) if target and target.external else [],
        "caveats": list(missed(lab, target.describe(), target.observe())) if target else [],
    }


def plan_lines(plan: dict[str, Any], study: Study, options: StudyOptions) -> Iterator[str]:
    """That plan in words."""
    yield (
        f"{study.name} on {plan['target']}, about {max(1, round(plan['seconds'] / 60))} min of measuring and drills; "
        "loading tables and restarts come on top"
    )
    for part, (_, question) in zip(plan["parts"], questions(study, options), strict=True):
        if part["left_out"]:
            yield f"part {part['name']} is left out: {part['left_out']}"
        else:
            first, *others = question_lines(question)
            yield from (f"part {part['name']}: {first}", *others)
    for drill in plan["drills"]:
        what = f"{drill['fault']} at {drill['level']}, {drill['repeat']} × about {DRILL_S:g} s"
        yield f"drill {drill['name']}: " + (f"left out: {drill['left_out']}" if drill["left_out"] else what)
    yield from (f"differs from the study: {caveat}" for caveat in plan["caveats"])


def run_study(
    study: Study, target: Target, emit: Emit, keep: Keep, options: StudyOptions, on_progress: OnProgress
) -> Sequence[Event]:
    """Every part, every drill, every claim; the events, which were emitted as they happened.

    What a target cannot do is noted, and its claims stay undecided; conditions of the study that it does not meet
    stand next to each claim and figure. KeyboardInterrupt when pricing was interrupted.
    """
    events: list[Event] = []

    def record(event: Event) -> None:
        events.append(event)
        emit(event)

    caveats = tuple(missed(study.lab, target.describe(), target.observe()))
    bench = Bench(target, record, options.seed)
    for part, question in questions(study, options):
        reason = _why_not(target, part)
        if reason:
            record(Note(target.clock.now(), f"part {part.name} is left out: {reason}"))
        elif run_price(bench, question, _prefixed(part.name, on_progress)) is StoppedBy.INTERRUPTED:
            # Price keeps what it has and returns; a study without its other parts judges nothing.
            raise KeyboardInterrupt
    for drilled, plan in drills_of(study, options):
        on_progress(RunProgress(0.0, DRILL_S * len(plan), 0, f"{drilled.name}: {drilled.fault} at {drilled.level}"))
        try:
            run_drills(Shell(target, _labelled(drilled.name, record), keep, options.seed), plan, enough=lambda _: False)
        except Error as error:
            record(Note(target.clock.now(), f"drill {drilled.name} ended early: {error.message}"))
    measured = Measured(events, study.part)
    for claim in study.claim:
        record(replace(claim_judged(study.name, claim, measured, target.clock.now()), caveats=caveats))
    for figure in study.figure:
        record(replace(figure_compared(study.name, figure, measured, target.clock.now()), caveats=caveats))
    return events


def _why_not(target: Target, part: StudyPart) -> str | None:
    needed = (
        (bool(part.rtt_ms), Capability.SHAPE_LINKS),
        (bool(part.cores), Capability.LIMIT_PROCESSORS),
        (part.fsync is not None, Capability.CONFIGURE),
    )
    reasons = (target.capabilities().why_not(capability) for is_needed, capability in needed if is_needed)
    return next((reason for reason in reasons if reason), None)


def _labelled(part: str, emit: Emit) -> Emit:
    """Emits drills with the name of their part, by which `Measured` finds them."""

    def labelled(event: Event) -> None:
        if isinstance(event, DrillDone):
            drill = replace(event.drill, evidence={**event.drill.evidence, "part": part})
            event = replace(event, drill=drill)
        emit(event)

    return labelled


def _prefixed(part: str, on_progress: OnProgress) -> OnProgress:
    return lambda progress: on_progress(replace(progress, doing=f"{part}: {progress.doing}"))
