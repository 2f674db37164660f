"""How long a leader has shown no sign of life, and how long it may. Pure."""

from dataclasses import dataclass

from walproof.model.takeover import LockState, Signs

MEMORY_S = 600.0
"""For how long a silence that ended by itself is remembered."""
FACTOR = 1.5
MOST = 2.5
"""The longest silence allowed, as a multiple of the shortest: a wrong suspicion is cheap, a late one is not."""


@dataclass(frozen=True, slots=True)
class Silences:
    """Silences of a living leader, seconds, each with when it ended: what is normal here."""

    seen: tuple[tuple[float, float], ...] = ()

    def with_one(self, ended_at: float, length_s: float) -> "Silences":
        """That silence too; only the longest of each minute is kept."""
        kept = [(at, s) for at, s in self.seen if ended_at - at < MEMORY_S]
        if kept and ended_at - kept[-1][0] < 60:
            at, longest = kept.pop()
            return Silences((*kept, (at, max(longest, length_s))))
        return Silences((*kept, (ended_at, length_s)))

    def allowed_s(self, least_s: float) -> float:
        """How long a silence may be before it is suspicious: 1.5 times the longest remembered, within limits.

        >>> [round(Silences(((0.0, longest),)).allowed_s(1.0), 1) for longest in (0.1, 0.8, 9.0)]
        [1.0, 1.2, 2.5]
        """
        longest = max((s for _, s in self.seen), default=0.0)
        return min(max(least_s, FACTOR * longest), MOST * least_s)


def signs_of(lock: LockState, signs: Signs) -> dict[str, float]:
    """When the lock's holder last showed that it lives (seconds since the epoch), by what showed it.

    By Patroni's REST, by SQL, by a renewal of its lease, or by a message to the walreceiver of a voter.
    """
    leader, found = signs.get(lock.holder), dict[str, float]()
    if leader is not None:
        found |= {what: at for what, at in (("REST", leader.rest_at), ("SQL", leader.sql_at)) if at is not None}
    if lock.lease_age_s is not None:
        found["lease"] = lock.at - lock.lease_age_s
    for voter in lock.voters:
        for receiver in signs[voter].receivers if voter in signs else ():
            if receiver.running and receiver.silent_s is not None:
                found[f"walreceiver of {voter}"] = receiver.asked_at - receiver.silent_s
    return found


def last_sign(lock: LockState, signs: Signs) -> float:
    """The last of them, 0 for never."""
    return max(signs_of(lock, signs).values(), default=0.0)


def overdue(lock: LockState) -> bool:
    """Whether the leader should have renewed its lease by now, as far as that is known."""
    return lock.lease_age_s is not None and lock.lease_age_s >= lock.ttl_s / 2


def serves_clients_only(lock: LockState, signs: Signs, now: float, allowed_s: float) -> bool:
    """Whether the leader answers SQL although it neither renews its lease nor reaches a voter: a partition."""
    leader = signs.get(lock.holder)
    answers = leader is not None and leader.sql_at is not None and now - leader.sql_at < allowed_s
    receivers = [signs[v].receivers[-1] for v in lock.voters if v in signs and signs[v].receivers]
    reached = any(r.running and r.silent_s is not None and r.silent_s < allowed_s for r in receivers)
    return answers and overdue(lock) and not reached
