"""From everything recorded in a drill to the judged Drill with its times, marks and evidence. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from walproof.model.attempt import Attempts, Rows
from walproof.model.guarantee import Level, read_standby_names
from walproof.model.load import WitnessReport
from walproof.model.topology import ClusterView
from walproof.model.verdict import Drill, Findings, Mark, Recovery
from walproof.proving.assumptions import DrillRun, checked
from walproof.proving.campaign import PlannedDrill
from walproof.proving.faults import loss_of
from walproof.proving.findings import judged
from walproof.proving.outage import acknowledged_at, outage, pace, split
from walproof.proving.verdicts import Assumption, decided, promised


def timeline_of(view: ClusterView | None) -> int | None:
    """The leader's timeline in that view."""
    member = view.member(view.leader) if view is not None and view.leader else None
    return member.timeline if member else None


@dataclass(frozen=True, slots=True)
class DrillData:
    """The clients' attempts and reads; which members were read back, and what went wrong where."""

    attempts: Attempts
    witness: WitnessReport
    read: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def concluded_drill(planned: PlannedDrill, run: DrillRun, rows: Iterable[Rows], data: DrillData) -> Drill:
    """Judge a drill. `rows` is read lazily and fills `data.read` and `data.problems`, so it is consumed first."""
    attempts = data.attempts
    judgement = judged(attempts, rows, data.witness)
    findings = judgement.findings if data.read else replace(judgement.findings, lost=0, downgraded_lost=0)
    findings = _with_visibility(planned, findings, data)
    acknowledged = acknowledged_at(attempts)
    out = outage(acknowledged, run.fault_at, cleared_at=run.cleared_at, stopped_at=run.stopped_at)
    recovery, marks = (
        (Recovery(), ()) if out is None else split(attempts, out, run.views, run.before.leader, run.elected_at)
    )
    loss = loss_of(planned.fault, planned.victim)
    promise = promised(planned.level, loss)
    found = checked(run, attempts, findings, out, data.read)
    found += _unsound(data.problems)
    verdict, why = decided(findings, found, promise)
    span = None if findings.lost_from is None or findings.lost_to is None else findings.lost_to - findings.lost_from
    return Drill(
        number=planned.number,
        fault=planned.fault.name,
        victim=planned.victim,
        level=planned.level,
        verdict=verdict,
        why=why,
        findings=findings,
        rto_s=None if out is None else out.seconds,
        rpo_s=span if findings.lost else 0.0,
        recovery=recovery,
        leader_before=run.before.leader,
        leader_after=run.after.leader if run.after else None,
        timeline_before=timeline_of(run.before),
        timeline_after=timeline_of(run.after),
        victims=run.victims,
        route=str(planned.route),
        marks=_marks(planned, run, marks),
        pace=pace(acknowledged),
        assumptions={a.name: a.holds for a in found},
        evidence=_evidence(run, findings, recovery, data.problems, judgement.differs),
        promised=promise,
    )


def _unsound(problems: Mapping[str, str]) -> list[Assumption]:
    """What checksums or amcheck found wrong with a member; nothing can be concluded from rows of damaged data."""
    unsound = [f"{where}: {what}" for where, what in problems.items() if where.startswith("data of ")]
    return [Assumption("data sound", False, "; ".join(unsound))] if unsound else []


def _with_visibility(planned: PlannedDrill, findings: Findings, data: DrillData) -> Findings:
    """At remote_apply an acknowledged row must be visible on a standby that every commit waits for.

    Judged only while nothing is broken: a standby that crashed may serve an older state until it has caught up.
    """
    names = {n for n in data.attempts.standby_names if n.strip()}
    quorum = read_standby_names(next(iter(names))) if len(names) == 1 else None
    if planned.level is not Level.REMOTE_APPLY or planned.fault.steps or quorum is None:
        return findings
    if quorum.k < len(quorum.names):
        return findings
    stale = sum(data.witness.fresh_by_member.get(name, (0, 0))[1] for name in quorum.names)
    return replace(findings, broken_freshness=stale)


def _marks(planned: PlannedDrill, run: DrillRun, seen: tuple[Mark, ...]) -> tuple[Mark, ...]:
    marks = list(seen)
    if planned.fault.steps:
        marks.append(Mark(run.fault_at, planned.fault.name, ", ".join(run.victims)))
        marks.append(Mark(run.cleared_at, "fault cleared", ", ".join(run.victims)))
    return tuple(sorted(marks, key=lambda m: m.at))


def _evidence(
    run: DrillRun, findings: Findings, recovery: Recovery, problems: Mapping[str, str], differs: Mapping[str, int]
) -> dict[str, str]:
    evidence = {"story": run.fault.story.happens, "promise": run.fault.story.promises, **problems}
    names = [v.standby_names for v in run.views]
    if names:
        evidence["standby names before"] = run.before.standby_names or "(empty)"
    if findings.not_in_effect_s:
        evidence["not in effect"] = f"{findings.not_in_effect_s:.1f} s"
    if run.error:
        evidence["error"] = run.error
    late = (recovery.routing_s or 0) + (recovery.client_s or 0)
    if recovery.promotion_s is not None and late > 10:
        evidence["late"] = f"a leader was reported {late:.1f} s before the first commit got through"
    for member, count in differs.items():
        if count:
            evidence[f"{member} differs"] = f"{count} rows from the leader's"
    return evidence
