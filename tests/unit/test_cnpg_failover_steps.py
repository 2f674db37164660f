"""Steps of a failover as they are asked for: at full pace while something happens, and little while nothing does."""

from tests.fixtures.kubernetes.port import FakeApi
from walproof.targets.cnpg.kubernetes_api import CLUSTERS, LEASES
from walproof.targets.cnpg.member_states_and_failover_steps import CnpgFailoverSteps
from walproof.targets.simulated.clock import VirtualClock

PACE_S = 0.2


def asked(api: FakeApi, steps: CnpgFailoverSteps, clock: VirtualClock, seconds: float) -> list[str]:
    """The kinds asked for in so long."""
    api.asked.clear()
    for _ in range(round(seconds / PACE_S)):
        assert not steps.since_last()
        clock.pause(PACE_S)
    return [kind for _, kind, _ in api.asked]


def test_a_quiet_cluster_is_asked_seven_times_a_second() -> None:
    api, clock = FakeApi(), VirtualClock()
    kinds = asked(api, CnpgFailoverSteps(api, "pg", clock), clock, 10)
    assert kinds.count("clusters") == 50 and "pods" not in kinds
    assert 10 <= kinds.count("leases") == kinds.count("endpointslices") <= 11


def test_while_something_happens_each_step_is_known_at_the_pace_it_is_asked() -> None:
    api, clock = FakeApi(), VirtualClock()
    steps = CnpgFailoverSteps(api, "pg", clock)
    asked(api, steps, clock, 1)
    api.change(CLUSTERS, "pg", {"status": {"readyInstances": 2}})
    kinds = asked(api, steps, clock, 2)
    assert kinds.count("clusters") == kinds.count("leases") == kinds.count("endpointslices") == 10
    api.change(CLUSTERS, "pg", {"status": {"targetPrimary": "pg-2"}})
    assert [(mark.what, mark.member) for mark in steps.since_last()] == [("operator", "pg-2")]
    clock.pause(PACE_S)
    api.change(LEASES, "pg", {"spec": {"holderIdentity": "pg-2"}})
    (mark,) = steps.since_last()
    assert (mark.what, mark.member, mark.at) == ("lease", "pg-2", clock.now())
