"""Events of a price run → its table: throughput, ratio to the baseline, latencies, with intervals and caveats.

When a caveat applies to a price is judged by windows and blocks. Only folds; measures nothing."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from walproof.estimating.intervals import duration_interval
from walproof.estimating.quantiles import quantile_intervals
from walproof.estimating.ratios import Totals, rate_interval, ratio_interval, ratio_without_stalls
from walproof.model.estimate import Caveat, Estimate, pooled, quantile_ms
from walproof.model.event import Described, DrillStarted, Ended, Event, Observed, SampleDone, ScenarioLeftOut, Started
from walproof.model.guarantee import Level, level
from walproof.model.sample import Arm, MemberWindow, SampleResult, Scenario, WorkloadKind
from walproof.pricing.level_in_effect import contradictions
from walproof.pricing.sampling import WARM_BLOCK, group, is_baseline

FEW = 6
"""Blocks below which an interval is shown with a caveat."""
STOLEN_SHARE = 0.05
CLIENT_CORES = 0.85
LOCK_SHARE = 0.25
BEHIND_MS = 500.0
DRIFT_CHANGE = 0.1
BACKGROUND_SHARE = 0.1
"""Share of all polls from which a checkpoint or an autovacuum is shown."""
WAL_CHANGE = 0.25
"""Change of WAL per transaction from the first to the last third of the blocks that is shown."""
NOT_CARRIED = 0.02
"""Share of an offered rate that may stay undone before it counts as not carried."""

Results = Sequence[SampleResult]


def caveats_of(results: Results, logs: np.ndarray, general: tuple[Caveat, ...] = ()) -> tuple[Caveat, ...]:
    """Every caveat about one arm: of its samples in block order, its log-ratios, and the run in general."""
    if not results:
        return (Caveat.FEW_BLOCKS,)
    caveats = [caveat for caveat, applies in RULES.items() if applies(results)]
    if drifts(np.log([r.tps for r in results if r.tps > 0])) or drifts(logs):
        caveats.append(Caveat.DRIFT)
    return tuple(sorted({*caveats, *general}, key=list(Caveat).index))


def drifts(logs: np.ndarray) -> bool:
    """Whether values over blocks rise or fall: Kendall's tau at 1 %, and more than 10 % from first to last third.

    Mann (1945); a trend in throughput leaves the paired ratio sound, but says that the machine was not steady.
    """
    if len(logs) < 8:
        return False
    third = len(logs) // 3
    change = abs(float(np.median(logs[-third:]) - np.median(logs[:third])))
    if change <= DRIFT_CHANGE:
        return False
    from scipy import stats  # where it is needed: importing it takes half a second

    return float(stats.kendalltau(np.arange(len(logs)), logs).pvalue) < 0.01


def failed_over(events: Iterable[Event]) -> bool:
    """Whether more than one leader was observed while samples were measured; drills of the same record do not count."""
    leaders: set[str] = set()
    for event in events:
        if isinstance(event, DrillStarted):
            break
        if isinstance(event, Observed) and event.view.leader:
            leaders.add(event.view.leader)
    return len(leaders) > 1


def mixed_versions(events: Iterable[Event]) -> bool:
    """Whether members, or the target at different times, ran different versions within one record."""
    seen = [e.description for e in events if isinstance(e, Described)]
    return any(one.versions != seen[0].versions or len(one.member_versions) > 1 for one in seen)


def _not_in_effect(results: Results) -> bool:
    levels = results[0].sample.arm.levels
    remote = any(level.remote for level in levels)
    durable = any(level is not Level.OFF for level in levels)
    unsafe = durable and any(r.sample.scenario.fsync is False for r in results)
    return unsafe or (remote and any(not r.window.standby_names.strip() for r in results))


def _unverified(results: Results) -> bool:
    return any(
        r.window.link_verified is False or (bool(r.sample.scenario.rtt_ms) and r.window.link_verified is None)
        for r in results
    )


def _behind(results: Results) -> bool:
    lags = [m.replay_lag_ms for r in results for m in r.window.members.values() if m.replay_lag_ms is not None]
    return bool(lags) and max(lags) > BEHIND_MS


def _lock_bound(results: Results) -> bool:
    arm = results[0].sample.arm
    small = arm.workload.kind is WorkloadKind.TPCB_LIKE and arm.workload.scale < arm.clients
    waiting = fmean(sum(s for w, s in r.window.waits.items() if w.startswith("Lock:")) for r in results)
    return small or waiting > LOCK_SHARE


def _checkpoint(results: Results) -> bool:
    running = fmean(r.window.checkpointing for r in results) > BACKGROUND_SHARE
    return running or any(r.window.checkpoints for r in results)


def _transient(results: Results) -> bool:
    """Whether WAL per transaction changed over the blocks: full-page images after a checkpoint fade out."""
    known = [(r.window.of_leader.wal_bytes, r.transactions) for r in results if r.transactions]
    logs = [math.log(written / n) for written, n in known if written]
    third = len(logs) // 3
    return third > 0 and abs(fmean(logs[-third:]) - fmean(logs[:third])) > math.log(1 + WAL_CHANGE)


def _overload(results: Results) -> bool:
    """Whether the offered rate was not carried: fewer transactions than chance explains, or a backlog that rises."""
    rate = results[0].sample.arm.rate
    if not rate:
        return False
    seconds = sum(r.seconds for r in results)
    missing = rate * seconds - sum(r.credit for r in results)
    # pgbench's schedule is a Poisson process, whose count varies by its square root.
    if missing > max(NOT_CARRIED * rate * seconds, 3 * math.sqrt(rate * seconds)):
        return True
    rises = [r.backlog for r in results if r.backlog is not None]
    if not rises or fmean(rises) <= NOT_CARRIED:
        return False
    return len(rises) == 1 or fmean(rises) > 2 * stdev(rises) / math.sqrt(len(rises))


RULES: dict[Caveat, Callable[[Results], bool]] = {
    Caveat.STOLEN: lambda rs: fmean(r.window.stolen for r in rs) > STOLEN_SHARE,
    Caveat.CHECKPOINT: _checkpoint,
    Caveat.AUTOVACUUM: lambda rs: fmean(r.window.vacuuming for r in rs) > BACKGROUND_SHARE,
    Caveat.TRANSIENT: _transient,
    Caveat.CARRY_OVER: lambda rs: any(r.window.settled_s == math.inf for r in rs),
    Caveat.CLIENT_BOUND: lambda rs: fmean(r.window.client_cores for r in rs) > CLIENT_CORES,
    Caveat.FEW_BLOCKS: lambda rs: len(rs) < FEW,
    Caveat.LOCK_BOUND: _lock_bound,
    Caveat.UNVERIFIED_LINK: _unverified,
    Caveat.STANDBY_BEHIND: _behind,
    Caveat.NOT_IN_EFFECT: _not_in_effect,
    Caveat.FAILURES: lambda rs: any(r.failed for r in rs),
    Caveat.OVERLOAD: _overload,
    Caveat.FROM_OUTSIDE: lambda rs: any(r.window.outside for r in rs),
}


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
    left_out: tuple[ScenarioLeftOut, ...] = ()
    """Scenarios under which nothing was measured, for they could not be brought into effect."""
    not_in_effect: tuple[str, ...] = ()
    """Why arms, those of searches too, did not run at their level: then no price is stated."""


Blocks = dict[int, dict[Arm, SampleResult]]
Pair = tuple[SampleResult, SampleResult]
"""An arm's sample and that of what it is divided by, from one block."""


def samples_of(events: Iterable[Event]) -> dict[Scenario, Blocks]:
    """Counted samples by scenario, block and arm; warm samples and searches (blocks below 1) are left out."""
    samples: dict[Scenario, Blocks] = {}
    for event in events:
        if isinstance(event, SampleDone) and event.result.sample.block > WARM_BLOCK:
            planned = event.result.sample
            samples.setdefault(planned.scenario, {}).setdefault(planned.block, {})[planned.arm] = event.result
    return samples


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
    """Credit and seconds of these samples."""
    counted = [(r.credit, r.seconds) for r in results]
    return Totals(*np.array(counted, dtype=np.float64).reshape(-1, 2).T)


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
    return Latency(duration_interval(known) if len(known) else UNKNOWN, p50, p95, p99, p999, longest)


def price_table(events: Sequence[Event]) -> PriceTable:
    """The table of a record's events, or of those so far."""
    baseline = _baseline(events)
    ended = next((e for e in reversed(events) if isinstance(e, Ended)), None)
    general = _general(events)
    samples = samples_of(events)
    prices = [
        _price(scenario, arm, blocks, baseline, general(arm))
        for scenario, blocks in samples.items()
        for arm in sorted({a for measured in blocks.values() for a in measured}, key=_order)
    ]
    left_out = {e.scenario: e for e in events if isinstance(e, ScenarioLeftOut) and e.scenario not in samples}
    stopped_by = ended.stopped_by if ended else ""
    not_in_effect = tuple(dict.fromkeys(contradictions(events).values()))
    return PriceTable(baseline, tuple(prices), stopped_by, tuple(left_out.values()), not_in_effect)


def _baseline(events: Sequence[Event]) -> Level:
    started = next((e for e in events if isinstance(e, Started)), None)
    return level(str(started.question.get("baseline", "local"))) if started else Level.LOCAL


def _general(events: Sequence[Event]) -> Callable[[Arm], tuple[Caveat, ...]]:
    """By arm, the caveats that need all events: about the run as a whole, and about the level that ran."""
    moved, mixed, others = failed_over(events), mixed_versions(events), contradictions(events)
    general = (*((Caveat.FAILED_OVER,) if moved else ()), *((Caveat.MIXED_VERSIONS,) if mixed else ()))
    return lambda arm: (*general, Caveat.OTHER_LEVEL) if arm in others else general


def caveats_by_arm(events: Sequence[Event]) -> dict[tuple[Scenario, Arm], tuple[Caveat, ...]]:
    """The caveats of each price of `price_table`, without its intervals."""
    baseline, general = _baseline(events), _general(events)
    caveats = {}
    for scenario, blocks in samples_of(events).items():
        for arm in {arm for measured in blocks.values() for arm in measured}:
            results = [measured[arm] for _, measured in sorted(blocks.items()) if arm in measured]
            pairs = [] if is_baseline(arm, baseline) else pairs_of(blocks, arm, baseline)
            caveats[scenario, arm] = caveats_of(results, log_ratios(pairs), general(arm))
    return caveats


def _order(arm: Arm) -> tuple[str, str, int, str, int]:
    return (arm.route, arm.workload.text, arm.clients, arm.label, arm.level.strength + (10 if arm.mix else 0))


def _price(scenario: Scenario, arm: Arm, blocks: Blocks, baseline: Level, general: tuple[Caveat, ...]) -> ArmPrice:
    results = [measured[arm] for _, measured in sorted(blocks.items()) if arm in measured]
    ratio, _ = ratio_of(blocks, arm, baseline)
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
