"""Tuning: which clients, parameters, quorum and pool give a level the most throughput under a latency limit.

Successive halving (Karnin, Koren & Somekh 2013; Jamieson & Talwalkar 2016) over paired blocks: every candidate left
runs once a block, the better half of each level goes on with twice the blocks. First over clients, which matter most,
then over parameters, quorum and pools at the best two numbers of clients. A last paired run then compares tuned level
and tuned baseline, held to one limit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from walproof.errors import TargetError
from walproof.estimating.intervals import narrow
from walproof.estimating.ratios import ratio_interval
from walproof.model.estimate import Estimate, pooled, quantile_ms
from walproof.model.guarantee import Level, QuorumKind, read_standby_names
from walproof.model.sample import Arm, SampleResult, Scenario
from walproof.model.units import counted
from walproof.pricing.estimates import UNKNOWN, Pair, paired_totals
from walproof.pricing.prediction import processor_bound, processors_busy
from walproof.pricing.results_and_gate import interval, number
from walproof.pricing.run import START_S, SearchRun
from walproof.pricing.sampling import Bench

PARAMETERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("commit_delay", "3000"), ("commit_siblings", "5")),
    (("commit_delay", "1000"), ("commit_siblings", "5")),
    (("commit_delay", "8000"), ("commit_siblings", "5")),
    (("wal_compression", "on"),),
    (("commit_delay", "3000"), ("commit_siblings", "5"), ("wal_compression", "on")),
)
"""What a reload can change of how WAL is written, the likeliest to help first."""
POOLS = (32, 16)
CLIENTS = (8, 16, 32, 48, 64, 96, 128)
MOST_CLIENTS = 64
"""Clients beyond this are tried only when --max-clients says so: PostgreSQL's own default allows 100 sessions."""
FEWEST_CANDIDATES = 4
"""Candidates of each level that are tried at the best numbers of clients, with any budget."""
FINAL_PAIRS = (8, 60)
"""Fewest and most pairs of the last paired run of tuned level against tuned baseline."""
FINAL_SHARE = 0.4
"""Share of the budget kept for that last run."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration to run one level with: scenario and arm."""

    scenario: Scenario
    arm: Arm

    @property
    def text(self) -> str:
        """The candidate in short words."""
        arm = self.arm
        pool = f", pool {arm.pool}" if arm.pool else ""
        return f"{arm.level}, {counted(arm.clients, 'client')}, {arm.route}{pool}, {self.scenario.text}"


@dataclass(frozen=True, slots=True)
class Score:
    """How a candidate performed: mean over blocks of log(tps / the block's geometric mean), tps, p95 in ms."""

    log_tps: float
    tps: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """Candidates of the level and of the baseline, best first."""

    level: Sequence[Candidate]
    baseline: Sequence[Candidate]

    @property
    def best(self) -> tuple[Candidate, Candidate]:
        return self.level[0], self.baseline[0]


Measure = Callable[[Sequence[Candidate], int], Mapping[Candidate, Score]]
"""Runs candidates in so many blocks; the scores of those that could be measured."""


@dataclass(frozen=True, slots=True)
class Space:
    """Where to search: base arm, level and baseline, most clients, whether there is a pool, the scenario to start from.

    quorum_open: whether a quorum of one is not in effect yet and could be.
    """

    base: Arm
    level: Level
    baseline: Level
    most_clients: int
    quorum_open: bool
    has_pool: bool
    scenario: Scenario


def client_candidates(space: Space, level: Level) -> tuple[Candidate, ...]:
    """One level under the scenario alone, with every number of clients worth trying."""
    clients = [n for n in CLIENTS if n <= space.most_clients] or [space.most_clients]
    return tuple(_candidate(space, level, n) for n in clients)


def config_candidates(space: Space, level: Level, clients: Sequence[int], count: int) -> tuple[Candidate, ...]:
    """`count` configurations of a level with these numbers of clients (best first), the likeliest to help first.

    Where commits are delayed, the next larger number of clients is tried too: they fill the wait.
    """
    best, *others = clients
    larger = [n for n in CLIENTS if best < n <= space.most_clients][:1]
    changed = [replace(space.scenario, parameters=(*space.scenario.parameters, *one)) for one in PARAMETERS]
    plain = _candidate(space, level, best)
    candidates = [plain, *(_candidate(space, level, n, changed[0]) for n in (best, *larger))]
    if space.quorum_open and space.scenario.quorum is None and level.remote:
        candidates.append(_candidate(space, level, best, replace(space.scenario, quorum_kind=QuorumKind.ANY, quorum=1)))
    pools = [pool for pool in POOLS if pool <= best] if space.has_pool else []
    in_pools = [replace(plain, arm=replace(plain.arm, route="pgbouncer", pool=pool)) for pool in pools]
    # Every kind of change has its turn before any has its second.
    candidates += [*in_pools[:1], *(_candidate(space, level, best, one) for one in changed[1:])]
    candidates += [_candidate(space, level, n, one) for n in (*others, *larger) for one in (*changed[:2], None)]
    return tuple(dict.fromkeys([*candidates, *in_pools]))[:count]


def _candidate(space: Space, level: Level, clients: int, scenario: Scenario | None = None) -> Candidate:
    return Candidate(scenario or space.scenario, replace(space.base, level=level, clients=clients))


def tune(space: Space, limit_ms: float, samples: int, measure: Measure) -> Tuned:
    """The best candidate of the level and of the baseline, within about so many samples."""
    both = (space.level, space.baseline)
    candidates = {one: client_candidates(space, one) for one in both}
    ranked = halve(candidates, limit_ms, measure)
    left = samples - rounds_cost_samples(len(candidates[space.level]))
    count = max((n for n in range(FEWEST_CANDIDATES, 25) if rounds_cost_samples(n) <= left), default=FEWEST_CANDIDATES)
    candidates = {one: config_candidates(space, one, [c.arm.clients for c in ranked[one][:2]], count) for one in both}
    ranked = halve(candidates, limit_ms, measure)
    return Tuned(ranked[space.level], ranked[space.baseline])


def halve(
    candidates: Mapping[Level, Sequence[Candidate]], limit_ms: float, measure: Measure
) -> dict[Level, list[Candidate]]:
    """Halve each level's candidates until one is left; those of the last round, best first."""
    left = {one: list(group) for one, group in candidates.items()}
    blocks = 1
    while True:
        scores = measure([c for group in left.values() for c in group], blocks)
        ranked = {one: ranking([c for c in group if c in scores], scores, limit_ms) for one, group in left.items()}
        for one, group in ranked.items():
            if not group:
                raise TargetError(f"no sample of {one} could be measured while tuning", "the record says why")
        left = {one: group[: max(1, len(group) // 2)] for one, group in ranked.items()}
        if max(map(len, left.values())) == 1:
            return ranked
        blocks *= 2


def ranking(group: Sequence[Candidate], scores: Mapping[Candidate, Score], limit_ms: float) -> list[Candidate]:
    """Best first: those under the limit by throughput, then the others by latency."""

    def rank(candidate: Candidate) -> tuple[bool, float]:
        score = scores[candidate]
        over = score.p95_ms > limit_ms
        return over, (score.p95_ms if over else -score.log_tps)

    return sorted(group, key=rank)


def rounds_cost_samples(count: int) -> int:
    """Samples it takes to halve so many candidates of both levels to one: each round costs about the same.

    >>> rounds_cost_samples(8)
    48
    """
    samples, blocks = 2 * count, 1
    while count > 3:
        count, blocks = count // 2, blocks * 2
        samples += 2 * count * blocks
    return samples


def _scores(
    search: SearchRun, limit_ms: float, candidates: Sequence[Candidate], blocks: int
) -> Mapping[Candidate, Score]:
    """Run candidates in so many blocks and score each that ran; the steps are emitted."""
    ran: dict[Candidate, list[tuple[float, SampleResult]]] = {}
    for _ in range(blocks):
        results = one_each(search, candidates, f"tuning, {len(candidates)} left")
        middle = float(np.mean([np.log(r.tps) for r in results.values()])) if results else 0.0
        for candidate, result in results.items():
            ran.setdefault(candidate, []).append((float(np.log(result.tps)) - middle, result))
    scores = {c: score_of([log for log, _ in runs], [r for _, r in runs]) for c, runs in ran.items()}
    for candidate, score in scores.items():
        verdict = "within the limit" if score.p95_ms <= limit_ms else f"p95 {score.p95_ms:.2f} ms is over the limit"
        tried = {"candidate": candidate.text, "blocks": blocks, "p95_ms": round(score.p95_ms, 3)}
        search.bench.step("tuning", tried, Estimate(score.tps, score.tps, score.tps), verdict)
    return scores


def score_of(logs: Sequence[float], results: Sequence[SampleResult]) -> Score:
    p95_ms = quantile_ms(pooled(r.histogram for r in results), 0.95)
    return Score(float(np.mean(logs)) if logs else 0.0, float(np.mean([r.tps for r in results])), p95_ms)


def one_each(search: SearchRun, candidates: Sequence[Candidate], doing: str) -> dict[Candidate, SampleResult]:
    """Each candidate once: scenarios in random order (each is entered once a block), arms in random order within."""
    by_scenario: dict[Scenario, list[Arm]] = {}
    for candidate in candidates:
        by_scenario.setdefault(candidate.scenario, []).append(candidate.arm)
    scenarios = list(by_scenario)
    rng = np.random.default_rng([search.question.seed, search.blocks])
    results: dict[Candidate, SampleResult] = {}
    for i in rng.permutation(len(scenarios)):
        measured = search.run_block(scenarios[i], by_scenario[scenarios[i]], doing)
        results.update({Candidate(scenarios[i], arm): result for arm, result in measured.items()})
    return results


def quorum_open_on(bench: Bench) -> bool:
    """Whether waiting for any one of several standbys would be something else than what is in effect."""
    view = bench.target.observe()
    now = read_standby_names(view.standby_names)
    return len(view.standbys) >= 2 and (now is None or (now.kind, now.k) != (QuorumKind.ANY, 1))


def has_pool_on(bench: Bench) -> bool:
    """Whether a pooler is there whose size may be set: walproof's own."""
    return bench.target.capabilities().pool is not None


ALL_BUSY = 0.9
"""Share of the processors in use below which something else limits throughput too."""


@dataclass(frozen=True, slots=True)
class TunedPrice:
    """Tuned level against tuned baseline, measured in `pairs` blocks: their ratio, and the scores of both.

    bound: what the processors that all share allow the ratio to be (`processor_bound`). busy: the share of them in use
    with the level and with the baseline; the bound is the limit only where both are near 1.
    """

    tuned: Tuned
    ratio: Estimate
    pairs: int
    score: Score
    baseline: Score
    bound: Estimate
    busy: tuple[float, float]

    @property
    def of_bound(self) -> float:
        """The share of the bound that is reached; NaN without one."""
        return self.ratio.value / self.bound.value


def tuned_under(
    search: SearchRun, scenario: Scenario, level: Level, limit_ms: float, most: int | None
) -> tuple[dict[str, Any], str]:
    """Tune a level under one scenario and a limit on its p95: a JSON-ready object and the conclusion."""
    space = Space(
        base=replace(search.question.arms[0], label=""),
        level=level,
        baseline=search.question.baseline,
        most_clients=most or MOST_CLIENTS,
        quorum_open=quorum_open_on(search.bench),
        # Through a pool the level goes into each transaction: compared only with what is sent so, too.
        has_pool=search.question.arms[0].workload.per_transaction and has_pool_on(search.bench),
        scenario=scenario,
    )
    samples = int((1 - FINAL_SHARE) * search.question.budget_s / (search.question.sample_s + 2 * START_S))
    tuned = tune(space, limit_ms, samples, partial(_scores, search, limit_ms))
    price = _compared(search, tuned, limit_ms)
    shown = {
        "scenario": scenario.text,
        "level": str(level),
        "limit_ms": limit_ms,
        "tuned": _as_json(price.tuned.level[0]),
        "tuned_baseline": _as_json(price.tuned.baseline[0]),
        "tps": number(price.score.tps),
        "p95_ms": number(price.score.p95_ms),
        "within_limit": price.score.p95_ms <= limit_ms,
        "baseline_p95_ms": number(price.baseline.p95_ms),
        "baseline_within_limit": price.baseline.p95_ms <= limit_ms,
        "processor_bound": interval(price.bound),
        "of_bound": number(price.of_bound),
        "busy": number(price.busy[0]),
        "baseline_busy": number(price.busy[1]),
        "ratio": interval(price.ratio),
        "pairs": price.pairs,
    }
    return shown, _conclusion(price, limit_ms)


def _compared(search: SearchRun, tuned: Tuned, limit_ms: float) -> TunedPrice:
    """The last paired run: until its ratio is precise, the budget used up, or the pairs run out.

    Whichever of the two turns out to be over the limit after the first pairs gives way to its next best, and the pairs
    begin anew: both are held to the same limit.
    """
    pairs: list[Pair] = []
    tried = 0
    while tried < FINAL_PAIRS[1] and not (tried >= FINAL_PAIRS[0] and search.over()):
        tried += 1
        results = one_each(search, tuned.best, "tuned against tuned")
        if len(results) == 2:
            pairs.append((results[tuned.level[0]], results[tuned.baseline[0]]))
        other = _within_limit(tuned, pairs, limit_ms) if len(pairs) == FINAL_PAIRS[0] else tuned
        if other != tuned and not search.over():
            tuned, pairs, tried = other, [], 0
            continue
        if len(pairs) >= FINAL_PAIRS[0] and narrow(_ratio(pairs), len(pairs), search.question.precision):
            break
    ratio, bound = _ratio(pairs), processor_bound(pairs)
    final = {"final": " against ".join(one.text for one in tuned.best), "pairs": len(pairs)}
    final |= {"processors allow": round(bound.value, 3)} if bound.known else {}
    search.bench.step("tuning", final, ratio, "tuned against tuned")
    level, baseline = (score_of([], [pair[i] for pair in pairs]) for i in (0, 1))
    busy, baseline_busy = (fmean(processors_busy(pair[i]) for pair in pairs) if pairs else math.nan for i in (0, 1))
    return TunedPrice(tuned, ratio, len(pairs), score=level, baseline=baseline, bound=bound, busy=(busy, baseline_busy))


def _ratio(pairs: Sequence[Pair]) -> Estimate:
    return ratio_interval(*paired_totals(pairs)) if pairs else UNKNOWN


def _within_limit(tuned: Tuned, pairs: Sequence[Pair], limit_ms: float) -> Tuned:
    """The same, or with the next best in place of what is over the limit in these pairs."""

    def left(ranked: Sequence[Candidate], results: list[SampleResult]) -> Sequence[Candidate]:
        return ranked[1:] if len(ranked) > 1 and score_of([], results).p95_ms > limit_ms else ranked

    return Tuned(left(tuned.level, [one for one, _ in pairs]), left(tuned.baseline, [other for _, other in pairs]))


def _as_json(one: Candidate) -> dict[str, Any]:
    return {
        "level": str(one.arm.level),
        "clients": one.arm.clients,
        "route": str(one.arm.route),
        "pool": one.arm.pool,
        "scenario": one.scenario.text,
        "parameters": dict(one.scenario.parameters),
    }


def _conclusion(price: TunedPrice, limit_ms: float) -> str:
    best, baseline = price.tuned.best
    ratio, score = price.ratio, price.score
    held = "within" if score.p95_ms <= limit_ms else "over"
    sentence = (
        f"Tuned {best.arm.level} reaches {ratio.value:.1%} of tuned {baseline.arm.level} "
        f"(95 % CI {ratio.low:.3f}–{ratio.high:.3f}): {score.tps:.0f} tps, p95 {score.p95_ms:.2f} ms, {held} the "
        f"limit of {limit_ms:g} ms, with {best.text}; against {baseline.text}."
    )
    if price.baseline.p95_ms > limit_ms:
        sentence += f" {baseline.arm.level} is over the limit (p95 {price.baseline.p95_ms:.2f} ms): not like with like."
    if price.bound.known:
        busy, baseline_busy = price.busy
        sentence += (
            f" The processors, which all share, allow {price.bound.value:.3f} ({price.bound.low:.3f}–"
            f"{price.bound.high:.3f}); {price.of_bound:.1%} of that is reached: they were {busy:.0%} busy with "
            f"{best.arm.level}, {baseline_busy:.0%} with {baseline.arm.level}."
        )
        if min(price.busy) < ALL_BUSY:
            sentence += " So something else, such as the disk, limits too."
    return sentence
