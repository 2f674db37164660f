"""Intervals cover what they promise: coverage by seeded simulation, and the exact cases."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from tests.fixtures.known_prices import quantile_coverage
from tests.fixtures.tiers import each
from walproof.estimating.intervals import (
    Numbers,
    as_ratio,
    duration_interval,
    narrow,
    stopped_interval,
    t_interval,
    trimmed_interval,
    upper_bound,
)
from walproof.estimating.quantiles import median_interval, quantile_intervals
from walproof.model.estimate import Estimate, bucketed

Draw = Callable[[np.random.Generator, int], Numbers]
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(0, 0.1, n),
    "heavy tails": lambda rng, n: rng.standard_t(3, n) * 0.06,
    "one block in ten an outlier": lambda rng, n: np.where(
        rng.random(n) < 0.1, rng.normal(0, 0.4, n), rng.normal(0, 0.05, n)
    ),
}


def stopped_run(values: Numbers, precision: float) -> Estimate:
    """What a run that stops at the first narrow interval reports."""
    for n in range(2, len(values) + 1):
        ratio = as_ratio(stopped_interval(values[:n]))
        if narrow(ratio, n, precision):
            return ratio
    return ratio


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", [0.03, 0.05, 0.09])
def test_of_100_runs_against_itself_stopped_early_90_to_99_cover_one(shape: str, precision: float) -> None:
    rng = np.random.default_rng(20)
    covered = sum(stopped_run(SHAPES[shape](rng, 60), precision).covers(1.0) for _ in range(400)) / 4
    assert 92.5 <= covered <= 99


def test_a_plain_t_interval_stopped_early_covers_less_than_the_stopped_one() -> None:
    rng = np.random.default_rng(5)
    plain = stopped = 0
    for _ in range(400):
        values = rng.normal(0, 0.1, 60)
        n = next((n for n in range(3, 61) if t_interval(values[:n]).half_width <= 0.05), 60)
        plain += t_interval(values[:n]).covers(0.0)
        stopped += stopped_run(values, 0.05).covers(1.0)
    assert plain < stopped
    assert plain / 400 < 0.93


def test_one_wild_block_moves_the_trimmed_mean_little_but_is_not_hidden_from_the_width() -> None:
    calm = np.random.default_rng(2).normal(0, 0.02, 20)
    wild = np.append(calm, 3.0)
    assert abs(trimmed_interval(wild).value) < 0.02
    assert trimmed_interval(wild).half_width > trimmed_interval(calm).half_width


def test_one_value_has_no_interval() -> None:
    for interval in (stopped_interval, trimmed_interval, t_interval):
        assert math.isnan(interval(np.array([])).value)
        found = interval(np.array([2.0]))
        assert (found.value, found.known, found.covers(2.0)) == (2.0, False, False)


def test_t_interval_equals_scipys() -> None:
    values = np.array([1.0, 2.0, 4.0, 7.0])
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    found = t_interval(values)
    assert (found.value, found.low, found.high) == pytest.approx((3.5, low, high))


def test_twelve_clean_runs_leave_22_percent_open() -> None:
    assert upper_bound(0, 12) == pytest.approx(0.2209, abs=1e-4)
    assert upper_bound(0, 60) < 0.05 < upper_bound(0, 58)


def test_one_failure_in_ten_is_at_most_39_4_percent_one_sided() -> None:
    assert upper_bound(1, 10) == pytest.approx(0.3942, abs=5e-5)
    assert stats.binom.cdf(1, 10, upper_bound(1, 10)) == pytest.approx(0.05)


def test_the_upper_bound_contains_the_share_and_grows_with_it() -> None:
    bounds = [upper_bound(failures, 10) for failures in range(11)]
    assert all(0 <= failures / 10 <= bound <= 1 for failures, bound in enumerate(bounds))
    assert bounds == sorted(bounds)


@each([0.05, 0.2, 0.5])
def test_the_upper_bound_covers_the_true_probability_in_95_of_100(probability: float) -> None:
    covered = sum(stats.binom.pmf(k, 12, probability) for k in range(13) if upper_bound(k, 12) >= probability)
    assert covered >= 0.95


@each([2, 5, 20])
def test_quantiles_of_blocks_that_differ_cover_the_true_ones(blocks: int) -> None:
    covers, _ = quantile_coverage(blocks, 0.2, 100)
    assert min(covers) >= 0.88


def test_a_99th_percentile_that_one_slow_block_made_is_not_certain() -> None:
    rng = np.random.default_rng(6)
    even = [bucketed(rng.gamma(4, 1, 500)) for _ in range(12)]
    slow = [*even[:-1], bucketed(rng.gamma(4, 6, 500))]
    (all_blocks,), (one_block,) = quantile_intervals(even, (0.99,)), quantile_intervals(slow, (0.99,))
    assert all_blocks.high < 1.3 * all_blocks.value
    assert not one_block.known or one_block.high > 2 * one_block.value


def test_what_lies_beyond_every_transaction_seen_is_not_bounded() -> None:
    (p999,) = quantile_intervals([bucketed(np.random.default_rng(n).gamma(4, 1, 100)) for n in range(5)], (0.999,))
    assert math.isinf(p999.high)
    assert math.isfinite(p999.low)


def _blocks(blocks: int, transactions: int, slow: float, seed: int) -> list[dict[int, int]]:
    rng = np.random.default_rng(seed)
    return [bucketed(rng.gamma(4, slow if n == 0 else 1.0, transactions)) for n in range(blocks)]


@each([(2, 100, 1.0), (5, 60, 1.0), (9, 500, 6.0), (12, 4000, 3.0), (3, 20, 1.5)])
def test_the_interval_of_a_higher_quantile_begins_no_lower_and_ends_no_sooner(
    blocks: int, transactions: int, slow: float
) -> None:
    for seed in range(40):
        found = quantile_intervals(_blocks(blocks, transactions, slow, seed), (0.5, 0.95, 0.99, 0.999))
        for lower, higher in pairwise(one for one in found if one.known):
            assert lower.low <= higher.low
            assert lower.high <= higher.high
        assert all(one.low <= one.value <= one.high for one in found if one.known)


def test_a_quantile_that_is_not_bounded_above_is_at_least_what_the_one_below_it_is() -> None:
    p99, p999 = quantile_intervals(_blocks(4, 300, 1.0, 3), (0.99, 0.999))
    assert math.isinf(p999.high)
    assert p999.low >= p99.low > 0


def test_blocks_that_are_alike_leave_what_chance_leaves() -> None:
    block = bucketed(np.random.default_rng(1).gamma(4, 1, 1000))
    (p50,) = quantile_intervals([block] * 4, (0.5,))
    assert 0.01 < p50.half_width / p50.value < 0.1


def test_quantiles_of_one_block_have_no_interval_and_of_none_no_value() -> None:
    (one,), (none,) = quantile_intervals([{10: 5}], (0.5,)), quantile_intervals([{}], (0.5,))
    assert math.isfinite(one.value)
    assert not one.known
    assert math.isnan(none.value)


def test_few_values_do_not_make_an_interval_lean() -> None:
    found = stopped_interval(np.array([1.0, 1.1, 2.0]))
    assert found.high - found.value == pytest.approx(found.value - found.low)


@pytest.mark.parametrize("n", [10, 20, 60])
@pytest.mark.parametrize("slow", [1, 2])
def test_an_interval_leans_no_further_than_one_event_could_be_missed(n: int, slow: int) -> None:
    values = np.random.default_rng(n).normal(0, 0.05, n)
    values[:slow] -= 1
    found, error = stopped_interval(values, 0.05), float(np.std(values, ddof=1)) / math.sqrt(n)
    assert found.value - found.low == pytest.approx(4.57 * error, rel=0.01)
    assert 1.2 * error < found.high - found.value < 2.3 * error


@pytest.mark.parametrize("milliseconds", [(2.0, 90.0), (1.0, 1.0, 400.0), (0.5, 3.0, 3.0, 250.0)])
def test_the_interval_of_a_mean_duration_never_begins_below_nothing(milliseconds: tuple[float, ...]) -> None:
    values = np.array(milliseconds)
    assert stopped_interval(values).low < 0 == duration_interval(values).low
    assert math.isnan(duration_interval(values[:1]).low)


def test_a_median_has_an_interval_only_where_order_statistics_give_one() -> None:
    assert not median_interval([1.0] * 5).known
    six = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (six.low, six.high) == (1.0, 6.0)
    ten = median_interval([float(i) for i in range(10)])
    assert (ten.value, ten.low, ten.high) == (4.5, 1.0, 8.0)
    assert math.isnan(median_interval([]).value)
