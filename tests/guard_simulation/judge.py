"""What must hold in every schedule, seen from outside: by PostgreSQL's WAL and by what is written in etcd."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.guard_simulation.etcd import Kv, Lease, SimulatedEtcd
from tests.guard_simulation.guard import GuardHost
from tests.guard_simulation.patroni import Patroni
from tests.guard_simulation.patroni_keys import Cluster, cluster_of
from tests.guard_simulation.postgres import Postgres
from tests.guard_simulation.wal import Branch
from tests.guard_simulation.world import World
from walproof.guarding.decide import Memory, State
from walproof.model.takeover import GUARD

_KNOWN_S = 3.5
"""What a guard knows of a standby is at most a few answers old."""
_LEFT_ALONE_S = 1.5
"""A guard leaves another one's seal alone for two seconds after it has read of it."""
_AT_MOST_EVERY_S = 13.0
"""Seals are 15 s apart, by leases of whole seconds."""
_AWAITED_S = 34.0
"""For a ttl a guard awaits a promotion."""
_AGAIN = 12
"""So often a guard says the same line in no run."""
_SUSPECT_S, _REST_S = 0.95, 0.5
"""A leader is silent for a second until it is suspected; a hand-over waits for all that answer for half of one."""


_PLAIN = ("age", "limit", "pointless", "eager", "left")
"""What is judged in plain schedules alone: where a guard stands still at any step, what it knew then is not certain."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What was wrong, in one word and in one sentence."""

    kind: str
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class _Seal:
    """Whose key was taken, the key then; config, failover: versions of those keys."""

    old: str
    lock: Kv
    config: int
    failover: int


def holders(servers: Iterable[Postgres], branch: Branch, position: int) -> list[str]:
    """Which of them hold that position of a branch on disk."""
    return [s.name for s in servers if s.branch.has(branch, position) and s.flushed >= position]


def asked(failover: dict[str, Any]) -> bool:
    """Whether a switchover is asked for that is due soon, or names a member: Patroni obeys that one at any time."""
    later = str(failover.get("scheduled_at", "")).startswith("2999")
    return bool(failover) and not (later and not failover.get("member"))


def follows(member: Patroni, leader: str) -> bool:
    """Whether a standby may still acknowledge something to that leader, now or in a moment; a dead one cannot."""
    standby = member.postgres
    who = (standby.source, standby.conninfo, standby._startup_conninfo, member.about)
    return not standby.process.dead and leader in who


def _counts(cluster: Cluster, voter: str) -> bool:
    tags = cluster.tags(voter)
    return voter in cluster.members and not (tags.replicatefrom or tags.nofailover or tags.nosync or tags.nostream)


@dataclass(slots=True)
class Judge:
    """Watches one run."""

    world: World
    etcd: SimulatedEtcd
    members: dict[str, Patroni]
    branches: list[Branch]
    violations: list[Violation] = field(default_factory=list)
    patroni_losses: int = 0
    """Commits lost where no guard can be blamed: Patroni's own elections, or a /sync that was wrong before."""
    plain: bool = False
    """Whether nothing but what the guard must cope with happens: then it is asked for more."""
    seals: list[float] = field(default_factory=list)
    hand_overs: list[float] = field(default_factory=list)
    promotions: list[float] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)
    """Who was promoted."""
    most_leases: int = 0
    guards: dict[str, GuardHost] = field(default_factory=dict)
    led_since: list[float] = field(default_factory=lambda: [0.0])
    """When members got the leader key, or moved it to another lease."""
    followed: dict[str, float] = field(default_factory=dict)
    """When a standby last answered and had somebody to follow."""
    newest: Branch = field(init=False)
    """Of the last promotion of a holder of the leader key."""
    _count: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(guard, what it did or logged), how often."""
    _configured: float = -1000.0
    _uncounted: dict[str, float] = field(default_factory=dict)
    """Members whose keys say that they are no voters any more, and since when."""
    _lost: list[Branch] = field(default_factory=list)
    _seal: _Seal | None = None
    _sealed_at: float = 0.0
    _led: tuple[float, float] = (0.0, 0.0)
    """Since when the leader key has been what it is now; what it was before."""

    def __post_init__(self) -> None:
        self.newest = self.branches[0]
        self.etcd.written.append(self.written)
        self.etcd.revoked.append(self.revoked)

    def wrong(self, kind: str, text: str) -> None:
        """A violation, at this moment."""
        if kind in _PLAIN and not self.plain:
            return
        self.world.tell("JUDGE", f"{kind}: {text}")
        self.violations.append(Violation(kind, self.world.now, text))

    # PostgreSQL.

    def acknowledged(self, server: Postgres, position: int) -> None:
        """A commit was acknowledged: it must be on the newest branch, or a promotion has lost it."""
        branch = server.branch
        if branch is not self.newest and not self.newest.has(branch, position):
            self._lose(branch, f"{server.name} acknowledges {position} on timeline {branch.number} after the promotion")

    def promoted(self, patroni: Patroni) -> None:
        """A standby leads: it must hold whatever was acknowledged."""
        postgres = patroni.postgres
        new = Branch(len(self.branches) + 1, postgres.branch, postgres.flushed)
        new.asked_for = patroni.unasked
        self.world.tell(patroni.name, f"is promoted with {postgres.flushed}: timeline {new.number}")
        self.branches.append(new)
        holder = self.etcd.keys.get("leader")
        postgres.branch = new
        if holder is not None and holder.value != patroni.name:
            self.wrong("two leaders", f"{patroni.name} is promoted, and {holder.value} holds the leader key")
            postgres.lead()
            return
        self.promotions.append(self.world.now)
        self.leaders.append(patroni.name)
        self.newest = new
        postgres.lead()
        for branch in self.branches[:-1]:
            if branch.acknowledged and not new.has(branch, branch.acknowledged):
                held = holders((m.postgres for m in self.members.values()), branch, branch.acknowledged)
                self._lose(
                    branch,
                    f"{patroni.name} is promoted with {postgres.flushed}, {branch.acknowledged} was acknowledged on "
                    f"timeline {branch.number} (held by {', '.join(held)})",
                )

    def _lose(self, branch: Branch, text: str) -> None:
        if any(branch is lost for lost in self._lost):
            return
        self._lost.append(branch)
        if branch.sealed and not branch.unsure and not self.newest.asked_for:
            self.wrong("loss", text)
        else:
            self.patroni_losses += 1
            self.world.tell("JUDGE", f"Patroni's own loss: {text}")

    # etcd.

    def written(self, key: str, before: Kv | None, after: Kv | None, by: str) -> None:
        """A key was written or removed."""
        self.most_leases = max(self.most_leases, len(self.etcd.leases))
        leader = self.etcd.keys.get("leader")
        sealed = leader is not None and leader.value.startswith(GUARD)
        if key == "sync" and sealed and self._seal is not None and by == self._seal.old:
            self.wrong("sync", f"{by} changes /sync although a guard holds the leader key")
        if key == "config":
            self._configured = self.world.now
        if key.startswith("members/"):
            if after is not None and _counts(cluster_of(self.etcd.keys), key[8:]):
                self._uncounted.pop(key[8:], None)
            else:
                self._uncounted.setdefault(key[8:], self.world.now)
        if key != "leader":
            return
        self._led = (self.world.now, self._led[0])
        was, now = (before.value if before else ""), (after.value if after else "")
        if was != now:
            self.world.tell(by, f"leader key: {was or 'nobody'} -> {now or 'nobody'}")
        if by.startswith(GUARD) and now:
            self._guard_wrote(by, was, now)
        elif now in self.members:
            self.led_since.append(self.world.now)
            postgres = self.members[now].postgres
            if postgres.role == "primary":
                postgres.branch.sealed = postgres.branch.unsure = False

    def _guard_wrote(self, by: str, was: str, now: str) -> None:
        cluster = cluster_of(self.etcd.keys)
        if self.guards[by].policy.dry_run:
            self.wrong("dry run", f"{by} gives the leader key to {now}, which it should only say")
        self._count[by, "took" if now == by else "gave"] += 1
        if cluster.config.get("pause"):
            self.wrong("paused", f"{by} gives the leader key to {now} while Patroni is paused")
        if asked(cluster.failover):
            self.wrong("switchover", f"{by} gives the leader key to {now} while a switchover is asked for")
        if now in self.members:
            self._handed_over(by, was, now, cluster)
        elif was in self.members:
            self._sealed(by, was, cluster)
        else:
            if was == by:
                self.wrong("seal", f"{by} takes its own seal again")
            self.world.after(0.0, lambda: self._gone_on_with(by, was))

    def _sealed(self, by: str, was: str, cluster: Cluster) -> None:
        branch, now = self.members[was].postgres.branch, self.world.now
        held = holders((self.members[v].postgres for v in cluster.voters), branch, branch.acknowledged)
        branch.sealed = True
        branch.unsure = len(cluster.voters) - len(held) > cluster.quorum
        if branch.unsure:
            self.world.tell("JUDGE", "/sync does not tell who holds what was acknowledged: Patroni's own")
        if cluster.sync_leader != was or not cluster.config.get("synchronous_mode"):
            self.wrong("not synchronous", f"{by} seals {was}, and /sync names {cluster.sync_leader or 'nobody'}")
        self._eager(by, was, cluster, 0.0)
        self.observe()
        follow = [v for v in cluster.voters if self.followed.get(v, 0.0) > now - _KNOWN_S]
        if now > _KNOWN_S and len(follow) <= cluster.quorum:
            self.wrong("pointless", f"{by} seals {was}, and of {cluster.voters} only {follow} follow and answer")
        if self.seals and now - self.seals[-1] < _AT_MOST_EVERY_S:
            self.wrong("often", f"{by} seals {was} {now - self.seals[-1]:.1f} s after another seal")
        self.seals.append(now)
        former = self._limit()
        self.world.after(0.0, lambda: self._after_seal(by, was, former))

    def _eager(self, by: str, who: str, cluster: Cluster, reads_s: float) -> None:
        """What a guard suspects it has known for a while, and not heard for a second; reads_s: the reading's age."""
        host, now = self.guards[by], self.world.now
        led_since = max(at for at in self.led_since if at <= now - reads_s)
        silent_s, known_s = host.clock.now() - host.signs.heard(who), now - max(led_since, host.started)
        if silent_s < _SUSPECT_S or known_s < host.policy.learns_s - 0.1:
            self.wrong("eager", f"{by} suspects {who}, silent for {silent_s:.2f} s, known for {known_s:.2f} s")
        ttl = float(cluster.config["ttl"])
        if max(host.started, now - ttl + 1.0) < self._configured <= now - reads_s:
            self.wrong("eager", f"{by} suspects {who} {now - self._configured:.2f} s after a change of /config")

    def logged(self, by: str, line: str) -> None:
        """A guard logs a line: it is true, and does not come again and again."""
        if not self.plain:
            return
        host, count = self.guards[by], self._count
        count[by, line] += 1
        first, _, rest = line.partition(" ")
        done = {"sealed:": "took", "handed": "gave"}.get(first, "")
        count[by, first] += 1
        lock = self.etcd.keys.get("leader")
        true = line == f"handed over: {lock.value if lock is not None else ''} holds the leader lock"
        if done and not true and count[by, first] >= count[by, done] + host.starts:
            self.wrong("says", f"{by} says '{line}', and has done no such thing")
        if first == "suspect":
            count[by, rest.partition(":")[0]] += 1
            self._eager(by, rest.partition(":")[0], cluster_of(self.etcd.keys), host.reading_s)
        if "lives after all" in line and not count[by, first]:
            self.wrong("says", f"{by} says '{line}', and has suspected nobody")
        if line.startswith("not sealed:") and lock is not None and lock.value == by:
            self.wrong("says", f"{by} says '{line}', and holds the lock")
        if rest.startswith("leads ") and not (first in self.leaders and float(rest.split()[1]) < self.world.now):
            self.wrong("says", f"{by} says '{line}', which is not promoted, or was not so long ago")
        if rest.startswith("was not promoted") and self.world.now - max(self.hand_overs, default=0.0) < 18.0:
            self.wrong("says", f"{by} says '{line}' {self.world.now - self.hand_overs[-1]:.1f} s after the hand-over")
        if count[by, line] == _AGAIN:
            self.wrong("chatter", f"{by} says {_AGAIN} times: {line}")

    def _limit(self) -> float:
        kept = self.etcd.keys.get("walproof_guard_limit")
        return float(json.loads(kept.value)["limit_s"]) if kept is not None else 0.0

    def _after_seal(self, by: str, was: str, former: float) -> None:
        """What the whole transaction of a seal must have left."""
        keys = self.etcd.keys
        lock, sync = keys.get("leader"), keys.get("sync")
        if lock is None or lock.value != by or sync is None:
            return
        lease = self.etcd.leases.get(lock.lease)
        ttl = float(cluster_of(keys).config["ttl"])
        left = lease.ends - self.world.now if lease is not None else 0.0
        if left < ttl - 0.001:
            self.wrong("seal", f"the seal of {by} ends in {left:.2f} s, before Patroni's ttl of {ttl:g} s")
        limit = max(min(2 * former, 3600.0), self.guards[by].policy.at_most_every_s)
        if self._limit() != limit:
            self.wrong("limit", f"{by} seals {was} with a limit of {self._limit():g} s after one of {former:g} s")
        if sync.version != lock.version:
            self.wrong("seal", f"{by} does not write /sync with its seal")
        for voter in json.loads(keys["walproof_guard"].value)["connected"] if "walproof_guard" in keys else ():
            standby = self.members[voter].postgres
            streams = standby.receiver == "streaming" and standby.source == was
            if not streams and (standby.streamed[0] != was or standby.streamed[1] < self._led[1]):
                self.wrong("stranger", f"{by} counts {voter}, which never streamed from {was} since that leads")
        if f"members/{was}" in keys:
            self.wrong("seal", f"{by} leaves {was} its address")
        self._sealed_at = self.world.now
        self._seal = _Seal(was, lock, self.etcd.version("config"), self.etcd.version("failover"))

    def _gone_on_with(self, by: str, was: str) -> None:
        lock, seal = self.etcd.keys.get("leader"), self._seal
        if lock is None or lock.value != by or seal is None:
            return
        if lock.lease != seal.lock.lease:
            self.wrong("seal", f"{by} prolongs the seal of {was}")
        if self.world.now - self._sealed_at < _LEFT_ALONE_S:
            self.wrong("hasty", f"{by} takes the seal of {was} up at once, which may still be at work")
        self._sealed_at = self.world.now
        self._seal = replace(seal, lock=lock)

    def _handed_over(self, by: str, was: str, now: str, cluster: Cluster) -> None:
        self.hand_overs.append(self.world.now)
        member, seal = self.members[now], self._seal
        if was != by:
            self.wrong("wrong holder", f"{by} hands over to {now} what {was or 'nobody'} holds")
        if member.watchdog.failed:
            self.wrong("released", f"{by} hands over to {now}, whose REST says that its watchdog fails")
        if member.tags.nofailover or now not in cluster.members:
            self.wrong("released", f"{by} hands over to {now}, which may not lead")
        if seal is None:
            return
        versions = tuple(map(self.etcd.version, ("config", "failover", "sync")))
        if versions != (seal.config, seal.failover, seal.lock.version):
            self.wrong("void", f"{by} hands over although configuration, /failover or /sync changed since its seal")
        gone = [v for v, at in self._uncounted.items() if self.plain and self.world.now - at > 1.0]
        left = [v for v in cluster.voters if v not in gone and not follows(self.members[v], seal.old)]
        if len(left) <= cluster.quorum:
            self.wrong("unsealed", f"{by} hands over to {now}, and of {', '.join(cluster.voters)} only "
                       f"{', '.join(left) or 'none'} cannot acknowledge to {seal.old} any more")  # fmt: skip
        self._preferred(by, now, left)
        if not self.plain:
            return
        late = [v for v in cluster.voters if v not in left and self._answers(by, v, cluster)]
        if late and self.world.now - self._sealed_at < _REST_S:
            self.wrong("hurried", f"{by} hands over at once, and does not wait for {', '.join(late)}")

    def _answers(self, by: str, voter: str, cluster: Cluster) -> bool:
        """Whether that guard has an answer of a voter that it counts, of this moment."""
        host = self.guards[by]
        asked = host.signs.asked(voter)
        return _counts(cluster, voter) and asked is not None and host.clock.now() - asked < 0.5

    def _preferred(self, by: str, now: str, left: list[str]) -> None:
        """Of equals the one with the highest priority; it answered everything that a guard asks."""
        position, mine = self.members[now].postgres.flushed, self.members[now].tags.failover_priority
        for name in left:
            other = self.members[name]
            answers = other.postgres.alive and not other.process.frozen and not other.process.dead
            equal = answers and other.postgres.flushed == position and other.postgres.waits
            if equal and other.tags.failover_priority > mine and not other.watchdog.required and self.plain:
                self.wrong("priority", f"{by} hands over to {now} and not to {name}, which has as much WAL")

    def revoked(self, number: int, lease: Lease, by: str) -> None:
        """A lease is about to be ended."""
        leader = self.etcd.keys.get("leader")
        holder = leader.value if leader else ""
        if lease.keys and not holder.startswith(GUARD):
            self.wrong("revoked", f"{by} ends the lease of {', '.join(lease.keys)} while {holder or 'nobody'} leads")

    def observe(self) -> None:
        """What is to be known of every moment: called twice a second, and when a guard seals."""
        for name, member in self.members.items():
            if member.postgres.alive and member.postgres.conninfo:
                self.followed[name] = self.world.now

    def finish(self, leases: int) -> None:
        """What only the end of a run shows."""
        for name, host in self.guards.items() if self.plain else ():
            memory = host.guard.memory if host.guard is not None else Memory()
            waits_s = host.clock.now() - (memory.steps.checked or 0.0)
            if memory.state == State.HANDED_OVER and waits_s > _AWAITED_S and not host.process.frozen:
                self.wrong("stuck", f"{name} still waits for a promotion")
        if self.most_leases > leases:
            self.wrong("leases", f"{self.most_leases} leases lived at once, at most {leases} are expected")
