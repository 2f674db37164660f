"""What sessions waited for, as polled → milliseconds a commit waits, by cause, who pays, what other levels would cost.

Little's law (1961): sessions waiting on average ÷ commits a second = seconds waited per commit, whatever the arrivals.
Intervals: circular block bootstrap over time (Politis & Romano 1992), since neighbouring polls see the same waits;
widened for few blocks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from walproof.model.estimate import Estimate
from walproof.model.guarantee import Level, Quorum, QuorumKind, read_standby_names
from walproof.model.observed_waits import SessionSums, StandbySeen, WaitsSeen

Numbers = NDArray[np.float64]
Key = TypeVar("Key")
RESAMPLES = 1000
FEWEST = 8
"""Stretches of time below which there is no interval."""
UNSEEN_MS = 0.005
"""Below which a part of a commit's wait is not named."""
_ENOUGH = 10
"""Polls that see, or ought to see, a group wait, from which on that decides about its level."""


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

    shares: of the commits, by the level they are made at; level: of those that wait most.
    """

    seconds: Numbers
    commits: Numbers
    causes: dict[Cause, Numbers]
    shares: dict[Level, float]
    level: Level

    @property
    def standby(self) -> Numbers:
        """Sessions waiting for standbys, times seconds."""
        return sum((self.causes[cause] for cause in OWN[1:]), np.zeros(len(self.seconds)))


def writing_commits(seen: Sequence[WaitsSeen]) -> Numbers:
    """Commits that wrote, by stretch of time: those alone wait.

    Each took a transaction id, which counts at once. Of ids picked at random it is asked how many committed; where none
    had ended, they are at most as many as pg_stat_database counts, reads among them. So has what uses subtransactions.
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
    if quorum.kind is QuorumKind.FIRST:
        counting = sorted(counting, key=lambda s: quorum.priority(s.name))[: quorum.k]
    lags = [tuple(np.array(s.lags_ms, float)[: STAGES.get(level, 2)].tolist()) for s in counting]
    known = sorted((lag for lag in lags if not math.isnan(lag[-1])), key=lambda lag: lag[-1])
    return known[quorum.k - 1] if len(known) >= quorum.k else None


def mean_stages(seen: Sequence[WaitsSeen], level: Level, quorum: Quorum | None = None) -> Stages | None:
    """Mean lags of the completing standby over the stretches that know them, weighted by commits; None where none."""
    known = [(lags, 1.0 + s.transaction_ids) for s in seen if (lags := completing(s, level, quorum)) is not None]
    if not known:
        return None
    stages, weights = (np.array(one, float) for one in zip(*known, strict=True))
    mean = np.ma.average(np.ma.masked_invalid(stages), axis=0, weights=np.broadcast_to(weights[:, None], stages.shape))
    return tuple(np.ma.filled(mean, np.nan).tolist())


def _shares(lags: Stages | None) -> Numbers:
    """Shares of a wait: until written, from there until flushed, from there until replayed, as far as it waits.

    All of it until written where a stage on the way is unknown.
    """
    if lags is None or np.isnan(lags).any() or lags[-1] <= 0:
        return np.array([1.0, 0.0, 0.0])
    # Means over different looks: a stage may seem to end before the one before it.
    parts = np.diff(np.maximum.accumulate(lags), prepend=0.0)
    shares: Numbers = np.pad(parts, (0, 3 - len(parts))) / parts.sum()
    return shares


@dataclass(slots=True)
class Sums:
    """Of a group of sessions: polls that saw them write, the ages then in s, polls and session-s of waiting, bytes."""

    writing: float = 0.0
    writing_s: float = 0.0
    standby: float = 0.0
    standby_s: float = 0.0
    flush_s: float = 0.0
    wal: float = 0.0

    @property
    def begun(self) -> float:
        """Proportional to transactions a second: how many were seen at work over how long they last (mean age)."""
        return self.writing**2 / self.writing_s if self.writing_s > 0 else 0.0

    @property
    def waiting_s(self) -> float:
        return self.standby_s + self.flush_s


def by(seen: Sequence[WaitsSeen], key: Callable[[SessionSums], Key]) -> dict[Key, Sums]:
    """The sums of each group, in one pass."""
    groups: dict[Key, Sums] = {}
    for one in seen:
        for group in one.groups:
            if group.writing or group.standby or group.flush or group.wal:
                sums = groups.setdefault(key(group), Sums())
                sums.writing += group.writing
                sums.writing_s += group.writing_s
                sums.standby += group.standby
                sums.standby_s += group.standby * one.poll_s
                sums.flush_s += group.flush * one.poll_s
                sums.wal += group.wal
    return groups


def levels_of(seen: Sequence[WaitsSeen]) -> tuple[dict[tuple[str, str, str], Level], dict[Level, float]]:
    """The level of each (database, role, application), and the shares of commits by level.

    A level is its role's or database's own, else the default. What it was seen to wait for has the last word, since no
    view shows what a session sets by itself: it waits for no standby where it is seen to wait a fifth as often as all
    that write, or less; where it does wait and no such level is known, that is `on`.
    """
    own = {(role, database): level for one in seen for role, database, level in one.overrides}
    groups = by(seen, lambda g: (g.database, g.role, g.application))
    standby, writing = (sum(getattr(one, name) for one in groups.values()) for name in ("standby", "writing"))
    levels, begun = dict[tuple[str, str, str], Level](), dict[Level, float]()
    for (database, role, application), sums in groups.items():
        keys = ((role, database), (role, ""), ("", database), ("", ""))
        level = next((own[k] for k in keys if k in own), seen[-1].level)
        expected = sums.writing * standby / writing if writing else 0.0
        waits = sums.standby > expected / 5 if max(expected, sums.standby) >= _ENOUGH else level.remote
        level = level if level.remote is waits else Level.ON if waits else Level.LOCAL
        levels[database, role, application] = level
        begun[level] = begun.get(level, 0.0) + sums.begun
    whole = sum(begun.values())
    return levels, {level: one / whole for level, one in begun.items() if one}


def waited(seen: Sequence[WaitsSeen]) -> Waited:
    """The columns of these stretches."""
    levels, commits = levels_of(seen)
    standby = {level: np.zeros(len(seen)) for level in STAGES}
    flush, lock = np.zeros((2, len(seen)))
    for i, one in enumerate(seen):
        for group in one.groups:
            flush[i] += group.flush * one.poll_s
            lock[i] += group.lock * one.poll_s
            if group.standby:
                level = levels[group.database, group.role, group.application]
                standby[level if level.remote else Level.ON][i] += group.standby * one.poll_s
    blocked = np.array([(s.blocked, sum(s.blockers.values()) + s.blocked_by_flush) for s in seen])
    overall = blocked[:, 1].sum() / max(1e-9, blocked[:, 0].sum())
    # Each stretch by its own looks, so that intervals know how far these differ.
    behind = np.divide(blocked[:, 1], blocked[:, 0], out=np.full(len(seen), overall), where=blocked[:, 0] > 0)
    stages = np.zeros((3, len(seen)))
    for level, column in standby.items():
        mean = mean_stages(seen, level)
        stages += column * np.transpose([_shares(completing(s, level) or mean) for s in seen])
    most = max(STAGES, key=lambda level: standby[level].sum())
    default = seen[-1].level if seen[-1].level.remote else Level.ON
    level = most if standby[most].any() else default
    causes = dict(zip(Cause, (flush, *stages, lock * behind), strict=True))
    seconds = np.array([s.seconds for s in seen])
    return Waited(seconds, writing_commits(seen), causes, commits or {level: 1.0}, level)


def resampled(stretches: int, seed: int = 1) -> NDArray[np.int64] | None:
    """How often each stretch is taken in each resample, shape (RESAMPLES, stretches); None for fewer than FEWEST."""
    if stretches < FEWEST:
        return None
    generator, length = np.random.default_rng(seed), _block(stretches)
    starts = generator.integers(0, stretches, (RESAMPLES, math.ceil(stretches / length)))
    taken = ((starts[:, :, None] + np.arange(length)) % stretches).reshape(RESAMPLES, -1)[:, :stretches]
    return np.array([np.bincount(row, minlength=stretches) for row in taken])


def _block(stretches: int) -> int:
    return max(2, math.ceil(math.cbrt(stretches)))


def bounds(value: float, resamples: Numbers, stretches: int) -> tuple[float, float]:
    """The 95 % interval of what is at least 0, as much wider than the resamples' as Student's t is for so many blocks.

    A bootstrap knows no more than its few blocks, which differ by too little: of intervals of 20 stretches it alone
    made, 87 % held the truth where 95 % ought to.
    """
    low, high = (float(q) for q in np.quantile(resamples, (0.025, 0.975)))
    wider = float(special.stdtrit(stretches / _block(stretches) - 1, 0.975)) / 1.96
    return max(0.0, value - wider * (value - low)), value + wider * (high - value)


def per_commit_ms(waiting_s: Numbers, commits: Numbers, counts: NDArray[np.int64] | None) -> Estimate:
    """Milliseconds waited per commit, of session-seconds and commits by stretch; infinite where nothing committed.

    >>> per_commit_ms(np.array([0.5, 0.5]), np.array([100.0, 150.0]), None).value
    4.0
    """
    waiting, ended = float(waiting_s.sum()), float(commits.sum())
    value = 1000 * waiting / ended if ended > 0 else math.inf if waiting > 0 else 0.0
    if counts is None or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    resamples = 1000 * (counts @ waiting_s) / np.maximum(counts @ commits, 1e-9)
    return Estimate(value, *bounds(value, resamples, len(commits)))


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
    def longest_first(self) -> list[Cause]:
        """What commits themselves wait for, that most first."""
        return sorted(OWN, key=lambda cause: -self.causes_ms[cause].value)

    @property
    def parts(self) -> str:
        """The same as a list in words."""
        named = ((self.causes_ms[cause].value, cause) for cause in self.longest_first)
        return ", ".join(f"{ms:.2f} ms for {cause}" for ms, cause in named if ms >= UNSEEN_MS)


def observation(seen: Sequence[WaitsSeen]) -> Observation:
    """The result of these stretches of time, at least one."""
    columns = waited(seen)
    counts, standby = resampled(len(seen)), columns.standby
    made = Observation(
        seconds=float(columns.seconds.sum()),
        polls=sum(s.polls for s in seen),
        leader=seen[-1].leader,
        level=columns.level,
        commits_per_s=per_commit_ms(columns.commits / 1000, columns.seconds, counts),
        commit_wait_ms=per_commit_ms(standby + columns.causes[Cause.FLUSH], columns.commits, counts),
        standby_wait_ms=per_commit_ms(standby, columns.commits, counts),
        causes_ms={cause: per_commit_ms(one, columns.commits, counts) for cause, one in columns.causes.items()},
        longest_ms=max(s.longest_ms for s in seen),
    )
    return replace(made, caveats=_caveats(seen, columns, made))


def _caveats(seen: Sequence[WaitsSeen], columns: Waited, made: Observation) -> tuple[str, ...]:
    none_ended = made.commits_per_s.value == 0
    rolled_back, known = sum(s.rollbacks for s in seen), sum(s.committed + s.aborted for s in seen)
    shares = sorted(columns.shares.items(), key=lambda pair: -pair[1])
    leaders = dict.fromkeys(s.leader for s in seen)
    streaming = [{standby.name for standby in one.standbys if standby.state == "streaming"} for one in seen]
    gone = set().union(*streaming) - streaming[-1]
    levels = {s.level for s in seen} | {level for s in seen for _, _, level in s.overrides}
    said = {
        "no commit that wrote ended meanwhile: sessions that wait are shown, but no time per commit": none_ended,
        "more transaction ids than transactions: subtransactions; a commit waits at least as long as shown": (
            not none_ended and subtransactions(seen)
        ),
        "transactions rolled back: how many of them wrote is not known": rolled_back and not known,
        "no standby of the quorum reported its lags: the wait for standbys is not split": (
            mean_stages(seen, made.level) is None and made.standby_wait_ms.value > 0
        ),
        "commits are made at several levels: about "
        + ", ".join(f"{share:.0%} at `{level}`" for level, share in shares): len(shares) > 1,
        "commits at `off` wait for nothing and count as commits": Level.OFF in levels,
        f"fewer than {FEWEST} stretches of time: no intervals; let it run longer": len(seen) < FEWEST,
        f"the leader changed meanwhile: {', '.join(leaders)}": len(leaders) > 1,
        f"standbys that streamed and went: {', '.join(sorted(gone))}": gone,
    }
    return tuple(sentence for sentence, holds in said.items() if holds)


def held_up_by(seen: WaitsSeen, level: Level) -> tuple[StandbySeen, Cause] | None:
    """Where commits at that level hang: the standby of the quorum that is least behind, and at which stage."""
    quorum, last = read_standby_names(seen.standby_names), STAGES[level] - 1
    counting = [s for s in seen.standbys if quorum is None or quorum.counts(s.name)]
    least = min((s for s in counting if s.behind[last] > 0), key=lambda s: s.behind[last], default=None)
    if least is None:
        return None
    return least, next(cause for cause, behind in zip(OWN[1:], least.behind, strict=True) if behind > 0)
