"""Pitfall K6: an isolated primary, reachable again while its container is being ended, holds its lease until then."""

from contextlib import ExitStack
from functools import partial

from walproof.errors import TargetError
from walproof.model.pitfall import Finding
from walproof.model.ports import MemberFault
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.targets.cnpg.faults import Instances
from walproof.targets.cnpg.state import State, state_of

_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


def holds_its_lease(
    instances: Instances, isolation: MemberFault, primary: str, *, recovered: ExitStack, late_s: float
) -> Finding:
    """Isolated until its readiness is lost, then reachable again; how long it then holds the lease while nobody serves.

    `recovered` has what brings the cluster back, whatever happens. Holding it counts as K6 from `late_s` on.
    """
    clock, state = instances.clock, partial(state_of, instances.api, instances.cluster)
    if state().holder is None:
        raise TargetError("there is no primary's lease to read", "CloudNativePG has one since 1.30")
    sessions = instances.ask(primary, _SESSIONS) or "0"
    with recovered:
        isolation.inject(primary)
        began = clock.now()
        wait_for(Wait.SUCCESSOR_NAMED, lambda: not _ready(state(), primary), clock, pace_s=0.2)
        isolation.undo(primary)
        cleared, until = clock.now(), longest_s(Wait.SUCCESSOR_NAMED, clock)
        while (now := state()).holder == primary and not now.writable and clock.now() - cleared < until:
            clock.pause(0.2)
        held = clock.now() - cleared
    return Finding(
        held >= late_s,
        f"{primary} was isolated for {cleared - began:.0f} s, with {sessions} sessions of clients; "
        + (f"it held its lease for {held:.0f} s more" if held >= late_s else f"{held:.1f} s later it had given it up")
        + (", and nobody served meanwhile" if held >= late_s else ", or served again"),
    )


def _ready(state: State, member: str) -> bool:
    pod = state.pods.get(member)
    return pod is not None and pod.ready
