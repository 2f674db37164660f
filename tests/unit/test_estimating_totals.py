"""Totals: every second counts, intervals cover with skewed noise, the trimmed ratio stands apart."""

import math

import numpy as np
import pytest

from tests.fixtures.known_prices import KINDS, ON, ratio_coverage, trimmed_ratio
from tests.fixtures.stalled_prices import cases, coverage
from tests.fixtures.tiers import each
from walproof.estimating.intervals import Numbers
from walproof.estimating.ratios import Totals, rate_interval, ratio_interval, ratio_without_stalls
from walproof.model.guarantee import Level
from walproof.pricing.estimates import ratio_of


def of(*rates: float, seconds: float = 1.0) -> Totals:
    each = np.full(len(rates), seconds)
    return Totals(np.array(rates) * each, each)


def calm(n: int, rate: float = 1000.0, spread: float = 0.01, seed: int = 1) -> Numbers:
    return rate * np.exp(np.random.default_rng(seed).normal(0, spread, n))


def test_a_stall_in_one_block_of_eleven_is_in_the_rate() -> None:
    rates = np.full(11, 1439.0)
    rates[4] = 1439.0 * (1 - 0.4 / 0.887)
    found = rate_interval(of(*rates, seconds=0.887))
    assert found.value == pytest.approx(1380, abs=1)
    assert found.covers(1380)
    assert ratio_without_stalls(of(*rates), of(*calm(11, 1439.0, 0.0))).value == pytest.approx(1.0)


def test_seconds_weigh_not_blocks() -> None:
    found = rate_interval(Totals(np.array([1000.0, 10.0, 1000.0]), np.array([1.0, 0.1, 1.0])))
    assert found.value == pytest.approx(2010 / 2.1)


def test_a_block_in_which_nothing_ended_counts() -> None:
    assert rate_interval(of(100.0, 0.0, 100.0, 100.0)).value == pytest.approx(75.0)
    assert ratio_interval(of(100.0, 0.0, 100.0), of(100.0, 100.0, 100.0)).value == pytest.approx(2 / 3)


def test_what_slows_both_cancels_in_the_ratio() -> None:
    shared = np.exp(np.random.default_rng(2).normal(0, 0.3, 30))
    own = calm(30, 1.0, 0.02, 3)
    found = ratio_interval(of(*(800 * shared * own)), of(*(1000 * shared)))
    assert found.covers(0.8)
    assert found.half_width < 0.03 < rate_interval(of(*(800 * shared * own))).half_width / 800


def test_the_interval_leans_to_the_side_of_the_stalls() -> None:
    rates = calm(30)
    rates[7] /= 2
    found = ratio_interval(of(*rates), of(*calm(30, seed=5)))
    assert found.value - found.low > 1.3 * (found.high - found.value)


@each([(10.0, 0.016), (120.0, 0.00886), (600.0, 0.00177)])
def test_the_longer_it_is_measured_the_less_a_stall_can_have_been_missed(seconds: float, share: float) -> None:
    assert of(*[100.0] * 10, seconds=seconds / 10).missed == pytest.approx(share, rel=0.01)


def test_identical_blocks_are_no_more_certain_than_stalls_allow() -> None:
    found = ratio_interval(of(*[90.0] * 10), of(*[100.0] * 10))
    assert found.value == pytest.approx(0.9)
    assert found.low == pytest.approx(0.9 * math.exp(-0.016))


@each([of(), of(100.0), of(0.0, 0.0)])
def test_without_two_blocks_that_moved_there_is_no_interval(arm: Totals) -> None:
    assert not rate_interval(arm).known
    assert not ratio_interval(arm, arm).known


@each(["symmetric", "5 % of `on` at half speed", "10 % of `on` at half speed", "drift"], push=2)
def test_runs_stopped_early_cover_the_ratio_of_totals(kind: str) -> None:
    covered, _, _ = ratio_coverage(KINDS[kind], lambda blocks: ratio_of(blocks, ON, Level.LOCAL)[0], 100, 0.06)
    assert covered >= 0.9


def test_the_trimmed_ratio_does_not_cover_what_stalls_cost() -> None:
    assert ratio_coverage(KINDS["10 % of `on` at half speed"], trimmed_ratio, 60, 0.06)[0] < 0.8


@each([
    ("0 %", 9, 0.9, 1.0),
    ("5 %", 60, 0.9, 1.0),
    ("5 %, 1 s each", 180, 0.9, 1.0),
    ("lasting, both", 27, 0.9, 1.0),
    ("5 %, 1 s each", 9, 0.5, 0.8),
    ("lasting, one", 180, 0.65, 0.9),
])  # fmt: skip
def test_what_a_run_of_that_length_covers_and_what_it_does_not(
    case: str, seconds: float, least: float, most: float
) -> None:
    assert least <= coverage(cases(0.03)[case], seconds, 100) <= most
