"""Conducts the searches on a bench: break-even and tuning, step by step, each step emitted. It acts.

Samples of a search carry block numbers below zero, so that the grid's table does not count them.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from walproof.estimating.intervals import anytime_interval, as_ratio, stopped_interval
from walproof.estimating.stopping import narrow
from walproof.model.estimate import Estimate
from walproof.model.event import SearchStep
from walproof.model.guarantee import Level
from walproof.model.histogram import pooled, quantile_ms
from walproof.model.plan import Arm, Scenario
from walproof.model.sample import SampleResult
from walproof.pricing import breakeven, tuning
from walproof.pricing.bench import Bench, Progress, Tell
from walproof.pricing.breakeven import Ask, Found
from walproof.pricing.design import Question, block
from walproof.pricing.tuning import Contestant, Round, Score, Tuned

Result = TypeVar("Result")

PAIRS = (4, 10)
"""Fewest and most pairs spent on one point of a break-even search."""
FINAL_PAIRS = (8, 60)
FINAL_SHARE = 0.4
"""Share of a tuning's budget kept for the last paired run of tuned level against tuned baseline."""


class Search:
    """A search under way on a bench: runs the samples its generator asks for, within a budget."""

    def __init__(self, bench: Bench, question: Question, tell: Tell) -> None:
        self.bench, self.question, self.tell = bench, question, tell
        self.begun = bench.now()
        self.replayed_s = 0.0
        self.blocks = 0

    def elapsed(self) -> float:
        """Seconds since the search began, those of a run that is resumed included."""
        return self.bench.now() - self.begun + self.replayed_s

    def over(self, share: float = 1.0) -> bool:
        """Whether that share of the budget is used up."""
        return self.elapsed() >= share * self.question.budget_s

    def pairs_a_point(self) -> int:
        """Most pairs a point of the break-even search may take, so that about eight points a level fit the budget."""
        levels = len({arm.level for arm in self.question.arms})
        pair_s = 2 * (self.question.sample_s + 0.4)
        return max(PAIRS[0], min(PAIRS[1], int(self.question.budget_s / (8 * levels * pair_s))))

    def run_block(self, setting: Scenario, arms: Sequence[Arm], doing: str) -> dict[Arm, SampleResult]:
        """One block of arms under a setting; empty when one failed. What a resumed run measured is not run again."""
        self.blocks += 1
        number = self.bench.next_search_block()
        plan = [replace(one, block=number) for one in block(-number, setting, arms, self.question.seed)]
        if earlier := self.bench.searched(plan):
            self.replayed_s += sum(result.seconds for result in earlier)
            return {result.sample.arm: result for result in earlier}
        self.bench.enter(setting)
        measured: dict[Arm, SampleResult] = {}
        for planned in plan:
            self.tell(Progress(self.elapsed(), self.question.budget_s, self.blocks, doing))
            result = self.bench.measure(planned, self.question.sample_s)
            if result is None or result.tps <= 0:
                return {}
            measured[planned.arm] = result
        return measured


def find_break_even(
    search: Search, setting: Scenario, base: Arm, most: int
) -> tuple[dict[Level, Found | None], int | None]:
    """Break-even of every level but the baseline under one setting, and the clients of the baseline's peak.

    None where the budget ran out first; the steps so far are emitted all the same.
    """
    baseline = search.question.baseline

    def answer(ask: Ask) -> Estimate:
        return _paired_point(search, setting, base, ask)

    levels = dict.fromkeys(a.level for a in search.question.arms if a.level is not baseline and not a.mix)
    top = _driven(breakeven.peak(baseline, most), answer, search)
    if top is None:
        return dict.fromkeys(levels), None
    return {one: _driven(breakeven.break_even(one, top, most), answer, search) for one in levels}, top


def _driven(
    generator: Generator[Ask, Estimate, Result], answer: Callable[[Ask], Estimate], search: Search
) -> Result | None:
    try:
        ask = next(generator)
        while not search.over():
            ask = generator.send(answer(ask))
    except StopIteration as end:
        found: Result = end.value
        return found
    return None


def _paired_point(search: Search, setting: Scenario, base: Arm, ask: Ask) -> Estimate:
    """The ratio at one point: pairs until its anytime interval leaves out the goal, is narrow, or pairs run out."""
    one = replace(base, level=ask.level, clients=ask.clients, label="tried")
    other = replace(base, level=search.question.baseline, clients=ask.against, label="")
    doing = f"{ask.level} with {ask.clients} clients against {other.level} with {ask.against}"
    logs: list[float] = []
    for _ in range(search.pairs_a_point()):
        measured = search.run_block(setting, (one, other), doing)
        if measured:
            logs.append(float(np.log(measured[one].tps / measured[other].tps)))
        ratio = as_ratio(anytime_interval(np.array(logs)))
        enough = len(logs) >= PAIRS[0]
        if enough and (not ratio.covers(breakeven.GOAL) or ratio.half_width <= 0.01 or search.over()):
            break
    reaches = "reaches" if ratio.value >= breakeven.GOAL else "is below"
    conclusion = f"{reaches} {breakeven.GOAL:.0%} of {other.level}'s with {ask.against}"
    tried = {"level": str(ask.level), "clients": ask.clients, "against": ask.against, "setting": setting.text}
    search.bench.step(
        SearchStep(search.bench.now(), "break-even", tried, ratio.value, ratio.low, ratio.high, conclusion)
    )
    return ratio


def find_tuned(search: Search, space: tuning.Space, limit_ms: float) -> tuple[Tuned, Estimate, int, Score]:
    """The tuned contestants, the final ratio level / baseline, the pairs it rests on, and the level's final score."""
    per_sample = search.question.sample_s + 0.8
    searching = tuning.tune(space, limit_ms, int((1 - FINAL_SHARE) * search.question.budget_s / per_sample))
    try:
        asked = next(searching)
        while True:
            asked = searching.send(_scores(search, asked, limit_ms))
    except StopIteration as end:
        tuned: Tuned = end.value
    logs: list[float] = []
    seen: list[SampleResult] = []
    for _ in range(FINAL_PAIRS[1]):
        results = _one_each(search, (tuned.best, tuned.best_local), "tuned against tuned")
        if len(results) == 2:
            logs.append(float(np.log(results[tuned.best].tps / results[tuned.best_local].tps)))
            seen.append(results[tuned.best])
        ratio = as_ratio(stopped_interval(np.array(logs)))
        if len(logs) >= FINAL_PAIRS[0] and (narrow(ratio, len(logs), search.question.precision) or search.over()):
            break
    score = Score(ratio.value, float(np.mean([r.tps for r in seen])), _p95(seen))
    said = f"{tuning.words(tuned.best)} against {tuning.words(tuned.best_local)}"
    tried = {"final": said, "pairs": len(logs)}
    search.bench.step(
        SearchStep(search.bench.now(), "tuning", tried, ratio.value, ratio.low, ratio.high, "tuned against tuned")
    )
    return tuned, ratio, len(logs), score


def _scores(search: Search, asked: Round, limit_ms: float) -> Mapping[Contestant, Score]:
    """Run a round and score whoever ran; its steps are emitted."""
    ran: dict[Contestant, list[tuple[float, SampleResult]]] = {}
    for _ in range(asked.blocks):
        results = _one_each(search, asked.contestants, f"tuning, {len(asked.contestants)} left")
        middle = float(np.mean([np.log(r.tps) for r in results.values()])) if results else 0.0
        for contestant, result in results.items():
            ran.setdefault(contestant, []).append((float(np.log(result.tps)) - middle, result))
    scores = {
        c: Score(
            float(np.mean([log for log, _ in found])),
            float(np.mean([r.tps for _, r in found])),
            _p95([r for _, r in found]),
        )
        for c, found in ran.items()
    }
    for contestant, score in scores.items():
        verdict = "within the limit" if score.p95_ms <= limit_ms else f"p95 {score.p95_ms:.2f} ms is over the limit"
        tried = {"contestant": tuning.words(contestant), "blocks": asked.blocks, "p95_ms": round(score.p95_ms, 3)}
        search.bench.step(SearchStep(search.bench.now(), "tuning", tried, score.tps, score.tps, score.tps, verdict))
    return scores


def _p95(results: Sequence[SampleResult]) -> float:
    return quantile_ms(pooled(r.histogram for r in results), 0.95)


def _one_each(search: Search, field: Sequence[Contestant], doing: str) -> dict[Contestant, SampleResult]:
    """Each contestant once: settings in random order (each is entered once a block), arms in random order within."""
    by_setting: dict[Scenario, list[Arm]] = {}
    for contestant in field:
        by_setting.setdefault(contestant.setting, []).append(contestant.arm)
    settings = list(by_setting)
    rng = np.random.default_rng([search.question.seed, search.blocks])
    found: dict[Contestant, SampleResult] = {}
    for i in rng.permutation(len(settings)):
        measured = search.run_block(settings[i], by_setting[settings[i]], doing)
        found.update({Contestant(settings[i], arm): result for arm, result in measured.items()})
    return found
