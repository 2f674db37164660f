"""Scenarios for which servers are restarted: what they cost of a run, and one that cannot be had."""

from dataclasses import dataclass, field

import pytest

from tests.fixtures.priced_fake import FakePriced
from tests.fixtures.tiers import each
from walproof.errors import NotObtained, TargetError, UsageError
from walproof.estimating.intervals import StoppedBy
from walproof.model.event import SampleDone, ScenarioEntered, ScenarioLeftOut
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Scenario
from walproof.pricing.command import consents_needed, result_as_json, result_lines, run_command
from walproof.pricing.estimates import samples_of
from walproof.pricing.options import parse_options
from walproof.pricing.run import RESTART_SHARE, run_price
from walproof.pricing.sampling import Bench, Question, ignore_progress
from walproof.reporting.conclusion import sentences

ARMS = (Arm(Level.LOCAL, 4), Arm(Level.ON, 4))
HALF, ONE, HUGE = Scenario(cores=0.5), Scenario(cores=1.0), Scenario(cores=64.0)


@dataclass
class Restarting(FakePriced):
    """Each scenario restarts its servers for a minute; no machine has 64 processors."""

    restarted_s: float = 60.0
    refused: list[Scenario] = field(default_factory=list)

    def enter(self, scenario: Scenario) -> dict[str, tuple[float, ...]]:
        if scenario.cores == 64:
            self.refused.append(scenario)
            raise NotObtained("no node takes pg-3: Insufficient cpu")
        self.clock.pause(self.restarted_s)
        return super().enter(scenario)


def test_restarts_are_no_time_of_measuring_and_a_visit_is_worth_its_own() -> None:
    target = Restarting(noise=0.5)
    bench = Bench(target, lambda _: None, 1)
    began = bench.now()
    stopped = run_price(bench, Question((HALF, ONE), ARMS, sample_s=1.0, budget_s=600))
    entered = sum(isinstance(event, ScenarioEntered) for event in bench.events)
    spent_s = bench.now() - began
    assert stopped is StoppedBy.BUDGET
    assert 590 <= spent_s - 61 * entered < 620
    assert entered <= 2 + 600 / (60 * RESTART_SHARE)
    blocks = samples_of(bench.events)
    assert min(len(blocks[HALF]), len(blocks[ONE])) > 50


def test_a_scenario_that_cannot_be_had_is_left_out_with_the_reason_and_asked_for_once() -> None:
    target = Restarting(restarted_s=0.0)
    bench = Bench(target, lambda _: None, 1)
    run_price(bench, Question((HALF, HUGE), ARMS, sample_s=1.0, budget_s=60))
    assert set(samples_of(bench.events)) == {HALF} and len(target.refused) == 1
    notes = [event.text for event in bench.events if isinstance(event, ScenarioLeftOut)]
    assert notes == ["64 cpu is left out: no node takes pg-3: Insufficient cpu"]


def test_a_run_in_which_nothing_could_be_had_says_why_as_its_conclusion() -> None:
    bench = Bench(Restarting(), lambda _: None, 1)
    found = run_command(bench, parse_options({"cpu": "64", "clients": "1"}), ignore_progress)
    why = "64 cpu is left out: no node takes pg-3: Insufficient cpu"
    assert result_lines(found) == [f"Nothing was measured: {why}."] and found.stopped_by is StoppedBy.LEFT_OUT
    tree = result_as_json(found, None)
    assert tree["left_out"] == [{"scenario": "64 cpu", "reason": "no node takes pg-3: Insufficient cpu"}]
    assert (tree["conclusion"], tree["arms"]) == (f"Nothing was measured: {why}.", [])
    assert sentences(bench.events) == (f"Nothing was measured: {why}.",)


@each([{"tune": True, "limit": "10ms"}, {"break_even": True, "levels": "on"}, {"steady": "1"}])
def test_searches_and_whole_cycles_leave_it_out_too(asked: dict[str, object]) -> None:
    target = Restarting()
    bench = Bench(target, lambda _: None, 1)
    found = run_command(bench, parse_options({"cpu": "64", "clients": "1", **asked}), ignore_progress)
    assert not any(isinstance(event, SampleDone) for event in bench.events) and target.left == 1
    (left_out,) = (event for event in bench.events if isinstance(event, ScenarioLeftOut))
    assert found.conclusions in ((), (left_out.text,)) and result_lines(found)[0].removeprefix("Nothing was measured: ")
    assert left_out.text in result_lines(found)[0] and found.table.left_out == (left_out,)


def test_a_soak_of_nothing_is_an_error() -> None:
    raw = {"soak": "1min", "cpu": "64", "levels": "on", "baseline": "on", "clients": "1"}
    target = Restarting()
    with pytest.raises(TargetError, match="no node takes pg-3"):
        run_command(Bench(target, lambda _: None, 1), parse_options(raw), ignore_progress)
    assert target.left == 1


def test_sizes_are_options_and_need_consent_of_their_own() -> None:
    scenarios = parse_options({"cpu": "0.5,2", "memory": "512Mi,4Gi"}).question().scenarios
    assert [one.text for one in scenarios] == [
        "0.5 cpu, 0.5 GiB", "0.5 cpu, 4 GiB", "2 cpu, 0.5 GiB", "2 cpu, 4 GiB",
    ]  # fmt: skip
    assert consents_needed(parse_options({"memory": "1Gi"})) == ("load", "scale")
    assert consents_needed(parse_options({"cpu": "1", "quorum": "any1"})) == ("load", "config", "scale")
    for wrong in ("lots", "0", "2GB"):
        with pytest.raises(UsageError, match="is not a size of memory"):
            parse_options({"memory": wrong})
