"""Which drills are planned, and what cannot be asked."""

import pytest

from walproof.errors import UsageError
from walproof.model.guarantee import Level, Loss
from walproof.model.verdict import Victim
from walproof.proving.campaign import planned
from walproof.proving.faults import CATALOGUE, fault, loss_of, victim
from walproof.proving.question import consented, question_of


def test_every_round_visits_every_fault_at_every_level_once() -> None:
    plan = planned(question_of({"fault": "kill,partition", "levels": "off,on", "repeat": "5"}))
    assert len(plan) == 20
    for begin in range(0, 20, 4):
        assert len({(d.fault.name, d.level) for d in plan[begin : begin + 4]}) == 4


def test_the_order_comes_from_the_seed() -> None:
    def order(seed: str) -> list[tuple[str, Level]]:
        return [
            (d.fault.name, d.level)
            for d in planned(question_of({"fault": "kill,partition", "repeat": "6", "seed": seed}))
            for d in planned(question_of({"fault": "kill,partition", "repeat": "6", "seed": seed}))
        ]

    assert order("1") == order("1")
    assert order("1") != order("2")


def test_until_bound_plans_enough_clean_drills() -> None:
    plan = planned(question_of({"levels": "on", "until_bound": "5%"}))
    assert len(plan) >= 59


def test_a_storm_is_seeded_and_stays_within_what_each_fault_allows() -> None:
    plan = planned(question_of({"storm": "40", "seed": "3", "levels": "on"}))
    assert len(plan) == 40
    assert all(d.victim in d.fault.victims for d in plan)
    assert [d.fault.name for d in plan] == [
        d.fault.name for d in planned(question_of({"storm": "40", "seed": "3", "levels": "on"}))
    ]


def test_the_matrix_brings_five_levels_and_its_own_faults() -> None:
    plan = planned(question_of({"matrix": True, "quick": True}))
    assert {d.level for d in plan} == set(Level)
    assert {d.fault.name for d in plan} == {"kill-all", "kill", "double-kill", "double-power", "none"}
    assert len(plan) == 25


@pytest.mark.parametrize(
    "words",
    [
        {"fault": "earthquake"},
        {"fault": ","},
        {"levels": "on,sometimes"},
        {"victim": "bystander"},
        {"repeat": "0"},
        {"writers": "-3"},
        {"writers": "many"},
        {"storm": "0"},
        {"until_bound": "0%"},
        {"matrix": True, "fault": "kill"},
    ],
)
def test_what_cannot_be_meant_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(UsageError) as refused:
        question_of(words)
    assert refused.value.hint


def test_a_fault_that_cannot_fall_on_the_victim_is_refused() -> None:
    with pytest.raises(UsageError):
        planned(question_of({"fault": "switchover,kill", "victim": "cluster"}))


def test_every_fault_has_a_story_and_a_victim() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.victims
        assert all((entry.story.happens, entry.story.promises, entry.story.heals))
        assert entry.needs or name == "none"


def test_what_is_lost_depends_on_the_victim() -> None:
    assert loss_of(fault("kill"), Victim.LEADER) is Loss.LEADER_GONE
    assert loss_of(fault("kill"), victim("sync")) is None
    assert loss_of(fault("double-power"), Victim.CLUSTER) is Loss.LEADER_AND_STANDBY_POWER


def test_a_cluster_of_yours_is_broken_only_by_faults_named() -> None:
    asked = question_of({"fault": "kill,power-cut"})
    with pytest.raises(UsageError) as refused:
        consented(asked, None)
    assert "--allow kill,power-cut" in refused.value.hint
    with pytest.raises(UsageError):
        consented(asked, "kill")
    consented(asked, "kill,power-cut")
    consented(question_of({"fault": "none"}), None)
    with pytest.raises(UsageError):
        consented(question_of({"storm": "3"}), "kill")
