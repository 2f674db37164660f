"""How Patroni's leader changes synchronous_standby_names and /sync: its own resolver for quorum, its steps for FIRST.

A step is ("sync", number, names), ("quorum", number, voters), or ("confirm", 0, picked): write into /sync those of
`picked` that have caught up by then (patroni/ha.py, _process_multisync_replication).
"""

from collections.abc import Iterator
from functools import cache

from patroni.quorum import QuorumStateResolver

from tests.guard_model.cluster import Plan, Size, State, mask_of, members

Steps = tuple[tuple[str, int, int], ...]
_NAMES = "bcdef"


def plans(size: Size, state: State) -> Iterator[Plan]:
    """The cycles that a leader may begin now, one for each set of standbys that it may see streaming."""
    seen: set[Steps] = set()
    for active in range(1 << size.standbys):
        ready = state.ready | mask_of(
            s for s in members(state.names & active) if state.received[s] >= state.base
        )  # fmt: skip
        if size.any_of:
            steps = _quorum(
                state.quorum, state.voters, state.k, state.names, (ready & active).bit_count(), active, size.k
            )
            found = [steps]
        else:
            found = list(_priority(size, state, ready, active))
        seen.update(steps for steps in found if steps)
    return (Plan(True, steps) for steps in sorted(seen))


@cache
def _quorum(quorum: int, voters: int, numsync: int, names: int, confirmed: int, active: int, wanted: int) -> Steps:  # noqa: PLR0917
    resolver = QuorumStateResolver(
        leader="a",
        quorum=quorum,
        voters=_text(voters),
        numsync=numsync,
        sync=_text(names),
        numsync_confirmed=confirmed,
        active=_text(active),
        sync_wanted=wanted,
        leader_wanted="a",
    )
    return tuple(
        (step.transition_type, step.num, mask_of(_NAMES.index(n) for n in step.names))
        for step in resolver
        if step.transition_type != "restart"
    )


def _text(mask: int) -> list[str]:
    return [_NAMES[s] for s in members(mask)]


def _priority(size: Size, state: State, ready: int, active: int) -> Iterator[Steps]:
    kept = state.names & active
    for extra in range(1 << size.standbys):
        picked = kept | extra
        fills = picked & ~active == 0 and kept & extra == 0 and picked.bit_count() == min(size.k, active.bit_count())
        if fills and not picked == state.voters == state.names:
            common = state.voters & kept
            first: Steps = (("quorum", 0, common),) if common != state.voters else ()
            then: Steps = (("confirm", 0, picked),) if picked else ()
            yield (*first, ("sync", picked.bit_count(), picked), *then)
