"""Patroni's keys as a LockState, and the transactions of a guard as etcd gets them (tests/lab/test_etcd3.py)."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.fixtures.guards import PREFIX, SEAL, Recorder, entries, entry, lock_on
from walproof.errors import TargetError
from walproof.guarding.etcd import Transaction, decoded, encoded
from walproof.guarding.leader_lock import INTENT, LIMIT, EtcdLeaderLock, Taking, handing_over, sealing, state_of
from walproof.guarding.leader_lock import SEAL as SEAL_KEY
from walproof.guarding.seal_quorum import why_not
from walproof.guarding.suspicion import overdue
from walproof.model.takeover import Candidate, Seal


def test_the_keys_say_who_leads_who_votes_and_who_may_follow() -> None:
    state = state_of(entries(), 5.0)
    assert (state.holder, state.sync_leader, state.voters, state.quorum) == ("n1", "n1", ("n2", "n3"), 1)
    assert (state.holder_version, state.sync_version, state.config_version) == (10, 11, 3)
    assert state.synchronous and not state.paused and not state.switchover and not state.sealed
    assert state.candidates["n2"] == Candidate(78, True, 1, "10.0.0.2:5432")
    assert state.candidates["n3"] == Candidate(79, True, 0, "10.0.0.2:5432", "nofailover: true")
    assert state.counted == ("n2",)
    assert set(state.candidates) == {"n1", "n2", "n3"}
    assert state.ttl_s == 20


def test_a_scheduled_switchover_is_heeded_when_it_is_soon_or_names_a_member() -> None:
    now = 1_700_000_000.0

    def asked(due: float | str, loop_wait: int = 10, **more: str) -> bool:
        at = due if isinstance(due, str) else datetime.fromtimestamp(now + due, UTC).isoformat()
        keys = entries(failover=entry("failover", {"leader": "n1", "scheduled_at": at, **more}, 21))
        return state_of({**keys, "config": entry("config", {"loop_wait": loop_wait}, 3)}, now).switchover

    assert [asked(s) for s in (-5.0, 30.0, 59.0, 61.0, 3600.0)] == [True, True, True, False, False]
    assert [asked(s, loop_wait=100) for s in (150.0, 199.0, 201.0)] == [True, True, False]
    assert asked(3600.0, member="n2") and asked("soon") and asked("0001-01-01T00:00:00")


def test_what_is_no_seal_of_this_lock_is_none() -> None:
    guarded = {"leader": entry("leader", "walproof-guard-1", 20, 99)}
    kept = json.dumps({"connected": ["n2"]})
    for other in (entry(SEAL_KEY, kept, 19, 99), entry(SEAL_KEY, "{", 20, 99), entry(SEAL_KEY, "[1]", 20, 99)):
        assert state_of({**guarded, SEAL_KEY: other}, 0.0).seal is None
    assert state_of({SEAL_KEY: entry(SEAL_KEY, kept, 20, 99)}, 0.0).seal is None
    ours = state_of({**guarded, SEAL_KEY: entry(SEAL_KEY, kept, 20, 99)}, 0.0)
    assert ours.seal == Seal(("n2",)) and ours.sealed


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
        ("config", "{"),
        ("sync", "[1]"),
        ("sync", {"leader": "n1", "sync_standby": "n2,n3", "quorum": "many"}),
        ("config", {"ttl": "long", "loop_wait": [], "synchronous_mode": "quorum"}),
        ("walproof_guard", {"connected": 1}),
        ("walproof_guard_limit", {"limit_s": "x"}),
        ("failover", {"leader": "n1", "scheduled_at": "someday"}),
    ):
        assert state_of({**entries(), key: entry(key, value, 30)}, 0.0).ttl_s > 0


def test_keys_of_no_patroni_are_refused() -> None:
    with pytest.raises(TargetError, match="no Patroni cluster"):
        lock_on(Recorder({})).read()


def read(transaction: Transaction) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """(versions compared, keys written in order with their values) in words."""

    def plain(text: str) -> str:
        return decoded(text).removeprefix(PREFIX)

    compared = {plain(c["key"]): c.get("mod_revision", f"lease {c.get('lease')}") for c in transaction.compare}
    written = []
    for one in transaction.success:
        put, delete = one.get("request_put"), one.get("request_delete_range")
        written.append((plain(put["key"]), plain(put["value"])) if put else (plain((delete or {})["key"]), "deleted"))
    return compared, written


def test_a_switchover_that_is_done_leaves_an_empty_key() -> None:
    """Patroni's manual_failover('', ''): it writes {} and never removes the key, which is there for good."""
    done = state_of(entries(failover=entry("failover", "{}", 21)), 0.0)
    assert (done.switchover, done.failover_version) == (False, 21)
    for asked in ({"leader": "n1", "member": "n2"}, {"member": "n2"}, "n1:n2"):
        assert state_of(entries(failover=entry("failover", asked, 22)), 0.0).switchover
    for transaction in (
        sealing(PREFIX, entries(), done, Taking("g", 1, Seal(()))),
        handing_over(PREFIX, done, "n2", 21),
    ):
        compared, _ = read(transaction)
        assert compared["failover"] == "21"


def test_a_seal_takes_the_lock_first_rewrites_sync_and_removes_the_old_leaders_addresses() -> None:
    transaction = sealing(PREFIX, entries(), state_of(entries(), 5.0), Taking("g", 99, SEAL, 98, 50))
    compared, written = read(transaction)
    assert compared == {"leader": "10", "sync": "11", "config": "3", "failover": "0", INTENT: "50"}
    assert written[0] == ("leader", "g")
    assert ("sync", entries()["sync"].value) in written
    assert ("members/n1", "deleted") in written
    assert json.loads(dict(written)["walproof_guard_limit"]) == {"limit_s": 30.0}
    assert ("walproof_guard_intent", "deleted") in written
    # Patroni bars a member that is missing there from its elections, and only a leader writes it.
    assert "failsafe" not in dict(written)
    kept = json.loads(dict(written)["walproof_guard"])
    assert kept == {"connected": ["n2"], "config_version": 3, "failover_version": 0, "limit_s": 30.0}
    leases = {p["request_put"]["key"]: p["request_put"].get("lease") for p in transaction.success if "request_put" in p}
    assert leases[encoded(PREFIX + "leader")] == leases[encoded(PREFIX + "walproof_guard")] == "99"
    assert leases[encoded(PREFIX + "sync")] is None


def test_the_lock_is_handed_over_under_the_lease_it_hangs_on() -> None:
    state = state_of(entries(), 5.0)
    transaction = handing_over(PREFIX, state, "n2", 21)
    compared, written = read(transaction)
    keys = {"leader": "10", "sync": "11", "config": "3", "failover": "0", "members/n2": "lease 78"}
    assert compared == {**keys, "walproof_guard_intent": "21"}
    assert written == [("leader", "n2"), ("walproof_guard", "deleted"), ("walproof_guard_intent", "deleted")]
    assert transaction.success[0]["request_put"]["lease"] == "77"


def test_what_changed_since_it_was_seen_is_not_sealed() -> None:
    seen = state_of(entries(), 100.0)
    leader, sync = entries()["leader"], entries()["sync"]
    for keys, lock_at, state in (
        (entries(), 100.0, replace(seen, switchover=True)),
        (entries(), 103.5, seen),
        ({"sync": sync}, 100.0, seen),
        ({"leader": leader}, 100.0, seen),
        (entries(leader=entry("leader", "n1", 30, 77)), 100.0, seen),
    ):
        etcd = Recorder(keys)
        assert lock_on(etcd, lock_at).seal(state, "g", SEAL) is False and etcd.done is None
    etcd = Recorder()
    assert lock_on(etcd).hand_over(replace(seen, switchover=True), "n2") is False and etcd.done is None
    assert lock_on(etcd, 102.9).seal(seen, "g", SEAL) is True


def test_a_lock_that_is_taken_over_keeps_its_lease_and_writes_no_limit() -> None:
    sealed = entries(leader=entry("leader", "walproof-guard-2", 10, 99))
    state, etcd = state_of(sealed, 100.0), Recorder(sealed)
    assert lock_on(etcd).seal(state, "g", SEAL)
    assert etcd.asked == [("prefix", "")] and etcd.done is not None
    compared, written = read(etcd.done)
    assert "walproof_guard_intent" not in compared
    assert [key for key, _ in written] == ["leader", "walproof_guard", "sync", "members/n1"]
    assert Taking("g", 1, SEAL) == Taking("g", 1, SEAL, 0, 0)


def test_a_seal_whose_lease_has_ended_hands_nothing_over() -> None:
    etcd = Recorder(entries(leader=entry("leader", "walproof-guard-1", 10, 99)))
    assert lock_on(etcd).hand_over(state_of(etcd.keys, 100.0), "n2") is False
    assert etcd.done is None and etcd.of("renew")[-1] == 99


def test_leases_last_for_what_they_must_and_are_used_again_for_the_same_holder_only() -> None:
    seen, etcd = state_of(entries(), 100.0), Recorder(granted=40.0)
    lock = lock_on(etcd)
    lock.seal(seen, "g", SEAL)
    assert [a for a in etcd.asked if a[0] != "prefix"] == [
        ("renew", 0), ("grant", 2.0), ("put", ""), ("grant", 40.0 + 2.0 + 3.0), ("grant", 60.0)
    ]  # fmt: skip
    etcd.asked.clear()
    lock.seal(seen, "g", SEAL)
    assert [what for what, _ in etcd.asked] == ["renew", "put", "prefix", "renew", "renew"]
    etcd.asked.clear()
    etcd.keys = entries(leader=entry("leader", "n1", 30, 77))
    lock.seal(replace(seen, holder_version=30), "g", SEAL)
    assert [what for what, _ in etcd.asked] == ["renew", "put", "prefix", "grant", "grant"]
    etcd = Recorder(granted=0.0)
    lock_on(etcd).seal(replace(seen, ttl_s=25.0), "g", SEAL)
    assert 30.0 in etcd.of("grant")


@pytest.mark.parametrize(("least_s", "sealed"), [(2.0, True), (3.0, True), (4.0, False), (8.0, False)])
def test_where_etcd_grants_no_short_lease_no_guard_is_ready_and_none_seals(least_s: float, sealed: bool) -> None:
    """A guard that stood still for 7.6 s took a leader that was well again: etcd's election timeout was 5 s."""
    etcd = Recorder()
    etcd.least_s = least_s
    lock = lock_on(etcd)
    states = [lock.read(), lock.read()]
    assert etcd.of("grant") == [2.0]
    for seen in states:
        assert (why_not(seen, {}, 100.0, frozenset()) == seen.unsuitable) is (not sealed)
        assert sealed or seen.unsuitable.startswith(f"etcd's least lease is {least_s:g} s, 1.5 times its election")
    assert lock.seal(states[0], "g", SEAL) is sealed
    assert (etcd.done is not None) is sealed
    # The lease of the lock outlasts an intent by a ttl, whatever etcd says of an intent that has ended meanwhile.
    assert 20.0 + least_s + 3.0 in etcd.of("grant") or not sealed


def test_an_etcd_whose_election_timeout_was_changed_is_asked_again() -> None:
    """At its next election, and each minute: else the guard that said what to set would not be ready ever again."""
    etcd, now = Recorder(), [100.0]
    lock = lock_on(etcd, lambda: now[0])
    etcd.least_s = 8.0
    assert lock.read().unsuitable
    etcd.least_s, now[0] = 2.0, 130.0
    assert lock.read().unsuitable
    now[0] = 161.0
    assert not lock.read().unsuitable
    etcd.least_s, etcd.term = 8.0, etcd.term + 1
    assert lock.read().unsuitable


def test_an_etcd_that_no_longer_grants_short_leases_is_noticed_at_the_seal() -> None:
    etcd = Recorder()
    lock = lock_on(etcd)
    seen, etcd.least_s = lock.read(), 8.0
    etcd.renew = lambda lease: False  # type: ignore[method-assign]
    assert not seen.unsuitable and not lock.seal(seen, "g", SEAL) and etcd.done is None
    assert lock.read().unsuitable
    theirs = entries(leader=entry("leader", "walproof-guard-2", 10, 99))
    etcd.keys = theirs
    assert lock.seal(state_of(theirs, 100.0), "g", SEAL)  # no intent is compared


def test_a_limit_begins_when_its_lease_was_granted_and_does_not_wander() -> None:
    etcd = Recorder()
    assert lock_on(etcd).read().limited_at == float("-inf")
    etcd.keys[LIMIT], etcd.age = entry(LIMIT, {"limit_s": 30}, 1, 98), 7.0
    lock = lock_on(etcd)
    assert lock.read().limited_at == 93.0
    etcd.age = 12.0
    assert lock.read().limited_at == 93.0
    for age in (None, -1.0):
        etcd.age = age
        assert lock_on(etcd).read().limited_at == 100.0


def test_what_etcd_does_not_say_of_a_lease_is_no_renewal() -> None:
    etcd = Recorder()
    for age in (None, 20.0 - 9223372036):
        etcd.age = age
        state = lock_on(etcd).read()
        assert state.lease_age_s is None and not state.lease_renewed
    etcd.age = -1.0  # extended by an election
    assert lock_on(etcd).read().lease_age_s == 0.0
    etcd.keys, etcd.age = entries(leader=entry("leader", "n1", 10)), 1.0
    assert lock_on(etcd).read().lease_age_s is None


def renewed_age_s(lock: EtcdLeaderLock) -> float | None:
    """The age of the lease where its holder renewed it."""
    state = lock.read()
    return state.lease_age_s if state.lease_renewed else None


def test_a_lease_that_etcds_own_election_extended_is_no_sign_of_life() -> None:
    """A new leader of etcd gives every lease its ttl and an election timeout (lessor.Promote), while terms go up."""
    etcd, now = Recorder(), [100.0]
    lock = lock_on(etcd, lambda: now[0])

    def age_at(at: float, age: float, term: int = 2) -> float | None:
        now[0], etcd.age, etcd.term = at, age, term
        return renewed_age_s(lock)

    assert age_at(100.0, 0.0, term=1) is None
    assert age_at(110.0, 0.5, term=1) == 0.5
    assert age_at(112.0, 2.5) is None  # the term of an election that is not over yet
    assert age_at(112.5, -1.0) is None  # extended: by a second beyond its ttl
    assert [age_at(112.5 + s, math.ceil(s) - 1.0) for s in (0.1, 0.7, 1.0, 1.3, 2.9, 5.0)] == [None] * 6
    assert age_at(118.0, 0.0) == 0.0
    assert age_at(119.0, 1.0) == 1.0


def test_a_lease_that_lasts_for_ever_while_etcd_elects_is_no_sign_of_life_in_the_far_future() -> None:
    """Seen on a real etcd, in one of ten thousand answers: the guard was blind until another member led."""
    etcd, now = Recorder(), [100.0]
    lock = lock_on(etcd, lambda: now[0])

    def age_at(at: float, age: float) -> float | None:
        now[0], etcd.age = at, age
        return renewed_age_s(lock)

    for_ever = 20.0 - 9223372036
    assert [age_at(100.0, 0.0), age_at(112.0, 2.0), age_at(113.0, for_ever)] == [None, 2.0, None]
    assert [age_at(113.2, -1.0), age_at(114.0, -1.0), age_at(118.0, 3.0)] == [None] * 3  # extended when that was over
    assert [age_at(120.0, 0.0), age_at(122.0, 2.0)] == [0.0, 2.0]  # renewed


def test_a_lease_that_only_etcds_election_renewed_is_overdue_as_long_after_it_as_another() -> None:
    """The leader and etcd's own leader went together: its lease was a witness no more, and the guard waited 28 s."""
    etcd, now = Recorder(), [100.0]
    lock = lock_on(etcd, lambda: now[0])
    overdue_at = []
    for tenth in range(200):
        now[0] = 100.0 + tenth / 10
        etcd.term, etcd.age = 2, math.ceil(now[0] - 101.0)
        overdue_at += [now[0]] if overdue(lock.read()) else []
    assert overdue_at[0] == pytest.approx(112.1)
