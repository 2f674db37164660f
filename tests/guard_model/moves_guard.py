"""What the guards do. A guard that crashes or freezes takes no further step; its key stays until its lease ends."""

from collections.abc import Iterator

from tests.guard_model.cluster import GUARDS, LEADER, NOBODY, Guard, Size, State, members, name
from tests.guard_model.moves_patroni import lease_ended
from tests.guard_model.protocol import Compare, Look, Protocol, Sealed

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
            if _looks_sealed(protocol, state, guard, s):
                checked = guard._replace(checked=guard.checked | 1 << s)
                yield f"{name(GUARDS + i)} finds {name(s)} sealed", _with_guard(state, i, checked)
        if _enough(size, protocol, guard):
            yield _release(protocol, state, i)
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
    return state.seals > 0 and state.key == LEADER and state.voters != 0 and settled and alone


def _seal_moves(protocol: Protocol, state: State, i: int) -> Iterator[Move]:
    """Guards are alike, so of those that are idle only the first moves."""
    guard = state.guards[i]
    idle = guard is None and i == state.guards.index(None)
    read = Guard(state.voters, state.quorum, False, 0, 0)
    saw = f"/sync ({_who(read.voters)}), quorum {read.quorum}"
    if idle and not protocol.compares_sync and state.seals and state.voters:
        yield f"{name(GUARDS + i)} reads {saw}", _with_guard(state, i, read)
    if not _may_seal(protocol, state):
        return
    if idle and protocol.compares_sync:
        yield f"{name(GUARDS + i)} seals: takes a's key, compares {saw}", _seal(protocol, state, i, read)
    elif guard is not None and not guard.sealed:
        yield f"{name(GUARDS + i)} seals: takes a's key, compares nothing else", _seal(protocol, state, i, guard)


def _seal(protocol: Protocol, state: State, i: int, guard: Guard) -> State:
    plan = state.plan._replace(current=False) if state.plan and protocol.rewrites_sync else state.plan
    sealed = guard._replace(sealed=True, followed=state.conninfo)
    return _with_guard(state._replace(key=GUARDS + i, plan=plan, seals=state.seals - 1), i, sealed)


def _looks_sealed(protocol: Protocol, state: State, guard: Guard, s: int) -> bool:
    """By SQL on the standby. Where a walreceiver may run, it may also pause between two connections.

    Seen twice: between the two looks a reload reaches the startup process, so a walreceiver would show or have moved.
    """
    if protocol.look is Look.WALRECEIVER:
        return True
    if state.conninfo >> s & 1:
        return False
    twice = not state.reread >> s & 1
    return {
        Look.ONCE: True,
        Look.GONE: twice,
        Look.SETTLED: twice and bool(guard.followed >> s & 1),
    }[protocol.look]


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


def _release(protocol: Protocol, state: State, i: int) -> Move:
    """Deletes the key if it is still this seal's: a guard seals once here, so its number stands for the seal."""
    after = _with_guard(state, i, None)
    ours = {
        Compare.SEAL: state.key == GUARDS + i,
        Compare.NAME: state.key >= GUARDS,
        Compare.NOTHING: True,
    }[protocol.compare]
    if not ours or (protocol.compares_failover and state.failover == 1):
        return f"{name(GUARDS + i)} does not release: the compare fails", after
    return f"{name(GUARDS + i)} releases the key held by {name(state.key)}", after._replace(key=NOBODY)
