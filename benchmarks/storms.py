"""Storms on simulated clusters: honest ones may never be broken, lying ones never held, and a broken one shrinks.

`python -m benchmarks.storms [--honest 300] [--seeds 3]`; exit 1 when one is. Prints how much the faults overlapped.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np

from benchmarks.liars import reason, shell, verdict_counts
from walproof.model.drill import Drill, Verdict
from walproof.model.guarantee import Level
from walproof.proving.campaign import PlannedDrill, planned
from walproof.proving.faults import IN_STORMS
from walproof.proving.options import parse_options
from walproof.proving.run import run_drills, shrink_storms
from walproof.targets.simulated.known_lies import ODDITIES

_ALWAYS = ("lost", "duplicate", "corrupted", "nowhere", "trigger-sets-level", "unlogged", "fsync-off", "new-damage")
"""Lies that show whatever the fault is."""


def one_storm(address: str, level: Level, seed: int, faults: int) -> tuple[PlannedDrill, Drill]:
    """The first storm of a seed, on a simulated cluster."""
    options = parse_options(
        {"storm": "1", "storm_faults": str(faults), "levels": str(level), "seed": str(seed), "writers": "8"}
    )
    (plan,) = planned(options)
    return plan, run_drills(shell(address, seed), [plan], enough=lambda _: False)[0]


def honest(count: int) -> Iterator[tuple[str, Drill]]:
    """Storms of two to six faults on honest clusters of every kind, at every level."""
    rng, levels, odd = np.random.default_rng(1), list(Level), ["", *ODDITIES]
    for seed in range(1, count + 1):
        level = levels[int(rng.integers(len(levels)))]
        sync = ("quorum", "on", "strict")[int(rng.integers(3))]
        members, oddity = int(rng.integers(2, 6)), odd[int(rng.integers(len(odd)))]
        address = f"sim?seed={seed}&sync={sync}&members={members}&slowness=15" + (f"&odd={oddity}" if oddity else "")
        _, drill = one_storm(address, level, seed, int(rng.integers(2, 7)))
        yield f"{level}, {address}", drill


def overlapping(drill: Drill) -> int:
    """The most faults that were in effect at once, by the marks of the drill."""
    steps = {**dict.fromkeys(IN_STORMS, 1), **{f"{name} cleared": -1 for name in IN_STORMS}}
    most = now = 0
    for mark in sorted(drill.marks, key=lambda m: m.at):
        now += steps.get(mark.what, 0)
        most = max(most, now)
    return most


def lying(seeds: int) -> Iterator[tuple[str, Drill]]:
    """Lies that show whatever the fault is, and every fault that a storm draws replaced by nothing."""
    for name in (*_ALWAYS, *(f"no-{fault}" for fault in IN_STORMS)):
        for seed in range(1, seeds + 1):
            _, drill = one_storm(f"sim?lie={name}&slowness=15&sync=strict&seed={seed}", Level.ON, seed, 8)
            replaced = f" {name.removeprefix('no-')} of "
            if name in _ALWAYS or any(replaced in one and "cleared" in one for one in drill.strikes):
                yield name, drill


def smallest(seeds: int) -> Iterator[tuple[int, int]]:
    """Storms of eight faults that break because the old leader goes on next to the new one: (faults, faults left)."""
    for seed in range(1, seeds + 1):
        address = f"sim?lie=two-leaders&sync=strict&slowness=15&seed={seed}"
        plan, drill = one_storm(address, Level.ON, seed, 8)
        if drill.verdict is Verdict.BROKEN:
            tried = shrink_storms(shell(address, seed), [plan], [drill], 20)
            left = [len(one.strikes) for one in tried if one.verdict is Verdict.BROKEN]
            yield len(drill.strikes), min(left, default=len(drill.strikes))


def _fails(verdict: Verdict, found: list[tuple[str, Drill]]) -> int:
    """How many have a verdict that none may have; prints them."""
    wrong = [(what, drill) for what, drill in found if drill.verdict is verdict]
    for what, drill in wrong:
        print(f"{str(verdict).upper()}: {what}: {drill.why}\n  " + "\n  ".join(drill.strikes))
    return len(wrong)


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = list(honest(options.honest))
    wrong = _fails(Verdict.BROKEN, found)
    print(f"{len(found)} honest storms: {verdict_counts(found)}")
    at_once = Counter(overlapping(drill) for _, drill in found)
    print("  faults at once: " + ", ".join(f"{most} in {count}" for most, count in sorted(at_once.items())))
    reasons = Counter(reason(drill) for _, drill in found if drill.verdict is Verdict.UNDECIDED)
    for why, number in reasons.most_common():
        print(f"  {number} undecided: {why}")
    lies = list(lying(options.seeds))
    wrong += _fails(Verdict.HELD, lies)
    print(f"{len(lies)} storms on lying clusters: {verdict_counts(lies)}")
    left = Counter(least for _, least in smallest(5 * options.seeds))
    print("storms of 8 faults that broke, shrunk to: " + ", ".join(f"{n} ({count} ×)" for n, count in left.items()))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
