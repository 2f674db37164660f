"""A simulated etcd: revisions, leases, elections that renew them, late watches."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.guard_simulation.world import Process, World
from walproof.guarding.etcd import Fields

_ELECTION_TIMEOUT_S = 1.0


class LeaseNotFound(Exception):
    """etcd: requested lease not found."""


@dataclass(slots=True)
class Kv:
    """A key's value, the revision that wrote it last, its lease (0: none)."""

    value: str
    version: int
    lease: int
    fields: Fields | None = None
    """As the gateway writes it, once somebody has asked."""


@dataclass(slots=True)
class Lease:
    """A lease and the keys on it, in the order they came."""

    ttl: float
    ends: float
    renewed: float
    """When its owner last gave a sign of life."""
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

    def now(self) -> dict[str, Kv]:
        """The keys as they are known now; while etcd is cut off nothing new arrives."""
        etcd = self.etcd
        if self._coming and etcd.reached_by(self.process.host):
            while self._coming and self._coming[0][0] <= etcd.world.now:
                self.apply(*self._coming.popleft()[1:])
        return self.keys

    def apply(self, revision: int, key: str, kv: Kv | None) -> None:
        """An event arrives, or a write of one's own, which is known at once; an older one changes nothing."""
        known = self.keys.get(key)
        if known is not None and known.version >= revision:
            return
        if kv is not None:
            self.keys[key] = kv
        else:
            self.keys.pop(key, None)


class SimulatedEtcd:
    """One etcd of three members, on the hosts that are named. It acts in one order, as a majority agrees."""

    def __init__(self, world: World, hosts: tuple[str, ...], least_ttl: float = 2.0) -> None:
        self.world, self.hosts, self.least_ttl = world, hosts, least_ttl
        self.keys: dict[str, Kv] = {}
        self.leases: dict[int, Lease] = {}
        self.revision = 1
        self.term = 2
        self.leader = 0
        self.down: list[str] = []
        """Hosts whose member is gone."""
        self.stalled_until = 0.0
        self.promoted = True
        """Whether the leader counts the time of leases: until then they last for ever."""
        self.views: list[View] = []
        self.written: list[Callable[[str, Kv | None, Kv | None, str], None]] = []
        """Called with (key, before, after, by) of each write."""
        self.revoked: list[Callable[[int, Lease, str], None]] = []
        """Called before a lease is revoked with (number, lease, by)."""
        self.answered: list[Callable[[str, Fields, str, Fields], None]] = []
        """Called with (method, fields, by, answer) of what a guard has asked."""
        self.elected = -1000.0
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
        """Elect another leader: nothing is written meanwhile, then every lease is renewed and more (lessor.Promote).

        Members learn of the new term a little later than the old leader has stepped down (lessor.Demote).
        """
        self.world.after(0.5 * without_s, self._begin_term)
        self.leader = (self.leader + 1) % len(self.hosts)
        if self.hosts[self.leader] in self.down:
            self.leader = (self.leader + 1) % len(self.hosts)
        self.stalled_until = max(self.stalled_until, self.world.now + without_s)
        self.world.tell("etcd", f"elects another leader; nothing is written for {without_s:.2f} s")
        self.promoted = False
        self.world.after(1.2 * without_s, self._promote)

    def _begin_term(self) -> None:
        self.term += 1

    def _promote(self) -> None:
        self.promoted, self.elected = True, self.world.now
        for lease in self.leases.values():
            lease.ends = self.world.now + lease.ttl + _ELECTION_TIMEOUT_S

    # Leases.

    def grant(self, ttl: float) -> int:
        """A new lease; one that is asked for with less gets the least."""
        self._leases += 1
        number, ttl = self._leases, max(ttl, self.least_ttl)
        self.leases[number] = Lease(ttl, self.world.now + ttl, self.world.now)
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
        self.drop(number, "etcd")

    def drop(self, number: int, by: str) -> None:
        """End a lease with its keys."""
        lease = self.leases.pop(number)
        self.revision += 1
        for key in list(lease.keys):
            self.write(key, None, by)

    def keepalive(self, number: int) -> bool:
        """Renew a lease; whether there is one."""
        lease = self.leases.get(number)
        if lease is None:
            return False
        lease.ends, lease.renewed = self.world.now + lease.ttl, self.world.now
        return True

    def revoke(self, number: int, by: str) -> None:
        """End a lease as it is asked for; LeaseNotFound."""
        if number not in self.leases:
            raise LeaseNotFound
        for callback in self.revoked:
            callback(number, self.leases[number], by)
        self.drop(number, by)

    # Keys.

    def version(self, key: str) -> int:
        """The revision that wrote it last, 0 where it is not there."""
        return self.keys[key].version if key in self.keys else 0

    def put(self, key: str, value: str, lease: int, by: str) -> int:
        """Write a key as a transaction of its own; its revision."""
        self.may_hang_on(lease)
        self.revision += 1
        self.write(key, (value, lease), by)
        return self.revision

    def delete(self, key: str, by: str) -> int:
        """Remove a key as a transaction of its own."""
        self.revision += 1
        if key in self.keys:
            self.write(key, None, by)
        return self.revision

    def may_hang_on(self, lease: int) -> None:
        """LeaseNotFound where there is no such lease."""
        if lease and lease not in self.leases:
            raise LeaseNotFound

    def write(self, key: str, what: tuple[str, int] | None, by: str) -> None:
        """Write a key with its lease, or remove it, at the revision of now."""
        before = self.keys.get(key)
        if before is not None and before.lease in self.leases:
            self.leases[before.lease].keys.remove(key)
        after = None
        if what is None:
            self.keys.pop(key, None)
        else:
            value, lease = what
            after = Kv(value, self.revision, lease)
            self.keys[key] = after
            if lease:
                self.leases[lease].keys.append(key)
        for view in self.views:
            view.send(self.revision, key, after)
        for callback in self.written:
            callback(key, before, after, by)
