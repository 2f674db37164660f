"""Ledgers of a simulated cluster: writers as numbers, rows as an honest or lying cluster shows them."""

from dataclasses import replace

import numpy as np

from walproof.errors import TargetError
from walproof.model.attempt import Attempts, Outcome, Rows
from walproof.model.load import LedgerOrder, Progress, WitnessReport
from walproof.targets.simulated.cluster import World
from walproof.targets.simulated.ledger import SimulatedLedger


class SimulatedRun:
    """The simulated writers, as the port shows them."""

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

    def incomplete(self) -> str:
        """Nothing of it is ever missing."""
        return ""

    def witnessed(self) -> WitnessReport:
        """What the readers saw."""
        world = self._world
        synchronous = tuple(m.name for m in world.view().members if m.sync_state in ("sync", "quorum"))
        others = tuple(m for m in world.nature.members if m not in synchronous and m != world.leader)
        return self._ledger.witnessed(synchronous, others, world.nature.sync.number)


class SimulatedLedgers:
    """Opens, reads and drops ledgers of one simulated cluster."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self._rng = world, rng
        self._ledgers: dict[int, SimulatedLedger] = {}

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
            raise TargetError(f"{member} does not answer", "clear the fault first")
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
