"""What a simulated cluster costs: a throughput formula with seeded noise; sets parameters and synchronous mode."""

from dataclasses import replace

import numpy as np

from walproof.errors import TargetError
from walproof.model.guarantee import Level, SyncMode
from walproof.model.histogram import bucketed
from walproof.model.plan import Sample, Scenario, Workload
from walproof.model.sample import SampleResult, Window
from walproof.targets.simulated.cluster import World

_SERVICE_MS = 0.16
"""Processor time of a transaction on the leader: two processors cap throughput."""
_COMMIT_MS = {Level.OFF: 0.0, Level.LOCAL: 0.25, Level.REMOTE_WRITE: 0.35, Level.ON: 0.5, Level.REMOTE_APPLY: 0.55}


class SimulatedPrice:
    """CanBePriced and CanConfigure of the simulated cluster."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self._world, self._noise = world, rng
        self._parameters: dict[str, str] = {}
        self._setting = Scenario()

    def prepare(self, workload: Workload) -> None:
        """Nothing to load."""

    def check(self, setting: Scenario) -> None:
        """Refuse a quorum larger than the standbys."""
        standbys = len(self._world.nature.members) - 1
        if setting.quorum is not None and setting.quorum > standbys:
            raise TargetError(f"a quorum of {setting.quorum} needs more than {standbys} standbys")

    def enter(self, setting: Scenario) -> dict[str, float]:
        """Remember the outer factors; the round trip asked for is obtained exactly."""
        self.check(setting)
        self._setting = setting
        if setting.rtt_ms is None:
            return {}
        first, *others = self._world.nature.members
        return {f"{first}-{other}": setting.rtt_ms for other in others}

    def leave(self) -> None:
        """Back to what it was."""
        self._setting = Scenario()

    def mean_ms(self, planned: Sample) -> float:
        """The true mean latency of an arm: queueing at two processors, plus flush and round trip.

        Asymptotic bounds of a closed network (Lazowska et al. 1984, ch. 5): the larger of no queueing and saturation.
        """
        arm, setting = planned.arm, planned.scenario
        rtt_ms = self._world.nature.rtt_s * 1000 if setting.rtt_ms is None else setting.rtt_ms
        commit = _COMMIT_MS[arm.level] * (0.2 if setting.fsync is False else 1.0)
        commit += rtt_ms if arm.level.remote and self._world.names else 0.0
        cores = setting.cores or 2.0
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
        )

    def set_parameters(self, parameters: dict[str, str | None]) -> None:
        """In force at once."""
        for name, value in parameters.items():
            if value is None:
                self._parameters.pop(name, None)
            else:
                self._parameters[name] = value

    def set_sync(self, mode: SyncMode, quorum: int) -> None:
        """In force at once."""
        world = self._world
        if quorum > len(world.nature.members) - 1:
            raise TargetError(f"a quorum of {quorum} needs more standbys", "add members or lower the quorum")
        world.sync()
        world.nature = replace(world.nature, sync=mode, quorum=quorum)
