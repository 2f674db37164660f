"""The rows that salvage found after a drill, against those that the ledger calls lost. Pure."""

import numpy as np

from walproof.model.drill import Verdict
from walproof.model.guarantee import Level
from walproof.model.load import Outcome
from walproof.model.salvage import Salvaged, SalvageJudged
from walproof.proving.history import History
from walproof.proving.lost_commits import keys, lost_rows

_NAMED = 5


def salvage_judged(at: float, history: History, salvaged: Salvaged) -> SalvageJudged:
    """BROKEN where a lost commit that was written is not found, or a row that is not lost is.

    UNDECIDED where the ledger, or a disk on which the missing ones may be, could not be read. A row of an attempt whose
    client never heard the end of it may be found: it counts neither way.
    """
    attempts, readings, run = history.attempts, history.readings, history.run
    lost, key = lost_rows(attempts, readings), keys(attempts.writer, attempts.number)
    rows = np.array(sorted(salvaged.rows), np.int64).reshape(-1, 2)
    found = keys(rows[:, 0].astype(np.int32), rows[:, 1])
    missing = lost & ~np.isin(key, found)
    may_be_found = ~readings[0].present & (attempts.outcome != Outcome.REFUSED) if readings else lost
    not_lost = int((~np.isin(found, key[may_be_found])).sum())
    # Every other level waits for the disk of the leader: without a copy, or beyond its WAL, salvage missed them.
    beyond = (attempts.lsn == 0) | (attempts.lsn >= salvaged.written_to)
    unwritten = missing & beyond if history.planned.level is Level.OFF else np.zeros_like(missing)
    why = [*salvaged.undecided, *filter(None, (run.error, run.incomplete))]
    if not readings:
        why.append("the ledger could not be read")
    elif (missing & ~unwritten).any() and not salvaged.members:
        why.append("no disk of an old leader was copied: pg_rewind was not run on one")
    not_found = int(missing.sum() - unwritten.sum())
    is_doubted = why and (missing.any() or not_lost or not readings)
    wrong = Verdict.BROKEN if not_found or not_lost else Verdict.HELD
    named = sorted(np.flatnonzero(lost), key=lambda place: not missing[place])[:_NAMED]
    return SalvageJudged(
        at=at,
        number=history.planned.number,
        verdict=Verdict.UNDECIDED if is_doubted else wrong,
        members=salvaged.members,
        lost=int(lost.sum()),
        found=int(lost.sum() - missing.sum()),
        unwritten=int(unwritten.sum()),
        not_found=not_found,
        not_lost=not_lost,
        rows=tuple(f"{attempts.writer[place]}/{attempts.number[place]}" for place in named),
        why="; ".join(why),
    )
