"""From a drill's history to the judged Drill with its times, marks and evidence, new data damage too. Pure.

What was damaged before the drill began proves nothing about the fault."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from walproof.model.drill import Drill, Findings, Mark, Recovery, Verdict
from walproof.model.guarantee import Level, Loss, read_standby_names
from walproof.model.load import Attempts
from walproof.model.topology import MemberState
from walproof.model.units import counted
from walproof.proving.campaign import clauses
from walproof.proving.fault_happened import Sign, fault_signs, loss_in_fact, taken_over
from walproof.proving.history import DrillRun, History
from walproof.proving.level_in_effect import Weaker, acknowledged, before_named, lasting_s, unnamed, weaker
from walproof.proving.lost_commits import differing, judged, lost_rows
from walproof.proving.outage import (
    Outage,
    acknowledged_at,
    as_clause,
    outage,
    pace,
    rpo_s,
    split,
    split_by_steps,
    writers_rto_s,
)
from walproof.proving.verdict import AtRisk, checked, decided, level_in_effect, promised


def new_damage(states: Sequence[MemberState], problems: Mapping[str, str]) -> list[str]:
    """Pages whose checksums failed since each member was first asked, and what amcheck found, one clause each.

    `problems`: as in a History. A counter that was reset meanwhile counts from nought.
    """
    clauses = []
    for member in dict.fromkeys(state.member for state in states):
        known = [s for s in states if s.member == member and s.answers and s.checksum_failures is not None]
        failures = _since_first(known)
        if failures:
            clauses.append(f"{counted(failures, 'page')} of {member} failed their checksum")
    return clauses + [f"{where}: {what}" for where, what in problems.items() if where.startswith("data of ")]


def _since_first(known: Sequence[MemberState]) -> int:
    """How far the counter went up, over every reset."""
    failures = 0
    for before, after in pairwise(known):
        first, second = before.checksum_failures or 0, after.checksum_failures or 0
        reset = second < first or before.stats_reset != after.stats_reset
        failures += second if reset else second - first
    return failures


_UNCHECKED = " unchecked"


def concluded_drill(history: History) -> Drill:
    """Judge a drill from its history alone."""
    planned, run, attempts = history.planned, history.run, history.attempts
    at = acknowledged_at(attempts)
    out = outage(at, run.fault_at, cleared_at=run.cleared_at, stopped_at=run.stopped_at)
    signs = fault_signs(planned.fault, run)
    findings = _without_phantoms_of_a_torn_ledger(
        _with_visibility(history, judged(attempts, history.readings, history.witness)), run
    )
    excused = _excused(history, out)
    short = _weaker(history, excused)
    findings = _with_windows(history, findings, excused)
    found = checked(history, findings, out, signs)
    in_effect = level_in_effect(history, short)
    found.append(in_effect)
    happened = next(a.holds for a in found if a.name == "fault happened")
    loss = loss_in_fact(planned.fault, planned.victim, run, happened=happened)
    cause = in_effect.failure if _weaker_lost(history, short) else ""
    risk = AtRisk(planned.level, loss, promised(planned.level, loss), cause)
    verdict, why = decided(findings, found, risk, new_damage(run.states, history.problems))
    recovery, marks = (Recovery(), ()) if out is None else _parts(attempts, out, run)
    return Drill(
        number=planned.number,
        fault=planned.fault.name,
        victim=planned.victim,
        level=planned.level,
        verdict=verdict,
        why="; ".join([why, *_remarks(history, findings, loss, verdict), *filter(None, [as_clause(recovery)])]),
        findings=findings,
        rto_s=None if out is None or run.incomplete else out.seconds,
        rpo_s=rpo_s(findings, run.fault_at, out.last_before if out else 0.0),
        recovery=recovery,
        leader_before=run.before.leader,
        leader_after=run.after.leader if run.after else None,
        timeline_before=run.before.leader_timeline,
        timeline_after=run.after.leader_timeline if run.after else None,
        victims=run.victims,
        route=str(planned.route),
        marks=_marks(history, marks),
        pace=pace(at),
        assumptions={a.name: a.holds for a in found},
        evidence=_evidence(history, findings, recovery, signs),
        promised=risk.promise,
        loss="" if loss is None else str(loss),
        writers=planned.writers,
        guarded=planned.guarded,
        strikes=clauses(run.struck),
        unavailable_s=None if out is None or run.incomplete else out.unavailable_s,
        writers_rto_s=None
        if run.incomplete
        else writers_rto_s(attempts, run.fault_at, cleared_at=run.cleared_at, stopped_at=run.stopped_at),
    )


def _parts(attempts: Attempts, out: Outage, run: DrillRun) -> tuple[Recovery, tuple[Mark, ...]]:
    """The outage by its parts: by the manager's own steps where it showed some."""
    led = _led_until(out, run)
    stepwise = split_by_steps(out, run.steps, run.views, led)
    return stepwise or split(attempts, out, run.views, led, run.elected_at)


def _without_phantoms_of_a_torn_ledger(findings: Findings, run: DrillRun) -> Findings:
    """Where attempts are missing, rows without an attempt prove nothing."""
    return replace(findings, phantom=0) if run.incomplete else findings


def _excused(history: History, out: Outage | None) -> NDArray[np.bool_]:
    """Acknowledgements that may have waited for less than was asked; shape (attempts,).

    A new leader of a cluster that is not strict serves before its standbys are back, as one does after a crash: what
    it acknowledges then, a fault that stands alone no longer puts at risk. In a storm only its first moment is excused.
    """
    run, planned, attempts = history.run, history.planned, history.attempts
    if planned.storm:
        return before_named(attempts, planned.level, run.before.leader_timeline)
    again = loss_in_fact(planned.fault, planned.victim, run) in (Loss.POSTGRES_CRASH, Loss.POWER_CUT)
    served = out.first_after if out is not None and (taken_over(run) or again) else None
    until = float("inf") if served is None else served
    return acknowledged(attempts) & ~acknowledged(attempts, until)


def _weaker(history: History, excused: NDArray[np.bool_]) -> list[Weaker]:
    """How commits waited for less than was asked, but for those excused."""
    run = history.run
    senders = {sender for state in run.states for sender in state.senders or ()}
    chosen = acknowledged(history.attempts) & ~excused
    if history.planned.storm:
        # Each of its faults put at risk what was acknowledged before: what is lost, or may be, is not excused.
        lost = lost_rows(history.attempts, history.readings[0]) if history.readings else excused
        chosen |= excused & lost
    return weaker(
        history.attempts,
        history.planned.level,
        chosen,
        declared=run.before.standby_names,
        members=[m.name for m in run.before.members],
        senders=sorted(senders),
    )


def _weaker_lost(history: History, short: Sequence[Weaker]) -> bool:
    """Whether any commit that is lost waited for less than was asked."""
    if not history.readings:
        return False
    lost = lost_rows(history.attempts, history.readings[0])
    return any(bool((one.attempts & lost).any()) for one in short)


def _with_windows(history: History, findings: Findings, excused: NDArray[np.bool_]) -> Findings:
    """Add how long nobody was named: while that was at risk, and on a new leader after the takeover."""
    attempts, nobody = history.attempts, unnamed(history.attempts, history.planned.level)
    return replace(
        findings,
        not_in_effect_s=lasting_s(attempts, nobody & ~excused),
        unnamed_after_takeover_s=lasting_s(attempts, nobody & excused),
    )


def _with_visibility(history: History, findings: Findings) -> Findings:
    """At remote_apply an acknowledged row must be visible on a standby that every commit waits for.

    Judged only while nothing is broken: a standby that crashed may serve an older state until it has caught up.
    """
    names = {n for n in history.attempts.standby_names if n.strip()}
    quorum = read_standby_names(next(iter(names))) if len(names) == 1 else None
    broken = history.planned.fault.steps or history.planned.storm
    if history.planned.level is not Level.REMOTE_APPLY or broken or quorum is None:
        return findings
    if quorum.k < len(quorum.names):
        return findings
    witness = history.witness
    stale = sum(witness.fresh_by_member.get(name, (0, 0))[1] for name in quorum.names)
    backward = sum(witness.backward_by_member.get(name, 0) for name in quorum.names)
    return replace(findings, broken_freshness=stale, backward_reads=backward)


def _remarks(history: History, findings: Findings, loss: Loss | None, verdict: Verdict) -> list[str]:
    """What a reader must know with the verdict."""
    planned, remarks = history.planned, [history.run.stalled] if history.run.stalled else []
    leads = history.run.after.leader if history.run.after else None
    expected = planned.fault.loss not in (None, Loss.POSTGRES_CRASH) and planned.victim.takes_the_leader
    if verdict is not Verdict.UNDECIDED and expected and not taken_over(history.run):
        what = "which it survived" if loss is None else f"judged as {_crash(loss)}"
        remarks.append(f"{leads} leads again, no other member took over: {what}")
    if loss is not None and not (planned.victim.takes_the_leader and (planned.fault.steps or planned.storm)):
        what = f"{leads} took over" if taken_over(history.run) else f"{leads} crashed"
        remarks.append(f"{what} meanwhile, though the fault was not meant for the leader")
    if findings.unnamed_after_takeover_s:
        lasted = findings.unnamed_after_takeover_s
        who, it = ("new leaders", "they") if planned.storm else (leads, "it")
        remarks.append(f"{who} acknowledged {planned.level} for {lasted:.2f} s before {it} named a standby")
    if findings.not_in_effect_s:
        remarks += _alone(history)
    if unchecked := [where.removesuffix(_UNCHECKED) for where in history.problems if where.endswith(_UNCHECKED)]:
        remarks.append(f"data files of {', '.join(unchecked)} were not checked, only rows compared")
    return remarks


def _alone(history: History) -> list[str]:
    """How soon after the fault the same leader first acknowledged the level with no standby named, and how often."""
    run, at = history.run, history.attempts.ended[unnamed(history.attempts, history.planned.level)]
    stayed = run.after is not None and run.after.leader == run.before.leader
    if not stayed or not len(at) or at.min() <= run.fault_at:
        return []
    times, first = counted(len(at), "commit"), at.min() - run.fault_at
    return [
        f"{run.before.leader} acknowledged {times} at {history.planned.level} alone, the first {first:.1f} s after it"
    ]


def _led_until(out: Outage, run: DrillRun) -> str | None:
    """Who led when the outage began: in a storm not always who led before it."""
    seen = [view.leader for view in run.views if view.leader and view.at <= out.last_before]
    return seen[-1] if run.struck and seen else run.before.leader


def _crash(loss: Loss) -> str:
    return "a power cut" if loss is Loss.POWER_CUT else "a crash of PostgreSQL"


def _marks(history: History, seen: tuple[Mark, ...]) -> tuple[Mark, ...]:
    run, marks = history.run, list(seen)
    for one in run.struck:
        marks += [Mark(one.at, one.fault, one.member), Mark(one.cleared_at, f"{one.fault} cleared", one.member)]
    if history.planned.fault.steps:
        marks.append(Mark(run.fault_at, history.planned.fault.name, ", ".join(run.victims)))
        marks.append(Mark(run.cleared_at, "fault cleared", ", ".join(run.victims)))
    return tuple(sorted(marks, key=lambda m: m.at))


def _evidence(history: History, findings: Findings, recovery: Recovery, signs: Sequence[Sign]) -> dict[str, str]:
    run, story = history.run, history.planned.fault.story
    evidence = {"story": story.happens, "promise": story.promises, **history.problems}
    for place, sign in enumerate(signs, 1):
        known = sign.what if sign.seen is not None else f"not known: {sign.what}"
        name = f"{sign.operation} of {sign.member}" if sign.member else str(sign.operation)
        evidence[f"{place}. {name}" if run.struck else name] = known
    if run.views:
        evidence["standby names before"] = run.before.standby_names or "(empty)"
    if findings.not_in_effect_s:
        evidence["not in effect"] = f"{findings.not_in_effect_s:.1f} s"
    if findings.unnamed_after_takeover_s:
        evidence["no standby named after the takeover"] = f"{findings.unnamed_after_takeover_s:.2f} s"
    if run.guard_log:
        evidence["guard"] = run.guard_log
    if run.error:
        evidence["error"] = run.error
    late = (recovery.routing_s or 0) + (recovery.client_s or 0)
    if recovery.promotion_s is not None and late > 10:
        evidence["late"] = f"a leader was reported {late:.1f} s before the first commit got through"
    return {**evidence, **_differences(history)}


def _differences(history: History) -> dict[str, str]:
    """By how many rows the other members differ from the leader, and whether they had caught up."""
    differences = {}
    for other in history.readings[1:]:
        count = differing(history.readings[0], other)
        if count:
            state = {True: "everything replayed", False: "not everything replayed", None: "replay not known"}
            differences[f"{other.member} differs"] = f"{count} rows from the leader's, {state[other.caught_up]}"
    return differences
