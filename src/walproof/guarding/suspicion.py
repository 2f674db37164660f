"""How long a leader has shown no sign of life, how long it may, and who else has lost sight of it. Pure."""

from dataclasses import dataclass

from walproof.guarding.seal_quorum import LATE_S, answering
from walproof.model.takeover import LockState, MemberSigns, Receiver, Signs

MEMORY_S = 600.0
"""For how long a silence that ended by itself is remembered."""
FACTOR = 1.5
_ANSWER_S = 0.3
"""For how long a living leader may leave its standby's question unanswered."""
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
        return min(max(least_s, FACTOR * max((s for _, s in self.seen), default=0.0)), MOST * least_s)


def signs_of(lock: LockState, signs: Signs) -> dict[str, float]:
    """When the lock's holder last showed that it lives (seconds since the epoch), by what showed it.

    By Patroni's REST, by SQL, a refusal of a server that shuts down too, by a renewal of its lease, or by a message to
    the walreceiver of a voter.
    """
    leader = signs.get(lock.holder, MemberSigns())
    heard: dict[str, float | None] = {
        "REST": leader.rest_at,
        "SQL": leader.sql_at,
        "a refusal over SQL": leader.refused_at,
    }
    if lock.lease_age_s is not None and lock.lease_renewed:
        heard["lease"] = lock.at - lock.lease_age_s
    for voter in lock.counted:  # those tagged to follow another member hear that one
        for receiver in signs[voter].receivers if voter in signs else ():
            if receiver.running and receiver.silent_s is not None:
                # A clock may be set back.
                heard[f"walreceiver of {voter}"] = receiver.asked_at - max(0.0, receiver.silent_s)
    return {what: at for what, at in heard.items() if at is not None}


def witness(lock: LockState, signs: Signs, now: float) -> str:
    """Who besides this guard has lost sight of the leader; "" for none: then the guard's own way to it may be cut.

    Its lease should have been renewed; or no standby that answers reaches it, though each did, and they are quorum + 1:
    it cannot have a commit acknowledged. That a stream is silent proves nothing: perhaps no client writes, because
    they lost their way together with this guard. With failsafe_mode a leader that cannot reach the DCS goes on, as
    long as it reaches every member.
    """
    if overdue(lock) and not lock.failsafe:
        return "its lease is overdue"
    voters = answering(lock, signs, now)
    lost = len(voters) > lock.quorum and all(_lost(signs[v].receivers) for v in voters)
    return "its standbys cannot reach it" if lost else ""


def _lost(answers: tuple[Receiver, ...]) -> bool:
    """Whether a standby that streamed has no server to stream from, or asked the leader for an answer and got none."""
    if len(answers) < 2 or not all(r.connects and r.streamed for r in answers):
        return False
    newest = answers[1].silent_s
    return all(r.silent_s is None for r in answers) or (
        newest is not None and newest >= answers[1].asks_after_s + _ANSWER_S
    )


def last_sign(lock: LockState, signs: Signs) -> float:
    """The last of them, 0 for never."""
    return max(signs_of(lock, signs).values(), default=0.0)


def overdue(lock: LockState) -> bool:
    """Whether the leader should have renewed its lease by now, as far as that is known."""
    return lock.lease_age_s is not None and lock.lease_age_s >= lock.loop_wait_s + LATE_S


def serves_clients_only(lock: LockState, signs: Signs, now: float, allowed_s: float) -> bool:
    """Whether the leader answers SQL although it neither renews its lease nor reaches a voter: a partition."""
    leader = signs.get(lock.holder)
    answers = leader is not None and leader.sql_at is not None and now - leader.sql_at < allowed_s
    receivers = [signs[v].receivers[-1] for v in lock.voters if v in signs and signs[v].receivers]
    reached = any(r.running and r.silent_s is not None and r.silent_s < allowed_s for r in receivers)
    return answers and overdue(lock) and not reached
