"""A pod of another application that bears an instance's labels: it is no member, and nothing is done to it."""

import pytest

from tests.fixtures.cnpg.fake_api import FakeApi, recorded
from walproof.errors import UsageError
from walproof.machine.clock import RealClock
from walproof.model.drill import Capability
from walproof.targets.cnpg.faults_and_undo import Instances
from walproof.targets.cnpg.kubernetes_api import PODS
from walproof.targets.cnpg.state_and_doctor_facts import state_of
from walproof.targets.configure import NoJournal


@pytest.mark.parametrize("name", ["billing-0", "pg", "pg-1-backup", "pg-x", "xpg-1", "pg-1\n"])
def test_it_is_no_member_and_is_not_killed(name: str) -> None:
    api = FakeApi()
    before = state_of(api, "pg").instances
    pod = recorded("pods")[0]
    pod["metadata"]["name"] = name
    api.put(PODS, pod)
    assert state_of(api, "pg").instances == before
    instances = Instances(api, "pg", "cnpg:default/pg", RealClock({}), NoJournal)
    with pytest.raises(UsageError, match="has no pod now"):
        instances.faults()[Capability.KILL_MEMBER].inject(name)
    assert ("delete", "pods", name) not in api.asked
