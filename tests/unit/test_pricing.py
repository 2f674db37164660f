"""The price run: its design, its folding into a table, its caveats, its breakdown, what it does when interrupted."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.fixtures.priced_fake import FakePriced, throughput
from tests.fixtures.tiers import each
from walproof.errors import TargetError, UsageError, WaitTimeout
from walproof.estimating.intervals import FEWEST_BLOCKS, StoppedBy
from walproof.model.estimate import Caveat
from walproof.model.event import Ended, Event, Note, Observed, SampleDone, SampleFailed, Started
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, MemberWindow, Sample, SampleResult, Scenario, Window, Workload
from walproof.model.topology import ClusterView, Role
from walproof.pricing.estimates import caveats_of, drifts, failed_over, price_table, ratio_of, samples_of
from walproof.pricing.latency_breakdown import breakdowns
from walproof.pricing.options import RawOptions, TuneOptions, parse_options
from walproof.pricing.results_and_gate import conclusion
from walproof.pricing.run import run_price
from walproof.pricing.sampling import AGAIN, Bench, Question, RunProgress, block, still_needed, visit_order

LOCAL, ON = Arm(Level.LOCAL, 4), Arm(Level.ON, 4)


def question_of(raw: RawOptions) -> Question:
    """What these options ask of a target whose standbys are not known."""
    return parse_options(raw).question()


def priced(target: FakePriced, asked: Question, earlier: list[Event] | None = None) -> tuple[list[Event], StoppedBy]:
    """Events of a whole run."""
    bench = Bench(target, lambda _: None, asked.seed, earlier or [])
    bench.emit(Started(0.0, "price", {"baseline": str(asked.baseline)}, "", asked.seed, "0"))
    stopped = run_price(bench, asked)
    bench.emit(Ended(bench.now(), str(stopped)))
    return bench.events, stopped


def test_options_are_parsed_once_and_the_quorum_follows_the_standbys() -> None:
    options = parse_options({"levels": "on", "quorum": "all,any2", "rtt": "0,5ms", "tune": True, "limit": "10ms"})
    assert options.tune == TuneOptions(Level.ON, 10.0)
    assert [(s.quorum, s.rtt_ms) for s in options.question(2).scenarios] == [(2, 0), (2, 5), (2, 0), (2, 5)]
    assert {s.quorum for s in options.question().scenarios} == {1, 2}
    modes = parse_options({"quorum": "any1", "mode": "strict,degrading"}).question().scenarios
    assert [s.text for s in modes] == ["ANY 1 strict", "ANY 1 degrading"]
    with pytest.raises(UsageError, match="larger than the 1 standby of"):
        options.question(1)


def test_a_block_visits_each_arm_once_in_an_order_of_its_seed() -> None:
    arms = parse_options({"clients": "1,4,16"}).grid.arms
    first = block(1, Scenario(), arms, seed=7)
    assert Counter(s.arm for s in first) == Counter(arms)
    assert first == block(1, Scenario(), arms, seed=7)
    assert [s.arm for s in first] != [s.arm for s in block(2, Scenario(), arms, seed=7)]


def test_arms_that_are_compared_stand_together_in_a_block() -> None:
    arms = parse_options({"clients": "1,4,16"}).grid.arms
    clients = [s.arm.clients for s in block(3, Scenario(), arms, seed=1)]
    assert sum(a != b for a, b in pairwise(clients)) == 2


def test_every_arm_comes_first_about_equally_often() -> None:
    firsts = Counter(block(n, Scenario(), (LOCAL, ON), seed=1)[0].arm.level for n in range(200))
    assert 70 < firsts[Level.LOCAL] < 130


def test_narrow_arms_are_left_out_but_never_the_baseline_of_a_wide_one() -> None:
    off = Arm(Level.OFF, 4)
    assert still_needed((off, LOCAL, ON), {off, LOCAL}, Level.LOCAL) == (LOCAL, ON)
    assert still_needed((off, LOCAL, ON), {off, ON}, Level.LOCAL) == ()
    assert still_needed((LOCAL,), set(), Level.LOCAL) == (LOCAL,)


def test_each_round_visits_every_scenario_once() -> None:
    scenarios = tuple(Scenario(rtt_ms=float(ms)) for ms in range(6))
    orders = [visit_order(scenarios, n, 1) for n in range(4)]
    assert all(set(order) == set(scenarios) for order in orders)
    assert len(set(orders)) > 1


def test_the_true_ratio_is_found_though_the_weather_changes_by_half() -> None:
    target = FakePriced(noise=0.02, weather=lambda at: 1.0 if math.sin(at / 7) > 0 else 0.5)
    asked = Question((Scenario(),), (LOCAL, ON), sample_s=1.0, precision=0.03, budget_s=600)
    events, _ = priced(target, asked)
    found = next(p for p in price_table(events).arms if p.arm.level is Level.ON)
    truth = throughput(ON) / throughput(LOCAL)
    assert found.ratio.low - 0.02 < truth < found.ratio.high + 0.02
    assert found.tps.half_width / found.tps.value > found.ratio.half_width / found.ratio.value


def test_a_run_stops_when_every_ratio_is_precise() -> None:
    events, stopped = priced(FakePriced(), Question((Scenario(),), (LOCAL, ON), budget_s=3600))
    table = price_table(events)
    assert stopped is StoppedBy.PRECISION
    assert table.stopped_by == "precision"
    assert all(p.ratio.half_width <= 0.03 * p.ratio.value for p in table.arms)


def test_a_run_stops_at_its_budget() -> None:
    target = FakePriced(noise=0.5)
    events, stopped = priced(target, Question((Scenario(),), (LOCAL, ON), budget_s=60, sample_s=1.0))
    assert stopped is StoppedBy.BUDGET
    assert target.clock.now() - 1_800_000_000 < 75
    assert {p.blocks for p in price_table(events).arms} == {price_table(events).arms[0].blocks}


def test_even_a_tiny_budget_gives_each_scenario_two_blocks() -> None:
    scenarios = (Scenario(rtt_ms=0.0), Scenario(rtt_ms=3.0), Scenario(rtt_ms=10.0))
    events, _ = priced(FakePriced(), Question(scenarios, (LOCAL, ON), budget_s=1, sample_s=1.0))
    assert {s: len(b) for s, b in samples_of(events).items()} == dict.fromkeys(scenarios, 2)


def test_time_goes_to_the_arms_still_wide() -> None:
    class Uneven(FakePriced):
        def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
            self.noise = 0.12 if planned.arm.level is Level.ON else 0.002
            return super().run_sample(planned, seconds, seed)

    arms = (Arm(Level.OFF, 4), LOCAL, ON)
    events, _ = priced(Uneven(), Question((Scenario(),), arms, budget_s=3600))
    blocks = {p.arm.level: p.blocks for p in price_table(events).arms}
    assert blocks[Level.OFF] == FEWEST_BLOCKS
    assert blocks[Level.LOCAL] == blocks[Level.ON] > 2 * FEWEST_BLOCKS


def test_an_arm_that_never_completes_ends_neither_the_run_nor_other_arms() -> None:
    target = FakePriced(fails=lambda planned: planned.arm.clients == 50)
    arms = (LOCAL, ON, Arm(Level.ON, 50))
    events, _ = priced(target, Question((Scenario(),), arms, budget_s=60))
    failed = [e.sample for e in events if isinstance(e, SampleFailed) and e.sample.block > 0]
    blocks = {p.arm: p.blocks for p in price_table(events).arms}
    assert blocks[LOCAL] == blocks[ON] == len(failed) > 5


def test_the_baseline_against_itself_covers_one_in_90_to_99_of_100_runs() -> None:
    covered = 0
    for seed in range(100):
        asked = replace(question_of({"aa": True, "clients": "4", "budget": "90s", "sample": "1s"}), seed=seed + 1)
        events, _ = priced(FakePriced(noise=0.04), asked)
        ratio, _ = ratio_of(samples_of(events)[Scenario()], replace(LOCAL, label=AGAIN), Level.LOCAL)
        covered += ratio.covers(1.0)
    assert 90 <= covered <= 99


def test_a_resumed_run_continues_with_fresh_blocks() -> None:
    asked = Question((Scenario(),), (LOCAL, ON), budget_s=60, sample_s=1.0)
    first, _ = priced(FakePriced(noise=0.3, interrupt_after=9), asked)
    second = FakePriced(noise=0.3)
    events, stopped = priced(second, asked, first)
    numbers = [e.result.sample.block for e in events if isinstance(e, SampleDone)]
    assert stopped is StoppedBy.BUDGET
    assert min(s.block for s in second.asked if s.block > 0) > max(
        e.result.sample.block for e in first if isinstance(e, SampleDone)
    )
    assert max(Counter(n for n in numbers if n > 0).values()) == 2
    assert second.clock.now() - 1_800_000_000 < 60


def test_a_failed_sample_is_noted_and_the_run_goes_on() -> None:
    calls = iter(range(10_000))
    events, stopped = priced(FakePriced(fails=lambda _: next(calls) == 5), Question((Scenario(),), (LOCAL, ON)))
    assert stopped is StoppedBy.PRECISION
    assert next(e.text for e in events if isinstance(e, Note)).startswith("a sample of")


class FailingOver(FakePriced):
    """Without a leader for twenty seconds from the fifth sample on, led by n2 afterwards."""

    begin = float("inf")

    def observe(self) -> ClusterView:
        view, now = super().observe(), self.clock.now()
        if now < self.begin:
            return view
        leader = None if now < self.begin + 20 else "n2"
        roles = {name: Role.LEADER if name == leader else Role.STANDBY for name in ("n1", "n2", "n3")}
        return replace(view, leader=leader, members=tuple(replace(m, role=roles[m.name]) for m in view.members))

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        if len(self.asked) == 4:
            self.begin = self.clock.now()
        return super().run_sample(planned, seconds, seed)


def test_a_price_waits_out_a_failover_and_says_so() -> None:
    target = FailingOver(noise=0.3)
    target.fails = lambda _: target.observe().leader is None
    events, stopped = priced(target, Question((Scenario(),), (LOCAL, ON), budget_s=60))
    assert len([e for e in events if isinstance(e, SampleFailed)]) == 1 and stopped is StoppedBy.BUDGET
    assert Caveat.FAILED_OVER in price_table(events).arms[0].caveats
    done = [e.result for e in events if isinstance(e, SampleDone)]
    assert not any(target.begin - 1 < r.started_at < target.begin + 20 for r in done) and len(done) > 10


def test_an_outage_that_outlasts_the_wait_ends_the_price_with_its_name() -> None:
    target = FailingOver()
    target.clock.waits = {"CLUSTER_HEALTHY": 10.0}
    target.fails = lambda _: target.observe().leader is None
    with pytest.raises(WaitTimeout, match="CLUSTER_HEALTHY"):
        priced(target, Question((Scenario(),), (LOCAL, ON), budget_s=60))
    assert target.left == 1


def test_three_failures_in_a_row_end_the_run_and_leave_the_target() -> None:
    target = FakePriced(fails=lambda planned: planned.block > 1)
    with pytest.raises(TargetError):
        priced(target, Question((Scenario(),), (LOCAL, ON)))
    assert target.left == 1


def test_the_progress_bar_learns_how_much_of_the_budget_is_used() -> None:
    seen: list[RunProgress] = []
    run_price(Bench(FakePriced(), lambda _: None, 1), Question((Scenario(),), (LOCAL, ON), budget_s=50), seen.append)
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)
    assert {p.budget_s for p in seen} == {50}


def test_open_loop_offers_fractions_of_what_was_measured() -> None:
    asked = replace(question_of({"levels": "on", "clients": "4", "load": "0.5", "budget": "60s"}), sample_s=1.0)
    table = price_table(priced(FakePriced(noise=0.01), asked)[0])
    closed = {p.arm.level: p.tps.value for p in table.arms if p.arm.rate is None}
    opened = {p.arm.level: p for p in table.arms if p.arm.rate is not None}
    assert opened[Level.ON].arm.rate == pytest.approx(closed[Level.ON] / 2, rel=0.05)
    assert opened[Level.ON].tps.value == pytest.approx(closed[Level.ON] / 2, rel=0.1)


def test_a_mix_is_priced_by_class_with_the_baseline() -> None:
    asked = question_of({"mix": "on=10,local=90", "clients": "4"})
    table = price_table(priced(FakePriced(), asked)[0])
    mixed = next(p for p in table.arms if p.arm.mix)
    assert [c.level for c in mixed.classes] == ["local", "on"]
    assert mixed.ratio.value < 1
    assert conclusion(table).startswith("This mix costs")


def test_warm_samples_are_recorded_and_never_counted() -> None:
    events, _ = priced(FakePriced(), Question((Scenario(),), (LOCAL, ON)))
    warm = [e for e in events if isinstance(e, SampleDone) and e.result.sample.block == 0]
    assert len(warm) == 1
    assert all(p.arm.label == "" for p in price_table(events).arms)


def test_the_parts_of_a_commit_add_up_to_its_latency_and_the_network_is_the_round_trip() -> None:
    arms = tuple(Arm(level, 1) for level in Level)
    events, _ = priced(FakePriced(noise=0.01), Question((Scenario(rtt_ms=10.0),), arms))
    (found,) = breakdowns(events)
    parts = {p.name: p.ms.value for p in found.parts}
    assert found.sum_ms == pytest.approx(found.measured.value, rel=0.1)
    assert parts["network"] == pytest.approx(10.0)
    assert parts["local flush"] == pytest.approx(0.3, abs=0.05)
    assert "network" in found.bottleneck


def test_levels_not_measured_are_merged_in_the_breakdown() -> None:
    events, _ = priced(FakePriced(noise=0.01), Question((Scenario(),), (Arm(Level.LOCAL, 1), Arm(Level.ON, 1))))
    (found,) = breakdowns(events)
    assert [p.name for p in found.parts] == ["transaction + local flush", "network and remote write + remote flush"]


def samples(window: Window, arm: Arm = ON, scenario: Scenario = Scenario(), failed: int = 0) -> list[SampleResult]:  # noqa: B008
    """Ten equal samples seen through that window."""
    return [
        SampleResult(Sample(n, 0, arm, scenario), 0.0, 1.0, 100, failed, 100.0, 1.0, {1: 9}, {}, window)
        for n in range(10)
    ]


FINE = Window(standby_names="ANY 1 (a)")


@each([
    (Caveat.STOLEN, samples(replace(FINE, stolen=0.2))),
    (Caveat.CHECKPOINT, samples(replace(FINE, checkpoints=1))),
    (Caveat.CLIENT_BOUND, samples(replace(FINE, client_cores=0.95))),
    (Caveat.LOCK_BOUND, samples(FINE, Arm(Level.ON, 64, Workload(scale=10)))),
    (Caveat.LOCK_BOUND, samples(replace(FINE, waits={"Lock:transactionid": 0.5}))),
    (Caveat.UNVERIFIED_LINK, samples(FINE, scenario=Scenario(rtt_ms=3.0))),
    (Caveat.STANDBY_BEHIND, samples(replace(FINE, members={"n2": MemberWindow(replay_lag_ms=900.0)}))),
    (Caveat.NOT_IN_EFFECT, samples(Window())),
    (Caveat.NOT_IN_EFFECT, samples(FINE, LOCAL, Scenario(fsync=False))),
    (Caveat.NOT_IN_EFFECT, samples(Window(), Arm(Level.ON, 4, mix=((Level.ON, 1.0), (Level.OFF, 9.0))))),
    (Caveat.FAILURES, samples(FINE, failed=1)),
    (Caveat.FEW_BLOCKS, samples(FINE)[:5]),
])  # fmt: skip
def test_each_caveat_stands_with_the_number_it_concerns(caveat: Caveat, results: list[SampleResult]) -> None:
    assert caveats_of(results, np.array([])) == (caveat,)


def test_a_clean_arm_has_no_caveat() -> None:
    assert caveats_of(samples(FINE), np.zeros(10)) == ()
    assert caveats_of(samples(Window(), LOCAL), np.zeros(10)) == ()


def test_a_trend_is_drift_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    assert drifts(np.linspace(0, 0.5, 20) + rng.normal(0, 0.02, 20))
    assert sum(drifts(rng.normal(0, 0.2, 20)) for _ in range(200)) <= 8


def test_two_leaders_observed_are_a_failover() -> None:
    observed = [Observed(1.0, ClusterView(1.0, (), leader)) for leader in ("n1", "n2")]
    assert failed_over(observed)
    assert not failed_over(observed[:1])


def test_one_client_is_not_one_clients() -> None:
    events, _ = priced(FakePriced(), Question((Scenario(),), (Arm(Level.LOCAL, 1), Arm(Level.ON, 1))))
    assert conclusion(price_table(events)).startswith(
        "The level on costs 33 % of local's throughput with 1 client (ratio"
    )
    assert "with 1 client takes" in breakdowns(events)[0].bottleneck


def test_nothing_measured_says_so() -> None:
    assert "Nothing was measured" in conclusion(price_table([]))
