"""A simulated etcd: revisions, leases, elections that renew them, transactions, watches; and a client for the guard.

The guard's client is the shipped one (walproof.patroni.etcd3.Etcd3) with this in the place of HTTP.
"""

import base64
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2

from tests.guard_simulation.world import Process, World
from walproof.patroni.etcd3 import Etcd3, EtcdAccess, Fields, Order

PREFIX = "/service/sim/"
_ELECTION_TIMEOUT_S = 1.0


class LeaseNotFound(Exception):
    """etcd: requested lease not found."""


@dataclass(slots=True)
class Kv:
    """A key's value, the revisions that made it and wrote it last, its lease (0: none)."""

    value: str
    created: int
    version: int
    lease: int
    fields: Fields | None = None
    """As the gateway writes it, once somebody has asked."""


@dataclass(slots=True)
class Lease:
    """A lease and the keys on it, in the order they came."""

    ttl: float
    ends: float
    keys: list[str] = field(default_factory=list)


Event = tuple[float, int, str, Kv | None]
"""When it arrives, the revision, the key, its value or None when it is gone."""


class View:
    """A Patroni's cache of the keys (KVCache in patroni/dcs/etcd3.py): events arrive late, one by one, in order."""

    def __init__(self, etcd: "SimulatedEtcd", process: Process, changed: Callable[[str], None]) -> None:
        self.etcd, self.process, self._changed = etcd, process, changed
        self._random = etcd.world.random(f"watch of {process.name}")
        self._coming: deque[Event] = deque()
        self._last = 0.0
        self.keys: dict[str, Kv] = {}
        self.slow_s = 0.0
        """How much longer every event takes."""
        self.broken = False
        """A request failed, so the client asks another member of etcd and watches anew (set_base_uri)."""
        self.rebuild()
        etcd.views.append(self)

    def rebuild(self) -> None:
        """Read everything anew."""
        self.keys = dict(self.etcd.keys)
        self._coming.clear()
        self.broken = False

    def send(self, revision: int, key: str, kv: Kv | None) -> None:
        """An event sets out."""
        world, chance = self.etcd.world, self._random.random()
        if self._coming and self._coming[-1][1] == revision:
            # One message brings a transaction; its events are applied one by one.
            self._last += 0.0004 * chance
        else:
            self._last = max(self._last, world.now + self.slow_s) + 0.001 + 0.02 * chance**3
        self._coming.append((self._last, revision, key, kv))
        if key in ("leader", "config"):
            woken = self._last - world.now + 0.002 * self._random.random()
            world.after(woken, lambda: self._changed(key), self.process)

    def own(self, key: str, kv: Kv | None, revision: int) -> None:
        """A write of one's own is known at once."""
        self._apply(revision, key, kv)

    def now(self) -> dict[str, Kv]:
        """The keys as they are known now; while etcd is cut off nothing new arrives."""
        etcd = self.etcd
        if self._coming and etcd.reached_by(self.process.host):
            while self._coming and self._coming[0][0] <= etcd.world.now:
                _, revision, key, kv = self._coming.popleft()
                self._apply(revision, key, kv)
        return self.keys

    def _apply(self, revision: int, key: str, kv: Kv | None) -> None:
        known = self.keys.get(key)
        if known is not None and known.version >= revision:
            return
        if kv is not None:
            self.keys[key] = kv
        else:
            self.keys.pop(key, None)


class SimulatedEtcd:
    """One etcd of three members, on the hosts that are named. It acts in one order, as a majority agrees."""

    def __init__(self, world: World, hosts: tuple[str, ...]) -> None:
        self.world, self.hosts = world, hosts
        self.keys: dict[str, Kv] = {}
        self.leases: dict[int, Lease] = {}
        self.revision = 1
        self.term = 2
        self.leader = 0
        self.down: list[str] = []
        """Hosts whose member is gone."""
        self.stalled_until = 0.0
        self.views: list[View] = []
        self.written: list[Callable[[str, Kv | None, Kv | None, str], None]] = []
        """Called with (key, before, after, by) of each write."""
        self.revoked: list[Callable[[int, Lease, str], None]] = []
        """Called before a lease is revoked with (number, lease, by)."""
        self.answered: list[Callable[[str, str, bool], None]] = []
        self._leases = 1000

    # What members and clients of etcd can reach.

    def host_up(self, host: str) -> bool:
        """Whether the member there answers: it lives, and reaches another one."""
        if host in self.down:
            return False
        return any(self.world.reaches(host, other) for other in self.hosts if other != host and other not in self.down)

    def reached_by(self, host: str) -> bool:
        """Whether a client there reaches a member that answers."""
        return any(self.host_up(m) and self.world.reaches(host, m) for m in self.hosts)

    @property
    def stalled(self) -> bool:
        """Whether there is no leader now."""
        return self.world.now < self.stalled_until

    def elect(self, without_s: float) -> None:
        """Elect another leader: nothing is written meanwhile, then every lease is renewed and more (lessor.Promote)."""
        self.term += 1
        self.leader = (self.leader + 1) % len(self.hosts)
        if self.hosts[self.leader] in self.down:
            self.leader = (self.leader + 1) % len(self.hosts)
        self.stalled_until = max(self.stalled_until, self.world.now + without_s)
        self.world.tell("etcd", f"elects another leader; nothing is written for {without_s:.2f} s")
        self.world.after(without_s, self._renew_all)

    def _renew_all(self) -> None:
        for lease in self.leases.values():
            lease.ends = self.world.now + lease.ttl + _ELECTION_TIMEOUT_S

    # Leases.

    def grant(self, ttl: float) -> int:
        """A new lease."""
        self._leases += 1
        number = self._leases
        self.leases[number] = Lease(ttl, self.world.now + ttl)
        self.world.after(ttl, lambda: self._end(number))
        return number

    def _end(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is None:
            return
        ends = max(lease.ends, self.stalled_until + 0.1)
        if ends > self.world.now + 1e-6:
            self.world.after(ends - self.world.now, lambda: self._end(number))
            return
        self._drop(number, "etcd")

    def _drop(self, number: int, by: str) -> None:
        lease = self.leases.pop(number)
        self.revision += 1
        for key in list(lease.keys):
            self._write(key, None, by)

    def keepalive(self, number: int) -> bool:
        """Renew a lease; whether there is one."""
        lease = self.leases.get(number)
        if lease is None:
            return False
        lease.ends = self.world.now + lease.ttl
        return True

    def revoke(self, number: int, by: str) -> None:
        """End a lease with its keys."""
        if number not in self.leases:
            raise LeaseNotFound
        for told in self.revoked:
            told(number, self.leases[number], by)
        self._drop(number, by)

    # Keys.

    def put(self, key: str, value: str, lease: int, by: str) -> int:
        """Write a key as a transaction of its own; its revision."""
        self._may_hang_on(lease)
        self.revision += 1
        self._write(key, (value, lease), by)
        return self.revision

    def delete(self, key: str, by: str) -> int:
        """Remove a key as a transaction of its own."""
        self.revision += 1
        if key in self.keys:
            self._write(key, None, by)
        return self.revision

    def _may_hang_on(self, lease: int) -> None:
        if lease and lease not in self.leases:
            raise LeaseNotFound

    def _write(self, key: str, what: tuple[str, int] | None, by: str) -> None:
        before = self.keys.get(key)
        if before is not None and before.lease in self.leases:
            self.leases[before.lease].keys.remove(key)
        after = None
        if what is None:
            self.keys.pop(key, None)
        else:
            value, lease = what
            after = Kv(value, before.created if before else self.revision, self.revision, lease)
            self.keys[key] = after
            if lease:
                self.leases[lease].keys.append(key)
        for view in self.views:
            view.send(self.revision, key, after)
        for told in self.written:
            told(key, before, after, by)

    # The JSON gateway, for the guard's client.

    def answer(self, method: str, fields: Fields, by: str) -> Fields:
        """What one request does, and its answer; LeaseNotFound."""
        found = _METHODS[method](self, fields, by)
        found["header"] = {"revision": str(self.revision), "raft_term": str(self.term)}
        return found

    def range(self, fields: Fields, by: str) -> Fields:
        """/kv/range of one key or a prefix."""
        key = _text(fields["key"]).removeprefix(PREFIX)
        if "range_end" in fields:
            found = [(k, kv) for k, kv in self.keys.items() if k.startswith(key)]
        else:
            found = [(key, self.keys[key])] if key in self.keys else []
        return {"kvs": [_kv(k, kv) for k, kv in found]}

    def transaction(self, fields: Fields, by: str) -> Fields:
        """/kv/txn."""
        done = all(self._holds(c) for c in fields.get("compare", ()))
        requests = fields.get("success" if done else "failure", ())
        puts = [r["request_put"] for r in requests if "request_put" in r]
        for put in puts:
            self._may_hang_on(int(put.get("lease", 0)))
        if requests:
            self.revision += 1
        responses = [self._do(r, by) for r in requests]
        return {"succeeded": done, "responses": responses}

    def _do(self, request: Fields, by: str) -> Fields:
        if "request_put" in request:
            put = request["request_put"]
            self._write(_name(put), (_text(put["value"]), int(put.get("lease", 0))), by)
        elif "request_delete_range" in request:
            if (name := _name(request["request_delete_range"])) in self.keys:
                self._write(name, None, by)
        elif "request_range" in request:
            return {"response_range": self.range(request["request_range"], by)}
        else:
            raise AssertionError(f"not simulated: {request}")
        return {}

    def _holds(self, compare: Fields) -> bool:
        kv = self.keys.get(_name(compare))
        is_, wanted = {
            "MOD": lambda: (kv.version if kv else 0, int(compare.get("mod_revision", 0))),
            "CREATE": lambda: (kv.created if kv else 0, int(compare.get("create_revision", 0))),
            "LEASE": lambda: (kv.lease if kv else 0, int(compare.get("lease", 0))),
            "VALUE": lambda: (kv.value if kv else None, _text(compare.get("value", ""))),
            "VERSION": lambda: (1 if kv else 0, int(compare.get("version", 0))),
        }[compare["target"]]()
        match compare.get("result", "EQUAL"):
            case "EQUAL":
                return bool(is_ == wanted)
            case "NOT_EQUAL":
                return bool(is_ != wanted)
            case "LESS":
                return bool(cast(int, is_) < cast(int, wanted))
            case "GREATER":
                return bool(cast(int, is_) > cast(int, wanted))
        raise AssertionError(f"not simulated: {compare}")

    def put_one(self, fields: Fields, by: str) -> Fields:
        """/kv/put."""
        self.put(_name(fields), _text(fields["value"]), int(fields.get("lease", 0)), by)
        return {}

    def delete_one(self, fields: Fields, by: str) -> Fields:
        """/kv/deleterange of one key."""
        self.delete(_name(fields), by)
        return {}

    def grant_one(self, fields: Fields, by: str) -> Fields:
        """/lease/grant."""
        number = self.grant(float(fields["TTL"]))
        return {"ID": str(number), "TTL": str(fields["TTL"])}

    def revoke_one(self, fields: Fields, by: str) -> Fields:
        """/lease/revoke."""
        self.revoke(int(fields["ID"]), by)
        return {}

    def keepalive_one(self, fields: Fields, by: str) -> Fields:
        """/lease/keepalive."""
        number = int(fields["ID"])
        alive = self.keepalive(number)
        return {"result": {"ID": str(number), **({"TTL": str(round(self.leases[number].ttl))} if alive else {})}}

    def time_to_live(self, fields: Fields, by: str) -> Fields:
        """/lease/timetolive: whole seconds, rounded down; -1 where there is none."""
        lease = self.leases.get(int(fields["ID"]))
        if lease is None:
            return {"ID": fields["ID"], "TTL": "-1"}
        answer: Fields = {"ID": fields["ID"], "TTL": str(int(lease.ends - self.world.now))}
        return {**answer, "grantedTTL": str(round(lease.ttl)), "keys": [_base64(PREFIX + k) for k in lease.keys]}

    def member_list(self, fields: Fields, by: str) -> Fields:
        """/cluster/member/list."""
        members = ({"ID": str(i + 1), "name": f"e-{h}", "clientURLs": [url_of(h)]} for i, h in enumerate(self.hosts))
        return {"members": list(members)}

    def status(self, fields: Fields, by: str) -> Fields:
        """/maintenance/status."""
        return {"leader": str(self.leader + 1)}

    def move_leader(self, fields: Fields, by: str) -> Fields:
        """/maintenance/transfer-leadership: it is an election too."""
        self.elect(0.02)
        self.leader = int(fields["targetID"]) - 1
        return {}


_METHODS: dict[str, Callable[[SimulatedEtcd, Fields, str], Fields]] = {
    "/kv/range": SimulatedEtcd.range,
    "/kv/txn": SimulatedEtcd.transaction,
    "/kv/put": SimulatedEtcd.put_one,
    "/kv/deleterange": SimulatedEtcd.delete_one,
    "/lease/grant": SimulatedEtcd.grant_one,
    "/lease/revoke": SimulatedEtcd.revoke_one,
    "/lease/keepalive": SimulatedEtcd.keepalive_one,
    "/lease/timetolive": SimulatedEtcd.time_to_live,
    "/cluster/member/list": SimulatedEtcd.member_list,
    "/maintenance/status": SimulatedEtcd.status,
    "/maintenance/transfer-leadership": SimulatedEtcd.move_leader,
}


def url_of(host: str) -> str:
    """Where a member of etcd answers: e1 stands on the machine of n1, and its network is a thing of its own here."""
    return f"http://{host.replace('e', 'n')}:2379"


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _name(fields: Fields) -> str:
    return _text(fields["key"]).removeprefix(PREFIX)


def _kv(key: str, kv: Kv) -> Fields:
    if kv.fields is None:
        kv.fields = {
            "key": _base64(PREFIX + key),
            "value": _base64(kv.value),
            "mod_revision": str(kv.version),
            "create_revision": str(kv.created),
            **({"lease": str(kv.lease)} if kv.lease else {}),
        }
    return kv.fields


@dataclass(frozen=True, slots=True)
class _Answer:
    status_code: int
    fields: Fields

    def json(self) -> Fields:
        return self.fields

    @property
    def text(self) -> str:
        return str(self.fields)


@dataclass(slots=True)
class Clients:
    """Makes the guard's clients of etcd: it stands in the place of the class Etcd3 in the guard's modules."""

    etcd: SimulatedEtcd
    process: Process
    lose_answers: int = 0
    """How many of the next answers are lost: the request was done."""

    def __call__(self, access: EtcdAccess, order: Order | None = None) -> Etcd3:
        """A client of its own for each thread, as the guard makes them."""
        return SimulatedClient(self, access, order)


class SimulatedClient(Etcd3):
    """The shipped client, whose requests end in the simulation."""

    def __init__(self, clients: Clients, access: EtcdAccess, order: Order | None) -> None:
        # Not the shipped constructor: that one opens an HTTP client.
        self.access, self.order, self.term = access, order or Order(access.urls), 0
        self._token = ""
        self._clients = clients
        self._random = clients.etcd.world.random(f"etcd client of {clients.process.name}")

    def _post(self, url: str, method: str, fields: Fields) -> httpx2.Response:
        clients, etcd = self._clients, self._clients.etcd
        world, name = etcd.world, clients.process.name
        host = url.removeprefix("http://").removesuffix(":2379").replace("n", "e")
        label = f"{name} {method}"
        world.point(f"{label} asked")
        world.sleep(0.001 + 0.02 * self._random.random() ** 4)
        reached = world.reaches(clients.process.host, host) and etcd.host_up(host)
        linearizable = method not in ("/lease/timetolive", "/cluster/member/list", "/maintenance/status")
        if not reached or (etcd.stalled and linearizable):
            world.sleep(self.access.timeout_s)
            raise OSError("timed out")
        try:
            answer = _Answer(200, etcd.answer(method, fields, name))
        except LeaseNotFound:
            answer = _Answer(404, {"error": "etcdserver: requested lease not found", "code": 5})
        world.point(f"{label} done")
        if clients.lose_answers and method not in ("/kv/range", "/lease/timetolive"):
            clients.lose_answers -= 1
            world.tell(name, f"the answer to {method} is lost")
            world.sleep(self.access.timeout_s)
            raise OSError("timed out")
        world.sleep(0.001 + 0.02 * self._random.random() ** 4)
        return cast(httpx2.Response, cast(Any, answer))
