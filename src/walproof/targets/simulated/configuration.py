"""Configuration of a simulated cluster: in effect at once."""

import json
from dataclasses import asdict, replace

from walproof.errors import TargetError
from walproof.model.configuration import ConfigChange, ConfigPlan, Difference, SyncReplication
from walproof.model.guarantee import QuorumKind
from walproof.model.ports import Notebook
from walproof.targets.simulated.cluster import World


class SimulatedConfiguration:
    """Parameters are only remembered; synchronous replication takes effect."""

    def __init__(self, target: str, world: World) -> None:
        self._target, self._world = target, world
        self.parameters: dict[str, str] = {}

    def plan(self, change: ConfigChange) -> ConfigPlan:
        """What it would change; TargetError where the standbys are too few."""
        sync = change.replication
        if sync is not None and sync.number > len(self._world.nature.members) - 1:
            raise TargetError(f"a quorum of {sync.number} needs more standbys", "add members or lower the quorum")
        found = [
            Difference("cluster", name, self.parameters.get(name), value)
            for name, value in change.parameters.items()
            if self.parameters.get(name) != value
        ]
        if sync is not None and sync != self._world.nature.sync:
            found.append(Difference("cluster", "synchronous replication", self._world.nature.sync.text, sync.text))
        return ConfigPlan(change, tuple(found), self._version())

    def _version(self) -> str:
        return json.dumps([self.parameters, self._world.nature.sync.text], sort_keys=True)

    def apply(self, plan: ConfigPlan, journal: Notebook) -> None:
        """Journaled, then in effect; TargetError when it is no longer what was planned on."""
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

    def undo(self, journal: Notebook) -> list[str]:
        """Revert every pending change, newest first."""
        for change in journal.pending(self._target):
            before = json.loads(change.before or "{}")
            self.parameters = before["parameters"]
            sync = before["sync"]
            method = None if sync["method"] is None else QuorumKind(sync["method"])
            self._replicate(SyncReplication(method, sync["number"], sync["strict"]))
            journal.undone(change)
        return []
