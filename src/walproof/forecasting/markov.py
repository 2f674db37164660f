"""The exact answer of a small case: members that fail independently, exponential repairs, takeovers in no time.

A continuous-time Markov chain, its stationary distribution by sparse linear algebra (Trivedi 2001, ch. 8). The rules of
docs/forecast.md are written here a second time, one state and one event at a time: the simulation must agree.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from walproof.errors import UsageError
from walproof.forecasting.episodes import Floats
from walproof.forecasting.failure_rates import YEAR_S
from walproof.forecasting.topology import Configuration
from walproof.model.guarantee import QuorumKind

Members = frozenset[int]


@dataclass(frozen=True, slots=True)
class Chain:
    """Identical members, each with a voter of the DCS: failures a year that keep or lose the disk; mean repair, s.

    `most`: failures of one member at a time that are distinguished; further ones are left out.
    """

    members: int
    kept_per_year: float
    lost_per_year: float
    repair_s: float
    most: int = 3


@dataclass(frozen=True, slots=True)
class Exact:
    """Share of time without service; a year: takeovers, and promotions of a member that lacks acknowledged commits."""

    unavailable: float
    takeovers: float
    lacking: float


@dataclass(frozen=True, slots=True)
class _Now:
    counts: tuple[int, ...]
    leader: int | None
    full: Members
    on: bool

    @property
    def up(self) -> Members:
        return frozenset(i for i, count in enumerate(self.counts) if count == 0)


@dataclass(frozen=True, slots=True)
class _After:
    state: _Now
    took_over: bool = False
    lacking: bool = False


def exact(chain: Chain, what: Configuration) -> Exact:
    """Solve the chain; a standby that lacks commits is promoted at once when no member with all of them can come back,
    and never before. Only for commits that wait for standbys; UsageError otherwise.
    """
    if not what.waits:
        raise UsageError(f"the closed form is of synchronous replication, not of {what.text}")
    first = _Now((0,) * chain.members, 0, frozenset(range(chain.members)), True)
    index, queue = {first: 0}, deque([first])
    entries: list[tuple[int, int, float, _After]] = []
    while queue:
        now = queue.popleft()
        for rate, after in _moves(chain, what, now):
            if after.state not in index:
                index[after.state] = len(index)
                queue.append(after.state)
            entries.append((index[now], index[after.state], rate, after))
    share = _stationary(len(index), entries)
    off = sum(share[place] for state, place in index.items() if not state.on)
    takeovers = sum(share[i] * rate for i, _, rate, after in entries if after.took_over)
    lacking = sum(share[i] * rate for i, _, rate, after in entries if after.lacking)
    return Exact(float(off), float(takeovers * YEAR_S), float(lacking * YEAR_S))


def _stationary(size: int, entries: list[tuple[int, int, float, _After]]) -> Floats:
    rows = [j for i, j, _, _ in entries] + [i for i, _, _, _ in entries]
    columns = [i for i, _, _, _ in entries] * 2
    values = [rate for *_, rate, _ in entries] + [-rate for *_, rate, _ in entries]
    flow = sparse.coo_matrix((values, (rows, columns)), shape=(size, size)).tolil()
    flow[0, :] = 1.0
    right = np.zeros(size)
    right[0] = 1.0
    return np.asarray(spsolve(flow.tocsc(), right))


def _moves(chain: Chain, what: Configuration, now: _Now) -> list[tuple[float, _After]]:
    moves = []
    for member, count in enumerate(now.counts):
        if count < chain.most:
            for rate, lost in ((chain.kept_per_year, False), (chain.lost_per_year, True)):
                if rate > 0:
                    moves.append((rate / YEAR_S, _settled(_failed(what, now, member, lost), what)))
        if count:
            moves.append((count / chain.repair_s, _settled(_repaired(what, now, member), what)))
    return moves


def _with(now: _Now, member: int, change: int) -> _Now:
    counts = tuple(count + change * (i == member) for i, count in enumerate(now.counts))
    return replace(now, counts=counts)


def _serves(what: Configuration, now: _Now, leader: int | None) -> bool:
    """Whether commits can be acknowledged: a leader, the DCS's majority, and enough standbys where that is required."""
    if leader is None or 2 * len(now.up) <= len(now.counts):
        return False
    return not what.strict or len(now.up - {leader}) >= what.k


def _failed(what: Configuration, before: _Now, member: int, lost: bool) -> _After:
    now = _with(before, member, +1)
    left = before.full - {member} if lost else before.full
    standbys = before.up - {before.leader} if before.leader is not None else before.up
    if not before.on:
        leader = None if member == before.leader else before.leader
        return _After(_while_off(what, replace(now, leader=leader, full=left)))
    if member != before.leader:
        on = _serves(what, now, before.leader)
        # Commits that were acknowledged until now waited for what.k of the standbys there were.
        sure = member in standbys and 0 < len(standbys) <= what.k and not lost and not on
        return _After(replace(now, on=on, full=now.up | {member} if sure else now.up))
    # One failure takes one member: whoever was waited for is still there.
    successors = standbys if what.quorum_kind is QuorumKind.ANY else frozenset(sorted(standbys)[: what.k])
    if successors and 2 * len(now.up) > len(now.counts):
        new = min(successors)
        on = _serves(what, now, new)
        return _After(replace(now, leader=new, on=on, full=now.up), took_over=True)
    old = frozenset() if lost else frozenset({member})
    return _After(replace(now, leader=None, on=False, full=old | (standbys if successors else frozenset())))


def _repaired(what: Configuration, before: _Now, member: int) -> _After:
    now = _with(before, member, -1)
    if before.on:
        on = _serves(what, now, before.leader)
        return _After(replace(now, on=on, full=now.up if on else before.full))
    return _After(_while_off(what, now))


def _while_off(what: Configuration, now: _Now) -> _Now:
    majority = 2 * len(now.up) > len(now.counts)
    able = now.full & now.up
    leader = min(able) if now.leader is None and able and majority else now.leader
    on = _serves(what, now, leader)
    full = now.full
    if leader is not None and majority:
        full = now.up if on else full | now.up
    return replace(now, leader=leader, on=on, full=full)


def _settled(after: _After, what: Configuration) -> _After:
    """Somebody who lacks commits is promoted at once where nobody with all of them can come back."""
    now = after.state
    if now.on or now.leader is not None or now.full or not now.up:
        return after
    new = min(now.up)
    enough = not what.strict or len(now.up - {new}) >= what.k
    return _After(replace(now, leader=new, on=enough, full=now.up), after.took_over, lacking=True)
