"""The simulated cluster itself: members, who leads, and what each fault does in virtual time. Seeded."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from walproof.errors import TargetError
from walproof.model.guarantee import Level, Quorum, QuorumKind, SyncReplication
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.targets.simulated.clock import VirtualClock
from walproof.targets.simulated.known_lies import HONEST, LIES, Lie
from walproof.targets.simulated.ledger import Rule, Serving, SimulatedLedger

TTL_S = 20.0
_UP = ("running", "streaming")
_CRASHES = ("crashed", "dead", "off", "failing", "recovering")
"""Of these the postmaster survives "recovering"."""
GONE = ("dead", "off")
_ENDS = ("crashed", "dead", "off", "failing", "stopped", "restarting", "demoted")


_ANY_1 = SyncReplication(QuorumKind.ANY, 1)


def sync_of(text: str) -> SyncReplication:
    """off, on, quorum or strict (as Patroni calls them) for one standby; ValueError for another word."""
    return {
        "off": SyncReplication(None, 0),
        "on": SyncReplication(QuorumKind.FIRST, 1),
        "quorum": SyncReplication(QuorumKind.ANY, 1),
        "strict": SyncReplication(QuorumKind.FIRST, 1, strict=True),
    }[text]


@dataclass(frozen=True, slots=True)
class Nature:
    """How this simulated cluster is made, and which lie it tells."""

    members: tuple[str, ...] = ("n1", "n2", "n3")
    sync: SyncReplication = _ANY_1
    rtt_s: float = 0.0005
    seed: int = 1
    slowness: float = 1.0
    lie: str = ""
    odd: str = ""
    damaged: int = 0
    """Checksum failures that there were before."""

    @property
    def its_lie(self) -> Lie:
        """The lie that it tells; an honest one's changes nothing."""
        return LIES.get(self.lie, HONEST)


@dataclass(slots=True)
class Break:
    """A leader that stopped serving and is not replaced yet."""

    leader: str
    at: float
    """Until when its standbys received from it, or it flushed."""
    rule: Rule = Rule.RECEIVED
    same_leader: bool = False


@dataclass(slots=True)
class World:
    """The state now; every change first lets the ledger work up to this moment."""

    nature: Nature
    clock: VirtualClock
    rng: np.random.Generator
    leader: str | None = None
    timeline: int = 1
    states: dict[str, str] = field(default_factory=dict)
    down_at: dict[str, float] = field(default_factory=dict)
    lost_power: set[str] = field(default_factory=set)
    named: tuple[str, ...] = ()
    names_gone: bool = False
    """The lie: names silently emptied."""
    broken: Break | None = None
    cut: bool = False
    dcs: bool = True
    slow: dict[str, float] = field(default_factory=dict)
    disks: dict[str, str] = field(default_factory=dict)
    """Members whose disk is failing or full."""
    hung: dict[str, str] = field(default_factory=dict)
    """Which part of a member hangs: "postmaster", "manager" or "rest"."""
    all_gone: bool = False
    """Every member is down, and none has led since."""
    paused: set[str] = field(default_factory=set)
    """Standbys that replay nothing."""
    deaf: dict[str, set[str]] = field(default_factory=dict)
    """Whose packets do not arrive at a member; "clients" too."""
    starts: dict[str, int] = field(default_factory=dict)
    """How often each member's PostgreSQL was started again."""
    crashes: dict[str, int] = field(default_factory=dict)
    ledger: SimulatedLedger | None = None
    reached: float = 0.0
    held_until: float = 0.0
    promoted: Callable[[str], None] | None = None
    """Called with the old leader once a member took over."""

    def begin(self) -> None:
        """Every member up, the first leads."""
        self.leader = self.nature.members[0]
        self.states = {m: "streaming" for m in self.nature.members}
        self.states[self.leader] = "running"
        self.named = self._up_standbys()
        self.reached = self.clock.now()

    def _up_standbys(self) -> tuple[str, ...]:
        return tuple(m for m in self.nature.members if m != self.leader and self.states[m] == "streaming")

    @property
    def names(self) -> str:
        """synchronous_standby_names as in effect on the leader."""
        if self.nature.sync.method is None or self.names_gone:
            return ""
        if not self.named:
            return "*" if self.nature.sync.strict else ""
        if self.nature.sync.method is QuorumKind.ANY:
            return Quorum(QuorumKind.ANY, min(self.nature.sync.number, len(self.named)), self.named).text
        return Quorum(QuorumKind.FIRST, 1, self.named[:1]).text

    def streams(self, member: str) -> bool:
        return member in self._up_standbys() and not self.cut and self.leader is not None

    def ended(self, member: str, state: str) -> None:
        """Its postmaster ends where the state means that: the next one is another, after a crash or an orderly stop."""
        if state in _ENDS:
            self.starts[member] = self.starts.get(member, 0) + 1
        if state in _CRASHES:
            self.crashes[member] = self.crashes.get(member, 0) + 1
        self.all_gone = self.all_gone or set(self.states.values()) <= set(GONE)

    def server(self, member: str) -> str:
        """What writers see of a server: the member, and after how many crashes."""
        return f"{member} {self.crashes.get(member, 0)}"

    def serving(self) -> Serving | None:
        """How commits are served now; None without a leader."""
        if self.leader is None:
            return None
        live = [m for m in self.named if self.states[m] == "streaming" and not self.cut and not self._withheld(m)]
        waits = len(live) >= min(self.nature.sync.number, max(1, len(self.named)))
        slow = sorted(self.slow.get(m, 0.0) for m in live)
        slowest = slow[min(self.nature.sync.number, len(slow)) - 1] if slow else 0.0
        replicates = bool(self._up_standbys()) and not self.cut
        return Serving(
            server=self.server(self.leader),
            timeline=self.timeline,
            names=self.names,
            waits=waits,
            replicates=replicates,
            slow_local_s=self.slow.get(self.leader, 0.0),
            slow_standby_s=slowest,
        )

    def _withheld(self, member: str) -> bool:
        """Whether its acknowledgement waits for a replay that is paused."""
        return member in self.paused and self.ledger is not None and self.ledger.order.level is Level.REMOTE_APPLY

    def pause(self, member: str) -> None:
        """Replay stops on a standby: at remote_apply it acknowledges nothing."""
        self.sync()
        self.paused.add(member)
        self._stalled()

    def resume(self, member: str) -> None:
        """Replay goes on, and what waited for it is acknowledged."""
        self.sync()
        self.paused.discard(member)
        if self.ledger is not None and self._enough_live():
            self.ledger.acknowledge_waiting(self.clock.now())

    def sync(self) -> None:
        """Let the ledger work up to now under the state as it was."""
        now = self.clock.now()
        held = self.held_until > self.reached
        # A hold ends with an entry in the diary, so no span is partly held.
        if self.ledger is not None and not held:
            self.ledger.advance(self.reached, now, self.serving())
        self.reached = max(self.reached, now)

    def hold(self, seconds: float) -> None:
        """No client is served for that long, without an error: a planned pause."""
        self.sync()
        self.held_until = self.clock.now() + seconds
        self.clock.after(seconds, self.sync)

    def down(self, member: str, state: str, back_after: float | None = None) -> None:
        """A standby goes; the names follow a little later; it may come back by itself."""
        self.sync()
        self.states[member] = state
        self.ended(member, state)
        self.down_at[member] = self.clock.now()
        self._stalled()
        self.clock.after(float(self.rng.uniform(1, 3)), self.rename)
        if back_after is not None:
            self.back_by_itself(member, back_after)

    def _stalled(self) -> None:
        serving = self.serving()
        if self.ledger is not None and serving is not None and serving.names and not serving.waits:
            self.ledger.stall(self.clock.now())

    def back_by_itself(self, member: str, seconds: float) -> None:
        """It is up again after so long, unless something else has happened to it meanwhile."""
        since = self.down_at.get(member)
        self.clock.after(seconds, lambda: self.up(member) if self.down_at.get(member) == since else None)

    def up(self, member: str) -> None:
        """A member streams again from the current leader, and no part of it hangs."""
        self.hung.pop(member, None)
        if self.states[member] in _UP:
            return
        self.sync()
        self.states[member] = "streaming" if self.leader else "starting"
        if self.leader:
            self.rename()
            if self.ledger is not None and not self.cut:
                self.ledger.caught_up(self.clock.now())
                if self._enough_live():
                    self.ledger.acknowledge_waiting(self.clock.now())

    def _enough_live(self) -> bool:
        serving = self.serving()
        return serving is not None and serving.waits

    def rename(self) -> None:
        """The manager writes the standby names that are live; a non-strict cluster then waits for no standby."""
        if self.leader is None or self.cut or not self.dcs:
            return
        self.sync()
        live = self._up_standbys()
        if self.ledger is not None and self.named and not live and not self.nature.sync.strict:
            self.ledger.release(self.clock.now())
        self.named = live or (self.named if self.nature.sync.strict else ())
        if self.ledger is not None and live:
            self.ledger.acknowledge_waiting(self.clock.now())

    def lose_leader(self, state: str, rule: Rule, *, received_until: float | None = None, same: bool = False) -> None:
        """The leader stops serving now; unanswered commits stay unanswered."""
        if self.leader is None:
            return
        self.sync()
        now = self.clock.now()
        if self.ledger is not None:
            lying = self.nature.lie == "downgraded" and self.ledger.order.level.remote
            self.ledger.break_off(now, success=lying)
        self.broken = Break(self.leader, now if received_until is None else received_until, rule, same)
        self.states[self.leader] = state
        self.ended(self.leader, state)
        self.down_at[self.leader] = now
        self.leader = None
        self.cut = False

    def elect(self) -> None:
        """A member takes over when one can; asks again in a second otherwise."""
        if self.broken is None or self.leader is not None:
            return
        old = self.broken
        gone = [m for m in self.nature.members if self.states[m] in GONE]
        if self.all_gone and 2 * len(gone) >= len(self.nature.members):  # the DCS runs on the members
            self.clock.after(1.0, self.elect)
            return
        candidates = [m for m in self.nature.members if m != old.leader and self.states[m] in (*_UP, "starting")]
        ready = [m for m in candidates if self.clock.now() - self.down_at.get(m, -1e9) >= 2.0]
        crashed_together = self.states[old.leader] == "crashed" and all(
            self.down_at.get(m) == self.down_at[old.leader] for m in self.nature.members
        )
        # Patroni's lock is the old leader's, and no other has more WAL, where it is back in time.
        alone_back = (self.all_gone or not ready) and self.states[old.leader] in ("crashed", "starting")
        if old.same_leader or crashed_together or alone_back:
            winner, rule = old.leader, Rule.ALL if old.rule is Rule.ALL else Rule.LOCAL
        elif ready and self.dcs:
            winner = ready[int(self.rng.integers(len(ready)))]
            rule = Rule.FLUSHED if winner in self.lost_power and old.rule is Rule.RECEIVED else old.rule
        else:
            self.clock.after(1.0, self.elect)
            return
        self._promote(winner, rule, old)

    def _promote(self, winner: str, rule: Rule, old: Break) -> None:
        self.sync()
        if self.ledger is not None:
            self.ledger.resolve(old.at, rule)
        in_place = winner == old.leader and self.nature.odd == "in-place"
        self.all_gone = False
        self.leader, self.timeline, self.broken = winner, self.timeline + (not in_place), None
        self.states[winner] = "running"
        self.lost_power.clear()
        for member in self.nature.members:
            if self.states[member] == "starting":
                self.states[member] = "streaming"
        self.named = self._up_standbys()
        if self.states[old.leader] in ("crashed", "stopped"):
            self.back_by_itself(old.leader, 2.0)
        if self.nature.odd == "late":
            self.hold(45.0)
        if self.nature.odd == "unnamed" and winner != old.leader:
            self.named = ()
            self.clock.after(0.6, self.rename)  # longer than writers wait between two tries
        if self.promoted is not None:
            self.promoted(old.leader)

    def reconnect(self, member: str) -> None:
        """Packets arrive again between it and the others; a standby streams again."""
        self.sync()
        self.deaf.pop(member, None)
        for heard in self.deaf.values():
            heard.discard(member)
        if member == self.leader and self.cut:
            self.cut = False
            if self.ledger is not None and self._up_standbys():
                self.ledger.caught_up(self.clock.now())
                self.ledger.acknowledge_waiting(self.clock.now())
        self.up(member)

    def recover(self) -> None:
        self.sync()
        self.slow.clear()
        self.disks.clear()
        self.hung.clear()
        for member in sorted(self.paused):
            self.resume(member)
        for member in self.nature.members:
            if self.deaf.get(member) or (self.cut and member == self.leader):
                self.reconnect(member)
        self.deaf.clear()
        self.dcs = True
        waited = 0
        while not self.view().healthy:
            for member in self.nature.members:
                waits_for_successor = (
                    self.broken is not None
                    and member == self.broken.leader
                    and not (self.broken.same_leader or self.all_gone)
                )
                if member != self.leader and not waits_for_successor:
                    self.up(member)
            if self.broken is not None:
                self.clock.after(1.0, self.elect)
            self.clock.pause(1.0)
            waited += 1
            if waited > 120:
                raise TargetError("the simulated cluster does not recover")

    def view(self) -> ClusterView:
        """What the cluster says of itself."""
        members = []
        for name in self.nature.members:
            leads, state = name == self.leader, self.states[name]
            up = state in _UP
            sync = ""
            if up and not leads and self.leader and self.nature.sync.method is not None:
                quorum = self.nature.sync.method is QuorumKind.ANY
                counts = self.named if quorum else self.named[:1]
                sync = ("quorum" if quorum else "sync") if name in counts else "potential"
            role = Role.LEADER if leads else Role.STANDBY if up else Role.UNKNOWN
            members.append(
                MemberView(name, role, state, self.timeline if up else None, 0, 0, sync_state=sync, identity=name)
            )
        lying = self.nature.lie == "names"
        names = Quorum(QuorumKind.ANY, 1, self.named).text if lying and self.named else self.names
        return ClusterView(self.clock.now(), tuple(members), self.leader, names)
