"""Faults of instances through Chaos Mesh: in effect once its status says so, undone by deletion, each journaled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from walproof.errors import TargetError, WaitTimeout, each_done
from walproof.machine.pid_files import this_process
from walproof.machine.quoting import pasted
from walproof.model.drill import Capability
from walproof.model.ports import SILENT, MemberFault, Notebook, Reverting
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg import created_objects
from walproof.targets.cnpg.chaos_mesh_objects import ChaosExperiment
from walproof.targets.cnpg.created_objects import EXPERIMENTS, IO, NETWORK, Experiment, Left, left_behind
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, ApiError, Kind
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.rbac import CHAOS_FAULTS, CHAOS_MESH, Names, for_experiment, refusal
from walproof.targets.cnpg.state_and_doctor_facts import pods_of
from walproof.targets.configure import noted

CHAOS = "cnpg chaos"
"""What the journal calls an experiment; its name is KIND NAME."""
KINDS = {kind.plural: kind for kind in EXPERIMENTS}


@dataclass(slots=True)
class ChaosMesh:
    """The experiments of one Cluster; those that are there are in `injected`."""

    instances: Instances
    injected: list[tuple[Kind, str]] = field(default_factory=list)
    _reasons: dict[Kind, str] | None = None

    def why_not(self) -> dict[Kind, str]:
        """Why an experiment of a kind cannot be made, by kind; asked of the API once."""
        if self._reasons is None:
            self._reasons = {kind: reason for kind in KINDS.values() if (reason := self._why_not(kind))}
        return self._reasons

    def _why_not(self, kind: Kind) -> str:
        api = self.instances.api
        if not api.serves(kind):
            return f"Chaos Mesh is not installed (no {kind.shown})"
        names = Names(self.instances.cluster, tuple(pods_of(api, self.instances.cluster)))
        wrong = refusal(api, for_experiment(kind, names), f"a fault by {kind.shown}")
        hint = pasted("walproof target cnpg --print-rbac --for {use:shell}", use=CHAOS_MESH)
        return f"{wrong.message}; {wrong.hint} ({hint})" if wrong else ""

    def cluster(self) -> Cluster:
        return read(Cluster, self.instances.api.get(CLUSTERS, self.instances.cluster))

    def others(self, member: str) -> list[str]:
        return [name for name in pods_of(self.instances.api, self.instances.cluster) if name != member]

    def begin(self, experiment: Experiment) -> None:
        """Noted, created, awaited until all of it is injected; TargetError with Chaos Mesh's reason when it is not."""
        run, kind, name = self.instances, experiment.kind, experiment.name
        what = f"{kind.plural} {name}"
        run.journal().note(run.clock.now(), run.target, CHAOS, what, before=None, after=this_process())
        self.injected.append((kind, name))
        tree = created_objects.tree_of(experiment, self.cluster())
        try:
            run.api.create(kind, tree)
        except ApiError as wrong:
            if wrong.code == 403:
                self._forget(kind, name)
            if wrong.code != 409:
                raise
            self._remove_ours(kind, name)  # whose deletion was not seen to end
            run.api.create(kind, tree)
        seen: list[ChaosExperiment] = []

        def injected() -> bool:
            seen.append(read(ChaosExperiment, run.api.get(kind, name)))
            return seen[-1].status.holds("AllInjected")

        try:
            wait_for(Wait.CHAOS_INJECTED, injected, run.clock, pace_s=0.2)
        except WaitTimeout as timeout:
            reason = seen[-1].status.reason if seen else ""
            self.end(kind, name)
            hint = pasted("kubectl describe {kind:shell} shows why; are its daemons up on that node?", kind=kind.plural)
            raise TargetError(f"{timeout.message}: {reason or 'no reason is known'}", hint) from None

    def end(self, kind: Kind, name: str) -> None:
        """This run's is deleted, and gone: Chaos Mesh lets it go only once it is undone everywhere."""
        self._remove_ours(kind, name)
        self._forget(kind, name)

    def _remove_ours(self, kind: Kind, name: str) -> None:
        """ApiError where another run's of that name is there, or ours with another's mark."""
        api = self.instances.api
        if (there := created_objects.find(api, kind, name)) is not None:
            there.check_ours(api.namespace)
            self._delete(there)

    def _forget(self, kind: Kind, name: str) -> None:
        self.injected = [pair for pair in self.injected if pair != (kind, name)]
        run = self.instances
        journal = run.journal()
        for change in noted(journal, run.target, CHAOS, f"{kind.plural} {name}"):
            journal.undone(change)

    def _delete(self, one: Left) -> None:
        api = self.instances.api
        api.delete(one.kind, one.meta.name, uid=one.meta.uid)

        def gone() -> bool:
            there = created_objects.find(api, one.kind, one.meta.name)
            return there is None or there.meta.uid != one.meta.uid

        wait_for(Wait.CHAOS_GONE, gone, self.instances.clock, pace_s=0.2)

    def undo_all(self) -> None:
        """Every experiment that is there, the newest first."""
        each_done([partial(self.end, kind, name) for kind, name in reversed(self.injected)])

    def undo_left(self, journal: Notebook, reverting: Reverting = SILENT) -> None:
        """Every experiment that ended runs left: those of the journal, then those without one."""
        api = self.instances.api
        changes = noted(journal, self.instances.target, CHAOS)
        named = [
            (created_objects.find(api, KINDS[plural], name), change.after)
            for change in changes
            for plural, _, name in [change.name.partition(" ")]
        ]
        # An old journal does not say who made it.
        left = [one for one, by in named if one and one.ours and by in (None, one.maker)]
        left += [e for e in left_behind(api, self.instances.cluster) if e.kind in EXPERIMENTS and e.over(reverting)]
        for one in {(one.kind, one.meta.name): one for one in left}.values():
            self._delete(one)
            reverting.tell(one.kind_name, one.meta.name)
        for change in changes:
            journal.undone(change)

    def in_effect(self) -> dict[str, tuple[Capability, ...]] | None:
        """What Chaos Mesh's status says is injected now, by member; None where it cannot be asked anything."""
        if len(self.why_not()) == len(KINDS):
            return None
        by_member: dict[str, tuple[Capability, ...]] = {}
        for kind, name in list(self.injected):
            try:
                status = read(ChaosExperiment, self.instances.api.get(kind, name)).status
            except ApiError:
                continue
            for record in status.experiment.container_records:
                if record.phase == "Injected":
                    pod = record.id.split("/")[1]
                    by_member[pod] = (*by_member.get(pod, ()), created_objects.fault_of(name))
        return by_member

    def faults(self) -> dict[Capability, MemberFault]:
        place = self.instances.api.namespace
        made: dict[Capability, Callable[[str], Sequence[Experiment]]] = {
            Capability.PARTITION: lambda m: [created_objects.partition(place, m, self.others(m))],
            Capability.ISOLATE: lambda m: [created_objects.isolate(place, m)],
            Capability.LINK_DELAY: lambda m: [created_objects.delayed(place, m, self.others(m))],
            **{fault: partial(self.disk_fault, fault) for fault in (Capability.FAILING_DISK, Capability.FULL_DISK)},
            Capability.CPU_STRESS: lambda m: [created_objects.busy_processors(place, m)],
        }
        return {
            fault: ChaosFault(self, make) for fault, make in made.items() if CHAOS_FAULTS[fault] not in self.why_not()
        }

    def disk_fault(self, fault: Capability, member: str, delay_s: float = 0.0) -> Sequence[Experiment]:
        """Of the volume of its data, and of that of its WAL where instances have one."""
        place, wal = self.instances.api.namespace, self.cluster().spec.wal_storage is not None
        return created_objects.disk_fault(fault, place, member, wal_volume=wal, delay_s=delay_s)

    def slow_disk(self) -> "ChaosSlowDisk | None":
        """Flushes that take longer, where that can be done."""
        return None if IO in self.why_not() else ChaosSlowDisk(self)

    def one_way(self) -> "ChaosOneWay | None":
        """One direction cut, where that can be done."""
        return None if NETWORK in self.why_not() else ChaosOneWay(self)


@dataclass(frozen=True, slots=True)
class ChaosFault:
    """One fault of one member; `make` gives its experiments."""

    chaos: ChaosMesh
    make: Callable[[str], Sequence[Experiment]]

    def inject(self, member: str) -> None:
        """Returns when Chaos Mesh has injected all of it."""
        self.chaos.instances.check(member)
        for experiment in self.make(member):
            self.chaos.begin(experiment)

    def undo(self, member: str) -> None:
        """Returns when Chaos Mesh has undone it."""
        for experiment in self.make(member):
            self.chaos.end(experiment.kind, experiment.name)


@dataclass(frozen=True, slots=True)
class ChaosSlowDisk:
    """Flushes of one member that take longer."""

    chaos: ChaosMesh

    def _fault(self, delay_s: float) -> ChaosFault:
        return ChaosFault(self.chaos, partial(self.chaos.disk_fault, Capability.SLOW_DISK, delay_s=delay_s))

    def inject(self, member: str, delay_s: float) -> None:
        self._fault(delay_s).inject(member)

    def undo(self, member: str) -> None:
        self._fault(0.0).undo(member)


@dataclass(frozen=True, slots=True)
class ChaosOneWay:
    """Packets of one direction between two members that are dropped."""

    chaos: ChaosMesh

    def inject(self, source: str, destination: str) -> None:
        self.chaos.instances.check(source)
        self.chaos.begin(created_objects.one_way(self.chaos.instances.api.namespace, source, destination))

    def undo(self, source: str, destination: str) -> None:
        experiment = created_objects.one_way(self.chaos.instances.api.namespace, source, destination)
        self.chaos.end(experiment.kind, experiment.name)
