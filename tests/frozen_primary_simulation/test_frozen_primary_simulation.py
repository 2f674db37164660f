"""The shipped decisions in drawn schedules do no harm; that the simulation would see harm: benchmarks."""

from tests.fixtures.tiers import many
from tests.frozen_primary_simulation.schedule import Schedule, draw
from tests.frozen_primary_simulation.world import judge

SCHEDULES = many(40, 1000)


def test_the_decisions_do_no_harm_and_a_seed_is_always_the_same_run() -> None:
    """No acknowledged commit lost, no Lease of a living instance emptied, no honest disturbance taken for a freeze."""
    worlds = [judge(draw(seed)) for seed in range(SCHEDULES)]
    assert [(world.schedule.seed, world.wrong) for world in worlds if world.wrong] == []
    assert sum(world.emptied for world in worlds) >= SCHEDULES / 20, "next to nothing was taken over"
    again, first = judge(draw(5)), worlds[5]
    assert (first.acked, first.deletions, first.cluster) == (again.acked, again.deletions, again.cluster)


def test_a_frozen_primary_is_replaced_within_seconds_and_nothing_is_lost() -> None:
    worlds = [judge(Schedule(seed, "freeze", 12.0, 300.0, False, ())) for seed in range(12)]
    assert [world.wrong for world in worlds if world.wrong] == []
    assert max(world.outage_s for world in worlds) < 15 and {world.emptied for world in worlds} == {1}
