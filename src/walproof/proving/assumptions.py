"""What must have been true for a drill to mean anything; each with the reason given when it was not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from walproof.model.attempt import Attempts
from walproof.model.guarantee import Level
from walproof.model.topology import ClusterView, Role
from walproof.model.verdict import Findings
from walproof.proving.faults import Fault
from walproof.proving.findings import not_in_effect_s
from walproof.proving.outage import Outage
from walproof.proving.verdicts import Assumption

_UNNOTICEABLE = ("none", "slow-disk", "restart", "partition-one-way", "full-disk", "switchover", "dcs-loss")
"""Faults that a healthy cluster may survive without any sign, such as a lost DCS under Patroni's failsafe."""
_MIN_ACKNOWLEDGED = 10
"""With fewer acknowledgements than this before the fault there is too little to judge."""


@dataclass(frozen=True, slots=True)
class DrillRun:
    """How a drill went, as recorded while it ran; times are seconds since the epoch."""

    fault: Fault
    level: Level
    victims: tuple[str, ...]
    before: ClusterView
    fault_at: float
    cleared_at: float
    stopped_at: float
    views: tuple[ClusterView, ...]
    recovered: bool
    error: str = ""
    """Why the cluster did not recover, or a wait that timed out."""
    after: ClusterView | None = None
    elected_at: float | None = None
    """When a successor took the leader's lock, by the manager's log."""
    refused: str = ""
    """Why the target refused to inject the fault."""


def _fault_seen(run: DrillRun, findings: Findings, out: Outage | None) -> bool:
    """Whether anything that was observed shows that the fault happened."""
    if run.fault.name in _UNNOTICEABLE:
        return True
    during = [v for v in run.views if v.at >= run.fault_at]
    for view in during:
        if view.leader != run.before.leader:
            return True
        for name in run.victims:
            member = view.member(name)
            if member is None or member.role is Role.UNKNOWN or not member.serving:
                return True
    if findings.unknown + findings.refused > 0:
        return True
    return out is not None and (out.seconds is None or out.seconds > max(0.5, 5 * out.usual_gap_s))


def checked(
    run: DrillRun, attempts: Attempts, findings: Findings, out: Outage | None, members_read: Sequence[str]
) -> list[Assumption]:
    """Every assumption of a drill, in the order in which they are reported."""
    before = int((attempts.ended[attempts.outcome == 1] <= run.fault_at).sum()) if len(attempts) else 0
    return [
        Assumption("cluster healthy before", run.before.healthy, "the cluster was not healthy before the fault"),
        Assumption(
            "writers alive",
            before >= _MIN_ACKNOWLEDGED,
            f"the writers had only {before} commits acknowledged before the fault",
        ),
        _in_effect(run, attempts, out),
        Assumption(
            "fault happened",
            not run.refused and _fault_seen(run, findings, out),
            run.refused or f"nothing that was observed shows that {run.fault.name} happened",
        ),
        Assumption(
            "cluster recovered",
            run.recovered,
            run.error or "the cluster did not recover",
        ),
        Assumption(
            "every member read",
            run.after is not None and set(members_read) >= {m.name for m in run.after.members},
            "not every member could be read afterwards",
            invalidates_loss=not members_read,
        ),
    ]


def _in_effect(run: DrillRun, attempts: Attempts, out: Outage | None) -> Assumption:
    """Remote levels mean local while no standby is named; what counts is the time up to the outage's end.

    A new leader of a non-strict cluster serves before its standbys are back: that time is reported, but it is not
    what this fault put at risk.
    """
    name = "level in effect"
    if not run.level.remote:
        return Assumption(name, True, "")
    changed = run.after is not None and run.after.leader != run.before.leader
    until = float("inf")
    if changed and out is not None and out.first_after is not None:
        until = out.first_after
    local_s = not_in_effect_s(attempts, until)
    if local_s > 0:
        reason = f"{run.level} was acknowledged for {local_s:.1f} s with no standby named: it meant local"
        return Assumption(name, False, reason, invalidates_loss=False)
    known = bool((attempts.names >= 0).any()) or bool(run.before.standby_names.strip())
    return Assumption(name, known, f"{run.level} was not seen in effect: no standby was named", invalidates_loss=False)
