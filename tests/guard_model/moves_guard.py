"""What the guards do. A guard that crashes or freezes takes no further step; its key stays until its lease ends."""

from collections.abc import Iterator

from tests.guard_model.cluster import GUARDS, LEADER, NOBODY, Guard, Size, State, members, name
from tests.guard_model.moves_patroni import lease_ended
from tests.guard_model.protocol import Compare, Evidence, Protocol, Sealed

Move = tuple[str, State]


def guard_moves(size: Size, protocol: Protocol, state: State) -> Iterator[Move]:
    """Every step a guard may take. It may suspect at any time: suspicion needs no proof."""
    if state.promoted >= 0:
        return
    for i, guard in enumerate(state.guards):
        yield from _seal_moves(protocol, state, i)
        if guard is None or not guard.sealed:
            continue
        for s in members(guard.voters & ~guard.checked):
            if _is_sealed(protocol, state, guard, s):
                seen = (*guard.seen[:s], state.received[s], *guard.seen[s + 1 :])
                checked = guard._replace(checked=guard.checked | 1 << s, seen=seen)
                yield f"{name(GUARDS + i)} finds {name(s)} sealed", _with_guard(state, i, checked)
        if _enough(size, protocol, guard):
            yield from _release(protocol, state, i, guard)
    if state.key >= GUARDS and not protocol.lease_of_ttl:
        yield f"the short lease of {name(state.key)}'s key ends", state._replace(key=NOBODY)
    elif state.key >= GUARDS and not state.primary:
        yield f"the lease of {name(state.key)}'s key ends", lease_ended(state)


def _who(mask: int) -> str:
    return " ".join(name(s) for s in members(mask))


def _with_guard(state: State, i: int, guard: Guard | None) -> State:
    return state._replace(guards=(*state.guards[:i], guard, *state.guards[i + 1 :]))


def _may_seal(protocol: Protocol, state: State) -> bool:
    """The compares of the seal's transaction, and what a guard refuses before it."""
    settled = not protocol.grace or not state.elected
    alone = not protocol.compares_failover or state.failover != 1
    held = state.key == LEADER or (protocol.resumes and state.key >= GUARDS)
    return held and state.voters != 0 and settled and alone


def _seal_moves(protocol: Protocol, state: State, i: int) -> Iterator[Move]:
    """Guards are alike, so of those that are idle only the first moves."""
    guard = state.guards[i]
    if not state.seals or (guard.sealed if guard else i != state.guards.index(None)):
        return
    allowed = _may_seal(protocol, state)
    if guard is not None:
        if allowed:
            yield (
                f"{name(GUARDS + i)} seals: takes {name(state.key)}'s key, compares nothing else",
                (_seal(protocol, state, i, guard)),
            )
        return
    read = Guard(state.voters, state.quorum, False, 0, 0, (0,) * len(state.received))
    saw = f"/sync ({_who(read.voters)}), quorum {read.quorum}"
    if allowed and protocol.compares_sync:
        sealed = _seal(protocol, state, i, read)
        yield f"{name(GUARDS + i)} seals: takes {name(state.key)}'s key, compares {saw}", sealed
    elif state.voters and not protocol.compares_sync:
        yield f"{name(GUARDS + i)} reads {saw}", _with_guard(state, i, read)


def _seal(protocol: Protocol, state: State, i: int, guard: Guard) -> State:
    plan = state.plan._replace(current=False) if state.plan and protocol.rewrites_sync else state.plan
    first = state.guards[state.key - GUARDS] if state.key >= GUARDS else None
    known = first.followed if first and protocol.resumer_knows else guard.voters
    sealed = guard._replace(sealed=True, followed=known if first else state.conninfo)
    return _with_guard(state._replace(key=GUARDS + i, plan=plan, seals=state.seals - 1), i, sealed)


def _is_sealed(protocol: Protocol, state: State, guard: Guard, s: int) -> bool:
    """By SQL on the standby. Where a walreceiver may run, it may also pause between two connections.

    Asked twice: between the two answers a reload reaches the startup process, so a walreceiver would show.
    """
    if protocol.evidence is Evidence.WALRECEIVER:
        return True
    if state.conninfo >> s & 1:
        return False
    twice = not state.reread >> s & 1
    return {
        Evidence.ONCE: True,
        Evidence.GONE: twice,
        Evidence.SETTLED: twice and bool(guard.followed >> s & 1),
    }[protocol.evidence]


def _enough(size: Size, protocol: Protocol, guard: Guard) -> bool:
    """Whether the guard may release."""
    everyone = guard.voters.bit_count()
    alone = not size.any_of or (guard.quorum == 0 and everyone == size.standbys)
    needed = {
        Sealed.EVERY_VOTER: 1 if alone else everyone,
        Sealed.WHERE_NEEDED: 0 if alone else everyone,
        Sealed.QUORUM_PLUS_ONE: guard.quorum + 1,
        Sealed.QUORUM: guard.quorum,
        Sealed.NONE: 0,
    }[protocol.sealed]
    return guard.checked.bit_count() >= needed


def _release(protocol: Protocol, state: State, i: int, guard: Guard) -> Iterator[Move]:
    """Hands the key over, or deletes it, if it is still this seal's: i stands for the seal as well as for the guard."""
    me, after = name(GUARDS + i), _with_guard(state, i, None)
    ours = {
        Compare.SEAL: state.key == GUARDS + i,
        Compare.NAME: state.key >= GUARDS,
        Compare.NOTHING: True,
    }[protocol.compare]
    if not ours or (protocol.compares_failover and state.failover == 1):
        yield f"{me} releases nothing: the compare fails", after
    elif protocol.hands_over:
        for s in members(guard.checked or guard.voters):
            if not protocol.most_wal or guard.seen[s] == max(guard.seen):
                yield f"{me} hands the key held by {name(state.key)} over to {name(s)}", after._replace(key=s)
    else:
        yield f"{me} releases the key held by {name(state.key)}", after._replace(key=NOBODY)
