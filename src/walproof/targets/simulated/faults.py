"""Faults of a simulated cluster, each with its undoing: what follows in virtual time is the cluster's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from walproof.errors import TargetError
from walproof.model.drill import Capability
from walproof.model.load import Outcome
from walproof.model.ports import MemberFault
from walproof.targets.simulated.cluster import TTL_S, World
from walproof.targets.simulated.ledger import Rule


class Nothing:
    """What a lie does instead of a fault."""

    def inject(self, *_: object) -> None:
        """Nothing."""

    def undo(self, *_: object) -> None:
        """Nothing."""

    def restart(self, _member: str) -> None:
        """Nothing."""

    def switch_over(self, to: str | None = None) -> None:
        """Nothing."""


NOTHING = Nothing()


@dataclass(frozen=True, slots=True)
class OneFault:
    """One fault of a member, and what undoes it."""

    inject: Callable[[str], None]
    undo: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SlowFlushes:
    world: World

    def inject(self, member: str, delay_s: float) -> None:
        self.world.sync()
        self.world.slow[member] = delay_s

    def undo(self, member: str) -> None:
        self.world.sync()
        self.world.slow.pop(member, None)


@dataclass(frozen=True, slots=True)
class OneWay:
    """A leader that is not heard is a leader partitioned."""

    faults: "SimulatedFaults"

    def inject(self, source: str, destination: str) -> None:
        """Partition the source where it leads; what a standby sends is lost, and it goes on receiving."""
        if not self.faults.leads(source):
            self.faults.world.deaf.setdefault(destination, set()).add(source)
        elif not self.faults.world.cut:
            self.faults.partition(source)

    def undo(self, source: str, destination: str) -> None:
        """Recovery reconnects every member."""


@dataclass(frozen=True, slots=True)
class LostDcs:
    """The DCS majority of a simulated cluster."""

    faults: "SimulatedFaults"

    def inject(self) -> None:
        """The leader demotes itself and has no successor until it is back."""
        self.faults.lose_dcs()

    def undo(self) -> None:
        self.faults.world.dcs = True


class SimulatedFaults:
    """Every fault, restart, switchover, recovery and logs of one simulated cluster."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self._rng = world, rng

    def of_members(self) -> dict[Capability, MemberFault]:
        """Faults that fall on one member, but for one that a lie replaces."""
        honest = self._of_members()
        fault, other = self.world.nature.its_lie.instead
        if fault not in honest:
            return honest
        if other is Capability.RESTART:
            return {**honest, fault: OneFault(self.restart, self.world.up)}
        return {**honest, fault: NOTHING if other is None else honest[other]}

    def _of_members(self) -> dict[Capability, MemberFault]:
        acts: dict[Capability, Callable[[str], None]] = {
            Capability.KILL: self.kill,
            Capability.CRASH_RESTART: self.crash_restart,
            Capability.PARTITION_WAL: self.cut_stream,
            Capability.PARTITION_ACKS: self.cut_stream,
            Capability.PAUSE_REPLAY: self.pause_replay,
            Capability.STOP: self.stop,
            Capability.KILL_MEMBER: partial(self.gone, "dead"),
            Capability.FREEZE: partial(self.gone, "frozen"),
            Capability.HANG_POSTMASTER: partial(self.hang, "postmaster"),
            Capability.HANG_MANAGER: partial(self.hang, "manager"),
            Capability.HANG_REST: partial(self.hang, "rest"),
            Capability.POWER_CUT: self.cut_power,
            Capability.PARTITION: self.partition,
            Capability.ISOLATE: self.isolate,
            Capability.FAILING_DISK: partial(self.spoil_disk, "failing"),
            Capability.FULL_DISK: partial(self.spoil_disk, "full"),
        }
        undo: dict[Capability, Callable[[str], None]] = {
            Capability.POWER_CUT: self.power_on,
            Capability.PARTITION: self.world.reconnect,
            Capability.ISOLATE: self.world.reconnect,
            Capability.PARTITION_WAL: self.world.reconnect,
            Capability.PARTITION_ACKS: self.world.reconnect,
            Capability.PAUSE_REPLAY: self.world.resume,
        }
        return {c: OneFault(act, undo.get(c, self.world.up)) for c, act in acts.items()}

    def leads(self, member: str) -> bool:
        """Whether the member leads; TargetError when there is none of that name."""
        if member not in self.world.states:
            raise TargetError(f"there is no member {member}", f"members: {', '.join(self.world.nature.members)}")
        return member == self.world.leader

    def _soon(self, low: float, high: float) -> None:
        self.world.clock.after(float(self._rng.uniform(low, high)), self.world.elect)

    def promoted(self, old: str) -> None:
        """What the liar of two leaders does once there is a second one."""
        world = self.world
        if world.nature.lie == "two-leaders" and world.leader != old:
            now = world.clock.now()
            world.clock.after(3.0, lambda: _also_acknowledge(world, old, now))

    def kill(self, member: str) -> None:
        """The postmaster dies; a member takes over in two to four seconds."""
        if self.leads(member):
            in_place = self.world.nature.odd == "in-place"
            self.world.lose_leader("crashed", Rule.LOCAL if in_place else Rule.RECEIVED, same=in_place)
            self._soon(2.1, 4.0)
        else:
            self.world.down(member, "crashed", back_after=2.0)

    def crash_restart(self, member: str) -> None:
        """A standby's postmaster restarts every other process: it is back in a second."""
        self._check_follows(member)
        self.world.down(member, "recovering", back_after=1.0)

    def cut_stream(self, member: str) -> None:
        """Nothing streams to a standby, which goes on answering; it reaches PostgreSQL of no other."""
        self._check_follows(member)
        others = [other for other in self.world.nature.members if other != member]
        self.world.deaf.setdefault(member, set()).update(others)
        self.world.down(member, "unreachable")

    def pause_replay(self, member: str) -> None:
        """It receives and replays nothing; commits at remote_apply do not wait for it to no end: others are named."""
        self._check_follows(member)
        self.world.pause(member)

    def _check_follows(self, member: str) -> None:
        if self.leads(member):
            raise TargetError(f"{member} leads", "this fault is one of standbys")

    def stop(self, member: str) -> None:
        """An orderly stop ships everything first."""
        if self.leads(member):
            self.world.lose_leader("stopped", Rule.ALL)
            self._soon(2.1, 4.0)
        else:
            self.world.down(member, "stopped", back_after=3.0)

    def gone(self, state: str, member: str) -> None:
        """It does nothing any more: the ttl must pass."""
        if self.leads(member):
            self.world.lose_leader(state, Rule.RECEIVED)
            self._soon(TTL_S, TTL_S + 3)
        else:
            self.world.down(member, state)

    def hang(self, part: str, member: str) -> None:
        """One part of it. A watchdog ends a leader whose manager lets the lock expire; of the others no writer notices.

        None of them opens a connection or asks REST.
        """
        leads = self.leads(member)
        self.world.hung[member] = part

        def expire() -> None:
            if self.world.hung.get(member) == part and self.world.leader == member:
                self.world.lose_leader("demoted", Rule.RECEIVED)
                self._soon(2.1, 4.0)

        if part == "manager" and leads:
            self.world.clock.after(float(self._rng.uniform(TTL_S, TTL_S + 3)), expire)

    def _cut_off(self, member: str, *more: str) -> None:
        """Packets between it and the others no longer arrive, on either side."""
        others = [other for other in self.world.nature.members if other != member]
        self.world.deaf.setdefault(member, set()).update(others, more)
        for other in others:
            self.world.deaf.setdefault(other, set()).add(member)

    def isolate(self, member: str) -> None:
        """Unreachable for members and clients."""
        self.gone("unreachable", member)
        self._cut_off(member, "clients")

    def cut_power(self, member: str) -> None:
        """What was not flushed is gone."""
        self.world.lost_power.add(member)
        self.gone("off", member)

    def partition(self, member: str) -> None:
        """Clients still reach it: it goes on until it demotes itself."""
        world = self.world
        if not self.leads(member):
            world.down(member, "unreachable")
            self._cut_off(member)
            return
        self._cut_off(member)
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

    def spoil_disk(self, condition: str, member: str) -> None:
        """A failing or full disk: PostgreSQL panics."""
        self.world.disks[member] = condition
        if self.leads(member):
            self.world.lose_leader("failing", Rule.RECEIVED)
            self._soon(3.0, 5.0)
        else:
            self.world.down(member, "failing")

    def restart(self, member: str) -> None:
        """Orderly: everything committed is there again in a second."""
        if self.leads(member):
            self.world.lose_leader("restarting", Rule.ALL, same=True)
            self._soon(1.0, 1.5)
        else:
            self.world.down(member, "restarting", back_after=1.0)

    def lose_dcs(self) -> None:
        """The leader demotes itself and has no successor until recovery."""
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
            raise TargetError("no standby can take over", "wait until every standby streams")
        world.hold(0.8)
        world.timeline += 1
        world.leader = to or standbys[int(self._rng.integers(len(standbys)))]
        world.states[old], world.states[world.leader] = "streaming", "running"
        world.named = world._up_standbys()
        world.clock.pause(1.0)

    def power_on(self, member: str) -> None:
        """Power back on; recovers for two seconds."""
        world = self.world
        if world.states[member] != "off":
            return
        world.down_at[member] = world.clock.now()
        world.states[member] = "starting"
        world.back_by_itself(member, 2.0)

    def recover(self) -> None:
        self.world.recover()
        if self.world.nature.odd == "twice":
            self.world.clock.after(0.3, lambda: self.restart(self.world.leader or ""))

    def logs(self, member: str) -> str:
        return f"{member}: simulated, {self.world.states.get(member, 'unknown')}\n"


def _also_acknowledge(world: World, old: str, since: float) -> None:
    """The lie of two leaders: for three seconds the old one acknowledged too; its rows are even kept."""
    ledger = world.ledger
    server = world.server(world.leader or "")
    if ledger is None or ledger.stopped_at is not None or server not in ledger.servers:
        return
    world.sync()
    theirs = (ledger["server"] == ledger.servers.index(server)) & (ledger["started"].astype(np.float64) >= since)
    chosen = theirs & (ledger["writer"] % 2 == 0) & (ledger["outcome"] == Outcome.ACKNOWLEDGED)
    its = [place for place, server in enumerate(ledger.servers) if server.split()[0] == old]
    if its:
        ledger.columns["server"] = np.where(chosen, its[-1], ledger["server"]).astype(np.int16)
        ledger.columns["timeline"] = np.where(chosen, world.timeline - 1, ledger["timeline"]).astype(np.int32)
