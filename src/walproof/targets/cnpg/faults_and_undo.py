"""Faults of instances by Kubernetes alone, each journaled and with its undo: signals, pods deleted, fences; recovery.

And the planned switchover, asked for in the Cluster's status as kubectl's plugin does it."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from walproof.errors import ODD, PartlyDone, TargetError, UsageError, as_error, each_done, failures_of
from walproof.machine.quoting import pasted
from walproof.model.drill import Capability
from walproof.model.ports import SILENT, Clock, MemberFault, Notebook, Reverting
from walproof.model.topology import ClusterView
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, PODS, ApiError, KubernetesApi, Tree, patch_as_read
from walproof.targets.cnpg.member_states_and_failover_steps import LISTING
from walproof.targets.cnpg.objects import Cluster, Pod, read
from walproof.targets.cnpg.state_and_doctor_facts import (
    FENCED,
    RECONCILIATION,
    fenced_in,
    paused,
    pods_labelled,
    pods_of,
    state_of,
)
from walproof.targets.configure import noted
from walproof.targets.external.faults_by_command import FaultOfMember, undo_noted

FAULT = "cnpg fault"
"""What the journal calls one that has to be undone; its name is FAULT MEMBER."""
HAPPENS = {
    Capability.KILL_MEMBER: "the pod is deleted with force: PostgreSQL and its instance manager end, its volume stays",
    Capability.FREEZE: "every process of PostgreSQL is paused; its instance manager goes on and renews the lease",
    Capability.STOP: "the instance is fenced: PostgreSQL is stopped in an orderly way, its pod stays; "
    "a run that is killed leaves it fenced until walproof revert",
    Capability.SWITCHOVER: "as kubectl cnpg promote: the primary is stopped in order, transactions under way are cut",
}
"""What these do here, in a clause."""
NO_TAKEOVER = {Capability.STOP: "writes stop for as long as it is fenced; no instance takes over"}
"""Of the primary: the operator then makes no switchover (cluster_controller.go:731 of v1.30.0, :508 of v1.24.0)."""
NOT_HERE = {
    Capability.HANG_POSTMASTER: "walproof pauses all of PostgreSQL there (freeze), not its postmaster alone",
    Capability.HANG_MANAGER: "the instance manager is its container's first process: the kernel keeps SIGSTOP from it",
    Capability.HANG_REST: "no route to its leader asks a REST API: the operator moves the Service",
    Capability.RETURN_ORDER: "the operator makes every pod anew at once, in an order of its own",
}
"""Faults of a lab that there are none of here, each with why."""
NEED_OPERATOR = (Capability.KILL_MEMBER, Capability.STOP, Capability.SWITCHOVER)
"""Faults that the operator carries out, or makes good: no other makes a deleted pod anew."""
_KILL = 'read -r pid < "$PGDATA/postmaster.pid" && kill -9 "$pid"'
_ABORT = "kill -ABRT 1"
_SIGNAL = """\
for process in /proc/[0-9]*; do
  read -r name < "$process/comm" && [ "$name" = postgres ] && kill -{signal} "${{process#/proc/}}"
done 2>/dev/null; true"""

_STOPPED = re.compile(r"\(postgres\) [Tt] ")


@dataclass(slots=True)
class Instances:
    """What faults need of one Cluster, and those that are injected and not undone: (fault, member)."""

    api: KubernetesApi
    cluster: str
    target: str
    clock: Clock
    journal: Callable[[], Notebook]
    injected: list[tuple[Capability, str]] = field(default_factory=list)
    operator_answered: bool = False

    def run(self, member: str, script: str) -> None:
        """Run a script of the shell in the member's container; PartlyDone with its last words when it fails."""
        done = self.api.exec(member, ["sh", "-c", script])
        if done.code:
            words = (done.errors or done.text).strip().splitlines() or ["no output"]
            raise PartlyDone(
                f"the command in {member} failed ({done.code}): {words[-1]}",
                pasted("kubectl get pod {pod:argument}", pod=member),
            )

    def ask(self, member: str, sql: str) -> str:
        """What a statement answers to the superuser inside the member; TargetError with psql's words when it fails."""
        self.check(member)
        done = self.api.exec(member, ["psql", "-XAt", "-c", sql])
        if done.code:
            raise TargetError(
                f"psql in {member} failed: {done.errors.strip()}", pasted("kubectl logs {pod:argument}", pod=member)
            )
        return done.text.strip()

    def check(self, member: str) -> Pod:
        """The member's pod; UsageError when there is none."""
        pod = pods_of(self.api, self.cluster).get(member)
        if pod is None:
            raise UsageError(
                f"{member} has no pod now",
                pasted("kubectl get pods -l cnpg.io/cluster={name:shell}", name=self.cluster),
            )
        return pod

    @contextmanager
    def same_pod(self, member: str) -> Iterator[Pod]:
        """For a fault that goes by the pod's name: that it is the member's, and still was; TargetError where not."""
        pod = self.check(member)
        yield pod
        after = pods_of(self.api, self.cluster).get(member)
        if after is None or after.metadata.uid != pod.metadata.uid:
            raise self.replaced(member)

    def replaced(self, member: str) -> TargetError:
        command = pasted("kubectl get pod {pod:argument}", pod=member)
        return TargetError(f"the pod {member} was replaced while its fault was injected", command)

    def need_operator(self) -> Tree:
        """The Cluster as it is now; TargetError where its operator would not act: told not to, or not there.

        Once, a dry run of a patch that changes nothing meets the operator's webhooks, without which the API server
        patches no Cluster (failurePolicy of config/webhook/manifests.yaml, v1.30.0); not where this user may not patch.
        """
        tree = self.api.get(CLUSTERS, self.cluster)
        if (why := paused(read(Cluster, tree))) is not None:
            raise TargetError(
                why, pasted("kubectl annotate cluster {name:shell} {key:shell}-", name=self.cluster, key=RECONCILIATION)
            )
        if not self.operator_answered:
            try:
                self.api.patch(CLUSTERS, self.cluster, {"spec": {}}, dry_run=True)
            except ApiError as wrong:
                if wrong.code != 403:
                    why = f"CloudNativePG's operator does not answer: {wrong.message}"
                    raise TargetError(why, wrong.hint) from None
            self.operator_answered = True
        return tree

    @contextmanager
    def begun(self, fault: Capability, member: str, uid: str | None = None) -> Iterator[None]:
        """Noted before it is done: recovery undoes it even on an error, and so does `walproof revert`.

        uid: of the pod that has it, so that it is found again whatever the Cluster's status says then.
        What may not be asked of the API, or is refused, was not done, and is not noted any more.
        """
        self.journal().note(self.clock.now(), self.target, FAULT, f"{fault} {member}", before=None, after=uid)
        self.injected.append((fault, member))
        try:
            yield
        except (ApiError, UsageError) as wrong:
            if isinstance(wrong, UsageError) or wrong.code in (403, 409):
                self.end(fault, member)
            raise

    def end(self, fault: Capability, member: str) -> None:
        self.injected = [pair for pair in self.injected if pair != (fault, member)]
        journal = self.journal()
        for change in noted(journal, self.target, FAULT, f"{fault} {member}"):
            journal.undone(change)

    def faults(self) -> dict[Capability, MemberFault]:
        """What Kubernetes alone can do."""
        return {
            Capability.KILL: FaultOfMember(self._kill),
            Capability.KILL_MEMBER: FaultOfMember(self._delete),
            Capability.KILL_CONTAINER: FaultOfMember(self._abort),
            Capability.FREEZE: FaultOfMember(self._freeze, self._thaw),
            Capability.STOP: FaultOfMember(self._fence, self._unfence),
        }

    def _kill(self, member: str) -> None:
        """SIGKILL to the postmaster; the operator fails over, and the container starts anew."""
        with self.same_pod(member):
            self.run(member, _KILL)

    def _delete(self, member: str) -> None:
        """The pod deleted with force: PostgreSQL and its manager at once. Its volume stays, a new pod takes it."""
        pod = self.check(member)
        self.need_operator()
        if not self.api.delete(PODS, member, grace_s=0, uid=pod.metadata.uid):
            raise self.replaced(member)

    def _abort(self, member: str) -> None:
        """The container's first process ends at once; the kernel kills the others, the kubelet starts it anew.

        SIGABRT, because the kernel keeps SIGKILL from a first process inside its own container; the manager, a program
        in Go, has no handler for it and ends without shutting PostgreSQL down. What sent it may be gone by then, with
        the container.
        """
        with self.same_pod(member):
            try:
                self.run(member, _ABORT)
            except ApiError as wrong:
                if wrong.code in (403, 404):
                    raise

    def _freeze(self, member: str) -> None:
        """SIGSTOP to every process of PostgreSQL; the instance manager goes on and renews the lease (pitfall K1)."""
        with self.same_pod(member) as pod, self.begun(Capability.FREEZE, member, pod.metadata.uid):
            self.run(member, _SIGNAL.format(signal="STOP"))

    def _thaw(self, member: str) -> None:
        """Let them go on; a pod that is gone or was replaced meanwhile has nothing frozen."""
        frozen = {note.after for note in noted(self.journal(), self.target, FAULT, f"{Capability.FREEZE} {member}")}
        ours = member in pods_of(self.api, self.cluster)
        if not ours and (there := pods_labelled(self.api, "").get(member)) is not None:
            # Its label may be gone, or the operator not list it now: it is the one that was frozen all the same.
            ours = there.metadata.uid in frozen
            if not ours and None in frozen:
                raise TargetError(
                    f"{member} is no instance of {self.cluster} now, and may be the pod that was frozen",
                    pasted("kubectl get pod {pod:argument} -o yaml", pod=member),
                )
        if ours:
            try:
                self.run(member, _SIGNAL.format(signal="CONT"))
            except ApiError as wrong:
                if wrong.code != 404:
                    raise
        self.end(Capability.FREEZE, member)

    def _fence(self, member: str) -> None:
        """The operator's fence: PostgreSQL is stopped in order and stays stopped, its pod stays.

        UsageError where it is fenced already: that fence is not ours to take away.
        """
        self.check(member)
        self.need_operator()

        def added(fenced: tuple[str, ...]) -> tuple[str, ...]:
            if {member, "*"} & set(fenced):
                raise UsageError(
                    f"{member} is fenced already, and not by this run",
                    pasted(
                        "kubectl cnpg fencing off {name:shell} {pod:shell}; where a killed run did it: walproof revert",
                        name=self.cluster,
                        pod=member,
                    ),
                )
            return (*fenced, member)

        with self.begun(Capability.STOP, member):
            self._change_fences(added)

    def _unfence(self, member: str) -> None:
        """Our entry alone is taken out; where another user fences all instances meanwhile, there is none."""
        self._change_fences(lambda fenced: tuple(name for name in fenced if name != member))
        self.end(Capability.STOP, member)

    def _change_fences(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        def annotated(tree: Tree) -> Tree | None:
            before = fenced_in(read(Cluster, tree))
            after = change(before)
            text = json.dumps(after) if after else None
            return {"metadata": {"annotations": {FENCED: text}}} if after != before else None

        patch_as_read(self.api, CLUSTERS, self.cluster, annotated, self.clock)

    def undo_all(self) -> None:
        """Every fault that is injected, the newest first."""
        able = self.faults()
        each_done([partial(able[fault].undo, member) for fault, member in reversed(self.injected)])

    def thaw_all(self, reverting: Reverting = SILENT) -> list[str]:
        """Let every process of PostgreSQL go on where one is stopped; sentences about members not looked at."""
        unseen = []
        for member in pods_of(self.api, self.cluster):
            try:
                if _STOPPED.search(self.api.exec(member, ["sh", "-c", LISTING]).text):
                    self._thaw(member)
                    reverting.tell("fault", f"freeze {member}")
            except ODD as wrong:
                why = as_error(wrong).message
                unseen.append(f"could not look at {member}, where a process may be stopped: {why}")
        return unseen

    def undo_left(self, journal: Notebook, reverting: Reverting = SILENT) -> None:
        """Every fault that a killed run left in its journal; TargetError, after all others, for those that stay."""
        able = {str(fault): one for fault, one in self.faults().items()}
        left = undo_noted(journal, self.target, FAULT, lambda fault, member, _: able[fault].undo(member), reverting)
        stay = [f"{fault} {member} is not undone: {why}" for fault, member, why in left]
        if stay:
            raise TargetError("; ".join(stay), "kubectl get pods -o wide; once it answers: walproof revert")


@dataclass(frozen=True, slots=True)
class CnpgLogs:
    """Logs of instances: PostgreSQL's and its manager's lines as JSON, as `kubectl logs` prints them."""

    api: KubernetesApi

    def logs(self, member: str) -> str:
        """The last lines of the pod's log; ApiError when it cannot be read."""
        return self.api.log(member)


@dataclass(frozen=True, slots=True)
class CnpgRecovery:
    """Undoes what was injected, then waits until no change of primary is under way and every instance is ready."""

    instances: Instances
    observe: Callable[[], ClusterView]
    undo_others: Sequence[Callable[[], None]] = ()

    def recover(self) -> None:
        """WaitTimeout when the cluster does not become healthy, or the API server stays away."""
        clock = self.instances.clock
        wait_for(Wait.CLUSTER_HEALTHY, self._undone, clock, pace_s=0.5)
        wait_for(Wait.CLUSTER_HEALTHY, lambda: self._ready() and self.observe().healthy, clock, pace_s=0.5)

    def _undone(self) -> bool:
        """Whether every fault is undone; not yet while the API server does not answer."""
        failures = failures_of((*self.undo_others, self.instances.undo_all))
        for wrong in failures:
            if not isinstance(wrong, ApiError) or 400 <= wrong.code < 500:
                raise as_error(wrong)
        return not failures

    def _ready(self) -> bool:
        try:
            state = state_of(self.instances.api, self.instances.cluster)
        except ApiError as wrong:
            if wrong.code == 404:
                raise
            return False
        ready, status = [pod for pod in state.pods.values() if pod.ready], state.cluster.status
        # A probe may find a thawed primary ready while it is about to hand over to the successor that was chosen.
        decided = status.target_primary == status.current_primary and state.holder in (None, status.current_primary)
        return decided and len(ready) >= state.cluster.spec.instances


@dataclass(frozen=True, slots=True)
class CnpgSwitchover:
    instances: Instances
    observe: Callable[[], ClusterView]

    def switch_over(self, to: str | None = None) -> None:
        """Returns when `to` (None: the standby that is furthest, one that counts first) leads; TargetError.

        Asked for onto the very Cluster that was looked at: where it was changed since, ApiError.
        """
        run, view = self.instances, self.observe()
        chosen = to or furthest(view)
        if chosen == view.leader:
            raise UsageError(f"{chosen} leads already", "name a standby")
        tree = run.need_operator()
        status = read(Cluster, tree).status
        if status.target_primary != status.current_primary:
            raise TargetError(
                f"a change of primary is under way: {status.current_primary} to {status.target_primary}",
                pasted("kubectl cnpg status {name:argument}", name=run.cluster),
            )
        now = datetime.fromtimestamp(run.clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "targetPrimary": chosen,
            "targetPrimaryTimestamp": now,
            "phase": "Switchover in progress",
            "phaseReason": f"Switching over to {chosen}",
        }
        version = {"resourceVersion": tree["metadata"]["resourceVersion"]}
        run.api.patch(CLUSTERS, run.cluster, {"metadata": version, "status": body}, "status")
        wait_for(Wait.SWITCHOVER, lambda: self.observe().leader == chosen, run.clock, pace_s=0.2)


def furthest(view: ClusterView) -> str:
    """The standby to hand over to; TargetError when none serves."""
    serving = [m for m in view.standbys if m.serving]
    if not serving:
        raise TargetError("no standby serves: there is none to hand over to", "walproof doctor --target …")
    return max(serving, key=lambda m: (m.sync_state in ("sync", "quorum"), m.lsn or 0)).name
