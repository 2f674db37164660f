"""What a simulated Patroni knows of etcd and writes there: its cache, its one lease (patroni/dcs/etcd3.py of 4.1)."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import patroni.tags

from tests.guard_simulation.etcd import Kv, LeaseNotFound, SimulatedEtcd, View
from tests.guard_simulation.world import Process, World


class DcsError(Exception):
    """etcd did not answer within retry_timeout."""


@lru_cache(maxsize=4096)
def _read(value: str) -> dict[str, Any]:
    found = json.loads(value or "{}")
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=65536)
def _voters(value: str) -> tuple[str, ...]:
    return tuple(str(_read(value).get("sync_standby") or "").split(",")) if _read(value).get("sync_standby") else ()


@dataclass(frozen=True, slots=True)
class Times:
    """Patroni's three times."""

    ttl: float = 20.0
    loop_wait: float = 2.0
    retry_timeout: float = 3.0


@dataclass(frozen=True)
class Tags(patroni.tags.Tags):  # type: ignore[misc]  # Patroni gives no types
    """A member's tags, as Patroni's own class reads them."""

    given: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, Any]:
        """As they are configured."""
        return self.given


@dataclass(frozen=True, slots=True)
class Cluster:
    """The keys as one cycle sees them. leader: the holder's name, "" for none."""

    leader: str
    leader_lease: int
    sync_leader: str
    sync_version: int
    voters: tuple[str, ...]
    quorum: int
    config: dict[str, Any]
    members: dict[str, dict[str, Any]]
    failover: dict[str, Any]
    failover_version: int
    last_lsn: int
    timeline: int
    failsafe: tuple[str, ...]

    @property
    def unlocked(self) -> bool:
        """Whether nobody leads."""
        return not self.leader

    @property
    def failsafe_mode(self) -> bool:
        """Whether it is on."""
        return bool(self.config.get("failsafe_mode"))

    def matches(self, name: str, or_leader: bool = False) -> bool:
        """Whether /sync names it."""
        return bool(self.sync_leader) and (name in self.voters or (or_leader and name == self.sync_leader))

    def address_of(self, name: str) -> str:
        """That member or else the leader, "" where it has no address (get_member)."""
        if name in self.members:
            return name
        return self.leader if self.leader in self.members else ""

    def tags(self, name: str) -> Tags:
        """Of a member, by its key."""
        return Tags(self.members.get(name, {}).get("tags") or {})


def cluster_of(keys: dict[str, Kv]) -> Cluster:
    """What these keys say."""

    def value(key: str) -> dict[str, Any]:
        return _read(keys[key].value) if key in keys else {}

    leader, sync, failover = keys.get("leader"), keys.get("sync"), keys.get("failover")
    named, members = value("sync"), {k[8:]: _read(kv.value) for k, kv in keys.items() if k.startswith("members/")}
    holder = leader.value if leader else ""
    return Cluster(
        leader=holder,
        leader_lease=leader.lease if leader else 0,
        sync_leader=str(named.get("leader") or ""),
        sync_version=sync.version if sync else 0,
        voters=_voters(sync.value) if sync else (),
        quorum=int(named.get("quorum") or 0),
        config=value("config"),
        members=members,
        failover=value("failover"),
        failover_version=failover.version if failover else 0,
        last_lsn=int(value("status").get("optime", 0)),
        timeline=int(members.get(holder, {}).get("timeline", 0)),
        failsafe=tuple(value("failsafe")),
    )


@dataclass(eq=False)
class Dcs:
    """One Patroni's way to etcd. Its lease is for life: leader key and member key hang on it."""

    world: World
    etcd: SimulatedEtcd
    process: Process
    name: str
    view: View
    times: Times
    lease: int = 0
    refreshed: float = -1000.0
    member: str = ""
    """What its own key says, as far as it knows."""

    def __post_init__(self) -> None:
        self._random = self.world.random(f"dcs of {self.name}")

    def step(self, what: str = "") -> None:
        """A little time passes, and a fault may come; what: the name of this step."""
        if what:
            self.world.point(f"{self.name} {what}")
        self.world.sleep(0.001 + 0.01 * self._random.random() ** 3)

    def answers(self) -> bool:
        """Whether etcd does what is asked now; where it does not, the cache is not believed any more."""
        if self.etcd.reached_by(self.process.host):
            return not self.etcd.stalled
        self.view.broken = True
        return False

    def keys(self) -> dict[str, Kv]:
        """The cache, read anew where that is needed; DcsError where it cannot be."""

        def rebuild() -> int:
            self.view.rebuild()
            return 1

        if self.view.broken:
            self.retry(rebuild)
        return self.view.now()

    def retry(self, act: Callable[[], int]) -> int:
        """Do it as soon as etcd answers; DcsError after retry_timeout."""
        deadline = self.world.now + self.times.retry_timeout
        while True:
            self.step()
            if self.answers():
                return act()
            if self.world.now + 0.3 > deadline:
                self.world.sleep(max(0.0, deadline - self.world.now))
                raise DcsError
            self.world.sleep(0.3)

    def refresh(self, force: bool = False) -> None:
        """Renew the lease, or get one."""
        if not force and self.lease and self.refreshed + self.times.loop_wait > self.world.now:
            return

        def act() -> int:
            if not self.etcd.keepalive(self.lease):
                self.lease = self.etcd.grant(self.times.ttl)
            return self.lease

        self.retry(act)
        self.refreshed = self.world.now

    def _put(self, key: str, value: str, lease: int) -> int:
        version = self.etcd.put(key, value, lease, self.name)
        self.view.apply(version, key, self.etcd.keys[key])
        return version

    def put_if(self, key: str, value: str, version: int) -> int:
        """Write a key that is still that version; its new version, 0 when it is not: then the cache is read anew."""

        def act() -> int:
            if self.etcd.version(key) == version:
                return self._put(key, value, 0)
            self.view.rebuild()
            return 0

        return self.retry(act)

    def put(self, key: str, value: str) -> None:
        """Write a key unconditionally, unless etcd cannot be reached."""
        self.step()
        if self.answers():
            self._put(key, value, 0)

    def acquire(self) -> bool:
        """Take the free leader key."""
        self.refresh()

        def act() -> int:
            if "leader" in self.etcd.keys:
                self.view.rebuild()
                return 0
            try:
                return self._put("leader", self.name, self.lease)
            except LeaseNotFound:
                self.lease = self.etcd.grant(self.times.ttl)
                return self._put("leader", self.name, self.lease)

        return self.retry(act) > 0

    def update_leader(self, cluster: Cluster) -> bool:
        """Renew the lease; only where the key hangs on another one is the key itself written (_update_leader)."""
        self.refresh(force=True)
        if self.lease == cluster.leader_lease:
            return True

        def act() -> int:
            now = self.etcd.keys.get("leader")
            if now is not None and now.value != self.name:
                return 0
            try:
                return self._put("leader", self.name, self.lease)
            except LeaseNotFound:
                return 0

        return self.retry(act) > 0

    def delete_leader(self) -> None:
        """Give the key up where it is one's own."""

        def act() -> int:
            now = self.etcd.keys.get("leader")
            if now is not None and now.value == self.name:
                self.view.apply(self.etcd.delete("leader", self.name), "leader", None)
            return 1

        self.retry(act)

    def touch(self, value: str) -> None:
        """Write the member's own key, where that changes anything."""
        try:
            self.refresh()
        except DcsError:
            return
        known = self.view.now().get(f"members/{self.name}")
        if known is not None and known.lease == self.lease and known.value == value:
            return
        self.step()
        if not self.answers():
            return
        try:
            self._put(f"members/{self.name}", value, self.lease)
        except LeaseNotFound:
            self.lease = 0
