"""The shipped guard in 2,000 schedules does no harm; what once was wrong, and each missing condition, is found.

`--mutants` tries each change of the guard with as many at most (docs/guard-proof.md).

`python -m tests.guard_simulation --schedules 20000` runs more.
"""

from dataclasses import replace

import pytest

from tests.guard_simulation.__main__ import run
from tests.guard_simulation.by_hand import ALL, put_in
from tests.guard_simulation.schedule import draw
from tests.guard_simulation.shortest import SHORTEST, shrink, story
from tests.guard_simulation.simulate import judge

SCHEDULES, BATCH = 2_000, 250


@pytest.mark.parametrize("first", range(0, SCHEDULES, BATCH))
def test_the_guard_does_no_harm(first: int) -> None:
    batch = run(first, BATCH)
    print(f"{dict(batch.count)}")
    for seed, kind in batch.wrong[:1]:
        pytest.fail(f"{kind}, seed {seed}:\n{story(shrink(draw(seed), kind))}")
    assert batch.count["hand-overs"] > BATCH / 4, "next to nothing was taken over: the schedules are vacuous"
    assert batch.count["promotions"] > batch.count["hand-overs"], "nothing was left to Patroni"


@pytest.mark.parametrize("name", ALL)
def test_what_once_was_wrong_and_a_missing_condition_is_found(name: str) -> None:
    mutant, schedule = ALL[name], SHORTEST[name]
    assert not judge(schedule).wrong, "the guard as it is does harm in this schedule"
    with put_in(mutant):
        outcome = judge(schedule, recorded=True)
    print(story(outcome))
    assert {v.kind for v in outcome.wrong} & set(mutant.finds), f"not found: {outcome.wrong}"


@pytest.mark.parametrize("seed", [3, 28, 50, 74, 100])
def test_a_seed_is_always_the_same_run(seed: int) -> None:
    first, again = (judge(draw(seed), recorded=True) for _ in range(2))
    assert first == again and len(first.story) > 5


def test_a_fault_that_is_left_out_changes_nothing_before_it() -> None:
    schedule = draw(35)
    whole = judge(schedule, recorded=True)
    came = [at or 0.0 for at in whole.fired]
    last = came.index(max(came))
    fewer = judge(replace(schedule, faults=schedule.faults[:last] + schedule.faults[last + 1 :]), recorded=True)
    early = [h for h in whole.story if h.at < came[last]]
    assert len(early) > 5 and early == [h for h in fewer.story if h.at < came[last]]
