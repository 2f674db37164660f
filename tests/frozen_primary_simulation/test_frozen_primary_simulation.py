"""The shipped decisions in drawn schedules do no harm; each condition taken away is found."""

import pytest

from tests.frozen_primary_simulation.mutants import MUTANTS, PLAIN, Mutant, mutated, wrong
from tests.frozen_primary_simulation.schedule import draw
from tests.frozen_primary_simulation.world import judge

SCHEDULES, BATCH = 200, 50


@pytest.mark.parametrize("first", range(0, SCHEDULES, BATCH))
def test_the_decisions_do_no_harm(first: int) -> None:
    """No acknowledged commit lost, no Lease of a living instance emptied, no honest disturbance taken for a freeze."""
    worlds = [judge(draw(seed)) for seed in range(first, first + BATCH)]
    assert [(world.schedule.seed, world.wrong) for world in worlds if world.wrong] == []
    assert sum(world.emptied for world in worlds) >= BATCH / 20, "next to nothing was taken over"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_condition_taken_away_is_found(mutant: Mutant) -> None:
    assert wrong(mutant.schedule) == [], "the decisions as they are do harm in this schedule"
    said = wrong(mutant.schedule, *mutated(mutant))
    assert [one for one in said if mutant.finds in one], said


def test_a_frozen_primary_is_replaced_within_seconds_and_nothing_is_lost() -> None:
    worlds = [judge(PLAIN.__class__(seed, "freeze", 12.0, 300.0, False, ())) for seed in range(12)]
    assert [world.wrong for world in worlds if world.wrong] == []
    outages_s = sorted(world.outage_s for world in worlds)
    assert outages_s[-1] < 15 and {world.emptied for world in worlds} == {1}


def test_a_seed_is_always_the_same_run() -> None:
    first, again = (judge(draw(5)) for _ in range(2))
    assert (first.acked, first.deletions, first.cluster) == (again.acked, again.deletions, again.cluster)
