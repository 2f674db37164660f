"""Who may take the leader key, as a simulated Patroni finds it out by asking the others (patroni/ha.py of 4.1)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.guard_simulation.patroni_keys import Tags

if TYPE_CHECKING:
    from tests.guard_simulation.patroni import Patroni


@dataclass(frozen=True, slots=True)
class Status:
    """What a member's REST says of it (GET /patroni)."""

    primary: bool
    position: int
    tags: Tags
    watchdog_failed: bool

    @property
    def limited(self) -> bool:
        """Whether it may not lead (failover_limitation)."""
        return self.tags.nofailover or self.watchdog_failed


def healthiest(me: "Patroni") -> bool:
    """Whether it may take the free leader key (is_healthiest_node)."""
    cluster, postgres = me.cluster, me.postgres
    if postgres.role == "starting" or (me.paused and not me.primary):
        return False
    if me.primary:
        return postgres.branch.number >= cluster.timeline
    if me.tags.nofailover:
        return False
    if cluster.failover:
        return asked_without_leader(me, cluster.failover)
    if me.watchdog.failed:
        return False
    known = dict.fromkeys((*me.known, *cluster.members))
    if cluster.failsafe_mode and cluster.failsafe:
        if me.name not in cluster.failsafe:
            return False
        known |= dict.fromkeys(cluster.failsafe)
    quorum = cluster.config.get("synchronous_mode") == "quorum"
    if cluster.sync_leader:
        if not quorum and not cluster.matches(me.name, or_leader=True):
            return False
        known = {n: None for n in known if cluster.matches(n, or_leader=True)}
    return ahead(me, list(known), lag=True)


def asked_without_leader(me: "Patroni", asked: dict[str, Any]) -> bool:
    """manual_failover_process_no_leader: the candidate takes the key without comparing anything."""
    cluster, candidate = me.cluster, asked.get("member")
    if asked.get("leader") and cluster.sync_leader and not cluster.matches(me.name, or_leader=True):
        return False
    if candidate == me.name:
        me.unasked = True
        return True
    if candidate:
        status = statuses(me, [candidate]).get(candidate)
        if status is not None and not status.limited:
            return False
    if asked.get("leader") == me.name:
        return not failover_possible(me, None)
    names = [n for n in cluster.members if n != asked.get("leader")]
    return ahead(me, [n for n in names if not cluster.sync_leader or cluster.matches(n)], lag=False)


def ahead(me: "Patroni", names: list[str], lag: bool) -> bool:
    """Whether none of these is better, and enough of them vote for it (_is_healthiest_node)."""
    cluster, position = me.cluster, me.postgres.position
    if lag and cluster.last_lsn - position > int(cluster.config.get("maximum_lag_on_failover", 1 << 20)):
        return False
    quorum_mode = cluster.config.get("synchronous_mode") == "quorum" and bool(cluster.sync_leader)
    voting = (cluster.sync_leader, *cluster.voters) if quorum_mode else ()
    votes, before_me = (0 if me.name in voting else -1), 0
    asked = [n for n in names if n != me.name and (n in voting or not cluster.tags(n).nofailover)]
    for name, status in statuses(me, asked).items():
        if status.limited:
            continue
        if status.primary:
            return False
        if position < status.position:
            before_me += 1
            if not cluster.sync_leader or cluster.sync_leader != name:
                return False
        elif status.position > 0:
            vote, mine = name in voting, me.tags.failover_priority
            low = position == status.position and mine < status.tags.failover_priority
            if low and name != cluster.sync_leader and (not quorum_mode or vote):
                return False
            votes += vote
    if not quorum_mode:
        return True
    return votes >= cluster.quorum or (before_me == 0 and cluster.sync_leader == me.name)


def statuses(me: "Patroni", names: list[str]) -> dict[str, Status]:
    """Ask the REST of these, all at once; whoever does not answer within two seconds is missing."""
    found, silent = {}, False
    me.dcs.step()
    for name in names:
        other = me.others.get(name)
        if other is None or other is me:
            continue
        reached = me.world.reaches(me.process.host, other.process.host)
        status = other.status() if reached else None
        if status is not None:
            found[name] = status
        silent |= not reached or other.process.frozen > 0
    if silent:
        me.world.sleep(2.0)
    return found


def failover_possible(me: "Patroni", candidate: str | None) -> bool:
    """Whether a member can take over, so that this one may step down (is_failover_possible)."""
    voters = [candidate] if candidate else list(me.cluster.members)
    names = [n for n in voters if n != me.name and me.cluster.matches(n) and not me.cluster.tags(n).nofailover]
    able = sum(1 for s in statuses(me, names).values() if not s.limited)
    quorum = me.cluster.quorum if not candidate else 0
    return able - 1 >= quorum and able > 0
