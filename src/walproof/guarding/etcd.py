"""etcd over its JSON gateway: reads, transactions, leases, where its own leader is. Knows nothing of Patroni's keys.

Source: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ (/v3: etcd 3.4 and later). Without etcd's leader every
request waits for an election, Patroni's on the standbys too: one to three seconds; so it is moved off the machine of
Patroni's leader. But each election renews every lease in that etcd (lessor.Promote), those of dead leaders of other
clusters too: with consent of its own, and at most once in ten minutes for all guards."""

import base64
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx2

from walproof.errors import TargetError
from walproof.machine.untrusted import from_json
from walproof.patroni.private_http import private_client

Fields = dict[str, Any]
_TOKEN_IS_OLD = ("invalid auth token", "revision of auth store is old")
"""What etcd answers when the token has ended, and when users or rights were changed since it was given."""

_NOT_KNOWN = "etcd did not say whether it was done ({})"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How to reach etcd: URLs of its members, user and password, TLS files ("" the system's); seconds for an answer."""

    urls: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    timeout_s: float = 0.4


@dataclass(frozen=True, slots=True)
class Entry:
    """One key: its value, the revision that wrote it last, and the lease it hangs on (0: none)."""

    key: str
    value: str
    version: int
    lease: int = 0


def encoded(text: str) -> str:
    """Base64, as the gateway wants keys and values.

    >>> encoded("a")
    'YQ=='
    """
    return base64.b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """The text of a key or value of the gateway's; what is no UTF-8 is replaced."""
    return base64.b64decode(text).decode("utf-8", "replace")


def prefix_end(prefix: str) -> str:
    """The end of the range of all keys with that prefix: its last byte plus one, in base64.

    >>> base64.b64decode(prefix_end("/a/"))
    b'/a0'
    """
    last = prefix.encode()
    return base64.b64encode(last[:-1] + bytes([last[-1] + 1])).decode()


def compare_version(key: str, version: int) -> Fields:
    """That a key was last written by that revision; 0: that there is no such key."""
    return {"key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}


def compare_lease(key: str, lease: int) -> Fields:
    """That a key hangs on that lease."""
    return {"key": encoded(key), "target": "LEASE", "result": "EQUAL", "lease": str(lease)}


@dataclass(frozen=True, slots=True)
class Transaction:
    """All of `success` is done if all of `compare` is so; else nothing."""

    compare: list[Fields]
    success: list[Fields]


def put(key: str, value: str, lease: int = 0) -> Fields:
    """Write a key, on a lease where one is given."""
    return {"request_put": {"key": encoded(key), "value": encoded(value), **({"lease": str(lease)} if lease else {})}}


def delete(key: str) -> Fields:
    """Remove a key."""
    return {"request_delete_range": {"key": encoded(key)}}


@dataclass(slots=True)
class Order:
    """URLs of etcd's members, the one that answered last first; several clients may share it."""

    urls: tuple[str, ...]

    def answered(self, url: str) -> None:
        """Ask that one first from now on."""
        if self.urls[0] != url:
            self.urls = (url, *(other for other in self.urls if other != url))

    def silent(self, url: str) -> None:
        """Ask that one last from now on."""
        self.urls = (*(other for other in self.urls if other != url), url)


class Etcd3:
    """A client of one etcd cluster. The member that answered last is asked first. Not for several threads at once."""

    def __init__(self, access: EtcdAccess, order: Order | None = None) -> None:
        self.access = access
        self.order = order or Order(tuple(url.rstrip("/") for url in access.urls))
        self._token = ""
        self.term = 0
        """The term of etcd's own leader at the last answer: it changes with every election."""
        self._client = private_client(
            "etcd3",
            ca_file=access.ca_file,
            cert_file=access.cert_file,
            key_file=access.key_file,
            timeout_s=access.timeout_s,
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def call(self, method: str, fields: Fields, *, once: bool = False) -> Fields:
        """One request to the first member that answers it; TargetError when none does or it is refused.

        once: never sent again where the first member may have done it: then a TargetError says that this is not known.
        """
        error = ""
        for url in self.order.urls:
            try:
                answer = self._post(url, method, fields)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as wrong:
                error = f"{url}: {wrong or type(wrong).__name__}"
                self.order.silent(url)
                if once and not isinstance(wrong, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise TargetError(_NOT_KNOWN.format(error), "it is read again") from None
                continue
            reply = _object(answer)
            if answer.status_code == 200 and reply is not None:
                self.order.answered(url)
                self.term = int((reply.get("header") or {}).get("raft_term", self.term))
                return reply
            error = f"{url}: {_reason(reply, answer.status_code)}"
            if answer.status_code in (401, 403) or "permission denied" in error or "user name is empty" in error:
                raise TargetError(f"etcd refuses: {error}", "username and password_file of [etcd3] in the target file")
            if once:
                raise TargetError(_NOT_KNOWN.format(error), "it is read again")
        raise TargetError(f"etcd has no majority that answers ({error})", "etcdctl endpoint status --cluster")

    def _post(self, url: str, method: str, fields: Fields) -> httpx2.Response:
        answer = self._post_with_token(url, method, fields)
        if self._token and any(words in answer.text for words in _TOKEN_IS_OLD):
            self._token = ""
            answer = self._post_with_token(url, method, fields)
        return answer

    def _post_with_token(self, url: str, method: str, fields: Fields) -> httpx2.Response:
        if self.access.user and not self._token:
            login = {"name": self.access.user, "password": self.access.password}
            answer = self._client.post(f"{url}/v3/auth/authenticate", json=login)
            self._token = str((_object(answer) or {}).get("token", "")) if answer.status_code == 200 else ""
        headers = {"Authorization": self._token} if self._token else {}
        return self._client.post(f"{url}/v3{method}", json=fields, headers=headers)

    def prefix(self, prefix: str) -> dict[str, Entry]:
        """Every key with that prefix, by the rest of its name, as a majority agrees now."""
        answer = self.call("/kv/range", {"key": encoded(prefix), "range_end": prefix_end(prefix)})
        entries = (_entry(kv) for kv in answer.get("kvs", ()))
        return {e.key.removeprefix(prefix): e for e in entries}

    def grant(self, seconds: float) -> tuple[int, float]:
        """A new lease of so many whole seconds, and its whole time, which may be more."""
        answer = self.call("/lease/grant", {"TTL": str(max(1, round(seconds)))})
        return int(answer["ID"]), float(answer["TTL"])

    def lease_age_s(self, lease: int) -> float | None:
        """Seconds since a lease was granted or renewed, to the whole second; None when it has ended.

        Negative where etcd has extended it beyond its time, for ever while it has no leader that is promoted.
        """
        left, granted = self._times_s(lease)
        return None if left < 0 else float(granted - left)

    def granted_s(self, lease: int) -> float:
        """The whole time of a lease, which may be more than was asked for; 0 where there is none."""
        return float(self._times_s(lease)[1])

    def _times_s(self, lease: int) -> tuple[int, int]:
        """What is left of a lease, -1 where it has ended, and its whole time."""
        answer = self.call("/lease/timetolive", {"ID": str(lease)})
        return int(answer.get("TTL", -1)), int(answer.get("grantedTTL", 0))

    def renew(self, lease: int) -> bool:
        """Renew a lease of our own for its whole time from now; whether it still was one."""
        answer = self.call("/lease/keepalive", {"ID": str(lease)})
        return int((answer.get("result") or {}).get("TTL", 0)) > 0

    def put(self, key: str, value: str, lease: int) -> int:
        """Write a key on a lease; the revision that wrote it."""
        answer = self.call("/kv/put", put(key, value, lease)["request_put"])
        return int(answer["header"]["revision"])

    def transaction(self, transaction: Transaction) -> bool:
        """Whether it was done; TargetError where that is not known."""
        answer = self.call("/kv/txn", {"compare": transaction.compare, "success": transaction.success}, once=True)
        return bool(answer.get("succeeded"))


def _entry(kv: Mapping[str, Any]) -> Entry:
    value = decoded(str(kv.get("value", "")))
    return Entry(decoded(str(kv["key"])), value, int(kv["mod_revision"]), int(kv.get("lease", 0)))


def _object(answer: httpx2.Response) -> Fields | None:
    try:
        fields = from_json(answer.content)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _reason(reply: Fields | None, status: int) -> str:
    words = (reply or {}).get("message") or (reply or {}).get("error")
    return str(words or f"HTTP {status}, and not etcd's JSON gateway")


MOVED = "/walproof_etcd_leader_moved"
"""A key of the whole etcd that is there for ten minutes after a move."""
_PAUSE_S = 600.0
_BEHIND = 1000
"""How many entries of etcd's log a member may lack to become its leader."""


class EtcdLeader:
    """The leader of one etcd cluster."""

    def __init__(self, etcd: Etcd3, client: Callable[[str], Etcd3] | None = None) -> None:
        """`etcd`: a client that no other thread uses; client: one that asks that URL alone."""
        self._etcd = etcd
        self._client = client or (lambda url: Etcd3(replace(etcd.access, urls=(url,))))
        self._turns = count()

    def leave(self, host: str) -> str:
        """Move it off that host to another, healthy member; the name of that one, "" where there is nothing to do.

        TargetError where etcd does not answer, refuses, or the member asked does not take it.
        """
        members = {int(m["ID"]): m for m in self._etcd.call("/cluster/member/list", {}).get("members", ())}
        status = self._etcd.call("/maintenance/status", {})
        leader = int(status.get("leader", 0))
        if leader not in members or host not in _hosts(members[leader]) or self._etcd.prefix(MOVED):
            return ""
        others = [n for n, m in sorted(members.items()) if host not in _hosts(m) and self._healthy(m, status)]
        if not others or not self._first():
            return ""
        to = others[next(self._turns) % len(others)]
        # Only the leader does it; the others answer that they are not.
        self._etcd.call("/maintenance/transfer-leadership", {"targetID": str(to)})
        return str(members[to].get("name", to))

    def _first(self) -> bool:
        """Whether no guard has moved it in the last ten minutes; no other will in the next."""
        once = Transaction([compare_version(MOVED, 0)], [put(MOVED, "", self._etcd.grant(_PAUSE_S)[0])])
        return self._etcd.transaction(once)

    def _healthy(self, member: Fields, status: Fields) -> bool:
        """Whether that member itself answers, votes, has no alarm, knows the same leader and nearly its whole log.

        Only addresses that the user named are asked: they get the password.
        """
        for url in {str(one).rstrip("/") for one in member.get("clientURLs", ())} & set(self._etcd.order.urls):
            try:
                with closing(self._client(url)) as etcd:
                    own = etcd.call("/maintenance/status", {})
            except TargetError:
                continue
            behind = int(status.get("raftIndex", 0)) - int(own.get("raftIndex", 0))
            well = not own.get("errors") and not own.get("isLearner")
            return well and own.get("leader") == status.get("leader") and behind < _BEHIND
        return False


def _hosts(member: Fields) -> set[str | None]:
    return {urlsplit(str(url)).hostname for url in member.get("clientURLs", ())}
