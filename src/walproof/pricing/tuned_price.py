"""The tuned level against the tuned baseline: the last paired run, held to one limit, and what the processors allow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from walproof.estimating.stopping import narrow
from walproof.estimating.totals import Totals, ratio_interval
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.model.plan import Scenario
from walproof.model.sample import SampleResult
from walproof.pricing.as_json import interval, number
from walproof.pricing.estimates import UNKNOWN, Pair, paired_totals, totals
from walproof.pricing.run import SearchRun
from walproof.pricing.tuning import (
    FINAL_PAIRS,
    MOST_CLIENTS,
    Candidate,
    Score,
    Space,
    Tuned,
    has_pool_on,
    one_each,
    quorum_open_on,
    score_of,
    searched,
)

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
    found = _compared(search, searched(search, space, limit_ms), limit_ms)
    shown = {
        "scenario": scenario.text,
        "level": str(level),
        "limit_ms": limit_ms,
        "tuned": _as_json(found.tuned.best),
        "tuned_baseline": _as_json(found.tuned.best_baseline),
        "tps": number(found.score.tps),
        "p95_ms": number(found.score.p95_ms),
        "within_limit": found.score.p95_ms <= limit_ms,
        "baseline_p95_ms": number(found.baseline.p95_ms),
        "baseline_within_limit": found.baseline.p95_ms <= limit_ms,
        "processor_bound": interval(found.bound),
        "of_bound": number(found.of_bound),
        "busy": number(found.busy[0]),
        "baseline_busy": number(found.busy[1]),
        "ratio": interval(found.ratio),
        "pairs": found.pairs,
    }
    return shown, _conclusion(found, limit_ms)


def _compared(search: SearchRun, tuned: Tuned, limit_ms: float) -> TunedPrice:
    """The last paired run: until its ratio is precise, the budget used up, or the pairs run out.

    Whichever of the two turns out to be over the limit after the first pairs gives way to its next best, and the pairs
    begin anew: both are held to the same limit.
    """
    pairs: list[Pair] = []
    tried = 0
    while tried < FINAL_PAIRS[1] and not (tried >= FINAL_PAIRS[0] and search.over()):
        tried += 1
        found = one_each(search, (tuned.best, tuned.best_baseline), "tuned against tuned")
        if len(found) == 2:
            pairs.append((found[tuned.best], found[tuned.best_baseline]))
        other = _within_limit(tuned, pairs, limit_ms) if len(pairs) == FINAL_PAIRS[0] else tuned
        if other != tuned and not search.over():
            tuned, pairs, tried = other, [], 0
            continue
        if len(pairs) >= FINAL_PAIRS[0] and narrow(_ratio(pairs), len(pairs), search.question.precision):
            break
    ratio, bound = _ratio(pairs), processor_bound(pairs)
    final = {"final": f"{tuned.best.text} against {tuned.best_baseline.text}", "pairs": len(pairs)}
    final |= {"processors allow": round(bound.value, 3)} if bound.known else {}
    search.bench.step("tuning", final, ratio, "tuned against tuned")
    level, baseline = (score_of([], [pair[i] for pair in pairs]) for i in (0, 1))
    busy, baseline_busy = (fmean(_busy(pair[i]) for pair in pairs) if pairs else math.nan for i in (0, 1))
    return TunedPrice(tuned, ratio, len(pairs), level, baseline, bound, (busy, baseline_busy))


def _ratio(pairs: Sequence[Pair]) -> Estimate:
    return ratio_interval(*paired_totals(pairs)) if pairs else UNKNOWN


def _within_limit(tuned: Tuned, pairs: Sequence[Pair], limit_ms: float) -> Tuned:
    """The same, or with the next best in place of what is over the limit in these pairs."""
    level, baseline = (score_of([], [pair[i] for pair in pairs]).p95_ms > limit_ms for i in (0, 1))
    if level and tuned.next_best:
        tuned = replace(tuned, best=tuned.next_best[0], next_best=tuned.next_best[1:])
    if baseline and tuned.next_baseline:
        tuned = replace(tuned, best_baseline=tuned.next_baseline[0], next_baseline=tuned.next_baseline[1:])
    return tuned


def processor_bound(pairs: Sequence[Pair]) -> Estimate:
    """The largest ratio that processors shared by all members and clients allow, from pairs (level, baseline).

    Processors that are all busy do as many transactions a second as their time a transaction allows, so the ratio is at
    most the baseline's processor time per transaction divided by the level's (the utilisation law, Denning & Buzen
    1978). Without a bound where members' processors are not known (they are elsewhere) or limited one by one.
    """
    known = [p for p in pairs if all(_shared(r) and r.transactions for r in p)]
    if len(known) < 2 or len(known) < len(pairs):
        return UNKNOWN
    level, baseline = (_busy_per_transaction([pair[i] for pair in known]) for i in (0, 1))
    return ratio_interval(baseline, level)


def _shared(result: SampleResult) -> bool:
    members = result.window.members.values()
    return result.sample.scenario.cores is None and any(m.cpu_cores is not None for m in members)


def _busy_per_transaction(results: Sequence[SampleResult]) -> Totals:
    """Processor time of each sample (share of all there are, times seconds), transactions."""
    return Totals(np.array([_busy(r) * r.seconds for r in results]), totals(results).counts)


def _busy(result: SampleResult) -> float:
    """The share of all processors in use during the sample, without what others took."""
    return max(0.0, result.window.machine_busy - result.window.stolen)


def _as_json(one: Candidate) -> dict[str, Any]:
    return {
        "level": str(one.arm.level),
        "clients": one.arm.clients,
        "route": str(one.arm.route),
        "pool": one.arm.pool,
        "scenario": one.scenario.text,
        "parameters": dict(one.scenario.parameters),
    }


def _conclusion(found: TunedPrice, limit_ms: float) -> str:
    best, baseline = found.tuned.best, found.tuned.best_baseline
    ratio, score = found.ratio, found.score
    held = "within" if score.p95_ms <= limit_ms else "over"
    sentence = (
        f"Tuned {best.arm.level} reaches {ratio.value:.1%} of tuned {baseline.arm.level} "
        f"(95 % CI {ratio.low:.3f}–{ratio.high:.3f}): {score.tps:.0f} tps, p95 {score.p95_ms:.2f} ms, {held} the "
        f"limit of {limit_ms:g} ms, with {best.text}; against {baseline.text}."
    )
    if found.baseline.p95_ms > limit_ms:
        sentence += f" {baseline.arm.level} is over the limit (p95 {found.baseline.p95_ms:.2f} ms): not like with like."
    if found.bound.known:
        busy, baseline_busy = found.busy
        sentence += (
            f" The processors, which all share, allow {found.bound.value:.3f} ({found.bound.low:.3f}–"
            f"{found.bound.high:.3f}); {found.of_bound:.1%} of that is reached: they were {busy:.0%} busy with "
            f"{best.arm.level}, {baseline_busy:.0%} with {baseline.arm.level}."
        )
        if min(found.busy) < ALL_BUSY:
            sentence += " So something else, such as the disk, limits too."
    return sentence
