"""A simulated Patroni: one thread, one HA cycle of sequential steps (patroni/ha.py of 4.1), with time between them.

Between what a cycle has read and what it does anything may happen; every step can be the one at which a fault comes.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tests.guard_simulation.etcd import SimulatedEtcd, View
from tests.guard_simulation.patroni_election import Status, failover_possible, healthiest
from tests.guard_simulation.patroni_keys import Cluster, Dcs, DcsError, Tags, Times, cluster_of
from tests.guard_simulation.patroni_sync import SyncHandler
from tests.guard_simulation.postgres import Postgres
from tests.guard_simulation.world import Process, World


@dataclass(slots=True)
class Watchdog:
    """required: Patroni may not lead without. opens: whether it can be opened; known: whether REST tells so."""

    required: bool = False
    opens: bool = True
    known: bool = True

    @property
    def failed(self) -> bool:
        """What REST says (watchdog_failed)."""
        return self.required and not self.opens and self.known


@dataclass(eq=False)
class Patroni:
    """One member's Patroni."""

    world: World
    etcd: SimulatedEtcd
    process: Process
    postgres: Postgres
    times: Times
    others: Mapping[str, "Patroni"]
    promoted: Callable[["Patroni"], None]
    tags: Tags = field(default_factory=Tags)
    watchdog: Watchdog = field(default_factory=Watchdog)

    def __post_init__(self) -> None:
        self.name, self.version = self.postgres.name, "4.1.5"
        self.view = View(self.etcd, self.process, self._changed)
        self.dcs = Dcs(self.world, self.etcd, self.process, self.name, self.view, self.times)
        self.sync = SyncHandler(self.postgres, self.dcs, self.load)
        self.busy = ""
        """What another thread does now: promote, or starting after demotion."""
        self.cluster = cluster_of(self.view.keys)
        self.known: tuple[str, ...] = ()
        """The members while there was a leader last (old_cluster)."""
        self.unasked = False
        """It took the key as an operator's candidate, which compares no positions."""
        self.about = ""
        """The member that this cycle is about to follow."""
        self._promote_at = 0.0
        self._failsafe: tuple[float, str] = (-1000.0, "")
        """When a leader that has lost etcd last asked (POST /failsafe), and which."""
        self._random = self.world.random(f"patroni {self.name}")
        self._actor = None if self.process.dead else self.world.spawn(self.process, self._run)

    # The loop.

    def _changed(self, key: str) -> None:
        if self._actor is not None:
            self.world.wake(self._actor)

    def _run(self) -> None:
        self.world.sleep(self._random.random() * self.times.loop_wait)
        while True:
            began = self.world.now
            self._cycle()
            self.dcs.refreshed = -1000.0
            late = 0.0 if self.cluster.leader == self.name else 0.3
            self.world.wait(max(0.02, began + self.times.loop_wait + late - self.world.now))

    def load(self) -> Cluster:
        """The keys, as its cache has them."""
        cluster = cluster_of(self.dcs.keys())
        if not cluster.unlocked:
            self.known = tuple(cluster.members)
        elif cluster.failsafe_mode and self._failsafe[0] + self.times.ttl > self.world.now:
            # The leader that asked is taken for the leader (Failsafe.update_cluster).
            cluster = replace(cluster, leader=self._failsafe[1], leader_lease=0)
        self.cluster = cluster
        return cluster

    @property
    def paused(self) -> bool:
        """Whether the configuration says pause."""
        return bool(self.cluster.config.get("pause"))

    @property
    def primary(self) -> bool:
        """Whether its PostgreSQL leads."""
        return self.postgres.role == "primary"

    def _cycle(self) -> None:
        self.about = ""
        try:
            self.load()
            self.dcs.step("reads")
            if self.name not in self.cluster.members:
                self._touch()
                self.dcs.step("has no key of its own")
            if self.busy:
                self._busy()
            elif self.postgres.role == "stopped":
                self._recover()
            elif self.postgres.role == "starting" and self.cluster.leader == self.name:
                self._update_lock()
            elif self.cluster.unlocked:
                self._unlocked()
            else:
                self._locked()
            self._touch()
        except DcsError:
            self._without_dcs()

    def _touch(self) -> None:
        self.dcs.touch(self.description())

    @property
    def _state(self) -> str:
        return self.postgres.role if self.postgres.role in ("stopped", "starting") else "running"

    def description(self) -> str:
        """What its own key says (touch_member)."""
        data: dict[str, Any] = {
            "conn_url": f"postgres://{self.process.host}:5432/postgres",
            "api_url": f"http://{self.process.host}:8008/patroni",
            "state": self._state,
            "role": "primary" if self.primary else "replica",
            "version": self.version,
        }
        if self.tags.given:
            data["tags"] = self.tags.given
        if self.postgres.role in ("primary", "standby"):
            data["xlog_location"] = self.postgres.position
            data["timeline"] = self.postgres.branch.number
        if self.paused:
            data["pause"] = True
        return json.dumps(data, separators=(",", ":"))

    def status(self) -> Status | None:
        """What its REST answers; None while PostgreSQL does not."""
        if self.process.frozen or self.process.dead or self.postgres.role not in ("primary", "standby"):
            return None
        position = 0 if self.primary else self.postgres.position
        return Status(self.primary, position, self.tags, self.watchdog.failed)

    def rest(self) -> dict[str, Any]:
        """The part of GET /patroni that says whether it could lead."""
        return {"state": self._state, "watchdog_failed": self.watchdog.failed, "pause": self.paused}

    # With a leader.

    def _locked(self) -> None:
        if self.cluster.leader != self.name:
            self._follow()
            return
        if self.paused and not self.primary:
            self.dcs.delete_leader()
            return
        if self._update_lock():
            if not self._asked_to_step_down():
                self._enforce_primary()
        elif self.primary and not self.paused:
            self._demote("has lost the leader key")

    def _update_lock(self) -> bool:
        if not self.dcs.update_leader(self.cluster):
            return False
        if self.primary:
            self.dcs.put("status", f'{{"optime":{self.postgres.flushed}}}')
        if self.cluster.failsafe_mode:
            names = sorted({*self.cluster.members, self.name})
            value = "{" + ",".join(f'"{n}":"http://{n}:8008/patroni"' for n in names) + "}"
            known = self.view.keys.get("failsafe")
            if known is None or known.value != value:
                self.dcs.put("failsafe", value)
        return True

    def _enforce_primary(self) -> None:
        if not self.paused and self.watchdog.required and not self.watchdog.opens:
            if self.primary:
                self._demote("watchdog could not be activated", release=True)
            else:
                self.world.tell(self.name, "releases the leader key: watchdog could not be activated")
                self.world.point(f"{self.name} releases")
                self.dcs.delete_leader()
            return
        if self.primary:
            now, quorum = self.world.now, self.cluster.config.get("synchronous_mode") == "quorum"
            if not quorum or self._promote_at == 0 or now - self._promote_at > self.times.loop_wait:
                self.sync.process(self.cluster)
            if self._promote_at == 0:
                self._promote_at = now
            return
        if not self.sync.before_promote(self.cluster):
            return
        self.busy = "promote"
        self.dcs.step("promotes")
        if self.postgres.role == "standby":
            self.postgres.promote(self._promotion_done)

    def _promotion_done(self) -> None:
        self.busy = ""
        self._promote_at = self.world.now
        self.promoted(self)
        self._changed("")

    def _asked_to_step_down(self) -> bool:
        """A switchover or failover that is asked for (process_manual_failover_from_leader)."""
        asked = self.cluster.failover
        if not asked or (self.paused and not self.primary) or asked.get("scheduled_at"):
            return False
        candidate = asked.get("member")
        for_me = asked.get("leader") in (None, "", self.name) and candidate != self.name
        if for_me and not (self.paused and not candidate) and failover_possible(self, candidate):
            self.busy = "demote"
            self.world.spawn(self.process, self._step_down)
            return True
        self.dcs.put_if("failover", "{}", self.cluster.failover_version)
        return False

    def _step_down(self) -> None:
        """demote('graceful'): every standby that follows gets the last WAL, then the key is released."""
        self.world.tell(self.name, "steps down for a switchover")
        postgres = self.postgres
        postgres.role = "stopping"
        self.world.sleep(0.3 + 0.5 * self._random.random())
        if postgres.role == "stopping":
            postgres.stop()
        with suppress(DcsError):
            self.dcs.delete_leader()
        self.world.sleep(2.0)
        self._start_as_standby()

    # Without one.

    def _unlocked(self) -> None:
        if not healthiest(self):
            self._follow(refresh=True)
            return
        self.unasked &= bool(self.cluster.failover)
        self.dcs.step("is about to take the leader key")
        if not self.dcs.acquire():
            self._follow(refresh=True)
            return
        self.world.tell(self.name, "takes the leader key: elected")
        if self.cluster.failover:
            self.dcs.put("failover", "{}")
        self.load()
        self._enforce_primary()

    # Following.

    def _node_to_follow(self) -> str:
        cluster = self.cluster
        if self.tags.replicatefrom and self.tags.replicatefrom != self.name:
            node = cluster.address_of(self.tags.replicatefrom)
        else:
            node = cluster.leader if cluster.leader in cluster.members or cluster.leader in self.others else ""
            # A leader without a key of its own has no address, unless failsafe brought it.
            if node not in cluster.members and node != self._failsafe_leader():
                node = ""
        return node if node != self.name else ""

    def _failsafe_leader(self) -> str:
        recent = self._failsafe[0] + self.times.ttl > self.world.now
        return self._failsafe[1] if recent and self.cluster.failsafe_mode else ""

    def _follow(self, refresh: bool = False) -> None:
        if refresh:
            self.load()
        node = self._node_to_follow()
        if self.paused:
            if self.primary or not node:
                return
        elif self.primary:
            self._demote("does not hold the leader key")
            return
        if self.postgres.role != "standby":
            return
        leader = self.others.get(self.cluster.leader)
        if leader is not None and leader.primary and leader is not self and self._diverged(leader.postgres):
            self._restart_as_standby()
            return
        if node != self.postgres.conninfo:
            self.about = node
            self.dcs.step(f"is about to follow {node or 'nobody'}")
            self.about = ""
            if self.postgres.role == "standby":
                self.postgres.reload(node)

    def _diverged(self, leader: Postgres) -> bool:
        mine = self.postgres
        reached = self.world.reaches(self.process.host, leader.process.host)
        return reached and not leader.branch.has(mine.branch, mine.flushed)

    def _demote(self, why: str, release: bool = False) -> None:
        self.world.tell(self.name, f"demotes itself: {why}")
        self.dcs.step("demotes")
        self.postgres.stop()
        if release:
            self.dcs.delete_leader()
        self._restart_as_standby()

    def _restart_as_standby(self) -> None:
        self.postgres.stop()
        self.busy = "starting"
        self.world.spawn(self.process, self._start_as_standby)

    def _start_as_standby(self) -> None:
        """follow() in a thread of its own: rewound where there is a leader it has diverged from."""
        self.world.sleep(0.2 + 0.3 * self._random.random())
        cluster = cluster_of(self.view.now())
        leader = self.others.get(cluster.leader)
        if leader is not None and leader is not self and leader.primary and self._diverged(leader.postgres):
            self.world.sleep(1.0)
            if not leader.primary:
                self.busy = ""
                return
            self.postgres.rewind(leader.postgres)
        node = cluster.leader if cluster.leader in cluster.members and cluster.leader != self.name else ""
        self.postgres.begin(node, 0.1)
        self.busy = ""

    def _recover(self) -> None:
        """PostgreSQL does not run."""
        if self.cluster.leader == self.name and self._update_lock():
            self.world.tell(self.name, "starts PostgreSQL as a leader again")
            self.world.sleep(0.3)
            if self.postgres.role == "stopped":
                self.postgres.lead()
            return
        self._restart_as_standby()

    def _busy(self) -> None:
        if self.cluster.leader == self.name and self._update_lock():
            return
        if self.paused:
            return
        if self.busy == "promote":
            self.world.tell(self.name, "gives its promotion up: it has lost the leader key")
            self.postgres.promoting, self.busy = False, ""
            self.postgres.startup()
        elif self.primary:
            self._demote("lost the leader key meanwhile")

    def _without_dcs(self) -> None:
        if self.paused or self.postgres.role != "primary":
            return
        if self.cluster.failsafe_mode and self._all_agree():
            return
        self.world.tell(self.name, "demotes itself: etcd is not accessible")
        self.dcs.step("demotes without etcd")
        self.postgres.stop()
        self.busy = "starting"
        self.world.spawn(self.process, self._start_alone)

    def _start_alone(self) -> None:
        self.world.sleep(0.3)
        self.postgres.begin("", 0.1)
        self.busy = ""

    def _all_agree(self) -> bool:
        """POST /failsafe to every other member of /failsafe (check_failsafe_topology)."""
        names = self.cluster.failsafe
        if self.name not in names:
            return False
        self.dcs.step("asks failsafe")
        agreed = True
        for name in names:
            other = self.others.get(name)
            if other is None or other is self:
                continue
            reached = self.world.reaches(self.process.host, other.process.host)
            if not reached or other.process.frozen or other.process.dead or other.primary:
                agreed = False
                continue
            other._failsafe = (self.world.now, self.name)
        if not agreed:
            self.world.sleep(2.0)
        return agreed
