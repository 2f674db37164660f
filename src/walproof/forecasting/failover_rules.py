"""Who leads, who has every acknowledged commit, when there is no service: one step for many episodes at once. Pure.

The rules are those of docs/forecast.md; the tests state them again, for one state at a time (a Markov chain)."""

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from walproof.forecasting.episodes import Changes, Floats, Ints
from walproof.forecasting.topology import Configuration, Topology
from walproof.model.guarantee import Level, QuorumKind

Bools = NDArray[np.bool_]
NEVER = np.inf
NOBODY = 99
"""More members than there are: no number of them is sure to hold every commit."""
COUNT = np.array([bin(mask).count("1") for mask in range(1 << 11)], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a configuration makes of a failure, for lookups by mask."""

    members: int
    majority: int
    waits: bool
    any_k: bool
    k: int
    strict: bool
    leader_unflushed: bool
    standby_unflushed: bool
    decide_s: float
    force_s: float
    listed: Ints
    """listed[k, mask]: the k members of the mask that are written first: FIRST k names them in that order."""
    preferred: Ints
    """preferred[order, mask]: the member of the mask that comes first in that order."""
    orders: Ints
    """The orders of preference that are possible: those in which a home of the leader comes first."""


@cache
def _preferred(members: int) -> Ints:
    """Of every order of so many members and every mask of them: who comes first, 0 where the mask is empty."""
    orders = np.array(list(itertools.permutations(range(members))), dtype=np.int64)
    first = np.zeros((len(orders), 1 << members), dtype=np.int64)
    for place in reversed(range(members)):
        bit = 1 << orders[:, place, None]
        first = np.where(np.arange(1 << members) & bit, bit, first)
    return first


@cache
def _listed(members: int) -> Ints:
    """By k and mask of so many members: the k of the mask that are written first."""
    listed = np.zeros((members + 1, 1 << members), dtype=np.int64)
    for k, mask in itertools.product(range(members + 1), range(1 << members)):
        listed[k, mask] = sum([1 << bit for bit in range(members) if mask >> bit & 1][:k])
    return listed


def rules_of(where: Topology, what: Configuration, decide_s: float, force_s: float) -> Rules:
    members = len(where.members)
    preferred = _preferred(members)
    home = where.home or (1 << members) - 1
    return Rules(
        members=members,
        majority=where.majority,
        waits=what.waits,
        any_k=what.quorum_kind is QuorumKind.ANY,
        k=what.k if what.waits else 0,
        strict=what.strict and what.waits,
        leader_unflushed=what.level is Level.OFF,
        standby_unflushed=what.level is Level.REMOTE_WRITE,
        decide_s=decide_s,
        force_s=force_s,
        listed=_listed(members),
        preferred=preferred,
        orders=np.flatnonzero(preferred[:, -1] & home),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change in many episodes: arrays of one length; `dcs`: it has its majority after it."""

    at: Floats
    up: Ints
    dcs: Bools
    hit: Ints
    lost: Bools
    unflushed: Bools
    crash: Bools
    takeover_s: Floats
    stall_s: Floats


@dataclass(slots=True, kw_only=True)
class State:
    """Where many episodes stand. Masks of members: each of `full` has every acknowledged commit, one of any `need` of
    the `pool`; `near` streamed until service ended, `volatile` lost what was not flushed. `leader`: one bit, or 0.
    """

    at: Floats
    up: Ints
    leader: Ints
    full: Ints
    pool: Ints
    need: Ints
    near: Ints
    volatile: Ints
    order: Ints
    """In which order of preference members lead."""
    on: Bools
    ready: Floats
    force_at: Floats
    out_s: Floats
    alone_at: Floats
    """Since when the leader has served with no standby up; NEVER: it does not."""
    stopped_at: Floats
    alone_s: Floats
    """Seconds of service of which a promoted member has nothing."""
    fell: Ints
    """The leader that was lost last."""
    taken_at: Floats
    """Since when another member than that leader may lead: its lease must end, however early it is back."""
    stalled: Floats
    """Until when commits wait for standbys that are not yet known to be gone."""
    awaited: Ints
    """Those standbys: once back, or once others are enough, no commit waits any more."""
    dcs: Bools
    counted: Bools
    """Whether the takeover from the leader that was lost last has been counted."""

    @property
    def served_from(self) -> Floats:
        """When commits are acknowledged again, if nothing else happens."""
        return np.maximum(self.ready, self.stalled)

    def rows(self, count: int) -> "State":
        """The first so many episodes (views: changes reach this state)."""
        return State(**{name: getattr(self, name)[:count] for name in self.__slots__})

    def store(self, other: "State") -> None:
        """Write those rows back."""
        for name in self.__slots__:
            getattr(self, name)[: len(other.at)] = getattr(other, name)


def start(begins: Floats, order: Ints, rules: Rules) -> State:
    """Every member is well; the first in each episode's order of preference leads."""
    n, every_member = len(begins), (1 << rules.members) - 1

    def same(number: int) -> Ints:
        return np.full(n, number, dtype=np.int64)

    leader = rules.preferred[order, every_member]
    return State(
        at=begins.copy(),
        up=same(every_member),
        leader=leader,
        full=same(every_member) if rules.waits else leader.copy(),
        pool=same(0),
        need=same(NOBODY),
        near=same(every_member),
        volatile=same(0),
        order=order,
        on=np.ones(n, dtype=bool),
        ready=np.full(n, -NEVER),
        force_at=np.full(n, NEVER),
        out_s=np.zeros(n),
        alone_at=np.full(n, NEVER),
        stopped_at=begins.copy(),
        alone_s=np.zeros(n),
        fell=same(0),
        taken_at=np.full(n, -NEVER),
        stalled=np.full(n, -NEVER),
        awaited=same(0),
        dcs=np.ones(n, dtype=bool),
        counted=np.zeros(n, dtype=bool),
    )


def _preferred_of(state: State, rules: Rules, *choices: Ints) -> Ints:
    """The member that leads: the preferred one of the first choice that is not empty."""
    mask = choices[-1]
    for choice in reversed(choices[:-1]):
        mask = np.where(choice != 0, choice, mask)
    return np.asarray(rules.preferred[state.order, mask])


def _enough(others: Ints, rules: Rules) -> Bools:
    return np.asarray(COUNT[others] >= rules.k) if rules.strict else np.ones(len(others), dtype=bool)


def _held_together(state: State, rules: Rules) -> tuple[Ints, Ints]:
    """While service is on: the standbys that may take over, and of how many of them one surely has what it takes.

    WAL arrives in order: who acknowledged the last commit has all before it. ANY k of n: of any n - k + 1 one did.
    Where no commit waits for standbys, any one that streams takes over.
    """
    standbys = state.up & ~state.leader
    if not rules.waits:
        return standbys, np.ones_like(standbys)
    waited_for = np.minimum(rules.k, COUNT[standbys])
    if rules.any_k:
        return standbys, np.where(waited_for > 0, COUNT[standbys] - waited_for + 1, NOBODY)
    return _first(standbys, rules), np.where(waited_for > 0, 1, NOBODY)


def pass_time(state: State, until: Floats, rules: Rules) -> tuple[Bools, Bools]:
    """Count what is not served until then; a standby that may lack commits is promoted where that is due: one that
    streamed until the end, or one that did not.
    """
    leads = ~state.on & (state.leader != 0) & state.dcs & ~_taking_over(state, until)
    state.full, state.near = (np.where(leads, mask | state.up, mask) for mask in (state.full, state.near))
    due = ~state.on & (state.force_at <= until)
    near_up = state.up & state.near
    near, stale = due & (near_up != 0), due & (near_up == 0)
    state.alone_s = state.alone_s + np.where(stale, np.clip(state.stopped_at - state.alone_at, 0.0, None), 0.0)
    state.leader = np.where(due, _preferred_of(state, rules, near_up, state.up), state.leader)
    on = state.on | due
    from_then = np.where(due, state.force_at, state.at)
    served = np.clip(np.minimum(state.served_from, until) - from_then, 0.0, None)
    waited = np.where(due, state.force_at - state.at, 0.0)
    state.out_s = state.out_s + waited + np.where(on, served, until - from_then)
    state.volatile = np.where(due, 0, state.volatile)
    state.force_at = np.where(due, NEVER, state.force_at)
    state.on, state.at = on, until.copy()
    return near, stale


def step(state: State, event: Change, rules: Rules) -> tuple[Bools, Bools]:
    """What a change brings; which episodes had a takeover, which elected one that lost what was not flushed."""
    leader_hit = (event.hit & state.leader) != 0
    _stall(state, event, rules, leader_hit)
    pending = _taking_over(state, event.at)
    falls = leader_hit & ~pending  # a successor that has not led yet begins no second takeover
    state.taken_at = np.where(falls, event.at + event.takeover_s, state.taken_at)
    state.fell = np.where(falls, state.leader, state.fell)
    state.counted = state.counted & ~falls
    state.volatile = state.volatile | _unflushed(state, event, rules, np.where(pending, 0, state.leader))
    _hold(state, event, rules, leader_hit, state.on & ~pending)
    state.leader = np.where(leader_hit, 0, state.leader)
    state.up, state.dcs = event.up, event.dcs
    takeover, unflushed = _elect(state, event, rules)
    on = (state.leader != 0) & event.dcs & _enough(event.up & ~state.leader, rules)
    state.stopped_at = np.where(state.on & ~on, event.at, state.stopped_at)
    state.on = on
    since = np.where((event.up & ~state.leader) == 0, np.minimum(state.alone_at, event.at), NEVER)
    state.alone_at = np.where(on, since, state.alone_at)
    state.volatile = np.where(on & ~_taking_over(state, event.at), 0, state.volatile & (state.full | state.pool))
    _plan_force(state, event.dcs, rules)
    return takeover, unflushed


def _taking_over(state: State, at: Floats) -> Bools:
    """Whether a successor is still taking over then: it has not led yet, and sent nothing."""
    return np.asarray((at < state.taken_at) & (state.leader != state.fell))


def _unflushed(state: State, event: Change, rules: Rules, leads: Ints) -> Ints:
    """Who lost what it had not flushed: at off the leader had not before it acknowledged, at remote_write a standby."""
    of_leader = np.where(event.crash & rules.leader_unflushed, event.hit & leads, 0)
    has_led = np.where(leads != 0, leads, state.fell)
    of_standbys = np.where(event.unflushed & rules.standby_unflushed, event.hit & ~has_led, 0)
    return np.asarray(of_leader | of_standbys, dtype=np.int64)


def _hold(state: State, event: Change, rules: Rules, leader_hit: Bools, led: Bools) -> None:
    """Who has every acknowledged commit after it: where one led until then the leader, and the standbys that it still
    reaches; what was so before a takeover stays so until its end.
    """
    pool, need = _held_together(state, rules)
    reached: Ints = state.leader | np.where(leader_hit, 0, event.up)
    kept: Ints = ~np.where(event.lost, event.hit, 0)
    standing: Ints = kept if rules.waits else ~event.hit
    state.full = kept & np.where(led, reached, state.full)
    state.pool = standing & np.where(led, pool, state.pool)
    state.need = np.where(led, need, state.need)
    state.near = kept & np.where(led, state.up, state.near)


def _elect(state: State, event: Change, rules: Rules) -> tuple[Bools, Bools]:
    """Where nobody leads, one that is sure to have every commit does: rather the old leader where it is back before
    another may lead, rather one that has flushed what it has. Where no commit waited, rather the old leader than any
    that streamed from it. Which is a takeover; which lost what was not flushed.
    """
    able, clean = (
        _sure(state.full & mask, state.pool & mask, state.need) for mask in (event.up, event.up & ~state.volatile)
    )
    elected = (state.leader == 0) & (able != 0) & event.dcs
    back = np.where(event.at < state.taken_at, clean & state.fell, 0) if rules.waits else event.up & state.full
    state.leader = np.where(elected, _preferred_of(state, rules, back, clean, able), state.leader)
    another = elected & ((state.leader & state.fell) == 0)
    state.ready = np.where(another, np.maximum(state.ready, state.taken_at), state.ready)
    takeover = another & ~state.counted
    state.counted = state.counted | another
    return takeover, elected & ((clean == 0) | ((state.leader & state.volatile) != 0))


def _first(standbys: Ints, rules: Rules) -> Ints:
    """The first k of them, or all where there are fewer."""
    return np.asarray(rules.listed[np.minimum(rules.k, COUNT[standbys]), standbys])


def _stall(state: State, event: Change, rules: Rules, leader_hit: Bools) -> None:
    """Commits wait for a standby that fell until it is known to be gone, or back, or others are enough."""
    if not rules.waits:
        return
    standbys = state.up & ~state.leader
    fell = event.hit & standbys
    enough = COUNT[event.up & ~state.leader] >= rules.k
    missed = ~enough & (fell != 0) if rules.any_k else (fell & _first(standbys, rules)) != 0
    begins = state.on & ~leader_hit & missed
    state.stalled = np.where(begins, np.maximum(state.stalled, event.at + event.stall_s), state.stalled)
    state.awaited = np.where(begins, state.awaited | fell, state.awaited)
    over = enough if rules.any_k else (state.awaited & ~event.up) == 0
    ends = leader_hit | (over & ~begins)
    state.stalled = np.where(ends, -NEVER, state.stalled)
    state.awaited = np.where(ends, 0, state.awaited)


def _sure(full: Ints, pool: Ints, need: Ints) -> Ints:
    """Those of these members among which one is sure to have every acknowledged commit; the furthest of them leads."""
    return np.asarray(full | np.where(COUNT[pool] >= need, pool, 0))


def _plan_force(state: State, dcs: Bools, rules: Rules) -> None:
    """When people promote what there is, where that serves anybody: with a majority of the DCS and, in strict mode,
    enough standbys. Soon when nothing better can come back, at once without a quorum.
    """
    serves = dcs & (state.up != 0) & (COUNT[state.up] > rules.k if rules.strict else True)
    lacking = (state.full == 0) & (COUNT[state.pool] < state.need)
    delay = np.where(lacking, rules.decide_s, rules.force_s)
    if not rules.waits:
        delay = np.where((state.up & state.near) != 0, 0.0, delay)
    due = np.maximum(state.at + delay, state.taken_at)
    possible = ~state.on & (state.leader == 0) & serves
    state.force_at = np.where(possible, np.minimum(state.force_at, due), NEVER)


def changes_at(events: Changes, which: Ints, of_fault: "PerFault", majority: int) -> Change:
    """The changes at those indices, with what their faults do."""
    fault, begins = events.fault[which], events.begins[which]
    return Change(
        at=events.at[which],
        up=events.up[which],
        dcs=COUNT[events.voters[which]] >= majority,
        hit=events.hit[which],
        lost=of_fault.lost[fault] & begins,
        unflushed=of_fault.unflushed[fault] & begins,
        crash=of_fault.crash[fault] & begins,
        takeover_s=of_fault.takeover_s[fault],
        stall_s=of_fault.stall_s[fault],
    )


@dataclass(frozen=True, slots=True)
class PerFault:
    """What each drawn fault does: disk lost, what the operating system held gone, PostgreSQL crashed; sampled times."""

    lost: Bools
    unflushed: Bools
    crash: Bools
    takeover_s: Floats
    stall_s: Floats
