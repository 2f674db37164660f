"""When taking the leader lock would be safe, and when standbys are sealed. Pure.

Why quorum + 1 voters suffice: docs/guard.md.
"""

from collections.abc import Mapping

from walproof.model.takeover import LockState, Signs

_FRESH_S = 1.0
_READ_S = 3.0
"""A lock that was not read for so long is not known."""


def why_never(lock: LockState) -> str | None:
    """Why a guard can do nothing for this cluster as it is configured; None where it can."""
    if lock.standby_cluster:
        return "this is a standby cluster: it acknowledges no commits of its own"
    if not lock.synchronous:
        return "synchronous_mode is off: a takeover before the ttl could lose acknowledged commits"
    return None


def why_not(lock: LockState, signs: Signs, now: float) -> str | None:
    """Why taking the lock from its holder would not be safe now; None where it is."""
    if never := why_never(lock):
        return never
    if now - lock.at > _READ_S:
        return f"etcd has not answered for {_READ_S:g} s: it has no majority, or is too far away"
    if lock.paused:
        return "Patroni is paused"
    if lock.switchover:
        return "a switchover is under way"
    if not lock.holder:
        return "nobody holds the leader lock: Patroni elects"
    if lock.sealed:
        return "another guard holds the leader lock"
    if lock.sync_leader != lock.holder:
        return f"/sync does not name {lock.holder} as the leader yet"
    if not lock.voters:
        return "no standby is synchronous now"
    reachable = set(answering(lock, signs, now)) & set(connected(lock, signs))
    if len(reachable) <= lock.quorum:
        of_all = f"{len(reachable)} of {len(lock.voters)} synchronous standbys"
        return f"{of_all} answer and follow, {lock.quorum + 1} are needed"
    return None


def answering(lock: LockState, signs: Signs, now: float) -> tuple[str, ...]:
    """The voters that answer SQL."""
    asked_at = {v: signs[v].sql_at for v in lock.voters if v in signs}
    return tuple(v for v, at in asked_at.items() if at is not None and now - at < _FRESH_S)


def connected(lock: LockState, signs: Signs) -> tuple[str, ...]:
    """The voters that have a primary_conninfo: one that loses it after the seal has seen the seal."""
    newest = {v: signs[v].receivers[-1] for v in lock.voters if v in signs and signs[v].receivers}
    return tuple(v for v, receiver in newest.items() if receiver.connects)


def sealed(voters: tuple[str, ...], signs: Signs, since: float, now: float) -> dict[str, int]:
    """Which of these voters can no longer acknowledge anything to the old leader, each with its received position.

    Twice, asked after `since`, each showed no walreceiver, no primary_conninfo to start one with, and the same received
    position; the newer answer is at most a second old. One restarted since (position 0) does not count: it may hold
    more than it says.
    """
    found = {}
    for voter in voters:
        answers = signs[voter].receivers if voter in signs else ()
        silent = all(not r.running and not r.connects and r.asked_at > since for r in answers)
        still = len({r.received for r in answers}) == 1
        if len(answers) == 2 and silent and still and answers[1].received and now - answers[1].asked_at < _FRESH_S:
            found[voter] = answers[1].received
    return found


def enough(lock: LockState, sealed_voters: Mapping[str, int]) -> bool:
    """Whether no set of standbys that could acknowledge a commit is left: quorum + 1 voters are sealed."""
    return len(sealed_voters) >= lock.quorum + 1


def successor(lock: LockState, sealed_voters: Mapping[str, int]) -> str | None:
    """The sealed voter to lead: of those with the most WAL one that may, by its priority; None when none of them may.

    Never one with less: a commit may have been acknowledged by the one that has more.
    """
    most = max(sealed_voters.values(), default=0)
    ahead = [(v, lock.candidates[v]) for v, at in sealed_voters.items() if at == most and v in lock.candidates]
    able = [(-candidate.priority, voter) for voter, candidate in ahead if candidate.may_lead]
    return min(able)[1] if able else None
