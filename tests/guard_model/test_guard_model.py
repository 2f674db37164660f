"""A takeover loses no acknowledged commit in any state the model can reach; each missing condition is found out."""

from dataclasses import replace

import pytest

from tests.guard_model.cluster import Size, first_state, lost
from tests.guard_model.explore import explore
from tests.guard_model.mutants import ANY_1_OF_2, ANY_2_OF_3, MUTANTS
from tests.guard_model.protocol import CAREFUL, HAND_OVER, RELEASE, Evidence, Protocol, Sealed

THREE_MEMBERS = [Size(2, 1), Size(2, 2), Size(2, 1, any_of=False), Size(2, 2, any_of=False)]


def _loses_nothing(size: Size, protocol: Protocol) -> None:
    found = explore(size, protocol)
    print(f"{size}: {found.states} states, {found.releases} hand-overs, {found.promotions} promotions")
    assert not found.story, str(found)
    assert found.releases and found.promotions and found.resumed, "nothing was taken over: the exploration is vacuous"


@pytest.mark.parametrize("size", [*THREE_MEMBERS, ANY_2_OF_3], ids=str)
def test_no_acknowledged_commit_is_lost(size: Size) -> None:
    _loses_nothing(size, HAND_OVER)


@pytest.mark.parametrize("size", THREE_MEMBERS, ids=str)
def test_nor_with_failsafe_mode(size: Size) -> None:
    _loses_nothing(replace(size, failsafe=True, changes=0), HAND_OVER)


@pytest.mark.parametrize("size", [*THREE_MEMBERS[:1], *THREE_MEMBERS[2:3], ANY_2_OF_3], ids=str)
def test_nor_when_the_successor_releases_the_key_early_and_every_voter_was_sealed(size: Size) -> None:
    _loses_nothing(replace(size, releases_early=True, guards=1, seals=1), CAREFUL)


@pytest.mark.parametrize("size", [ANY_1_OF_2, ANY_2_OF_3], ids=str)
def test_nor_when_the_key_is_deleted_and_every_voter_was_sealed(size: Size) -> None:
    _loses_nothing(size, RELEASE)


@pytest.mark.parametrize("missing", MUTANTS)
def test_a_missing_condition_is_found_out(missing: str) -> None:
    mutant = MUTANTS[missing]
    found = explore(mutant.size, mutant.protocol)
    print(f"{missing} ({mutant.size}), after {found.states} states:\n{found}")
    assert found.story, f"{missing}: no loss in {found.states} states"
    assert any(mutant.says in step for step in found.story), str(found)


def test_standbys_that_keep_the_address_cost_the_takeover_and_no_commit() -> None:
    found = explore(ANY_1_OF_2, Protocol(hides_leader=False))
    assert not found.story and found.releases == 0


@pytest.mark.parametrize("size", [Size(2, 2), Size(2, 1, any_of=False)], ids=str)
def test_where_the_quorum_is_0_the_wait_is_not_needed(size: Size) -> None:
    _loses_nothing(replace(size, guards=1, seals=1), Protocol(sealed=Sealed.WHERE_NEEDED))


def test_patroni_alone_loses_nothing_where_its_leader_waits_for_the_voters_left() -> None:
    found = explore(Size(2, 1, guards=0))
    assert not found.story and found.promotions and found.releases == 0


def test_patroni_alone_loses_a_commit_to_two_failures() -> None:
    found = explore(Size(2, 1, guards=0, catches_up=False))
    print(found)
    assert any("a writes /sync" in step and "quorum 0" in step for step in found.story)


def test_a_story_is_made_of_different_steps_and_ends_in_the_loss() -> None:
    story = explore(ANY_1_OF_2, Protocol(evidence=Evidence.WALRECEIVER)).story
    assert story[-1].endswith("is promoted") or "acknowledges" in story[-1]
    assert len(set(story)) == len(story)


def test_a_loss_is_an_acknowledged_commit_the_promoted_one_lacks() -> None:
    state = first_state(ANY_1_OF_2)._replace(acknowledged=1, received=(1, 0))
    assert lost(state._replace(promoted=1)) and not lost(state._replace(promoted=0)) and not lost(state)
