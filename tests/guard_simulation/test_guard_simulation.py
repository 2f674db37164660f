"""The shipped guard in 20,000 schedules does no harm; what once was wrong, and each missing condition, is found."""

import pytest

from tests.guard_simulation.__main__ import run
from tests.guard_simulation.by_hand import ALL
from tests.guard_simulation.mutator import in_place
from tests.guard_simulation.schedule import draw
from tests.guard_simulation.shrink import shrink, story
from tests.guard_simulation.simulate import judge

SCHEDULES, BATCH = 20_000, 500


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
    mutant = ALL[name]
    assert not judge(mutant.schedule).wrong, "the guard as it is does harm in this schedule"
    with in_place(mutant.file, mutant.tree()):
        outcome = judge(mutant.schedule, told=True)
    print(story(outcome))
    assert {v.kind for v in outcome.wrong} & set(mutant.finds), f"not found: {outcome.wrong}"


@pytest.mark.parametrize("seed", [3, 28, 50, 74, 100])
def test_a_seed_is_always_the_same_run(seed: int) -> None:
    first, again = (judge(draw(seed), told=True).result for _ in range(2))
    assert first == again and len(first.story) > 5


def test_a_fault_that_is_left_out_changes_nothing_before_it() -> None:
    from dataclasses import replace

    schedule = draw(28)
    last = max(range(len(schedule.faults)), key=lambda i: schedule.faults[i].at)
    whole, fewer = (
        judge(schedule, told=True).result,
        judge(replace(schedule, faults=schedule.faults[:last]), told=True).result,
    )
    early = [h for h in whole.story if h.at < 2.0]
    assert early and early == [h for h in fewer.story if h.at < 2.0]
