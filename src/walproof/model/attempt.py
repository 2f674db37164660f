"""Commit attempts as the client saw them: four outcomes, kept as columns so that ten million fit in memory."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Outcome(IntEnum):
    """What the client knows. DOWNGRADED is success with PostgreSQL's warning that the wait was cancelled."""

    UNKNOWN = 0
    ACKNOWLEDGED = 1
    DOWNGRADED = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Attempts:
    """The ledger as columns of one length. Times are seconds since the epoch on the client's clock.

    writer, number: identify an attempt (int32, int64). started, ended: float64, ended NaN while unknown.
    outcome: int8 of Outcome. level: int8, index into Level of what the row's own commit had, -1 where none came back.
    server: int16, index into `servers`, -1 unknown: its address and since when it has not crashed, so that the same
    index means the same unbroken run of WAL.
    timeline: int32, 0 unknown. lsn: uint64, 0 unknown. names: int16, index into `standby_names`, -1 unknown.
    checksum: uint32, CRC-32 of the payload sent.
    """

    writer: NDArray[np.int32]
    number: NDArray[np.int64]
    started: NDArray[np.float64]
    ended: NDArray[np.float64]
    outcome: NDArray[np.int8]
    level: NDArray[np.int8]
    server: NDArray[np.int16]
    timeline: NDArray[np.int32]
    lsn: NDArray[np.uint64]
    names: NDArray[np.int16]
    checksum: NDArray[np.uint32]
    servers: tuple[str, ...] = ()
    standby_names: tuple[str, ...] = ()
    clocks_apart_s: float = 0.0
    """By how much the times of two writers may be wrong against each other, 0 where one clock gave them all."""

    def __len__(self) -> int:
        return len(self.writer)


@dataclass(frozen=True, slots=True)
class Rows:
    """The ledger table as one member holds it: columns of one length; checksum is of the payload read back."""

    member: str
    writer: NDArray[np.int32]
    number: NDArray[np.int64]
    checksum: NDArray[np.uint32]
    stated: NDArray[np.uint32]
    """The checksum stored with the payload; differs from `checksum` when a row was torn or corrupted."""

    def __len__(self) -> int:
        return len(self.writer)
