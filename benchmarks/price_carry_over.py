"""What a sample leaves behind for the next one: throughput by the level that ran before, everything else held equal.

`python -m benchmarks.price_carry_over [--minutes 12]`: on a lab of its own; or `--from RECORD`, any record of `walproof
price` with several levels. Each sample's throughput, divided by the mean of its arm, is fitted by block, arm and the
level before it (least squares); shown are the effects of the level before against the others, with 95 % intervals.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy import stats

from benchmarks.priced_lab import judged, priced, priced_lab
from walproof.estimating.intervals import Numbers
from walproof.model.event import Event, SampleDone
from walproof.model.sample import SampleResult
from walproof.records.reader import read

LIMIT = 0.01


def measured(minutes: float) -> list[Event]:
    """Short samples of three levels, without a pause."""
    options = {"levels": "off,local,on", "clients": "4", "sample": "0.4s", "precision": "0.01%"}
    with priced_lab("carry-over") as target:
        _, bench = priced(target, {**options, "budget": f"{minutes:g}min"})
    return bench.events


def in_order(events: Sequence[Event]) -> list[tuple[SampleResult, str]]:
    """Counted samples, each with the level of the sample before it in time."""
    results = sorted((e.result for e in events if isinstance(e, SampleDone)), key=lambda r: r.started_at)
    return [(after, str(before.sample.arm.level)) for before, after in pairwise(results) if after.sample.block > 0]


def effects(samples: Sequence[tuple[SampleResult, str]]) -> dict[str, tuple[float, float]]:
    """By level that ran before: what it changes against the mean of all, as a share, and half its interval."""
    keys = [
        {f"block {r.sample.block} {r.sample.scenario.text}" for r, _ in samples},
        {f"{r.sample.arm}" for r, _ in samples},
    ]
    names = [sorted(one) for one in keys]
    levels = sorted({before for _, before in samples})
    # One level of each later factor is the reference; effects of `before` sum to 0.
    columns = [*names[0], *names[1][1:], *levels[:-1]]
    place = {name: i for i, name in enumerate(columns)}
    design = np.zeros((len(samples), len(columns)))
    for row, (result, before) in zip(design, samples, strict=True):
        row[place[f"block {result.sample.block} {result.sample.scenario.text}"]] = 1
        if str(result.sample.arm) in place:
            row[place[str(result.sample.arm)]] = 1
        if before in place:
            row[place[before]] = 1
        else:
            row[-(len(levels) - 1) :] = -1
    by_arm: dict[str, list[float]] = {}
    for result, _ in samples:
        by_arm.setdefault(f"{result.sample.arm}", []).append(result.tps)
    means = {arm: fmean(tps) for arm, tps in by_arm.items()}
    return _fitted(design, np.array([r.tps / means[f"{r.sample.arm}"] for r, _ in samples]), levels)


def _fitted(design: Numbers, rates: Numbers, levels: Sequence[str]) -> dict[str, tuple[float, float]]:
    found, _, rank, _ = np.linalg.lstsq(design, rates, rcond=None)
    freedom = len(rates) - int(rank)
    residual = rates - design @ found
    covariance = np.linalg.pinv(design.T @ design) * float(residual @ residual) / freedom
    t = float(stats.t.ppf(0.975, freedom))
    shown = {}
    for number, level in enumerate(levels):
        weight = np.zeros(design.shape[1])
        last = weight[-(len(levels) - 1) :]
        last[:] = -1.0 if number == len(levels) - 1 else 0.0
        if number < len(levels) - 1:
            last[number] = 1.0
        shown[level] = float(weight @ found), t * float(weight @ covariance @ weight) ** 0.5
    return shown


def main() -> int:
    """0 when every effect lies within ± 1 %, 4 when an interval leaves that open."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--from", dest="record", type=Path)
    options = parser.parse_args()
    samples = in_order(list(read(options.record).events) if options.record else measured(options.minutes))
    waited = [1000 * r.window.settled_s for r, _ in samples if r.window.settled_s is not None]
    print(f"{len(samples)} samples; median wait for flush and replay {float(np.median(waited or [np.nan])):.0f} ms")
    found = effects(samples)
    for level, (effect, half) in found.items():
        print(f"after {level:<12} {effect:+7.2%} ± {half:.2%}")
    worst = max(abs(effect) for effect, _ in found.values())
    beyond = any(abs(effect) - half > LIMIT for effect, half in found.values())
    if not beyond and any(abs(effect) + half > LIMIT for effect, half in found.values()):
        print(f"undecided: the largest effect is {worst:.2%}, its interval leaves open whether it is under {LIMIT:.0%}")
        return 4
    return judged("largest effect of the level before", worst, f"under {LIMIT:g} with its interval", not beyond)


if __name__ == "__main__":
    sys.exit(main())
