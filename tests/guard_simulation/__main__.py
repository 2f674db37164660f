"""python -m tests.guard_simulation [--schedules N] [--first N] [--processes N]: run schedules; 1 when one goes wrong.

--seed N: tell one schedule's story. --all: go on after the first violation, and shrink one of each kind.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.guard_simulation.mutator import EQUIVALENT, fates
from tests.guard_simulation.schedule import draw
from tests.guard_simulation.shortest import shrink, story
from tests.guard_simulation.simulate import judge

_BATCH = 500


@dataclass(slots=True)
class Batch:
    """What a batch of schedules came to. wrong: (seed, kind) of each violation."""

    count: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)


def run(first: int, number: int) -> Batch:
    """Run so many schedules from the first seed on."""
    batch = Batch()
    for seed in range(first, first + number):
        outcome = judge(draw(seed))
        batch.count["schedules"] += 1
        batch.count["seals"] += outcome.seals
        batch.count["hand-overs"] += outcome.hand_overs
        batch.count["promotions"] += outcome.promotions
        batch.count["Patroni's own losses"] += outcome.patroni_losses
        batch.count["virtual seconds"] += round(outcome.ended)
        kinds = dict.fromkeys(v.kind for v in outcome.wrong)
        batch.wrong.extend((seed, kind) for kind in kinds)
    return batch


def _batches(first: int, number: int, processes: int) -> Iterator[Batch]:
    starts = [(at, min(_BATCH, first + number - at)) for at in range(first, first + number, _BATCH)]
    if processes == 1:
        yield from (run(at, n) for at, n in starts)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, *zip(*starts, strict=True))


def _mutants(schedules: int, processes: int, only: str, every: int) -> int:
    began, count = time.monotonic(), Counter[str]()
    for name, how in fates(schedules, processes, only, every):
        count[how.split(" ")[0]] += 1
        print(f"{how:28} {name}", flush=True)
    print(
        f"found by the simulation {count['found']}, by unit tests {count['unit']}, surviving {count['SURVIVES']}, "
        f"of {count.total()}; {len(EQUIVALENT)} are equivalent; {time.monotonic() - began:.0f} s"
    )
    return 0 if count["SURVIVES"] <= 0.05 * count.total() else 1


def main() -> int:
    """0 when nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.guard_simulation")
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--mutants", nargs="?", const="", metavar="FILE:LINE")
    parser.add_argument("--every", type=int, default=1, help="of the mutants: a sample")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = judge(draw(options.seed), recorded=True)
        print(story(outcome))
        return 1 if outcome.wrong else 0
    if options.mutants is not None:
        return _mutants(min(options.schedules, 2000), options.processes, options.mutants, options.every)
    began, total = time.monotonic(), Batch()
    for batch in _batches(options.first, options.schedules, options.processes):
        total.count.update(batch.count)
        total.wrong.extend(batch.wrong)
        if total.wrong and not options.all:
            break
    took = time.monotonic() - began
    kinds = Counter(kind for _, kind in total.wrong)
    print(", ".join(f"{n} {what}" for what, n in total.count.items()))
    print(f"{took:.0f} s, {took / total.count['schedules'] * 1000:.1f} ms a schedule; wrong: {dict(kinds) or 'none'}")
    for kind in kinds:
        seeds = [seed for seed, k in total.wrong if k == kind]
        print(f"\n{kind}: seeds {seeds[:10]}")
        print(story(shrink(draw(seeds[0]), kind)), flush=True)
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
