"""The order of what was lost: WAL loses its end, never its middle. Pure."""

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts
from walproof.proving.reading import MemberReading, lost_rows


def lost_out_of_order(attempts: Attempts, leader: MemberReading) -> NDArray[np.bool_]:
    """Lost acknowledgements before which WAL was kept that is later than theirs; shape (attempts,).

    On one timeline of one server whoever holds a WAL position holds everything before it (manual, "WAL Internals"): a
    row that is missing although a later one is there was not lost with the WAL, it was deleted or hidden.
    """
    lost = lost_rows(attempts, leader)
    found = np.zeros(len(attempts), dtype=bool)
    placed = (attempts.lsn > 0) & (attempts.timeline > 0) & (attempts.server >= 0)
    for timeline in np.unique(attempts.timeline[lost]):
        of_timeline = placed & (attempts.timeline == timeline)
        for server in np.unique(attempts.server[of_timeline]):
            chosen = of_timeline & (attempts.server == server)
            kept = attempts.lsn[chosen & leader.present]
            if len(kept):
                found |= lost & chosen & (attempts.lsn + np.uint64(_RECORD) < kept.max())
    return found


_RECORD = 1 << 16
"""Bytes of WAL within which two commits may stand in either order: a row's position is read before its commit."""
