"""What a guard does to etcd and must not: leases of others, leases that leak, its leader moved, tokens that are old."""

import json
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from tests.fixtures.guards import NAME, Recorder, entries, entry, lock_on
from walproof.errors import TargetError
from walproof.guarding.etcd import MOVED, Entry, Etcd3, EtcdAccess, EtcdLeader, Order, Transaction
from walproof.guarding.leader_lock import state_of
from walproof.model.takeover import Seal


def answered(*texts: tuple[int, str]) -> tuple[Etcd3, list[str]]:
    """A client of an etcd that gives these answers to everything but a login; what was asked."""
    asked, left = [], list(texts)

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        if request.url.path.endswith("/authenticate"):
            return httpx2.Response(200, text=json.dumps({"token": f"t{len(asked)}"}))
        status, text = left.pop(0)
        return httpx2.Response(status, text=text)

    etcd = Etcd3(EtcdAccess(("http://127.0.0.1:1",), "guard", "secret"))
    etcd._client = httpx2.Client(transport=httpx2.MockTransport(answer))
    return etcd, asked


@pytest.mark.parametrize(
    "refusal",
    [
        (401, '{"error": "etcdserver: invalid auth token", "code": 16}'),
        (400, '{"error": "etcdserver: revision of auth store is old", "code": 3}'),
    ],
)
def test_l3_a_token_that_etcd_takes_for_old_is_renewed_at_once(refusal: tuple[int, str]) -> None:
    etcd, asked = answered(refusal, (200, '{"header": {"raft_term": "7"}, "kvs": []}'))
    assert etcd.prefix("/service/") == {}
    assert asked == ["/v3/auth/authenticate", "/v3/kv/range"] * 2


class FakeEtcd:
    """etcd's members, its leader's, and what moves it."""

    def __init__(self, **changes: Any) -> None:
        self.moved: dict[str, Entry] = {}
        self.transferred: list[str] = []
        self.order = Order(("http://10.0.0.1:2379", "http://10.0.0.2:2379"))
        self.own = {"leader": "1", "raftIndex": "5000", **changes}

    def call(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        if method == "/cluster/member/list":
            urls = {n: [f"http://10.0.0.{n}:2379"] for n in (1, 2)}
            return {"members": [{"ID": str(n), "name": f"e{n}", "clientURLs": url} for n, url in urls.items()]}
        if method == "/maintenance/transfer-leadership":
            self.transferred.append(fields["targetID"])
            return {}
        return {"leader": "1", "raftIndex": "5000"}

    def prefix(self, _prefix: str) -> dict[str, Entry]:
        return self.moved

    def grant(self, _seconds: float) -> tuple[int, float]:
        return 5, 600.0

    def transaction(self, _once: Transaction) -> bool:
        self.moved = {"": Entry(MOVED, "", 1, 5)}
        return True


class FakeMember(FakeEtcd):
    """One member asked alone."""

    def call(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        return self.own

    def close(self) -> None:
        pass


def test_l1_etcds_leader_is_moved_at_most_once_in_ten_minutes() -> None:
    """Each election renews every lease: three guards moving it each second kept a dead leader's for 47 s."""
    etcd = FakeEtcd()
    guards = [EtcdLeader(etcd, lambda _url: FakeMember()) for _ in range(3)]  # type: ignore[arg-type, return-value]
    assert [guard.leave("10.0.0.1") for guard in guards] == ["e2", "", ""]
    assert guards[0].leave("10.0.0.2") == ""
    assert etcd.transferred == ["2"]


@pytest.mark.parametrize("sick", [{"errors": ["NOSPACE"]}, {"isLearner": True}, {"leader": "2"}, {"raftIndex": "10"}])
def test_l1_etcds_leader_is_moved_to_a_healthy_member_only(sick: dict[str, Any]) -> None:
    etcd = FakeEtcd()
    assert EtcdLeader(etcd, lambda _url: FakeMember(**sick)).leave("10.0.0.1") == ""  # type: ignore[arg-type, return-value]
    assert (etcd.transferred, etcd.moved) == ([], {})


@pytest.mark.parametrize("answer", [False, TargetError("etcd did not say whether it was done", "")])
def test_l6_seals_that_fail_use_the_same_leases_again(answer: bool | Exception) -> None:
    """That of the lock is longer than the old leader's own, 60 s here, whatever the configuration says."""
    etcd = Recorder(granted=60.0, answer=answer)
    lock = lock_on(etcd)
    for _ in range(20):
        with suppress(TargetError):
            assert not lock.seal(state_of(entries(), 100.0), NAME, Seal(()))
    assert etcd.of("grant") == [2.0, 65.0, 30.0]


def test_g3_no_lease_of_another_is_ended_or_renewed() -> None:
    """A guard frozen for longer than the ttl would end that of whoever leads by then: Patroni keeps one for life."""
    assert not hasattr(Etcd3, "revoke")
    etcd = Recorder(granted=60.0, answer=TargetError("etcd did not say whether it was done", ""))
    lock = lock_on(etcd)
    with pytest.raises(TargetError):
        lock.seal(state_of(entries(), 100.0), NAME, Seal(()))
    intent = etcd.asked.index(("grant", 2.0)) + 501
    lease = etcd.asked.index(("grant", 65.0)) + 501
    # That seal was done, another guard went on with it, and n2 leads on its lease: it is not a spare one any more.
    etcd.keys = entries(leader=entry("leader", "n2", 30, lease))
    etcd.asked.clear()
    with pytest.raises(TargetError):
        lock.seal(state_of(etcd.keys, 100.0), NAME, Seal(()))
    assert etcd.of("renew") == [intent]
    assert etcd.of("grant") == [25.0, 30.0]


def test_a_guard_that_stood_still_since_its_reading_seals_nothing() -> None:
    etcd = Recorder()
    assert not lock_on(etcd, 120.0).seal(state_of(entries(), 100.0), NAME, Seal(()))
    assert etcd.of("grant") == [2.0]


@pytest.mark.parametrize(("error", "tried"), [(httpx2.ReadTimeout("late"), 1), (httpx2.ConnectError("refused"), 2)])
def test_a_transaction_is_not_sent_again_where_it_may_have_been_done(error: Exception, tried: int) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        raise error

    etcd = Etcd3(EtcdAccess(("http://127.0.0.1:1", "http://127.0.0.1:2")))
    etcd._client = httpx2.Client(transport=httpx2.MockTransport(answer))
    with pytest.raises(TargetError):
        etcd.transaction(Transaction([], []))
    assert len(asked) == tried


def test_the_password_goes_to_no_etcd_that_another_named() -> None:
    """A member list is what one etcd says: its client URLs are asked only where the user named them too."""
    etcd = FakeEtcd()
    etcd.order = Order(("http://10.0.0.1:2379",))
    asked: list[str] = []
    leader = EtcdLeader(etcd, lambda url: asked.append(url) or FakeMember())  # type: ignore[arg-type, func-returns-value, return-value]
    assert leader.leave("10.0.0.1") == ""
    assert asked == []


def test_an_etcd_that_fails_says_nothing_of_a_transaction() -> None:
    """Its outcome is not known, and no other member is sent the transaction too."""
    etcd, _ = answered((503, '{"error": "etcdserver: request timed out"}'))
    etcd.order.urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    with pytest.raises(TargetError, match="did not say whether it was done"):
        etcd.transaction(Transaction([], []))
