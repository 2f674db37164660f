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
        s.transaction_ids * s.committed / ended if (ended := s.committed + s.aborted)
        else min(s.transaction_ids, s.commits or s.transaction_ids) for s in seen
    ])  # fmt: skip
    return ids * (sum(s.commits for s in seen) / ids.sum()) if subtransactions(seen) else ids


def subtransactions(seen: Sequence[WaitsSeen]) -> bool:
    """Whether there are surely a tenth more transaction ids than transactions."""
    transactions = sum(s.commits + s.rollbacks for s in seen)
    # Backends report transactions up to a second late: of a short observation, part of them is of before or missing.
    return 0 < 1.1 * transactions < sum(s.transaction_ids for s in seen) * (1 - 1 / sum(s.seconds for s in seen))


def counting(seen: WaitsSeen, quorum: Quorum | None = None) -> tuple[int, list[StandbySeen]]:
    """How many standbys a commit waits for, and those it may be: that stream and are named, of FIRST k the first k.

    By the quorum there is, or another one; ANY 1 of all that stream where no names are set.
    """
    quorum = quorum or read_standby_names(seen.standby_names) or Quorum(QuorumKind.ANY, 1, ("*",))
    named = [s for s in seen.standbys if s.state == "streaming" and quorum.counts(s.name)]
    first = sorted(named, key=lambda s: quorum.priority(s.name))[: quorum.k]
    return quorum.k, first if quorum.kind is QuorumKind.FIRST else named


def completing(seen: WaitsSeen, level: Level, quorum: Quorum | None = None) -> Stages | None:
    """Lags of the standby whose answer ends the wait at that level: the k-th for ANY k, the slowest of FIRST k.

    None where too few report.
    """
    k, standbys = counting(seen, quorum)
    lags = [tuple(np.array(s.lags_ms, float)[: STAGES.get(level, 2)].tolist()) for s in standbys]
    known = sorted((lag for lag in lags if not math.isnan(lag[-1])), key=lambda lag: lag[-1])
    return known[k - 1] if len(known) >= k else None


def held_up_by(seen: WaitsSeen, level: Level) -> tuple[StandbySeen, Cause] | None:
    """The standby that has yet to complete the quorum at that level, and the stage it is behind at; None: not known."""
    last = STAGES[level] - 1
    k, standbys = counting(seen)
    nearest = sorted(standbys, key=lambda s: s.behind[last])
    if len(nearest) < k or not nearest[k - 1].behind[last]:
        return None
    return nearest[k - 1], next(c for c, behind in zip(OWN[1:], nearest[k - 1].behind, strict=True) if behind)


def mean_stages(seen: Sequence[WaitsSeen], level: Level, quorum: Quorum | None = None) -> Stages | None:
    """Mean lags of the completing standby over the stretches that know them, weighted by commits; None where none."""
    known = [(lags, 1.0 + s.transaction_ids) for s in seen if (lags := completing(s, level, quorum)) is not None]
    if not known:
        return None
    stages, weights = (np.array(one, float) for one in zip(*known, strict=True))
    mean = np.ma.average(np.ma.masked_invalid(stages), axis=0, weights=np.broadcast_to(weights[:, None], stages.shape))
    return tuple(np.ma.filled(mean, np.nan).tolist())


def _split(lags: Stages | None) -> bool:
    return lags is not None and not np.isnan(lags).any()


def _shares(seen: WaitsSeen, level: Level, mean: Stages | None) -> Numbers:
    """Shares of a wait: until written, from there until flushed, from there until replayed, as far as it waits.

    By lags, else by their mean. Where a stage is unknown, or a wait older than the stretch (without a reply lags are
    of before), all of it where the standby is behind; until written, where that is not known either.
    """
    lags = completing(seen, level) or mean
    held = held_up_by(seen, level) if seen.stuck or not _split(lags) else None
    if held or lags is None or not _split(lags) or lags[-1] <= 0:
        return np.array([cause is (held[1] if held else Cause.NETWORK) for cause in OWN[1:]], float)
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
    that write, or less, both for the time they write and for the transactions they begin; where it does wait and no
    such level is known, that is `on`.
    """
    own = {(role, database): level for one in seen for role, database, level in one.overrides}
    groups = by(seen, lambda g: (g.database, g.role, g.application))
    standby, *every = (sum(getattr(one, name) for one in groups.values()) for name in ("standby", "writing", "begun"))
    levels, begun = dict[tuple[str, str, str], Level](), dict[Level, float]()
    for (database, role, application), sums in groups.items():
        keys = ((role, database), (role, ""), ("", database), ("", ""))
        level = next((own[k] for k in keys if k in own), seen[-1].level)
        expected = standby * min(sums.writing / (every[0] or 1.0), sums.begun / (every[1] or 1.0))
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
    blocked, behind = np.array([(s.blocked, sum(s.blockers.values()) + s.blocked_by_flush) for s in seen]).T
    # Each stretch by its own looks, so that intervals know how far these differ.
    overall = np.full(len(seen), behind.sum() / max(1e-9, blocked.sum()))
    behind = np.divide(behind, blocked, out=overall, where=blocked > 0)
    stages = np.zeros((3, len(seen)))
    for level, column in standby.items():
        mean = mean_stages(seen, level)
        stages += column * np.transpose([_shares(s, level, mean) for s in seen])
    default = seen[-1].level if seen[-1].level.remote else Level.ON
    level = max((default, *STAGES), key=lambda level: standby[level].sum())
    causes = dict(zip(Cause, (flush, *stages, lock * behind), strict=True))
    seconds = np.array([s.seconds for s in seen])
    return Waited(seconds, writing_commits(seen), causes, commits or {level: 1.0}, level)


def resampled(stretches: int, seed: int = 1) -> NDArray[np.int64]:
    """How often each stretch is taken: once in the first row, then in each of RESAMPLES; none for fewer than FEWEST."""
    once, length = np.ones((1, stretches), int), _block(stretches)
    if stretches < FEWEST:
        return once
    starts = np.random.default_rng(seed).integers(0, stretches, (RESAMPLES, math.ceil(stretches / length)))
    taken = ((starts[:, :, None] + np.arange(length)) % stretches).reshape(RESAMPLES, -1)[:, :stretches]
    return np.vstack([once, *(np.bincount(row, minlength=stretches) for row in taken)])


def _block(stretches: int) -> int:
    return max(2, math.isqrt(stretches))


def estimated(values: Numbers, stretches: int, sighting: float = 0.0, model: float = 0.0) -> Estimate:
    """The first value, at least 0, with the 95 % interval of its resamples, the others, and an error of the model's.

    A bootstrap knows no more than its few blocks, which differ by too little: of intervals of 20 stretches it alone
    made, 87 % held the truth where 95 % ought to. So it is widened as Student's t is for so many blocks. Nor does it
    know what was not seen: where fewer than ten sessions (each adds `sighting`) were seen waiting, the interval is at
    least the exact one of a Poisson count (Garwood 1936).
    """
    value = float(values[0])
    if len(values) == 1 or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan)
    wider = float(special.stdtrit(stretches / _block(stretches) - 1, 0.975)) / 1.96
    low, high = (value + wider * (float(q) - value) for q in np.nanquantile(values[1:], (0.025, 0.975)))
    if value < _ENOUGH * sighting:
        seen = value / sighting
        low = min(low, sighting * float(special.gammaincinv(seen, 0.025)) if seen else 0.0)
        high = max(high, sighting * float(special.gammaincinv(seen + 1, 0.975)))
    low = value - math.hypot(value - max(0.0, low), model)
    return Estimate(value, max(0.0, low), value + math.hypot(high - value, model))


def per_commit_ms(waiting_s: Numbers, commits: Numbers, counts: NDArray[np.int64], sighting_s: float = 0.0) -> Estimate:
    """Milliseconds waited per commit, of session-seconds and commits by stretch; infinite where nothing committed.

    sighting_s: session-seconds that one session seen waiting stands for.

    >>> per_commit_ms(np.array([0.5, 0.5]), np.array([100.0, 150.0]), resampled(2)).value
    4.0
    """
    waiting, ended = counts @ waiting_s, counts @ commits
    if not ended[0]:
        return Estimate(math.inf if waiting[0] else 0.0, math.nan, math.nan)
    return estimated(1000 * waiting / np.maximum(ended, 1e-9), len(commits), 1000 * sighting_s / float(ended[0]))


@dataclass(frozen=True, slots=True)
class Observation:
    """What commits waited for: ms per commit in all, of it for standbys, by cause, that most first; commits a second.

    longest_ms: age of the oldest statement seen to wait for a standby; late_ms: 1 % of commits still wait at that age.
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
    late_ms: Estimate
    caveats: tuple[str, ...] = ()

    @property
    def longest_first(self) -> list[Cause]:
        """What commits themselves wait for, that most first."""
        return [cause for cause in self.causes_ms if cause in OWN]

    @property
    def parts(self) -> str:
        """The same as a list in words."""
        named = ((self.causes_ms[cause].value, cause) for cause in self.longest_first)
        return ", ".join(f"{ms:.2f} ms for {cause}" for ms, cause in named if ms >= UNSEEN_MS)


def observation(seen: Sequence[WaitsSeen]) -> Observation:
    """The result of these stretches of time, at least one."""
    columns = waited(seen)
    counts, standby = resampled(len(seen)), columns.standby
    seconds, polls = float(columns.seconds.sum()), sum(s.polls for s in seen)

    ended = columns.commits * (not _hang(seen))

    def ms(waiting_s: Numbers) -> Estimate:
        return per_commit_ms(waiting_s, ended, counts, seconds / max(1, polls))

    made = Observation(
        seconds=seconds, polls=polls, leader=seen[-1].leader, level=columns.level,
        commits_per_s=per_commit_ms(columns.commits / 1000, columns.seconds, counts),
        commit_wait_ms=ms(standby + columns.causes[Cause.FLUSH]), standby_wait_ms=ms(standby),
        causes_ms={c: ms(one) for c, one in sorted(columns.causes.items(), key=lambda pair: -pair[1].sum())},
        longest_ms=max(s.longest_ms for s in seen), late_ms=_late_ms(seen, columns.commits, counts),
    )  # fmt: skip
    return replace(made, caveats=_caveats(seen, columns, made))


def _hang(seen: Sequence[WaitsSeen]) -> bool:
    """Whether a commit waits for standbys all the while: then so do those after it, whatever background workers commit.

    Standbys release commits in the order of their WAL (SyncRepWakeQueue, syncrep.c).
    """
    lasted = np.cumsum([s.seconds for s in seen]) - [2 * s.poll_s for s in seen]
    return sum(s.polls for s in seen) >= _ENOUGH and bool(np.all([s.longest_ms / 1000 for s in seen] >= lasted))


def _late_ms(seen: Sequence[WaitsSeen], commits: Numbers, counts: NDArray[np.int64]) -> Estimate:
    """The age in ms at which 1 % of commits still wait; NaN where fewer than five sightings would say so.

    At a random moment, the sessions that wait and are x to x + h old are on average h times commits a second times the
    share of commits that still wait at that age, whatever the load: that long waits are seen more often is in it.
    Ages by quarters of a power of 2; shares fall with age, so that each is at least all later ones.
    """
    buckets = {bucket for s in seen for bucket in s.ages} or {0}
    ages = np.arange(min(buckets), max(buckets) + 2)
    edges_ms, looked = 2 ** (np.append(ages, ages[-1] + 1) / 4), commits / [s.poll_s for s in seen]
    sighted = np.array([[s.ages.get(int(age), 0.0) for age in ages] for s in seen])
    shares = 1000 * (counts @ sighted) / np.maximum(np.outer(counts @ looked, np.diff(edges_ms)), 1e-9)
    logs = np.log(np.maximum(np.maximum.accumulate(shares[:, ::-1], axis=1), 1e-9))
    middles = np.log((edges_ms[1:] + edges_ms[:-1]) / 2)[::-1]
    ms = np.exp([np.interp(math.log(0.01), one, middles, right=math.nan) for one in logs])
    enough = 0.01 * float(looked.sum()) * ms[0] * (2**0.25 - 1) >= 1000 * 5
    return estimated(ms if enough else ms[:1] * math.nan, len(seen))


def _caveats(seen: Sequence[WaitsSeen], columns: Waited, made: Observation) -> tuple[str, ...]:
    none_ended = made.commits_per_s.value == 0
    rolled_back, known = sum(s.rollbacks for s in seen), sum(s.committed + s.aborted for s in seen)
    shares = sorted(columns.shares.items(), key=lambda pair: -pair[1])
    leaders = dict.fromkeys(s.leader for s in seen)
    streaming = [{standby.name for standby in one.standbys if standby.state == "streaming"} for one in seen]
    gone, came = set().union(*streaming) - streaming[-1], streaming[-1] - streaming[0]
    held = held_up_by(seen[-1], made.level)
    levels = {s.level for s in seen} | {level for s in seen for _, _, level in s.overrides}
    said = {
        "no commit that wrote ended meanwhile: sessions that wait are shown, but no time per commit": none_ended,
        "more transaction ids than transactions: subtransactions; a commit waits at least as long as shown": (
            not none_ended and subtransactions(seen)
        ),
        "transactions rolled back: how many of them wrote is not known": rolled_back and not known,
        "no standby of the quorum reported its lags: the wait for standbys is not split by them": (
            not _split(mean_stages(seen, made.level)) and made.standby_wait_ms.value > 0
        ),
        "commits are made at several levels: about "
        + ", ".join(f"{100 * share:.0f} % at {level}" for level, share in shares): len(shares) > 1,
        "commits at off wait for nothing and count as commits": Level.OFF in levels,
        f"fewer than {FEWEST} stretches of time: no intervals; let it run longer": len(seen) < FEWEST,
        f"the leader changed meanwhile: {', '.join(leaders)}": len(leaders) > 1,
        f"standbys that streamed and went: {', '.join(sorted(gone))}": gone,
        f"standbys that came: {', '.join(sorted(came))}": came,
        f"a statement that waits for a standby began {seen[-1].longest_ms / 1000:.1f} s ago"
        + (f": {held[0].name} has yet to confirm it ({held[1]})" if held else ""): (
            math.isfinite(made.commit_wait_ms.value) and all(s.stuck for s in seen[-2:])
        ),
    }
    return tuple(sentence for sentence, holds in said.items() if holds)
