"""The recorded failovers of a real CloudNativePG cluster, split by their steps: as their own timelines show."""

from dataclasses import replace

import pytest

from tests.fixtures.kubernetes.timeline import Run, names, recorded
from walproof.model.drill import Mark, Recovery
from walproof.model.topology import ClusterView, MemberView, Role
from walproof.proving.outage import Outage, as_clause, split_by_steps
from walproof.targets.cnpg.member_states_and_failover_steps import Seen, steps_between


def outage_of(name: str) -> Outage:
    """As the recording's own writer saw it."""
    writer = recorded(name).writer
    assert writer is not None
    return Outage(*writer, 0.5)


def played(run: Run) -> tuple[tuple[Mark, ...], tuple[ClusterView, ...]]:
    """Every change in turn, as the target would have noted it; the new timeline stands for what SQL says."""
    seen = Seen(run.start.target, run.start.lease.holder, (run.start.primary,))
    steps: list[Mark] = []
    primary, views = run.start.primary, [view(0.0, run.start.primary)]
    for one in run.changes:
        after = seen
        if (one.subject, one.field) == ("cluster", "targetPrimary"):
            after = replace(seen, target=one.after)
        elif (one.subject, one.field) == ("lease", "holder"):
            after = replace(seen, holder=one.after)
        elif one.subject == "rw-endpoints":
            ready = [part.split()[0] for part in one.after.split(",") if "ready=True" in part]
            after = replace(seen, writable=tuple(ready))
        elif one.field == "currentPrimary":
            primary = one.after
        elif one.field == "timelineID":
            views.append(view(one.at_s, primary))
        steps += steps_between(seen, after, one.at_s)
        seen = after
    return tuple(steps), tuple(views)


def view(at: float, leader: str) -> ClusterView:
    return ClusterView(at, (MemberView(leader, Role.LEADER, "running"),), leader)


def split_of(name: str) -> Recovery:
    run = recorded(name)
    steps, views = played(run)
    found = split_by_steps(outage_of(name), steps, views, run.start.primary)
    assert found is not None
    return found[0]


WITH_CLIENTS = [name for name in names() if recorded(name).writer is not None]


@pytest.mark.parametrize("name", WITH_CLIENTS)
def test_the_parts_of_every_recorded_failover_add_up_to_its_rto(name: str) -> None:
    assert len(WITH_CLIENTS) >= 15
    recovery, out = split_of(name), outage_of(name)
    parts = (recovery.operator_s, recovery.lease_s, recovery.promotion_s, recovery.endpoint_s, recovery.client_s)
    assert sum(part or 0.0 for part in parts) == pytest.approx(out.seconds, abs=0.001)
    assert all(part is None or part > 0 for part in parts)
    if name.startswith("c_"):
        # Restarted in place: nobody was elected and no lease changed hands.
        assert (recovery.operator_s, recovery.lease_s, recovery.promotion_s) == (None, None, None)
        assert recovery.endpoint_s is not None


def test_a_killed_postmaster_gives_its_lease_up_and_a_deleted_pod_does_not() -> None:
    """b: target at 3.310, lease 3.524, timeline 8.402, endpoint 8.537, first commit 10.62 after the last at 0.33."""
    killed = split_of("b_kill9_postmaster_1")
    assert (killed.operator_s, killed.lease_s) == pytest.approx((2.98, 0.214), abs=0.001)
    assert (killed.promotion_s, killed.endpoint_s, killed.client_s) == pytest.approx((4.878, 0.135, 2.083), abs=0.001)
    deleted = split_of("a_delete_pod_force_1")
    assert deleted.lease_s == pytest.approx(16.336, abs=0.001)
    assert as_clause(killed) == "outage: operator 3.0 s, lease 0.2 s, promotion 4.9 s, endpoint 0.1 s, client 2.1 s"


def test_a_frozen_primary_costs_its_time_at_the_lease() -> None:
    """K1: the target is named after a minute; the lease changes hands only once the primary is thawed."""
    frozen, run = split_of("e_sigstop_postgres_1"), recorded("e_sigstop_postgres_1")
    assert frozen.lease_s is not None and frozen.operator_s is not None and run.cleared_s is not None
    assert 50 < frozen.operator_s < 60
    taken = outage_of("e_sigstop_postgres_1").last_before + frozen.operator_s + frozen.lease_s
    assert run.cleared_s < taken < run.cleared_s + 5


def test_without_steps_there_is_nothing_to_split() -> None:
    assert split_by_steps(Outage(1.0, 5.0, 0.5), (), (), "pg-1") is None
    outside = (Mark(0.5, "operator", "pg-2"), Mark(9.0, "lease", "pg-2"))
    assert split_by_steps(Outage(1.0, 5.0, 0.5), outside, (), "pg-1") is None
    assert split_by_steps(Outage(1.0, None, 0.5), outside, (), "pg-1") is None
    assert as_clause(Recovery(1.0, 2.0, 3.0, 4.0)) == ""
