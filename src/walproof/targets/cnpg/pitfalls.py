"""Known pitfalls of CloudNativePG (K3 ALTER SYSTEM, K6 isolated primary, K7 port-forward …), reproduced on a cluster.

Each leaves the cluster as it was, or raises; a setting is journaled before it is altered."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import psycopg

from walproof.errors import ODD, TargetError, UsageError, as_error
from walproof.machine.answering import BoundedLogin
from walproof.machine.quoting import pasted
from walproof.model.drill import Capability, Finding
from walproof.model.ports import SILENT, Clock, MemberFault, Notebook, Recovery, Reverting
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, KubernetesApi
from walproof.targets.cnpg.members import Place, answers
from walproof.targets.cnpg.objects import Cluster, read
from walproof.targets.cnpg.rbac import Names, for_forward_by_kubectl, refusal
from walproof.targets.cnpg.state_and_doctor_facts import State, state_of
from walproof.targets.configure import noted

ALTERED = "cnpg alter system"
"""What the journal calls it; its name is the member's."""
_STANDBY_NAMES = "SHOW synchronous_standby_names"
_SET = "ALTER SYSTEM SET synchronous_standby_names = ''"
_RESET = "ALTER SYSTEM RESET synchronous_standby_names"
_RELOAD = "SELECT pg_reload_conf()"
_ALREADY = (
    "SELECT count(*) FROM pg_file_settings"
    " WHERE name = 'synchronous_standby_names' AND sourcefile LIKE '%postgresql.auto.conf'"
)


@dataclass(frozen=True, slots=True)
class AlterSystem:
    """Of one Cluster's members."""

    instances: Instances

    def overrides(self, primary: str, watched_s: float) -> Finding:
        """K3: names emptied by ALTER SYSTEM stay so for `watched_s`: commits at remote levels are local meanwhile."""
        run, ask = self.instances, partial(self.instances.ask, primary)
        before = ask(_STANDBY_NAMES)
        if not before:
            raise TargetError("no standby is named: there is nothing to override", "see walproof doctor")
        if ask(_ALREADY) not in ("", "0"):
            raise TargetError(
                "ALTER SYSTEM sets synchronous_standby_names already",
                pasted("in {pod:words}, as superuser: {reset:statement}", pod=primary, reset=_RESET),
            )
        with ExitStack() as stack:
            stack.callback(self.reset, primary)
            run.journal().note(run.clock.now(), run.target, ALTERED, primary, before=None, after=_SET)
            try:
                ask(_SET)
            except TargetError as refused:
                return Finding(False, f"ALTER SYSTEM is not allowed (enableAlterSystem): {refused.message}")
            ask(_RELOAD)
            wait_for(Wait.SETTING_IN_EFFECT, lambda: not ask(_STANDBY_NAMES), run.clock)
            began = run.clock.now()
            while not (names := ask(_STANDBY_NAMES)) and run.clock.now() - began < watched_s:
                run.clock.pause(0.2)
            lasted = run.clock.now() - began
        if names:
            return Finding(False, f"{before} was emptied by ALTER SYSTEM; {names} was in effect {lasted:.1f} s later")
        return Finding(
            True,
            f"{before} was emptied by ALTER SYSTEM and not corrected in {lasted:.0f} s: "
            f"commits at on waited for {primary} alone, while the Cluster's spec went on promising a standby",
        )

    def reset(self, member: str) -> None:
        """As the operator wrote it; nothing to do where ALTER SYSTEM was refused."""
        run = self.instances
        if run.ask(member, _ALREADY) not in ("", "0"):
            run.ask(member, _RESET)
            run.ask(member, _RELOAD)
        journal = run.journal()
        for change in noted(journal, run.target, ALTERED, member):
            journal.undone(change)

    def undo_left(self, journal: Notebook, reverting: Reverting = SILENT) -> None:
        """What a killed run left in its journal; TargetError, after all others, for what stays.

        The file is on the instance's volume, which outlives its pod: it is gone where the Cluster lists none.
        """
        run, stay = self.instances, []
        for change in noted(journal, run.target, ALTERED):
            try:
                if change.name in read(Cluster, run.api.get(CLUSTERS, run.cluster)).status.instance_names:
                    self.reset(change.name)
                    reverting.tell("setting", f"altered by ALTER SYSTEM on {change.name}")
            except ODD as wrong:
                stay.append(f"ALTER SYSTEM on {change.name} is not undone: {as_error(wrong).message}")
            else:
                journal.undone(change)
        if stay:
            raise TargetError("; ".join(stay), "kubectl get pods -o wide; once it answers: walproof revert")


_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


_FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")
_GONE_S = 3.0
"""How long a forward is watched after its client has left."""


def breaks_under_tls(api: KubernetesApi, pod: str, endpoint: Callable[[Place], Endpoint], clock: Clock) -> Finding:
    """K7: a client without TLS leaves and the forward goes on; one with TLS leaves, and it is gone."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return Finding(None, "skipped, because kubectl is not installed: walproof's own forwards are one a connection")
    alive = {}
    for mode in ("disable", "require"):
        with _forward(kubectl, api, pod) as (running, place):
            _came_and_left(endpoint(place), mode)
            until = clock.now() + _GONE_S
            while (on := running.poll() is None and answers(place)) and clock.now() < until:
                clock.pause(0.1)
            alive[mode] = on
    if not alive["disable"]:
        raise TargetError("the forward ended although its client spoke no TLS", "kubectl port-forward, by hand")
    if alive["require"]:
        return Finding(False, f"kubectl's forward to {pod} went on after a client of TLS had left, as without TLS")
    return Finding(True, f"kubectl's forward to {pod} ended when its first client of TLS left; without TLS it went on")


@contextmanager
def _forward(kubectl: str, api: KubernetesApi, pod: str) -> Iterator[tuple["subprocess.Popen[str]", Place]]:
    """kubectl's forward to PostgreSQL, and its port here; ended afterwards."""
    context = ["--context", api.context] if api.context else []
    words = [kubectl, *context, "--namespace", api.namespace, "port-forward", f"pod/{pod}", ":5432"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        try:
            match = _FORWARDING.match(running.stdout.readline())
            if match is None:
                running.terminate()
                last = running.stderr.read().strip().splitlines()[-1:]
                raise TargetError(f"kubectl port-forward does not start: {''.join(last)}", shlex.join(words))
            yield running, ("127.0.0.1", int(match[1]))
        finally:
            running.terminate()


def _came_and_left(endpoint: Endpoint, mode: str) -> None:
    try:
        unbound = {"channel_binding": mode} if mode == "disable" else {}  # without TLS there is no channel to bind to
        BoundedLogin.connect(endpoint.conninfo(sslmode=mode, connect_timeout="5", **unbound)).close()
    except psycopg.Error as wrong:
        raise TargetError(
            f"no session with sslmode={mode}: {' '.join(str(wrong).split())}", "ssl and pg_hba.conf decide"
        ) from None


_HEALTHY = "Cluster in healthy state"
_COMMIT = "SELECT pg_logical_emit_message(true, 'walproof', 'K2')"
"""A transaction that writes WAL and no table."""
_OFF = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class CnpgPitfalls:
    """One Cluster; `watched_s`: how long nothing must come of a failover; `late_s`: what counts as a late status."""

    instances: Instances
    recovery: Callable[[], Recovery]
    endpoint: Callable[[Place], Endpoint]
    """How walproof's user connects to a place."""
    isolation: MemberFault | None = None
    not_isolated: str = "nothing here can isolate a member"
    """Why, where there is no isolation."""
    refused: Mapping[Capability, str] = field(default_factory=dict)
    """Faults by Kubernetes alone that this user may not do, each with the reason."""
    watched_s: float = 30.0
    late_s: float = 10.0

    def by_number(self) -> Mapping[str, Callable[[], Finding]]:
        """Those that can be reproduced, by their numbers."""
        return {
            "K1": self._unless_refused(self.frozen_keeps_its_lease, Capability.FREEZE),
            "K2": self._unless_refused(self.silently_local, Capability.KILL_MEMBER, Capability.KILL),
            "K3": self._unless_refused(self.alter_system_overrides, Capability.KILL),
            "K4": self._unless_refused(self.healthy_during_an_outage, Capability.FREEZE),
            "K5": self._unless_refused(self.admits_fsync_off, Capability.STOP),
            "K6": self._unless_refused(self.isolated_keeps_its_lease, Capability.KILL),
            "K7": self.forward_breaks_under_tls,
        }

    def _unless_refused(self, reproduce: Callable[[], Finding], *likes: Capability) -> Callable[[], Finding]:
        """Skipped where a fault is refused that calls the same (kill runs a command, stop patches the Cluster)."""
        reason = next((self.refused[like] for like in likes if like in self.refused), None)
        return reproduce if reason is None else lambda: Finding(None, f"skipped, because {reason}")

    def _state(self) -> State:
        return state_of(self.instances.api, self.instances.cluster)

    def _primary(self) -> str:
        """The primary by the Cluster's status; TargetError when there is none."""
        primary = self._state().cluster.status.current_primary
        if not primary:
            raise TargetError(
                "the cluster has no primary just now",
                pasted("kubectl cnpg status {name:argument}", name=self.instances.cluster),
            )
        return primary

    def _frozen(self, stack: ExitStack) -> str:
        """The primary, frozen until the stack ends; the cluster is healthy again then."""
        primary = self._primary()
        stack.callback(self.recovery().recover)
        self.instances.faults()[Capability.FREEZE].inject(primary)
        return primary

    def frozen_keeps_its_lease(self) -> Finding:
        """K1: PostgreSQL is frozen, its manager goes on renewing the lease, and the chosen successor never gets it."""
        clock = self.instances.clock
        with ExitStack() as stack:
            frozen = self._frozen(stack)
            began = clock.now()
            chosen = partial(self._chosen, frozen)
            took = wait_for(Wait.SUCCESSOR_NAMED, lambda: chosen() is not None, clock, pace_s=0.2)
            target, until = chosen(), clock.now() + self.watched_s
            while clock.now() < until and (stuck := self._stuck(frozen)):
                clock.pause(0.2)
            without = clock.now() - began
        return Finding(
            bool(stuck),
            f"{frozen} was frozen; {target} was named as its successor after {took:.0f} s, and "
            + (
                f"{self.watched_s:.0f} s later {frozen} still {stuck}: no primary for {without:.0f} s"
                if stuck
                else f"took over after {without:.0f} s while {frozen} was still frozen"
            ),
        )

    def _chosen(self, frozen: str) -> str | None:
        target = self._state().cluster.status.target_primary
        return target if target not in (frozen, "", "pending") else None

    def _stuck(self, frozen: str) -> str:
        """What keeps the successor from leading, in words; "" once nothing does. There is no lease before 1.30."""
        state = self._state()
        if state.cluster.status.current_primary != frozen or state.holder not in (None, frozen):
            return ""
        return "held the lease" if state.holder else "was the primary by the Cluster's status, and there is no lease"

    def silently_local(self) -> Finding:
        """K2: every standby's pod is deleted; the operator empties the names, and a commit is acknowledged alone."""
        state, clock = self._state(), self.instances.clock
        primary, durability = state.cluster.status.current_primary, state.cluster.spec.postgresql.synchronous
        before = self.instances.ask(primary, _STANDBY_NAMES)
        if not before:
            raise TargetError("no standby is named: commits are local already", "see walproof doctor")
        with ExitStack() as stack:
            stack.callback(self.recovery().recover)
            for member in [name for name in state.pods if name != primary]:
                self.instances.faults()[Capability.KILL_MEMBER].inject(member)
            began = clock.now()
            names = before
            while names and clock.now() - began < self.watched_s:
                clock.pause(0.1)
                names = self.instances.ask(primary, _STANDBY_NAMES)
            emptied = clock.now() - began
            if names:
                asked = durability.data_durability if durability else "the former minSyncReplicas"
                return Finding(False, f"{before} ({asked}) stayed for {emptied:.0f} s without a standby: commits wait")
            # Only now: with a standby named this commit would wait, and no timeout ends such a wait.
            self.instances.ask(primary, _COMMIT)
        return Finding(
            True,
            f"{before} was emptied {emptied:.1f} s after the last standby's pod was deleted; "
            f"a commit at on was then acknowledged by {primary} alone, without a warning",
        )

    def healthy_during_an_outage(self) -> Finding:
        """K4: status.phase says healthy although the primary answers no client."""
        clock = self.instances.clock
        with ExitStack() as stack:
            frozen = self._frozen(stack)
            late = wait_for(
                Wait.SUCCESSOR_NAMED, lambda: self._state().cluster.status.phase != _HEALTHY, clock, pace_s=0.2
            )
        return Finding(
            late >= self.late_s,
            f"{frozen} answered no client; status.phase went on saying {_HEALTHY!r} for {late:.1f} s",
        )

    def admits_fsync_off(self) -> Finding:
        """K5: admission accepts fsync = off and full_page_writes = off; asked as a dry run, nothing changes."""
        body = {"spec": {"postgresql": {"parameters": _OFF}}}
        try:
            self.instances.api.patch(CLUSTERS, self.instances.cluster, body, dry_run=True)
        except UsageError as refused:
            return Finding(False, f"admission refuses fsync = off and full_page_writes = off: {refused.message}")
        return Finding(
            True, "admission accepted fsync = off and full_page_writes = off (a dry run: nothing was changed)"
        )

    def alter_system_overrides(self) -> Finding:
        """K3: ALTER SYSTEM empties the standby names, and the operator does not correct it."""
        return AlterSystem(self.instances).overrides(self._primary(), self.watched_s)

    def isolated_keeps_its_lease(self) -> Finding:
        """K6: a primary isolated until its probes fail, then reachable, holds its lease while it shuts down."""
        if self.isolation is None:
            return Finding(None, f"skipped, because {self.not_isolated}")
        clock, primary = self.instances.clock, self._primary()
        if self._state().holder is None:
            raise TargetError("there is no primary's lease to read", "CloudNativePG has one since 1.30")
        sessions = self.instances.ask(primary, _SESSIONS) or "0"
        with ExitStack() as stack:
            stack.callback(self.recovery().recover)
            self.isolation.inject(primary)
            began = clock.now()
            wait_for(Wait.SUCCESSOR_NAMED, lambda: not self._ready(primary), clock, pace_s=0.2)
            self.isolation.undo(primary)
            cleared, until = clock.now(), longest_s(Wait.SUCCESSOR_NAMED, clock)
            while (now := self._state()).holder == primary and not now.writable and clock.now() - cleared < until:
                clock.pause(0.2)
            held = clock.now() - cleared
        late = held >= self.late_s
        outcome = (
            f"it held its lease for {held:.0f} s more, and no instance served meanwhile"
            if late
            else f"{held:.1f} s later it had given it up, or served again"
        )
        return Finding(
            late,
            f"{primary} was isolated for {cleared - began:.0f} s, with {sessions} sessions of clients; {outcome}",
        )

    def _ready(self, member: str) -> bool:
        pod = self._state().pods.get(member)
        return pod is not None and pod.ready

    def forward_breaks_under_tls(self) -> Finding:
        """K7: kubectl's port-forward ends with the first client of TLS that leaves."""
        api, primary = self.instances.api, self._primary()
        wrong = refusal(api, for_forward_by_kubectl(Names(self.instances.cluster, (primary,))), "kubectl port-forward")
        if wrong is not None:
            return Finding(None, f"skipped, because {wrong.message}; {wrong.hint}")
        return breaks_under_tls(api, primary, self.endpoint, self.instances.clock)
