"""Virtual time with a schedule of events: a pause runs every event that comes due, in order. Never waits."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import count

EPOCH = 1_800_000_000.0


class VirtualClock:
    """A clock that passes only when paused."""

    patience = 1.0
    waits: Mapping[str, float] = {}

    def __init__(self) -> None:
        self._now = EPOCH
        self._order = count()
        self._repeated: list[_Repeated] = []
        self._schedule: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def pause(self, seconds: float) -> None:
        """Let that much virtual time pass, and everything in it happen."""
        until = self._now + seconds
        while self._schedule and self._schedule[0][0] <= until:
            at, _, happens = heapq.heappop(self._schedule)
            self._now = max(self._now, at)
            happens()
        self._now = until
        for repeated in list(self._repeated):
            repeated.act()

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Schedule something so many seconds from now."""
        heapq.heappush(self._schedule, (self._now + seconds, next(self._order), happens))

    def every(self, seconds: float, act: Callable[[], None]) -> "_Repeated":
        repeated = _Repeated(act, self._repeated)
        self._repeated.append(repeated)
        act()
        return repeated

    def together(self, acts: Sequence[Callable[[], None]]) -> None:
        """One after another: no virtual time passes in between."""
        for act in acts:
            act()


class _Repeated:
    """A function called after each pause, while it is in the list."""

    failed = False

    def __init__(self, act: Callable[[], None], among: "list[_Repeated]") -> None:
        self.act, self._among = act, among

    def close(self) -> None:
        if self in self._among:
            self._among.remove(self)
