"""A guard's threads: one that has ended ends the guard; none moves etcd's leader without consent. Numbers: readings."""

from collections.abc import Mapping
from dataclasses import replace

import httpx2
import pytest

from tests.fixtures.guards import LOCK, POLICY
from walproof.errors import MachineError
from walproof.guarding.decide import Memory, State
from walproof.guarding.run import Guard
from walproof.guarding.signs_of_life import Addresses, PatroniSignsOfLife
from walproof.machine.clock import RealClock
from walproof.model.takeover import LockState, MemberSigns
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for


class Blind:
    """A lock that a thread reads, and members that are asked."""

    def __init__(self, error: Exception | None = None, *, life_failed: bool = False) -> None:
        self.error, self.life_failed = error, life_failed
        self.parted = False

    def read(self) -> LockState:
        if self.error is not None:
            raise self.error
        return LOCK

    def signs(self) -> Mapping[str, MemberSigns]:
        return {}

    def failed(self) -> bool:
        return self.life_failed

    def part(self, _seen: LockState) -> str:
        self.parted = True
        return "e2"

    def close(self) -> None:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("blind", [Blind(TypeError("odd")), Blind(life_failed=True)])
def test_l2_a_guard_whose_thread_has_ended_ends_with_an_exit_code(blind: Blind) -> None:
    guard = Guard(blind, blind, RealClock(), POLICY, lambda _line: None)  # type: ignore[arg-type]
    try:
        with pytest.raises(MachineError, match="one of its threads ended"):
            wait_for(Wait.PROGRAM_GONE, lambda: bool(guard.turn()), RealClock())  # type: ignore[func-returns-value]
    finally:
        guard.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_l2_a_member_that_is_asked_no_more_is_noticed() -> None:
    addresses = {"n1": Addresses(Endpoint((("127.0.0.1", 1),), "x", "x"), "http://127.0.0.1:1", "")}

    def odd(_request: httpx2.Request) -> httpx2.Response:
        raise TypeError("odd")

    client = httpx2.Client(transport=httpx2.MockTransport(odd))
    life = PatroniSignsOfLife(lambda: addresses, client, RealClock())
    try:
        wait_for(Wait.PROGRAM_GONE, life.failed, RealClock())
    finally:
        life.close()


@pytest.mark.parametrize("consent", [False, True])
def test_l1_without_its_own_consent_no_guard_moves_etcds_leader(consent: bool) -> None:
    blind = Blind()
    policy = replace(POLICY, moves_dcs_leader=consent)
    guard = Guard(blind, blind, RealClock(), policy, lambda _line: None)  # type: ignore[arg-type]
    guard.memory, guard._seen = replace(Memory(), state=State.WATCHING), LOCK
    guard._part_leaders()
    guard.close()
    assert blind.parted is consent
