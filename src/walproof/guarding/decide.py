"""What a guard does next, from what it saw and what it did. Pure: a turn is (memory, sight) → (memory, action)."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from walproof.guarding.seal_quorum import (
    ahead,
    answering,
    connected,
    enough,
    sealed,
    streaming,
    successor,
    why_cannot_lead,
    why_hands_off,
    why_not,
    why_void,
)
from walproof.guarding.suspicion import Silences, last_sign, overdue, serves_clients_only, signs_of, witness
from walproof.model.takeover import LockState, Seal, Signs

_MOST_S = 3600.0
"""The longest time between two takeovers that doubling comes to."""

_LAGS = "it lags more than maximum_lag_on_failover allows"
_REST_S = 0.5
"""How long standbys beyond those that are needed are waited for: a successor that dies at once finds all sealed."""


class State(StrEnum):
    """What a guard is doing."""

    NOT_READY = "not ready"
    WATCHING = "watching"
    SUSPECTING = "suspecting"
    SEALED = "sealed"
    HANDED_OVER = "handed over"


class Act(StrEnum):
    """What the shell can do."""

    NONE = "none"
    SEAL = "seal"
    HAND_OVER = "hand over"


@dataclass(frozen=True, slots=True)
class Action:
    """What the shell does next; to: the successor."""

    act: Act = Act.NONE
    to: str = ""


NOTHING = Action()


@dataclass(frozen=True, slots=True)
class Policy:
    """How this guard behaves. name: what it writes into the leader lock; seconds all."""

    name: str
    suspect_after_s: float = 1.0
    at_most_every_s: float = 15.0
    """Least time between takeovers by any guard; it doubles with each that comes before twice that time has passed."""
    moves_dcs_leader: bool = False
    """Whether it moves the DCS's own leader off the machine of the lock's holder: it renews every lease in that DCS."""
    learns_s: float = 5.0
    """How long it watches a leader before it may suspect it."""
    resumes_after_s: float = 2.0
    """How long it leaves another guard's lock alone."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen in one turn; stalled: the guard itself did not run for a while, so no silence counts."""

    now: float
    lock: LockState
    signs: Signs
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """When each step of a takeover was done (seconds since the epoch), None when it was not."""

    last_sign: float = 0.0
    suspected: float | None = None
    sealed: float | None = None
    checked: float | None = None
    promoted: float | None = None

    @property
    def durations_s(self) -> dict[str, float]:
        """Seconds of each step that was done."""
        times = {
            "suspect": self.suspected, "seal": self.sealed, "check": self.checked, "promote": self.promoted
        }  # fmt: skip
        durations, before = {}, self.last_sign
        for name, at in times.items():
            if at is not None:
                durations[name] = round(at - before, 3)
                before = at
        return durations


@dataclass(frozen=True, slots=True)
class Memory:
    """What a guard remembers from turn to turn."""

    state: State = State.NOT_READY
    why_not: str = "just started"
    leader: str = ""
    leader_version: int = 0
    leader_since: float = 0.0
    last_sign: float = 0.0
    followed: frozenset[str] = frozenset()
    """The voters that streamed from this leader while this guard watched."""
    checked_at: float = 0.0
    """When the signs of life were last checked."""
    silences: Silences = field(default_factory=Silences)
    steps: Steps = field(default_factory=Steps)
    enough_since: float | None = None
    """Since when enough standbys are sealed."""
    sealed_until: float = 0.0
    successor: str = ""
    noted: str = ""
    """What the log says already of a leader that some see and some do not."""
    left: int = 0
    """The version of a seal that this guard has left to Patroni: it is not taken up again."""
    others_since: tuple[int, float] | None = None
    """The version of another guard's seal, and since when it has been seen."""
    config: tuple[int, float] = (0, float("-inf"))
    """The version of the configuration, and when this guard saw it change: at its start too, it may be just changed."""
    tried_at: float = float("-inf")
    """When a transaction ended whose outcome is not known: the lock is read again before another one."""
    would_at: float = float("-inf")
    """When it would have taken the lock, had it not been a dry run."""
    suspicions: int = 0
    takeovers: int = 0
    lines: tuple[str, ...] = field(default=())
    """What is worth a line in the log, of this turn."""


def turn(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    """One turn: what is remembered next, and what to do."""
    idle = "this guard did not run for a while: what it did not hear meanwhile does not count"
    memory = replace(memory, lines=(idle,) if sight.stalled else ())
    if sight.lock.config_version != memory.config[0]:
        memory = replace(memory, config=(sight.lock.config_version, sight.now))
    acts = memory.state in (State.SEALED, State.HANDED_OVER)
    new = sight.lock.holder_version != memory.left and sight.lock.at > (memory.steps.checked or 0.0)
    if sight.lock.holder == policy.name and not acts and new:
        # The answer to our own transaction was lost.
        steps = memory.steps if memory.steps.suspected else Steps(sight.now, sight.now)
        memory = taken(replace(memory, steps=steps), sight.lock, sight.now)
    match memory.state:
        case State.SEALED:
            return _check(memory, sight, policy)
        case State.HANDED_OVER:
            return _await_promotion(memory, sight), NOTHING
    if sight.lock.sealed:
        return _await_other_guard(memory, sight, policy)
    return _watch(memory, sight, policy)


def seal_of(memory: Memory, sight: Sight, policy: Policy) -> Seal:
    """What the lock is taken with; another guard's seal is gone on with."""
    lock = sight.lock
    if lock.seal:
        return lock.seal
    followers = connected(lock, sight.signs, sight.now, memory.followed)
    limit_s = max(min(2 * lock.limit_s, _MOST_S), policy.at_most_every_s)
    return Seal(followers, lock.config_version, lock.failover_version, limit_s)


def taken(memory: Memory, lock: LockState, now: float) -> Memory:
    """The lock is ours since at most `now`; lock: with /sync and the times, which no transaction of a seal changes."""
    line = f"sealed: {lock.sync_leader} no longer holds the leader lock"
    return replace(
        memory,
        state=State.SEALED,
        steps=replace(memory.steps, sealed=now),
        enough_since=None,
        sealed_until=now + lock.ttl_s,
        successor="",
        why_not="",
        lines=(*memory.lines, line),
    )


def not_known(memory: Memory, now: float) -> Memory:
    """Whether a transaction was done the next reading of the lock says."""
    return replace(memory, tried_at=now)


def not_taken(memory: Memory) -> Memory:
    """The lock changed hands before we could take it."""
    return _gives_up(memory, "not sealed: the lock, /sync or the configuration changed meanwhile")


def _gives_up(memory: Memory, line: str) -> Memory:
    return replace(memory, state=State.NOT_READY, why_not="", lines=(*memory.lines, line))


def handed_over(memory: Memory, now: float) -> Memory:
    """The lock is the successor's."""
    line = f"handed over: {memory.successor} holds the leader lock"
    return replace(
        memory,
        state=State.HANDED_OVER,
        steps=replace(memory.steps, checked=now),
        takeovers=memory.takeovers + 1,
        lines=(*memory.lines, line),
    )


def _check(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    since = memory.steps.sealed
    assert since is not None
    fresh = sight.lock.at > since
    if fresh and memory.successor and sight.lock.holder == memory.successor:
        return handed_over(memory, sight.now), NOTHING  # the answer to our hand-over was lost
    if fresh and sight.lock.holder != policy.name:
        # Another guard's seal may have to be gone on with one day.
        return _gives_up(memory, "the lock is no longer ours: left alone"), NOTHING
    late = sight.now > memory.sealed_until
    if not fresh and not late:
        return memory, NOTHING
    if void := "not handed over in time" if late else why_void(sight.lock):
        # The seal is Patroni's now: its lease ends, and Patroni elects as without a guard.
        line = f"{void}: left to Patroni, which elects when the seal's lease ends"
        return _gives_up(replace(memory, left=sight.lock.holder_version), line), NOTHING
    assert sight.lock.seal is not None
    voters = tuple(v for v in sight.lock.seal.connected if v in sight.lock.counted)
    positions = sealed(voters, sight.signs, since, sight.now)
    if why_hands_off(sight.lock, sight.now) or not enough(sight.lock, positions):
        return memory, NOTHING
    memory = replace(memory, enough_since=memory.enough_since or sight.now)
    assert memory.enough_since is not None
    waited = sight.now - memory.enough_since >= _REST_S
    if not waited and set(answering(sight.lock, sight.signs, sight.now)) - set(positions):
        return memory, NOTHING
    to = successor(sight.lock, positions, sight.signs, sight.now)
    if to is None:
        able = ((v, why_cannot_lead(sight.lock, v, sight.signs, sight.now)) for v in ahead(positions))
        why = f"no standby with the most WAL can lead: {', '.join(f'{v} ({reason or _LAGS})' for v, reason in able)}"
        lines = (f"sealed, but {why}",) if why != memory.why_not else ()
        return replace(memory, why_not=why, lines=(*memory.lines, *lines)), NOTHING
    return replace(memory, successor=to), Action(Act.HAND_OVER, to)


def _await_promotion(memory: Memory, sight: Sight) -> Memory:
    signs, checked = sight.signs.get(memory.successor), memory.steps.checked
    assert checked is not None
    # A member that answers SQL and has no walreceiver of its own to tell of is in recovery no more.
    if signs is not None and signs.sql_at is not None and signs.sql_at > checked and not signs.receivers:
        steps = replace(memory.steps, promoted=sight.now)
        took = sum(steps.durations_s.values())
        line = f"{memory.successor} leads {took:.2f} s after the last sign of life of its predecessor"
        return replace(memory, state=State.NOT_READY, why_not="", steps=steps, lines=(line,))
    if sight.now - checked > sight.lock.ttl_s:
        line = f"{memory.successor} was not promoted: Patroni's log there says why"
        return replace(memory, state=State.NOT_READY, why_not="", lines=(line,))
    return memory


def _await_other_guard(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    """Another guard has sealed. It is left alone for a while, then its seal is taken over: it may have died."""
    version, since = memory.others_since or (0, sight.now)
    since = since if version == sight.lock.holder_version else sight.now
    memory = replace(memory, others_since=(sight.lock.holder_version, since))
    memory = replace(memory, state=State.NOT_READY, why_not="another guard holds the leader lock")
    left = sight.lock.holder_version == memory.left or why_void(sight.lock) or why_hands_off(sight.lock, sight.now)
    if left or policy.dry_run or sight.now - since < policy.resumes_after_s:
        return memory, NOTHING
    steps = Steps(last_sign=since, suspected=sight.now)
    line = f"{sight.lock.holder} does not go on: taking its seal over"
    return replace(memory, others_since=None, steps=steps, lines=(line,)), Action(Act.SEAL)


def _watch(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    before = memory.checked_at
    memory = replace(_heard(memory, sight, policy), checked_at=sight.now)
    allowed_s = memory.silences.allowed_s(policy.suspect_after_s)
    reason = why_not(sight.lock, sight.signs, sight.now, memory.followed) or _too_soon(memory, sight, policy)
    silent = sight.now - memory.last_sign >= allowed_s
    if reason:
        # Where it never was ready too: when it has learned enough, and when that matters.
        shown_at = (memory.leader_since + policy.learns_s, memory.last_sign + allowed_s)
        worth = reason != memory.why_not and (silent or memory.state is not State.NOT_READY)
        worth = worth or any(before < at <= sight.now for at in shown_at)
        lines = (f"not ready: {reason}",) if worth else ()
        return replace(memory, state=State.NOT_READY, why_not=reason, lines=(*memory.lines, *lines)), NOTHING
    seen_by = witness(sight.lock, sight.signs, sight.now)
    if silent and seen_by:
        return _suspect(memory, sight, policy, seen_by)
    return _watching(memory, sight, allowed_s, silent=silent), NOTHING


def _watching(memory: Memory, sight: Sight, allowed_s: float, *, silent: bool) -> Memory:
    """Nothing is suspicious, or only half: what is half is noted once."""
    holder, note = sight.lock.holder, ""
    if silent:
        note = f"{holder} is silent to this guard, but nothing else shows that it is gone: left alone"
    elif serves_clients_only(sight.lock, sight.signs, sight.now, allowed_s):
        note = f"{holder} answers SQL, but neither renews its lease nor is heard by a standby: left alone"
    lines = (note,) if note and note != memory.noted else ()
    noted = note or (memory.noted if overdue(sight.lock) else "")
    if memory.state is State.SUSPECTING and not silent:
        signs = signs_of(sight.lock, sight.signs)
        lines = (f"{holder} lives after all, by {max(signs, key=lambda what: signs[what])}",)
    elif memory.state is State.NOT_READY:
        lines = (f"watching {holder}, synchronous: {', '.join(sight.lock.voters)}", *lines)
    return replace(memory, state=State.WATCHING, why_not=note, noted=noted, lines=(*memory.lines, *lines))


def _suspect(memory: Memory, sight: Sight, policy: Policy, seen_by: str) -> tuple[Memory, Action]:
    if memory.state is not State.SUSPECTING:
        silence = sight.now - memory.last_sign
        line = (
            f"suspect {sight.lock.holder}: REST, SQL, lease and every walreceiver silent for {silence:.2f} s; {seen_by}"
        )
        memory = replace(
            memory,
            state=State.SUSPECTING,
            suspicions=memory.suspicions + 1,
            steps=Steps(last_sign=memory.last_sign, suspected=sight.now),
            lines=(*memory.lines, line),
        )
    if sight.lock.at < max(memory.steps.suspected or 0.0, memory.tried_at):
        return memory, NOTHING  # the lock is read again before it is taken
    if policy.dry_run:
        line = f"would take the leader lock from {sight.lock.holder} (dry run)"
        return replace(memory, would_at=sight.now, lines=(*memory.lines, line)), NOTHING
    return memory, Action(Act.SEAL)


def _heard(memory: Memory, sight: Sight, policy: Policy) -> Memory:
    """The last sign of life, and the silence it ended: as long as it was when it was last checked."""
    lock = sight.lock
    if (lock.holder, lock.holder_version) != (memory.leader, memory.leader_version):
        # The same member again may be another term of it.
        known = replace(memory, leader=lock.holder, leader_version=lock.holder_version, leader_since=sight.now)
        return replace(known, last_sign=sight.now, noted="", followed=frozenset())
    # At first a standby may still stream from the leader's predecessor. A leader that is known for less than learns_s
    # has no followers, and `why_not` names too few standbys.
    learned = sight.now - memory.leader_since >= policy.learns_s
    followed = memory.followed | streaming(lock, sight.signs) if learned else frozenset()
    memory = replace(memory, followed=followed)
    heard = sight.now if sight.stalled else last_sign(lock, sight.signs)
    if heard <= memory.last_sign:
        return memory
    heard_again = replace(memory, last_sign=heard)
    if sight.stalled or sight.now - memory.leader_since < policy.learns_s:
        return heard_again
    # What came between two turns is not silence: the guard may have been busy itself.
    silence = min(heard, memory.checked_at) - memory.last_sign
    return replace(heard_again, silences=memory.silences.with_one(heard, max(0.0, silence)))


def _too_soon(memory: Memory, sight: Sight, policy: Policy) -> str | None:
    limit_s = max(sight.lock.limit_s, policy.at_most_every_s)
    if sight.now - max(sight.lock.limited_at, memory.would_at) < limit_s:
        return f"a takeover was less than {limit_s:g} s ago"
    if sight.now - memory.config[1] < sight.lock.ttl_s:
        # A leader in the middle of a cycle may still act by the former one (ha.py, disable_synchronous_replication).
        return f"the configuration may have been changed less than {sight.lock.ttl_s:g} s ago"
    return None
