"""What PostgreSQL does: standbys receive, the leader acknowledges, startup processes reread primary_conninfo."""

from collections.abc import Iterator

from tests.guard_model.cluster import Size, State, members, name

Move = tuple[str, State]


def postgres_moves(size: Size, state: State) -> Iterator[Move]:
    """Every step PostgreSQL may take.

    A standby's acknowledgement needs no message of its own here: it may be counted at any time after the flush, as
    long as the leader runs, and that is all that its delay can do.
    """
    for s in members(state.reread):
        if state.received[s] < size.commits and s != state.promoted:
            received = (*state.received[:s], state.received[s] + 1, *state.received[s + 1 :])
            yield f"{name(s)} receives and flushes commit {received[s]} from a", state._replace(received=received)
    for s in members(state.reread ^ state.conninfo):
        verb = "may start a walreceiver" if state.conninfo >> s & 1 else "ends its walreceiver"
        yield (
            f"{name(s)}'s startup process rereads its configuration and {verb}",
            state._replace(reread=state.reread ^ 1 << s),
        )
    if state.primary and state.acknowledged < size.commits:
        commit = state.acknowledged + 1
        holders = [s for s in members(state.names) if state.received[s] >= commit]
        if len(holders) >= state.k:
            who = " and ".join(name(s) for s in holders) or "nobody: no standby is named"
            yield f"a acknowledges commit {commit} to its client (held by {who})", state._replace(acknowledged=commit)
    if state.promoted >= 0 and not state.resumed:
        yield from _after_takeover(size, state)


def _after_takeover(size: Size, state: State) -> Iterator[Move]:
    """The new leader's first commit: Patroni names len(voters) - quorum - 1 of the other voters before it promotes."""
    others = state.voters & ~(1 << state.promoted)
    needed = max(state.voters.bit_count() - state.quorum - 1, 0) if size.any_of else 0
    if (others & ~state.conninfo).bit_count() >= needed:
        yield f"{name(state.promoted)} acknowledges a new commit", state._replace(resumed=True)
