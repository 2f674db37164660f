"""What a simulated cluster costs: a throughput formula with seeded noise."""

import numpy as np

from walproof.errors import TargetError
from walproof.model.guarantee import Level
from walproof.model.histogram import bucketed
from walproof.model.plan import Sample, Scenario, Workload
from walproof.model.sample import NO_SERIES, Checkpoints, SampleResult, Series, Window
from walproof.targets.simulated.cluster import World

_SERVICE_MS = 0.16
"""Processor time of a transaction on the leader: two processors cap throughput."""
_CHECKPOINT_EVERY_S = 300.0
_COMMIT_MS = {Level.OFF: 0.0, Level.LOCAL: 0.25, Level.REMOTE_WRITE: 0.35, Level.ON: 0.5, Level.REMOTE_APPLY: 0.55}


class SimulatedPricing:
    """Samples of the simulated cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scenario = Scenario()

    def prepare(self, workload: Workload) -> None:
        """Nothing to load."""

    def check(self, scenario: Scenario) -> None:
        """Refuse a quorum larger than the standbys."""
        standbys = len(self._world.nature.members) - 1
        if scenario.quorum is not None and scenario.quorum > standbys:
            raise TargetError(f"a quorum of {scenario.quorum} needs more than {standbys} standbys")
        if scenario.memory_mib is not None:
            raise TargetError("a simulated cluster has no memory", "leave --memory out")

    def enter(self, scenario: Scenario) -> dict[str, float]:
        """Remember the outer factors; the round trip asked for is obtained exactly."""
        self.check(scenario)
        self._scenario = scenario
        if scenario.rtt_ms is None:
            return {}
        first, *others = self._world.nature.members
        return {f"{first}-{other}": scenario.rtt_ms for other in others}

    def leave(self) -> None:
        """Back to what it was."""
        self._scenario = Scenario()

    def checkpoints(self) -> Checkpoints:
        """One every five minutes."""
        return Checkpoints(f"0/{int(self._world.clock.now() // _CHECKPOINT_EVERY_S):X}", _CHECKPOINT_EVERY_S)

    def mean_ms(self, planned: Sample) -> float:
        """The true mean latency of an arm: queueing at two processors, plus flush and round trip.

        Asymptotic bounds of a closed network (Lazowska et al. 1984, ch. 5): the larger of no queueing and saturation.
        """
        arm, scenario = planned.arm, planned.scenario
        rtt_ms = self._world.nature.rtt_s * 1000 if scenario.rtt_ms is None else scenario.rtt_ms
        commit = _COMMIT_MS[arm.level] * (0.2 if scenario.fsync is False else 1.0)
        commit += rtt_ms if arm.level.remote and self._world.names else 0.0
        cores = scenario.cores or 2.0
        alone = _SERVICE_MS + commit
        saturated = arm.clients * _SERVICE_MS / cores + 0.15 * commit
        return max(alone, saturated)

    def run_sample(self, planned: Sample, seconds: float, seed: int) -> SampleResult:
        """One simulated sample; the clock goes on by its length."""
        rng = np.random.default_rng(seed)
        began = self._world.clock.now()
        mean_ms = self.mean_ms(planned) * float(rng.lognormal(0, 0.03))
        tps = planned.arm.clients * 1000 / mean_ms
        if planned.arm.rate is not None:
            tps = min(tps, planned.arm.rate)
        transactions = max(1, int(tps * seconds))
        sample = rng.lognormal(np.log(mean_ms) - 0.045, 0.3, min(transactions, 20_000))
        share = transactions / len(sample)
        histogram = {bucket: max(1, round(count * share)) for bucket, count in bucketed(sample).items()}
        self._world.clock.pause(seconds)
        return SampleResult(
            planned,
            began,
            seconds,
            transactions,
            0,
            transactions / seconds,
            mean_ms,
            histogram,
            window=Window(standby_names=self._world.names, streaming=len(self._world.named)),
            series=_seconds(began, seconds, tps, mean_ms) if planned.series else NO_SERIES,
        )


def _seconds(began: float, seconds: float, tps: float, mean_ms: float) -> Series:
    """The whole seconds of a sample: all alike, for the simulation has no weather within one."""
    n = int(seconds)
    return Series(
        started_at=began,
        transactions=(round(tps),) * n,
        p50_ms=(0.95 * mean_ms,) * n,
        p99_ms=(1.9 * mean_ms,) * n,
        max_ms=(3.0 * mean_ms,) * n,
        stalled_s=(0.0,) * n,
        wal_bytes=(None,) * n,
        checkpoint=(False,) * n,
    )
