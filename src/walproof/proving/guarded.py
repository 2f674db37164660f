"""Drills with a guard and without: brings it into effect or ends it, and keeps what it wrote."""

from walproof.errors import TargetError
from walproof.model.ports import Target
from walproof.model.waiting import Wait, wait_for


def set_guard(target: Target, *, guarded: bool) -> None:
    """Have a guard that would act now, or none; TargetError where the target cannot have one."""
    switch = target.capabilities().guard
    if switch is None:
        if guarded:
            raise TargetError(f"{target.name} cannot be guarded", "see docs/guard.md")
        return
    if not guarded:
        switch.stop()
        return
    switch.start()

    def ready() -> bool:
        status = switch.status()
        return status is not None and status.ready

    wait_for(Wait.GUARD_READY, ready, target.clock)


class GuardLog:
    """What the guard of a target writes from now on; of None nothing."""

    def __init__(self, target: Target | None) -> None:
        self._switch = target.capabilities().guard if target is not None else None
        self._before = len(self._switch.log()) if self._switch is not None else 0

    def since(self) -> str:
        """Its lines, joined, each with the time of the day."""
        lines = self._switch.log()[self._before :].splitlines() if self._switch is not None else []
        return "; ".join(line.partition(" ")[2] or line for line in lines)
