"""Known pitfalls of CloudNativePG, reproduced on a cluster there is; each leaves it as it was, or raises."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from walproof.errors import TargetError, UsageError
from walproof.model.capability import Capability
from walproof.model.pitfall import Finding
from walproof.model.ports import MemberFault, Recovery
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.targets.cnpg.addresses import Place
from walproof.targets.cnpg.alter_system import AlterSystem
from walproof.targets.cnpg.api import CLUSTERS
from walproof.targets.cnpg.faults import Instances
from walproof.targets.cnpg.isolated_primary import holds_its_lease
from walproof.targets.cnpg.port_forward import breaks_under_tls
from walproof.targets.cnpg.state import State, state_of

_HEALTHY = "Cluster in healthy state"
_WATCHED_S, _LATE_S = 30.0, 10.0
_NAMES = "SHOW synchronous_standby_names"
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
    watched_s: float = _WATCHED_S
    late_s: float = _LATE_S

    def by_number(self) -> Mapping[str, Callable[[], Finding]]:
        """Those that can be reproduced, by their numbers."""
        return {
            "K1": self.frozen_keeps_its_lease,
            "K2": self.silently_local,
            "K3": self.alter_system_overrides,
            "K4": self.healthy_during_an_outage,
            "K5": self.admits_fsync_off,
            "K6": self.isolated_keeps_its_lease,
            "K7": self.forward_breaks_under_tls,
        }

    def _state(self) -> State:
        return state_of(self.instances.api, self.instances.cluster)

    def _primary(self) -> str:
        """Who leads by the Cluster's status; TargetError when nobody does."""
        primary = self._state().cluster.status.current_primary
        if not primary:
            raise TargetError("the cluster has no primary just now", f"kubectl cnpg status {self.instances.cluster}")
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
            stuck,
            f"{frozen} was frozen; {target} was named as its successor after {took:.0f} s, and "
            + (
                f"{self.watched_s:.0f} s later {frozen} still held the lease: no primary for {without:.0f} s"
                if stuck
                else f"took over after {without:.0f} s while {frozen} was still frozen"
            ),
        )

    def _chosen(self, frozen: str) -> str | None:
        target = self._state().cluster.status.target_primary
        return target if target not in (frozen, "", "pending") else None

    def _stuck(self, frozen: str) -> bool:
        state = self._state()
        return state.holder == frozen and state.cluster.status.current_primary == frozen

    def silently_local(self) -> Finding:
        """K2: every standby's pod is deleted; the operator empties the names, and a commit is acknowledged alone."""
        state, clock = self._state(), self.instances.clock
        primary, durability = state.cluster.status.current_primary, state.cluster.spec.postgresql.synchronous
        before = self.instances.ask(primary, _NAMES)
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
                names = self.instances.ask(primary, _NAMES)
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
        """K4: status.phase says healthy although the primary answers nobody."""
        clock = self.instances.clock
        with ExitStack() as stack:
            frozen = self._frozen(stack)
            late = wait_for(
                Wait.SUCCESSOR_NAMED, lambda: self._state().cluster.status.phase != _HEALTHY, clock, pace_s=0.2
            )
        return Finding(
            late >= self.late_s,
            f"{frozen} answered nobody; status.phase went on saying {_HEALTHY!r} for {late:.1f} s",
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
        stack = ExitStack()
        stack.callback(self.recovery().recover)
        return holds_its_lease(self.instances, self.isolation, self._primary(), recovered=stack, late_s=self.late_s)

    def forward_breaks_under_tls(self) -> Finding:
        """K7: kubectl's port-forward ends with the first client of TLS that leaves."""
        return breaks_under_tls(self.instances.api, self._primary(), self.endpoint, self.instances.clock)
