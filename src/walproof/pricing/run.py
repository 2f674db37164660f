"""Runs a price on a target: warm-up, blocks until precise or out of budget, then offered loads; and blocks of searches.

Always leaves the target as it was, after Ctrl-C too; what was measured is already emitted.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from walproof.errors import TargetError
from walproof.estimating.intervals import StoppedBy, narrow
from walproof.model.event import SampleDone
from walproof.model.sample import Arm, Sample, SampleResult, Scenario
from walproof.model.units import counted
from walproof.pricing.estimates import Blocks, ratio_of, samples_of, tps_of
from walproof.pricing.sampling import (
    AGAIN,
    WARM_BLOCK,
    Bench,
    OnProgress,
    Question,
    RunProgress,
    block,
    group,
    ignore_progress,
    is_baseline,
    still_needed,
    visit_order,
)

FIRST_VISIT, LATER_VISITS = 2, 4
"""Blocks before the next scenario is entered: few at first, so that each has some early."""
FEWEST = 2
"""Blocks every scenario gets, even beyond the budget: below that there is no interval at all."""
_CHECKPOINT_SLACK_S = 60.0
"""What a checkpoint may take beyond three times its usual time."""
RESTART_S = 5.0
"""A scenario that takes longer to come into effect has restarted servers for it."""
RESTART_SHARE = 4.0
"""A visit lasts so many times as long as the restarts it cost, so that most of a run is measuring."""
START_S = 0.4
"""What starting a sample is taken to cost before any was seen."""


def run_price(bench: Bench, question: Question, on_progress: OnProgress = ignore_progress) -> StoppedBy:
    """Run the question on the bench; why it stopped. The target is left as it was, in every case."""
    try:
        bench.prepare(question.arms)
        bench.observe()
        share = 1 / (1 + len(question.load))
        closed = replace(question, budget_s=question.budget_s * share)
        stopped = _Grid(bench, closed, on_progress).run()
        for fraction in question.load:
            opened = replace(closed, arms=offered(bench, question, fraction))
            stopped = max(stopped, _Grid(bench, opened, on_progress).run(), key=lambda s: s is StoppedBy.BUDGET)
        bench.observe()
        return stopped
    except KeyboardInterrupt:
        bench.note("interrupted; what was measured so far is kept, --resume goes on")
        return StoppedBy.INTERRUPTED
    finally:
        bench.leave()


def offered(bench: Bench, question: Question, fraction: float) -> tuple[Arm, ...]:
    """Open-loop arms: all of a group are offered this fraction of what its slowest did, lowest over scenarios.

    A resumed run offers what it offered before. An arm that was not measured is left out.
    """
    label = f"load {fraction:g}"
    samples = samples_of(bench.events)
    slowest = {arm: _slowest(samples, arm) for arm in question.arms if arm.label != AGAIN}
    able = {arm: tps for arm, tps in slowest.items() if tps > 0}
    capacity = {group(arm): min(tps for a, tps in able.items() if group(a) == group(arm)) for arm in able}
    rates = {key: round(fraction * tps, 1) for key, tps in capacity.items()}
    for event in bench.events:
        if isinstance(event, SampleDone) and event.result.sample.arm.label == label:
            before = event.result.sample.arm
            rates[group(replace(before, label=""))] = before.rate or 0.0
    return tuple(replace(arm, rate=rates[group(arm)], label=label) for arm in able)


def _slowest(samples: dict[Scenario, Blocks], arm: Arm) -> float:
    """The arm's throughput under the scenario in which it was lowest, 0 when it was not measured."""
    per_scenario = [[measured[arm] for measured in blocks.values() if arm in measured] for blocks in samples.values()]
    return min((tps_of(results).value for results in per_scenario if results), default=0.0)


class _Grid:
    """One grid of scenarios and arms while it runs."""

    def __init__(self, bench: Bench, question: Question, on_progress: OnProgress) -> None:
        self.bench, self.question, self.on_progress = bench, question, on_progress
        asked = set(question.arms)
        self.found = samples_of(bench.events)
        done = [e.result for e in bench.events if isinstance(e, SampleDone) and e.result.sample.arm in asked]
        self.number = max([0, *(e.result.sample.block for e in bench.events if isinstance(e, SampleDone))])
        self.spent_s = sum(r.seconds + START_S for r in done)
        self.samples = 0
        self.started = bench.now()
        self.warmed: set[Scenario] = set()

    def elapsed(self) -> float:
        """Seconds of the budget used, those of an earlier, resumed run included."""
        return self.spent_s + self.bench.now() - self.started

    def run(self) -> StoppedBy:
        """Rounds over the scenarios until every arm is narrow or the budget is used up; or whole checkpoint cycles."""
        if self.question.cycles:
            return self.run_cycles()
        for round_number in itertools.count():
            pending = [
                s for s in visit_order(self.question.scenarios, round_number, self.question.seed) if self.needed(s)
            ]
            if not pending:
                return StoppedBy.LEFT_OUT if not self.found else StoppedBy.PRECISION
            for scenario in pending:
                if not self.visit(scenario, FIRST_VISIT if round_number == 0 else LATER_VISITS):
                    return StoppedBy.BUDGET
        raise AssertionError("unreachable")

    def visit(self, scenario: Scenario, blocks: int) -> bool:
        """Some blocks under one scenario; False when the budget does not hold another."""
        began, restarting_s, number = self.bench.now(), 0.0, 0
        while number < blocks or self.bench.now() - began < RESTART_SHARE * restarting_s:
            arms = self.needed(scenario)
            if not arms:
                return True
            if not self.affords(len(arms)) and self.has(scenario) >= FEWEST:
                return self.has_few_elsewhere()
            restarting_s += self.enter(scenario)
            if scenario in self.bench.left_out:
                return True
            if scenario not in self.warmed:
                self.warm(scenario)
            self.run_block(scenario, arms)
            number += 1
        return True

    def enter(self, scenario: Scenario) -> float:
        """Bring it into effect: seconds it took where servers were restarted for it, which are no time of measuring."""
        began = self.bench.now()
        self.bench.enter(scenario)
        took_s = self.bench.now() - began
        if took_s < RESTART_S:
            return 0.0
        self.started += took_s
        return took_s

    def run_block(self, scenario: Scenario, arms: Sequence[Arm]) -> None:
        """One block under the scenario in effect; a sample that fails leaves its arm out of it."""
        self.number += 1
        for planned in block(self.number, scenario, arms, self.question.seed):
            self.report(planned)
            result = self.bench.measure(planned, self.question.sample_s)
            if result is not None:
                self.found.setdefault(scenario, {}).setdefault(self.number, {})[planned.arm] = result
                self.samples += 1

    def run_cycles(self) -> StoppedBy:
        """Every scenario for whole checkpoint cycles, from the end of one checkpoint to the end of another.

        The load runs before the first one too, uncounted, so that the cycles find the database as load leaves it.
        """
        for scenario in self.question.scenarios:
            if not self.bench.enter(scenario):
                continue
            self.until_checkpoint(partial(self.warm, scenario))
            for _ in range(self.question.cycles):
                self.until_checkpoint(partial(self.run_block, scenario, self.question.arms))
        return StoppedBy.CYCLES if self.found else StoppedBy.LEFT_OUT

    def until_checkpoint(self, run: Callable[[], None]) -> None:
        """Run again and again until a checkpoint has ended; TargetError when none does in three times its time."""
        began, now = self.bench.pricing.checkpoints(), self.bench.now
        patience = now() + 3 * began.apart_s + _CHECKPOINT_SLACK_S
        while self.bench.pricing.checkpoints().redo == began.redo:
            if now() > patience:
                raise TargetError(f"no checkpoint ended within {3 * began.apart_s:.0f} s", "leave --steady out")
            run()

    def affords(self, arms: int) -> bool:
        """Whether another block of that many arms fits the budget."""
        each = (self.bench.now() - self.started) / self.samples if self.samples else self.question.sample_s + START_S
        return self.elapsed() + arms * each <= self.question.budget_s

    def has(self, scenario: Scenario) -> int:
        """Blocks of these arms measured under the scenario."""
        arms = set(self.question.arms)
        return sum(1 for measured in self.found.get(scenario, {}).values() if arms & set(measured))

    def has_few_elsewhere(self) -> bool:
        """Whether another scenario still lacks the fewest blocks, so that the run goes on though the budget is used."""
        return any(self.has(s) < FEWEST for s in self.question.scenarios if s not in self.bench.left_out)

    def needed(self, scenario: Scenario) -> tuple[Arm, ...]:
        """Arms still too wide under the scenario, with their baselines."""
        if scenario in self.bench.left_out:
            return ()
        blocks = self.found.get(scenario, {})
        fine = {arm for arm in self.question.arms if precise(blocks, arm, self.question)}
        return still_needed(self.question.arms, fine, self.question.baseline)

    def warm(self, scenario: Scenario) -> None:
        """One uncounted sample a workload and route, at the most clients, so that no arm meets cold caches first."""
        self.warmed.add(scenario)
        most: dict[object, Arm] = {}
        for arm in sorted(self.question.arms, key=lambda a: a.clients):
            most[arm.workload, arm.route] = replace(arm, level=self.question.baseline, mix=(), label="warm")
        for position, arm in enumerate(most.values()):
            planned = Sample(WARM_BLOCK, position, arm, scenario)
            self.report(planned)
            self.bench.measure(planned, self.question.sample_s)

    def report(self, planned: Sample) -> None:
        arm = planned.arm
        doing = f"block {planned.block}: {arm.level}, {counted(arm.clients, 'client')}, {planned.scenario.text}"
        self.on_progress(RunProgress(self.elapsed(), self.question.budget_s, self.number, doing))


def precise(blocks: Blocks, arm: Arm, question: Question) -> bool:
    """Whether this arm needs no further block: by the width of its ratio, or of its throughput for the baseline."""
    if not is_baseline(arm, question.baseline):
        ratio, pairs = ratio_of(blocks, arm, question.baseline)
        return narrow(ratio, pairs, question.precision)
    results = [measured[arm] for measured in blocks.values() if arm in measured]
    return narrow(tps_of(results), len(results), question.precision)


class SearchRun:
    """A search (break-even, tuning) while it runs: measures the blocks it asks for, within its share of the budget."""

    def __init__(self, bench: Bench, question: Question, on_progress: OnProgress) -> None:
        self.bench, self.question, self.on_progress = bench, question, on_progress
        self.started = bench.now()
        self.replayed_s = 0.0
        self.blocks = 0

    def elapsed(self) -> float:
        """Seconds since the search started, those of a resumed run included."""
        return self.bench.now() - self.started + self.replayed_s

    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.elapsed() >= self.question.budget_s

    def run_block(self, scenario: Scenario, arms: Sequence[Arm], doing: str) -> dict[Arm, SampleResult]:
        """One block of arms under a scenario; empty when one failed. What a resumed run measured is not run again.

        Its number is below zero, so that the grid's table does not count it.
        """
        self.blocks += 1
        number = self.bench.next_search_block()
        plan = [replace(one, block=number) for one in block(-number, scenario, arms, self.question.seed)]
        if earlier := self.bench.earlier_results(plan):
            self.replayed_s += sum(result.seconds for result in earlier)
            return {result.sample.arm: result for result in earlier}
        if not self.bench.enter(scenario):
            return {}
        measured: dict[Arm, SampleResult] = {}
        for planned in plan:
            self.on_progress(RunProgress(self.elapsed(), self.question.budget_s, self.blocks, doing))
            result = self.bench.measure(planned, self.question.sample_s)
            if result is None or result.tps <= 0:
                return {}
            measured[planned.arm] = result
        return measured
