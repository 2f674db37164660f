"""The simulated etcd's JSON gateway, and a client of it for the guard: the shipped one, whose requests end here."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx2

from tests.guard_simulation.etcd import Kv, LeaseNotFound, SimulatedEtcd
from tests.guard_simulation.world import Process
from walproof.guarding.etcd import Etcd3, EtcdAccess, Fields, Order

PREFIX = "/service/sim/"
_FOREVER = 9223372036


def answer(etcd: SimulatedEtcd, method: str, fields: Fields, by: str) -> Fields:
    """What one request does, and its answer; LeaseNotFound."""
    found = _METHODS[method](etcd, fields, by)
    found["header"] = {"revision": str(etcd.revision), "raft_term": str(etcd.term)}
    for listen in etcd.answered:
        listen(method, fields, by, found)
    return found


def _range(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/kv/range of one key or a prefix."""
    key = _text(fields["key"]).removeprefix(PREFIX)
    if "range_end" in fields:
        found = [(k, kv) for k, kv in etcd.keys.items() if k.startswith(key)]
    else:
        found = [(key, etcd.keys[key])] if key in etcd.keys else []
    return {"kvs": [_kv(k, kv) for k, kv in found]}


def _transaction(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/kv/txn."""
    done = all(_holds(etcd, c) for c in fields.get("compare", ()))
    requests = fields.get("success" if done else "failure", ())
    puts = [r["request_put"] for r in requests if "request_put" in r]
    for put in puts:
        etcd.may_hang_on(int(put.get("lease", 0)))
    if requests:
        etcd.revision += 1
    responses = [_do(etcd, r, by) for r in requests]
    return {"succeeded": done, "responses": responses}


def _do(etcd: SimulatedEtcd, request: Fields, by: str) -> Fields:
    if "request_put" in request:
        put = request["request_put"]
        etcd.write(_name(put), (_text(put["value"]), int(put.get("lease", 0))), by)
    elif "request_delete_range" in request:
        if (name := _name(request["request_delete_range"])) in etcd.keys:
            etcd.write(name, None, by)
    elif "request_range" in request:
        return {"response_range": _range(etcd, request["request_range"], by)}
    else:
        raise AssertionError(f"not simulated: {request}")
    return {}


def _sides(kv: Kv | None, compare: Fields) -> tuple[int | str | None, int | str]:
    match compare["target"]:
        case "MOD":
            return kv.version if kv else 0, int(compare.get("mod_revision", 0))
        case "CREATE":
            return kv.created if kv else 0, int(compare.get("create_revision", 0))
        case "LEASE":
            return kv.lease if kv else 0, int(compare.get("lease", 0))
        case "VALUE":
            return kv.value if kv else None, _text(compare.get("value", ""))
    raise AssertionError(f"not simulated: {compare}")


def _holds(etcd: SimulatedEtcd, compare: Fields) -> bool:
    kv = etcd.keys.get(_name(compare))
    is_, wanted = _sides(kv, compare)
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


def _put_one(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/kv/put."""
    etcd.put(_name(fields), _text(fields["value"]), int(fields.get("lease", 0)), by)
    return {}


def _delete_one(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/kv/deleterange of one key."""
    etcd.delete(_name(fields), by)
    return {}


def _grant_one(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/lease/grant."""
    number = etcd.grant(float(fields["TTL"]))
    return {"ID": str(number), "TTL": str(round(etcd.leases[number].ttl))}


def _revoke_one(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/lease/revoke."""
    etcd.revoke(int(fields["ID"]), by)
    return {}


def _keepalive_one(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/lease/keepalive."""
    number = int(fields["ID"])
    alive = etcd.keepalive(number)
    return {"result": {"ID": str(number), **({"TTL": str(round(etcd.leases[number].ttl))} if alive else {})}}


def _time_to_live(etcd: SimulatedEtcd, fields: Fields, by: str) -> Fields:
    """/lease/timetolive: whole seconds, rounded down; -1 where there is none."""
    lease = etcd.leases.get(int(fields["ID"]))
    if lease is None:
        return {"ID": fields["ID"], "TTL": "-1"}
    left = int(lease.ends - etcd.world.now) if etcd.promoted else _FOREVER
    answer: Fields = {"ID": fields["ID"], "TTL": str(left)}
    return {**answer, "grantedTTL": str(round(lease.ttl)), "keys": [_base64(PREFIX + k) for k in lease.keys]}


_METHODS: dict[str, Callable[[SimulatedEtcd, Fields, str], Fields]] = {
    "/kv/range": _range,
    "/kv/txn": _transaction,
    "/kv/put": _put_one,
    "/kv/deleterange": _delete_one,
    "/lease/grant": _grant_one,
    "/lease/revoke": _revoke_one,
    "/lease/keepalive": _keepalive_one,
    "/lease/timetolive": _time_to_live,
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
        linearizable = method != "/lease/timetolive"
        if etcd.stalled and linearizable:
            if self._random.random() < 0.5:
                # What waits for etcd's next leader may be done when nobody waits for it any more.
                world.after(etcd.stalled_until - world.now, lambda: self._do_late(method, fields, name))
            clients.unsure += 1
            world.sleep(self.access.timeout_s)
            raise httpx2.ReadTimeout("timed out")
        found = self._do(method, fields, name)
        world.point(f"{label} done")
        if clients.lose_answers and method not in ("/kv/range", "/lease/timetolive"):
            clients.lose_answers -= 1
            clients.unsure += 1
            world.tell(name, f"the answer to {method} is lost")
            world.sleep(self.access.timeout_s)
            raise httpx2.ReadTimeout("timed out")
        world.sleep(0.001 + 0.02 * self._random.random() ** 4)
        return cast(httpx2.Response, cast(Any, found))

    def _do_late(self, method: str, fields: Fields, name: str) -> None:
        self._do(method, fields, name)

    def _do(self, method: str, fields: Fields, name: str) -> _Answer:
        try:
            return _Answer(200, json.dumps(answer(self._clients.etcd, method, fields, name)).encode())
        except LeaseNotFound:
            return _Answer(404, b'{"error": "etcdserver: requested lease not found", "code": 5}')
