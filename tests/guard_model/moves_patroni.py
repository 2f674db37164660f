"""What Patroni 4.1 does, by its source (patroni/ha.py, patroni/quorum.py, patroni/dcs/etcd3.py).

A standby's HA cycle is one thread that reads the key first and acts later, so the two are separate steps where the
delay matters: `returning` (about to follow the old leader again) and `elected` (about to take the key)
"""

from collections.abc import Iterator

from tests.guard_model.cluster import GUARDS, LEADER, NOBODY, Plan, Size, State, mask_of, members, name
from tests.guard_model.patroni_sync import plans
from tests.guard_model.protocol import Protocol

Move = tuple[str, State]


def leader_moves(size: Size, protocol: Protocol, state: State) -> Iterator[Move]:
    """The old leader's Patroni: change synchronous standbys, step down, come back."""
    if state.plan is not None:
        step, after = _go_on(state, state.plan)
        if not size.catches_up or _covers(size, after):
            yield step, after
    if state.primary:
        yield "a steps down or crashes", state._replace(primary=False, plan=None)
        if state.promoted < 0 and state.key == NOBODY:
            yield "a creates the leader key again", state._replace(key=LEADER)
        leads = state.key == LEADER or (state.key >= GUARDS and not protocol.lock_written_first)
        if state.promoted < 0 and leads and state.plan is None and state.changes:
            for plan in plans(size, state):
                seen = f"a begins a cycle that will write {_steps(plan)}"
                yield seen, state._replace(plan=plan, changes=state.changes - 1)
    elif state.promoted < 0 and state.key in {NOBODY, LEADER}:
        k = state.voters.bit_count() - state.quorum
        back = state._replace(primary=True, key=LEADER, k=k, names=state.voters)
        yield "a starts again, holds the leader key and is promoted", back
    if state.key == LEADER and not state.primary and state.promoted < 0:
        yield "a's lease ends", lease_ended(state)


def _steps(plan: Plan) -> str:
    return ", then ".join(
        f"{kind} {num} of ({' '.join(name(s) for s in members(who))})" for kind, num, who in plan.steps
    )


def lease_ended(state: State) -> State:
    """A whole ttl has passed: Patroni's own assumption is that no cycle, hence no vote, is older than that.

    An operator's request ends with it: a candidate of /failover takes the key unasked, with or without a guard.
    """
    return state._replace(key=NOBODY, elected=0, failover=2)


def _covers(size: Size, state: State) -> bool:
    """Whether /sync lets nobody be elected who may lack an acknowledged commit, as far as positions go now."""
    behind = sum(1 for s in members(state.voters) if state.received[s] < state.acknowledged)
    return behind <= state.quorum if size.any_of else behind == 0


def _go_on(state: State, plan: Plan) -> Move:
    """The next write of the leader's cycle. /sync is compared by its own revision only: dcs/etcd3.py."""
    (kind, number, who), rest = plan.steps[0], plan.steps[1:]
    left = Plan(plan.current, rest) if rest else None
    listed = f"({' '.join(name(s) for s in members(who))})"
    if kind == "sync":
        base = max((state.acknowledged, *state.received))
        changed = state._replace(k=number, names=who, ready=state.ready & who, base=base, plan=left)
        return f"a sets synchronous_standby_names to {number} of {listed}", changed
    if not plan.current:
        return "a's write to /sync fails: its revision has risen; the cycle ends", state._replace(plan=None)
    if kind == "confirm":
        who &= state.voters | mask_of(s for s in members(who) if state.received[s] >= state.base)
        listed = f"({' '.join(name(s) for s in members(who))})"
        return f"a writes /sync {listed}", state._replace(voters=who or state.voters, plan=left)
    return f"a writes /sync {listed}, quorum {number}", state._replace(voters=who, quorum=number, plan=left)


def standby_moves(size: Size, protocol: Protocol, state: State) -> Iterator[Move]:
    """The standbys' Patroni: follow the key's holder, vote, take the key, promote."""
    if state.promoted >= 0:
        return
    for s in range(size.standbys):
        bit = 1 << s
        if state.returning & bit:
            again = state._replace(conninfo=state.conninfo | bit, returning=state.returning & ~bit)
            yield f"{name(s)}'s Patroni sets primary_conninfo to a", again
        elif state.elected & bit and state.key == NOBODY:
            yield f"{name(s)} takes the leader key", state._replace(key=s, elected=state.elected & ~bit)
        yield from _cycle(size, protocol, state, s)
    if 0 <= state.key < LEADER:
        yield f"{name(state.key)} is promoted", state._replace(promoted=state.key)
        if not state.primary:
            yield f"{name(state.key)}'s lease ends", lease_ended(state)
        if size.releases_early:
            yield f"{name(state.key)} releases the key early", state._replace(key=NOBODY)
    yield from _asked_and_posted(size, state)


def _asked_and_posted(size: Size, state: State) -> Iterator[Move]:
    """What the leader and an operator write: POST /failsafe, and the key /failover."""
    if size.failsafe and state.primary and state.failsafe != (1 << size.standbys) - 1:
        for s in range(size.standbys):
            if not state.failsafe >> s & 1:
                yield f"a sends POST /failsafe to {name(s)}", state._replace(failsafe=state.failsafe | 1 << s)
    if size.operator and state.failover == 0 and state.key == LEADER:
        yield "somebody writes /failover for b", state._replace(failover=1)
    if state.failover == 1 and state.key == LEADER and state.primary:
        yield "a removes /failover", state._replace(failover=2)


def _cycle(size: Size, protocol: Protocol, state: State, s: int) -> Iterator[Move]:
    """One cycle of a standby, from what it reads in the DCS; it begins only when the one before has ended."""
    bit = 1 << s
    if state.returning & bit:
        return
    over = state._replace(elected=state.elected & ~bit)
    holder = state.key
    if holder == NOBODY and state.failsafe & bit:
        holder = LEADER
    if holder == LEADER:
        if not state.conninfo & bit:
            yield f"{name(s)}'s Patroni reads that a leads", over._replace(returning=state.returning | bit)
        elif state.elected & bit:
            yield f"{name(s)}'s Patroni reads that a leads", over
        return
    drops = holder < GUARDS or protocol.hides_leader
    if drops and (state.conninfo | state.elected) & bit and holder != s:
        why = f"{name(holder)} holds the key" if holder >= 0 else "nobody holds the key"
        yield (
            f"{name(s)}'s Patroni reads that {why} and clears primary_conninfo",
            over._replace(conninfo=state.conninfo & ~bit),
        )
    if holder == NOBODY and not state.elected & bit and healthiest(size, state, s):
        yield f"{name(s)} has votes enough", state._replace(elected=state.elected | bit)


def healthiest(size: Size, state: State, s: int) -> bool:
    """Whether a standby may find itself electable: ha.py, _is_healthiest_node.

    A member that is ahead would stop it, but may be unreachable; so may everybody whose vote is not needed.
    """
    if state.failover == 1 and s == 0:
        return True
    if not size.any_of:
        return bool(state.voters >> s & 1)
    votes = sum(1 for t in members(state.voters & ~(1 << s)) if state.received[t] <= state.received[s])
    return votes - (0 if state.voters >> s & 1 else 1) >= state.quorum
