"""Pricing as on every external cluster, under pods of another size where a scenario asks for it."""

from collections.abc import Callable
from dataclasses import replace

from walproof.model.plan import Sample, Scenario, Workload
from walproof.model.ports import Notebook, Pricing
from walproof.model.sample import Checkpoints, SampleResult
from walproof.targets.cnpg.scaling import CnpgScaling, PodSize
from walproof.targets.configure import needed


class CnpgPricing:
    """Takes processors and memory of a scenario upon itself, and leaves the rest to `within`."""

    def __init__(self, within: Pricing, scaling: CnpgScaling, journal: Callable[[], Notebook | None]) -> None:
        self._within, self._scaling, self._journal = within, scaling, journal

    def prepare(self, workload: Workload) -> None:
        """Load what the workload needs."""
        self._within.prepare(workload)

    def check(self, scenario: Scenario) -> None:
        """Refuse what this Cluster does not take, and what shapes machines."""
        self._within.check(_otherwise(scenario))
        self._scaling.check(_size(scenario))

    def enter(self, scenario: Scenario) -> dict[str, float]:
        """The pods' size first, then quorum and parameters; NotObtained where the size cannot be had."""
        size = _size(scenario)
        if size != self._scaling.entered:
            self._scaling.enter(size, needed(self._journal()))
        return self._within.enter(_otherwise(scenario))

    def leave(self) -> None:
        """The size that was declared, and what every external cluster reverts."""
        journal = self._journal()
        try:
            if journal is not None:
                self._scaling.undo(journal)
        finally:
            self._within.leave()

    def checkpoints(self) -> Checkpoints:
        """The leader's last checkpoint."""
        return self._within.checkpoints()

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """Run one sample."""
        return self._within.run_sample(planned, seconds, seed)


def _size(scenario: Scenario) -> PodSize:
    return PodSize(scenario.cores, scenario.memory_mib)


def _otherwise(scenario: Scenario) -> Scenario:
    """What is left of it for every external cluster."""
    return replace(scenario, cores=None, memory_mib=None)
