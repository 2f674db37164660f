"""Who leads, who has every acknowledged commit, when there is no service: one step for many episodes at once. Pure.

The rules are those of docs/forecast.md; the tests state them again, for one state at a time (a Markov chain)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walproof.forecasting.episodes import Changes, Floats, Ints
from walproof.forecasting.topology import Configuration, Topology
from walproof.model.guarantee import Level, QuorumKind

Bools = NDArray[np.bool_]
NEVER = np.inf
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
    lowest_k: Ints
    """lowest_k[k][mask]: the k first members of the mask."""


def rules_of(where: Topology, what: Configuration, decide_s: float, force_s: float) -> Rules:
    """The rules of one configuration."""
    table = np.zeros((8, 128), dtype=np.int64)
    for k in range(8):
        for mask in range(128):
            chosen = [bit for bit in range(7) if mask >> bit & 1][:k]
            table[k, mask] = sum(1 << bit for bit in chosen)
    return Rules(
        members=len(where.members),
        majority=where.majority,
        waits=what.waits,
        any_k=what.quorum_kind is QuorumKind.ANY,
        k=what.k if what.waits else 0,
        strict=what.strict and what.waits,
        leader_unflushed=what.level is Level.OFF,
        standby_unflushed=what.level is Level.REMOTE_WRITE,
        decide_s=decide_s,
        force_s=force_s,
        lowest_k=table,
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
    """Where many episodes stand. Masks of members: `full` have every acknowledged commit, `near` streamed until service
    ended, `volatile` are full but lost what was not flushed. `leader` is a mask of one bit, or 0.
    """

    at: Floats
    up: Ints
    leader: Ints
    full: Ints
    near: Ints
    volatile: Ints
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


def start(begins: Floats, rules: Rules) -> State:
    """Every member is well, the first member leads."""
    n, every_member = len(begins), (1 << rules.members) - 1

    def members(mask: int) -> Ints:
        return np.full(n, mask, dtype=np.int64)

    return State(
        at=begins.copy(),
        up=members(every_member),
        leader=members(1),
        full=members(every_member if rules.waits else 1),
        near=members(every_member),
        volatile=members(0),
        on=np.ones(n, dtype=bool),
        ready=np.full(n, -NEVER),
        force_at=np.full(n, NEVER),
        out_s=np.zeros(n),
        alone_at=np.full(n, NEVER),
        stopped_at=begins.copy(),
        alone_s=np.zeros(n),
        fell=members(0),
        taken_at=np.full(n, -NEVER),
        stalled=np.full(n, -NEVER),
        awaited=members(0),
    )


def _lowest(mask: Ints) -> Ints:
    return mask & -mask


def _enough(others: Ints, rules: Rules) -> Bools:
    return np.asarray(COUNT[others] >= rules.k) if rules.strict else np.ones(len(others), dtype=bool)


def pass_time(state: State, until: Floats, rules: Rules) -> tuple[Bools, Bools, Bools]:
    """Count what is not served until then; people promote a standby where that is due: which had all, near, stale."""
    due = ~state.on & (state.force_at <= until)
    full_up, near_up = state.up & state.full, state.up & state.near
    whole, near = due & (full_up != 0), due & (full_up == 0) & (near_up != 0)
    stale = due & ~whole & ~near
    state.alone_s = state.alone_s + np.where(stale, np.clip(state.stopped_at - state.alone_at, 0.0, None), 0.0)
    forced = _lowest(np.where(full_up != 0, full_up, np.where(near_up != 0, near_up, state.up)))
    state.leader = np.where(due, forced, state.leader)
    on = state.on | (due & _enough(state.up & ~state.leader, rules))
    from_then = np.where(due, state.force_at, state.at)
    served = np.clip(np.minimum(state.served_from, until) - from_then, 0.0, None)
    waited = np.where(due, state.force_at - state.at, 0.0)
    state.out_s = state.out_s + waited + np.where(on, served, until - from_then)
    holders = state.up if rules.waits else state.leader
    state.full = np.where(due, holders, state.full)
    state.near = np.where(due, state.up, state.near)
    state.volatile = np.where(due, 0, state.volatile)
    state.force_at = np.where(due, NEVER, state.force_at)
    state.on, state.at = on, until.copy()
    return whole, near, stale


def step(state: State, event: Change, rules: Rules) -> tuple[Bools, Bools]:
    """What a change brings; which episodes had a takeover, which elected one that lost what was not flushed."""
    gone = np.where(event.lost, event.hit, 0)
    state.volatile = state.volatile | _unflushed(state, event, rules)
    leader_hit = (event.hit & state.leader) != 0
    _stall(state, event, rules, leader_hit)
    serving = _while_serving(state, event, rules, gone, leader_hit)
    waiting = _while_waiting(state, event, rules, gone, leader_hit)
    on_before = state.on
    pending = event.at < state.taken_at
    state.taken_at = np.where(leader_hit & ~pending, event.at + event.takeover_s, state.taken_at)
    state.fell = np.where(leader_hit & ~pending, state.leader, state.fell)
    for name in ("leader", "full", "near", "on", "ready"):
        setattr(state, name, np.where(on_before, serving[name], waiting[name]))
    state.up = event.up
    state.stopped_at = np.where(on_before & ~state.on, event.at, state.stopped_at)
    alone = (event.up & ~state.leader) == 0
    since = np.where(alone, np.minimum(state.alone_at, event.at), NEVER)
    state.alone_at = np.where(state.on, since, state.alone_at)
    state.volatile = np.where(state.on, 0, state.volatile & state.full)
    _plan_force(state, event.dcs, rules)
    return np.asarray(serving["takeover"] & on_before), np.asarray(waiting["unflushed"] & ~on_before)


def _unflushed(state: State, event: Change, rules: Rules) -> Ints:
    of_leader = np.where(event.crash & rules.leader_unflushed, event.hit & state.leader, 0)
    of_standbys = np.where(event.unflushed & rules.standby_unflushed, event.hit & ~state.leader, 0)
    return np.asarray(of_leader | of_standbys, dtype=np.int64)


def _while_serving(state: State, event: Change, rules: Rules, gone: Ints, leader_hit: Bools) -> dict[str, NDArray[Any]]:
    """Service was on: a leader that is hit is replaced where a survivor is sure to have every acknowledged commit.

    One that is hit before it has taken over never led: another takes over when it would have.
    """
    pending = event.at < state.taken_at
    standbys = state.up & ~state.leader
    fell = event.hit & standbys
    waited_for = np.minimum(rules.k, COUNT[standbys])
    first = _first(standbys, rules)
    if not rules.waits:
        covered = np.ones(len(fell), dtype=bool)
    elif rules.any_k:
        covered = COUNT[fell] < waited_for
    else:
        covered = (first & ~fell) != 0
    replaced = leader_hit & covered & (event.up != 0) & event.dcs
    listed = event.up if rules.any_k or not rules.waits else first & event.up
    candidates = np.where(listed != 0, listed, event.up)
    leader = np.where(leader_hit, np.where(replaced, _lowest(candidates), 0), state.leader)
    on = np.where(leader_hit, replaced, event.dcs) & _enough(event.up & ~leader, rules)
    # All of the standbys that commits waited for, and no other streamed: each has every commit.
    each = np.where((waited_for > 0) & (waited_for >= COUNT[standbys]), fell, 0)
    after_leader = state.leader | np.where(covered & rules.waits, event.up & standbys, each)
    stopped = np.where(leader_hit & ~replaced, after_leader, state.leader | event.up | each)
    stopped = np.where(leader_hit & pending, stopped | state.fell, stopped)
    if not rules.waits:
        stopped = np.where(replaced, leader, np.where(leader_hit & pending, state.fell, state.leader))
    served = event.up if rules.waits else leader
    full = np.where(on, served, np.where(replaced & rules.waits, event.up, stopped & ~gone))
    near = np.where(on | replaced, event.up, (state.up | event.up) & ~gone)
    return {
        "leader": leader, "on": on, "full": full, "near": near, "takeover": replaced & ~pending,
        "ready": np.where(replaced & ~pending, np.maximum(state.ready, event.at + event.takeover_s), state.ready),
    }  # fmt: skip


def _first(standbys: Ints, rules: Rules) -> Ints:
    """The first k of them, or all where there are fewer."""
    return rules.lowest_k[np.minimum(rules.k, COUNT[standbys]), standbys]


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


def _while_waiting(state: State, event: Change, rules: Rules, gone: Ints, leader_hit: Bools) -> dict[str, NDArray[Any]]:
    """Service was off: too few standbys, no majority of the DCS, or no member that is sure to have every commit."""
    leader = np.where(leader_hit, 0, state.leader)
    full, near = state.full & ~gone, state.near & ~gone
    able = full & event.up
    clean = able & ~state.volatile
    elected = (leader == 0) & (able != 0) & event.dcs
    back = np.where(event.at < state.taken_at, clean & state.fell, 0)
    leader = np.where(elected, _lowest(np.where(back != 0, back, np.where(clean != 0, clean, able))), leader)
    another = elected & ((leader & state.fell) == 0)
    leads = (leader != 0) & event.dcs
    on = leads & _enough(event.up & ~leader, rules)
    streaming = event.up if rules.waits else leader
    full = np.where(on, streaming, np.where(leads & rules.waits, full | event.up, full))
    near = np.where(on, event.up, np.where(leads, near | event.up, near))
    ready = np.where(another, np.maximum(state.ready, state.taken_at), state.ready)
    unflushed = elected & (clean == 0)
    return {"leader": leader, "on": on, "full": full, "near": near, "unflushed": unflushed, "ready": ready}


def _plan_force(state: State, dcs: Bools, rules: Rules) -> None:
    """When people promote what there is: soon when nothing better can come back, at once without a quorum."""
    possible = ~state.on & (state.leader == 0) & (state.up != 0)
    delay = np.where(state.full == 0, rules.decide_s, rules.force_s)
    if not rules.waits:
        delay = np.where(dcs & ((state.up & state.near) != 0), 0.0, delay)
    due = np.maximum(state.at + delay, state.taken_at)
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
