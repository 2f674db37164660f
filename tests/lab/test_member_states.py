"""The sign of every fault on a real lab: absent before, there while it is in effect, gone once it has cleared."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.fixtures.labs import a_lab
from walproof.lab import disk_images
from walproof.lab.blueprint import Disk
from walproof.lab.faults import disks
from walproof.machine.clock import RealClock
from walproof.model.topology import ClusterView, MemberState
from walproof.model.waiting import Wait, wait_for
from walproof.proving.fault_happened import fault_signs
from walproof.proving.fault_steps import Fault
from walproof.proving.faults import CATALOGUE
from walproof.proving.history import DrillRun
from walproof.proving.inject import inject
from walproof.targets.lab.target import LabTarget

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

if disk_images.unavailable() or disks.unavailable():
    pytest.skip("needs root, loop devices and strace", allow_module_level=True)


@pytest.fixture(scope="module")
def target() -> Iterator[LabTarget]:
    with a_lab(disk=Disk("image", 512 << 20)) as blueprint:
        yield LabTarget(blueprint)


@dataclass
class Asked:
    """What the members answered from just before a moment on, and who leads now."""

    target: LabTarget
    victims: tuple[str, ...]
    view: ClusterView
    at: float
    states: list[MemberState] = field(default_factory=list)

    def ask(self) -> None:
        """Every member, once more."""
        source = self.target.capabilities().member_states
        assert source is not None
        self.states += source.states()

    def shows(self, fault: Fault) -> list[bool | None]:
        """Every sign of the fault, by what was answered since the moment."""
        run = DrillRun(
            self.victims, self.view, self.at, self.target.clock.now(), self.target.clock.now(),
            states=tuple(self.states), after=self.target.observe(),
        )  # fmt: skip
        return [sign.seen for sign in fault_signs(fault, run)]


def watched(target: LabTarget, victims: tuple[str, ...]) -> Asked:
    """The members asked once; their signs count from now on."""
    asked = Asked(target, victims, target.observe(), 0.0)
    asked.ask()
    asked.at = target.clock.now()
    return asked


ON_A_STANDBY = (
    "kill", "stop", "restart", "kill-member", "freeze", "power-cut", "partition", "isolate", "partition-one-way",
    "crash-restart", "partition-wal", "partition-acks", "pause-replay", "slow-disk", "failing-disk", "full-disk",
)  # fmt: skip


@pytest.mark.parametrize("name", [*ON_A_STANDBY, "dcs-loss", "switchover"])
def test_a_sign_is_there_while_its_fault_is_and_neither_before_nor_after(target: LabTarget, name: str) -> None:
    fault, view = CATALOGUE[name], target.observe()
    assert view.leader is not None
    standby = next(m.name for m in view.members if m.name != view.leader)
    victims = (standby,) if name in ON_A_STANDBY else (view.leader,)
    asked = watched(target, victims)
    asked.ask()
    assert asked.shows(fault) == [False], "before"

    during = watched(target, victims)

    def there() -> bool:
        during.ask()
        return during.shows(fault) == [True]

    try:
        inject(target, fault, fault.steps, victims=victims, view=during.view)
        wait_for(Wait.SETTING_IN_EFFECT, there, RealClock())
    finally:
        target.operations.recover()
    cleared = watched(target, victims)
    cleared.ask()
    assert cleared.shows(fault) == [False], "after"
