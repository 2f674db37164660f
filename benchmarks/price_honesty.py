"""A hundred quick A/A runs on a lab: how many intervals cover 1.

`python -m benchmarks.price_honesty [--minutes 11]`: on a lab of its own. The baseline runs against itself without a
pause; the hundred quick runs follow one another in it, each with its share of the pairs. Or `--from RECORD`, made by
`walproof price --aa`. Early stopping is simulated (`benchmarks.price_truth`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.estimating.ratios import ratio_interval
from walproof.model.estimate import Estimate
from walproof.model.event import Event
from walproof.model.guarantee import Level
from walproof.pricing.estimates import Pair, paired_totals, pairs_of, samples_of
from walproof.pricing.sampling import AGAIN
from walproof.records.reader import read

RUNS = 100
FEWEST = 5
"""Pairs of a quick run."""
Pairs = list[Pair]


def measured(minutes: float) -> list[Event]:
    """Events of one long A/A run."""
    options = {"aa": True, "clients": "4", "precision": "0.01%", "budget": f"{minutes:g}min", "sample": "0.2s"}
    with priced_lab("honesty") as target:
        _, bench = priced(target, options)
    return bench.events


def pairs(events: Sequence[Event]) -> Pairs:
    """The baseline run against itself, pair by pair."""
    (blocks,) = samples_of(events).values()
    arm = next(a for found in blocks.values() for a in found if a.label == AGAIN)
    return pairs_of(blocks, arm, Level.LOCAL)


def run(found: Pairs) -> Estimate:
    """One quick run over these pairs."""
    return ratio_interval(*paired_totals(found))


def main() -> int:
    """0 when 90 to 99 of 100 cover."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=11)
    parser.add_argument("--from", dest="record", type=Path)
    options = parser.parse_args()
    found = pairs(list(read(options.record).events) if options.record else measured(options.minutes))
    most = len(found) // RUNS
    if most < FEWEST:
        print(f"undecided: {len(found)} pairs are too few for {RUNS} runs of {FEWEST}; is the machine busy?")
        return 4
    runs = [run(found[i * most : (i + 1) * most]) for i in range(RUNS)]
    halves = float(np.median([one.half_width for one in runs]))
    print(f"{len(found)} pairs: {RUNS} runs of {most} pairs; median interval ± {halves:.1%}")
    cover = sum(one.covers(1.0) for one in runs)
    return judged("intervals that cover 1", cover, "90 to 99 of 100", 90 <= cover <= 99)


if __name__ == "__main__":
    sys.exit(main())
