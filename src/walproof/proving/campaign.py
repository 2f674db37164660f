"""Which drills in which order: levels × faults × repeats interleaved, storms, the matrix. Pure, from a seed.

A storm is faults that overlap, many just after a takeover: drawn here, and shrunk to the fewest that break."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from walproof.errors import UsageError
from walproof.model.drill import Capability, Drill, Verdict, Victim
from walproof.model.guarantee import Level, survives
from walproof.model.units import counted
from walproof.proving.fault_steps import Fault
from walproof.proving.faults import CATALOGUE, IN_STORMS, SHRUNK, STORM, loss_of
from walproof.proving.loss_bounds import Kind, drills_for, reached
from walproof.proving.options import ProveOptions

_KEEPS_THE_LEADER = (Capability.RESTART, Capability.SLOW_DISK)
_JUST_AFTER_S = 0.3
"""A strike just after a takeover comes within so much of it: a new leader may not have named a standby yet."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of a storm as planned, on a member that leads or follows at that moment."""

    fault: str
    victim: Victim
    after_s: float
    """Pause since the strike before, or since the takeover it waits for."""
    after_takeover: bool
    """Whether it first waits until another member leads than at the strike before."""
    lasts_s: float
    """It is cleared so long after it began, while others go on."""
    pick: float = 0.0
    """Which of several members, as a share of them: 0 the first."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault of a storm as it was carried out; times are seconds since the epoch."""

    fault: str
    member: str
    led: bool
    """Whether it was carried out on the leader of the moment."""
    at: float
    cleared_at: float
    refused: str = ""
    """Why the target did not do it."""
    partly: bool = False
    """Whether part of it may have been in effect although the target did not do it."""
    cleared: bool = True
    """Whether it was over at `cleared_at`."""


def drawn(rng: np.random.Generator, names: Sequence[str], faults: int) -> tuple[Strike, ...]:
    """A storm of so many faults among `names`: three of five on the leader, and after most of those one just after."""
    storm: list[Strike] = []
    for _ in range(faults):
        on_leader = bool(rng.random() < 0.6)
        if not (fitting := _falling_on(names, leader=on_leader)):
            on_leader, fitting = not on_leader, names
        fault = fitting[int(rng.integers(len(fitting)))]
        just_after = bool(storm) and moves_the_leader(storm[-1]) and bool(rng.random() < 0.7)
        storm.append(
            Strike(
                fault,
                Victim.LEADER if on_leader else Victim.STANDBY,
                round(float(rng.uniform(0.0, _JUST_AFTER_S) if just_after else rng.uniform(0.2, 4.0)), 3),
                just_after,
                round(float(rng.uniform(2.0, 12.0)), 3),
                int(rng.integers(1000)) / 1000,
            )
        )
    return tuple(storm)


def _falling_on(names: Sequence[str], *, leader: bool) -> Sequence[str]:
    """Those of the faults that can fall on a leader, or on a standby."""
    return [name for name in names if any((victim is Victim.LEADER) is leader for victim in CATALOGUE[name].victims)]


def moves_the_leader(strike: Strike) -> bool:
    """Whether another member may lead after it."""
    return strike.victim is Victim.LEADER and CATALOGUE[strike.fault].steps[0].operation not in _KEEPS_THE_LEADER


def shrunk(storm: tuple[Strike, ...], breaks: Callable[[tuple[Strike, ...]], bool], tries: int) -> tuple[Strike, ...]:
    """The fewest strikes found that still break: halves are left out, then single ones; asks `breaks` `tries` times.

    A smaller storm may hold by luck on a real cluster: the answer is one that did break, not the smallest there is.

    >>> kill = Strike("kill", Victim.LEADER, 1.0, False, 2.0)
    >>> storm = tuple(replace(kill, pick=share) for share in (0.1, 0.2, 0.3, 0.4, 0.5))
    >>> [one.pick for one in shrunk(storm, lambda some: {0.2, 0.5} <= {one.pick for one in some}, 20)]
    [0.2, 0.5]
    """
    size = max(1, len(storm) // 2)
    begin = 0
    while len(storm) > 1 and tries > 0:
        fewer = _sound((*storm[:begin], *storm[begin + size :]))
        tries -= 1
        if fewer and breaks(fewer):
            storm, size, begin = fewer, max(1, min(size, len(fewer) // 2)), 0
            continue
        begin += size
        if begin >= len(storm):
            if size == 1:
                break
            size, begin = size // 2, 0
    return storm


def _sound(storm: tuple[Strike, ...]) -> tuple[Strike, ...]:
    """The same without waits for a takeover that no strike before causes."""
    causes = (False, *(moves_the_leader(strike) for strike in storm))
    return tuple(
        replace(strike, after_takeover=strike.after_takeover and caused)
        for strike, caused in zip(storm, causes, strict=False)
    )


def planned_clauses(storm: Sequence[Strike]) -> tuple[str, ...]:
    """Each strike in words, as planned.

    >>> kill = Strike("kill", Victim.LEADER, 1.25, False, 3.0)
    >>> planned_clauses([kill, replace(kill, fault="freeze", victim=Victim.STANDBY, after_takeover=True)])
    ('after 1.2 s kill of the leader for 3.0 s', '1.2 s after the takeover freeze of any standby for 3.0 s')
    """
    return tuple(
        (f"{one.after_s:.1f} s after the takeover " if one.after_takeover else f"after {one.after_s:.1f} s ")
        + f"{one.fault} of {one.victim.named} for {one.lasts_s:.1f} s"
        for one in storm
    )


def clauses(struck: Sequence[Struck]) -> tuple[str, ...]:
    """Each strike in words, with its time since the first.

    >>> clauses([Struck("kill", "n1", True, 5.0, 8.5), Struck("freeze", "n2", False, 6.0, 6.0, "n2 is down")])
    ('0.0 s: kill of n1, the leader, cleared after 3.5 s', '1.0 s: freeze of n2 not done: n2 is down')
    """
    first = struck[0].at if struck else 0.0
    return tuple(f"{one.at - first:.1f} s: {_clause(one)}" for one in struck)


def _clause(one: Struck) -> str:
    if one.refused:
        return f"{one.fault} of {one.member} not done: {one.refused}" if one.member else f"{one.fault}: {one.refused}"
    who = f"{one.fault} of {one.member}{', the leader' if one.led else ''}"
    lasted = f"{one.cleared_at - one.at:.1f} s"
    return f"{who}, cleared after {lasted}" if one.cleared else f"{who}, not cleared in {lasted}"


def fewest(drills: Sequence[Drill]) -> str:
    """The smallest storm that broke a promise, as lines; "" where none did."""
    storms = [d for d in drills if d.fault in (STORM.name, SHRUNK.name)]
    broken = [d for d in storms if d.verdict is Verdict.BROKEN]
    if not broken:
        return ""
    least = min(broken, key=lambda d: len(d.strikes))
    lines = [f"fewest faults that still break, of {counted(len(storms), 'storm')} (drill {least.number}):"]
    return "\n".join([*lines, *(f"  {clause}" for clause in least.strikes)])


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
    """A guard of Patroni watched the cluster: of histories kept before it was removed."""
    client_timeout_s: float = 3.0
    """How long a writer waits for an answer before it tries another server."""
    return_order: tuple[str, ...] = ()
    """In which order members come back, by name or role (return_order.py); of none, all at once."""


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
            for back in options.return_orders:
                plan.append(PlannedDrill(len(plan) + 1, fault, victim, level, return_order=back, **options.load))
    return plan


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
        own: dict[str, Any] = {"warm_s": 1.0, "storm": storm}
        plan.append(PlannedDrill(number, STORM, Victim.CLUSTER, level, **own, **options.load))
    return plan


def consents_needed(plan: Sequence[PlannedDrill]) -> tuple[str, ...]:
    """The names that --allow must give for these drills on an external cluster: load, and each fault's own."""
    names = [drill.fault.name for drill in plan if drill.fault.steps]
    names += [strike.fault for drill in plan for strike in drill.storm]
    return ("load", *dict.fromkeys(sorted(names)))


def enough(options: ProveOptions, drills: Sequence[Drill], elapsed_s: float = 0.0) -> bool:
    """Whether the budget is used up, or each level, fault and victim lost something or reached `--until-bound`."""
    if options.budget_s is not None and elapsed_s > options.budget_s:
        return True
    if options.until_bound is None:
        return False
    asked = [
        Kind(level, fault.name, victim, str(loss_of(fault, victim) or "")) for fault, victim, level in _arms(options)
    ]
    return reached(drills, asked, options.until_bound)
