"""The target `sim`: a simulated cluster on a virtual clock, its configuration and its prices. Starts no process.

`sim?lie=lost&seed=3&members=3&sync=quorum&quorum=1&rtt=1ms&slowness=2`; the lies are in known_lies.py: the prover
must catch every one of them."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from urllib.parse import parse_qsl

import numpy as np

from walproof.errors import TargetError, UsageError
from walproof.model.drill import Capability
from walproof.model.estimate import bucketed
from walproof.model.guarantee import ConfigChange, ConfigPlan, Difference, Level, QuorumKind, SyncReplication
from walproof.model.ports import SILENT, Capabilities, Clock, Notebook, Reverting
from walproof.model.sample import NO_SERIES, Checkpoints, Sample, SampleResult, Scenario, Series, Window, Workload
from walproof.model.topology import SIMULATED, ClusterView, Description, Endpoint, Route, Snapshot
from walproof.model.units import duration_s
from walproof.targets.configure import NoJournal
from walproof.targets.postgres.target import NAMES, asked_of, settings_of
from walproof.targets.simulated.clock import VirtualClock
from walproof.targets.simulated.cluster import Nature, World, sync_of
from walproof.targets.simulated.faults import NOTHING, LostDcs, OneWay, SimulatedFaults, SlowFlushes
from walproof.targets.simulated.known_lies import LIES, ODDITIES
from walproof.targets.simulated.ledger_rows_and_member_states import SimulatedLedgers, SimulatedMemberStates


class SimulatedConfiguration:
    """Parameters are only remembered; synchronous replication takes effect."""

    def __init__(self, target: str, world: World) -> None:
        self._target, self._world = target, world
        self.parameters: dict[str, str] = {}

    def plan(self, change: ConfigChange) -> ConfigPlan:
        sync = change.replication
        if sync is not None and sync.number > len(self._world.nature.members) - 1:
            raise TargetError(f"a quorum of {sync.number} needs more standbys", "add members or lower the quorum")
        differences = [
            Difference("cluster", name, self.parameters.get(name), value)
            for name, value in change.parameters.items()
            if self.parameters.get(name) != value
        ]
        if sync is not None and sync != self._world.nature.sync:
            differences.append(Difference("cluster", NAMES, self._world.nature.sync.text, sync.text))
        settings = settings_of(asked_of(change, self._world.nature.members))
        return ConfigPlan(change, settings, tuple(differences), self._version())

    def _version(self) -> str:
        return json.dumps([self.parameters, self._world.nature.sync.text], sort_keys=True)

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        if plan.version != self._version():
            raise TargetError("the configuration was changed meanwhile", "do it once more")
        before = {"parameters": self.parameters, "sync": asdict(self._world.nature.sync)}
        journal.note(self._world.clock.now(), self._target, "simulated", "config", before=json.dumps(before), after="")
        self.parameters = {**self.parameters, **{n: v for n, v in plan.change.parameters.items() if v is not None}}
        for name in (n for n, v in plan.change.parameters.items() if v is None):
            self.parameters.pop(name, None)
        if plan.change.replication is not None:
            self._replicate(plan.change.replication)

    def _replicate(self, sync: SyncReplication) -> None:
        self._world.sync()
        self._world.nature = replace(self._world.nature, sync=sync)

    def wait(self, plan: ConfigPlan) -> None:
        """It is in effect already."""

    def undo(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        for change in journal.pending(self._target):
            before = json.loads(change.before or "{}")
            self.parameters = before["parameters"]
            sync = before["sync"]
            method = None if sync["method"] is None else QuorumKind(sync["method"])
            self._replicate(SyncReplication(method, sync["number"], sync["strict"]))
            journal.undone(change)
            reverting.tell("setting", change.name)
        return []


_SERVICE_MS = 0.16
"""Processor time of a transaction on the leader: two processors cap throughput."""
_CHECKPOINT_EVERY_S = 300.0
_COMMIT_MS = {Level.OFF: 0.0, Level.LOCAL: 0.25, Level.REMOTE_WRITE: 0.35, Level.ON: 0.5, Level.REMOTE_APPLY: 0.55}


class SimulatedPricing:
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

    def enter(self, scenario: Scenario) -> dict[str, tuple[float, ...]]:
        """Remember the outer factors; the round trip asked for is obtained exactly."""
        self.check(scenario)
        self._scenario = scenario
        if scenario.rtt_ms is None:
            return {}
        first, *others = self._world.nature.members
        return {f"{first}-{other}": (scenario.rtt_ms,) for other in others}

    def leave(self) -> None:
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
            sample=planned,
            started_at=began,
            seconds=seconds,
            transactions=transactions,
            failed=0,
            credit=transactions,
            mean_ms=mean_ms,
            histogram=histogram,
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


def simulated(text: str) -> "Simulated":
    """The simulated cluster that a target text describes; UsageError for what it does not know."""
    given = dict(parse_qsl(text.partition("?")[2]))
    nature = Nature()
    readers: dict[str, Callable[[str], Nature]] = {
        "lie": lambda v: replace(nature, lie=v),
        "odd": lambda v: replace(nature, odd=v, damaged=3 if v == "damaged" else 0),
        "seed": lambda v: replace(nature, seed=int(v)),
        "members": lambda v: replace(nature, members=tuple(f"n{i + 1}" for i in range(int(v)))),
        "sync": lambda v: replace(nature, sync=sync_of(v)),
        "quorum": lambda v: replace(nature, sync=replace(nature.sync, number=int(v))),
        "rtt": lambda v: replace(nature, rtt_s=duration_s(v)),
        "slowness": lambda v: replace(nature, slowness=float(v)),
    }
    for name, value in given.items():
        known = {"lie": set(LIES), "odd": set(ODDITIES)}.get(name)
        if name not in readers or (known is not None and value not in known):
            raise UsageError(
                f"the simulated cluster does not know {name}={value}",
                f"it knows {', '.join(readers)}; the lies are {', '.join(LIES)}; what is odd: {', '.join(ODDITIES)}",
            )
        try:
            nature = readers[name](value)
        except (ValueError, KeyError):
            raise UsageError(f"{name}={value} is not valid", "for instance sim?members=3&sync=quorum") from None
    if not 1 <= len(nature.members) <= 7:
        raise UsageError("a simulated cluster has 1 to 7 members", "for instance sim?members=3")
    return Simulated(nature)


class Simulated:
    """A cluster on a virtual clock, with every capability."""

    external = False
    identity = ""

    def __init__(self, nature: Nature) -> None:
        virtual = VirtualClock()
        rng = np.random.default_rng(nature.seed)
        self.world = World(nature, virtual, rng)
        self.world.begin()
        self.clock: Clock = virtual
        self.name = "simulated"
        self.journal: Notebook = NoJournal()
        self.pricing = SimulatedPricing(self.world)
        self.ledger = SimulatedLedgers(self.world, rng)
        self._configuration = SimulatedConfiguration(self.name, self.world)
        self.faults = SimulatedFaults(self.world, rng)
        self.world.promoted = self.faults.promoted
        self._member_states = SimulatedMemberStates(self.world)

    def describe(self) -> Description:
        nature = self.world.nature
        facts = {"kind": SIMULATED, "lie": nature.lie or "none", "seed": str(nature.seed)}
        settings = {"synchronous_standby_names": self.world.names, **self._configuration.parameters}
        return Description(self.name, nature.members, facts, settings)

    def observe(self) -> ClusterView:
        self.world.sync()
        return self.world.nature.its_lie.view(self.world.view())

    def poller(self, *, pace_s: float = 0.5, silent_s: float = 0.9) -> "SimulatedPoller":
        return SimulatedPoller(self)

    def routes(self) -> tuple[Route, ...]:
        """By name only: there is nothing to connect to."""
        return (Route("direct", follows=False), Route("multi-host"), Route("haproxy"), Route("pgbouncer", pools=True))

    def endpoint(self, route: str) -> Endpoint:
        raise TargetError("a simulated cluster has no address", "use the lab: walproof lab up")

    def member_endpoint(self, member: str) -> Endpoint:
        raise TargetError("a simulated member has no address", "use the lab: walproof lab up")

    def elected_at(self, since: float) -> float | None:
        """Observed within a tick anyway."""
        return None

    def capabilities(self) -> Capabilities:
        faults, (replaced, _) = self.faults, self.world.nature.its_lie.instead
        return Capabilities(
            pricing=self.pricing,
            ledger=self.ledger,
            faults=faults.of_members(),
            slow_disk=NOTHING if replaced is Capability.SLOW_DISK else SlowFlushes(self.world),
            partition_one_way=NOTHING if replaced is Capability.PARTITION_ONE_WAY else OneWay(faults),
            dcs_loss=NOTHING if replaced is Capability.DCS_LOSS else LostDcs(faults),
            restart=NOTHING if replaced is Capability.RESTART else faults,
            switchover=NOTHING if replaced is Capability.SWITCHOVER else faults,
            recovery=faults,
            logs=faults,
            member_states=self._member_states,
            configuration=self._configuration,
            scenario_factors=frozenset({Capability.SHAPE_LINKS, Capability.LIMIT_PROCESSORS}),
            reasons={
                Capability.OBSERVE: "a simulated cluster has no sessions that wait",
                Capability.INSPECT: "a simulated cluster has no settings to inspect",
                Capability.WORKLOAD: "a simulated cluster has no server that could run it",
            },
        )

    def revert(self, journal: Notebook, reverting: Reverting = SILENT) -> list[str]:
        return self._configuration.undo(journal, reverting)

    def close(self) -> None:
        """Nothing is kept."""


class SimulatedPoller:
    def __init__(self, target: Simulated) -> None:
        self._target = target

    def snapshot(self) -> Snapshot:
        return Snapshot(self._target.observe())

    def close(self) -> None:
        """Nothing to close."""
