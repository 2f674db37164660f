"""The order of what was lost: WAL loses its end, never its middle. Pure."""

import numpy as np
from numpy.typing import NDArray

from walproof.model.attempt import Attempts, Outcome
from walproof.proving.reading import MemberReading, lost_rows


def lost_out_of_order(attempts: Attempts, leader: MemberReading) -> NDArray[np.bool_]:
    """Lost acknowledgements after which an attempt began whose row was kept; shape (attempts,).

    On one timeline of one server that did not crash meanwhile, a commit acknowledged before another began comes first
    in the WAL, and whoever holds a WAL position holds everything before it (manual, "WAL Internals"): a row that is
    missing although a later one is there was not lost with the WAL, it was deleted or hidden. So it is for the rows of
    one writer too, which begins an attempt when the one before has ended. Where several clocks gave the times, "before"
    is by more than they may be apart.
    """
    lost = lost_rows(attempts, leader)
    found = np.zeros(len(attempts), dtype=bool)
    placed = (attempts.outcome == Outcome.ACKNOWLEDGED) & (attempts.timeline > 0) & (attempts.server >= 0)
    for timeline in np.unique(attempts.timeline[lost]):
        of_timeline = placed & (attempts.timeline == timeline)
        for server in np.unique(attempts.server[of_timeline]):
            chosen = of_timeline & (attempts.server == server)
            kept = attempts.started[chosen & leader.present]
            if len(kept):
                found |= lost & chosen & (attempts.ended < kept.max() - attempts.clocks_apart_s)
    return found
