"""What a guard of CloudNativePG does about a frozen primary. Pure: a turn is (memory, sight) → (memory, action)."""

from dataclasses import dataclass, replace
from enum import StrEnum

from walproof.guarding.kubernetes_sight import ASKED_S, PENDING, READ_S, Sight, first, why_left_alone, why_not

_LEAST_S, _GAP_S, _APART_S = 1.5, 1.0, 3.0
"""The shortest silence to SQL that is suspicious; a place's other silence that ends every proof, for whatever it was
may have hit the ways to PostgreSQL too; how long after SQL WAL may fall silent."""
_VALID_S, _DIED_S, _ELECTED_S = 2.0, 20.0, 60.0
"""How long a decision or a claim holds; after the deletion, how long the pod's end and the election are waited for."""
_MARGIN_S, _LATE_S = 0.3, 0.5
"""How late a message of the primary may be, and a renewal of its Lease."""
_REST_S, _RETRIED_S = 600.0, 5.0
"""The least time after a takeover of a Cluster by any guard, and after an announcement whose pod was not deleted."""


class State(StrEnum):
    """What a guard is doing; from the announcement on a takeover is under way."""

    NOT_READY = "not ready"
    WATCHING = "watching"
    SUSPECTING = "suspecting"
    CLAIMED = "takeover announced"
    DELETED = "pod deleted"


CALM = (State.NOT_READY, State.WATCHING)


class Act(StrEnum):
    """What the shell can do."""

    CLAIM = "announce the takeover"
    DELETE_POD = "delete the pod"
    EMPTY_LEASE = "empty the Lease"


@dataclass(frozen=True, slots=True)
class Policy:
    """How this guard behaves. name: what it announces a takeover by; learns_s: how long it watches a primary first."""

    name: str
    suspect_after_s: float = 1.0
    learns_s: float = 5.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """What the shell does next, never after `until`. onto: the resourceVersion that was seen; of a pod its uid."""

    act: Act
    onto: str
    until: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What a guard remembers from turn to turn.

    uid: of the primary's pod, "" once that is gone. since: it is watched, and every place answers, or waits after an
    answer; doubt: what was otherwise before. followed: who streamed from it; heard_at: the last that any of them heard.
    renewed, renewed_at, gap_s: the Lease's holder and renewTime, when they were first known, and the longest time
    between two, which is forgotten slowly. claim, claimed_at: the last announcement, and when it was first seen.
    step_at: of the takeover's last step.
    """

    state: State = State.NOT_READY
    why_not: str = "just started"
    primary: str = ""
    uid: str = ""
    since: float = 0.0
    doubt: str = ""
    followed: frozenset[str] = frozenset()
    heard_at: float = 0.0
    renewed: tuple[str, str] = ("", "")
    renewed_at: float = 0.0
    gap_s: float = 0.0
    claim: tuple[str, str, str] = ("", "", "")
    claimed_at: float = 0.0
    step_at: float = 0.0
    suspicions: int = 0
    takeovers: int = 0


Turn = tuple[Memory, Action | None]


def turn(memory: Memory, sight: Sight, policy: Policy) -> Turn:
    """One turn: what is remembered next, and what to do."""
    memory = _seen(memory, sight)
    if memory.state in (*CALM, State.SUSPECTING):
        return _watch(memory, sight, policy)
    dying = bool(memory.uid) and sight.pod == memory.uid
    limit_s = _VALID_S + ASKED_S if memory.state is State.CLAIMED else _DIED_S if dying else _ELECTED_S
    if sight.now - memory.step_at > limit_s:
        return _stops(memory, f"no more was seen within {limit_s:g} s"), None
    if sight.read_at <= memory.step_at or sight.now - sight.read_at > READ_S:
        return memory, None
    if memory.state is State.CLAIMED:
        return _delete(memory, sight, policy)
    if dying:
        return memory, None
    if memory.uid:  # its object is gone: everything is read once more before the last act
        return replace(memory, uid="", step_at=sight.now), None
    return _await_election(memory, sight)


def done(memory: Memory, action: Action, now: float) -> Memory:
    """The API has done it, at most at `now`."""
    if action.act is Act.EMPTY_LEASE:
        return replace(memory, state=State.NOT_READY, why_not="Lease emptied: the chosen instance takes it")
    deleted = action.act is Act.DELETE_POD
    state = State.DELETED if deleted else State.CLAIMED
    return replace(memory, state=state, step_at=now, takeovers=memory.takeovers + deleted)


def not_done(memory: Memory, action: Action, why: str) -> Memory:
    """The API has refused it, or whether it was done is not known: no more is changed then, the operator goes on."""
    return _stops(memory, f"could not {action.act}: {why}")


def _stops(memory: Memory, why: str) -> Memory:
    return replace(memory, state=State.NOT_READY, why_not=f"{why}; no more is changed, the rest is the operator's")


def _seen(memory: Memory, sight: Sight) -> Memory:
    """What every turn remembers: whom it watches and since when, signs of life, renewals of the Lease, the claim."""
    now, c, renewed = sight.now, sight.cluster, (sight.lease.holder, sight.lease.renewed)
    if memory.state is not State.DELETED and (c.primary, sight.pod) != (memory.primary, memory.uid):
        memory = replace(memory, primary=c.primary, uid=sight.pod, followed=frozenset(), heard_at=0.0)
        memory = replace(memory, since=now, doubt=f"{c.primary} was found")
    follow = frozenset(name for name, one in sight.answering.items() if one.streams)
    heard_at = max(memory.heard_at, *(one.heard_at for one in sight.answering.values()), 0.0)
    memory = replace(memory, followed=memory.followed | follow, heard_at=heard_at)
    if doubt := _no_freeze(memory, sight):
        memory = replace(memory, since=now, doubt=doubt)
    if renewed != memory.renewed:
        gap_s = now - memory.renewed_at if renewed[0] == memory.renewed[0] else 0.0
        memory = replace(memory, renewed=renewed, renewed_at=now, gap_s=min(max(gap_s, 0.98 * memory.gap_s), 10.0))
    # Clocks of two machines differ: it counts from when it is seen first, and on where it is taken away.
    new = c.claim[0] and c.claim != memory.claim
    return replace(memory, claim=c.claim, claimed_at=now) if new else memory


def _no_freeze(memory: Memory, sight: Sight) -> str:
    """Why a silence is not a frozen server's, "" for no reason: there SQL and WAL end together, and all else lives."""
    now, heard_at, ways = sight.now, memory.heard_at, (sight.service, sight.direct)
    waits = [way.waiting_since or now for way in ways]
    refuses = any(since - way.answered_at > _GAP_S for since, way in zip(waits, ways, strict=True))
    return first(
        (sight.stalled, "the guard stood still"),
        (refuses, f"the write service or {memory.primary} did not answer"),
        (now - sight.manager.answered_at > _GAP_S, f"the manager of {memory.primary} did not answer"),
        (heard_at - min(waits) > _APART_S, "WAL came without SQL"),
        (min(*waits, sight.asked_at) - heard_at > sight.pings_s + _MARGIN_S, "SQL came without WAL"),
    )


def _too_soon(memory: Memory, sight: Sight, policy: Policy) -> str:
    now, (by, uid, _) = sight.now, memory.claim
    rest_s = _RETRIED_S if uid == sight.pod else _REST_S
    if by and now - memory.claimed_at < rest_s:
        return f"{by} announced a takeover {now - memory.claimed_at:.0f} s ago: one in {rest_s:.0f} s"
    if now - memory.since >= policy.learns_s:
        return ""
    return memory.doubt + (f" within the last {policy.learns_s:g} s" if now > memory.since else "")


def _frozen(memory: Memory, sight: Sight, policy: Policy) -> bool:
    """Whether PostgreSQL alone is silent: to SQL by both ways and to every standby, while its manager lives.

    An attempt has to be waiting: a way that is not tried proves nothing.
    """
    now, allowed_s = sight.now, max(policy.suspect_after_s, _LEAST_S)
    waits = [now - max(way.waiting_since or now, memory.since) for way in (sight.service, sight.direct)]
    streams_s, pings_s = sight.asked_at - max(memory.heard_at, memory.since), sight.pings_s + _MARGIN_S
    lives = now - memory.renewed_at < 2 * sight.lease.retry_s
    return min(waits) >= allowed_s and streams_s >= max(allowed_s, pings_s) and lives


def _watch(memory: Memory, sight: Sight, policy: Policy) -> Turn:
    if reason := why_not(sight, memory.followed) or _too_soon(memory, sight, policy):
        return replace(memory, state=State.NOT_READY, why_not=reason), None
    if not _frozen(memory, sight, policy):
        return replace(memory, state=State.WATCHING, why_not=""), None
    if memory.state is not State.SUSPECTING:
        why = f"no SQL and no WAL for {sight.now - memory.heard_at:.2f} s, its manager lives"
        return replace(memory, state=State.SUSPECTING, why_not=why, suspicions=memory.suspicions + 1), None
    return memory, None if policy.dry_run else Action(Act.CLAIM, sight.cluster.version, sight.now + _VALID_S)


def _delete(memory: Memory, sight: Sight, policy: Policy) -> Turn:
    """The claim is ours: all is checked once more, by what was read and asked, and not answered, since."""
    its_own = sight.cluster.claim[:2] == (policy.name, memory.uid)
    reason = why_not(sight, memory.followed) if its_own else "the announcement is not this guard's"
    if reason or not _frozen(memory, sight, policy):
        return _stops(memory, reason or f"{memory.primary} lives after all, or was out of sight"), None
    # Longer than a login takes, and so long that every standby was asked since the claim.
    if sight.now - memory.step_at < ASKED_S:
        return memory, None
    return memory, Action(Act.DELETE_POD, memory.uid, sight.now + _VALID_S)


def _await_election(memory: Memory, sight: Sight) -> Turn:
    """The pod's object is gone: empty the Lease of its instance, once the operator has chosen another."""
    if left := why_left_alone(sight, memory.primary):
        return _stops(memory, left), None
    # A second proof: a living manager, of a pod that somebody deleted with force meanwhile, would have renewed it.
    silent = sight.read_at - memory.renewed_at >= max(sight.lease.retry_s, memory.gap_s) + _LATE_S
    if not silent or sight.cluster.target in (memory.primary, PENDING, ""):
        return memory, None
    return memory, Action(Act.EMPTY_LEASE, sight.lease.version, sight.now + _VALID_S)
