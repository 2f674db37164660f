"""Who pays for commits, and what other levels, quorums or round trips would cost the load that was observed. Pure.

Predictions change one part of what was observed: the wait for standbys in proportion to the lags that the standbys
report for the other stage, and the wait for row locks in proportion to how long commits hold them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from walproof.estimating.observed_waits import OWN, Cause, Numbers, mean_stages, resampled, waited
from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level
from walproof.model.observed_waits import SessionSums, WaitsSeen

DIMENSIONS: tuple[tuple[str, Callable[[SessionSums], str]], ...] = (
    ("application", lambda group: group.application),
    ("role", lambda group: group.role),
    ("database", lambda group: group.database),
    ("statement", lambda group: group.statement),
)
MODEL_ERROR = 0.10
"""Half width, as a share of what changes, that a prediction's interval has beyond that of what was observed."""
LONGER_MS = (1.0, 10.0)
"""Round trips that much longer are predicted."""
MOST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Payer:
    """One application, role, database or statement: its shares of commits and of waiting, its own ms per commit.

    commits: an estimate, from how many of its transactions were seen and how old they were. behind_ms: what all
    sessions wait, per commit of all, for locks of its sessions that wait for a standby; None where that is not known.
    """

    dimension: str
    name: str
    commits: float
    waiting: float
    standby_ms: float
    flush_ms: float
    behind_ms: float | None = None
    level: str = ""

    @property
    def text(self) -> str:
        """What it would mean to make its commits wait for the local flush alone."""
        others = f", and sessions {self.behind_ms:.2f} ms less behind its locks" if self.behind_ms else ""
        name = f"{self.dimension} {self.name or '(none)'}"
        return (
            f"{name} makes about {self.commits:.0%} of the commits and {self.waiting:.0%} of the waiting; "
            f"at `local` it would wait {self.standby_ms:.2f} ms less per commit{others}"
        )


def payers(seen: Sequence[WaitsSeen]) -> tuple[Payer, ...]:
    """Those with at least 1 % of commits or of waiting, the most waiting first, by each dimension of several."""
    made: list[Payer] = []
    for dimension, key in DIMENSIONS:
        groups = [g for s in seen for g in s.groups]
        names = dict.fromkeys(key(g) for g in groups if g.writing or g.standby or g.flush)
        if len(names) < 2 and dimension != "application":
            continue
        of_dimension = [_payer(seen, dimension, key, name) for name in names]
        of_dimension = [p for p in of_dimension if max(p.commits, p.waiting) >= 0.01]
        made += sorted(of_dimension, key=lambda p: -p.waiting)[:MOST_ROWS]
    return tuple(made)


def _begun(groups: Iterable[SessionSums]) -> float:
    """Proportional to transactions a second: how many were seen at work over how long they last (seen at mean age)."""
    several = list(groups)
    number, ages = sum(g.writing for g in several), sum(g.writing_s for g in several)
    return number**2 / ages if ages > 0 else 0.0


def _payer(seen: Sequence[WaitsSeen], dimension: str, key: Callable[[SessionSums], str], name: str) -> Payer:
    every = [g for s in seen for g in s.groups]
    begun = {n: _begun(g for g in every if key(g) == n) for n in {key(g) for g in every}}
    share = begun[name] / (sum(begun.values()) or 1.0)
    columns, whole = waited(seen, lambda g: key(g) == name), waited(seen)
    commits = float(whole.commits.sum())
    own, of_all = (sum(float(c.causes[cause].sum()) for cause in OWN) for c in (columns, whole))
    standby = sum(float(columns.causes[cause].sum()) for cause in OWN[1:])
    per = 1000 / (share * commits) if share * commits > 0 else math.nan
    behind = None
    if dimension == "application" and (blocked := sum(s.blocked for s in seen)):
        its = sum(s.blockers.get(name, 0) for s in seen) / blocked
        locks = sum(g.lock / s.polls * s.seconds for s in seen for g in s.groups)
        behind = 1000 * its * locks / commits if commits else math.nan
    levels = {(r, d): level for s in seen for r, d, level in s.overrides}
    of = {"role": (name, ""), "database": ("", name)}.get(dimension)
    return Payer(
        dimension,
        name,
        share,
        own / of_all if of_all else 0.0,
        standby * per,
        float(columns.causes[Cause.FLUSH].sum()) * per,
        behind,
        levels.get(of, "") if of else "",
    )


@dataclass(frozen=True, slots=True)
class Predicted:
    """What commits would wait under another level, quorum or round trip: ms per commit, and throughput over now's.

    throughput holds for sessions that wait in a closed loop. unknown: why there is no figure, else "".
    """

    what: str
    wait_ms: Estimate
    throughput: Estimate
    unknown: str = ""


_NONE = Estimate(math.nan, math.nan, math.nan)


def predictions(seen: Sequence[WaitsSeen]) -> tuple[Predicted, ...]:
    """Every level but off, ANY k of the standbys there are, longer round trips; what cannot be known says why."""
    columns = waited(seen)
    standby = sum(float(columns.causes[cause].sum()) for cause in OWN[1:])
    if not columns.commits.sum():
        return ()
    streaming = len({s.name for s in seen[-1].standbys if s.state == "streaming"})
    levels = (Level.LOCAL, Level.REMOTE_WRITE, Level.ON, Level.REMOTE_APPLY)
    wanted: list[tuple[str, Level, int | None, float]] = [(str(level), level, None, 0.0) for level in levels]
    if standby > 0:
        wanted += [(f"ANY {k} at {columns.level}", columns.level, k, 0.0) for k in range(1, streaming + 1)]
        wanted += [(f"round trip {more:g} ms longer", columns.level, None, more) for more in LONGER_MS]
    return tuple(_predicted(seen, *one) for one in wanted)


def _predicted(seen: Sequence[WaitsSeen], what: str, level: Level, k: int | None, more_ms: float) -> Predicted:
    columns = waited(seen)
    standby = np.sum([columns.causes[cause] for cause in OWN[1:]], axis=0)
    now_ms = 1000 * float(standby.sum()) / float(columns.commits.sum())
    if level is Level.LOCAL:
        factor: float | None = 0.0
    else:
        factor = _factor(seen, level, k)
    if factor is None:
        return Predicted(what, _NONE, _NONE, "its standbys reported no lag for it: none is there, or all are idle")
    if now_ms == 0 and level is not Level.LOCAL:
        stages = mean_stages(seen, level)
        if stages is None:
            return Predicted(what, _NONE, _NONE, "no commit waited for a standby, and none reported its lags")
        now_ms, factor = 0.0, 0.0
        more_ms += stages[{Level.REMOTE_WRITE: 0, Level.ON: 1}.get(level, 2)]
    return _with_intervals(seen, what, factor, more_ms)


def _factor(seen: Sequence[WaitsSeen], level: Level, k: int | None) -> float | None:
    """The lag at that level and quorum over the lag waited for now."""
    now_level = waited(seen).level
    if level is now_level and k is None:
        return 1.0
    here, there = mean_stages(seen, now_level), mean_stages(seen, level, k)
    if here is None or there is None:
        return None
    last = {Level.REMOTE_WRITE: 0, Level.ON: 1, Level.REMOTE_APPLY: 2}
    return there[last[level]] / here[last[now_level]] if here[last[now_level]] > 0 else None


def _with_intervals(seen: Sequence[WaitsSeen], what: str, factor: float, more_ms: float) -> Predicted:
    """Waits and throughput when the wait for standbys is so many times as long, and so many ms longer."""
    columns = waited(seen)
    counts = resampled(len(seen))
    every = np.ones((1, len(seen))) if counts is None else np.vstack([np.ones(len(seen)), counts])
    commits = np.maximum(every @ columns.commits, 1e-9)
    standby, flush, locks = (
        1000 * (every @ column) / commits
        for column in (
            np.sum([columns.causes[cause] for cause in OWN[1:]], axis=0),
            columns.causes[Cause.FLUSH],
            columns.causes[Cause.LOCKS],
        )
    )
    then = standby * factor + more_ms
    own = standby + flush
    holding = np.divide(then + flush, own, out=np.ones_like(own), where=own > 0)
    longer = (then - standby) + locks * (holding - 1)
    busy, sessions = (
        np.array([sum(getattr(g, name) for g in s.groups) / s.polls for s in seen]) for name in ("busy", "sessions")
    )
    cycle = {name: 1000 * (every @ (n * columns.seconds)) / commits for name, n in (("b", busy), ("s", sessions))}
    ratios = [np.clip(c / np.maximum(c + longer, 1e-9), 0.0, None) for c in cycle.values()]
    return Predicted(what, _widened(then + flush, then - standby), _spread(ratios, counts is not None))


def _widened(waits: Numbers, changes: Numbers) -> Estimate:
    value = float(waits[0])
    if len(waits) == 1:
        return Estimate(value, math.nan, math.nan)
    low, high = (float(q) for q in np.quantile(waits[1:], (0.025, 0.975)))
    model = MODEL_ERROR * abs(float(changes[0]))
    return Estimate(value, max(0.0, value - math.hypot(value - low, model)), value + math.hypot(high - value, model))


def _spread(ratios: Sequence[Numbers], known: bool) -> Estimate:
    """From sessions that are busy all the time to all sessions there are."""
    middle = math.sqrt(float(ratios[0][0]) * float(ratios[1][0]))
    if not known:
        return Estimate(middle, math.nan, math.nan)
    ends = [float(np.quantile(r[1:], q)) for r in ratios for q in (0.025, 0.975)]
    off = MODEL_ERROR * abs(1 - middle)
    return Estimate(middle, max(0.0, min(ends) - off), max(ends) + off)
