"""What a guard of CloudNativePG does next about a frozen primary. Pure: a turn is (memory, sight) → (memory, action).

PostgreSQL hangs under a living instance manager, which goes on renewing the primary's Lease: no successor is promoted.
The guard deletes the pod in order, waits until its kubelet has confirmed the end, lets the operator elect, and empties
the dead holder's Lease. It acts on nothing else, and never on a node that is not Ready. Suspicion takes the standbys'
last_msg_receipt_time, not a probe transaction: it writes nothing; on an idle Cluster, whose WAL receivers hear from the
primary every 2.5 s, it takes up to 3.75 s instead of 1.5 s.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from walproof.guarding.kubernetes_sight import (
    CHANGED_S,
    PENDING,
    READ_S,
    REST_S,
    ClusterSeen,
    Sight,
    Way,
    why_left_alone,
    why_not,
)
from walproof.guarding.suspicion import Silences

_VALID_S = 2.0
"""For how long an action may be begun, and a claim be acted on: a guard that was frozen meanwhile starts again."""
_CONFIRMED_S = 20.0
"""How long the kubelet may take to confirm that the containers have ended."""
_ELECTED_S = 60.0
"""How long the operator may take to name a target, and the target to lead."""
_MARGIN_S = 0.5
"""How late a renewal may be, beyond how often they come."""


class State(StrEnum):
    """What a guard is doing."""

    NOT_READY = "not ready"
    WATCHING = "watching"
    SUSPECTING = "suspecting"
    CLAIMED = "takeover announced"
    DELETED = "pod deleted"
    DEAD = "proven dead"
    EMPTIED = "lease emptied"


class Act(StrEnum):
    """What the shell can do: each onto the version or uid that was seen, and never after `until`."""

    NONE = "none"
    CLAIM = "announce the takeover in an annotation of the Cluster"
    DELETE_POD = "delete the pod with a short grace period"
    EMPTY_LEASE = "empty the Lease's holder"


@dataclass(frozen=True, slots=True)
class Action:
    """What the shell does next; onto: the resourceVersion or, of a pod, the uid."""

    act: Act = Act.NONE
    onto: str = ""
    until: float = 0.0


NOTHING = Action()


@dataclass(frozen=True, slots=True)
class Policy:
    """How this guard behaves. name: what it writes into the annotation, of this process alone; seconds all."""

    name: str
    suspect_after_s: float = 1.5
    learns_s: float = 5.0
    """How long it watches a primary before it may suspect it."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What a guard remembers from turn to turn."""

    state: State = State.NOT_READY
    why_not: str = "just started"
    primary: str = ""
    uid: str = ""
    """The pod that is watched; the one that was deleted from then on."""
    since: float = 0.0
    """Since when this pod is watched as the primary."""
    awake_since: float = 0.0
    """Silences before are this guard's own."""
    followed: frozenset[str] = frozenset()
    silences: Silences = field(default_factory=Silences)
    heard_at: float = 0.0
    configuration: tuple[object, ...] = ()
    configured_at: float = 0.0
    renewed: tuple[str, str] = ("", "")
    """The Lease's holder and renewTime, as last seen."""
    renewed_at: float = 0.0
    """Of the reading that first showed them."""
    step_at: float = 0.0
    """When the last step of a takeover was done."""
    tried_at: float = float("-inf")
    """When an action ended whose outcome the next readings tell."""
    suspicions: int = 0
    takeovers: int = 0
    lines: tuple[str, ...] = ()
    """What is worth a line in the log, of this turn."""


def turn(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    """One turn: what is remembered next, and what to do."""
    memory = _seen(replace(memory, lines=()), sight)
    if memory.state not in (State.CLAIMED, State.DELETED, State.DEAD, State.EMPTIED):
        return _watch(memory, sight, policy)
    if sight.read_at <= max(memory.step_at, memory.tried_at) or sight.now - sight.read_at > READ_S:
        return _late(memory, sight), NOTHING
    match memory.state:
        case State.CLAIMED:
            return _delete(memory, sight, policy)
        case State.DELETED:
            return _await_end(memory, sight), NOTHING
        case State.DEAD:
            return _await_election(memory, sight)
    return _await_promotion(memory, sight), NOTHING


def done(memory: Memory, action: Action, now: float) -> Memory:
    """The API has done it, at most at `now`."""
    step = {Act.CLAIM: State.CLAIMED, Act.DELETE_POD: State.DELETED, Act.EMPTY_LEASE: State.EMPTIED}[action.act]
    return _step(memory, step, now, f"{memory.primary}: {step}")


def refused(memory: Memory, action: Action, now: float) -> Memory:
    """The API has not done it: what it was onto has changed. A Lease may be tried again, nothing before it."""
    if action.act is Act.EMPTY_LEASE:
        return replace(memory, tried_at=now)
    return _stops(memory, "something changed meanwhile")


def not_known(memory: Memory, action: Action, now: float) -> Memory:
    """Whether the API has done it is not known. A pod counts as deleted: only its end is waited for; else read again.

    A claim that is not known is not acted on: another guard's may stand there.
    """
    if action.act is Act.DELETE_POD:
        return done(memory, action, now)
    if action.act is Act.CLAIM:
        return _stops(memory, "whether the takeover was announced is not known")
    return replace(memory, tried_at=now)


def _step(memory: Memory, state: State, now: float, line: str) -> Memory:
    return replace(memory, state=state, why_not="", step_at=now, lines=(*memory.lines, line))


def _stops(memory: Memory, why: str) -> Memory:
    line = f"stopped ({memory.state}): {why}; nothing more is changed, the rest is the operator's"
    return replace(memory, state=State.NOT_READY, why_not=why, uid="", lines=(*memory.lines, line))


def _late(memory: Memory, sight: Sight) -> Memory:
    limit_s = {State.CLAIMED: _VALID_S, State.DELETED: _CONFIRMED_S}.get(memory.state, _ELECTED_S)
    if sight.now - memory.step_at > limit_s:
        return _stops(memory, f"no more was seen within {limit_s:g} s")
    return memory


def _of(cluster: ClusterSeen) -> tuple[object, ...]:
    return cluster.instances, cluster.durability, cluster.number, cluster.in_effect


def _seen(memory: Memory, sight: Sight) -> Memory:
    """What every turn remembers: renewals of the Lease, changes of the configuration, the guard's own pauses."""
    lease, now = sight.lease, sight.now
    if sight.stalled:
        memory = replace(memory, awake_since=now)
    if (lease.holder, lease.renewed) != memory.renewed:
        memory = replace(memory, renewed=(lease.holder, lease.renewed), renewed_at=lease.at)
    if _of(sight.cluster) != memory.configuration:
        memory = replace(memory, configuration=_of(sight.cluster), configured_at=now)
    return memory


def _heard(memory: Memory, sight: Sight) -> Memory:
    """Signs of life of the primary that is watched; what is normal here."""
    pod, cluster, now = sight.pod, sight.cluster, sight.now
    if (cluster.primary, pod.uid) != (memory.primary, memory.uid):
        memory = replace(memory, primary=cluster.primary, uid=pod.uid, since=now, followed=frozenset(), heard_at=0.0)
    answers = sight.answering(now - 1.0)
    follow = frozenset(name for name, one in answers.items() if one.streams)
    heard_at = max((one.heard_at for one in answers.values()), default=0.0)
    silences = memory.silences
    if heard_at > memory.heard_at > max(memory.since, memory.awake_since):
        silences = silences.with_one(heard_at, heard_at - memory.heard_at)
    heard_at = max(heard_at, memory.heard_at)
    return replace(memory, followed=memory.followed | follow, silences=silences, heard_at=heard_at)


def _too_soon(memory: Memory, sight: Sight, policy: Policy) -> str:
    now, taken_at = sight.now, sight.cluster.taken_at
    if taken_at and now - taken_at < REST_S:
        return f"{sight.cluster.taken_by} announced a takeover {now - taken_at:.0f} s ago: one in {REST_S:.0f} s"
    if now - max(memory.since, memory.awake_since) < policy.learns_s:
        return f"{sight.cluster.primary} is watched for less than {policy.learns_s:g} s"
    if now - memory.configured_at < CHANGED_S:
        return f"instances or synchronous standbys changed less than {CHANGED_S:g} s ago"
    return ""


def _silent(way: Way, since: float, now: float, allowed_s: float) -> bool:
    """Whether an attempt that still waits has waited too long; a way that is not tried proves nothing."""
    return way.waiting_since is not None and now - max(way.waiting_since, since) >= allowed_s


def _frozen(memory: Memory, sight: Sight, policy: Policy) -> bool:
    """Whether PostgreSQL alone is silent: to SQL by both ways and to every standby, while its manager lives."""
    now, allowed_s = sight.now, memory.silences.allowed_s(policy.suspect_after_s)
    ways = all(_silent(way, memory.awake_since, now, allowed_s) for way in (sight.service, sight.direct))
    streams = now - max(memory.heard_at, memory.awake_since) >= allowed_s
    answered_s, renewed_s = now - sight.manager.answered_at, now - memory.renewed_at
    return ways and streams and answered_s < allowed_s and renewed_s < 2 * sight.lease.retry_s


def _watch(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    memory = _heard(memory, sight)
    if reason := why_not(sight, memory.followed) or _too_soon(memory, sight, policy):
        lines = (f"not ready: {reason}",) if memory.state is not State.NOT_READY else ()
        return replace(memory, state=State.NOT_READY, why_not=reason, lines=(*memory.lines, *lines)), NOTHING
    if not _frozen(memory, sight, policy):
        lines = () if memory.state is State.WATCHING else (f"watching {memory.primary}",)
        return replace(memory, state=State.WATCHING, why_not="", lines=(*memory.lines, *lines)), NOTHING
    if memory.state is not State.SUSPECTING:
        line = f"suspect {memory.primary}: no SQL and no WAL for {sight.now - memory.heard_at:.2f} s, its manager lives"
        memory = replace(memory, suspicions=memory.suspicions + 1, tried_at=sight.now)
        return _step(
            memory, State.SUSPECTING, sight.now, line
        ), NOTHING  # everything is read again before the first act
    if sight.read_at <= memory.tried_at or policy.dry_run:
        return memory, NOTHING
    return memory, Action(Act.CLAIM, sight.cluster.version, sight.now + _VALID_S)


def _delete(memory: Memory, sight: Sight, policy: Policy) -> tuple[Memory, Action]:
    """The claim is ours: all is checked once more, from readings after it."""
    ours = sight.cluster.taken_by == policy.name
    late = sight.now - memory.step_at > _VALID_S or sight.stalled
    heard = _heard(memory, sight)
    if heard.uid != memory.uid or late or not ours:
        return _stops(memory, "too late, or the announcement is not this guard's"), NOTHING
    if reason := why_not(sight, heard.followed):
        return _stops(memory, reason), NOTHING
    if not _frozen(heard, sight, policy):
        return _stops(memory, f"{memory.primary} lives after all"), NOTHING
    return heard, Action(Act.DELETE_POD, memory.uid, sight.now + _VALID_S)


def _await_end(memory: Memory, sight: Sight) -> Memory:
    """The pod's object goes only when its kubelet has confirmed that nothing of it runs."""
    left = "" if sight.pod.uid == memory.uid else why_left_alone(sight, memory.primary)
    if not sight.pod.node_ready:
        left = f"the node of {memory.primary} is not Ready: its end cannot be confirmed"
    if left:
        return _stops(memory, left)
    if sight.pod.uid:
        return _late(memory, sight)
    return _step(memory, State.DEAD, sight.now, f"{memory.primary}: its kubelet has confirmed its end")


def _await_election(memory: Memory, sight: Sight) -> tuple[Memory, Action]:
    """Empty the Lease for the instance that the operator chose, if that has every acknowledged commit."""
    cluster, lease = sight.cluster, sight.lease
    if left := why_left_alone(sight, memory.primary):
        return _stops(memory, left), NOTHING
    if not lease.holder or lease.holder == cluster.target != memory.primary:
        return _step(memory, State.EMPTIED, sight.now, f"the Lease is free for {cluster.target}"), NOTHING
    if lease.holder != memory.primary:
        return _stops(memory, f"{lease.holder} holds the Lease"), NOTHING
    # A second proof: a living manager, of a pod that somebody deleted with force meanwhile, would have renewed it.
    silent = lease.at - memory.renewed_at >= lease.retry_s + _MARGIN_S
    named = cluster.target not in (memory.primary, PENDING, "")
    answers = {name: one for name, one in sight.answering(memory.step_at).items() if name in memory.followed}
    if not silent or not named or not sight.enough(answers):
        return _late(memory, sight), NOTHING
    most = max(one.position for one in answers.values())
    if cluster.target not in answers or answers[cluster.target].position < most:
        return _stops(memory, f"{cluster.target}, which the operator chose, has not the most WAL"), NOTHING
    return memory, Action(Act.EMPTY_LEASE, lease.version, sight.now + _VALID_S)


def _await_promotion(memory: Memory, sight: Sight) -> Memory:
    primary = sight.cluster.primary
    if primary != memory.primary:
        line = f"{primary} leads {sight.now - memory.heard_at:.2f} s after the last sign of life of {memory.primary}"
        taken = replace(memory, takeovers=memory.takeovers + 1, lines=(*memory.lines, line))
        return replace(taken, state=State.NOT_READY, why_not="", uid="")
    return _late(memory, sight)
