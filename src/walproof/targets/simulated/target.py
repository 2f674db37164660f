"""The target `sim`: a simulated cluster on a virtual clock, honest or lying on demand. Starts no process.

`sim?lie=lost&seed=3&members=3&sync=quorum&quorum=1&rtt=1ms&slowness=2`; the lies are in lies.py: the prover
must catch every one of them.
"""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qsl

import numpy as np

from walproof.errors import TargetError, UsageError
from walproof.model.ports import Capabilities, Capability, Clock, Notebook
from walproof.model.topology import ClusterView, Description, Endpoint, Route, Snapshot
from walproof.model.units import duration_s
from walproof.targets.simulated.clock import VirtualClock
from walproof.targets.simulated.cluster import Nature, World, sync_of
from walproof.targets.simulated.configuration import SimulatedConfiguration
from walproof.targets.simulated.faults import NOTHING, SimulatedFaults
from walproof.targets.simulated.lies import LIES, ODDITIES, lie_of
from walproof.targets.simulated.member_states import SimulatedMemberStates
from walproof.targets.simulated.price import SimulatedPricing
from walproof.targets.simulated.written import SimulatedLedgers


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

    def __init__(self, nature: Nature) -> None:
        virtual = VirtualClock()
        rng = np.random.default_rng(nature.seed)
        self.world = World(nature, virtual, rng)
        self.world.begin()
        self.clock: Clock = virtual
        self.name = "simulated"
        self.journal: Notebook | None = None
        self.pricing = SimulatedPricing(self.world)
        self.ledger = SimulatedLedgers(self.world, rng)
        self._configuration = SimulatedConfiguration(self.name, self.world)
        self.faults = SimulatedFaults(self.world, rng)
        self.world.promoted = self.faults.promoted
        self._member_states = SimulatedMemberStates(self.world)

    def describe(self) -> Description:
        """What is simulated; says so first."""
        nature = self.world.nature
        facts = {"kind": "simulated, not a measurement", "lie": nature.lie or "none", "seed": str(nature.seed)}
        settings = {"synchronous_standby_names": self.world.names, **self._configuration.parameters}
        return Description(self.name, nature.members, facts, settings)

    def observe(self) -> ClusterView:
        """One observation."""
        self.world.sync()
        view, hook = self.world.view(), lie_of(self.world.nature.lie).view
        return hook(view) if hook else view

    def poller(self, *, pace_s: float = 0.5, silent_s: float = 0.9) -> "SimulatedPoller":
        """Every snapshot is one observation."""
        return SimulatedPoller(self)

    def routes(self) -> tuple[Route, ...]:
        """By name only: there is nothing to connect to."""
        return (Route("direct", follows=False), Route("multi-host"), Route("haproxy"), Route("pgbouncer", pools=True))

    def endpoint(self, route: str) -> Endpoint:
        """TargetError: there is nothing to connect to."""
        raise TargetError("a simulated cluster has no address", "use the lab: walproof lab up")

    def member_endpoint(self, member: str) -> Endpoint:
        """TargetError: there is nothing to connect to."""
        raise TargetError("a simulated member has no address", "use the lab: walproof lab up")

    def elected_at(self, since: float) -> float | None:
        """Observed within a tick anyway."""
        return None

    def capabilities(self) -> Capabilities:
        """Everything but what needs a real server."""
        faults = self.faults
        lie = lie_of(self.world.nature.lie).instead
        replaced = lie[0] if lie else None
        return Capabilities(
            pricing=self.pricing,
            ledger=self.ledger,
            faults=faults.of_members(),
            slow_disk=NOTHING if replaced is Capability.SLOW_DISK else faults.slow_disk(),
            partition_one_way=NOTHING if replaced is Capability.PARTITION_ONE_WAY else faults.one_way(),
            dcs_loss=NOTHING if replaced is Capability.DCS_LOSS else faults.dcs(),
            restart=NOTHING if replaced is Capability.RESTART else faults,
            switchover=NOTHING if replaced is Capability.SWITCHOVER else faults,
            recovery=faults,
            logs=faults,
            member_states=self._member_states,
            configuration=self._configuration,
            scenario_factors=frozenset({Capability.SHAPE_LINKS, Capability.LIMIT_PROCESSORS}),
            reasons={Capability.INSPECT: "a simulated cluster has no settings to inspect"},
        )

    def revert(self, journal: Notebook) -> list[str]:
        """Undo every pending change of the journal."""
        return self._configuration.undo(journal)

    def close(self) -> None:
        """Nothing is kept."""


class SimulatedPoller:
    """Snapshots of a simulated cluster."""

    def __init__(self, target: Simulated) -> None:
        self._target = target

    def snapshot(self) -> Snapshot:
        """One observation."""
        return Snapshot(self._target.observe())

    def close(self) -> None:
        """Nothing to close."""
