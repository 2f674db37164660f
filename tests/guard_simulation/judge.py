"""What must hold in every schedule, seen from outside: by PostgreSQL's WAL and by what is written in etcd."""

from dataclasses import dataclass, field

from tests.guard_simulation.etcd import Kv, Lease, SimulatedEtcd
from tests.guard_simulation.patroni import Patroni
from tests.guard_simulation.patroni_keys import cluster_of
from tests.guard_simulation.postgres import Branch, Postgres, holders
from tests.guard_simulation.world import World
from walproof.model.takeover import GUARD


@dataclass(frozen=True, slots=True)
class Violation:
    """What was wrong. kind: loss, paused, revoked, wrong holder, released, leases, needless, late."""

    kind: str
    at: float
    text: str


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
    seals: int = 0
    hand_overs: list[float] = field(default_factory=list)
    promotions: list[float] = field(default_factory=list)
    most_leases: int = 0
    _lost: list[Branch] = field(default_factory=list)
    _handed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.etcd.written.append(self.written)
        self.etcd.revoked.append(self.revoked)

    @property
    def newest(self) -> Branch:
        """Of the last promotion."""
        return self.branches[-1]

    def wrong(self, kind: str, text: str) -> None:
        """A violation, at this moment."""
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
        self.promotions.append(self.world.now)
        self._handed.pop(patroni.name, None)
        self.branches.append(new)
        for branch in self.branches[:-1]:
            if branch.acknowledged and not new.has(branch, branch.acknowledged):
                held = holders((m.postgres for m in self.members.values()), branch, branch.acknowledged)
                self._lose(
                    branch,
                    f"{patroni.name} is promoted with {postgres.flushed}, {branch.acknowledged} was acknowledged on "
                    f"timeline {branch.number} (held by {', '.join(held)})",
                )
        postgres.branch = new
        postgres.lead()

    def _lose(self, branch: Branch, text: str) -> None:
        if any(branch is lost for lost in self._lost):
            return
        self._lost.append(branch)
        if branch.sealed and not branch.doubtful and not self.newest.asked_for:
            self.wrong("loss", text)
        else:
            self.patroni_losses += 1
            self.world.tell("JUDGE", f"Patroni's own loss: {text}")

    # etcd.

    def written(self, key: str, before: Kv | None, after: Kv | None, by: str) -> None:
        """A key was written or removed."""
        self.most_leases = max(self.most_leases, len(self.etcd.leases))
        if key != "leader":
            return
        was, now = (before.value if before else ""), (after.value if after else "")
        if was != now:
            self.world.tell(by, f"leader key: {was or 'nobody'} -> {now or 'nobody'}")
        if by.startswith(GUARD) and now:
            self._guard_wrote(by, was, now)
        elif now in self.members:
            postgres = self.members[now].postgres
            if postgres.role == "primary":
                postgres.branch.sealed = postgres.branch.doubtful = False

    def _guard_wrote(self, by: str, was: str, now: str) -> None:
        cluster = cluster_of(self.etcd.keys)
        if cluster.config.get("pause"):
            self.wrong("paused", f"{by} gives the leader key to {now} while Patroni is paused")
        if now == by:
            self.seals += 1
            if was in self.members:
                self._sealed(self.members[was].postgres.branch, cluster.voters, cluster.quorum)
        else:
            self.hand_overs.append(self.world.now)
            self._handed[now] = self.world.now
            if was != by:
                self.wrong("wrong holder", f"{by} hands over to {now} what {was or 'nobody'} holds")
            if self.members[now].watchdog.failed:
                self.wrong("released", f"{by} hands over to {now}, whose REST says that its watchdog fails")

    def _sealed(self, branch: Branch, voters: tuple[str, ...], quorum: int) -> None:
        held = holders((self.members[v].postgres for v in voters), branch, branch.acknowledged)
        branch.sealed = True
        branch.doubtful = len(voters) - len(held) > quorum
        if branch.doubtful:
            self.world.tell("JUDGE", "/sync does not tell who holds what was acknowledged: Patroni's own")

    def revoked(self, number: int, lease: Lease, by: str) -> None:
        """A lease is about to be ended."""
        leader = self.etcd.keys.get("leader")
        holder = leader.value if leader else ""
        if lease.keys and not holder.startswith(GUARD):
            self.wrong("revoked", f"{by} ends the lease of {', '.join(lease.keys)} while {holder or 'nobody'} leads")

    def finish(self, leases: int) -> None:
        """What can be said at the end."""
        if self.most_leases > leases:
            self.wrong("leases", f"{self.most_leases} leases lived at once, at most {leases} are expected")
