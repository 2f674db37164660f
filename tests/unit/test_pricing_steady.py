"""Steady state: whole checkpoint cycles, WAL per transaction, background work; and the sentence of fewest and most."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.known_prices import effects_of_level_before
from tests.fixtures.priced_fake import FakePriced
from tests.fixtures.tiers import each
from tests.unit.test_pricing import LOCAL, ON, priced
from walproof.errors import TargetError, UsageError
from walproof.estimating.intervals import StoppedBy
from walproof.model.estimate import Caveat
from walproof.model.event import Event, SampleDone, ScenarioEntered
from walproof.model.guarantee import Level
from walproof.model.sample import Arm, Checkpoints, MemberWindow, Sample, SampleResult, Scenario, Window
from walproof.pricing.estimates import caveats_of, per_transaction, price_table
from walproof.pricing.latency_breakdown import breakdowns
from walproof.pricing.level_in_effect import quorum_round_trip_ms
from walproof.pricing.options import parse_options
from walproof.pricing.results_and_gate import conclusion
from walproof.pricing.sampling import Question
from walproof.reporting.outline import Table
from walproof.reporting.price_section import price_sections

CYCLE_S = 60.0


def results_of(events: list[Event], *, counted: bool) -> list[SampleResult]:
    found = [e.result for e in events if isinstance(e, SampleDone)]
    return [r for r in found if (r.sample.block > 0) is counted]


def test_whole_checkpoint_cycles_are_measured_after_the_first_checkpoint() -> None:
    target = FakePriced()
    target.clock.pause(23.0)
    events, stopped = priced(target, Question((Scenario(),), (LOCAL, ON), sample_s=1.0, budget_s=1.0, cycles=2))
    counted = results_of(events, counted=True)
    assert stopped is StoppedBy.CYCLES
    assert counted[0].started_at // CYCLE_S > results_of(events, counted=False)[0].started_at // CYCLE_S
    assert counted[0].started_at % CYCLE_S < 4
    assert len({r.started_at // CYCLE_S for r in counted[:-4]}) == 2
    assert sum(r.sample.arm == ON for r in counted) == sum(r.sample.arm == LOCAL for r in counted) > 40


def test_every_scenario_has_its_cycles() -> None:
    scenarios = (Scenario(), Scenario(rtt_ms=3.0))
    events, _ = priced(FakePriced(), Question(scenarios, (LOCAL, ON), sample_s=1.0, cycles=1))
    each = [[r for r in results_of(events, counted=True) if r.sample.scenario == one] for one in scenarios]
    assert all(CYCLE_S * 0.8 < rs[-1].started_at - rs[0].started_at < CYCLE_S * 1.2 for rs in each)


def test_a_checkpoint_that_never_ends_is_not_waited_for_without_end() -> None:
    class Never(FakePriced):
        def checkpoints(self) -> Checkpoints:
            return Checkpoints("0/1", 30.0)

    target = Never()
    with pytest.raises(TargetError, match="no checkpoint ended within 90 s"):
        priced(target, Question((Scenario(),), (LOCAL, ON), sample_s=1.0, cycles=1))
    assert target.left == 1


@each([{"budget": "1min"}, {"precision": "1%"}, {"load": "0.5"}, {"break_even": True}])
def test_what_would_cut_a_cycle_short_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--steady cannot be used with"):
        parse_options({"steady": "1", **other})


@each(["0", "-1", "many"])
def test_no_cycles_are_refused(steady: str) -> None:
    with pytest.raises(UsageError):
        parse_options({"steady": steady})


def sampled(block: int, window: Window, arm: Arm = ON) -> SampleResult:
    return SampleResult(Sample(block, 0, arm, Scenario()), float(block), 1.0, 1000, 0, 1000.0, 4.0, window=window)


def wrote(wal_bytes: int, pages: int = 0) -> Window:
    members = {"n1": MemberWindow(wal_bytes=wal_bytes, wal_full_pages=pages), "n2": MemberWindow(wal_bytes=7)}
    return Window(standby_names="n2", members=members, leader="n1")


def test_wal_per_transaction_is_the_leaders() -> None:
    results = [sampled(1, wrote(400_000, 10)), sampled(2, wrote(800_000, 30)), sampled(3, Window())]
    assert per_transaction(results, lambda m: m.wal_bytes) == pytest.approx(600)
    assert per_transaction(results, lambda m: m.wal_full_pages) == pytest.approx(0.02)
    assert math.isnan(per_transaction(results[2:], lambda m: m.wal_bytes))


def test_falling_wal_per_transaction_is_a_caveat() -> None:
    falling = [sampled(n, wrote(13_428_000 // n)) for n in range(1, 10)]
    steady = [sampled(n, wrote(400_000 + 9000 * (n % 2))) for n in range(1, 10)]
    assert Caveat.TRANSIENT in caveats_of(falling, np.array([]))
    assert caveats_of(steady, np.array([])) == ()


@each([
    (Window(checkpointing=0.3), Caveat.CHECKPOINT),
    (Window(vacuuming=0.3), Caveat.AUTOVACUUM),
    (Window(settled_s=math.inf), Caveat.CARRY_OVER),
])  # fmt: skip
def test_background_work_and_standbys_that_lag_are_caveats(window: Window, caveat: Caveat) -> None:
    results = [sampled(n, replace(window, standby_names="n2")) for n in range(1, 9)]
    assert caveats_of(results, np.array([])) == (caveat,)


# rows: one, two, three
@each([((4,), False), ((1, 4), True), ((2, 8, 32), True)])
def test_the_headline_says_at_what_level_each_of_its_comparisons_holds(clients: tuple[int, ...], said: bool) -> None:
    arms = tuple(Arm(level, n) for level in (Level.LOCAL, Level.ON) for n in clients)
    events, _ = priced(FakePriced(noise=0.01), Question((Scenario(rtt_ms=3.0),), arms, budget_s=60))
    sentence = conclusion(price_table(events))
    assert sentence.endswith("), each of the two comparisons at 95 %.") is said
    assert sentence.count("95 % CI") == min(2, len(clients))


def test_the_headline_has_the_fewest_and_the_most_clients() -> None:
    arms = tuple(Arm(level, clients) for level in (Level.LOCAL, Level.ON) for clients in (1, 4, 64))
    events, _ = priced(FakePriced(noise=0.01), Question((Scenario(rtt_ms=3.0),), arms, budget_s=120))
    sentence = conclusion(price_table(events))
    assert sentence.count("ratio to local") == 2
    assert "with 1 client (" in sentence
    assert "with 64 clients" in sentence
    assert "with 4 clients" not in sentence


def test_a_step_cheaper_than_its_round_trip_is_shown_as_it_is() -> None:
    arms = tuple(Arm(level, 1) for level in (Level.LOCAL, Level.ON))
    events, _ = priced(FakePriced(noise=0.01), Question((Scenario(rtt_ms=10.0),), arms, budget_s=30))
    once = {"n1-n2": 50.0}
    entered = [replace(e, measured=once, round_trips_ms={}) if isinstance(e, ScenarioEntered) else e for e in events]
    (found,) = breakdowns(entered)
    parts = {part.name: part.ms for part in found.parts}
    assert parts["network"].value == 50.0
    assert not parts["network"].known
    assert parts["remote write + remote flush"].high < -30
    assert found.sum_ms == pytest.approx(found.measured.value, rel=0.05)


# rows: once, five times, eight times, in two rounds
@each([
    ([[1.0]], math.nan, math.nan),
    ([[1.0] * 5], math.nan, math.nan),
    ([[0.9, 0.9, 1.0, 1.0, 1.0, 1.1, 1.1, 1.3]], 0.9, 1.3),
    ([[0.9, 1.0, 1.0], [0.8, 1.0, 1.2]], 0.8, 1.2),
])  # fmt: skip
def test_the_network_has_the_error_of_the_round_trips_it_was_measured_by(
    entries: list[list[float]], low: float, high: float
) -> None:
    arms = tuple(Arm(level, 1) for level in (Level.LOCAL, Level.ON))
    events, _ = priced(FakePriced(noise=0.01), Question((Scenario(rtt_ms=1.0),), arms, budget_s=30))
    (first,) = [e for e in events if isinstance(e, ScenarioEntered)]
    entered = [replace(first, measured={"n1-n2": 1.0}, round_trips_ms={"n1-n2": tuple(trips)}) for trips in entries]
    (found,) = breakdowns([*entered, *(e for e in events if e is not first)])
    network, rest = found.parts[1].ms, found.parts[2].ms
    assert (network.value, network.low, network.high) == pytest.approx((1.0, low, high), nan_ok=True)
    (alone,) = breakdowns(
        [replace(first, measured={"n1-n2": 1.0}, round_trips_ms={}), *(e for e in events if e is not first)]
    )
    # A round trip that may be longer leaves less to the rest: what leans one way there leans the other way here.
    before, (shortest, longest) = alone.parts[2].ms, (low, high) if network.known else (1.0, 1.0)
    assert rest.value - rest.low == pytest.approx(math.hypot(before.value - before.low, longest - 1.0))
    assert rest.high - rest.value == pytest.approx(math.hypot(before.high - before.value, 1.0 - shortest))


def test_the_round_trip_is_that_of_the_standby_that_completes_the_quorum() -> None:
    measured = {"n1-n2": 1.0, "n1-n3": 9.0, "n1-n4": 5.0, "n3-n4": 90.0}
    for names, expected in (
        ("ANY 1 (n2,n3,n4)", 1.0),
        ("ANY 2 (n2,n3,n4)", 5.0),
        ("ANY 1 (n3)", 9.0),
        ("FIRST 2 (n3,n2)", 9.0),
        ("FIRST 1 (n4,n2)", 5.0),
        ("ANY 1 (*)", 1.0),
    ):
        assert quorum_round_trip_ms(measured, "n1", names) == expected
    assert quorum_round_trip_ms(measured, "", "ANY 1 (n2)") == pytest.approx(105 / 4)
    assert quorum_round_trip_ms({}, "n1", "ANY 1 (n2)") is None


def test_stalls_and_wal_are_in_the_table_and_the_trimmed_ratio_next_to_it() -> None:
    arms = [(LOCAL, 1000.0, 0.0), (ON, 800.0, 0.0)]
    events: list[Event] = []
    for block in range(1, 21):
        for arm, tps, _ in arms:
            slow = arm == ON and block == 5
            result = replace(sampled(block, wrote(412_000, 40), arm), credit=tps / 2 if slow else tps)
            events.append(
                SampleDone(0.0, replace(result, stalled_s=0.5 if slow else 0.0, histogram={800: 999, 1100: 1}))
            )
    blocks = [b for s in price_sections(events, price_table(events)) for b in s.blocks]
    (stalls,) = (b for b in blocks if isinstance(b, Table) and b.key == "stalls")
    found = {column.name: cell.text for column, cell in zip(stalls.columns, stalls.rows[1], strict=True)}
    assert found["stalled"] == "0.5 of 20 s"
    assert (found["WAL"], found["full pages"]) == ("412 B", "0.040")
    assert found["ratio without stalls"].startswith("0.80")
    assert price_table(events).arms[1].ratio.value == pytest.approx(0.78)
    assert float(found["longest ms"]) > 50


def test_what_one_level_leaves_behind_is_found_by_the_benchmark() -> None:
    rng = np.random.default_rng(4)
    samples = []
    before = "on"
    for block in range(1, 200):
        for level in rng.permutation(np.array(["off", "local", "on"])):
            tps = 1000 * float(np.exp(rng.normal(0, 0.02))) * (0.93 if before == "off" else 1.0)
            arm = Arm(Level(str(level)), 4)
            result = replace(sampled(block, Window(), arm=arm), credit=tps)
            samples.append((result, before))
            before = str(level)
    effect, half = effects_of_level_before(samples)["off"]
    assert effect == pytest.approx(math.log(0.93) * 2 / 3, abs=2 * half)
    assert half < 0.01
