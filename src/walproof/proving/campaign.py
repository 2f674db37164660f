"""Which drills in which order: levels × faults × repeats interleaved, storms, the matrix. Pure, from a seed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walproof.errors import UsageError
from walproof.model.guarantee import Level, survives
from walproof.model.verdict import Drill, Victim
from walproof.proving.bounds import Kind, drills_for, reached
from walproof.proving.faults import IN_STORMS, STORM, Fault, loss_of
from walproof.proving.options import ProveOptions
from walproof.proving.storm import Strike, drawn


@dataclass(frozen=True, slots=True)
class PlannedDrill:
    """One drill to be run: fault, victim, level, route, number of writers."""

    number: int
    fault: Fault
    victim: Victim
    level: Level
    route: str = "multi-host"
    writers: int = 16
    warm_s: float = 2.0
    """Time of commits before the fault, to which a random part of a second is added."""
    storm: tuple[Strike, ...] = ()
    """The faults of a storm; of none, `fault` alone."""
    guarded: bool = False
    """A guard watches the cluster."""
    client_timeout_s: float = 3.0
    """How long a writer waits for an answer before it tries another server."""


def victim_for(fault: Fault, asked: Victim | None) -> Victim:
    """The victim asked for, else the fault's first; UsageError when the fault cannot fall on it."""
    if asked is None:
        return fault.victims[0]
    if asked not in fault.victims:
        raise UsageError(
            f"{fault.name} cannot fall on {asked}", f"its victims are {', '.join(str(v) for v in fault.victims)}"
        )
    return asked


def planned(options: ProveOptions, available: Collection[str] = IN_STORMS) -> list[PlannedDrill]:
    """Every drill in order: each round visits every fault × level once in seeded random order.

    `available`: faults this target can do, for a storm to choose from. `--until-bound b` plans as many rounds as clean
    drills needed; the run stops earlier where a level has lost.
    """
    rng = np.random.default_rng(options.seed)
    if options.storm:
        return _storms(options, [name for name in IN_STORMS if name in available] or list(IN_STORMS))
    arms = _arms(options)
    rounds = options.repeat
    if options.until_bound is not None:
        # Twice what clean drills need: undecided ones do not count, and `enough` ends it as soon as it can.
        rounds = max(rounds, 2 * drills_for(options.until_bound))
    plan: list[PlannedDrill] = []
    for _ in range(rounds):
        order = [int(index) for index in rng.permutation(len(arms))]
        if options.budget_s is not None:
            order.sort(key=lambda index: _far_from_boundary(*arms[index]))
        for index in order:
            fault, victim, level = arms[index]
            for guarded in options.guarded:
                plan.append(_under_load(options, PlannedDrill(len(plan) + 1, fault, victim, level), guarded=guarded))
    return plan


def _under_load(options: ProveOptions, drill: PlannedDrill, *, guarded: bool) -> PlannedDrill:
    """The drill under the load that was asked for."""
    return replace(
        drill,
        route=options.route,
        writers=options.writers,
        guarded=guarded,
        client_timeout_s=options.client_timeout_s,
    )


def _arms(options: ProveOptions) -> list[tuple[Fault, Victim, Level]]:
    """Every combination that was asked for."""
    return [
        (fault, victim_for(fault, options.victim if len(fault.victims) > 1 else None), level)
        for fault in options.faults
        for level in options.levels
    ]


def _far_from_boundary(fault: Fault, victim: Victim, level: Level) -> int:
    """How many levels away from the weakest that is documented to survive: those nearest to it are run first."""
    loss = loss_of(fault, victim)
    first = next((lv for lv in Level if loss is not None and survives(lv, loss)), Level.REMOTE_APPLY)
    return first.strength - 1 - level.strength if level.strength < first.strength else level.strength - first.strength


def _storms(options: ProveOptions, names: Sequence[str]) -> list[PlannedDrill]:
    """Storms of seeded faults, levels in turn; the same number is the same storm, however many are asked for."""
    plan: list[PlannedDrill] = []
    for number in range(1, options.storm + 1):
        storm = drawn(np.random.default_rng([options.seed, number]), names, options.storm_faults)
        level = options.levels[(number - 1) % len(options.levels)]
        drill = PlannedDrill(number, STORM, Victim.CLUSTER, level, warm_s=1.0, storm=storm)
        plan.append(_under_load(options, drill, guarded=options.guarded[0]))
    return plan


def consents_needed(plan: Sequence[PlannedDrill]) -> tuple[str, ...]:
    """The names that --allow must give for these drills on an external cluster: load, and each fault's own."""
    names = [drill.fault.name for drill in plan if drill.fault.steps]
    names += [strike.fault for drill in plan for strike in drill.storm]
    names += ["takeover" for drill in plan if drill.guarded]
    return ("load", *dict.fromkeys(sorted(names)))


def enough(options: ProveOptions, drills: Sequence[Drill], elapsed_s: float = 0.0) -> bool:
    """Whether the budget is used up, or each level, fault and victim lost something or reached `--until-bound`."""
    if options.budget_s is not None and elapsed_s > options.budget_s:
        return True
    if options.until_bound is None:
        return False
    asked = [
        Kind(level, fault.name, victim, str(loss_of(fault, victim) or ""), guarded)
        for fault, victim, level in _arms(options)
        for guarded in options.guarded
    ]
    return reached(drills, asked, options.until_bound)
