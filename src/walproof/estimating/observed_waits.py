"""What sessions waited for, as polled → milliseconds a commit waits, by cause, who pays, what other levels would cost.

Little's law (1961): sessions waiting on average ÷ commits a second = seconds waited per commit, whatever the arrivals.
Intervals: circular block bootstrap over time (Politis & Romano 1992), since neighbouring polls see the same waits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, Quorum, QuorumKind, read_standby_names
from walproof.model.observed_waits import SessionSums, StandbySeen, WaitsSeen

Numbers = NDArray[np.float64]
RESAMPLES = 1000
FEWEST = 8
"""Stretches of time below which there is no interval."""


class Cause(StrEnum):
    """What a commit waits for; the last is what others wait meanwhile."""

    FLUSH = "local flush"
    NETWORK = "standby: network and write"
    STANDBY_FLUSH = "standby: flush"
    REPLAY = "standby: replay"
    LOCKS = "row locks behind commits"


OWN = (Cause.FLUSH, Cause.NETWORK, Cause.STANDBY_FLUSH, Cause.REPLAY)
"""What the commit itself waits for."""
STAGES = {Level.REMOTE_WRITE: 1, Level.ON: 2, Level.REMOTE_APPLY: 3}
"""How many of write, flush and replay a level waits for."""


@dataclass(frozen=True, slots=True)
class Waited:
    """Stretches of time as columns: seconds, commits, and for each cause sessions waiting times seconds.

    stages: mean ms of the completing standby until written, flushed and replayed, None where none reported its lags.
    """

    seconds: Numbers
    commits: Numbers
    causes: dict[Cause, Numbers]
    stages: tuple[float, float, float] | None
    level: Level


def writing_commits(seen: WaitsSeen) -> float:
    """Commits that wrote, within a stretch of time: those alone wait.

    Each took a transaction id, which counts at once; pg_stat_database counts every commit, but up to a second late.
    Ids count subtransactions and rollbacks too: rollbacks are taken off by their share of all transactions.
    """
    kept = seen.commits / (seen.commits + seen.rollbacks) if seen.commits else 1.0
    return seen.transaction_ids * kept


def completing(seen: WaitsSeen, level: Level, k: int | None = None) -> tuple[float, float, float] | None:
    """Lags of the standby whose answer ends the wait at that level: the k-th for ANY k, the slowest of FIRST k.

    ANY 1 of all that stream where no names are set. None where too few report a lag.
    """
    quorum = read_standby_names(seen.standby_names) or Quorum(QuorumKind.ANY, 1, ("*",))
    wanted, last = k or quorum.k, STAGES.get(level, 2) - 1
    counting = [s for s in seen.standbys if s.state == "streaming" and quorum.counts(s.name)]
    counting.sort(key=lambda s: quorum.priority(s.name))
    lags = [s.lags for s in (counting[:wanted] if quorum.kind is QuorumKind.FIRST else counting)]
    known = sorted((lag for lag in lags if lag is not None), key=lambda lag: lag[last])
    return known[wanted - 1] if len(known) >= wanted else None


def level_of(seen: Sequence[WaitsSeen]) -> Level:
    """The level of the sessions that wait most for standbys, as far as it is visible: their role's or database's own.

    Else the default; `on` where that waits for no standby. What a session set by itself is nowhere to be seen.
    """
    own = {(role, database): level for one in seen for role, database, level in one.overrides}
    waiting: dict[str, int] = {}
    for group in (group for one in seen for group in one.groups if group.standby):
        keys = ((group.role, group.database), (group.role, ""), ("", group.database))
        level = next((own[key] for key in keys if key in own), seen[-1].level)
        waiting[level] = waiting.get(level, 0) + group.standby
    most = max(waiting, key=lambda level: waiting[level], default=seen[-1].level if seen else "on")
    return Level(most) if most in list(STAGES) else Level.ON


def waited(seen: Sequence[WaitsSeen], chosen: Callable[[SessionSums], bool] = lambda _: True) -> Waited:
    """The columns of these stretches, of the sessions chosen."""
    level = level_of(seen)
    stages = mean_stages(seen, level)
    seconds = np.array([s.seconds for s in seen])
    sums = {
        name: np.array([sum(getattr(g, name) for g in s.groups if chosen(g)) / s.polls for s in seen]) * seconds
        for name in ("standby", "flush", "lock")
    }
    shares = np.array([_shares(completing(s, level) or stages, level) for s in seen]).reshape(len(seen), 3)
    blocked = max(1, sum(s.blocked for s in seen))
    behind = sum(s.blocked_by_standby + s.blocked_by_flush for s in seen) / blocked
    causes = {Cause.FLUSH: sums["flush"], Cause.LOCKS: sums["lock"] * min(1.0, behind)}
    for i, cause in enumerate((Cause.NETWORK, Cause.STANDBY_FLUSH, Cause.REPLAY)):
        causes[cause] = sums["standby"] * shares[:, i]
    return Waited(seconds, np.array([writing_commits(s) for s in seen]), causes, stages, level)


def mean_stages(seen: Sequence[WaitsSeen], level: Level, k: int | None = None) -> tuple[float, float, float] | None:
    """Mean lags of the completing standby over the stretches that know them, weighted by commits."""
    known = [(lags, 1.0 + s.transaction_ids) for s in seen if (lags := completing(s, level, k)) is not None]
    if not known:
        return None
    total = sum(weight for _, weight in known)
    write, flush, replay = (sum(lags[i] * weight for lags, weight in known) / total for i in range(3))
    return write, flush, replay


def _shares(lags: tuple[float, float, float] | None, level: Level) -> tuple[float, float, float]:
    """Shares of a wait: until written, from there until flushed, from there until replayed, as far as it waits."""
    if lags is None:
        return 1.0, 0.0, 0.0
    write, flush, replay = lags
    parts = (write, flush - write, replay - flush)[: STAGES[level]]
    total = sum(parts)
    if total <= 0:
        return 1.0, 0.0, 0.0
    first, second, third = (*(part / total for part in parts), 0.0, 0.0)[:3]
    return first, second, third


def resampled(stretches: int, seed: int = 1) -> NDArray[np.int64] | None:
    """How often each stretch is taken in each resample, shape (RESAMPLES, stretches); None for fewer than FEWEST."""
    if stretches < FEWEST:
        return None
    generator, length = np.random.default_rng(seed), max(2, math.ceil(stretches ** (1 / 3)))
    starts = generator.integers(0, stretches, (RESAMPLES, math.ceil(stretches / length)))
    taken = ((starts[:, :, None] + np.arange(length)) % stretches).reshape(RESAMPLES, -1)[:, :stretches]
    return np.array([np.bincount(row, minlength=stretches) for row in taken])


def per_commit_ms(waiting_s: Numbers, commits: Numbers, counts: NDArray[np.int64] | None) -> Estimate:
    """Milliseconds waited per commit, of session-seconds and commits by stretch; infinite where nothing committed.

    >>> per_commit_ms(np.array([0.5, 0.5]), np.array([100.0, 150.0]), None).value
    4.0
    """
    value = _ratio(float(waiting_s.sum()), float(commits.sum()))
    if counts is None or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    over = counts @ commits
    ratios = 1000 * (counts @ waiting_s) / np.maximum(over, 1e-9)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def _ratio(waiting_s: float, commits: float) -> float:
    if commits <= 0:
        return math.inf if waiting_s > 0 else 0.0
    return 1000 * waiting_s / commits


def mean_waits_ms(seen: Sequence[WaitsSeen]) -> dict[Cause, float]:
    """Milliseconds per commit by cause, without intervals."""
    columns = waited(seen)
    return {cause: per_commit_ms(of, columns.commits, None).value for cause, of in columns.causes.items()}


@dataclass(frozen=True, slots=True)
class Observation:
    """What commits waited for: ms per commit by cause; total: what commits themselves wait, of it standby
    for standbys; commits a second.

    caveats: sentences about what the figures do not say.
    """

    seconds: float
    polls: int
    leader: str
    level: Level
    commits_per_s: Estimate
    causes: dict[Cause, Estimate]
    total: Estimate
    standby: Estimate
    longest_ms: float
    caveats: tuple[str, ...] = ()

    @property
    def first(self) -> Cause:
        """What commits themselves wait for most."""
        return max(OWN, key=lambda cause: self.causes[cause].value)


def observation(seen: Sequence[WaitsSeen]) -> Observation:
    """The result of these stretches of time, at least one."""
    columns = waited(seen)
    counts = resampled(len(seen))
    causes = {cause: per_commit_ms(columns.causes[cause], columns.commits, counts) for cause in Cause}
    standby = np.sum([columns.causes[cause] for cause in OWN[1:]], axis=0)
    rate = per_commit_ms(columns.commits / 1000, columns.seconds, counts)
    made = Observation(
        seconds=float(columns.seconds.sum()),
        polls=sum(s.polls for s in seen),
        leader=seen[-1].leader,
        level=columns.level,
        commits_per_s=rate,
        causes=causes,
        total=per_commit_ms(standby + columns.causes[Cause.FLUSH], columns.commits, counts),
        standby=per_commit_ms(standby, columns.commits, counts),
        longest_ms=max(s.longest_ms for s in seen),
    )
    return replace(made, caveats=_caveats(seen, columns, made))


def _caveats(seen: Sequence[WaitsSeen], columns: Waited, made: Observation) -> tuple[str, ...]:
    caveats = []
    ids, commits = sum(s.transaction_ids for s in seen), sum(s.commits for s in seen)
    rollbacks = sum(s.rollbacks for s in seen)
    if commits == 0 or ids == 0:
        caveats.append("no commit that wrote ended meanwhile: sessions that wait are shown, but no time per commit")
    elif ids > 1.1 * (commits + rollbacks):
        caveats.append("more transaction ids than transactions: subtransactions count as commits here")
    if rollbacks > 0.05 * (commits + rollbacks):
        share = rollbacks / (commits + rollbacks)
        caveats.append(f"{share:.0%} of transactions rolled back: how many of them wrote is estimated")
    if columns.stages is None and made.standby.value > 0:
        caveats.append("no standby of the quorum reported its lags: the wait for standbys is not split")
    if any(level == Level.OFF for level in {s.level for s in seen} | {o[2] for s in seen for o in s.overrides}):
        caveats.append("commits at `off` wait for nothing and count as commits")
    if len(seen) < FEWEST:
        caveats.append(f"fewer than {FEWEST} stretches of time: no intervals; let it run longer")
    leaders = dict.fromkeys(s.leader for s in seen)
    if len(leaders) > 1:
        caveats.append(f"the leader changed meanwhile: {', '.join(leaders)}")
    caveats += _standbys_gone(seen)
    return tuple(caveats)


def _standbys_gone(seen: Sequence[WaitsSeen]) -> list[str]:
    def streaming(one: WaitsSeen) -> set[str]:
        return {s.name for s in one.standbys if s.state == "streaming"}

    gone = set().union(*map(streaming, seen)) - streaming(seen[-1])
    return [f"standbys that streamed and went: {', '.join(sorted(gone))}"] if gone else []


def held_up_by(seen: Sequence[WaitsSeen]) -> tuple[StandbySeen, Cause] | None:
    """Where commits hang: the standby of the quorum that is least behind, and the stage it is behind at."""
    if not seen:
        return None
    last, level = seen[-1], level_of(seen)
    quorum = read_standby_names(last.standby_names)
    counting = [s for s in last.standbys if quorum is None or quorum.counts(s.name)]
    stages = (Cause.NETWORK, Cause.STANDBY_FLUSH, Cause.REPLAY)[: STAGES[level]]
    behind = sorted((s for s in counting if s.behind[len(stages) - 1] > 0), key=lambda s: s.behind[len(stages) - 1])
    for standby in behind:
        return standby, next(cause for i, cause in enumerate(stages) if standby.behind[i] > 0)
    return None
