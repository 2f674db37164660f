"""Ledgers of a simulated cluster: writers as numbers, rows as an honest or lying cluster shows them."""

import numpy as np

from walproof.errors import TargetError
from walproof.model.attempt import Attempts, Outcome, Rows
from walproof.model.load import LedgerOrder, Progress, WitnessReport
from walproof.targets.simulated.cluster import World
from walproof.targets.simulated.ledger import SimulatedLedger
from walproof.targets.simulated.lies import lie_of


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
        attempts, hook = self._ledger.stop(self._world.clock.now()), lie_of(self._world.nature.lie).attempts
        return hook(attempts) if hook else attempts

    def incomplete(self) -> str:
        """Nothing of it is ever missing, but for a lie."""
        return lie_of(self._world.nature.lie).incomplete

    def witnessed(self) -> WitnessReport:
        """What the readers saw."""
        world = self._world
        synchronous = tuple(m.name for m in world.view().members if m.sync_state in ("sync", "quorum"))
        others = tuple(m for m in world.nature.members if m not in synchronous and m != world.leader)
        report = self._ledger.witnessed(synchronous, others, world.nature.sync.number)
        hook = lie_of(world.nature.lie).witness
        return hook(report) if hook else report


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
        rows, hook = ledger.rows(member), lie_of(self.world.nature.lie).rows
        return hook(rows, member == self.world.leader) if hook else rows

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
