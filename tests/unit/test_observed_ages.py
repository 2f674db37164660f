"""How long the slowest commits wait, from the ages at which they were seen waiting: simulated, so that it is known."""

import math
from typing import Any

import numpy as np
import pytest

from tests.fixtures.observed import group, seen
from tests.fixtures.tiers import each
from walproof.estimating.observed_waits import observation
from walproof.model.observed_waits import WaitsSeen

LENGTHS: dict[str, Any] = {
    "alike": lambda rng, n: np.full(n, 6.0),
    "exponential": lambda rng, n: rng.exponential(3.0, n),
    "long tail": lambda rng, n: 2.0 * np.exp(rng.normal(size=n)),
    "two kinds": lambda rng, n: np.where(rng.random(n) < 0.03, 40.0, 2.0),
}


def polled(kind: str, *, seconds: int = 60, rate: int = 500, seed: int = 1) -> tuple[list[WaitsSeen], Any]:
    """Commits that begin at random and wait so long, as 20 polls a second at random moments see them; their lengths."""
    rng = np.random.default_rng(seed)
    begins = np.sort(rng.uniform(0, seconds, seconds * rate))
    lengths = LENGTHS[kind](rng, len(begins))
    every = []
    for second in range(seconds):
        ages: dict[int, float] = {}
        for poll_at in second + (np.arange(20) + rng.random(20)) / 20:
            near = slice(*np.searchsorted(begins, (poll_at - 1.0, poll_at)))
            old = 1000 * (poll_at - begins[near])
            for bucket in np.floor(4 * np.log2(old[old < lengths[near]])).astype(int).tolist():
                ages[bucket] = ages.get(bucket, 0.0) + 1
        ended = int(np.sum((begins >= second) & (begins < second + 1)))
        waiting = group(standby=sum(ages.values()))
        every.append(seen(waiting, transaction_ids=ended, commits=ended, ages=ages))
    return every, lengths


@each(LENGTHS)
def test_the_share_of_commits_that_wait_at_an_age_is_unbiased_without_a_load(kind: str) -> None:
    """Over 30 observations: sightings at an age ÷ (polls × width × commits a second)."""
    sighted, expected = np.zeros((2, 4))
    for seed in range(30):
        every, lengths = polled(kind, seconds=10, seed=seed)
        looked = sum(one.transaction_ids / one.poll_s for one in every)
        for i, bucket in enumerate((4, 6, 8, 10)):
            low, high = 2 ** (bucket / 4), 2 ** ((bucket + 1) / 4)
            sighted[i] += sum(one.ages.get(bucket, 0.0) for one in every)
            expected[i] += looked * float(np.mean(np.clip(lengths - low, 0.0, high - low))) / 1000
    assert (np.abs(sighted - expected) <= 3 * np.sqrt(expected)).all()


@each(LENGTHS)
def test_the_age_that_one_percent_outlast_is_told_within_its_interval(kind: str) -> None:
    """A poll meets long waits more often than short ones: the hundredth longest of those seen would be too old."""
    every, lengths = polled(kind, rate=1000)
    late, truth = observation(every).late_ms, float(np.quantile(lengths, 0.99))
    assert late.value == pytest.approx(truth, rel=0.2)
    assert 0.85 * late.low <= truth <= 1.15 * late.high


# rows: none seen, fewer than one in a hundred, too short to tell, none ended, too few commits
@each([({}, 400), ({8: 1.0}, 400), ({-20: 3.0}, 400), ({8: 20.0}, 0), ({8: 20.0}, 1)])
def test_it_is_not_said_where_too_little_was_seen(ages: dict[int, float], ids: int) -> None:
    late = observation([seen(group(standby=20), ages=ages, transaction_ids=ids, commits=ids)] * 12).late_ms
    assert math.isnan(late.value)
    assert not late.known
