"""How a simulated Patroni's leader changes synchronous_standby_names and /sync (ha.py, postgresql/sync.py of 4.1).

For quorum the installed Patroni's own resolver decides.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from patroni.quorum import QuorumStateResolver

from tests.guard_simulation.patroni_keys import Cluster, Dcs
from tests.guard_simulation.postgres import Postgres
from tests.guard_simulation.wal import Names

Steps = tuple[tuple[str, str, int, tuple[str, ...]], ...]


@lru_cache(maxsize=65536)
def _quorum_steps(*state: Any) -> Steps:
    names = ("leader", "quorum", "voters", "numsync", "sync", "numsync_confirmed", "active", "sync_wanted")
    fields = dict(zip(names, state[:8], strict=True))
    resolver = QuorumStateResolver(**fields, leader_wanted=state[8])
    return tuple((s.transition_type, s.leader, s.num, tuple(sorted(s.names))) for s in resolver)


@dataclass(slots=True)
class SyncHandler:
    """What a leader remembers of its synchronous standbys."""

    postgres: Postgres
    dcs: Dcs
    load: Callable[[], Cluster]
    ready: list[str] = field(default_factory=list)
    base: int = 0
    """The position that a standby must have reached since the names were changed."""
    known: Names = field(default_factory=Names)

    def set(self, names: Collection[str], number: int | None, quorum: bool) -> None:
        """Write synchronous_standby_names (set_synchronous_standby_names)."""
        star = "*" in names or bool(number and not names)
        self.postgres.set_names(
            Names(number or 1, (), any_of=True, star=True)
            if star
            else Names(len(names) if number is None else number, tuple(sorted(names)), any_of=quorum)
        )
        if not star and self.postgres.role == "primary":
            self.dcs.world.sleep(0.1)
            self._names_changed()

    def _names_changed(self) -> None:
        names = self.postgres.names
        if names != self.known:
            self.known = names
            self.ready = [n for n in self.ready if n in names.names]
            self.base = self.postgres.flushed

    def state(self, cluster: Cluster) -> tuple[list[str], list[str]]:
        """Active and confirmed standbys (current_state)."""
        self._names_changed()
        postgres, quorum = self.postgres, cluster.config.get("synchronous_mode") == "quorum"
        wanted = int(cluster.config.get("synchronous_node_count", 1))
        names = postgres.names
        synced = postgres.synced()
        replicas = []
        for name, sender in postgres.senders.items():
            member = cluster.members.get(name)
            if member is None or member.get("state") != "running" or not sender.flushed:
                continue
            tags = cluster.tags(name)
            if tags.nosync or self._cascades(cluster, name):
                continue
            kind = "quorum" if names.any_of else "sync" if name in synced[: names.number] else "potential"
            replicas.append((tags.sync_priority, kind if name in names.names else "async", sender.flushed, name))
        replicas.sort(reverse=True)
        for _, kind, flushed, name in replicas:
            caught_up = flushed >= self.base and kind == ("quorum" if quorum else "sync")
            if name not in self.ready and name in names.names and (caught_up or (not quorum and cluster.matches(name))):
                self.ready.append(name)
        self.ready = [n for n in self.ready if n in postgres.senders]
        active: list[str] = []
        confirmed: list[str] = []
        for _, kind, _, name in sorted(replicas, key=lambda r: cluster.tags(r[3]).nofailover):
            if quorum and cluster.tags(name).nofailover and len(active) >= wanted:
                continue
            active.append(name)
            if name in self.ready and (quorum or kind == "sync"):
                confirmed.append(name)
            if not quorum and len(active) >= wanted:
                break
        return active, confirmed

    def _cascades(self, cluster: Cluster, name: str) -> bool:
        follows = cluster.tags(name).replicatefrom
        if not follows or follows not in cluster.members or follows in (name, self.postgres.name):
            return False
        if not cluster.tags(follows).replicatefrom:
            return follows in self.postgres.senders
        return self._cascades(cluster, follows)

    def _write(self, leader: str, voters: Collection[str], quorum: int, version: int) -> int:
        value = {"leader": leader, "sync_standby": ",".join(sorted(voters)) or None, "quorum": quorum}
        return self.dcs.put_if("sync", json.dumps(value, separators=(",", ":")), version)

    def process(self, cluster: Cluster) -> None:
        """One cycle's part in synchronous replication."""
        if not cluster.config.get("synchronous_mode"):
            return
        if not cluster.sync_leader:
            if not self._write(self.postgres.name, (), 0, cluster.sync_version):
                return
            cluster = self.load()
        if cluster.config["synchronous_mode"] == "quorum":
            self._quorum(cluster)
        else:
            self._multisync(cluster)

    def _quorum(self, cluster: Cluster) -> None:
        me, began, loop_wait = self.postgres.name, self.dcs.world.now, self.dcs.times.loop_wait
        leader, quorum, voters, version = cluster.sync_leader, cluster.quorum, cluster.voters, cluster.sync_version
        wanted = int(cluster.config.get("synchronous_node_count", 1))
        least = 1 if cluster.config.get("synchronous_mode_strict") else 0
        while True:
            active, confirmed = self.state(cluster)
            names = self.postgres.names
            kind = "break"
            steps = _quorum_steps(
                leader, quorum, voters, 0 if names.star else names.number, names.names, len(confirmed),
                tuple(sorted(active)), wanted, me,
            )  # fmt: skip
            for kind, leader, number, who in steps:
                if self.dcs.world.now - began >= loop_wait:
                    return
                self.dcs.step(f"about to write {kind}")
                if kind == "quorum":
                    version = self._write(leader, who, number, version)
                    if not version:
                        return
                    quorum, voters = number, who
                elif kind == "sync":
                    self.set(who, max(number, least), True)
            if kind != "restart" or self.dcs.world.now - began + 1 >= loop_wait:
                return
            self.dcs.world.sleep(1.0)

    def _multisync(self, cluster: Cluster) -> None:
        me, version, voters = self.postgres.name, cluster.sync_version, sorted(cluster.voters)
        active, confirmed = self.state(cluster)
        if me != cluster.sync_leader:
            version, voters = self._write(me, (), 0, version), []
            if not version:
                return
        picked, allowed, names = sorted(active), sorted(confirmed), self.postgres.names
        if picked == voters and voters != allowed:
            version, voters = self._write(me, allowed, 0, version), allowed
            if not version:
                return
        listed = [] if names.star else sorted(names.names)
        if not (picked == voters == listed and names.number == len(picked)):
            self._pick(cluster, picked, [n for n in voters if n in allowed], voters, version)

    def _pick(self, cluster: Cluster, picked: list[str], common: list[str], voters: list[str], version: int) -> None:
        """From the voters that stay to those that are picked: /sync loses first, and wins last."""
        me, allowed = self.postgres.name, sorted(self.state(cluster)[1])
        if common != voters:
            self.dcs.step("about to write common")
            version = self._write(me, common, 0, version)
            if not version:
                return
        if cluster.config.get("synchronous_mode_strict") and not picked:
            picked = ["*"]
        self.dcs.step("about to set names")
        self.set(picked, None, False)
        if picked and picked not in (["*"], allowed):
            self.dcs.world.sleep(2.0)
            allowed = sorted(self.state(cluster)[1])
        if allowed and allowed != common:
            self.dcs.step("about to write confirmed")
            self._write(me, allowed, 0, version)

    def before_promote(self, cluster: Cluster) -> bool:
        """What is set before a promotion (process_sync_replication_prepromote); whether it may go on."""
        least = 1 if cluster.config.get("synchronous_mode_strict") else 0
        if cluster.config.get("synchronous_mode") == "quorum" and cluster.sync_leader:
            voters = [*cluster.voters, cluster.sync_leader]
            number = len(voters) - cluster.quorum - 1
            if self.postgres.name in voters:
                voters.remove(self.postgres.name)
            else:
                number += 1
            self.set(voters, max(number, 0), True)
            return True
        if cluster.config.get("synchronous_mode") and not self._write(self.postgres.name, (), 0, cluster.sync_version):
            return False
        self.set((), least, False)
        return True
