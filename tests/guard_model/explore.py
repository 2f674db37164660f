"""Breadth-first search through every state of the model; the first loss found is a shortest one."""

import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.guard_model.cluster import GUARDS, Guard, Size, State, first_state, lost
from tests.guard_model.moves_guard import guard_moves
from tests.guard_model.moves_patroni import leader_moves, standby_moves
from tests.guard_model.moves_postgres import postgres_moves
from tests.guard_model.protocol import HAND_OVER, Compare, Protocol


@dataclass(frozen=True, slots=True)
class Found:
    """What an exploration met. story: the steps to the first loss; empty where no state loses anything."""

    states: int
    story: tuple[str, ...]
    releases: int
    promotions: int
    resumed: int
    """States in which a guard's release, a promotion, an acknowledged commit after it had just happened."""

    def __str__(self) -> str:
        return "\n".join(f"{i:3} {step}" for i, step in enumerate(self.story, 1)) or f"{self.states} states, no loss"


def explore(size: Size, protocol: Protocol = HAND_OVER) -> Found:
    """Visit every reachable state, or stop at the first that has lost an acknowledged commit."""
    gc.disable()  # millions of tuples without a cycle among them
    try:
        return _explore(size, protocol)
    finally:
        gc.enable()


def _explore(size: Size, protocol: Protocol) -> Found:
    start = first_state(size)
    came: dict[State, State | None] = {start: None}
    queue = deque([start])
    releases = promotions = resumed = 0
    while queue:
        state = queue.popleft()
        for step, then in moves(size, protocol, state):
            after = reduced(then, protocol)
            if after in came:
                continue
            came[after] = state
            releases += "releases the key" in step or "hands the key" in step
            promotions += after.promoted >= 0 > state.promoted
            resumed += after.resumed
            if lost(after):
                return Found(len(came), _story(size, protocol, came, after), releases, promotions, resumed)
            if not after.resumed and not safe_for_ever(size, after):
                queue.append(after)
    return Found(len(came), (), releases, promotions, resumed)


def moves(size: Size, protocol: Protocol, state: State) -> Iterator[tuple[str, State]]:
    """Every step that anybody may take."""
    yield from postgres_moves(size, state)
    yield from leader_moves(size, protocol, state)
    yield from standby_moves(size, protocol, state)
    yield from guard_moves(size, protocol, state)


def reduced(state: State, protocol: Protocol) -> State:
    """The same state without what can no longer matter, so that fewer are visited.

    After a promotion only the old leader's commits do. A guard whose release compares its own seal can do nothing once
    the key is not that seal's.
    """
    if state.promoted >= 0:
        idle: tuple[Guard | None, ...] = (None,) * len(state.guards)
        return state._replace(guards=idle, elected=0, seals=0, changes=0, failsafe=0, failover=2)
    if protocol.compare is Compare.SEAL and any(state.guards):
        kept = tuple(g if g and (state.key == GUARDS + i or not g.sealed) else None for i, g in enumerate(state.guards))
        return state._replace(guards=kept) if kept != state.guards else state
    return state


def safe_for_ever(size: Size, state: State) -> bool:
    """Every standby holds every commit there is: whoever is promoted lacks nothing."""
    return state.promoted < 0 and min(state.received) == size.commits


def _story(size: Size, protocol: Protocol, came: dict[State, State | None], end: State) -> tuple[str, ...]:
    states = [end]
    while (before := came[states[-1]]) is not None:
        states.append(before)
    states.reverse()
    return tuple(
        next(step for step, after in moves(size, protocol, before) if reduced(after, protocol) == then)
        for before, then in pairwise(states)
    )
