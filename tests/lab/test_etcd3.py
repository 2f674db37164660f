"""The client of etcd and a guard's transactions on a real etcd, with an old leader that had prepared a change."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.plain_pair import free_port
from walproof.errors import TargetError
from walproof.guarding.etcd import Etcd3, EtcdAccess, Transaction, compare_version, put
from walproof.guarding.leader_lock import EtcdLeaderLock
from walproof.machine.clock import RealClock
from walproof.machine.programs import program
from walproof.model.takeover import Seal
from walproof.model.waiting import Wait, wait_for

pytestmark = pytest.mark.lab
PREFIX = "/service/main/"
GUARD = "walproof-guard-1"


@contextmanager
def an_etcd(folder: Path) -> Iterator[tuple[EtcdAccess, Callable[[], None]]]:
    """How one etcd is reached, and what kills it with -9 and starts it again."""
    client, peer = free_port(), free_port()
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    argv = [str(program("etcd")), "--name=a", f"--data-dir={folder}", f"--listen-client-urls={urls[0]}"]
    argv += [f"--advertise-client-urls={urls[0]}", f"--listen-peer-urls={urls[1]}"]
    argv += [f"--initial-advertise-peer-urls={urls[1]}", f"--initial-cluster=a={urls[1]}", "--log-level=error"]
    processes: list[subprocess.Popen[bytes]] = []

    def again() -> None:
        for process in processes:
            process.kill()
            process.wait()
        processes[:] = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]

    again()
    try:
        found = EtcdAccess((f"http://127.0.0.1:{free_port()}", urls[0]), timeout_s=5.0)
        wait_for(Wait.PROGRAM_READY, lambda: _answers(found), RealClock(), pace_s=0.1)
        yield found, again
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdAccess]:
    with an_etcd(tmp_path_factory.mktemp("etcd")) as (found, _):
        yield found


def _answers(access: EtcdAccess) -> bool:
    try:
        Etcd3(access).prefix("/")
    except TargetError:
        return False
    return True


@pytest.fixture
def client(access: EtcdAccess) -> Iterator[Etcd3]:
    """Patroni's keys as of a healthy cluster; the leader's lease is the one of its member key."""
    made = Etcd3(access)
    made.call("/kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    leases = {member: made.grant(60)[0] for member in ("n1", "n2", "n3")}
    member = json.dumps({"state": "running", "conn_url": "postgres://x", "api_url": "http://x"})
    writes = [
        put(PREFIX + "config", json.dumps({"ttl": 20, "synchronous_mode": "quorum"})),
        put(PREFIX + "sync", json.dumps({"leader": "n1", "sync_standby": "n2,n3", "quorum": 1})),
        put(PREFIX + "leader", "n1", leases["n1"]),
        *(put(f"{PREFIX}members/{name}", member, lease) for name, lease in leases.items()),
    ]
    assert made.transaction(Transaction([], writes))
    yield made
    made.close()


@pytest.fixture
def lock(access: EtcdAccess) -> EtcdLeaderLock:
    return EtcdLeaderLock(access, PREFIX, time.monotonic)


def test_a_lock_is_sealed_and_handed_over(client: Etcd3, lock: EtcdLeaderLock) -> None:
    seen, began = lock.read(), time.monotonic()
    assert lock.seal(seen, GUARD, Seal(("n2", "n3")))
    sealed = lock.read()
    assert (sealed.holder, sealed.sealed) == (GUARD, True)
    assert sealed.sync_version == sealed.holder_version > seen.sync_version
    assert sorted(sealed.candidates) == ["n2", "n3"]
    assert sealed.seal == Seal(("n2", "n3"))
    RealClock().pause(2.1)
    assert lock.hand_over(sealed, "n2")
    # With all its time: a member that finds the key gone after it has read it takes it without an election.
    left, granted = client._times_s(sealed.holder_lease)
    assert left >= granted - 1
    after = lock.read()
    # Patroni moves the lock to the member's lease; whose the old leader's is by now nobody can know: it goes on.
    assert (after.holder, after.holder_lease) == ("n2", sealed.holder_lease)
    assert after.seal is None
    assert client.lease_age_s(seen.holder_lease) is not None
    assert after.limit_s == 15.0
    since = time.monotonic() - EtcdLeaderLock(client.access, PREFIX, time.monotonic).read().limited_at
    assert 2.0 <= since <= time.monotonic() - began + 1.5


def leases(client: Etcd3) -> set[str]:
    return {lease["ID"] for lease in client.call("/lease/leases", {}).get("leases", ())}


def test_seals_that_fail_leave_no_more_leases_than_one(client: Etcd3, lock: EtcdLeaderLock) -> None:
    """Refused at every turn: what was granted for one attempt is used by the next (L6)."""
    client.transaction(Transaction([], [put(PREFIX + "failover", '{"leader": "n1"}')]))
    seen, before = replace(lock.read(), failover_version=0, switchover=False), leases(client)
    for _ in range(10):
        assert not lock.seal(seen, GUARD, Seal(()))
    intents = [one for one in leases(client) - before if _granted_s(client, one) == 2]
    assert len(leases(client) - before) - len(intents) == 2


def _granted_s(client: Etcd3, lease: str) -> int:
    return int(client.call("/lease/timetolive", {"ID": lease})["grantedTTL"])


@pytest.mark.parametrize("stop_s", [0.0, 4.0])
def test_a_guard_that_stood_still_seals_nothing(
    client: Etcd3, lock: EtcdLeaderLock, stop_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would end sooner than a ttl after the seal, with the old leader perhaps alive."""
    seen, transaction = lock.read(), Etcd3.transaction

    def late(etcd: Etcd3, wanted: Transaction) -> bool:
        RealClock().pause(stop_s)
        return transaction(etcd, wanted)

    monkeypatch.setattr(Etcd3, "transaction", late)
    assert lock.seal(seen, GUARD, Seal(())) is (stop_s == 0)


def test_what_the_old_leader_prepared_before_the_seal_fails_after_it(client: Etcd3, lock: EtcdLeaderLock) -> None:
    """Patroni changes /sync only from the version it read (write_sync_state), and names only after that."""
    seen = lock.read()
    prepared = Transaction(
        [compare_version(PREFIX + "sync", seen.sync_version)],
        [put(PREFIX + "sync", json.dumps({"leader": "n1", "sync_standby": "", "quorum": 0}))],
    )
    assert lock.seal(seen, GUARD, Seal(()))
    assert not client.transaction(prepared)
    assert lock.read().voters == ("n2", "n3")


def test_a_seal_fails_when_the_old_leader_changed_sync_first(client: Etcd3, lock: EtcdLeaderLock) -> None:
    seen = lock.read()
    client.transaction(Transaction([], [put(PREFIX + "sync", json.dumps({"leader": "n1", "sync_standby": "n2"}))]))
    assert not lock.seal(seen, GUARD, Seal(()))
    assert lock.read().holder == "n1"


@pytest.mark.parametrize("key", ["config", "failover", "leader"])
def test_a_seal_fails_when_anything_it_was_decided_on_has_changed(
    client: Etcd3, lock: EtcdLeaderLock, key: str
) -> None:
    seen = lock.read()
    client.transaction(Transaction([], [put(PREFIX + key, '{"leader": "n1"}')]))
    assert not lock.seal(seen, GUARD, Seal(()))


def test_two_guards_cannot_both_seal(access: EtcdAccess, client: Etcd3, lock: EtcdLeaderLock) -> None:
    other = EtcdLeaderLock(access, PREFIX, time.monotonic)
    seen, theirs = lock.read(), other.read()
    assert lock.seal(seen, GUARD, Seal(()))
    assert not other.seal(theirs, "walproof-guard-2", Seal(()))


def test_a_guard_whose_seal_was_taken_over_hands_nothing_over(
    access: EtcdAccess, client: Etcd3, lock: EtcdLeaderLock
) -> None:
    seen = lock.read()
    assert lock.seal(seen, GUARD, Seal(("n2", "n3")))
    sealed = lock.read()
    other = EtcdLeaderLock(access, PREFIX, time.monotonic)
    theirs = other.read()
    assert theirs.seal is not None
    assert other.seal(theirs, "walproof-guard-2", theirs.seal)
    assert not lock.hand_over(sealed, "n2")
    # Guards that relieve one another again and again hold the lock no longer than one alone.
    assert other.read().holder_lease == sealed.holder_lease
    assert other.hand_over(other.read(), "n3")


def test_a_member_whose_lease_has_ended_gets_no_lock(client: Etcd3, lock: EtcdLeaderLock) -> None:
    seen = lock.read()
    assert lock.seal(seen, GUARD, Seal(("n2", "n3")))
    sealed = lock.read()
    client.call("/lease/revoke", {"ID": str(sealed.candidates["n2"].lease)})
    assert not lock.hand_over(sealed, "n2")
    assert lock.read().holder == GUARD


def test_a_seal_ends_by_itself(client: Etcd3, lock: EtcdLeaderLock) -> None:
    """Counted by etcd, after the whole time of the old leader's own lease: never shorter than its term."""
    seen = lock.read()
    assert lock.seal(seen, GUARD, Seal(()))
    sealed = lock.read()
    answer = client.call("/lease/timetolive", {"ID": str(sealed.holder_lease)})
    assert int(answer["grantedTTL"]) == 60 + 5 > seen.ttl_s == 20
    client.call("/lease/revoke", {"ID": str(sealed.holder_lease)})
    after = lock.read()
    assert (after.holder, after.seal) == ("", None)


def test_nobody_that_answers_is_one_sentence() -> None:
    lonely = Etcd3(EtcdAccess((f"http://127.0.0.1:{free_port()}",)))
    with pytest.raises(TargetError, match="etcd has no majority that answers"):
        lonely.prefix("/service/")


def test_a_place_without_a_patroni_is_named(access: EtcdAccess) -> None:
    with pytest.raises(TargetError, match="etcd holds no Patroni cluster at /service/other/"):
        EtcdLeaderLock(access, "/service/other/", time.monotonic).read()


def test_no_lease_seems_renewed_because_etcd_elected_a_leader(tmp_path: Path) -> None:
    """For a second or two after an election every lease has more than its ttl left: nobody renewed this one."""
    with an_etcd(tmp_path / "etcd") as (access, again):
        client, clock = Etcd3(access), RealClock()
        lease, _ = client.grant(20)
        client.call("/kv/put", put(PREFIX + "config", "{}")["request_put"])
        client.call("/kv/put", put(PREFIX + "leader", "n1", lease)["request_put"])
        lock = EtcdLeaderLock(access, PREFIX, clock.now)
        lock.read()
        again()
        wait_for(Wait.PROGRAM_READY, lambda: _answers(access), clock, pace_s=0.02)
        end, seen = clock.now() + 4.0, []
        while clock.now() < end:
            state = lock.read()
            seen.append(state.lease_renewed)
            clock.pause(0.1)
        assert len(seen) > 5
        assert not any(seen)
        client.renew(lease)
        wait_for(Wait.PROGRAM_READY, lambda: lock.read().lease_renewed, clock)
