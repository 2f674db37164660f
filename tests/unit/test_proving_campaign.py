"""Which drills are planned, and what cannot be asked."""

from dataclasses import replace

import pytest

from tests.fixtures.tiers import each
from walproof.errors import UsageError
from walproof.model.drill import Capability, Victim
from walproof.model.guarantee import Level, Loss
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.proving.campaign import Strike, consents_needed, planned
from walproof.proving.faults import CATALOGUE, fault, loss_of, victim
from walproof.proving.options import parse_options
from walproof.proving.return_order import by_name, orders

NAMES = ("n1", "n2", "n3")


def test_every_round_visits_every_fault_at_every_level_once() -> None:
    plan = planned(parse_options({"fault": "kill,partition", "levels": "off,on", "repeat": "5"}))
    assert len(plan) == 20
    for begin in range(0, 20, 4):
        assert len({(d.fault.name, d.level) for d in plan[begin : begin + 4]}) == 4


def test_the_order_comes_from_the_seed() -> None:
    def order(seed: str) -> list[tuple[str, Level]]:
        return [
            (d.fault.name, d.level)
            for d in planned(parse_options({"fault": "kill,partition", "repeat": "6", "seed": seed}))
        ]

    assert order("1") == order("1")
    assert order("1") != order("2")


def test_until_bound_plans_enough_clean_drills() -> None:
    plan = planned(parse_options({"levels": "on", "until_bound": "5%"}))
    assert len(plan) >= 59


def test_a_storm_is_seeded_whatever_else_is_asked() -> None:
    def storms(**raw: str) -> list[tuple[Strike, ...]]:
        return [d.storm for d in planned(parse_options({"levels": "on", **raw}))]

    assert storms(storm="3", seed="3") == storms(storm="5", seed="3")[:3]
    assert storms(storm="3", seed="3") != storms(storm="3", seed="4")
    assert len({storm for storm in storms(storm="40")}) == 40
    assert {len(storm) for storm in storms(storm="9", storm_faults="7")} == {7}


def test_storms_visit_the_levels_in_turn_and_need_the_faults_that_they_drew() -> None:
    plan = planned(parse_options({"storm": "4", "levels": "off,on"}), ["kill", "freeze"])
    assert [str(d.level) for d in plan] == ["off", "on", "off", "on"]
    assert {strike.fault for d in plan for strike in d.storm} == {"kill", "freeze"}


def test_the_matrix_brings_five_levels_and_its_own_faults() -> None:
    plan = planned(parse_options({"matrix": True, "quick": True}))
    assert {d.level for d in plan} == set(Level)
    assert {d.fault.name for d in plan} == {"kill-all", "kill", "double-kill", "double-power", "none"}
    assert len(plan) == 25
    full = planned(parse_options({"matrix": True}))
    assert {d.fault.name for d in full} == {"crash-in-place", "kill", "double-kill", "double-power", "none"}


@each([
    {"fault": "earthquake"},
    {"fault": ","},
    {"levels": "on,sometimes"},
    {"victim": "bystander"},
    {"repeat": "0"},
    {"writers": "-3"},
    {"writers": "many"},
    {"storm": "0"},
    {"storm": "2", "victim": "leader"},
    {"storm": "2", "storm_faults": "0"},
    {"storm": "2", "shrink": "-1"},
    {"fault": "kill", "shrink": "3"},
    {"storm_faults": "3"},
    {"until_bound": "0%"},
    {"matrix": True, "fault": "kill"},
    {"return_order": "all", "fault": "kill"},
    {"return_order": "all", "fault": "power-cut-all,kill-all"},
    {"return_order": "all", "storm": "1"},
    {"return_order": "all", "matrix": True},
    {"return_order": " "},
    {"levels": " "},
])  # fmt: skip
def test_an_option_that_is_not_valid_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_options(raw)
    assert refused.value.hint


def test_a_fault_that_cannot_fall_on_the_victim_is_refused() -> None:
    with pytest.raises(UsageError):
        planned(parse_options({"fault": "switchover,kill", "victim": "cluster"}))


@each([
    ("n9", "no member"),
    ("n1,n1", "no order"),
    (",", "no order"),
    ("standby-3", "no member"),
    ("all,n1", "no member"),
])  # fmt: skip
def test_an_order_of_others_than_the_members_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        orders(text, NAMES)
    assert "standby-1,standby-2,leader" in refused.value.hint


def test_every_order_is_a_drill_and_of_five_members_none_is_left_out_in_silence() -> None:
    every = orders("all", NAMES)
    plan = planned(replace(parse_options({"return_order": "all", "levels": "on"}), return_orders=every))
    assert {drill.return_order for drill in plan} == set(every)
    assert (len(plan), plan[0].fault.name) == (6, "kill-member-all")
    with pytest.raises(UsageError, match="too many"):
        orders("all", [f"n{place}" for place in range(5)])


@each([
    (("standby-1",), ("n1", "n2", "n3")),
    (("leader",), ("n2", "n1", "n3")),
    (("standby-2", "leader"), ("n3", "n2", "n1")),
    (("n3", "standby-2", "n1"), ("n3", "n1", "n2")),
])  # fmt: skip
def test_members_that_an_order_does_not_name_come_last(order: tuple[str, ...], names: tuple[str, ...]) -> None:
    view = ClusterView(0.0, tuple(MemberView(n, Role.STANDBY, "streaming", 1) for n in NAMES), "n2")
    assert by_name(order, view) == names


def test_every_fault_has_a_story_and_a_victim() -> None:
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.victims
        assert all((entry.story.happens, entry.story.promises, entry.story.recovers))
        assert entry.needs or name == "none"


def test_what_is_lost_depends_on_the_victim() -> None:
    assert loss_of(fault("kill"), Victim.LEADER) is Loss.LEADER_GONE
    assert loss_of(fault("kill"), victim("sync")) is None
    assert loss_of(fault("double-power"), Victim.CLUSTER) is Loss.LEADER_AND_STANDBY_POWER


def test_a_plan_names_the_consents_it_needs_load_and_each_fault() -> None:
    assert consents_needed(planned(parse_options({"fault": "power-cut,kill"}))) == ("load", "kill", "power-cut")
    assert consents_needed(planned(parse_options({"fault": "none"}))) == ("load",)
    storm = consents_needed(planned(parse_options({"storm": "40"}), ["kill", "restart"]))
    assert storm == ("load", "kill", "restart")


def test_a_fault_of_one_operation_bears_the_name_of_its_capability() -> None:
    none = {
        Capability.PRICE,
        Capability.LEDGER,
        Capability.CONFIGURE,
        Capability.INSPECT,
        Capability.OBSERVE,
    }
    none |= {Capability.RETURN_ORDER, Capability.WORKLOAD}
    factors = {Capability.SHAPE_LINKS, Capability.LIMIT_PROCESSORS, Capability.LIMIT_MEMORY}
    for capability in set(Capability) - none - factors:
        assert [step.operation for step in CATALOGUE[capability.value].steps] == [capability]
        assert CATALOGUE[capability.value].needs == (capability,)
