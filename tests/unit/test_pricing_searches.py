"""Break-even, tuning and prediction: the searches find what a known surface holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fixtures.known_prices import searched
from tests.fixtures.priced_fake import FakePriced, throughput
from tests.fixtures.tiers import each
from walproof.errors import TargetError, UndecidedError
from walproof.model.estimate import Estimate
from walproof.model.event import Described, SampleDone, SearchStep
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, MemberWindow, Sample, SampleResult, Scenario, Window
from walproof.model.topology import Description
from walproof.pricing import prediction, tuning
from walproof.pricing.break_even import TrialPoint, find_break_even, find_peak
from walproof.pricing.command import PriceResult, result_lines, run_command
from walproof.pricing.estimates import price_table
from walproof.pricing.options import parse_options
from walproof.pricing.prediction import PRIOR, Point, fit, held_out, median_error, predict, processor_bound, solve
from walproof.pricing.sampling import Bench, ignore_progress
from walproof.pricing.tuning import Candidate, Score, Space, ranking
from walproof.reporting.console_output import json_text


class Surface(list[TrialPoint]):
    """Measures points on the true surface, and keeps what was asked."""

    def __init__(self, rtt_ms: float = 0.0) -> None:
        self.rtt_ms = rtt_ms

    def measure(self, ask: TrialPoint) -> Estimate:
        self.append(ask)
        one = throughput(Arm(ask.level, ask.clients), self.rtt_ms)
        ratio = one / throughput(Arm(Level.LOCAL, ask.against), self.rtt_ms)
        return Estimate(ratio, ratio, ratio)


def test_break_even_is_found_by_searching_and_not_by_trying_every_number() -> None:
    asks = Surface(rtt_ms=10.0)
    top = find_peak(Level.LOCAL, Surface().measure)
    found = find_break_even(Level.ON, top, asks.measure)
    assert found.clients is not None
    goal = 0.99 * throughput(Arm(Level.LOCAL, top))
    assert throughput(Arm(Level.ON, found.clients), 10.0) >= goal > throughput(Arm(Level.ON, found.below), 10.0)
    assert found.clients - found.below <= 0.1 * found.clients
    assert len(asks) <= 10


def test_a_longer_round_trip_needs_more_clients() -> None:
    near, far = (find_break_even(Level.ON, 32, Surface(rtt_ms).measure).clients for rtt_ms in (3.0, 10.0))
    assert near and far and near < far


def test_a_level_that_never_gets_there_is_reported() -> None:
    found = find_break_even(Level.ON, 16, Surface(rtt_ms=50.0).measure, most=32)
    assert found.clients is None
    assert found.below == 32
    assert found.ratio.value < 0.99


def test_a_level_that_needs_fewer_clients_than_the_peak_is_followed_downwards() -> None:
    found = find_break_even(Level.OFF, 64, Surface().measure)
    assert found.clients is not None
    assert found.clients < 32


def priced(target: FakePriced, **raw: Any) -> tuple[PriceResult, Bench]:
    """The result of these options on the fake target."""
    bench = Bench(target, lambda _: None, 1)
    return run_command(bench, parse_options(raw), ignore_progress), bench


def test_break_even_on_a_target_leaves_steps_and_a_sentence() -> None:
    result, bench = priced(FakePriced(noise=0.005), break_even=True, levels="on", rtt="5ms", budget="30min")
    (found,) = result.parts["break_even"]
    assert found["clients"] > found["below"] > 0
    assert "reaches 99%" in result_lines(result)[0]
    assert any(isinstance(e, SearchStep) for e in bench.events)
    assert not price_table(bench.events).arms
    assert all(e.result.sample.block < 0 for e in bench.events if isinstance(e, SampleDone))


def test_a_search_ends_soon_after_its_budget_and_leaves_the_target() -> None:
    target = FakePriced(noise=0.1)
    result, _ = priced(target, break_even=True, levels="on", budget="20s", sample="1s")
    assert target.left == 1
    assert target.clock.now() - 1_800_000_000 < 60
    assert not result.parts["break_even"][0]["decided"]
    assert "budget ran out" in result_lines(result)[0]
    assert result.stopped_by == "budget"


@each([
    {"tune": True, "limit": "30ms", "budget": "20min", "sample": "1s"},
    {"break_even": True, "levels": "on", "rtt": "5ms", "budget": "30min"},
])  # fmt: skip
def test_a_resumed_search_goes_on_where_it_was_interrupted(raw: dict[str, Any]) -> None:
    uninterrupted, bench = priced(FakePriced(noise=0.01), **raw)
    first = Bench(FakePriced(noise=0.01, interrupt_after=20), lambda _: None, 1)
    interrupted = run_command(first, parse_options(raw), ignore_progress)
    assert interrupted.stopped_by == "interrupted"
    assert "--resume" in result_lines(interrupted)[0]
    target = FakePriced(noise=0.01)
    second = Bench(target, lambda _: None, 1, earlier=first.events)
    resumed = run_command(second, parse_options(raw), ignore_progress)
    assert json_text(resumed.parts) == json_text(uninterrupted.parts)

    def steps(bench: Bench) -> list[tuple[Any, ...]]:
        return [(e.tried, e.value, e.conclusion) for e in bench.events if isinstance(e, SearchStep) and e.value > 0]

    assert steps(second) == steps(bench)
    measured = sum(isinstance(e, SampleDone) for e in bench.events)
    assert measured - 20 <= len(target.asked) < measured - 10


class Tunable(FakePriced):
    """At the level `on` a commit delay of 1 ms brings 30 %; more clients than 32 take too long."""

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        result = super().run_sample(planned, seconds, seed)
        good = dict(planned.scenario.parameters).get("commit_delay") == "1000" and planned.arm.level is Level.ON
        return replace(result, credit=result.credit * (1.3 if good else 1.0))


def test_tuning_finds_the_parameters_that_help_and_compares_with_tuned_local_in_pairs() -> None:
    result, bench = priced(Tunable(noise=0.01), tune=True, limit="30ms", budget="20min", sample="1s")
    (found,) = result.parts["tuning"]
    assert found["tuned"]["parameters"]["commit_delay"] == "1000"
    assert found["tuned_baseline"]["level"] == "local"
    assert found["within_limit"]
    assert found["pairs"] >= 8
    assert found["ratio"]["low"] > 1.1
    assert "Tuned on reaches" in result_lines(result)[0]
    assert sum(isinstance(e, SearchStep) and "final" in e.tried for e in bench.events) == 1


def test_under_a_tight_limit_fewer_clients_win() -> None:
    wide, _ = priced(FakePriced(noise=0.01), tune=True, limit="100ms", budget="10min", sample="1s")
    tight, _ = priced(FakePriced(noise=0.01), tune=True, limit="5ms", budget="10min", sample="1s")
    clients = [a.parts["tuning"][0]["tuned"]["clients"] for a in (wide, tight)]
    assert clients[0] > clients[1]


def test_ranking_puts_the_faster_within_the_limit_and_the_quicker_beyond_it() -> None:
    candidates = [Candidate(Scenario(), Arm(Level.ON, n)) for n in (1, 2, 4, 8)]
    scores = dict(
        zip(candidates, (Score(0.0, 1, 1), Score(1.0, 2, 9), Score(2.0, 4, 11), Score(3.0, 8, 20)), strict=True)
    )
    assert ranking(candidates, scores, 10) == [candidates[i] for i in (1, 0, 2, 3)]
    assert ranking(candidates, scores, 0.5) == candidates


@each([True, False])
def test_tuning_finds_the_best_clients_first_and_then_the_best_configuration_within_its_samples(pooled: bool) -> None:
    space = Space(Arm(Level.ON, 1), Level.ON, Level.LOCAL, 128, quorum_open=True, has_pool=pooled, scenario=Scenario())

    def score(one: Candidate) -> float:
        best = 96 if one.arm.level is Level.ON else 16
        helps = one.scenario.quorum == 1 or (one.arm.level is Level.LOCAL and one.arm.pool == 16)
        return -abs(one.arm.clients - best) + 5 * helps

    cost = []

    def measure(candidates: Sequence[Candidate], blocks: int) -> dict[Candidate, Score]:
        cost.append(blocks * len(candidates))
        return {c: Score(score(c), 1, 1) for c in candidates}

    best, baseline = tuning.tune(space, 10, 120, measure).best
    assert (best.arm.clients, best.scenario.quorum) == (96, 1)
    assert (baseline.arm.clients, baseline.arm.pool) == (16, 16 if pooled else None)
    assert sum(cost) <= 120


def test_a_level_that_cannot_be_measured_ends_the_tuning_with_a_sentence() -> None:
    space = Space(Arm(Level.ON, 1), Level.ON, Level.LOCAL, 8, quorum_open=False, has_pool=False, scenario=Scenario())
    with pytest.raises(TargetError, match="no sample of on"):
        tuning.tune(space, 10, 40, lambda them, _: {c: Score(0, 1, 1) for c in them if c.arm.level is Level.LOCAL})


def test_mean_value_analysis_agrees_with_the_textbook() -> None:
    # A machine repairman: X(n) = (1 - p0)/D with p0 from Erlang's formula for n sources.
    clients, think, service = 10, 5.0, 1.0
    weights = [1.0]
    for k in range(clients):
        weights.append(weights[-1] * (clients - k) * service / think)
    expected = (1 - weights[0] / sum(weights)) / service * 1000
    assert solve([np.full((1, clients), service)], np.array([think]))[0, -1] == pytest.approx(expected, rel=1e-9)


def test_a_delay_only_network_scales_with_its_clients() -> None:
    assert solve([np.zeros((1, 7))], np.array([2.0]))[0, -1] == pytest.approx(3500)


def test_saturation_is_the_rate_of_the_slowest_station() -> None:
    paces = 0.5 / np.minimum(np.arange(1.0, 201.0), 2.0)[None, :]
    assert solve([paces], np.array([1.0]))[0, -1] == pytest.approx(4000, rel=1e-3)


def surface(levels: tuple[Level, ...], noise: float = 0.0, processors: int = 2) -> list[Point]:
    """Points of a network whose parameters are off the prior."""
    rng = np.random.default_rng(4)
    true = PRIOR + np.array([0.3, -0.4, 0.3, 0.5, 0.2, 0.05, 0.7])
    return [
        Point(
            one,
            n,
            rtt,
            prediction.throughputs(true[None, :], one, [(n, rtt)], 2)[0, 0] * float(np.exp(rng.normal(0, noise))),
            processors,
        )
        for one in levels
        for n in (1, 2, 4, 8, 16, 32, 64)
        for rtt in (0.0, 3.0, 10.0, 20.0)
    ]


def test_points_not_shown_are_predicted_within_ten_percent() -> None:
    misses = held_out(surface((Level.ON,), noise=0.03))
    assert len(misses) == 28
    assert median_error(misses) < 0.05
    assert sum(m.predicted.covers(m.point.tps) for m in misses) >= 24


def test_a_fit_to_clients_and_round_trips_predicts_between_and_beyond() -> None:
    points = surface((Level.ON,))
    shown = [p for p in points if p.clients in (1, 4, 16, 64) and p.rtt_ms in (0.0, 20.0)]
    model = fit(shown)
    for hidden in points:
        assert predict(model, hidden.clients, hidden.rtt_ms).value == pytest.approx(hidden.tps, rel=0.15)


@each([(Level.LOCAL, 6), (Level.ON, 7)])
def test_fewer_points_than_parameters_are_too_few(level: Level, fewest: int) -> None:
    points = surface((level,))
    assert prediction.free(points) == fewest
    assert fit(points[:fewest]).points == fewest
    with pytest.raises(UndecidedError, match=f"{fewest - 1} measured points cannot fit {fewest} parameters"):
        fit(points[: fewest - 1])


def test_where_the_processors_are_not_known_the_closest_number_is_taken() -> None:
    assert fit(surface((Level.LOCAL,), processors=0)).processors == 2


def test_processors_come_from_the_scenario_else_from_the_machine() -> None:
    described = [Described(0.0, Description("t", ("n1",), {"processors": "16"}))]
    assert prediction.processors_of(described, Scenario()) == 16
    assert prediction.processors_of(described, Scenario(cores=0.5)) == 1
    assert prediction.processors_of([], Scenario()) == 0


def test_a_level_with_too_few_points_is_refused_in_words() -> None:
    _, conclusions = prediction.predictions({Scenario(): surface((Level.ON,))[:4]}, [(8, None)])
    assert conclusions == [
        "No prediction of on: 4 measured points cannot fit 7 parameters; measure more --clients and --rtt."
    ]


class TwoProcessors(FakePriced):
    """A target that says how many it has: seven numbers of them are not tried."""

    def describe(self) -> Description:
        described = super().describe()
        return replace(described, facts={**described.facts, "processors": "2"})


def test_prediction_and_hold_out_are_part_of_the_result() -> None:
    result, _ = priced(
        TwoProcessors(noise=0.01), levels="on", clients="1,2,4,8,16", rtt="0,10ms", predict="8@5ms,32", hold_out=True
    )
    parts = result.parts
    eight = next(p for p in parts["prediction"] if (p["level"], p["clients"]) == ("on", 8))
    assert eight["rtt_ms"] == 5.0
    assert eight["tps"]["value"] == pytest.approx(throughput(Arm(Level.ON, 8), 5.0), rel=0.2)
    assert parts["hold_out"]["median_error"] < 0.25
    assert len(parts["prediction"]) == 4


def test_a_value_above_the_goal_is_no_claim_while_its_interval_holds_the_goal() -> None:
    found = find_break_even(Level.ON, 16, lambda point: Estimate(1.0, 0.95, 1.05), most=64)
    assert found.clients is None
    assert found.below == 0
    assert 16 in found.undecided


def test_what_reaches_the_goal_once_and_not_again_is_undecided() -> None:
    lucky = Estimate(1.03, 1.0, 1.06)
    found = find_break_even(Level.ON, 16, lambda one: Estimate(0.97, 0.93, 1.01) if one.fresh else lucky, most=64)
    assert found.clients is None
    assert found.undecided


def test_what_is_known_on_both_sides_is_claimed_and_the_rest_left_open() -> None:
    def answer(point: TrialPoint) -> Estimate:
        middle = 0.9 if point.clients < 12 else 1.0 if point.clients < 32 else 1.1
        return Estimate(middle, middle - 0.05, middle + 0.05)

    found = find_break_even(Level.ON, 16, answer, most=64)
    assert found.clients == 32
    assert 0 < found.below < 12
    assert found.undecided
    assert all(12 <= n < 32 for n in found.undecided)


@each([0.95, 0.985])
def test_a_plateau_below_the_goal_is_never_claimed_to_reach_it(plateau: float) -> None:
    assert not any(searched(plateau, 0.05, seed)[0] for seed in range(1, 7))


def shared_pair(busy: tuple[float, float], tps: tuple[float, float]) -> tuple[SampleResult, SampleResult]:
    """A sample of `on` and one of `local` on a machine whose processors all members share."""

    def sampled(level: Level, share: float, rate: float) -> SampleResult:
        window = Window(members={"n1": MemberWindow(cpu_cores=1.0)}, machine_busy=share)
        planned = Sample(-1, 0, Arm(level, 64), Scenario())
        return SampleResult(planned, 0.0, 1.0, round(rate), 0, rate, 5.0, window=window)

    return sampled(Level.ON, busy[0], tps[0]), sampled(Level.LOCAL, busy[1], tps[1])


def test_processors_that_all_share_bound_the_ratio_by_their_time_a_transaction() -> None:
    pairs = [shared_pair((1.0, 1.0), (4630.0, 5000.0)) for _ in range(8)]
    assert processor_bound(pairs).value == pytest.approx(400 / 432, abs=1e-3)
    idle = [shared_pair((0.8, 1.0), (3704.0, 5000.0)) for _ in range(8)]
    assert processor_bound(idle).value == pytest.approx(400 / 432, abs=1e-3)


def test_processors_elsewhere_or_limited_one_by_one_bound_nothing() -> None:
    one, other = shared_pair((1.0, 1.0), (4630.0, 5000.0))
    elsewhere = replace(one, window=replace(one.window, members={"n1": MemberWindow()}))
    limited = replace(one, sample=replace(one.sample, scenario=Scenario(cores=1.0)))
    for unknown in (elsewhere, limited):
        assert not processor_bound([(unknown, other)] * 8).known


@each([(0.97, False), (0.7, True)])
def test_a_bound_says_whether_the_processors_were_what_limited(busy: float, also: bool) -> None:
    class Shared(FakePriced):
        def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
            members = {"n1": MemberWindow(cpu_cores=1.0)}
            return replace(
                super().run_sample(planned, seconds, seed), window=Window(members=members, machine_busy=busy)
            )

    result, _ = priced(Shared(noise=0.01), tune=True, limit="40ms", budget="5min", sample="1s", max_clients="16")
    (line,) = result_lines(result)
    assert f"they were {busy:.0%} busy with on, {busy:.0%} with local" in line
    assert ("something else" in line) == also


def test_tuned_local_is_held_to_the_limit_of_the_level() -> None:
    class SlowAtTheEnd(FakePriced):
        """Local with the most clients is within the limit in the search, and over it afterwards."""

        def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
            result = super().run_sample(planned, seconds, seed)
            late = len(self.asked) > 70 and planned.arm.level is Level.LOCAL and planned.arm.clients > 16
            return replace(result, histogram={1200: 100}) if late else result

    result, _ = priced(SlowAtTheEnd(noise=0.01), tune=True, limit="40ms", budget="20min", sample="1s", max_clients="64")
    (found,) = result.parts["tuning"]
    assert not found["baseline_within_limit"] and "not like with like" in result_lines(result)[0]
    assert (0.0 <= found["busy"] <= 1.0) and (0.0 <= found["baseline_busy"] <= 1.0)
    assert found["baseline_p95_ms"] > 0
