"""`python -m benchmarks.simulated_lies drills|storms`: the judge attacked on simulated clusters.

Every lie must not be held, no honest history may be broken; exit code 1 when one is, and when all of a kind are left
undecided: a judge that decides nothing proves nothing. Prints what was, and why honest histories were undecided.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.command import command
from tests.fixtures.drills import drilled, shell
from walproof.model.drill import Drill, Verdict
from walproof.model.guarantee import Level
from walproof.proving.campaign import PlannedDrill, planned
from walproof.proving.faults import CATALOGUE, IN_STORMS
from walproof.proving.options import parse_options
from walproof.proving.run import shrink_storms
from walproof.targets.simulated.known_lies import LIES, ODDITIES
from walproof.targets.simulated.target import simulated

Drills = Sequence[tuple[str, Drill]]
"""Each with what it was."""
_ALWAYS = ("lost", "duplicate", "corrupted", "nowhere", "trigger-sets-level", "unlogged", "fsync-off", "new-damage")
"""Lies that show whatever the fault is."""


def drills(*, seeds: int = 3, honest: int = 1000) -> int:
    """Every lie with several seeds in the drill in which it shows, and random honest drills."""
    lying = list(_lying_drills(seeds))
    counts = Counter(drill.verdict for _, drill in lying)
    undecided, broken = counts[Verdict.UNDECIDED], counts[Verdict.BROKEN]
    held = _print([(name, drill) for name, drill in lying if drill.verdict not in (Verdict.BROKEN, Verdict.UNDECIDED)])
    print(f"{len(LIES)} lies × {seeds} seeds: {held} held, {broken} broken, {undecided} undecided", flush=True)
    wrong = held + _none_of("lies was broken", broken)
    return int(bool(wrong + _judge_honest("histories", list(_honest_drills(honest)))))


def storms(*, honest: int = 300, seeds: int = 3) -> int:
    """Storms of overlapping faults: honest ones, lying ones, and broken ones shrunk to the fewest faults."""
    calm = list(_honest_storms(honest))
    wrong = _judge_honest("storms", calm)
    at_once = Counter(_overlapping(drill) for _, drill in calm)
    print("  faults at once: " + ", ".join(f"{most} in {count}" for most, count in sorted(at_once.items())))
    lying = list(_lying_storms(seeds))
    wrong += _print([(name, drill) for name, drill in lying if drill.verdict is Verdict.HELD])
    wrong += _none_of("lying storms was broken", sum(drill.verdict is Verdict.BROKEN for _, drill in lying))
    print(f"{len(lying)} storms on lying clusters: {_verdicts(lying)}")
    left = Counter(_shrunk(5 * seeds))
    print("storms of 8 faults that broke, shrunk to: " + ", ".join(f"{n} ({count} ×)" for n, count in left.items()))
    return int(bool(wrong + _none_of("storms with two leaders broke", left.total())))


def _print(wrong: Drills) -> int:
    """Drills whose verdict none may have; how many."""
    for name, drill in wrong:
        print(f"{str(drill.verdict).upper()}: {name}: {drill.why}", *drill.strikes, sep="\n  ")
    return len(wrong)


def _none_of(what: str, count: int) -> int:
    """Print that there is none, where that is so; 1 then, else 0."""
    if not count:
        print(f"NONE of the {what}")
    return int(not count)


def _judge_honest(what: str, done: Drills) -> int:
    """Print the verdicts and why some are undecided; how many are broken, 1 where none is decided."""
    broken = _print([(name, drill) for name, drill in done if drill.verdict is Verdict.BROKEN])
    print(f"{len(done)} honest {what}: {_verdicts(done)}")
    undecided = [(_reason(drill), name) for name, drill in done if drill.verdict is Verdict.UNDECIDED]
    example = dict(reversed(undecided))
    for why, count in Counter(why for why, _ in undecided).most_common():
        print(f"  {count} undecided: {why} (for instance {example[why]})")
    return broken + _none_of(f"honest {what} was decided", sum(drill.verdict.decided for _, drill in done))


def _verdicts(done: Drills) -> str:
    """How many drills have which verdict, the most frequent first."""
    verdicts = Counter(str(drill.verdict) for _, drill in done)
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())


def _reason(drill: Drill) -> str:
    """Which assumptions failed, in a few words."""
    return ", ".join(name for name, holds in drill.assumptions.items() if not holds) or drill.why


def _drilled(address: str, fault: str, level: Level, *, which: int = 0, seed: int = 1) -> Drill:
    entry = CATALOGUE[fault]
    plan = PlannedDrill(1, entry, entry.victims[which % len(entry.victims)], level, "multi-host", 8)
    return drilled(simulated(address), plan, seed=seed)


def _lying_drills(seeds: int) -> Iterator[tuple[str, Drill]]:
    for name, lie in LIES.items():
        for seed in range(1, seeds + 1):
            address = f"sim?lie={name}&slowness=3&seed={seed}&{lie.sync}"
            yield name, _drilled(address, lie.fault, lie.level, seed=seed)


def _honest_drills(count: int) -> Iterator[tuple[str, Drill]]:
    """Random honest histories: every fault, victim, level, quorum and oddity."""
    rng = np.random.default_rng(1)
    faults, levels = sorted(CATALOGUE), list(Level)
    for seed in range(1, count + 1):
        fault, level = faults[int(rng.integers(len(faults)))], levels[int(rng.integers(len(levels)))]
        address, oddity = _address(seed, rng)
        address += f"&rtt={int(rng.integers(0, 11))}ms{oddity}"
        drill = _drilled(address, fault, level, which=int(rng.integers(0, 4)), seed=seed)
        yield f"{fault} of {drill.victim} at {level}, {address}", drill


def _address(seed: int, rng: np.random.Generator) -> tuple[str, str]:
    """An honest cluster of any kind, and what is odd about it."""
    sync = ("quorum", "on", "strict")[int(rng.integers(3))]
    members, oddity = int(rng.integers(2, 6)), ["", *ODDITIES][int(rng.integers(len(ODDITIES) + 1))]
    return f"sim?seed={seed}&sync={sync}&members={members}&slowness=15", f"&odd={oddity}" if oddity else ""


def _storm(address: str, level: Level, seed: int, faults: int) -> tuple[PlannedDrill, Drill]:
    """The first storm of a seed, on a simulated cluster."""
    asked = {"storm": "1", "storm_faults": str(faults), "levels": str(level), "seed": str(seed), "writers": "8"}
    (plan,) = planned(parse_options(asked))
    return plan, drilled(simulated(address), plan, seed=seed)


def _honest_storms(count: int) -> Iterator[tuple[str, Drill]]:
    """Storms of two to six faults on honest clusters of every kind, at every level."""
    rng, levels = np.random.default_rng(1), list(Level)
    for seed in range(1, count + 1):
        level = levels[int(rng.integers(len(levels)))]
        address = "".join(_address(seed, rng))
        yield f"{level}, {address}", _storm(address, level, seed, int(rng.integers(2, 7)))[1]


def _overlapping(drill: Drill) -> int:
    """The most faults that were in effect at once, by the marks of the drill."""
    steps = {**dict.fromkeys(IN_STORMS, 1), **{f"{name} cleared": -1 for name in IN_STORMS}}
    marks = sorted(drill.marks, key=lambda mark: mark.at)
    return int(max(np.cumsum([0, *(steps.get(mark.what, 0) for mark in marks)])))


def _lying_storms(seeds: int) -> Iterator[tuple[str, Drill]]:
    """Lies that show whatever the fault is, and every fault that a storm draws replaced by nothing."""
    for name in (*_ALWAYS, *(f"no-{fault}" for fault in IN_STORMS)):
        for seed in range(1, seeds + 1):
            _, drill = _storm(f"sim?lie={name}&slowness=15&sync=strict&seed={seed}", Level.ON, seed, 8)
            replaced = f" {name.removeprefix('no-')} of "
            if name in _ALWAYS or any(replaced in one and "cleared" in one for one in drill.strikes):
                yield name, drill


def _shrunk(seeds: int) -> Iterator[int]:
    """The faults left of storms of eight that break because the old leader goes on next to the new one."""
    for seed in range(1, seeds + 1):
        address = f"sim?lie=two-leaders&sync=strict&slowness=15&seed={seed}"
        plan, drill = _storm(address, Level.ON, seed, 8)
        if drill.verdict is Verdict.BROKEN:
            tried = shrink_storms(shell(simulated(address), seed=seed), [plan], [drill], 20)
            left = [len(one.strikes) for one in tried if one.verdict is Verdict.BROKEN]
            yield min(left, default=len(drill.strikes))


if __name__ == "__main__":
    command(drills, storms)
