"""Events of a price run → its table: throughput, ratio to the baseline, latencies, with intervals. Only folds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from walproof.estimating.intervals import as_ratio, stopped_interval
from walproof.estimating.quantiles import quantile_intervals
from walproof.model.estimate import Caveat, Estimate
from walproof.model.event import Ended, Event, SampleDone, Started
from walproof.model.guarantee import Level, level
from walproof.model.histogram import quantile_ms
from walproof.model.plan import Arm, Scenario
from walproof.model.sample import SampleResult
from walproof.pricing.design import WARM_BLOCK, group, is_baseline
from walproof.pricing.quality import caveats_of, failed_over, mixed_versions

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one arm in ms, each with its interval over blocks."""

    mean: Estimate
    p50: Estimate
    p95: Estimate
    p99: Estimate


@dataclass(frozen=True, slots=True)
class ClassPrice:
    """One level of a mix: its own throughput in transactions per second, and latency."""

    level: str
    tps: Estimate
    latency: Latency


@dataclass(frozen=True, slots=True)
class ArmPrice:
    """What one arm costs under one scenario. ratio is to the baseline of the same scenario, clients and route."""

    scenario: Scenario
    arm: Arm
    blocks: int
    tps: Estimate
    ratio: Estimate
    latency: Latency
    caveats: tuple[Caveat, ...]
    classes: tuple[ClassPrice, ...] = ()
    transactions: int = 0
    failed: int = 0
    paired: int = 0
    """Blocks in which both the arm and its baseline were measured."""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Every arm's price, in the order scenarios and arms were first asked; why the run stopped."""

    baseline: Level
    arms: tuple[ArmPrice, ...]
    stopped_by: str = ""


Blocks = dict[int, dict[Arm, SampleResult]]


def samples_of(events: Iterable[Event]) -> dict[Scenario, Blocks]:
    """Counted samples by scenario, block and arm; warm samples and searches (blocks below 1) are left out."""
    found: dict[Scenario, Blocks] = {}
    for event in events:
        if isinstance(event, SampleDone) and event.result.sample.block > WARM_BLOCK:
            planned = event.result.sample
            found.setdefault(planned.scenario, {}).setdefault(planned.block, {})[planned.arm] = event.result
    return found


def log_ratios(blocks: Blocks, arm: Arm, baseline: Level) -> np.ndarray:
    """log(tps of arm / tps of its baseline) of every block that has both, shape (pairs,)."""
    ratios = []
    for _, measured in sorted(blocks.items()):
        one = measured.get(arm)
        other = next((r for a, r in measured.items() if is_baseline(a, baseline) and group(a) == group(arm)), None)
        if one and other and one.tps > 0 and other.tps > 0:
            ratios.append(math.log(one.tps / other.tps))
    return np.array(ratios)


def ratio_of(blocks: Blocks, arm: Arm, baseline: Level) -> tuple[Estimate, int]:
    """The arm's throughput ratio with its interval, and the number of pairs; exactly 1 for the baseline itself."""
    if is_baseline(arm, baseline):
        return Estimate(1.0, 1.0, 1.0), sum(arm in measured for measured in blocks.values())
    logs = log_ratios(blocks, arm, baseline)
    return (as_ratio(stopped_interval(logs)) if len(logs) else UNKNOWN), len(logs)


def tps_of(results: Sequence[SampleResult]) -> Estimate:
    """Throughput over blocks with its interval."""
    return stopped_interval(np.array([r.tps for r in results])) if results else UNKNOWN


def latency_of(results: Sequence[SampleResult], histograms: Sequence[dict[int, int]], seed: int = 0) -> Latency:
    """Latency of one arm: mean over blocks, quantiles of the pooled histogram."""
    means = np.array([r.mean_ms for r in results if r.mean_ms > 0])
    p50, p95, p99 = quantile_intervals(histograms, (0.5, 0.95, 0.99), np.random.default_rng(seed))
    return Latency(stopped_interval(means) if len(means) else UNKNOWN, p50, p95, p99)


def price_table(events: Sequence[Event]) -> PriceTable:
    """The table of a record's events, or of those so far."""
    started = next((e for e in events if isinstance(e, Started)), None)
    baseline = level(str(started.question.get("baseline", "local"))) if started else Level.LOCAL
    ended = next((e for e in reversed(events) if isinstance(e, Ended)), None)
    general = (
        *((Caveat.FAILED_OVER,) if failed_over(events) else ()),
        *((Caveat.MIXED_VERSIONS,) if mixed_versions(events) else ()),
    )
    found = samples_of(events)
    prices = [
        _price(scenario, arm, blocks, baseline, general)
        for scenario, blocks in found.items()
        for arm in sorted({a for measured in blocks.values() for a in measured}, key=_order)
    ]
    return PriceTable(baseline, tuple(prices), ended.stopped_by if ended else "")


def _order(arm: Arm) -> tuple[str, str, int, str, int]:
    return (arm.route, arm.workload.text, arm.clients, arm.label, arm.level.strength + (10 if arm.mix else 0))


def _price(scenario: Scenario, arm: Arm, blocks: Blocks, baseline: Level, general: tuple[Caveat, ...]) -> ArmPrice:
    results = [measured[arm] for _, measured in sorted(blocks.items()) if arm in measured]
    ratio, pairs = ratio_of(blocks, arm, baseline)
    return ArmPrice(
        scenario=scenario,
        arm=arm,
        blocks=len(results),
        tps=tps_of(results),
        ratio=ratio,
        latency=latency_of(results, [r.histogram for r in results]),
        caveats=caveats_of(results, log_ratios(blocks, arm, baseline), general),
        classes=_classes(results) if arm.mix else (),
        transactions=sum(r.transactions for r in results),
        failed=sum(r.failed for r in results),
        paired=pairs,
    )


def _classes(results: Sequence[SampleResult]) -> tuple[ClassPrice, ...]:
    names = sorted({name for r in results for name in r.per_level}, key=lambda n: list(Level).index(Level(n)))
    return tuple(_class(name, [r for r in results if r.per_level.get(name)]) for name in names)


def _class(name: str, results: Sequence[SampleResult]) -> ClassPrice:
    histograms = [r.per_level[name] for r in results]
    rates = np.array([sum(h.values()) / r.seconds for h, r in zip(histograms, results, strict=True)])
    means = np.array([mean_of(h) for h in histograms])
    p50, p95, p99 = quantile_intervals(histograms, (0.5, 0.95, 0.99), np.random.default_rng(0))
    return ClassPrice(name, stopped_interval(rates), Latency(stopped_interval(means), p50, p95, p99))


def mean_of(histogram: dict[int, int]) -> float:
    """Mean latency in ms of a histogram, from the middles of its buckets (off by at most 0.5 %)."""
    counts = np.array(list(histogram.values()), dtype=np.float64)
    middles = np.array([quantile_ms({bucket: 1}, 0.5) for bucket in histogram])
    return float((counts * middles).sum() / counts.sum())
