"""What a simulated cluster shows, honest or lying: the rows of its ledgers, and the signs of a fault of each member."""

from dataclasses import replace

import numpy as np

from walproof.errors import TargetError
from walproof.model.load import Attempts, LedgerOrder, Outcome, Progress, Rows, WitnessReport
from walproof.model.topology import LedgerTable, MemberState
from walproof.targets.simulated.cluster import GONE, World
from walproof.targets.simulated.ledger import SimulatedLedger


class SimulatedRun:
    def __init__(self, world: World, ledger: SimulatedLedger) -> None:
        self._world, self._ledger = world, ledger

    def progress(self) -> Progress:
        self._world.sync()
        return self._ledger.progress(self._world.clock.now())

    def stop(self) -> Attempts:
        """End the writers and give the ledger, with the lie of the day."""
        self._world.sync()
        return self._world.nature.its_lie.attempts(self._ledger.stop(self._world.clock.now()))

    def incomplete(self) -> str:
        """Nothing of it is ever missing, but for a lie."""
        return self._world.nature.its_lie.incomplete

    def witnessed(self) -> WitnessReport:
        world = self._world
        synchronous = tuple(m.name for m in world.view().members if m.sync_state in ("sync", "quorum"))
        others = tuple(m for m in world.nature.members if m not in synchronous and m != world.leader)
        report = self._ledger.witnessed(synchronous, others, world.nature.sync.number)
        return world.nature.its_lie.witness(report)


class SimulatedLedgers:
    """Opens and reads ledgers of one simulated cluster."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self._rng = world, rng
        self._ledgers: dict[int, SimulatedLedger] = {}

    def open_ledger(self, order: LedgerOrder) -> SimulatedRun:
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
            raise TargetError(f"{member} does not answer", "clear the fault first")
        if drill not in self._ledgers:
            raise TargetError(f"there is no ledger of drill {drill}")
        return self.world.nature.its_lie.rows(self._ledgers[drill].rows(member), member == self.world.leader)

    def truly_lost(self, drill: int) -> int:
        """How many acknowledged commits this cluster really lost: what an honest report must say."""
        ledger = self._ledgers[drill]
        acknowledged = ledger["outcome"] == Outcome.ACKNOWLEDGED
        return int((acknowledged & ~ledger["kept"].astype(bool)).sum())

    def check_data(self, member: str) -> str:
        return ""


_NO_POSTGRES = ("crashed", "stopped", "restarting", "failing", *GONE)
_PARTS = ("postmaster", "manager", "rest")
_SETTINGS = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on"}


class SimulatedMemberStates:
    """Every member of one simulated cluster, at its own time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._first: tuple[MemberState, ...] = ()

    def states(self) -> tuple[MemberState, ...]:
        self._world.sync()
        now = tuple(self._state(member) for member in self._world.nature.members)
        self._first = self._first or now
        return self._world.nature.its_lie.states(now, self._first)

    def _state(self, member: str) -> MemberState:
        world, state = self._world, self._world.states[member]
        runs = state not in (*_NO_POSTGRES, "starting")
        start, crash = world.starts.get(member, 0), world.crashes.get(member, 0)
        machine = MemberState(
            member,
            world.clock.now(),
            postmaster=f"{member} {start}" if runs else "none",
            processes="none" if state in GONE else "frozen" if state == "frozen" else "running",
            disk=self._disk(member),
            dcs=self._dcs(member),
            deaf_to=tuple(sorted(world.deaf.get(member, ()))),
            hangs=_PARTS if state == "frozen" else tuple(filter(None, [world.hung.get(member)])),
        )
        if (
            not runs
            or state in ("frozen", "recovering")
            or "postmaster" in (machine.hangs or ())
            or "clients" in machine.deaf_to
        ):
            return machine
        leads = member == world.leader
        return replace(
            machine,
            answers=True,
            in_recovery=not leads,
            started=f"start {start} of {member}",
            stats_reset=f"reset {crash} of {member}",
            system="7000000000000000001",
            timeline=world.timeline,
            lsn=1000,
            settings={**_SETTINGS, "synchronous_standby_names": world.names if leads else ""},
            checksum_failures=0 if crash else world.nature.damaged,
            senders=tuple(m for m in world.nature.members if m != member and world.streams(m)) if leads else (),
            receives=not leads and world.streams(member),
            replay_paused=None if leads else member in world.paused,
            table=LedgerTable(),
        )

    def _disk(self, member: str) -> str:
        if self._world.states[member] == "off":
            return "dead"
        if member in self._world.disks:
            return self._world.disks[member]
        return "slow" if self._world.slow.get(member) else "sound"

    def _dcs(self, member: str) -> str:
        if self._world.states[member] in GONE:
            return "none"
        names = self._world.nature.members
        majority = names[: len(names) // 2 + 1]
        stopped = self._world.states[member] == "frozen" or (not self._world.dcs and member in majority)
        return "frozen" if stopped else "running"
