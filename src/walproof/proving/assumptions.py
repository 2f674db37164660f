"""What must have been true for a drill to mean anything; each with the sentence said when it was not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from walproof.model.attempt import Attempts
from walproof.model.guarantee import Level
from walproof.model.topology import ClusterView, Role
from walproof.model.verdict import Findings
from walproof.proving.faults import Fault
from walproof.proving.judge import not_in_effect_s
from walproof.proving.outage import Outage
from walproof.proving.verdicts import Assumption

_WELL = ("running", "streaming")
_QUIET = ("none", "slow-disk", "restart", "partition-one-way", "full-disk", "switchover", "dcs-loss")
"""Faults that a good cluster may take without any sign: a quick restart, or Patroni's failsafe when the DCS is gone."""
_ENOUGH = 10
"""Fewer acknowledgements than this before the fault put nothing at risk worth judging."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a drill went, as noted while it ran; times are seconds since the epoch."""

    fault: Fault
    level: Level
    victims: tuple[str, ...]
    before: ClusterView
    fault_at: float
    heal_at: float
    stopped_at: float
    looks: tuple[ClusterView, ...]
    healed: bool
    error: str = ""
    """Why the cluster did not heal, or a wait that ran out."""
    after: ClusterView | None = None
    elected_at: float | None = None
    """When the manager says that a successor took the leader's lock."""
    refused: str = ""
    """Why the target would not do the fault."""


def whole(view: ClusterView) -> bool:
    """Whether a leader is there and every other member is a standby that streams."""
    return view.leader is not None and all(
        m.name == view.leader or (m.role is Role.STANDBY and m.state in _WELL) for m in view.members
    )


def _fault_seen(course: Course, findings: Findings, out: Outage | None) -> bool:
    """Whether anything that was seen tells that the fault happened."""
    if course.fault.name in _QUIET:
        return True
    during = [v for v in course.looks if v.at >= course.fault_at]
    for view in during:
        if view.leader != course.before.leader:
            return True
        for name in course.victims:
            member = view.member(name)
            if member is None or member.role is Role.UNKNOWN or member.state not in _WELL:
                return True
    if findings.unknown + findings.refused > 0:
        return True
    return out is not None and (out.seconds is None or out.seconds > max(0.5, 5 * out.usual_gap_s))


def checked(
    course: Course, attempts: Attempts, findings: Findings, out: Outage | None, members_read: Sequence[str]
) -> list[Assumption]:
    """Every assumption of a drill, in the order in which they are told."""
    before = int((attempts.ended[attempts.outcome == 1] <= course.fault_at).sum()) if len(attempts) else 0
    return [
        Assumption("cluster healthy before", whole(course.before), "the cluster was not healthy before the fault"),
        Assumption(
            "writers alive",
            before >= _ENOUGH,
            f"the writers had only {before} commits acknowledged before the fault",
        ),
        _in_effect(course, attempts, out),
        Assumption(
            "fault happened",
            not course.refused and _fault_seen(course, findings, out),
            course.refused or f"nothing that was seen shows that {course.fault.name} happened",
        ),
        Assumption(
            "cluster recovered",
            course.healed,
            course.error or "the cluster did not heal",
        ),
        Assumption(
            "every member read",
            course.after is not None and set(members_read) >= {m.name for m in course.after.members},
            "not every member could be read afterwards",
            spoils=not members_read,
        ),
    ]


def _in_effect(course: Course, attempts: Attempts, out: Outage | None) -> Assumption:
    """Remote levels mean local while no standby is named; what counts is the time up to the outage's end.

    A new leader of a non-strict cluster serves before its standbys are back: that time is reported, but it is not
    what this fault put at risk.
    """
    name = "level in effect"
    if not course.level.remote:
        return Assumption(name, True, "")
    changed = course.after is not None and course.after.leader != course.before.leader
    until = float("inf")
    if changed and out is not None and out.first_after is not None:
        until = out.first_after
    bare = not_in_effect_s(attempts, until)
    if bare > 0:
        sentence = f"{course.level} was acknowledged for {bare:.1f} s with no standby named: it meant local"
        return Assumption(name, False, sentence, spoils=False)
    known = bool((attempts.names >= 0).any()) or bool(course.before.standby_names.strip())
    return Assumption(name, known, f"{course.level} was not seen in effect: no standby was named", spoils=False)
