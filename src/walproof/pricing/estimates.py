"""Events of a price run → its table: throughput, ratio to the baseline, latencies, with intervals. Only folds."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from walproof.estimating.intervals import stopped_interval
from walproof.estimating.quantiles import quantile_intervals
from walproof.estimating.totals import Totals, rate_interval, ratio_interval, ratio_without_stalls
from walproof.model.estimate import Caveat, Estimate
from walproof.model.event import Ended, Event, SampleDone, Started
from walproof.model.guarantee import Level, level
from walproof.model.histogram import pooled, quantile_ms
from walproof.model.plan import Arm, Scenario
from walproof.model.sample import MemberWindow, SampleResult
from walproof.pricing.design import WARM_BLOCK, group, is_baseline
from walproof.pricing.quality import caveats_of, failed_over, mixed_versions

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
QUANTILES = (0.5, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one arm in ms, each with its interval over blocks; the longest seen has none."""

    mean: Estimate
    p50: Estimate
    p95: Estimate
    p99: Estimate
    p999: Estimate = UNKNOWN
    max_ms: float = math.nan


NO_LATENCY = Latency(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)


@dataclass(frozen=True, slots=True)
class ClassPrice:
    """One level of a mix: its own throughput in transactions per second, and latency."""

    level: str
    tps: Estimate
    latency: Latency


@dataclass(frozen=True, slots=True)
class ArmPrice:
    """What one arm costs under one scenario. ratio is to the baseline of the same scenario, clients and route.

    tps and ratio count all time; without_stalls is the centre of the ratios of the blocks. stalled_s: seconds, of
    measured_s, in which no transaction ended for 0.1 s or longer. wal_bytes and full_pages: WAL and page images in
    it, a transaction; NaN where it is not known.
    """

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
    without_stalls: Estimate = UNKNOWN
    stalled_s: float = 0.0
    measured_s: float = 0.0
    wal_bytes: float = math.nan
    full_pages: float = math.nan
    retries: int = 0


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Every arm's price, in the order scenarios and arms were first asked; why the run stopped."""

    baseline: Level
    arms: tuple[ArmPrice, ...]
    stopped_by: str = ""


Blocks = dict[int, dict[Arm, SampleResult]]
Pair = tuple[SampleResult, SampleResult]
"""An arm's sample and that of what it is divided by, from one block."""


def samples_of(events: Iterable[Event]) -> dict[Scenario, Blocks]:
    """Counted samples by scenario, block and arm; warm samples and searches (blocks below 1) are left out."""
    found: dict[Scenario, Blocks] = {}
    for event in events:
        if isinstance(event, SampleDone) and event.result.sample.block > WARM_BLOCK:
            planned = event.result.sample
            found.setdefault(planned.scenario, {}).setdefault(planned.block, {})[planned.arm] = event.result
    return found


def pairs_of(blocks: Blocks, arm: Arm, baseline: Level) -> list[Pair]:
    """The arm and its baseline in every block that has both, in the order of blocks."""
    pairs = []
    for _, measured in sorted(blocks.items()):
        one = measured.get(arm)
        other = next((r for a, r in measured.items() if is_baseline(a, baseline) and group(a) == group(arm)), None)
        if one and other:
            pairs.append((one, other))
    return pairs


def totals(results: Iterable[SampleResult]) -> Totals:
    """Transactions and seconds of these samples; a transaction counts by its share that lies within its sample."""
    found = list(results)
    seconds = np.array([r.seconds for r in found], dtype=np.float64)
    return Totals(np.array([r.tps for r in found], dtype=np.float64) * seconds, seconds)


def paired_totals(pairs: Sequence[Pair]) -> tuple[Totals, Totals]:
    """Totals of either side of these pairs."""
    return totals(one for one, _ in pairs), totals(other for _, other in pairs)


def log_ratios(pairs: Sequence[Pair]) -> np.ndarray:
    """log(tps / tps of the other) of every pair in which neither stood still, shape (pairs,)."""
    return np.array([math.log(one.tps / other.tps) for one, other in pairs if one.tps > 0 and other.tps > 0])


def ratio_of(blocks: Blocks, arm: Arm, baseline: Level) -> tuple[Estimate, int]:
    """The arm's throughput ratio with its interval, and the number of pairs; exactly 1 for the baseline itself."""
    if is_baseline(arm, baseline):
        return Estimate(1.0, 1.0, 1.0), sum(arm in measured for measured in blocks.values())
    pairs = pairs_of(blocks, arm, baseline)
    if not pairs:
        return UNKNOWN, 0
    return ratio_interval(*paired_totals(pairs)), len(pairs)


def tps_of(results: Sequence[SampleResult]) -> Estimate:
    """Throughput over blocks with its interval."""
    return rate_interval(totals(results)) if results else UNKNOWN


def latency_of(means: Sequence[float], histograms: Sequence[dict[int, int]]) -> Latency:
    """Latency of one arm: mean over blocks, quantiles of the pooled histogram, the longest."""
    p50, p95, p99, p999 = quantile_intervals(histograms, QUANTILES)
    known = np.array([mean for mean in means if mean > 0])
    longest = quantile_ms(pooled(histograms), 1.0)
    return Latency(stopped_interval(known) if len(known) else UNKNOWN, p50, p95, p99, p999, longest)


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
    ratio, paired = ratio_of(blocks, arm, baseline)
    pairs = [] if is_baseline(arm, baseline) else pairs_of(blocks, arm, baseline)
    caveats = caveats_of(results, log_ratios(pairs), general)
    # Under overload a latency is that of the backlog, and grows with the length of the sample.
    overloaded = Caveat.OVERLOAD in caveats
    latency = NO_LATENCY if overloaded else latency_of([r.mean_ms for r in results], [r.histogram for r in results])
    trimmed = ratio_without_stalls(*paired_totals(pairs)) if pairs else UNKNOWN
    return ArmPrice(
        scenario=scenario,
        arm=arm,
        blocks=len(results),
        tps=tps_of(results),
        ratio=ratio,
        latency=latency,
        caveats=caveats,
        classes=_classes(results) if arm.mix else (),
        transactions=sum(r.transactions for r in results),
        failed=sum(r.failed for r in results),
        retries=sum(r.retries for r in results),
        paired=paired,
        without_stalls=trimmed,
        stalled_s=sum(r.stalled_s for r in results),
        measured_s=sum(r.seconds for r in results),
        wal_bytes=per_transaction(results, lambda member: member.wal_bytes),
        full_pages=per_transaction(results, lambda member: member.wal_full_pages),
    )


def per_transaction(results: Sequence[SampleResult], count: Callable[[MemberWindow], int | None]) -> float:
    """What the leader counted a transaction, over the samples in which that is known; NaN when in none."""
    known = [
        (counted, r.transactions)
        for r in results
        if r.transactions and (counted := count(r.window.of_leader)) is not None
    ]
    return sum(c for c, _ in known) / sum(n for _, n in known) if known else math.nan


def _classes(results: Sequence[SampleResult]) -> tuple[ClassPrice, ...]:
    names = sorted({name for r in results for name in r.per_level}, key=lambda n: list(Level).index(Level(n)))
    return tuple(_class(name, [r for r in results if r.per_level.get(name)]) for name in names)


def _class(name: str, results: Sequence[SampleResult]) -> ClassPrice:
    histograms = [r.per_level[name] for r in results]
    counts = np.array([sum(h.values()) for h in histograms], dtype=np.float64)
    whole = Totals(counts, np.array([r.seconds for r in results], dtype=np.float64))
    return ClassPrice(name, rate_interval(whole), latency_of([mean_of(h) for h in histograms], histograms))


def mean_of(histogram: dict[int, int]) -> float:
    """Mean latency in ms of a histogram, from the middles of its buckets (off by at most 0.5 %)."""
    counts = np.array(list(histogram.values()), dtype=np.float64)
    middles = np.array([quantile_ms({bucket: 1}, 0.5) for bucket in histogram])
    return float((counts * middles).sum() / counts.sum())
