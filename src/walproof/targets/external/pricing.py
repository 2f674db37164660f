"""Pricing an external cluster: under the caps of the target file, in walproof's own database, settings journaled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from walproof.errors import UsageError
from walproof.load.background import BackgroundLoad
from walproof.model.guarantee import ConfigChange, QuorumKind, SyncReplication
from walproof.model.load import LoadLimits
from walproof.model.ports import UNTOLD, Configuration, Notebook, Reverting
from walproof.model.sample import Arm, Checkpoints, Sample, SampleResult, Scenario, Workload
from walproof.targets.configure import configure, needed
from walproof.targets.external.target_file import CapsPart
from walproof.targets.sql.ledger import OwnDatabase
from walproof.targets.sql.price import SqlPricer


class Sizes(Protocol):
    """Processors and memory of servers that their manager changes by making each anew."""

    entered: Scenario
    """What is in effect now."""

    def check(self, size: Scenario, /) -> None:
        """Refuse what cannot be had; changes nothing."""

    def enter(self, size: Scenario, journal: Notebook, /) -> None:
        """Every server runs with that size; NotObtained where it cannot be had."""

    def undo(self, journal: Notebook, reverting: Reverting, /) -> list[str]:
        """What was declared; sentences about what another user has changed since."""


class ExternalPricing:
    """Runs samples by SqlPricer; a scenario may only name a quorum and parameters, and a size where `sizes` does it.

    A pod that is replaced shuts PostgreSQL down smart: for spec.smartShutdownTimeout (180 s) it waits for every client
    and lets in no new one (CloudNativePG 1.30, pkg/management/postgres/instance.go, TryShuttingDownSmartFast), so
    nothing of ours is connected while pods are made anew. A switchover and a fence shut down fast at once
    (TryShuttingDownFastImmediate), as do restarts by Patroni and by pg_ctl.
    """

    def __init__(
        self,
        pricer: SqlPricer,
        caps: CapsPart,
        configuration: Configuration,
        *,
        journal: Callable[[], Notebook],
        database: OwnDatabase,
        sizes: Sizes | None = None,
    ) -> None:
        self._pricer = pricer
        self._caps = caps
        self._configuration = configuration
        self._journal = journal
        self._database, self._sizes = database, sizes
        self._entered = Scenario()

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs, in walproof's own database; tables that exist are used where they are."""
        if not workload.existing:
            self._database.open()
        self._pricer.prepare(workload)

    def check(self, scenario: Scenario) -> None:
        """Refuse what shapes machines, and what cannot be set or had."""
        if self._sizes is not None:
            size, scenario = scenario.size, scenario.settings
        for what, value in (("rtt", scenario.rtt_ms), ("regions", scenario.regions), ("cpu", scenario.cores)):
            if value is not None:
                raise UsageError(f"--{what} shapes a lab, not this external cluster", "leave it out, or price the lab")
        if scenario.memory_mib is not None:
            raise UsageError("--memory is for pods of CloudNativePG", "leave it out, or --target cnpg:NAMESPACE/NAME")
        if scenario.fsync is not None or scenario.wal_volume is not None:
            raise UsageError(
                "fsync and the WAL's volume of an external cluster are left alone", "price them on the lab"
            )
        if (change := _change(scenario)) != ConfigChange():
            self._configuration.plan(change)
        if self._sizes is not None:
            self._sizes.check(size)

    def enter(self, scenario: Scenario) -> dict[str, tuple[float, ...]]:
        """The size, then quorum and parameters, those of the scenario before reverted first."""
        if self._sizes is not None:
            if scenario.size != self._sizes.entered:
                self._pricer.disconnect()
                self._sizes.enter(scenario.size, needed(self._journal()))
            scenario = scenario.settings
        self.check(scenario)
        if scenario == self._entered:
            return {}
        if self._entered != Scenario():
            self._configuration.undo(self._journal(), UNTOLD)
        # Before the first change: one that fails halfway is reverted at the next scenario too.
        self._entered = scenario
        if (change := _change(scenario)) != ConfigChange():
            configure(self._configuration, change, self._journal())
        return {}

    def leave(self) -> None:
        """Revert every setting that was changed, and remove walproof's own database."""
        self._pricer.disconnect()
        try:
            if self._sizes is not None:
                self._sizes.undo(self._journal(), UNTOLD)
        finally:
            self._configuration.undo(self._journal(), UNTOLD)
            self._entered = Scenario()
            self._database.close()

    def checkpoints(self) -> Checkpoints:
        return self._pricer.checkpoints()

    def open_load(self, arm: Arm, seed: int) -> BackgroundLoad:
        return self._pricer.open_load(arm, seed)

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample under the caps of the target file; UsageError beyond max_clients."""
        caps, arm = self._caps, planned.arm
        LoadLimits(caps.max_clients).check(arm.clients)
        if caps.rate is None or (arm.rate is not None and arm.rate <= caps.rate):
            return self._pricer.run_sample(planned, seconds, seed)
        capped = replace(planned, arm=replace(arm, rate=caps.rate))
        return replace(self._pricer.run_sample(capped, seconds, seed), sample=planned)


def _change(scenario: Scenario) -> ConfigChange:
    replication = None
    if scenario.quorum is not None:
        replication = SyncReplication(scenario.quorum_kind or QuorumKind.ANY, scenario.quorum, scenario.strict)
    return ConfigChange(dict(scenario.parameters), replication)
