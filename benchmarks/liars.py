"""Attacks the judge on the simulated cluster: every lie must not be held, no honest history may be broken.

`python -m benchmarks.liars [--seeds 3] [--honest 1000]`; exit 1 when a lie is held or an honest history is broken.
Prints every lie that was held, and why honest histories were left undecided.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np

from walproof.model.drill import Drill, Verdict
from walproof.model.guarantee import Level
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import CATALOGUE
from walproof.proving.run import Shell, run_drills
from walproof.targets.simulated.known_lies import LIES, ODDITIES
from walproof.targets.simulated.target import simulated


def drilled(address: str, fault: str, level: Level, *, which: int = 0, seed: int = 1) -> Drill:
    """One drill on a simulated cluster."""
    entry = CATALOGUE[fault]
    planned = PlannedDrill(1, entry, entry.victims[which % len(entry.victims)], level, "multi-host", 8)
    return run_drills(shell(address, seed), [planned], enough=lambda _drills: False)[0]


def shell(address: str, seed: int) -> Shell:
    """What drills on a simulated cluster need; nothing of them is kept."""
    return Shell(simulated(address), lambda _event: None, lambda _name, _content: None, seed=seed)


def lies(seeds: int) -> Iterator[tuple[str, Drill]]:
    """Each lie in the drill in which it shows, with several seeds."""
    for name, lie in LIES.items():
        for seed in range(1, seeds + 1):
            address = f"sim?lie={name}&slowness=3&seed={seed}&{lie.sync}"
            yield name, drilled(address, lie.fault, lie.level, seed=seed)


def honest(count: int) -> Iterator[tuple[str, Drill]]:
    """Random honest histories: every fault, victim, level, quorum and oddity."""
    rng = np.random.default_rng(1)
    faults, levels, odd = sorted(CATALOGUE), list(Level), ["", *ODDITIES]
    for seed in range(1, count + 1):
        fault, level = faults[int(rng.integers(len(faults)))], levels[int(rng.integers(len(levels)))]
        sync = ("quorum", "on", "strict")[int(rng.integers(3))]
        members, oddity = int(rng.integers(2, 6)), odd[int(rng.integers(len(odd)))]
        address = f"sim?seed={seed}&sync={sync}&members={members}&rtt={int(rng.integers(0, 11))}ms&slowness=15"
        address += f"&odd={oddity}" if oddity else ""
        drill = drilled(address, fault, level, which=int(rng.integers(0, 4)), seed=seed)
        yield f"{fault} of {drill.victim} at {level}, {address}", drill


def reason(drill: Drill) -> str:
    """Which assumptions failed, in a few words."""
    return ", ".join(name for name, holds in drill.assumptions.items() if not holds) or drill.why


def verdict_counts(found: list[tuple[str, Drill]]) -> str:
    """How many drills have which verdict, the most frequent first."""
    verdicts = Counter(str(drill.verdict) for _, drill in found)
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())


def main() -> int:
    """Print both counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--honest", type=int, default=1000)
    options = parser.parse_args()
    shown = list(lies(options.seeds))
    held = [(name, drill) for name, drill in shown if drill.verdict not in (Verdict.BROKEN, Verdict.UNDECIDED)]
    broken = sum(drill.verdict is Verdict.BROKEN for _, drill in shown)
    for name, drill in held:
        print(f"HELD: {name}: {drill.why}")
    undecided = len(shown) - broken - len(held)
    counts = f"{len(held)} held, {broken} broken, {undecided} undecided"
    print(f"{len(LIES)} lies × {options.seeds} seeds: {counts}", flush=True)
    found = list(honest(options.honest))
    false = [(what, drill) for what, drill in found if drill.verdict is Verdict.BROKEN]
    for what, drill in false:
        print(f"BROKEN: {what}: {drill.why}")
    print(f"{len(found)} honest histories: {verdict_counts(found)}")
    reasons = Counter(reason(drill) for _, drill in found if drill.verdict is Verdict.UNDECIDED)
    for why, count in reasons.most_common():
        example = next(what for what, drill in found if drill.verdict is Verdict.UNDECIDED and reason(drill) == why)
        print(f"  {count} undecided: {why} (for instance {example})")
    return int(bool(held or false))


if __name__ == "__main__":
    sys.exit(main())
