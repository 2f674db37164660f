"""Patroni's leader lock in etcd: its keys as a LockState, and the two transactions of a guard.

Keys and their meaning: patroni/dcs/__init__.py and patroni/dcs/etcd3.py (4.1).
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from walproof.errors import TargetError
from walproof.model.takeover import Candidate, LockState, Seal
from walproof.patroni.etcd3 import (
    Entry,
    Etcd3,
    EtcdAccess,
    Fields,
    Transaction,
    compare_lease,
    compare_version,
    delete,
    put,
)
from walproof.patroni.etcd_leader import EtcdLeader

SEAL = "walproof_guard"
"""A key of the guard's own below Patroni's prefix, which Patroni does not know and leaves alone."""
_SYNCHRONOUS = (True, "on", "quorum", "true")


def _json(entry: Entry | None) -> dict[str, Any]:
    try:
        found = json.loads(entry.value) if entry else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _candidate(entry: Entry) -> Candidate:
    data = _json(entry)
    tags = data.get("tags") if isinstance(data.get("tags"), dict) else {}
    assert isinstance(tags, dict)
    priority = 0 if tags.get("nofailover") else int(tags.get("failover_priority", 1))
    host = urlsplit(str(data.get("conn_url", ""))).hostname or ""
    return Candidate(entry.lease, data.get("state") == "running", priority, host)


def _seal(entry: Entry | None) -> Seal | None:
    found = _json(entry)
    return (
        Seal(int(found["old_lease"]), tuple(found["connected"])) if {"old_lease", "connected"} <= set(found) else None
    )


def _asked(failover: Entry | None) -> bool:
    """Whether a switchover or failover is asked for: Patroni writes {} when it is done; "n1:n2" is the old form."""
    return failover is not None and failover.value.strip() not in ("", "{}")


def state_of(entries: Mapping[str, Entry], at: float, lease_age_s: float | None = None) -> LockState:
    """What Patroni's keys say, by their names below its prefix."""
    leader, sync, config = entries.get("leader"), entries.get("sync"), entries.get("config")
    named, settings = _json(sync), _json(config)
    return LockState(
        at,
        holder=leader.value if leader else "",
        holder_version=leader.version if leader else 0,
        holder_lease=leader.lease if leader else 0,
        lease_age_s=lease_age_s,
        sync_leader=str(named.get("leader") or ""),
        voters=tuple(v.strip() for v in str(named.get("sync_standby") or "").split(",") if v.strip()),
        quorum=int(named.get("quorum") or 0),
        sync_version=sync.version if sync else 0,
        config_version=config.version if config else 0,
        synchronous=settings.get("synchronous_mode") in _SYNCHRONOUS,
        paused=bool(settings.get("pause")),
        standby_cluster=bool(settings.get("standby_cluster")),
        switchover=_asked(entries.get("failover")),
        failover_version=entries["failover"].version if "failover" in entries else 0,
        ttl_s=float(settings.get("ttl") or 30),
        seal=_seal(entries.get(SEAL)),
        candidates={k.removeprefix("members/"): _candidate(e) for k, e in entries.items() if k.startswith("members/")},
    )


def _unchanged(prefix: str, seen: LockState) -> list[Fields]:
    """That the lock, /sync, the configuration are as seen, and that no switchover was asked for since."""
    versions = {
        "leader": seen.holder_version,
        "sync": seen.sync_version,
        "config": seen.config_version,
        "failover": seen.failover_version,
    }
    return [compare_version(prefix + key, version) for key, version in versions.items()]


@dataclass(frozen=True, slots=True)
class Taking:
    """A lock to be taken: by which guard, under which lease of its own, and what is kept with it."""

    name: str
    lease: int
    seal: Seal


def sealing(prefix: str, entries: Mapping[str, Entry], seen: LockState, taking: Taking) -> Transaction:
    """The transaction that takes the lock from `seen.holder`.

    /sync is written anew with its own value: Patroni changes it only from the version it read, so whatever the old
    leader prepared before the seal fails, and it learns that it lost the lock before it could prepare anything else.
    """
    old = seen.sync_leader
    compare = _unchanged(prefix, seen)
    success = [
        # First: Patroni applies watch events one by one, and whoever sees the new /sync must know the lock is lost.
        put(f"{prefix}leader", taking.name, taking.lease),
        put(f"{prefix}{SEAL}", json.dumps(asdict(taking.seal)), taking.lease),
        put(f"{prefix}sync", entries["sync"].value),
        # Without an address of the old leader standbys disconnect, and nobody asks it first.
        delete(f"{prefix}members/{old}"),
    ]
    failsafe = _json(entries.get("failsafe"))
    if old in failsafe:
        others = {member: url for member, url in failsafe.items() if member != old}
        compare.append(compare_version(f"{prefix}failsafe", entries["failsafe"].version))
        success.append(put(f"{prefix}failsafe", json.dumps(others, separators=(",", ":"))))
    return Transaction(compare, success)


def handing_over(prefix: str, sealed: LockState, to: str) -> Transaction:
    """The transaction that gives our lock to a member, under the lease of its own key: as if it had acquired it."""
    candidate = sealed.candidates[to]
    compare = [*_unchanged(prefix, sealed), compare_lease(f"{prefix}members/{to}", candidate.lease)]
    return Transaction(compare, [put(f"{prefix}leader", to, candidate.lease), delete(f"{prefix}{SEAL}")])


_ELECTION_S = 1.0
"""How long after a new term is first seen its leader may still extend the leases."""
_ROUNDED_S = 1.5
"""etcd tells what is left of a lease in whole seconds."""


class EtcdLeaderLock:
    """The leader lock of one Patroni cluster. prefix: Patroni's namespace and scope, "/service/main/"."""

    def __init__(self, access: EtcdAccess, prefix: str, now: Callable[[], float]) -> None:
        # A client for each thread: one reads, one acts, one moves etcd's leader. A dead member delays the first only.
        self._reader = Etcd3(access)
        self._etcd = Etcd3(access, self._reader.order)
        self._etcd_leader = EtcdLeader(Etcd3(access, self._reader.order))
        self._prefix, self._now = prefix, now
        self._term, self._term_since, self._extended = 0, 0.0, 0.0

    def read(self) -> LockState:
        """The state now; TargetError without a majority, and where no Patroni keeps its keys there."""
        at = self._now()
        entries = self._reader.prefix(self._prefix)
        if "config" not in entries:
            raise TargetError(
                f"etcd holds no Patroni cluster at {self._prefix}",
                "give [etcd3] namespace and scope in the target file",
            )
        return state_of(entries, at, self._lease_age_s(entries.get("leader")))

    def _lease_age_s(self, leader: Entry | None) -> float | None:
        """Since the holder renewed its lease; None where that is not known.

        A new leader of etcd gives every lease its ttl anew and an election timeout on top (lessor.Promote): that is no
        sign of life. Whatever a lease shows just after an election is its zero, and only what is later counts.
        """
        age = self._reader.lease_age_s(leader.lease) if leader and leader.lease else None
        now = self._now()
        if self._reader.term != self._term:
            self._term, self._term_since, self._extended = self._reader.term, now, 0.0
        if age is None:
            return None
        if now - self._term_since < _ELECTION_S:
            self._extended = max(self._extended, now - age)
        return age if now - age > self._extended + _ROUNDED_S else None

    def seal(self, seen: LockState, name: str, seal: Seal) -> bool:
        """Take the lock from the holder that `seen` names and end its lease; whether the lock was taken."""
        entries = self._etcd.prefix(self._prefix)
        if "sync" not in entries or seen.switchover:
            return False
        # A seal that is gone on with keeps its lease: guards that relieve one another hold the lock no longer than one.
        lease = seen.holder_lease if seen.sealed else self._etcd.grant(seen.ttl_s)
        taking = Taking(name, lease, seal)
        done = self._etcd.transaction(sealing(self._prefix, entries, seen, taking))
        if done:
            # Not awaited here: handing over ends it for certain.
            with suppress(TargetError):
                self._etcd.revoke(seal.old_lease)
        return done

    def hand_over(self, sealed: LockState, to: str) -> bool:
        """End the old leader's lease, renew the member's, then give it the lock; whether that was done."""
        if sealed.switchover:
            return False
        # A leader whose view of etcd hangs renews its lease alone, not the lock: without a lease it demotes.
        self._etcd.revoke(sealed.seal.old_lease if sealed.seal else 0)
        alive = self._etcd.renew(sealed.candidates[to].lease)
        return alive and self._etcd.transaction(handing_over(self._prefix, sealed, to))

    def part(self, seen: LockState) -> str:
        """Move etcd's leader off the machine of the lock's holder, where it stands there."""
        holder = seen.candidates.get(seen.holder)
        return self._etcd_leader.leave(holder.host) if holder is not None and holder.host else ""
