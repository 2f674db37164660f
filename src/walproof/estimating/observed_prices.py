"""Who pays for commits, and what other levels, quorums or round trips would cost the load that was observed. Pure.

Predictions change one part of what was observed: the wait for standbys in proportion to the lags that the standbys
report for the other stage, and the wait for row locks in proportion to how long commits hold them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from walproof.estimating.observed_waits import (
    Cause,
    Numbers,
    Sums,
    Waited,
    by,
    estimated,
    mean_stages,
    resampled,
    waited,
)
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, Quorum, QuorumKind
from walproof.model.observed_waits import WaitsSeen

DIMENSIONS = ("application", "role", "database", "statement")
"""Fields of SessionSums."""
MODEL_ERROR = 0.10
"""Half width, as a share of what changes or of what is left, that a prediction has beyond that of what was observed."""
LONGER_MS = (1.0, 10.0)
"""Round trips that much longer are predicted."""
MOST_ROWS = 8
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Payer:
    """One application, role, database or statement: its shares of commits and of waiting, its own ms per commit.

    commits_share: an estimate, from how many of its transactions were seen and how old they were. wal_share: of WAL
    bytes; others_behind_ms: what all sessions wait, per commit of all, for locks of its sessions that wait for a
    standby; None: not known.
    """

    by: str
    name: str
    commits_share: float
    waiting_share: float
    standby_ms: float
    flush_ms: float
    others_behind_ms: float | None = None
    own_level: str = ""
    wal_share: float | None = None

    @property
    def text(self) -> str:
        """What it would mean to make its commits wait for the local flush alone."""
        behind, made, waiting = self.others_behind_ms, 100 * self.commits_share, 100 * self.waiting_share
        others = f", and sessions {behind:.2f} ms less behind its locks" if behind else ""
        return (
            f"{self.by.capitalize()} {self.name or '(none)'} makes about {made:.0f} % of the commits and {waiting:.0f} "
            f"% of the waiting; at local it would wait {self.standby_ms:.2f} ms less per commit{others}"
        )


def payers(seen: Sequence[WaitsSeen]) -> tuple[Payer, ...]:
    """Those with at least 1 % of commits, waiting or WAL, the most waiting first, by each dimension of several."""
    commits, blocked = float(waited(seen).commits.sum()), sum(s.blocked for s in seen)
    locks_s = sum(g.lock * s.poll_s for s in seen for g in s.groups)
    behind_ms = 1000 * locks_s / (blocked * commits) if blocked * commits else None
    levels = {(role, database): level for s in seen for role, database, level in s.overrides}
    blockers = sum((Counter(s.blockers) for s in seen), Counter[str]())
    made: list[Payer] = []
    for dimension in DIMENSIONS:
        groups: dict[str, Sums] = by(seen, attrgetter(dimension))
        if dimension == "statement":
            # One that never waits stands before the COMMIT of its transaction; which one wrote the WAL is not known.
            groups = {name: replace(sums, wal=0.0) for name, sums in groups.items() if sums.waiting_s}
        begun, waiting_s, wal = (sum(getattr(s, n) for s in groups.values()) for n in ("begun", "waiting_s", "wal"))
        paying = []
        for name, sums in groups.items():
            share, waiting = sums.begun / (begun or 1.0), sums.waiting_s / (waiting_s or 1.0)
            written = sums.wal / wal if wal else None
            if max(share, waiting, written or 0.0) >= 0.01:
                per = 1000 / (share * commits) if share * commits > 0 else math.nan
                behind = None if behind_ms is None or dimension != "application" else behind_ms * blockers[name]
                setting = {"role": (name, ""), "database": ("", name)}.get(dimension)
                own = levels.get(setting, "") if setting else ""
                ms = (sums.standby_s * per, sums.flush_s * per, behind)
                paying.append(Payer(dimension, name, share, waiting, *ms, own, written))
        if len(groups) > 1 or dimension == "application":
            made += sorted(paying, key=lambda p: -p.waiting_share)[:MOST_ROWS]
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What commits would wait under another level, quorum or round trip: ms per commit, and throughput over now's.

    throughput holds for sessions that wait in a closed loop. unknown: why there is no figure, else "".
    """

    what: str
    commit_wait_ms: Estimate
    throughput: Estimate
    unknown: str = ""


_NONE = Estimate(math.nan, math.nan, math.nan)
Shares = Mapping[Level, float]
Asked = tuple[str, Shares, Quorum | None, float]
"""In words; shares of commits by level, the quorum if another, ms that the round trip is longer."""


def predictions(seen: Sequence[WaitsSeen]) -> tuple[Predicted, ...]:
    """Every commit at one level, for each but off; ANY k of the standbys there are; longer round trips.

    What cannot be known says why.
    """
    columns = waited(seen)
    if not columns.commits.sum():
        return ()
    asked: list[Asked] = [(str(level), {level: 1.0}, None, 0.0) for level in Level if level is not Level.OFF]
    if columns.standby.any():
        streaming = sum(s.state == "streaming" for s in seen[-1].standbys)
        quorums = [Quorum(QuorumKind.ANY, k, ("*",)) for k in range(1, streaming + 1)]
        asked += [(f"ANY {q.k} at {columns.level}", columns.shares, q, 0.0) for q in quorums]
        asked += [(f"round trip {more:g} ms longer", columns.shares, None, more) for more in LONGER_MS]
    return tuple(_predicted(seen, columns, one) for one in asked)


def _predicted(seen: Sequence[WaitsSeen], columns: Waited, asked: Asked) -> Predicted:
    """When these shares of commits are made at these levels: the lags waited for then over those waited for now.

    Where nothing waits for standbys now, it is the lags themselves.
    """
    what, shares, quorum, more_ms = asked
    then = {level: share for level, share in shares.items() if level.remote}
    now = {level: share for level, share in columns.shares.items() if level.remote and columns.standby.any()}
    synced = (1 - columns.shares.get(Level.OFF, 0.0), 1 - shares.get(Level.OFF, 0.0))
    if synced[0] < 0.01 < synced[1]:
        return Predicted(what, _NONE, _NONE, "commits are at off: how long the local flush takes was not seen")
    if quorum is None and (then == now or (len(now) <= 1 and then.keys() <= now.keys())):
        lag_now, lag_then = sum(now.values()), sum(then.values())  # the one lag cancels out
    else:
        lag_now, lag_then = _lag_ms(seen, now, None), _lag_ms(seen, then, quorum)
        if math.isnan(lag_now + lag_then) or (now and not lag_now):
            return Predicted(what, _NONE, _NONE, "its standbys reported no lag for it: none is there, or all are idle")
    waiting = sum(then.values())
    if not now:
        return _changed(seen, columns, what, ((0.0, lag_then + more_ms * waiting),), synced)
    # What a commit waits beside the lag, such as for a sender to wake up, is as much longer or as long as now.
    often = waiting / sum(now.values())
    ways = ((lag_then / lag_now, 0.0), (often, lag_then - lag_now * often))
    return _changed(seen, columns, what, [(factor, ms + more_ms * waiting) for factor, ms in ways], synced)


def _changed(
    seen: Sequence[WaitsSeen],
    columns: Waited,
    what: str,
    ways: Sequence[tuple[float, float]],
    synced: tuple[float, float],
) -> Predicted:
    """When standbys are waited for so many times as long and so many ms longer; `synced`: shares that flush, now, then.

    What sessions run meanwhile may need a processor that is not there: of that one is sure. Throughput: from that of
    sessions that are busy all the time to that of all the sessions there are. Intervals are of what as long a look at
    it would show: both looks err, and throughput is never twice the same.
    """
    counts, (flushing, flushing_then) = resampled(len(seen)), np.maximum(synced, 1e-9)
    commits, seconds = np.maximum(counts @ columns.commits, 1e-9), counts @ columns.seconds
    numbers = (
        np.array([sum(getattr(g, name) for g in s.groups) * s.poll_s for s in seen]) for name in ("busy", "sessions")
    )
    sums = (columns.standby, columns.causes[Cause.FLUSH], columns.causes[Cause.LOCKS], *numbers)
    standby, flush, locks, busy, sessions = (1000 * (counts @ one) / commits for one in sums)
    rate, before, away = commits / seconds, standby + flush, busy - flush
    carried = np.maximum(1.0, 1000 / np.maximum((busy - before) * rate, 1e-9))
    afters, ratios = [], []
    for factor, more_ms in ways:
        standby_then = np.maximum(0.0, standby * factor + more_ms)
        away_then = (away + standby_then - standby) / flushing_then
        longer = _flush_longer(flush / flushing, busy * rate / 1000 - 1, away / flushing, away_then)
        after = standby_then + flush * longer * flushing_then / flushing
        more = after - before + locks * (np.divide(after, before, out=np.ones_like(before), where=before > 0) - 1)
        afters.append(after)
        for cycle in (busy, sessions):
            ratio = cycle / np.maximum(cycle + more, 1e-9)
            ratios += [one * rate / rate[0] for one in (ratio, np.minimum(ratio, carried))]
    sighting = 1000 * float(columns.seconds.sum() / sum(s.polls for s in seen) / commits[0])
    return Predicted(what, _either(afters, float(before[0]), len(seen), sighting), _either(ratios, 1.0, len(seen)))


def _flush_longer(wait: Numbers, others: Numbers, away: Numbers, away_then: Numbers) -> Numbers:
    """How many times as long sessions wait for a flush when they and the others are away from it for another time, ms.

    How long a flush takes alone is found from how long sessions wait for it now.
    """
    alone = wait
    for _ in range(_ROUNDS):
        alone = (alone + alone * wait / np.maximum(_flush_wait(alone, others, away), 1e-9)) / 2
    return _flush_wait(alone, others, away_then) / np.maximum(_flush_wait(alone, others, away), 1e-9)


def _flush_wait(alone: Numbers, others: Numbers, away: Numbers) -> Numbers:
    """The wait for a flush (ms) that takes so long alone, of sessions that are away from it for exponential times.

    One that comes while another's is under way waits for its rest, and for the next (XLogFlush, xlog.c). A flush after
    which none waits ends a run of them: runs are e^x flushes long, and 1/x flushes apart, x others coming in each.
    """
    away, alone = np.maximum(away, 1e-3), np.maximum(alone, 1e-6)
    part = np.clip(alone / away, 1e-4, 100.0)
    coming = np.minimum(np.maximum(others, 0.0) * part, 100.0)
    under_way = 1 - 1 / (1 + coming * np.exp(coming))
    return alone + under_way * (alone - alone / part + alone / np.expm1(part))


def _either(ways: Sequence[Numbers], before: float, stretches: int, sighting: float = 0.0) -> Estimate:
    """The middle of predictions, each in its first row, and from the lowest end of their intervals to the highest."""
    each = []
    for one in ways:
        model = MODEL_ERROR * min(abs(float(one[0]) - before), float(one[0]))
        each.append(estimated(one[0] + math.sqrt(2) * (one - one[0]), stretches, sighting, model))
    values = [one.value for one in each]
    return Estimate((min(values) + max(values)) / 2, min(e.low for e in each), max(e.high for e in each))


def _lag_ms(seen: Sequence[WaitsSeen], shares: Shares, quorum: Quorum | None) -> float:
    """Mean lag per commit, of which these shares wait at these levels; NaN where one is unknown."""
    lags = ((share, mean_stages(seen, level, quorum)) for level, share in shares.items())
    return sum(share * (math.nan if stages is None else stages[-1]) for share, stages in lags)
