"""Which drills in which order: levels × faults × repeats interleaved, storms, the matrix. Pure planning from a seed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from walproof.errors import UsageError
from walproof.model.guarantee import Level, survives
from walproof.model.verdict import Drill, Victim
from walproof.proving.faults import CATALOGUE, Fault, loss_of
from walproof.proving.verdicts import bounds, drills_for

MATRIX = ("kill-all", "kill", "double-kill", "double-power")
"""The manual's columns: local disk, a standby takes over, its PostgreSQL crashed too, its operating system too."""
STORM = (
    "kill",
    "kill-member",
    "freeze",
    "power-cut",
    "partition",
    "isolate",
    "restart",
    "switchover",
    "slow-disk",
    "stop",
)


@dataclass(frozen=True, slots=True)
class PlannedDrill:
    """One drill to be run: what, on whom, at which level, over which route; `then` are further faults of a storm."""

    number: int
    fault: Fault
    victim: Victim
    level: Level
    route: str = "multi-host"
    writers: int = 16
    warm_s: float = 2.0
    """Acknowledged work before the fault: the moment is this plus a random part of a second."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a prove command asks."""

    faults: tuple[Fault, ...]
    levels: tuple[Level, ...]
    victim: Victim | None = None
    route: str = "multi-host"
    writers: int = 16
    repeat: int = 1
    until_bound: float | None = None
    storm: int = 0
    seed: int = 1
    matrix: bool = False
    budget_s: float | None = None
    """No drill begins after so much time."""


def victim_for(fault: Fault, asked: Victim | None) -> Victim:
    """The victim asked for where the fault can fall on it, else its own first; UsageError when it is not valid."""
    if asked is None:
        return fault.victims[0]
    if asked not in fault.victims:
        raise UsageError(
            f"{fault.name} cannot fall on {asked}", f"its victims are {', '.join(str(v) for v in fault.victims)}"
        )
    return asked


def planned(question: Question, able: Collection[str] = STORM) -> list[PlannedDrill]:
    """Every drill in order: each round visits every fault × level once in seeded random order.

    `able`: faults this target can do, for a storm to choose from. `--until-bound b` plans as many rounds as clean
    drills needed; the run stops earlier where a level has lost.
    """
    if question.writers < 1 or question.repeat < 1:
        raise UsageError("writers and repeats must be at least 1", "for instance --writers 16 --repeat 3")
    rng = np.random.default_rng(question.seed)
    if question.storm:
        return _storm(question, rng, [name for name in STORM if name in able] or list(STORM))
    arms = [
        (fault, victim_for(fault, question.victim if len(fault.victims) > 1 else None), level)
        for fault in question.faults
        for level in question.levels
    ]
    rounds = question.repeat
    if question.until_bound is not None:
        # Twice what clean drills need: undecided ones do not count, and `enough` ends it as soon as it can.
        rounds = max(rounds, 2 * -(-drills_for(question.until_bound) // max(1, len(question.faults))))
    plan: list[PlannedDrill] = []
    for _ in range(rounds):
        order = [int(index) for index in rng.permutation(len(arms))]
        if question.budget_s is not None:
            order.sort(key=lambda index: _far_from_boundary(*arms[index]))
        for index in order:
            fault, victim, level = arms[index]
            plan.append(PlannedDrill(len(plan) + 1, fault, victim, level, question.route, question.writers))
    return plan


def _far_from_boundary(fault: Fault, victim: Victim, level: Level) -> int:
    """How many levels away from where the manual's promise begins: the cells that decide a column come first."""
    loss = loss_of(fault, victim)
    first = next((lv for lv in Level if loss is not None and survives(lv, loss)), Level.REMOTE_APPLY)
    return first.strength - 1 - level.strength if level.strength < first.strength else level.strength - first.strength


def _storm(question: Question, rng: np.random.Generator, names: Sequence[str]) -> list[PlannedDrill]:
    """Seeded random faults on random victims, one after another, levels in turn."""
    plan: list[PlannedDrill] = []
    for i in range(question.storm):
        fault = CATALOGUE[names[int(rng.integers(len(names)))]]
        victim = fault.victims[int(rng.integers(len(fault.victims)))]
        level = question.levels[i % len(question.levels)]
        warm_s = float(rng.uniform(1.0, 4.0))
        plan.append(PlannedDrill(i + 1, fault, victim, level, question.route, question.writers, warm_s))
    return plan


def enough(question: Question, drills: Sequence[Drill], elapsed_s: float = 0.0) -> bool:
    """Whether the budget is used up, or `--until-bound` answered: each level lost, or its clean drills reach it."""
    if question.budget_s is not None and elapsed_s > question.budget_s:
        return True
    if question.until_bound is None:
        return False
    reached = bounds(drills)
    lost = {str(d.level) for d in drills if d.findings.lost}
    return all(
        str(level) in lost or (reached.get(str(level)) or 1.0) <= question.until_bound for level in question.levels
    )
