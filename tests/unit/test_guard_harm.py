"""What once made a guard do harm, each as a test; the numbers are those of the readings that found it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import httpx2
import pytest
from patroni.config import Config

from tests.unit.test_guarding import (
    BOTH,
    KEPT,
    KNOWS,
    LOCK,
    POLICY,
    SEALED,
    alive,
    answers,
    disconnected,
    gone,
    sealing,
    silent,
    standbys,
    watching,
)
from tests.unit.test_leader_lock import MEMBER, SEAL, Recorder, entries, entry, lock_on
from walproof.errors import MachineError
from walproof.guarding.decide import Act, Memory, Sight, State, seal_of, turn
from walproof.guarding.leader_lock import state_of
from walproof.guarding.run import Guard
from walproof.guarding.seal_quorum import LATE_S, sealed, why_not, why_void
from walproof.guarding.signs_of_life import Addresses, PatroniSignsOfLife, why_unfit
from walproof.guarding.suspicion import witness
from walproof.machine.clock import RealClock
from walproof.model.takeover import LockState, MemberSigns, Receiver
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for


def test_g1_a_standby_that_crashed_counts_for_what_it_replayed() -> None:
    """Received is a segment's start again, 0/4000000; replayed 0/4063310, more than the other standby's 0/404A438."""
    crashed, other = answers(position=0x4063310, streamed=True), answers(position=0x404A438)
    lock = replace(SEALED, at=101.5)
    signs = {**gone(100.0, 101.4), "n2": replace(crashed, fit_at=101.4), "n3": replace(other, fit_at=101.4)}
    _, action = turn(sealing(), Sight(101.4, lock, signs), POLICY)
    assert (action.act, action.to) == (Act.HAND_OVER, "n2")


def test_g1_one_that_still_replays_is_not_counted_however_still_it_stands() -> None:
    assert sealed(("n2", "n3"), {"n2": answers(waits=False), "n3": answers()}, 101.1, 101.4) == {"n3": 100}


def test_g2_a_role_without_pg_read_all_stats_sees_what_to_grant() -> None:
    blind = tuple(replace(r, lacks="GRANT pg_monitor TO guard") for r in alive(102.0)["n2"].receivers)
    signs = {**gone(100.0, 102.0), "n2": replace(alive(102.0)["n2"], receivers=blind)}
    sight = replace(silent(102.0), signs=signs)
    memory, action = turn(watching(), sight, POLICY)
    assert action.act is Act.NONE
    assert memory.why_not == "this guard may not see the walreceiver of n2: GRANT pg_monitor TO guard"


@pytest.mark.parametrize(
    ("tags", "tagged"),
    [
        ({"replicatefrom": "n1"}, "replicatefrom: n1"),
        ({"nofailover": True}, "nofailover: True"),
        ({"nofailover": "false"}, "nofailover: false"),
        ({"nosync": True}, "nosync: True"),
        ({"failover_priority": 0}, "failover_priority: 0"),
        ({"failover_priority": "0"}, "failover_priority: 0"),
        ({"sync_priority": -1}, "sync_priority: -1"),
        ({"failover_priority": []}, "failover_priority: []"),
        ({"nofailover": False, "replicatefrom": "", "failover_priority": 7}, ""),
        ({"failover_priority": None, "noloadbalance": True}, ""),
    ],
)
def test_g4_voters_are_counted_as_patroni_reads_their_tags(tags: dict[str, Any], tagged: str) -> None:
    member = {"conn_url": "postgres://10.0.0.2/x", "state": "running", "tags": tags}
    state = state_of(entries(members_n2=entry("members/n2", member, 6, 78)), 0.0)
    assert state.candidates["n2"].tagged == tagged
    assert ("n2" in state.counted) == (tagged == "")


def test_g4_a_voter_that_follows_another_member_is_neither_counted_nor_heard() -> None:
    tagged = replace(
        LOCK, candidates={**LOCK.candidates, "n3": replace(LOCK.candidates["n3"], tagged="replicatefrom: n1")}
    )
    reason = "1 of 2 synchronous standbys answer and follow, 2 are needed; not counted: "
    assert why_not(replace(tagged, at=102.0), alive(102.0), 102.0, BOTH) == f"{reason}n3 (replicatefrom: n1)"
    sight = Sight(101.5, replace(tagged, **_seal_fields()), disconnected(101.5, {"n2": 90, "n3": 110}))
    assert turn(sealing(), sight, POLICY)[1].act is Act.NONE


def _seal_fields() -> dict[str, Any]:
    names = ("holder", "holder_version", "sync_version", "lease_age_s", "seal")
    return {"at": 101.5, **{name: getattr(SEALED, name) for name in names}}


def test_g5_a_seal_left_to_patroni_is_never_taken_up_again() -> None:
    """Seal 7.25 s, pause, void 7.30, resumed 9.35, handed over 9.45: while paused."""
    paused = replace(SEALED, paused=True, config_version=4)
    ready = disconnected(101.5, {"n2": 100, "n3": 100})
    memory, action = turn(sealing(), Sight(101.5, replace(paused, at=101.5), ready), POLICY)
    assert (memory.state, action.act) == (State.NOT_READY, Act.NONE)
    resumed = replace(SEALED, config_version=5)
    for now in (102.0, 103.6, 105.0, 110.0, 119.0):
        for lock in (paused, resumed, replace(SEALED, holder="walproof-guard-2", config_version=5)):
            sight = Sight(now, replace(lock, at=now), disconnected(now, {"n2": 100, "n3": 100}))
            memory, action = turn(memory, sight, POLICY)
            assert action.act is Act.NONE


@pytest.mark.parametrize(
    "change", [{"config_version": 4}, {"failover_version": 9}, {"sync_version": 21}, {"seal": None}]
)
def test_g5_another_guard_does_not_take_up_a_void_seal_either(change: dict[str, Any]) -> None:
    void = replace(SEALED, holder="walproof-guard-2", **change)
    assert why_void(void)
    memory = watching()
    for now in (103.0, 106.0, 109.0):
        memory, action = turn(memory, Sight(now, replace(void, at=now), disconnected(now, {"n2": 1, "n3": 1})), POLICY)
        assert action.act is Act.NONE


def test_g5_a_paused_cluster_is_handed_over_by_nobody_whatever_the_versions_say() -> None:
    for hands_off in ({"paused": True}, {"switchover": True}, {"synchronous": False}, {"voters": ()}):
        lock = replace(SEALED, at=101.5, **hands_off)
        _, action = turn(sealing(), Sight(101.5, lock, disconnected(101.5, {"n2": 1, "n3": 1})), POLICY)
        assert action.act is Act.NONE


def test_g5_a_seal_of_another_time_is_none() -> None:
    kept = entry("walproof_guard", {"connected": ["n2"]}, 20, 99)
    later = entry("leader", "walproof-guard-1", 21, 99)
    assert state_of({**entries(), "walproof_guard": kept, "leader": later}, 0.0).seal is None


def test_g6_patronis_own_answer_says_whether_a_member_can_lead() -> None:
    assert why_unfit({"state": "running"}) == ""
    assert why_unfit({"state": "running", "watchdog_failed": True}) == "its watchdog is required and cannot be used"
    assert why_unfit({"state": "running", "pause": True}) == "its Patroni is paused"
    nonsense: tuple[object, ...] = ({"state": "starting"}, [], "running", None)
    assert all(why_unfit(one) for one in nonsense)


def test_l2_an_odd_document_in_etcd_ends_nothing_and_counts_for_nothing() -> None:
    for odd in (
        {"tags": {"failover_priority": {"a": 1}}},
        {"tags": [1]},
        {"tags": "x"},
        {"conn_url": "postgres://[x/"},
        {"conn_url": 7},
        {"state": ["running"]},
    ):
        state = state_of(entries(members_n2=entry("members/n2", {"state": "running", **odd}, 6, 78)), 0.0)
        assert state.holder == "n1"
    for key, value in (
        ("sync", {"leader": "n1", "sync_standby": "n2,n3", "quorum": "many"}),
        ("config", {"ttl": "long", "loop_wait": [], "synchronous_mode": "quorum"}),
        ("walproof_guard", {"connected": 1}),
        ("walproof_guard_limit", {"limit_s": "x"}),
        ("failover", {"leader": "n1", "scheduled_at": "someday"}),
    ):
        assert state_of({**entries(), key: entry(key, value, 30)}, 0.0).ttl_s > 0


class Blind:
    """A lock that a thread reads; members that are asked."""

    def __init__(self, error: Exception | None = None, *, life_failed: bool = False) -> None:
        self.error, self.life_failed = error, life_failed

    def read(self) -> LockState:
        if self.error is not None:
            raise self.error
        return LOCK

    def signs(self) -> Mapping[str, MemberSigns]:
        return {}

    def failed(self) -> bool:
        return self.life_failed

    def close(self) -> None:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("blind", [Blind(TypeError("odd")), Blind(life_failed=True)])
def test_l2_a_guard_whose_thread_has_ended_ends_with_an_exit_code(blind: Blind) -> None:
    guard = Guard(blind, blind, RealClock(), POLICY, lambda _line: None)  # type: ignore[arg-type]
    try:
        with pytest.raises(MachineError, match="one of its threads ended"):
            wait_for(Wait.PROGRAM_GONE, lambda: bool(guard.turn()), RealClock())  # type: ignore[func-returns-value]
    finally:
        guard.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_l2_a_member_that_nobody_asks_any_more_is_noticed() -> None:
    addresses = {"n1": Addresses(Endpoint((("127.0.0.1", 1),), "x", "x"), "http://127.0.0.1:1", "")}

    def odd(_request: httpx2.Request) -> httpx2.Response:
        raise TypeError("odd")

    client = httpx2.Client(transport=httpx2.MockTransport(odd))
    life = PatroniSignsOfLife(lambda: addresses, client, RealClock())
    try:
        wait_for(Wait.PROGRAM_GONE, life.failed, RealClock())
    finally:
        life.close()


def _silent_since(at: float, now: float) -> dict[str, MemberSigns]:
    # A healthy leader answers its standbys, which ask after 30 s.
    waiting = tuple(Receiver(t, True, True, 100, (t - at) % 30.0) for t in (now - 0.1, now))
    return standbys(now, waiting)


def idle(now: float, cut_at: float, *, lease_age_s: float) -> Sight:
    """An idle, healthy leader that this guard alone cannot reach since `cut_at`: nothing was streamed for 20 s."""
    lock = replace(LOCK, at=now, lease_age_s=lease_age_s)
    return Sight(now, lock, {"n1": MemberSigns(cut_at, cut_at), **_silent_since(80.0, now)})


def test_l4_a_guard_cut_off_from_an_idle_healthy_leader_suspects_nobody() -> None:
    """Cut for a minute; the leader renews its lease every ten seconds."""
    memory = KNOWS
    for tenth in range(100):
        now = 90.0 + tenth / 10
        sight = idle(now, now, lease_age_s=now % 10.0)
        memory, _ = turn(memory, replace(sight, signs={**sight.signs, **_silent_since(80.0, now)}), POLICY)
    assert memory.state is State.WATCHING
    for tenth in range(600):
        now = 100.0 + tenth / 10
        memory, action = turn(memory, idle(now, 100.0, lease_age_s=(now - 100.0) % 10.0), POLICY)
        assert action.act is Act.NONE
        assert memory.state is State.WATCHING
    assert memory.suspicions == 0


def test_l4_a_lease_that_is_overdue_and_standbys_cut_off_too_are_second_witnesses() -> None:
    sight = idle(112.5, 100.0, lease_age_s=12.5)
    assert turn(watching(), sight, POLICY)[1].act is Act.SEAL
    broken = tuple(Receiver(t, False, True, 100) for t in (112.4, 112.5))
    one = {**sight.signs, "n3": replace(sight.signs["n3"], receivers=broken)}
    both = {**one, "n2": one["n3"]}
    fresh = replace(sight.lock, lease_age_s=2.0)
    assert witness(fresh, sight.signs, 112.5) == ""
    assert witness(fresh, one, 112.5) == ""  # the way of that standby may be cut, and this guard's
    assert witness(fresh, both, 112.5) == "its standbys cannot reach it"
    restarted = tuple(replace(r, streamed=False) for r in broken)
    assert witness(fresh, {**both, "n3": replace(one["n3"], receivers=restarted)}, 112.5) == ""
    late = {**both, "n3": replace(one["n3"], sql_at=111.0)}
    assert witness(fresh, late, 112.5) == ""  # the leader may still have its commits acknowledged by n3
    assert witness(replace(fresh, quorum=0), late, 112.5) == "its standbys cannot reach it"
    assert witness(fresh, {name: replace(signs, sql_at=111.0) for name, signs in both.items()}, 112.5) == ""
    assert witness(replace(fresh, quorum=0), {**both, "n3": MemberSigns()}, 112.5) == "its standbys cannot reach it"


def test_a_standby_that_answers_slowly_and_follows_keeps_its_leader() -> None:
    """One stream is cut, and the guard's way: an answer of 0.8 s ago counts for taking the lock, so for this too."""
    sight = idle(112.5, 100.0, lease_age_s=2.0)
    broken = tuple(Receiver(t, False, True, 100, named="n2") for t in (112.4, 112.5))
    signs = {**sight.signs, "n2": replace(sight.signs["n2"], receivers=broken)}
    for quorum in (0, 1):
        for ago in (0.1, 0.8):
            slow = {**signs, "n3": replace(signs["n3"], sql_at=112.5 - ago)}
            assert witness(replace(sight.lock, quorum=quorum), slow, 112.5) == "", (quorum, ago)


def test_l4_a_silent_stream_is_a_witness_once_the_standby_asked_and_got_no_answer() -> None:
    """Clients and guard may have lost their way together: then nobody writes, and the leader is well."""
    fresh = replace(LOCK, at=102.0, lease_age_s=0.5)
    for silent_s, expected in ((2.7, ""), (2.9, "its standbys cannot reach it")):
        streams = tuple(Receiver(t, True, True, 100, silent_s, asks_after_s=2.5) for t in (101.9, 102.0))
        assert witness(fresh, standbys(102.0, streams), 102.0) == expected
        never = tuple(replace(r, asks_after_s=float("inf")) for r in streams)
        assert witness(fresh, standbys(102.0, never), 102.0) == ""


def test_l5_the_time_between_takeovers_doubles_while_they_go_on() -> None:
    limits = [
        seal_of(Memory(), silent(102.0, limit_s=limit_s), POLICY).limit_s for limit_s in (0.0, 15.0, 30.0, 3000.0)
    ]
    assert limits == [15.0, 30.0, 60.0, 3600.0]
    assert seal_of(Memory(), Sight(102.0, SEALED, {}), POLICY) == KEPT
    assert seal_of(Memory(), silent(102.0), replace(POLICY, at_most_every_s=86400.0)).limit_s == 86400.0


@pytest.mark.parametrize(
    ("due", "under_way"),
    [("2026-12-24T00:00:00+00:00", False), ("2026-11-25T12:00:30+00:00", True), ("2026-11-25T11:00:00+00:00", True)],
)
def test_l5_a_switchover_scheduled_for_next_month_is_not_under_way(due: str, under_way: bool) -> None:
    noon = 1795608000.0  # 2026-11-25 12:00 UTC
    asked = {"leader": "n1", "scheduled_at": due}
    state = state_of(entries(failover=entry("failover", asked, 9)), noon)
    assert (state.switchover, state.failover_version) == (under_way, 9)
    # Where there is no leader Patroni obeys one with a candidate at once, whenever it is due.
    assert state_of(entries(failover=entry("failover", {**asked, "member": "n2"}, 9)), noon).switchover


def test_a_hand_over_whose_answer_was_lost_is_counted() -> None:
    memory, action = turn(sealing(), Sight(101.5, replace(SEALED, at=101.5), _both(101.5)), POLICY)
    assert action.act is Act.HAND_OVER
    theirs = replace(LOCK, at=101.8, holder=action.to, holder_version=30)
    memory, _ = turn(memory, Sight(101.8, theirs, _both(101.8)), POLICY)
    assert (memory.state, memory.takeovers) == (State.HANDED_OVER, 1)


def _both(now: float) -> dict[str, MemberSigns]:
    return disconnected(now, {"n2": 100, "n3": 100})


@pytest.mark.parametrize("ttl", [5, 20, 21, 30, 60])
def test_the_times_are_those_that_patroni_makes_of_the_configuration(ttl: int) -> None:
    """/config keeps what was written; Patroni of before 3.2 obeys it. A lease is then overdue within the ttl."""
    for loop_wait, retry_timeout in product((0, 1, 9, 10, 25, 60), (1, 3, 5, 10, 14, 15, 40)):
        config = {"ttl": ttl, "loop_wait": loop_wait, "retry_timeout": retry_timeout}
        keys = {"config": entry("config", config, 3), "members/n1": entry("members/n1", {"version": "4.1.5"}, 5, 77)}
        Config._validate_and_adjust_timeouts(object.__new__(Config), config)
        for version, expected in (("4.1.5", config["loop_wait"]), ("3.2", config["loop_wait"]), ("3.1.9", None)):
            keys["members/n2"] = entry("members/n2", {**MEMBER, "version": version}, 6, 78)
            state = state_of(keys, 0.0)
            assert state.ttl_s == config["ttl"]
            assert state.loop_wait_s == (max(1, loop_wait) if expected is None else expected)
            assert expected is None or state.loop_wait_s + LATE_S < state.ttl_s


@pytest.mark.parametrize(("least_s", "sealed"), [(2.0, True), (3.0, True), (4.0, False), (8.0, False)])
def test_where_etcd_grants_no_short_lease_no_guard_is_ready_and_none_seals(least_s: float, sealed: bool) -> None:
    """A guard that stood still for 7.6 s took a leader that was well again: etcd's election timeout was 5 s."""
    etcd = Recorder(entries())
    etcd.least_s = least_s
    lock = lock_on(etcd)
    states = [lock.read(), lock.read()]
    assert [a for a in etcd.asked if a[0] == "grant"] == [("grant", 2.0)]
    for seen in states:
        assert (why_not(seen, {}, 100.0, frozenset()) == seen.unsuitable) is (not sealed)
        assert sealed or seen.unsuitable.startswith(f"etcd's least lease is {least_s:g} s, 1.5 times its election")
    assert lock.seal(states[0], "g", SEAL) is sealed
    assert (etcd.done is not None) is sealed
    # The lease of the lock outlasts an intent by a ttl, whatever etcd says of an intent that has ended meanwhile.
    assert ("grant", 20.0 + least_s + 3.0) in etcd.asked or not sealed


def test_an_etcd_whose_election_timeout_was_changed_is_asked_again() -> None:
    """At its next election, and each minute: else the guard that said what to set would not be ready ever again."""
    etcd, now = Recorder(entries()), [100.0]
    lock = lock_on(etcd)
    lock._now = lambda: now[0]
    etcd.least_s = 8.0
    assert lock.read().unsuitable
    etcd.least_s, now[0] = 2.0, 130.0
    assert lock.read().unsuitable
    now[0] = 161.0
    assert not lock.read().unsuitable
    etcd.least_s, etcd.term = 8.0, etcd.term + 1
    assert lock.read().unsuitable


@pytest.mark.parametrize("odd", ["60s", "25.5", None, [], float("inf")])
def test_where_patroni_refuses_the_configuration_its_times_are_not_known(odd: object) -> None:
    """Patroni kept its loop_wait of 20 s, the guard took its default of 10 s: a healthy lease was overdue."""
    config = {"ttl": odd, "loop_wait": 20, "retry_timeout": 10, "synchronous_mode": True}
    seen = state_of(entries(config=entry("config", json.dumps(config), 3)), 100.0)
    assert "ttl in /config" in seen.unsuitable and why_not(seen, {}, 100.0, frozenset()) == seen.unsuitable
    assert not state_of(entries(config=entry("config", json.dumps({**config, "ttl": "60"}), 3)), 100.0).unsuitable


def test_an_etcd_that_no_longer_grants_short_leases_is_noticed_at_the_seal() -> None:
    etcd = Recorder(entries())
    lock = lock_on(etcd)
    seen, etcd.least_s = lock.read(), 8.0
    etcd.renew = lambda lease: False  # type: ignore[method-assign]
    assert not seen.unsuitable and not lock.seal(seen, "g", SEAL) and etcd.done is None
    assert lock.read().unsuitable
    theirs = entries(leader=entry("leader", "walproof-guard-2", 10, 99))
    etcd.keys = theirs
    assert lock.seal(state_of(theirs, 100.0), "g", SEAL)  # no intent is compared
