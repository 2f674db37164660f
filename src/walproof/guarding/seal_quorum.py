"""When taking the leader lock would be safe, when standbys are sealed, and who may be handed it. Pure.

Why quorum + 1 voters suffice, and what each condition is for: docs/guard-proof.md.
"""

from collections.abc import Mapping

from walproof.model.standby_names import folded
from walproof.model.takeover import LockState, MemberSigns, Signs

LATE_S = 2.0
"""How late a renewal of the lease may be; etcd tells its age in whole seconds."""
_FRESH_S = 1.0
_APART_S = 0.09
"""A reload that the first answer shows has reached the startup process by then."""
_FIT_S = 3.0
"""For how long a member's Patroni is believed after it answered."""
LEAST_PATRONI = (3, 0, 3)
"""Before, a leader wrote the lock again without comparing whose it was (dcs/etcd3.py, _update_leader)."""
_READ_S = 3.0
"""A lock that was not read for so long is not known."""


def why_never(lock: LockState) -> str | None:
    """Why a guard can do nothing for this cluster as it is configured; None where it can."""
    if lock.standby_cluster:
        return "this is a standby cluster: it acknowledges no commits of its own"
    if not lock.synchronous:
        return "synchronous_mode is off: a takeover before the ttl could lose acknowledged commits"
    return None


def why_hands_off(lock: LockState, now: float) -> str | None:
    """Why no step may be taken now, be it the first or the last; None where it may."""
    if never := why_never(lock):
        return never
    if now - lock.at > _READ_S:
        return f"etcd has not answered for {_READ_S:g} s: it has no majority, or is too far away"
    if lock.paused:
        return "Patroni is paused"
    if lock.switchover:
        return "a switchover is asked for"
    return None if lock.voters else "no standby is synchronous now"


def why_not(lock: LockState, signs: Signs, now: float, followed: frozenset[str]) -> str | None:
    """Why taking the lock from its holder would not be safe now; None where it is. followed: see `connected`."""
    if reason := why_hands_off(lock, now) or lock.unsuitable:
        return reason
    if not lock.holder:
        return "nobody holds the leader lock: Patroni elects"
    if lock.sync_leader != lock.holder:
        return f"/sync does not name {lock.holder} as the leader yet"
    newest = {v: signs[v].receivers[-1] for v in lock.counted if v in signs and signs[v].receivers}
    for voter, receiver in newest.items():
        if receiver.lacks:
            return f"this guard may not see the walreceiver of {voter}: {receiver.lacks}"
    if old := [m for m, candidate in lock.candidates.items() if candidate.version < LEAST_PATRONI]:
        least = ".".join(map(str, LEAST_PATRONI))
        return f"Patroni of {', '.join(old)} is older than {least}, or does not say its version"
    reachable = connected(lock, signs, now, followed)
    if len(reachable) <= lock.quorum:
        of_all = f"{len(reachable)} of {len(lock.voters)} synchronous standbys"
        hindered = [f"{v} ({r.hinders})" for v, r in newest.items() if r.hinders]
        hindered += [f"{v} (its Patroni does not answer)" for v in newest if not _patroni_answers(signs[v], now)]
        why = f"; not counted: {', '.join((*_tagged(lock), *hindered))}" if hindered or _tagged(lock) else ""
        return f"{of_all} answer and follow, {lock.quorum + 1} are needed{why}"
    # `witness` wants every voter that answers to have lost the leader, which dies up to a loop_wait after a renewal.
    left_s = lock.ttl_s - lock.loop_wait_s
    slow = [v for v in answering(lock, signs, now) if v in newest and newest[v].asks_after_s >= left_s]
    if slow and (lock.failsafe or lock.loop_wait_s + LATE_S >= lock.ttl_s):
        why = "failsafe_mode" if lock.failsafe else f"loop_wait at {lock.loop_wait_s:g} s"
        cure = f"set wal_receiver_timeout of {', '.join(slow)} to a few seconds"
        return f"with {why} only standbys tell in time that a leader is gone: {cure}"
    if successor(lock, {v: newest[v].position for v in reachable}, signs, now) is None:
        return "nobody could be handed the lock: the standby with the most WAL cannot lead, or lags too far behind"
    return None


def why_void(lock: LockState) -> str | None:
    """Why the seal that holds this lock is left to Patroni, by every guard and for good; None where it is not.

    One transaction wrote the lock, /sync and the seal: a later version of one of them is another's. What ended a seal
    once, a pause that was lifted since too, shows in the versions that the seal kept.
    """
    seal = lock.seal
    if seal is None or lock.sync_version != lock.holder_version:
        return "/sync was changed after the seal"
    if lock.config_version != seal.config_version:
        return "the configuration was changed after the seal"
    if lock.failover_version != seal.failover_version:
        return "a switchover was asked for after the seal"
    return None


def _tagged(lock: LockState) -> list[str]:
    return [f"{v} ({c.tagged})" for v, c in lock.candidates.items() if c.tagged and v in lock.voters]


def answering(lock: LockState, signs: Signs, now: float) -> tuple[str, ...]:
    """The counted voters that answer SQL."""
    asked_at = {v: signs[v].sql_at for v in lock.counted if v in signs}
    return tuple(v for v, at in asked_at.items() if at is not None and now - at < _FRESH_S)


def connected(lock: LockState, signs: Signs, now: float, followed: frozenset[str]) -> tuple[str, ...]:
    """The counted voters that answer and have a primary_conninfo: one that loses it after the seal has seen the seal.

    Only those of `followed`, which streamed from this leader, and on its timeline by their own keys, so that positions
    compare. One that forked off before, and has not been rewound yet, may be ahead with WAL of its own. Only a server
    that follows under the voter's name, at the address of its key in the DCS: an address may lead to another member, or
    to one of that name in another cluster. Only one whose Patroni answers: it has to leave the old leader.
    """
    leader = lock.candidates.get(lock.holder)
    timeline = leader.timeline if leader else 0
    same = {v for v in followed if v in lock.counted and 0 < lock.candidates[v].timeline == timeline}
    newest = {v: signs[v].receivers[-1] for v in answering(lock, signs, now) if signs[v].receivers}
    sound = {v for v, r in newest.items() if r.connects and not r.lacks and not r.hinders}
    own = {v for v, r in newest.items() if folded(r.named) == folded(v)}
    itself = {v for v in newest if signs[v].address == lock.candidates[v].address}
    heard = {v for v in newest if _patroni_answers(signs[v], now)}
    return tuple(v for v in newest if v in sound & own & same & itself & heard)


def streaming(lock: LockState, signs: Signs) -> frozenset[str]:
    """The voters that stream from the leader, by one of their last two answers."""
    by_voter = {v: signs[v].receivers for v in lock.counted if v in signs}
    return frozenset(v for v, answers in by_voter.items() if any(r.running and r.silent_s is not None for r in answers))


def sealed(voters: tuple[str, ...], signs: Signs, since: float, now: float) -> dict[str, int]:
    """Which of these voters can no longer acknowledge anything to the old leader, each with its position.

    Twice, asked after `since`, each showed no walreceiver, no primary_conninfo to start one with, a startup process
    that waits at the end of all WAL it has, and the same position; the newer answer is at most a second old. A standby
    that replays, is paused, delayed or stuck does not wait there: it may hold more than it says, or not know yet that
    it has no leader to follow.
    """
    positions = {}
    for voter in voters:
        answers = signs[voter].receivers if voter in signs else ()
        left = all(not (r.running or r.connects or r.lacks) and r.waits and r.asked_at > since for r in answers)
        still = len({r.position for r in answers}) == 1 and answers[-1].asked_at - answers[0].asked_at > _APART_S
        if left and still and answers[-1].position and now - answers[-1].asked_at < _FRESH_S:
            positions[voter] = answers[-1].position
    return positions


def enough(lock: LockState, sealed_voters: Mapping[str, int]) -> bool:
    """Whether no set of standbys that could acknowledge a commit is left: quorum + 1 voters are sealed."""
    return len(sealed_voters) >= lock.quorum + 1


def why_cannot_lead(lock: LockState, voter: str, signs: Signs, now: float) -> str | None:
    """Why this voter cannot be handed the lock, by its own key and by its own Patroni; None where it can."""
    if voter not in lock.counted:
        return "its key in etcd has ended, or it is tagged"
    if not lock.candidates[voter].running:
        return "not running"
    known = signs.get(voter, MemberSigns())
    return (known.unfit or None) if _patroni_answers(known, now) else "its Patroni does not say that it can lead"


def _patroni_answers(known: MemberSigns, now: float) -> bool:
    return known.fit_at is not None and now - known.fit_at < _FIT_S


def successor(lock: LockState, sealed_voters: Mapping[str, int], signs: Signs, now: float) -> str | None:
    """The sealed voter to lead: of those with the most WAL one that can, by its priority; None when none of them can.

    Never one with less: a commit may have been acknowledged by the one that has more.
    """
    if max(sealed_voters.values(), default=0) < lock.least_position:
        return None
    able = [(-lock.candidates[v].priority, v) for v in ahead(sealed_voters) if not why_cannot_lead(lock, v, signs, now)]
    return min(able)[1] if able else None


def ahead(sealed_voters: Mapping[str, int]) -> tuple[str, ...]:
    """Those with the most WAL."""
    most = max(sealed_voters.values(), default=0)
    return tuple(v for v, at in sealed_voters.items() if at == most)
