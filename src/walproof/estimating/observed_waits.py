"""What sessions waited for, as polled → milliseconds a commit waits, by cause, who pays, what other levels would cost.

Little's law (1961): sessions waiting on average ÷ commits a second = seconds waited per commit, whatever the arrivals.
Intervals: circular block bootstrap over time (Politis & Romano 1992), since neighbouring polls see the same waits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, Quorum, QuorumKind, read_standby_names
from walproof.model.observed_waits import SessionSums, StandbySeen, WaitsSeen

Numbers = NDArray[np.float64]
SessionKey = tuple[str, str, str]
Key = TypeVar("Key")
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


Stages = tuple[float, ...]
"""Milliseconds until written, flushed and replayed, as far as a level waits; NaN where no standby reported it."""


@dataclass(frozen=True, slots=True)
class Waited:
    """Stretches of time as columns: seconds, commits, and for each cause sessions waiting times seconds.

    split: whether lags tell what standbys took. shares: of the commits, by the level they are made at; level: of those
    that wait most.
    """

    seconds: Numbers
    commits: Numbers
    causes: dict[Cause, Numbers]
    split: bool
    shares: dict[Level, float]
    level: Level

    @property
    def standby(self) -> Numbers:
        """Sessions waiting for standbys, times seconds."""
        return sum((self.causes[cause] for cause in OWN[1:]), np.zeros(len(self.seconds)))


def writing_commits(seen: Sequence[WaitsSeen]) -> Numbers:
    """Commits that wrote, by stretch of time: those alone wait.

    Each took a transaction id, which counts at once. Of ids picked at random it is asked how many committed; records
    without that have at most as many as pg_stat_database counts, reads among them. So has what uses subtransactions.
    """
    ids = np.array([
        s.transaction_ids * s.committed / (s.committed + s.aborted)
        if s.committed + s.aborted
        else min(s.transaction_ids, s.commits or s.transaction_ids)
        for s in seen
    ])  # fmt: skip
    return ids * (sum(s.commits for s in seen) / ids.sum()) if subtransactions(seen) else ids


def subtransactions(seen: Sequence[WaitsSeen]) -> bool:
    """Whether there are a tenth more transaction ids than transactions."""
    transactions = sum(s.commits + s.rollbacks for s in seen)
    return 0 < 1.1 * transactions < sum(s.transaction_ids for s in seen)


def completing(seen: WaitsSeen, level: Level, quorum: Quorum | None = None) -> Stages | None:
    """Lags of the standby whose answer ends the wait at that level: the k-th for ANY k, the slowest of FIRST k.

    By the quorum there is, or another one; ANY 1 of all that stream where no names are set. None where too few report.
    """
    quorum = quorum or read_standby_names(seen.standby_names) or Quorum(QuorumKind.ANY, 1, ("*",))
    counting = [s for s in seen.standbys if s.state == "streaming" and quorum.counts(s.name)]
    counting.sort(key=lambda s: quorum.priority(s.name))
    chosen = counting[: quorum.k] if quorum.kind is QuorumKind.FIRST else counting
    lags = [(s.write_ms, s.flush_ms, s.replay_ms)[: STAGES.get(level, 2)] for s in chosen]
    known = sorted(((lag[-1], lag) for lag in lags if lag[-1] is not None), key=lambda one: one[0])
    return tuple(np.array(known[quorum.k - 1][1], float).tolist()) if len(known) >= quorum.k else None


def levels_of(seen: Sequence[WaitsSeen]) -> tuple[dict[SessionKey, Level], dict[Level, float]]:
    """The level of each (database, role, application), and the shares of commits by level.

    A level is its role's or database's own, else the default.
    What it was seen to wait for has the last word, since no view shows what a session sets by itself: it waits for no
    standby where it is seen to wait a fifth as often as all that write, or less; where it does wait and no such level
    is known, that is `on`.
    """
    own = {(role, database): level for one in seen for role, database, level in one.overrides}
    groups = by(seen, lambda g: (g.database, g.role, g.application))
    standby, writing = (sum(getattr(one, name) for one in groups.values()) for name in ("standby", "writing"))
    levels: dict[SessionKey, Level] = {}
    begun: dict[Level, float] = {}
    for key, sums in groups.items():
        keys = ((key[1], key[0]), (key[1], ""), ("", key[0]), ("", ""))
        level = Level(next((own[k] for k in keys if k in own), seen[-1].level))
        expected = sums.writing * standby / writing if writing else 0.0
        waits = sums.standby > expected / 5 if max(expected, sums.standby) >= _ENOUGH else level.remote
        level = levels[key] = level if level.remote is waits else Level.ON if waits else Level.LOCAL
        begun[level] = begun.get(level, 0.0) + sums.begun
    whole = sum(begun.values())
    return levels, {level: one / whole for level, one in begun.items()} if whole else {}


_ENOUGH = 10
"""Polls that see, or ought to see, a group wait, from which on that decides."""


@dataclass(slots=True)
class Sums:
    """Of a group of sessions: polls that saw them write, the ages then in s, polls and session-seconds of waiting."""

    writing: int = 0
    writing_s: float = 0.0
    standby: int = 0
    standby_s: float = 0.0
    flush_s: float = 0.0

    @property
    def begun(self) -> float:
        """Proportional to transactions a second: how many were seen at work over how long they last (mean age)."""
        return self.writing**2 / self.writing_s if self.writing_s > 0 else 0.0


def by(seen: Sequence[WaitsSeen], key: Callable[[SessionSums], Key]) -> dict[Key, Sums]:
    """The sums of each group, in one pass."""
    groups: dict[Key, Sums] = {}
    for one in seen:
        seconds = one.seconds / one.polls
        for group in one.groups:
            if not (group.writing or group.standby or group.flush):
                continue
            sums = groups.setdefault(key(group), Sums())
            sums.writing += group.writing
            sums.writing_s += group.writing_s
            sums.standby += group.standby
            sums.standby_s += group.standby * seconds
            sums.flush_s += group.flush * seconds
    return groups


def waited(seen: Sequence[WaitsSeen]) -> Waited:
    """The columns of these stretches."""
    (levels, commits), seconds = levels_of(seen), np.array([s.seconds for s in seen])
    standby = {level: np.zeros(len(seen)) for level in STAGES}
    flush, lock = np.zeros(len(seen)), np.zeros(len(seen))
    for i, one in enumerate(seen):
        for group in one.groups:
            flush[i] += group.flush * one.seconds / one.polls
            lock[i] += group.lock * one.seconds / one.polls
            if group.standby:
                level = levels[group.database, group.role, group.application]
                standby[level if level.remote else Level.ON][i] += group.standby * one.seconds / one.polls
    blocked = max(1e-9, sum(s.blocked for s in seen))
    behind = sum(s.blocked_by_standby + s.blocked_by_flush for s in seen) / blocked
    causes = {cause: np.zeros(len(seen)) for cause in OWN}
    causes |= {Cause.FLUSH: flush, Cause.LOCKS: lock * behind}
    split = False
    for level, column in standby.items():
        mean = mean_stages(seen, level)
        split |= mean is not None and bool(column.any())
        shares = np.array([_shares(completing(s, level) or mean) for s in seen])
        for i, cause in enumerate(OWN[1:]):
            causes[cause] = causes[cause] + column * shares[:, i]
    most = max(STAGES, key=lambda level: standby[level].sum())
    default = Level(seen[-1].level)
    level = most if standby[most].any() else default if default.remote else Level.ON
    return Waited(seconds, writing_commits(seen), causes, split, commits or {level: 1.0}, level)


def mean_stages(seen: Sequence[WaitsSeen], level: Level, quorum: Quorum | None = None) -> Stages | None:
    """Mean lags of the completing standby over the stretches that know them, weighted by commits; None where none."""
    known = [(lags, 1.0 + s.transaction_ids) for s in seen if (lags := completing(s, level, quorum)) is not None]
    if not known:
        return None
    stages, weights = (np.array(one, float) for one in zip(*known, strict=True))
    weights = np.where(np.isnan(stages), 0.0, weights[:, None])
    mean = np.nansum(stages * weights, axis=0) / np.where(weights.any(axis=0), weights.sum(axis=0), np.nan)
    return tuple(mean.tolist())


def _shares(lags: Stages | None) -> Numbers:
    """Shares of a wait: until written, from there until flushed, from there until replayed, as far as it waits.

    All of it until written where a stage on the way is unknown.
    """
    parts = np.zeros(3)
    if lags is None or np.isnan(lags).any() or lags[-1] <= 0:
        parts[0] = 1.0
    else:
        # Means over different looks: a stage may seem to end before the one before it.
        parts[: len(lags)] = np.diff(np.maximum.accumulate(lags), prepend=0.0)
    shares: Numbers = parts / parts.sum()
    return shares


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
    waiting, ended = float(waiting_s.sum()), float(commits.sum())
    value = 1000 * waiting / ended if ended > 0 else math.inf if waiting > 0 else 0.0
    if counts is None or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(1000 * (counts @ waiting_s) / np.maximum(counts @ commits, 1e-9), (0.025, 0.975))
    return Estimate(value, float(low), float(high))


@dataclass(frozen=True, slots=True)
class Observation:
    """What commits waited for: ms per commit in all, of it for standbys, and by cause; commits a second.

    caveats: sentences about what the figures do not say. Its fields are the keys of `observe --json`.
    """

    seconds: float
    polls: int
    leader: str
    level: Level
    commits_per_s: Estimate
    commit_wait_ms: Estimate
    standby_wait_ms: Estimate
    causes_ms: dict[Cause, Estimate]
    longest_ms: float
    caveats: tuple[str, ...] = ()

    @property
    def first(self) -> Cause:
        """What commits themselves wait for most."""
        return max(OWN, key=lambda cause: self.causes_ms[cause].value)


def observation(seen: Sequence[WaitsSeen]) -> Observation:
    """The result of these stretches of time, at least one."""
    columns = waited(seen)
    counts = resampled(len(seen))
    causes = {cause: per_commit_ms(columns.causes[cause], columns.commits, counts) for cause in Cause}
    rate = per_commit_ms(columns.commits / 1000, columns.seconds, counts)
    made = Observation(
        seconds=float(columns.seconds.sum()),
        polls=sum(s.polls for s in seen),
        leader=seen[-1].leader,
        level=columns.level,
        commits_per_s=rate,
        commit_wait_ms=per_commit_ms(columns.standby + columns.causes[Cause.FLUSH], columns.commits, counts),
        standby_wait_ms=per_commit_ms(columns.standby, columns.commits, counts),
        causes_ms=causes,
        longest_ms=max(s.longest_ms for s in seen),
    )
    return replace(made, caveats=_caveats(seen, columns, made))


def _caveats(seen: Sequence[WaitsSeen], columns: Waited, made: Observation) -> tuple[str, ...]:
    caveats = []
    rollbacks, aborted = (sum(getattr(s, name) for s in seen) for name in ("rollbacks", "aborted"))
    if made.commits_per_s.value == 0:
        caveats.append("no commit that wrote ended meanwhile: sessions that wait are shown, but no time per commit")
    elif subtransactions(seen):
        caveats.append(
            "more transaction ids than transactions: subtransactions; a commit waits at least as long as shown"
        )
    if rollbacks and not aborted + sum(s.committed for s in seen):
        caveats.append("transactions rolled back: how many of them wrote is not known")
    if not columns.split and made.standby_wait_ms.value > 0:
        caveats.append("no standby of the quorum reported its lags: the wait for standbys is not split")
    if len(columns.shares) > 1:
        parts = (f"{share:.0%} at `{level}`" for level, share in sorted(columns.shares.items(), key=lambda p: -p[1]))
        caveats.append(f"commits are made at several levels: about {', '.join(parts)}")
    if any(level == Level.OFF for level in {s.level for s in seen} | {o[2] for s in seen for o in s.overrides}):
        caveats.append("commits at `off` wait for nothing and count as commits")
    if len(seen) < FEWEST:
        caveats.append(f"fewer than {FEWEST} stretches of time: no intervals; let it run longer")
    leaders = dict.fromkeys(s.leader for s in seen)
    if len(leaders) > 1:
        caveats.append(f"the leader changed meanwhile: {', '.join(leaders)}")
    streaming = [{standby.name for standby in one.standbys if standby.state == "streaming"} for one in seen]
    if gone := set().union(*streaming) - streaming[-1]:
        caveats.append(f"standbys that streamed and went: {', '.join(sorted(gone))}")
    return tuple(caveats)


def held_up_by(seen: Sequence[WaitsSeen]) -> tuple[StandbySeen, Cause] | None:
    """Where commits hang: the standby of the quorum that is least behind, and the stage it is behind at."""
    last, stages = seen[-1], OWN[1 : 1 + STAGES[waited(seen).level]]
    quorum = read_standby_names(last.standby_names)
    counting = [s for s in last.standbys if quorum is None or quorum.counts(s.name)]
    behind = [s for s in counting if s.behind[len(stages) - 1] > 0]
    if not behind:
        return None
    least = min(behind, key=lambda s: s.behind[len(stages) - 1])
    return least, next(cause for cause, bytes_behind in zip(stages, least.behind, strict=False) if bytes_behind > 0)
