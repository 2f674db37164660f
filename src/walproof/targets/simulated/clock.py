"""Virtual time with a diary of what will happen: a pause runs every entry that comes due, in order. Never waits."""

import heapq
from collections.abc import Callable
from itertools import count

EPOCH = 1_800_000_000.0


class VirtualClock:
    """A clock that passes only when paused."""

    virtual = True
    patience = 1.0

    def __init__(self) -> None:
        self._now = EPOCH
        self._order = count()
        self._diary: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """The virtual time, seconds since the epoch."""
        return self._now

    def pause(self, seconds: float) -> None:
        """Let that much virtual time pass, and everything in it happen."""
        until = self._now + seconds
        while self._diary and self._diary[0][0] <= until:
            at, _, happens = heapq.heappop(self._diary)
            self._now = max(self._now, at)
            happens()
        self._now = until

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Write into the diary that something happens so many seconds from now."""
        heapq.heappush(self._diary, (self._now + seconds, next(self._order), happens))
