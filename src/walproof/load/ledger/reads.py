"""What reads of several members show together: freshness, rows seen on the leader, long forks. Pure.

A read is the newest visible number per writer; a writer's rows commit one after the other, so a newest number at or
above n means that row n is visible.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Outcome
from walproof.model.load import WitnessReport

_KEPT = 20_000
_COMPARED = 40


@dataclass(frozen=True, slots=True)
class Read:
    """One member's answer: name, whether it leads, newest number per writer shape (writers,), when asked, epoch s."""

    member: str
    leads: bool
    newest: NDArray[np.int64]
    at: float
    session: int = 0
    """Counts the reader's connections: within one, a server only goes forward."""


def disagree(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Whether each read holds a row the other does not (long fork: the two saw rows appear in different order)."""
    return bool(np.any(one > other) and np.any(one < other))


def acknowledged(rows: NDArray[Any], writers: int) -> NDArray[np.int64]:
    """The newest acknowledged number per writer in the last rows of attempt files; -1 where there is none."""
    newest = np.full(writers, -1, dtype=np.int64)
    held = rows[rows["outcome"] == Outcome.ACKNOWLEDGED]
    np.maximum.at(newest, held["writer"], held["number"])
    return newest


def stale_ms(rows: NDArray[Any], read: Read) -> float:
    """For how long the oldest row missing in the read had been acknowledged when it was asked for; ms."""
    missed = rows[(rows["outcome"] == Outcome.ACKNOWLEDGED) & (rows["number"] > read.newest[rows["writer"]])]
    return float((read.at - missed["ended"].min()) * 1000) if len(missed) else 0.0


@dataclass(slots=True)
class ReadTally:
    """Adds up rounds of reads; `report` at the end."""

    writers: int
    fresh: dict[str, list[int]] = field(default_factory=dict)
    somewhere: list[int] = field(default_factory=lambda: [0, 0])
    seen: dict[tuple[int, int], None] = field(default_factory=dict)
    long_forks: int = 0
    stale: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    backward: dict[str, int] = field(default_factory=dict)
    _last: dict[str, Read] = field(default_factory=dict)
    _leaders: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=_COMPARED))
    _standbys: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=_COMPARED))

    def add(self, rows: NDArray[Any], reads: list[Read], *, complete: bool = True) -> None:
        """One round: the last rows of the attempt files, read *before* the members were asked, and their answers.

        `complete`: every member answered. A row that no answer shows may else be on the member that gave none.
        """
        self._count_backward(reads)
        wanted = acknowledged(rows, self.writers)
        asked = wanted >= 0
        standbys = [read for read in reads if not read.leads]
        for read in reads:
            if read.leads:
                self._add_seen(read)
            elif asked.any():
                found = int(np.count_nonzero(read.newest[asked] >= wanted[asked]))
                counts = self.fresh.setdefault(read.member, [0, 0])
                counts[0] += found
                counts[1] += int(asked.sum()) - found
                self.stale.append(stale_ms(rows, read))
        if complete and standbys and asked.any():
            best = np.max([read.newest for read in standbys], axis=0)
            found = int(np.count_nonzero(best[asked] >= wanted[asked]))
            self.somewhere[0] += found
            self.somewhere[1] += int(asked.sum()) - found
        self._count_long_forks(reads)

    def _add_seen(self, read: Read) -> None:
        for writer in np.flatnonzero(read.newest >= 0):
            self.seen[int(writer), int(read.newest[writer])] = None
        while len(self.seen) > _KEPT:
            self.seen.pop(next(iter(self.seen)))

    def _count_backward(self, reads: list[Read]) -> None:
        for read in reads:
            before = self._last.get(read.member)
            self._last[read.member] = read
            if before is None or read.leads or before.leads or before.session != read.session:
                continue
            if np.any(read.newest < before.newest):
                self.backward[read.member] = self.backward.get(read.member, 0) + 1

    def _count_long_forks(self, reads: list[Read]) -> None:
        for read in reads:
            others = self._standbys if read.leads else self._leaders
            self.long_forks += any(disagree(read.newest, other) for other in others)
        for read in reads:
            (self._leaders if read.leads else self._standbys).append(read.newest)

    def report(self) -> WitnessReport:
        """Everything seen."""
        return WitnessReport(
            {member: (found, missed) for member, (found, missed) in self.fresh.items()},
            tuple(self.seen),
            self.long_forks,
            tuple(self.stale),
            (self.somewhere[0], self.somewhere[1]),
            dict(self.backward),
        )
