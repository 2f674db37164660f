"""The target `pretend`: a simulated cluster on a virtual clock, honest or lying on demand. Starts no process.

`pretend?lie=lost&seed=3&members=3&sync=quorum&quorum=1&rtt=1ms&slowness=2`; the lies are in LIES: the prover must
catch every one of them.
"""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qsl

import numpy as np

from walproof.errors import TargetError, UsageError
from walproof.model.attempt import Attempts, Outcome, Rows
from walproof.model.guarantee import SyncMode
from walproof.model.ports import Capability, Clock, LedgerOrder, Progress, WitnessReport
from walproof.model.topology import ClusterView, Description, Endpoint, Route
from walproof.model.units import duration_s
from walproof.targets.simulated.clock import VirtualClock
from walproof.targets.simulated.cluster import TTL_S, Nature, World
from walproof.targets.simulated.ledger import Rule, Serving, SimulatedLedger
from walproof.targets.simulated.price import SimulatedPrice

LIES = {
    "lost": "rows of acknowledged commits vanish",
    "duplicate": "a row is there twice",
    "corrupted": "a row's payload is another one",
    "nowhere": "a row is there that nobody wrote",
    "two-leaders": "the old leader goes on acknowledging beside the new one",
    "downgraded": "a cancelled wait for the standby is told as plain success",
    "late": "a leader is announced long before it takes commits",
    "names": "the standby names are emptied, and the cluster says they are not",
}


def simulated(text: str) -> "Simulated":
    """The simulated cluster that a target text describes; UsageError for what it does not know."""
    given = dict(parse_qsl(text.partition("?")[2]))
    nature = Nature()
    readers: dict[str, Callable[[str], Nature]] = {
        "lie": lambda v: replace(nature, lie=v),
        "seed": lambda v: replace(nature, seed=int(v)),
        "members": lambda v: replace(nature, members=tuple(f"n{i + 1}" for i in range(int(v)))),
        "sync": lambda v: replace(nature, sync=SyncMode(v)),
        "quorum": lambda v: replace(nature, quorum=int(v)),
        "rtt": lambda v: replace(nature, rtt_s=duration_s(v)),
        "slowness": lambda v: replace(nature, slowness=float(v)),
    }
    for name, value in given.items():
        if name not in readers or (name == "lie" and value not in LIES):
            raise UsageError(
                f"pretend does not know {name}={value}",
                f"it knows {', '.join(readers)}; the lies are {', '.join(LIES)}",
            )
        try:
            nature = readers[name](value)
        except ValueError:
            raise UsageError(f"{name}={value} is not valid", "for instance pretend?members=3&sync=quorum") from None
    if not 1 <= len(nature.members) <= 7:
        raise UsageError("pretend has 1 to 7 members", "for instance pretend?members=3")
    return Simulated(nature)


class SimulatedRun:
    """The simulated writers, as the Target protocol shows them."""

    def __init__(self, world: World, ledger: SimulatedLedger) -> None:
        self._world, self._ledger = world, ledger

    def progress(self) -> Progress:
        """How it stands now."""
        self._world.sync()
        return self._ledger.progress(self._world.clock.now())

    def stop(self) -> Attempts:
        """End the writers and give the ledger, with the lie of the day."""
        self._world.sync()
        return self._ledger.stop(self._world.clock.now())

    def witnessed(self) -> WitnessReport:
        """What the readers saw."""
        world = self._world
        synchronous = tuple(m.name for m in world.view().members if m.sync_state in ("sync", "quorum"))
        others = tuple(m for m in world.nature.members if m not in synchronous and m != world.leader)
        return self._ledger.witnessed(synchronous, others, world.nature.quorum)


class Simulated(SimulatedPrice):
    """Target, CanBePriced, CanKeepLedger, CanBreak, CanRevive and CanConfigure, all simulated."""

    def __init__(self, nature: Nature) -> None:
        virtual = VirtualClock()
        self._rng = np.random.default_rng(nature.seed)
        self.world = World(nature, virtual, self._rng)
        self.world.begin()
        self.world.promoted = self._promoted
        super().__init__(self.world, self._rng)
        self.clock: Clock = virtual
        self.name = "pretend"
        self._ledgers: dict[int, SimulatedLedger] = {}

    def describe(self) -> Description:
        """What is simulated; says so first."""
        nature = self.world.nature
        facts = {"kind": "simulated, not a measurement", "lie": nature.lie or "none", "seed": str(nature.seed)}
        settings = {"synchronous_standby_names": self.world.names, **self._parameters}
        return Description("pretend", nature.members, facts, settings)

    def observe(self) -> ClusterView:
        """One look."""
        self.world.sync()
        return self.world.view()

    def endpoint(self, route: Route) -> Endpoint:
        """There is nothing to connect to."""
        raise TargetError("a simulated cluster has no address", "use the lab: walproof lab up")

    def member_endpoint(self, member: str) -> Endpoint:
        """There is nothing to connect to."""
        raise TargetError("a simulated member has no address", "use the lab: walproof lab up")

    def why_not(self, capability: Capability) -> str | None:
        """A simulated cluster can do everything but run without a standby."""
        return None

    def open_ledger(self, order: LedgerOrder) -> SimulatedRun:
        """Start the simulated writers."""
        world = self.world
        world.sync()
        nature = world.nature
        ledger = SimulatedLedger(order, self._rng, slowness=nature.slowness, rtt_s=nature.rtt_s)
        self._ledgers[order.drill] = world.ledger = ledger
        if nature.lie == "names":
            world.clock.after(1.0, self._lose_names)
        return SimulatedRun(world, ledger)

    def _lose_names(self) -> None:
        self.world.sync()
        self.world.names_gone = True

    def read_ledger(self, member: str, drill: int) -> Rows:
        """The rows of a drill, with the lie of the day; TargetError when the member is down."""
        if self.world.states.get(member) not in ("running", "streaming"):
            raise TargetError(f"{member} does not answer", "heal the cluster first")
        if drill not in self._ledgers:
            raise TargetError(f"there is no ledger of drill {drill}")
        ledger = self._ledgers[drill]
        return _lied(self.world.nature.lie, ledger.rows(member), ledger)

    def truly_lost(self, drill: int) -> int:
        """How many acknowledged commits this cluster really lost: what an honest report must say."""
        ledger = self._ledgers[drill]
        acknowledged = ledger["outcome"] == Outcome.ACKNOWLEDGED
        return int((acknowledged & ~ledger["kept"].astype(bool)).sum())

    def check_data(self, member: str) -> str:
        """Simulated data are sound."""
        return ""

    def drop_ledger(self) -> None:
        """Forget every ledger."""
        self._ledgers.clear()
        self.world.ledger = None

    def _is_leader(self, member: str) -> bool:
        if member not in self.world.states:
            raise TargetError(f"there is no member {member}", f"members: {', '.join(self.world.nature.members)}")
        return member == self.world.leader

    def _soon(self, low: float, high: float) -> None:
        self.world.clock.after(float(self._rng.uniform(low, high)), self.world.elect)

    def _promoted(self, old: str) -> None:
        """What the liar of two leaders does once there is a second one."""
        world = self.world
        if world.nature.lie == "two-leaders" and world.leader != old:
            beside, now = Serving(old, world.timeline - 1, world.names), world.clock.now()
            world.clock.after(3.0, lambda: _beside(world, beside, now))

    def kill(self, member: str) -> None:
        """The postmaster dies; somebody takes over in two to four seconds."""
        if self._is_leader(member):
            self.world.lose_leader("crashed", Rule.RECEIVED)
            self._soon(2.1, 4.0)
        else:
            self.world.down(member, "crashed", back_after=2.0)

    def stop(self, member: str) -> None:
        """An orderly stop ships everything first."""
        if self._is_leader(member):
            self.world.lose_leader("stopped", Rule.ALL)
            self._soon(2.1, 4.0)
        else:
            self.world.down(member, "stopped", back_after=3.0)

    def _gone(self, member: str, state: str) -> None:
        if self._is_leader(member):
            self.world.lose_leader(state, Rule.RECEIVED)
            self._soon(TTL_S, TTL_S + 3)
        else:
            self.world.down(member, state)

    def kill_member(self, member: str) -> None:
        """The whole member dies: the ttl must pass."""
        self._gone(member, "dead")

    def freeze(self, member: str) -> None:
        """Stands still until healing."""
        self._gone(member, "frozen")

    def thaw(self, member: str) -> None:
        """Goes on."""
        self.world.up(member)

    def isolate(self, member: str) -> None:
        """Unreachable for everybody."""
        self._gone(member, "unreachable")

    def cut_power(self, member: str) -> None:
        """What was not flushed is gone."""
        self.world.lost_power.add(member)
        self._gone(member, "off")

    def cut(self, member: str) -> None:
        """Clients still reach it: it goes on until it demotes itself."""
        world = self.world
        if not self._is_leader(member):
            world.down(member, "unreachable")
            return
        world.sync()
        world.cut = True
        since = world.clock.now()
        if world.ledger is not None:
            world.ledger.stall(since)

        def demote() -> None:
            if world.cut and world.leader == member:
                world.lose_leader("demoted", Rule.RECEIVED, received_until=since)
                self._soon(TTL_S - 13, TTL_S - 10)

        world.clock.after(float(self._rng.uniform(10, 13)), demote)

    def cut_one_way(self, source: str, destination: str) -> None:
        """A leader that is not heard is a leader cut."""
        if self._is_leader(source) and not self.world.cut:
            self.cut(source)

    def hurt_disk(self, member: str, error: str, slow_s: float = 0.0) -> None:
        """Slow: flushes wait; failing or full: PostgreSQL panics."""
        if error == "slow":
            self.world.sync()
            self.world.slow[member] = slow_s
        elif self._is_leader(member):
            self.world.lose_leader("failing", Rule.RECEIVED)
            self._soon(3.0, 5.0)
        else:
            self.world.down(member, "failing")

    def restart(self, member: str) -> None:
        """Orderly: everything committed is there again in a second."""
        if self._is_leader(member):
            self.world.lose_leader("restarting", Rule.ALL, same=True)
            self._soon(1.0, 1.5)
        else:
            self.world.down(member, "restarting", back_after=1.0)

    def lose_dcs(self) -> None:
        """The leader demotes itself and nobody follows until healing."""
        world = self.world
        world.dcs = False

        def demote() -> None:
            if not world.dcs and world.leader is not None:
                world.lose_leader("demoted", Rule.ALL, same=True)

        world.clock.after(float(self._rng.uniform(10, 13)), demote)

    def switch_over(self, to: str | None = None) -> None:
        """Clients are held for a moment, the work under way ends, another member leads."""
        world = self.world
        old, standbys = world.leader, world._up_standbys()
        if old is None or not standbys or (to is not None and to not in standbys):
            raise TargetError("nobody can take over", "wait until every standby streams")
        world.hold(0.8)
        world.timeline += 1
        world.leader = to or standbys[int(self._rng.integers(len(standbys)))]
        world.states[old], world.states[world.leader] = "streaming", "running"
        world.named = world._up_standbys()
        world.clock.pause(1.0)

    def revive(self, member: str) -> None:
        """Power back on; recovers for two seconds."""
        world = self.world
        world.down_at[member] = world.clock.now()
        world.states[member] = "starting"

    def heal(self) -> None:
        """Undo every fault and wait until the cluster is whole."""
        self.world.heal()

    def logs(self, member: str) -> str:
        """A simulated log."""
        return f"{member}: simulated, {self.world.states.get(member, 'unknown')}\n"


def _beside(world: World, serving: Serving, since: float) -> None:
    """The lie of two leaders: for three seconds the old one acknowledged beside the new one; its rows are even kept."""
    ledger = world.ledger
    if ledger is None or ledger.stopped_at is not None:
        return
    world.sync()
    theirs = (ledger["server"] == ledger.servers.index(world.leader or "")) & (
        ledger["started"].astype(np.float64) >= since
    )
    chosen = theirs & (ledger["writer"] % 2 == 0) & (ledger["outcome"] == Outcome.ACKNOWLEDGED)
    if serving.server in ledger.servers:
        server = np.where(chosen, ledger.servers.index(serving.server), ledger["server"])
        ledger.columns["server"] = server.astype(np.int16)
        ledger.columns["timeline"] = np.where(chosen, serving.timeline, ledger["timeline"]).astype(np.int32)


def _lied(lie: str, rows: Rows, ledger: SimulatedLedger) -> Rows:
    """The rows as a lying cluster shows them."""
    if len(rows) < 100:
        return rows
    if lie == "lost":
        keep = np.ones(len(rows), dtype=bool)
        keep[20:25] = False
        return Rows(rows.member, rows.writer[keep], rows.number[keep], rows.checksum[keep], rows.stated[keep])
    if lie == "duplicate":
        again = np.append(np.arange(len(rows)), 30)
        return Rows(rows.member, rows.writer[again], rows.number[again], rows.checksum[again], rows.stated[again])
    if lie == "nowhere":
        return Rows(
            rows.member,
            np.append(rows.writer, np.int32(ledger.order.writers + 7)),
            np.append(rows.number, np.int64(1)),
            np.append(rows.checksum, np.uint32(5)),
            np.append(rows.stated, np.uint32(5)),
        )
    if lie == "corrupted":
        checksum = rows.checksum.copy()
        checksum[40] ^= np.uint32(1)
        return replace(rows, checksum=checksum, stated=checksum)
    return rows
