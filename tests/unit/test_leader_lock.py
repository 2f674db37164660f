"""Patroni's keys as a LockState, and the transactions of a guard as etcd gets them (tests/lab/test_etcd3.py)."""

import base64
import json
import math

import pytest

from walproof.guarding.suspicion import overdue
from walproof.model.takeover import Candidate, Seal
from walproof.patroni.etcd3 import Entry, EtcdAccess, Transaction, encoded
from walproof.patroni.leader_lock import EtcdLeaderLock, Taking, handing_over, sealing, state_of

PREFIX = "/service/main/"
SEAL = Seal(("n2",), config_version=3, limit_s=30.0)
MEMBER = {"conn_url": "postgres://10.0.0.2/x", "api_url": "http://10.0.0.2:8008/patroni", "state": "running"}


def entry(key: str, value: object, version: int, lease: int = 0) -> Entry:
    return Entry(PREFIX + key, value if isinstance(value, str) else json.dumps(value), version, lease)


def entries(**more: Entry) -> dict[str, Entry]:
    found = {
        "config": entry("config", {"ttl": 20, "synchronous_mode": "quorum"}, 3),
        "leader": entry("leader", "n1", 10, 77),
        "sync": entry("sync", {"leader": "n1", "sync_standby": "n2,n3", "quorum": 1}, 11),
        "failsafe": entry("failsafe", {"n1": "http://1", "n2": "http://2"}, 12),
        "members/n1": entry("members/n1", MEMBER, 5, 77),
        "members/n2": entry("members/n2", MEMBER, 6, 78),
        "members/n3": entry("members/n3", {**MEMBER, "tags": {"nofailover": True}}, 7, 79),
    }
    return {**found, **{key.replace("_", "/", 1): value for key, value in more.items()}}


def read(transaction: Transaction) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """(versions compared, keys written in order with their values) in words."""

    def plain(text: str) -> str:
        return base64.b64decode(text).decode().removeprefix(PREFIX)

    compared = {plain(c["key"]): c.get("mod_revision", f"lease {c.get('lease')}") for c in transaction.compare}
    written = []
    for one in transaction.success:
        put, delete = one.get("request_put"), one.get("request_delete_range")
        written.append((plain(put["key"]), plain(put["value"])) if put else (plain((delete or {})["key"]), "deleted"))
    return compared, written


def test_the_keys_say_who_leads_who_votes_and_who_may_follow() -> None:
    state = state_of(entries(), 5.0)
    assert (state.holder, state.sync_leader, state.voters, state.quorum) == ("n1", "n1", ("n2", "n3"), 1)
    assert (state.holder_version, state.sync_version, state.config_version) == (10, 11, 3)
    assert state.synchronous and not state.paused and not state.switchover and not state.sealed
    assert state.candidates["n2"] == Candidate(78, True, 1, "10.0.0.2:5432")
    assert state.candidates["n3"] == Candidate(79, True, 1, "10.0.0.2:5432", "nofailover: True")
    assert state.counted == ("n2",)
    assert state.ttl_s == 20


def test_a_switchover_that_is_done_leaves_an_empty_key() -> None:
    """Patroni's manual_failover('', ''): it writes {} and never removes the key, which is there for good."""
    done = state_of(entries(failover=entry("failover", "{}", 21)), 0.0)
    assert (done.switchover, done.failover_version) == (False, 21)
    for asked in ({"leader": "n1", "member": "n2"}, {"member": "n2"}, "n1:n2"):
        assert state_of(entries(failover=entry("failover", asked, 22)), 0.0).switchover
    for transaction in (
        sealing(PREFIX, entries(), done, Taking("g", 1, Seal(()))),
        handing_over(PREFIX, done, "n2"),
    ):
        compared, _ = read(transaction)
        assert compared["failover"] == "21"


def test_keys_that_hold_nonsense_are_no_synchronous_cluster() -> None:
    state = state_of({"config": entry("config", "{", 1), "sync": entry("sync", "[1]", 2)}, 0.0)
    assert not state.synchronous
    assert state.voters == ()


def test_a_seal_compares_everything_it_was_decided_on() -> None:
    seen = state_of(entries(), 5.0)
    compared, _ = read(sealing(PREFIX, entries(), seen, Taking("g", 99, SEAL, 98, 50)))
    kept = {"leader": "10", "sync": "11", "config": "3", "failover": "0"}
    assert compared == {**kept, "walproof_guard_intent": "50"}


def test_a_seal_takes_the_lock_first_rewrites_sync_and_removes_the_old_leaders_addresses() -> None:
    seen = state_of(entries(), 5.0)
    transaction = sealing(PREFIX, entries(), seen, Taking("g", 99, SEAL, 98, 50))
    _, written = read(transaction)
    assert written[0] == ("leader", "g")
    assert ("sync", entries()["sync"].value) in written
    assert ("members/n1", "deleted") in written
    # Patroni bars a member that is missing there from its elections, and only a leader writes it.
    assert "failsafe" not in dict(written)
    kept = json.loads(dict(written)["walproof_guard"])
    assert kept == {"connected": ["n2"], "config_version": 3, "failover_version": 0, "limit_s": 30.0}
    leases = {p["request_put"]["key"]: p["request_put"].get("lease") for p in transaction.success if "request_put" in p}
    assert leases[encoded(PREFIX + "leader")] == leases[encoded(PREFIX + "walproof_guard")] == "99"
    assert leases[encoded(PREFIX + "sync")] is None


def test_a_seal_is_read_back_by_whoever_goes_on_with_it() -> None:
    kept = entry("walproof_guard", {"connected": ["n2", "n3"]}, 20, 99)
    state = state_of({**entries(), "walproof_guard": kept, "leader": entry("leader", "walproof-guard-1", 20, 99)}, 0.0)
    assert state.seal == Seal(("n2", "n3"))
    assert state.sealed


def test_the_lock_is_handed_over_under_the_lease_it_hangs_on() -> None:
    state = state_of(entries(), 5.0)
    transaction = handing_over(PREFIX, state, "n2")
    compared, written = read(transaction)
    assert compared == {"leader": "10", "sync": "11", "config": "3", "failover": "0", "members/n2": "lease 78"}
    assert written == [("leader", "n2"), ("walproof_guard", "deleted")]
    assert transaction.success[0]["request_put"]["lease"] == "77"


class StubEtcd:
    """Answers of etcd whose own leader, term and leases are set by hand."""

    term, age = 1, 0.0

    def prefix(self, _prefix: str) -> dict[str, Entry]:
        return entries()

    def lease_age_s(self, _lease: int) -> float:
        return self.age


def test_a_lease_that_etcds_own_election_extended_is_no_sign_of_life() -> None:
    """A new leader of etcd gives every lease its ttl and an election timeout (lessor.Promote), while terms go up."""
    etcd, now = StubEtcd(), [100.0]
    lock = EtcdLeaderLock(EtcdAccess(("http://127.0.0.1:1",)), PREFIX, lambda: now[0])
    lock._reader = etcd  # type: ignore[assignment]

    def age_at(at: float, age: float, term: int = 2) -> float | None:
        now[0], etcd.age, etcd.term = at, age, term
        state = lock.read()
        return state.lease_age_s if state.lease_renewed else None

    assert age_at(100.0, 0.0, term=1) is None
    assert age_at(110.0, 0.5, term=1) == 0.5
    assert age_at(112.0, 2.5) is None  # the term of an election that is not over yet
    assert age_at(112.5, -1.0) is None  # extended: by a second beyond its ttl
    assert [age_at(112.5 + s, math.ceil(s) - 1.0) for s in (0.1, 0.7, 1.0, 1.3, 2.9, 5.0)] == [None] * 6
    assert age_at(118.0, 0.0) == 0.0
    assert age_at(119.0, 1.0) == 1.0


def test_a_lease_that_lasts_for_ever_while_etcd_elects_is_no_sign_of_life_in_the_far_future() -> None:
    """Seen on a real etcd, in one of ten thousand answers: the guard was blind until another member led."""
    etcd, now = StubEtcd(), [100.0]
    lock = EtcdLeaderLock(EtcdAccess(("http://127.0.0.1:1",)), PREFIX, lambda: now[0])
    lock._reader = etcd  # type: ignore[assignment]

    def age_at(at: float, age: float) -> float | None:
        now[0], etcd.age = at, age
        state = lock.read()
        return state.lease_age_s if state.lease_renewed else None

    for_ever = 20.0 - 9223372036
    assert [age_at(100.0, 0.0), age_at(112.0, 2.0), age_at(113.0, for_ever)] == [None, 2.0, None]
    assert [age_at(113.2, -1.0), age_at(114.0, -1.0), age_at(118.0, 3.0)] == [None] * 3  # extended when that was over
    assert [age_at(120.0, 0.0), age_at(122.0, 2.0)] == [0.0, 2.0]  # renewed


def test_a_lease_that_only_etcds_election_renewed_is_overdue_as_long_after_it_as_another() -> None:
    """The leader and etcd's own leader went together: its lease was a witness no more, and the guard waited 28 s."""
    etcd, now = StubEtcd(), [100.0]
    lock = EtcdLeaderLock(EtcdAccess(("http://127.0.0.1:1",)), PREFIX, lambda: now[0])
    lock._reader = etcd  # type: ignore[assignment]
    overdue_at = []
    for tenth in range(200):
        now[0] = 100.0 + tenth / 10
        etcd.term, etcd.age = 2, math.ceil(now[0] - 101.0)
        overdue_at += [now[0]] if overdue(lock.read()) else []
    assert overdue_at[0] == pytest.approx(112.1)
