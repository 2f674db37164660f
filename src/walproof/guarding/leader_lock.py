"""Patroni's leader lock in etcd: its keys as a LockState, and the two transactions of a guard.

Keys and their meaning: patroni/dcs/__init__.py and patroni/dcs/etcd3.py (4.1)."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from walproof.errors import TargetError
from walproof.guarding.etcd import (
    Entry,
    Etcd3,
    EtcdAccess,
    EtcdLeader,
    Fields,
    Transaction,
    compare_lease,
    compare_version,
    delete,
    put,
)
from walproof.machine.untrusted import from_json
from walproof.model.patroni_values import (
    ADJUSTS,
    failover_priority,
    is_on,
    is_standby_cluster,
    nofailover,
    nostream,
    nosync,
    number,
    plain_int,
    refused,
    replicatefrom,
    synchronous_mode,
    times,
)
from walproof.model.standby_names import folded
from walproof.model.takeover import Candidate, LockState, Seal

SEAL, LIMIT, INTENT = "walproof_guard", "walproof_guard_limit", "walproof_guard_intent"
"""Keys of the guard's own below Patroni's prefix, which Patroni does not know and leaves alone: what a seal keeps, when
the next takeover may be, and that a guard is about to seal."""
_INTENT_S, _LONGEST_INTENT_S = 2.0, 3.0
"""A guard that stands still for longer than that before the transaction seals nothing; etcd may grant more, which is
too much: the leader may be well again by then."""
_PROBED_EVERY_S = 60.0
"""How often an etcd is asked again whose least lease was too long."""
_STALE_S = 3.0
"""What was seen so long ago is nothing to seal by."""
_MARGIN_S = 3.0
"""etcd ends leases twice a second, and tells times in whole seconds."""
_SOON_S = 60.0
"""A switchover that is due within that time is under way; Patroni's leader begins one loop_wait before."""


_SEAL = TypeAdapter(Seal)


def _json(entry: Entry | None) -> dict[str, Any]:
    try:
        value = from_json(entry.value) if entry else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _candidate(entry: Entry) -> Candidate:
    data = _json(entry)
    tags = data.get("tags") or {}
    readable = isinstance(tags, dict)
    tagged = _tagged(tags) if readable else "tags that are no list of names and values"
    priority = failover_priority(tags) if readable else 0
    timeline = plain_int(data.get("timeline")) or 0
    running = data.get("state") == "running"
    words = str(data.get("version") or "")
    version = tuple(plain_int(part) or 0 for part in words.split(".")) if words else ()
    return Candidate(entry.lease, running, priority, _address(data.get("conn_url")), tagged, timeline, version)


def _tagged(tags: Mapping[str, Any]) -> str:
    """The tag for which a member is no voter.

    nofailover: it cannot lead. nosync: it is leaving /sync. replicatefrom: it follows that member, the old leader
    too, and not the holder of the lock (ha.py, _get_node_to_follow). nostream: it follows no member.
    """
    return replicatefrom(tags) or nofailover(tags) or nosync(tags) or nostream(tags)


def _address(url: object) -> str:
    try:
        parts = urlsplit(str(url or ""))
        return f"{parts.hostname or ''}:{parts.port or 5432}"
    except ValueError:
        return ""


def _seal(entry: Entry | None, lock: Entry | None) -> Seal | None:
    """What was written with the lock that is there now; None for a seal of another time, and for what is none."""
    if entry is None or lock is None or entry.version != lock.version:
        return None
    try:
        return _SEAL.validate_json(entry.value)
    except ValueError:
        return None


def _asked(failover: Entry | None, at: float, loop_wait_s: float) -> bool:
    """Whether a switchover or failover is asked for: Patroni writes {} when it is done; "n1:n2" is the old form.

    One that is scheduled for later is not under way, unless it names a member: where there is no leader Patroni obeys
    it at once, whenever it is due and however far that member lags (ha.py, manual_failover_process_no_leader).
    """
    if failover is None or failover.value.strip() in ("", "{}"):
        return False
    asked = _json(failover)
    if asked.get("member"):
        return True
    try:
        due = datetime.fromisoformat(str(asked["scheduled_at"])).timestamp()
    except (KeyError, ValueError, OverflowError, OSError):
        return True
    return due - at < max(_SOON_S, 2 * loop_wait_s)


def _voters(named: Mapping[str, Any], candidates: Iterable[str]) -> tuple[str, ...]:
    """The standbys of /sync, each as its own key spells it.

    Patroni copies the names from pg_stat_replication, and compares them without case as PostgreSQL does (SyncState).
    """
    keys = {folded(name): name for name in candidates}
    voters = (text.strip() for text in str(named.get("sync_standby") or "").split(","))
    return tuple(dict.fromkeys(keys.get(folded(voter), voter) for voter in voters if voter))


def _why_unsuitable(settings: dict[str, Any], members: Iterable[str]) -> str:
    spellings: dict[str, list[str]] = {}
    for name in sorted(members):
        spellings.setdefault(folded(name), []).append(name)
    if alike := [name for names in spellings.values() if len(names) > 1 for name in names]:
        # Any of them may have acknowledged a commit that waited for the other.
        return f"to PostgreSQL the members {', '.join(alike)} have one name"
    odd = " and ".join(refused(settings))
    # /config then does not say which timeouts Patroni goes by.
    return f"{odd} in /config: Patroni cannot read it and goes on with what it had" if odd else ""


def state_of(entries: Mapping[str, Entry], at: float) -> LockState:
    """What Patroni's keys say, by their names below its prefix."""
    leader, sync, config, limit = (entries.get(key) for key in ("leader", "sync", "config", LIMIT))
    named, settings = _json(sync), _json(config)
    quorum = plain_int(named.get("quorum") or 0)
    if quorum is None or quorum < 0:  # Patroni takes the first for empty (SyncState.from_node), and writes no second.
        named, quorum = {}, 0
    candidates = {k.removeprefix("members/"): _candidate(e) for k, e in entries.items() if k.startswith("members/")}
    # Before 4.0 quorum is none of its modes: it names no standby, and /sync may be of before.
    mode = synchronous_mode(settings)
    named_for = mode == "on" or (mode == "quorum" and not any(() < c.version < (4,) for c in candidates.values()))
    ttl_s, loop_wait_s, _ = times(settings, adjusted=all(c.version >= ADJUSTS for c in candidates.values()))
    return LockState(
        at,
        holder=leader.value if leader else "",
        holder_version=leader.version if leader else 0,
        holder_lease=leader.lease if leader else 0,
        sync_leader=str(named.get("leader") or ""),
        voters=_voters(named, candidates),
        quorum=quorum,
        sync_version=sync.version if sync else 0,
        config_version=config.version if config else 0,
        synchronous=named_for,
        paused=is_on(settings, "pause"),
        standby_cluster=is_standby_cluster(settings),
        failsafe=is_on(settings, "failsafe_mode"),
        switchover=_asked(entries.get("failover"), at, loop_wait_s),
        failover_version=entries["failover"].version if "failover" in entries else 0,
        ttl_s=ttl_s,
        least_position=(plain_int(_json(entries.get("status")).get("optime")) or 0)
        - number(settings, "maximum_lag_on_failover"),
        loop_wait_s=loop_wait_s,
        limit_s=max(0, plain_int(_json(limit).get("limit_s")) or 0),
        seal=_seal(entries.get(SEAL), leader),
        candidates=candidates,
        unsuitable=_why_unsuitable(settings, candidates),
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
    """A lock to be taken: by which guard, under which lease of its own, and what is kept with it.

    limit_lease: of the key that keeps other takeovers away for a while; intent: the version of the guard's own key that
    ends by itself when the guard stands still. Both 0 where another guard's seal is gone on with.
    """

    name: str
    lease: int
    seal: Seal
    limit_lease: int = 0
    intent: int = 0


def sealing(prefix: str, entries: Mapping[str, Entry], seen: LockState, taking: Taking) -> Transaction:
    """The transaction that takes the lock from `seen.holder`.

    /sync is written anew with its own value: Patroni changes it only from the version it read, so what the old
    leader prepared before the seal fails, and it learns that it lost the lock before it could prepare anything else.
    """
    old = seen.sync_leader
    compare = _unchanged(prefix, seen)
    fresh = []
    if not seen.sealed:
        compare.append(compare_version(f"{prefix}{INTENT}", taking.intent))
        limit = json.dumps({"limit_s": taking.seal.limit_s})
        fresh = [put(f"{prefix}{LIMIT}", limit, taking.limit_lease), delete(f"{prefix}{INTENT}")]
    success = [
        # First: Patroni applies watch events one by one; a member that sees the new /sync must know the lock is lost.
        put(f"{prefix}leader", taking.name, taking.lease),
        put(f"{prefix}{SEAL}", json.dumps(asdict(taking.seal)), taking.lease),
        put(f"{prefix}sync", entries["sync"].value),
        # Without an address of the old leader standbys disconnect, and no member asks it first.
        delete(f"{prefix}members/{old}"),
        *fresh,
    ]
    return Transaction(compare, success)


def handing_over(prefix: str, sealed: LockState, to: str, intent: int) -> Transaction:
    """The transaction that gives our lock to a member that is still there, under the lease that it hangs on.

    Patroni moves it to the member's own lease when it next renews it (dcs/etcd3.py, _update_leader).
    """
    compare = [
        *_unchanged(prefix, sealed),
        compare_lease(f"{prefix}members/{to}", sealed.candidates[to].lease),
        compare_version(f"{prefix}{INTENT}", intent),
    ]
    gone = [delete(f"{prefix}{SEAL}"), delete(f"{prefix}{INTENT}")]
    return Transaction(compare, [put(f"{prefix}leader", to, sealed.holder_lease), *gone])


_ELECTION_S = 1.0
"""How long after a new term is first seen its leader may still extend the leases."""
_ROUNDED_S = 1.5
"""etcd tells what is left of a lease in whole seconds."""
_FOREVER_S = 86400.0
"""No lease of Patroni's is extended by as much."""


@dataclass(frozen=True, slots=True)
class _Spare:
    """Leases granted to take the lock from that holder."""

    holder_version: int
    lease: int
    limit_lease: int


class EtcdLeaderLock:
    """The leader lock of one Patroni cluster. prefix: Patroni's namespace and scope, "/service/main/"."""

    def __init__(self, access: EtcdAccess, prefix: str, now: Callable[[], float]) -> None:
        # A client for each thread: one reads, one acts, one moves etcd's leader. A dead member delays the first only.
        self._reader = Etcd3(access)
        self._etcd = Etcd3(access, self._reader.order)
        self._etcd_leader = EtcdLeader(Etcd3(access, self._reader.order))
        self._prefix, self._now = prefix, now
        self._term, self._term_since, self._extended = 0, 0.0, 0.0
        self._spare: _Spare | None = None
        self._intent, self._probed = (0, 0.0), (0, 0.0)
        self._limit = (0, float("-inf"))

    def read(self) -> LockState:
        """The state now; TargetError without a majority, and where no Patroni keeps its keys there."""
        at = self._now()
        entries = self._reader.prefix(self._prefix)
        if "config" not in entries:
            raise TargetError(
                f"etcd holds no Patroni cluster at {self._prefix}",
                "give [etcd3] namespace and scope in the target file",
            )
        age_s, renewed = self._lease(entries.get("leader"))
        limited_at = self._limited_at(entries.get(LIMIT))
        late = bool(self._unsuitable()) and at - self._probed[1] >= _PROBED_EVERY_S
        if late or self._probed[0] != self._reader.term or not self._intent[0]:
            self._intent, self._probed = self._reader.grant(_INTENT_S), (self._reader.term, at)
        state = replace(state_of(entries, at), lease_age_s=age_s, lease_renewed=renewed, limited_at=limited_at)
        return replace(state, unsuitable=state.unsuitable or self._unsuitable())

    def _unsuitable(self) -> str:
        """Why a guard must not seal here: etcd grants no lease that is short enough for an intent."""
        granted_s = self._intent[1]
        if granted_s <= _LONGEST_INTENT_S:
            return ""
        least = f"etcd's least lease is {granted_s:g} s, 1.5 times its election timeout"
        return f"{least}: a guard that stands still for as long must not seal, set that timeout to at most 2 s"

    def _limited_at(self, limit: Entry | None) -> float:
        """When the last seal was made, by the age of the lease that no guard renews."""
        if limit is None:
            return float("-inf")
        if self._limit[0] != limit.version:
            age = max(0.0, self._reader.lease_age_s(limit.lease) or 0.0)
            self._limit = (limit.version, self._now() - age)  # after the answer: a stall in between lengthens the limit
        return self._limit[1]

    def _lease(self, leader: Entry | None) -> tuple[float | None, bool]:
        """For how long the lease was not renewed, None where that is not known; whether its holder renewed it then.

        A new leader of etcd gives every lease its ttl anew and an election timeout on top (lessor.Promote): that is no
        sign of life. What a lease shows just after an election is its zero, and only what is later counts. Before
        that, and when it leads no more, it says that leases last for ever (lessor.Demote).
        """
        asked = self._now()
        age = self._reader.lease_age_s(leader.lease) if leader and leader.lease else None
        now = self._now()
        if age is not None and age < -_FOREVER_S:
            self._term = 0
            return None, False
        if self._reader.term != self._term:
            self._term, self._term_since, self._extended = self._reader.term, now, 0.0
        if age is None:
            return None, False
        if now - self._term_since < _ELECTION_S:
            self._extended = max(self._extended, now - age)
        # A stall between question and answer shows no renewal.
        return max(0.0, age), asked - age > self._extended + _ROUNDED_S

    def seal(self, seen: LockState, name: str, seal: Seal) -> bool:
        """Take the lock from the holder that `seen` names; whether it was taken. TargetError when that is not known."""
        if seen.switchover:
            return False
        # A seal that is gone on with keeps its lease: guards that relieve one another hold the lock no longer than one.
        intent = 0 if seen.sealed else self._intend(name)
        entries = self._etcd.prefix(self._prefix)
        leader = entries.get("leader")
        if leader is None or leader.version != seen.holder_version or "sync" not in entries:
            return False
        if self._now() - seen.at > _STALE_S or (intent and self._unsuitable()):
            return False
        taking = Taking(name, seen.holder_lease, seal) if seen.sealed else self._taking(name, seen, seal, intent)
        return self._etcd.transaction(sealing(self._prefix, entries, seen, taking))

    def _intend(self, name: str) -> int:
        """Write a key of our own that soon ends by itself, for the transaction to compare; its version.

        A seal of ours that is still on its way can be done no more: it compares an earlier version.
        """
        if not self._etcd.renew(self._intent[0]):
            self._intent = self._etcd.grant(_INTENT_S)
        return self._etcd.put(f"{self._prefix}{INTENT}", name, self._intent[0])

    def _taking(self, name: str, seen: LockState, seal: Seal, intent: int) -> Taking:
        """Leases with all their time left: that of the lock lasts a ttl from the last moment at which it may be taken.

        Those of a seal that was not done are used again while the same holder leads: nothing can hang on them.
        """
        spare = self._spare if self._spare and self._spare.holder_version == seen.holder_version else None
        if spare and self._etcd.renew(spare.lease) and self._etcd.renew(spare.limit_lease):
            return Taking(name, spare.lease, seal, spare.limit_lease, intent)
        ttl_s = max(seen.ttl_s, self._etcd.granted_s(seen.holder_lease))
        lease, _ = self._etcd.grant(ttl_s + self._intent[1] + _MARGIN_S)
        # A takeover within twice the limit of the one before doubles it.
        self._spare = _Spare(seen.holder_version, lease, self._etcd.grant(2 * seal.limit_s)[0])
        return Taking(name, lease, seal, self._spare.limit_lease, intent)

    def hand_over(self, sealed: LockState, to: str) -> bool:
        """Give the lock to a member; whether that was done. TargetError when that is not known.

        With all the time of the seal's lease, a ttl and more: a member that finds the key gone after it has read it
        takes it without an election (dcs/etcd3.py, _update_leader), and with failsafe_mode the others follow the old
        leader by then.
        """
        if sealed.switchover:
            return False
        intent = self._intend(sealed.holder)
        if not self._etcd.renew(sealed.holder_lease):
            return False
        return self._etcd.transaction(handing_over(self._prefix, sealed, to, intent))

    def part(self, seen: LockState) -> str:
        """Move etcd's leader off the machine of the lock's holder, where it stands there."""
        holder = seen.candidates.get(seen.holder)
        host = holder.address.rpartition(":")[0] if holder is not None else ""
        return self._etcd_leader.leave(host) if host else ""
