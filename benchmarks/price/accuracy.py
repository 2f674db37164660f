"""How far a price can be trusted, measured on a lab: its interval, honesty, spread between runs and carry-over."""

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.command import judged
from benchmarks.temporary_lab import benchmark_target, priced
from tests.fixtures.known_prices import effects_of_level_before
from walproof.estimating.intervals import BETWEEN_RUNS
from walproof.estimating.ratios import ratio_interval
from walproof.model.estimate import Estimate
from walproof.model.event import Event, SampleDone
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Sample, SampleResult, Scenario, Workload
from walproof.pricing.estimates import Pair, paired_totals, pairs_of, samples_of
from walproof.pricing.sampling import AGAIN
from walproof.records.reader import read
from walproof.targets.lab.target import LabTarget

BUDGET_S = 240
REPEATS = 4
ARM = Arm(Level.LOCAL, 4, Workload(scale=20))
COMES_AND_GOES = """
import random, time
weather = random.Random(1)
while True:
    until = time.monotonic() + weather.expovariate(1 / {spell_s})
    while time.monotonic() < until:
        sum(range(10000))
    time.sleep(weather.expovariate(1 / {spell_s}))
"""
RUNS = 100
FEWEST = 5
"""Pairs of a quick run."""
Z = 1.96
LIMIT = 0.01


def precision(spell_s: float = 30.0) -> int:
    """Under a load that comes and goes: the interval of 4 minutes of blocks against the spread of plain runs.

    10 minutes. Plain: four times 30 s of local, then 30 s of on. The load uses every processor for SPELL_S on average,
    then rests as long, as a nightly job or a neighbour does. The shorter its spells, the more of them a plain run
    averages over.
    """
    options = {"levels": "local,on", "clients": "4", "precision": "0.1%", "budget": f"{BUDGET_S}s", "scale": "20"}
    with benchmark_target("precision") as target:
        target.pricing.prepare(ARM.workload)
        with _background(spell_s):
            ratios = _plain_ratios(target)
            result, _ = priced(target, options)
    on = next(p for p in result.table.arms if p.arm.level is Level.ON)
    width, spread = on.ratio.high - on.ratio.low, max(ratios) - min(ratios)
    print(f"blocks: on/local {on.ratio.value:.3f} ({on.ratio.low:.3f}–{on.ratio.high:.3f}), {on.blocks} blocks")
    print(f"load in spells of {spell_s:g} s; plain: spread {spread:.3f} of {REPEATS} runs; interval {width:.3f} wide")
    times = spread / width if width else math.nan
    return judged("times narrower than the spread of plain runs", times, "at least 3", times >= 3)


@contextlib.contextmanager
def _background(spell_s: float) -> Iterator[None]:
    """One load on every processor that comes and goes, both for that many seconds on average."""
    script = COMES_AND_GOES.format(spell_s=spell_s)
    running = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _plain_ratios(target: LabTarget) -> list[float]:
    """on/local of plain runs one after the other."""
    ratios = []
    for number in range(REPEATS):
        local, on = (
            target.pricing.run_sample(
                Sample(-1, 2 * number + place, replace(ARM, level=level), Scenario()), BUDGET_S / REPEATS / 2, number
            )
            for place, level in enumerate((Level.LOCAL, Level.ON))
        )
        ratios.append(on.tps / local.tps)
        print(f"plain run {number + 1}: on/local {ratios[-1]:.3f}", flush=True)
    return ratios


def honesty(*, minutes: float = 11, from_: Path | None = None) -> int:
    """A hundred quick A/A runs: how many intervals cover 1.

    The baseline runs against itself without a pause; the hundred quick runs follow one another in it, each with its
    share of the pairs. Or --from RECORD, made by `walproof price --aa`. Early stopping is simulated (`truth`).
    """
    options = {"aa": True, "clients": "4", "precision": "0.01%", "budget": f"{minutes:g}min", "sample": "0.2s"}
    pairs = _pairs(_events("honesty", options, from_))
    most = len(pairs) // RUNS
    if most < FEWEST:
        print(f"undecided: {len(pairs)} pairs are too few for {RUNS} runs of {FEWEST}; is the machine busy?")
        return 4
    runs = [ratio_interval(*paired_totals(pairs[i * most : (i + 1) * most])) for i in range(RUNS)]
    halves = float(np.median([one.half_width for one in runs]))
    print(f"{len(pairs)} pairs: {RUNS} runs of {most} pairs; median interval ± {halves:.1%}")
    cover = sum(one.covers(1.0) for one in runs)
    return judged("intervals that cover 1", cover, "90 to 99 of 100", 90 <= cover <= 99)


def _events(name: str, options: dict[str, object], record: Path | None) -> Sequence[Event]:
    """Of the record, or else of a price run with these options on a lab of its own."""
    if record:
        return list(read(record).events)
    with benchmark_target(name) as target:
        return priced(target, options)[1].events


def _pairs(events: Sequence[Event]) -> list[Pair]:
    """The baseline run against itself, pair by pair."""
    (blocks,) = samples_of(events).values()
    arm = next(a for results in blocks.values() for a in results if a.label == AGAIN)
    return pairs_of(blocks, arm, Level.LOCAL)


def between_runs(*, runs: int = 8, seconds: float = 40) -> int:
    """How much the price differs from run to run of the same, beyond what each run's own interval says.

    About 8 minutes; local and on with 4 clients. The spread between runs is the variance of the runs' logarithms less
    the mean of their own variances (one-way random effects, Searle, Casella & McCulloch 1992, ch. 3): what
    `estimating.intervals.BETWEEN_RUNS` assumes.
    """
    asked = {"levels": "local,on", "clients": "4", "sample": "1s", "precision": "0.1%", "budget": f"{seconds:g}s"}
    tps, ratios = [], []
    with benchmark_target("between") as target:
        for seed in range(1, runs + 1):
            result, _ = priced(target, {**asked, "seed": str(seed)})
            by_level = {p.arm.level: p for p in result.table.arms}
            tps.append(by_level[Level.LOCAL].tps)
            ratios.append(by_level[Level.ON].ratio)
            one, other = tps[-1], ratios[-1]
            print(
                f"run {seed}: local {one.value:,.0f} tps ({one.low:,.0f}–{one.high:,.0f}), "
                f"on/local {other.value:.3f} ({other.low:.3f}–{other.high:.3f})",
                flush=True,
            )
    spreads = {"tps": _between(tps), "ratio": _between(ratios)}
    return max(
        judged(f"spread between runs, {name}", spread, f"assumed {BETWEEN_RUNS[name]:g}", spread <= BETWEEN_RUNS[name])
        for name, spread in spreads.items()
    )


def _between(runs: Sequence[Estimate]) -> float:
    """Standard deviation of the logarithm between runs; 0 where the runs differ no more than their intervals say."""
    values = np.log([one.value for one in runs])
    own = np.array([math.log(one.high / one.low) / 2 / Z for one in runs])
    return math.sqrt(max(0.0, float(np.var(values, ddof=1)) - float(np.mean(own**2))))


def carry_over(*, minutes: float = 12, from_: Path | None = None) -> int:
    """What a sample leaves behind for the next one: throughput by the level that ran before, all else held equal.

    Short samples of three levels without a pause; or --from RECORD, any record of `walproof price` with several levels.
    Shown are the effects of the level before against the others, with 95 % intervals: exit code 0 when every effect
    lies within ± 1 %, 4 when an interval leaves that open.
    """
    options = {"levels": "off,local,on", "clients": "4", "sample": "0.4s", "precision": "0.01%"}
    events = _events("carry-over", {**options, "budget": f"{minutes:g}min"}, from_)
    results: list[SampleResult] = sorted(
        (e.result for e in events if isinstance(e, SampleDone)), key=lambda r: r.started_at
    )
    samples = [(after, str(before.sample.arm.level)) for before, after in pairwise(results) if after.sample.block > 0]
    waited = [1000 * r.window.settled_s for r, _ in samples if r.window.settled_s is not None]
    print(f"{len(samples)} samples; median wait for flush and replay {float(np.median(waited or [np.nan])):.0f} ms")
    effects = effects_of_level_before(samples)
    for level, (effect, half) in effects.items():
        print(f"after {level:<12} {effect:+7.2%} ± {half:.2%}")
    worst = max(abs(effect) for effect, _ in effects.values())
    beyond = any(abs(effect) - half > LIMIT for effect, half in effects.values())
    if not beyond and any(abs(effect) + half > LIMIT for effect, half in effects.values()):
        print(f"undecided: the largest effect is {worst:.2%}, its interval leaves open whether it is under {LIMIT:.0%}")
        return 4
    return judged("largest effect of the level before", worst, f"under {LIMIT:g} with its interval", not beyond)
