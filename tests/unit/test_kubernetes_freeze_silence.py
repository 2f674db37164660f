"""Which silence of a primary a guard of CloudNativePG takes for a freeze, and which it does not."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.kubernetes.sights import POLICY, from_then, sight, watched
from tests.fixtures.tiers import each
from walproof.guarding.kubernetes_freeze import State, turn
from walproof.guarding.kubernetes_sight import StandbySeen, Way


@pytest.mark.parametrize("gap_s", [1.3, 1.5, 3.0])
@pytest.mark.parametrize("at", [20.3, 21.0, 21.5])
def test_silence_counts_only_while_the_manager_answers_all_along(at: float, gap_s: float) -> None:
    """What hit the manager may have hit the ways to PostgreSQL too: a hiccup of the network, whose logins take long."""
    memory, action = watched(), None
    for tick in range(201, 320):
        now = tick / 10
        manager = Way(min(now, at)) if now < at + gap_s else Way(now)
        memory, action = turn(memory, sight(now, frozen_at=20.0, manager=manager), POLICY)
        if action:
            break
    assert action is not None and float(action.onto[1:]) >= at + gap_s + 4.8


@each([(0.5, 21.5), (2.5, 22.8), (3.7, 24.0), (3.8, None), (30.0, None)])
def test_a_standby_is_silent_once_its_own_question_should_have_been_answered(
    pings_s: float, acts_at: float | None
) -> None:
    memory, action, at = watched(), None, 20.0
    while action is None and (at := round(at + 0.1, 1)) < 40.0:
        standbys = {n: StandbySeen(at, 20.0, pings_s=pings) for n, pings in (("pg-2", pings_s), ("pg-3", 0.5))}
        memory, action = turn(memory, sight(at, frozen_at=20.0, standbys=standbys), POLICY)
    if acts_at is None:
        assert action is None and memory.state is State.NOT_READY and "wal_receiver_timeout" in memory.why_not
    else:
        assert action is not None and acts_at <= float(action.onto[1:]) < acts_at + 0.35


@pytest.mark.parametrize("late_s", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("which", ["pg-2", "pg-3"])
def test_a_standby_is_silent_up_to_its_last_question_only(which: str, late_s: float) -> None:
    """One that answers late has been asked long ago: what it heard since is not known."""
    memory, action, at = watched(), None, 20.0
    while action is None and (at := round(at + 0.1, 1)) < 30.0:
        standbys = {n: StandbySeen(at - late_s if n == which else at, 20.0) for n in ("pg-2", "pg-3")}
        memory, action = turn(memory, sight(at, frozen_at=20.0, standbys=standbys), POLICY)
    assert action is not None and float(action.onto[1:]) >= 22.8 + late_s


DEAF = {
    "the write service refuses": {"service": Way(21.0)},
    "the pod's address refuses": {"direct": Way(21.0)},
    "refused for long, then dropped": {"direct": Way(9.0, 32.0)},
    "the manager refuses": {"manager": Way(21.0)},
    "the manager is waited for": {"manager": Way(21.0, 21.0)},
    "never answered": {"service": Way()},
}


@each(DEAF.values())
def test_a_guard_that_a_place_does_not_answer_is_not_ready_and_says_which(changes: dict[str, Any]) -> None:
    memory, _ = turn(watched(), sight(32.0, **changes), POLICY)
    assert memory.state is State.NOT_READY and "did not answer" in memory.why_not


@pytest.mark.parametrize("way", ["service", "direct"])
@pytest.mark.parametrize(("heard_at", "ready"), [(22.9, True), (23.2, False), (600.0, False)])
def test_a_way_that_waits_while_wal_comes_is_no_freeze_and_not_ready(way: str, heard_at: float, ready: bool) -> None:
    memory, waits = watched(), dict[str, Any]({way: Way(20.0, 20.1)})
    for tick in range(201, round(heard_at * 10) + 1, 1 if heard_at < 30 else 7):
        memory, _ = turn(memory, sight(tick / 10, **waits), POLICY)
    assert (memory.state is State.WATCHING) is ready
    memory, action = from_then(memory, heard_at, heard_at + 9.0, frozen_at=heard_at, **waits)
    assert (action is not None) is ready and ("WAL came without SQL" in memory.why_not) is not ready


REFUSES = {
    "the service, its session ended": {"service": Way(21.0)},
    "the pod, its session ended": {"direct": Way(21.0)},
    "the service, asked anew": {"service": Way(20.0, 21.5)},
    "the pod, asked anew": {"direct": Way(20.0, 21.5)},
    "both, asked anew": {"service": Way(20.0, 21.5), "direct": Way(20.0, 21.5)},
}


@each(REFUSES.values())
def test_a_way_that_waits_only_since_it_was_cut_off_shows_no_frozen_server(changes: dict[str, Any]) -> None:
    """A frozen server's sessions stay, for its kernel acknowledges."""
    memory, action = from_then(watched(), 22.2, 34.0, **changes)
    assert action is None and memory.suspicions == 0


@each([(0.0, True), (1.0, True), (2.7, True), (2.9, False), (90.0, False)])
def test_sql_that_falls_silent_long_after_wal_is_no_freeze(later_s: float, acts: bool) -> None:
    """By then the standbys had ended for another reason, and SQL alone would be the witness."""
    memory, action, at = watched(), None, 20.0
    while action is None and (at := round(at + 0.1, 1)) < 28.0 + later_s:
        standbys = {name: StandbySeen(at, 20.0) for name in ("pg-2", "pg-3")}
        memory, action = turn(memory, sight(at, frozen_at=20.0 + later_s, standbys=standbys), POLICY)
    assert (action is not None) is acts and ("SQL came without WAL" in memory.why_not) is not acts
    assert "within the last" not in memory.why_not, "for as long as it hangs, waiting would not help"


DOUBTS = {
    "the guard stood still": {"stalled": True},
    "the write service or pg-1 did not answer": {"service": Way(10.0)},
    "the manager of pg-1 did not answer": {"manager": Way(10.0, 10.1)},
    "WAL came without SQL": {"direct": Way(10.0, 10.1)},
    "SQL came without WAL": {"standbys": {n: StandbySeen(20.1, 10.0) for n in ("pg-2", "pg-3")}},
}


@each(DOUBTS.items())
def test_what_was_otherwise_is_said_for_as_long_as_it_counts(said: str, changes: dict[str, Any]) -> None:
    memory = watched()
    if "WAL" in said:
        memory = replace(memory, heard_at=10.0 if said.startswith("SQL") else 20.0)
    memory, _ = turn(memory, sight(20.1, **changes), POLICY)
    assert memory.why_not == said
    for at, so in ((25.0, True), (25.2, False)):
        memory, _ = turn(memory, sight(at), POLICY)
        assert (memory.why_not == f"{said} within the last 5 s") is so
