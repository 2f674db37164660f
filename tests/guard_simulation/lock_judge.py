"""What must hold of a guard's leader lock: it reads the keys as Patroni does, and writes only what it may, as it may.

It stands between the guard and the shipped EtcdLeaderLock, and sees what etcd was asked meanwhile.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from greenlet import getcurrent

from tests.guard_simulation.etcd import Kv, Lease, SimulatedEtcd
from tests.guard_simulation.patroni_keys import cluster_of
from walproof.guarding.leader_lock import INTENT, LIMIT, SEAL, EtcdLeaderLock
from walproof.model.takeover import GUARD, LockState, Seal

_INTENT_S, _MARGIN_S = 2.0, 3.0
"""How long an intent lasts; how much longer than the old leader's lease and an intent the lock's lasts."""
_LONGEST_INTENT_S = 3.0
_OLD_S = 3.5
"""A seal is made by a reading of three seconds before its intent."""
_ROUNDED_S = 1.05
"""etcd tells what is left of a lease in whole seconds, rounded down."""
_HIDDEN_S = 5.0
"""For how long after an election, which renews every lease, the age of one need not be known."""
_EVERY_KEY = ("config", "leader", "sync", "failover", "status", LIMIT)


def _due(failover: dict[str, Any], at: float) -> bool:
    """Whether a switchover is asked for that a guard has to heed: a named one always, any other when it is soon."""
    later = failover.get("scheduled_at")
    soon = later is None or datetime.fromisoformat(later).timestamp() - at < 60.0
    return bool(failover) and (soon or bool(failover.get("member")))


def _of_keys(keys: dict[str, Kv], at: float) -> dict[str, Any]:
    """The fields of a LockState by what the simulated Patroni makes of the same keys."""
    cluster = cluster_of(keys)
    config, version = cluster.config, {k: keys[k].version if k in keys else 0 for k in _EVERY_KEY}
    versions = [member["version"] for member in cluster.members.values() if member.get("version")]
    # Before 4.0 quorum is no mode: there it is off.
    known = config.get("synchronous_mode") != "quorum" or all(int(text.partition(".")[0]) >= 4 for text in versions)
    return {
        "holder": cluster.leader, "holder_version": version["leader"], "holder_lease": cluster.leader_lease,
        "sync_leader": cluster.sync_leader, "voters": cluster.voters, "quorum": cluster.quorum,
        "sync_version": version["sync"], "config_version": version["config"], "failover_version": version["failover"],
        "synchronous": bool(config.get("synchronous_mode")) and known, "paused": bool(config.get("pause")),
        "standby_cluster": bool(config.get("standby_cluster")), "switchover": _due(cluster.failover, at),
        "ttl_s": max(20, config["ttl"]), "loop_wait_s": config["loop_wait"],
        "least_position": cluster.last_lsn - config.get("maximum_lag_on_failover", 1 << 20),
        "limit_s": int(json.loads(keys[LIMIT].value)["limit_s"]) if LIMIT in keys else 0,
    }  # fmt: skip


def _of_member(kv: Kv) -> dict[str, Any]:
    keys = {"members/m": kv}
    cluster = cluster_of(keys)
    data, tags = cluster.members["m"], cluster.tags("m")
    version = tuple(int(n) for n in data["version"].split(".")) if data.get("version") else ()
    follows = not (tags.nofailover or tags.nosync or tags.replicatefrom or tags.nostream)
    return {
        "lease": kv.lease, "running": data["state"] == "running", "timeline": data.get("timeline", 0),
        "priority": tags.failover_priority, "counts": follows, "version": version,
        "address": data["conn_url"].removeprefix("postgres://").partition("/")[0],
    }  # fmt: skip


@dataclass(eq=False)
class WatchedLock:
    """A guard's leader lock, judged. wrong: says what is wrong. to_clock: this guard's clock at a time of the world."""

    lock: EtcdLeaderLock
    etcd: SimulatedEtcd
    name: str
    to_clock: Callable[[float], float]
    unsure: Callable[[], int]
    """How many answers were lost: it may have leases that it does not know of."""
    wrong: Callable[[str, str], None]
    _reads: Any = None
    """The thread that reads now."""
    _keys: dict[str, Kv] = field(default_factory=dict)
    _asked: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By lease, of this reading: when it was renewed last, when that was asked."""
    _known: dict[str, int] = field(default_factory=dict)
    """Versions of keys that were compared already."""
    _term: tuple[int, float] = (0, 0.0)
    _limit: tuple[int, float] = (0, 0.0)
    _seen: LockState | None = None
    _taken: int = 0
    _granted: dict[int, int] = field(default_factory=dict)
    """Leases for a lock and its limit by the version of the key that they are to take."""
    _intents: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.etcd.written.append(self._written)
        self.etcd.answered.append(self._answered)

    def leave(self) -> None:
        """Of a guard that starts anew."""
        self.etcd.written.remove(self._written)
        self.etcd.answered.remove(self._answered)

    def read(self) -> LockState:
        """As the shipped one, compared with what was there."""
        self._reads, began = getcurrent(), self.etcd.world.now
        self._asked.clear()
        state = self.lock.read()
        if self._term[0] != self.etcd.term:
            self._term = (self.etcd.term, self.etcd.world.now)
        self._compare(state)
        self._age(state)
        if self.etcd.world.now - began < 1.0:
            self._limited(state)
        return state

    def seal(self, seen: LockState, name: str, seal: Seal) -> bool:
        """As the shipped one."""
        self._seen, taken = seen, self._taken
        done = self.lock.seal(seen, name, seal)
        if done and self._taken == taken:
            self.wrong("seal", f"{name} takes a seal for done that was not")
        return done

    def hand_over(self, sealed: LockState, to: str) -> bool:
        """As the shipped one."""
        self._seen = sealed
        return self.lock.hand_over(sealed, to)

    def part(self, seen: LockState) -> str:
        """As the shipped one."""
        return self.lock.part(seen)

    # Reading.

    def _answered(self, method: str, fields: dict[str, Any], by: str, found: dict[str, Any]) -> None:
        if by != self.name:
            return
        if getcurrent() is self._reads:
            if method == "/kv/range":
                self._keys = dict(self.etcd.keys)
            elif (lease := self.etcd.leases.get(int(fields.get("ID", 0)))) is not None:
                self._asked[int(fields["ID"])] = (lease.renewed, self.etcd.world.now)
        elif method == "/lease/grant":
            self._grants(int(found["ID"]), float(fields["TTL"]))
        elif method == "/lease/keepalive" and (lease := self.etcd.leases.get(int(fields["ID"]))) is not None:
            self._renews(lease)

    def _compare(self, state: LockState) -> None:
        """Each key once for each of its versions."""
        keys, known = self._keys, self._known
        now = {k: kv.version for k, kv in keys.items()}
        if now == known:
            return
        changed = [k for k, version in now.items() if known.get(k) != version]
        if any(k in _EVERY_KEY for k in changed) or now.keys() != known.keys():
            for name, value in _of_keys(keys, state.at).items():
                if getattr(state, name) != value:
                    self.wrong("reads", f"{self.name} reads {name} as {getattr(state, name)!r}, it is {value!r}")
        if {f"members/{m}" for m in state.candidates} != {k for k in keys if k.startswith("members/")}:
            self.wrong("reads", f"{self.name} reads members {list(state.candidates)}")
        for key in changed:
            if key.startswith("members/"):
                candidate = state.candidates[key[8:]]
                for name, value in _of_member(keys[key]).items():
                    if getattr(candidate, name) != value:
                        self.wrong("reads", f"{self.name} reads {name} of {key} as {getattr(candidate, name)!r}")
        self._known = now

    def _age(self, state: LockState) -> None:
        """A lease's age is that of a renewal by its holder, and is known unless etcd has just elected."""
        asked = self._asked.get(state.holder_lease)
        if asked is None:
            if state.holder_lease in self.etcd.leases:
                self.wrong("age", f"{self.name} does not ask for the age of the leader's lease")
            return
        (renewed, at), age = asked, state.lease_age_s
        if self.etcd.world.now - at > 0.1:
            return  # it stood still before it took the time
        if not state.lease_renewed and self.etcd.promoted and renewed > self._term[1] + _HIDDEN_S:
            self.wrong("age", f"{self.name} does not know that a lease was renewed by its holder at {renewed:.2f}")
        if age is None:
            if self.etcd.promoted and self.etcd.elected < at and self._term[1] < self.etcd.world.now:
                self.wrong("age", f"{self.name} does not know the age of a lease that etcd tells")
            return
        began = state.at - self.to_clock(0.0)
        dated, latest = began - age, renewed + 0.01 if state.lease_renewed else self.etcd.world.now
        if not renewed - _ROUNDED_S - (at - began) <= dated <= latest:
            self.wrong("age", f"{self.name} takes a lease for renewed at {dated:.2f} that was renewed at {renewed:.2f}")

    def _limited(self, state: LockState) -> None:
        """The limit begins when its lease was granted, and does not wander."""
        limit = self._keys.get(LIMIT)
        dated = state.limited_at - self.to_clock(0.0)
        if limit is None:
            if state.limited_at != float("-inf"):
                self.wrong("limit", f"{self.name} keeps a limit that has ended")
        elif self._limit[0] == limit.version:
            if dated != self._limit[1]:
                self.wrong("limit", f"{self.name} moves the beginning of a limit: {self._limit[1]:.2f}, {dated:.2f}")
        else:
            self._limit = (limit.version, dated)
            renewed = self._asked.get(limit.lease, (dated, 0.0))[0]
            elected = self.etcd.elected >= renewed or not self.etcd.promoted
            if not elected and not renewed - _ROUNDED_S - 0.5 <= dated <= renewed + 0.01:
                self.wrong("limit", f"{self.name} dates a limit of {renewed:.2f} to {dated:.2f}")

    # Leases.

    def _grants(self, lease: int, ttl: float) -> None:
        if ttl <= _INTENT_S:
            if any(i in self.etcd.leases for i in self._intents) and not self.unsure():
                self.wrong("leases", f"{self.name} takes another lease for its intent while it has one")
            self._intents = [lease]
            return
        version = self._seen.holder_version if self._seen else 0
        self._granted[version] = self._granted.get(version, 0) + 1
        if self._granted[version] > 2 + self.unsure():
            self.wrong("leases", f"{self.name} takes {self._granted[version]} leases to take one key")

    def _renews(self, lease: Lease) -> None:
        # A seal's lease, which is a guard's for ever, is renewed for a hand-over.
        if {*lease.keys} - {INTENT, SEAL, "leader"}:
            self.wrong("renews", f"{self.name} renews the lease of {', '.join(lease.keys)}")

    # Writing.

    def _written(self, key: str, before: Kv | None, after: Kv | None, by: str) -> None:
        if by != self.name:
            return
        etcd, seen = self.etcd, self._seen
        leader = etcd.keys.get("leader")
        # The leader key first: Patroni applies a transaction's events one by one.
        with_leader = leader is not None and leader.version == etcd.revision
        lease = etcd.leases.get(after.lease) if after is not None else None
        good = False
        match key:
            case "leader":
                assert after is not None and leader is not None and seen is not None
                self._leads(before, after, seen)
                good = True
            case "sync":
                same = after is not None and before is not None and after.value == before.value
                good = with_leader and same and lease is None
            case _ if key == f"members/{seen.sync_leader if seen else ''}":
                good = with_leader and after is None
            case "walproof_guard":
                good = with_leader and (after is None or (leader is not None and after.lease == leader.lease))
            case "walproof_guard_limit":
                limit_s = float(json.loads(after.value)["limit_s"]) if after is not None else 0.0
                good = with_leader and lease is not None and abs(lease.ttl - 2 * limit_s) <= 0.5
            case "walproof_guard_intent":
                good = with_leader if after is None else lease is not None and after.value == by
                good = good and (lease is None or lease.ttl == max(_INTENT_S, etcd.least_ttl))
        if not good:
            self.wrong("writes", f"{by} writes {key}, or not as it may: {after}")

    def _leads(self, before: Kv | None, after: Kv, seen: LockState) -> None:
        etcd, was = self.etcd, before.value if before else ""
        now = [before.version if before else 0, *map(etcd.version, ("sync", "config", "failover"))]
        if now != [seen.holder_version, seen.sync_version, seen.config_version, seen.failover_version]:
            self.wrong("writes", f"{self.name} gives the leader key to {after.value} by keys that have changed: {now}")
        if after.value != self.name:
            member = etcd.keys.get(f"members/{after.value}")
            same = member is not None and member.lease == seen.candidates[after.value].lease
            if not same or before is None or after.lease != before.lease:
                self.wrong("writes", f"{self.name} hands over to {after.value}, of another lease than it saw")
            etcd.world.after(0.0, lambda: self._left(after, (SEAL,)))
            return
        self._taken += 1
        if was.startswith(GUARD):
            # It was left alone for two seconds: a longer intent of before, of a seal that failed, may not have ended.
            if etcd.least_ttl <= _INTENT_S:
                etcd.world.after(0.0, lambda: self._left(after, ()))
            return
        intent = etcd.keys.get(INTENT)
        if intent is None or intent.value != self.name:
            self.wrong("seal", f"{self.name} takes the key of {was} without an intent")
        intent_s = max(_INTENT_S, etcd.least_ttl)
        if intent_s > _LONGEST_INTENT_S:
            self.wrong("seal", f"{self.name} takes the key of {was} with an intent of {intent_s:g} s")
        if (old_s := self.to_clock(etcd.world.now) - seen.at) > _OLD_S + intent_s:
            self.wrong("seal", f"{self.name} takes the key of {was} by what it saw {old_s:.1f} s before")
        former = etcd.leases.get(before.lease) if before else None
        ttl_s = max(seen.ttl_s, former.ttl if former else 0.0) + intent_s + _MARGIN_S
        etcd.world.after(0.0, lambda: self._sealed(after, ttl_s))

    def _left(self, lock: Kv, gone: tuple[str, ...]) -> None:
        keys, intent = self.etcd.keys, self.etcd.keys.get(INTENT)
        if keys.get("leader") is lock and (any(k in keys for k in gone) or (intent and intent.value == self.name)):
            self.wrong("left", f"{self.name} leaves keys of its own behind")

    def _sealed(self, lock: Kv, ttl_s: float) -> None:
        """What a seal has left: its keys, each on the lease that it shall hang on."""
        etcd = self.etcd
        if etcd.keys.get("leader") is not lock:
            return
        self._left(lock, ())
        lease, limit = etcd.leases.get(lock.lease), etcd.keys.get(LIMIT)
        written = [k for k in (SEAL, LIMIT) if k in etcd.keys and etcd.keys[k].version == lock.version]
        if lease is None or lease.ttl != ttl_s or {*lease.keys} != {"leader", SEAL} or written != [SEAL, LIMIT]:
            self.wrong("seal", f"{self.name} seals on {lease}, not on one of {ttl_s:g} s, and writes {written}")
        if limit is not None and limit.lease and etcd.leases[limit.lease].keys != [LIMIT]:
            self.wrong("seal", f"{self.name} puts a limit on a lease with other keys")
