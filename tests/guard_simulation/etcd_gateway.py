"""The simulated etcd's JSON gateway, and a client of it for the guard: the shipped one, whose requests end here.

Of etcd's API only what the guard asks for; anything else is an AssertionError or a KeyError.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx2

from tests.guard_simulation.etcd import Kv, LeaseNotFound, SimulatedEtcd
from tests.guard_simulation.world import Process
from walproof.guarding.etcd import Etcd3, EtcdAccess, Fields, Order, decoded, encoded

PREFIX = "/service/sim/"
_FOREVER = 9223372036


def _range(etcd: SimulatedEtcd, fields: Fields, _by: str) -> Fields:
    """Every key below Patroni's prefix."""
    assert decoded(fields["key"]) == PREFIX and "range_end" in fields, f"not simulated: {fields}"
    return {"kvs": [_kv(k, kv) for k, kv in etcd.keys.items()]}


def _transaction(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    done, requests = all(_holds(etcd, c) for c in fields["compare"]), fields["success"]
    if done:
        for request in requests:
            etcd.may_hang_on(int(request.get("request_put", {}).get("lease", 0)))
        etcd.revision += 1
        for request in requests:
            _do(etcd, request, by)
    return {"succeeded": done}


def _do(etcd: SimulatedEtcd, request: Fields, by: str) -> None:
    if put := request.get("request_put"):
        etcd.write(_name(put), (decoded(put["value"]), int(put.get("lease", 0))), by)
    elif (name := _name(request["request_delete_range"])) in etcd.keys:
        etcd.write(name, None, by)


def _holds(etcd: SimulatedEtcd, compare: Fields) -> bool:
    kv = etcd.keys.get(_name(compare))
    assert compare["result"] == "EQUAL", f"not simulated: {compare}"
    match compare["target"]:
        case "MOD":
            return (kv.version if kv else 0) == int(compare["mod_revision"])
        case "LEASE":
            return (kv.lease if kv else 0) == int(compare["lease"])
    raise AssertionError(f"not simulated: {compare}")


def _put(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    etcd.put(_name(fields), decoded(fields["value"]), int(fields.get("lease", 0)), by)
    return {}


def _grant(etcd: SimulatedEtcd, fields: Fields, _by: str) -> Fields:
    number = etcd.grant(float(fields["TTL"]))
    return {"ID": str(number), "TTL": str(round(etcd.leases[number].ttl))}


def _revoke(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    etcd.revoke(int(fields["ID"]), by)
    return {}


def _keepalive(etcd: SimulatedEtcd, fields: Fields, _by: str) -> Fields:
    number = int(fields["ID"])
    alive = etcd.keepalive(number)
    return {"result": {"ID": str(number), **({"TTL": str(round(etcd.leases[number].ttl))} if alive else {})}}


def _time_to_live(etcd: SimulatedEtcd, fields: Fields, _by: str) -> Fields:
    """Whole seconds, rounded down; -1 where there is no such lease."""
    lease = etcd.leases.get(int(fields["ID"]))
    if lease is None:
        return {"ID": fields["ID"], "TTL": "-1"}
    left = int(lease.ends - etcd.world.now) if etcd.promoted else _FOREVER
    return {"ID": fields["ID"], "TTL": str(left), "grantedTTL": str(round(lease.ttl))}


_METHODS: dict[str, Callable[[SimulatedEtcd, Fields, str], Fields]] = {
    "/kv/range": _range,
    "/kv/txn": _transaction,
    "/kv/put": _put,
    "/lease/grant": _grant,
    "/lease/revoke": _revoke,
    "/lease/keepalive": _keepalive,
    "/lease/timetolive": _time_to_live,
}


def url_of(host: str) -> str:
    """Where a member of etcd answers: e1 stands on the machine of n1, and its network is a thing of its own here."""
    return f"http://{host.replace('e', 'n')}:2379"


def _name(fields: Fields) -> str:
    return decoded(fields["key"]).removeprefix(PREFIX)


def _kv(key: str, kv: Kv) -> Fields:
    if kv.fields is None:
        kv.fields = {
            "key": encoded(PREFIX + key),
            "value": encoded(kv.value),
            "mod_revision": str(kv.version),
            **({"lease": str(kv.lease)} if kv.lease else {}),
        }
    return kv.fields


@dataclass(frozen=True, slots=True)
class _Answer:
    status_code: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()


@dataclass(slots=True)
class Clients:
    """Makes the guard's clients of etcd: it stands in the place of the class Etcd3 in the guard's modules."""

    etcd: SimulatedEtcd
    process: Process
    lose_answers: int = 0
    """How many of the next answers are lost: the request was done."""
    unsure: int = 0
    """How many requests had no answer."""

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
        leader = etcd.keys.get("leader")
        hands_over = method == "/kv/txn" and leader is not None and leader.value == name
        label = f"{name} {'hand-over' if hands_over else method}"
        world.point(f"{label} asked")
        world.sleep(0.001 + 0.02 * self._random.random() ** 4)
        if not world.reaches(clients.process.host, host) or not etcd.host_up(host):
            world.sleep(self.access.timeout_s)
            raise httpx2.ConnectTimeout("timed out")
        if etcd.stalled and method != "/lease/timetolive":  # which is not linearizable
            if self._random.random() < 0.5:
                # What waits for etcd's next leader may be done when nobody waits for it any more.
                world.after(etcd.stalled_until - world.now, lambda: self._do(method, fields))
            raise self._no_answer()
        answer = self._do(method, fields)
        world.point(f"{label} done")
        if clients.lose_answers and method not in ("/kv/range", "/lease/timetolive"):
            clients.lose_answers -= 1
            world.tell(name, f"the answer to {method} is lost")
            raise self._no_answer()
        world.sleep(0.001 + 0.02 * self._random.random() ** 4)
        return cast(httpx2.Response, cast(Any, answer))

    def _no_answer(self) -> httpx2.ReadTimeout:
        self._clients.unsure += 1
        self._clients.etcd.world.sleep(self.access.timeout_s)
        return httpx2.ReadTimeout("timed out")

    def _do(self, method: str, fields: Fields) -> _Answer:
        etcd, by = self._clients.etcd, self._clients.process.name
        try:
            answer = _METHODS[method](etcd, fields, by)
        except LeaseNotFound:
            return _Answer(404, b'{"error": "etcdserver: requested lease not found", "code": 5}')
        answer["header"] = {"revision": str(etcd.revision), "raft_term": str(etcd.term)}
        for listen in etcd.answered:
            listen(method, fields, by, answer)
        return _Answer(200, json.dumps(answer).encode())
