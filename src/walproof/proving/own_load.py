"""The user's own transactions beside the ledger during a drill: what their clients saw is no part of the verdict."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from walproof.errors import Error
from walproof.model.event import Emit, LoadSeen, Note
from walproof.model.ports import Target
from walproof.model.sample import Arm
from walproof.proving.campaign import PlannedDrill
from walproof.proving.observer import Gathered

_PACE_S = 0.25


def prepare(target: Target, arm: Arm | None) -> None:
    """Make the workload's tables, and wait until every standby has them."""
    able = target.capabilities().workload
    if arm is not None and able is not None:
        able.prepare(arm.workload)
        Gathered(target).caught_up(target.observe().leader or "")


def half_the_cap(target: Target, arm: Arm | None) -> float | None:
    """The rate that the workload and the writers each may have, where they share a target's cap; None for no limit."""
    cap = target.capabilities().limits.rate
    return cap / 2 if arm is not None and cap is not None else None


@contextmanager
def running_beside(
    target: Target, emit: Emit, arm: Arm | None, planned: PlannedDrill, led: Callable[[], object]
) -> Iterator[Callable[[float], None]]:
    """Keep the workload up meanwhile; gives what ends it and tells what its clients saw of the fault at that time."""
    able, clock = target.capabilities().workload, target.clock
    if arm is None or able is None:
        yield lambda _: None
        return
    arm = replace(arm, level=planned.level, route=planned.route, rate=half_the_cap(target, arm))
    load = able.open_load(arm, planned.number)

    def keep_up() -> None:
        with suppress(Error, OSError):
            if seen := load.keep_up(led(), planned.client_timeout_s):
                emit(Note(clock.now(), f"drill {planned.number}, {arm.workload.text}: {seen}"))

    def tell(fault_at: float) -> None:
        with suppress(Error, OSError):
            figures = load.seen(fault_at)
            emit(LoadSeen(clock.now(), planned.number, arm.workload.text, arm.clients, figures))

    tending = clock.every(_PACE_S, keep_up)
    try:
        yield tell
    finally:
        # Before its thread: what a thread started ends with it.
        load.close()
        tending.close()
