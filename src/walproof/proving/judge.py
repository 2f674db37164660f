"""From a drill's history to its judgement: what is derived from it, each thing once, and the Drill that says so. Pure.

What was damaged before the drill began proves nothing about the fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from walproof.model.drill import Drill, Findings, Mark, Recovery, Verdict
from walproof.model.guarantee import Level, Loss, read_standby_names
from walproof.model.topology import MemberState
from walproof.model.units import counted
from walproof.proving.campaign import clauses
from walproof.proving.fault_happened import Sign, fault_signs, loss_in_fact
from walproof.proving.history import History
from walproof.proving.level_in_effect import Weaker, acknowledged, before_named, lasting_s, unnamed, weaker
from walproof.proving.lost_commits import differing, judged, lost_rows
from walproof.proving.outage import (
    Outage,
    acknowledged_at,
    as_clause,
    outage,
    pace,
    rpo_s,
    short_returns,
    split,
    split_by_steps,
    writers_rto_s,
)
from walproof.proving.verdict import Assumption, AtRisk, checked, decided, level_in_effect

Mask = NDArray[np.bool_]
_UNCHECKED = " unchecked"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A drill's history and what is derived from it; only `judge` makes one.

    `lost`: which acknowledged commits are gone, shape (attempts,). `succeeded_at`: when each success came, sorted.
    `assumptions`: all of them, whether they hold or not. `at_risk`: what was gone for good, and what the level promises
    then. `why`: the verdict in one sentence.
    """

    history: History
    lost: Mask
    succeeded_at: NDArray[np.float64]
    out: Outage | None
    signs: tuple[Sign, ...]
    findings: Findings
    assumptions: tuple[Assumption, ...]
    at_risk: AtRisk
    verdict: Verdict
    why: str

    @property
    def first_lost(self) -> int:
        """WAL position (bytes) of the first commit that is lost; 0 when none is."""
        positions = self.history.attempts.lsn[self.lost]
        return int(positions.min()) if len(positions) else 0

    @property
    def drill(self) -> Drill:
        """All of it in the words and numbers that a record keeps."""
        planned, run, attempts, out = self.history.planned, self.history.run, self.history.attempts, self.out
        recovery, marks = self._outage_by_parts()
        whole = None if run.incomplete or run.no_takeover else out
        remarks = filter(None, [*self._remarks(), as_clause(recovery)])
        return Drill(
            number=planned.number,
            fault=planned.fault.name,
            victim=planned.victim,
            level=planned.level,
            verdict=self.verdict,
            why="; ".join([self.why, *remarks]),
            findings=self.findings,
            rto_s=whole.seconds if whole else None,
            rpo_s=rpo_s(self.findings, run.fault_at, out.last_before if out else 0.0),
            recovery=recovery,
            leader_before=run.before.leader,
            leader_after=run.leader_after,
            timeline_before=run.before.leader_timeline,
            timeline_after=run.timeline_after,
            victims=run.victims,
            route=str(planned.route),
            marks=self._with_faults(marks),
            pace=pace(self.succeeded_at),
            assumptions={a.name: a.holds for a in self.assumptions},
            evidence=self._evidence(recovery),
            promised=self.at_risk.promise,
            loss=str(self.at_risk.loss or ""),
            writers=planned.writers,
            guarded=planned.guarded,
            strikes=clauses(run.struck),
            no_rto=run.no_takeover if run.injected else "",
            unavailable_s=whole.unavailable_s if whole else None,
            writers_rto_s=None
            if whole is None
            else writers_rto_s(attempts, run.fault_at, cleared_at=run.cleared_at, stopped_at=run.stopped_at),
        )

    def _outage_by_parts(self) -> tuple[Recovery, tuple[Mark, ...]]:
        """By the manager's own steps where it showed some, else by what was observed."""
        run, out = self.history.run, self.out
        if out is None or run.no_takeover:
            return Recovery(), ()
        seen = [view.leader for view in run.views if view.leader and view.at <= out.last_before]
        # In a storm the one who led when the outage began is not always the one who led before it.
        led = seen[-1] if run.struck and seen else run.before.leader
        stepwise = split_by_steps(out, run.steps, run.views, led)
        return stepwise or split(self.history.attempts, out, run.views, led, run.elected_at)

    def _remarks(self) -> list[str]:
        """What a reader must know with the verdict."""
        history, findings, loss = self.history, self.findings, self.at_risk.loss
        planned, run = history.planned, history.run
        remarks = [run.stalled] if run.stalled else []
        if run.returned:
            remarks.append(f"members came back in the order {', '.join(mark.member for mark in run.returned)}")
        if run.no_takeover and run.injected:
            remarks.append(f"no RTO: {run.no_takeover}")
        if planned.fault.orderly and findings.unknown:
            remarks.append(f"{counted(findings.unknown, 'transaction')} under way got no answer")
        if self.out is not None and (returned := short_returns(self.out, self.succeeded_at)):
            remarks.append(returned)
        expected = planned.fault.loss not in (None, Loss.POSTGRES_CRASH) and planned.victim.takes_the_leader
        if self.verdict is not Verdict.UNDECIDED and expected and not run.taken_over:
            crash = "a power cut" if loss is Loss.POWER_CUT else "a crash of PostgreSQL"
            what = "which it survived" if loss is None else f"judged as {crash}"
            remarks.append(f"{run.leader_after} leads again, no other member took over: {what}")
        if loss is not None and not (planned.victim.takes_the_leader and (planned.fault.steps or planned.storm)):
            what = f"{run.leader_after} took over" if run.taken_over else f"{run.leader_after} crashed"
            remarks.append(f"{what} meanwhile, though the fault was not meant for the leader")
        if findings.unnamed_after_takeover_s:
            lasted = findings.unnamed_after_takeover_s
            who, it = ("new leaders", "they") if planned.storm else (run.leader_after, "it")
            remarks.append(f"{who} acknowledged {planned.level} for {lasted:.2f} s before {it} named a standby")
        if findings.not_in_effect_s:
            remarks += _alone(history)
        if unchecked := [where.removesuffix(_UNCHECKED) for where in history.problems if where.endswith(_UNCHECKED)]:
            remarks.append(f"data files of {', '.join(unchecked)} were not checked, only rows compared")
        return remarks

    def _with_faults(self, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
        """The marks of the outage and those of the faults, in the order of time."""
        run, name = self.history.run, self.history.planned.fault.name
        faults = [Mark(one.at, one.fault, one.member) for one in run.carried_out]
        faults += [Mark(one.cleared_at, f"{one.fault} cleared", one.member) for one in run.carried_out if one.cleared]
        if self.history.planned.fault.steps and run.injected:
            victims = ", ".join(run.victims)
            faults += [Mark(run.fault_at, name, victims), Mark(run.cleared_at, "fault cleared", victims)]
        return tuple(sorted([*marks, *faults, *run.returned], key=lambda m: m.at))

    def _evidence(self, recovery: Recovery) -> dict[str, str]:
        run, story, findings = self.history.run, self.history.planned.fault.story, self.findings
        evidence = {"story": run.happens or story.happens, "promise": story.promises, **self.history.problems}
        for place, sign in enumerate(self.signs, 1):
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
        if (recovery.promotion_s, recovery.restart_s) != (None, None) and late > 10:
            evidence["late"] = f"a leader was reported {late:.1f} s before the first commit got through"
        for other in self.history.readings[1:]:
            if count := differing(self.history.readings[0], other):
                state = {True: "everything replayed", False: "not everything replayed", None: "replay not known"}
                evidence[f"{other.member} differs"] = f"{count} rows from the leader's, {state[other.caught_up]}"
        return evidence


def judge(history: History) -> Judgement:
    """Judge a drill from its history alone."""
    planned, run, attempts = history.planned, history.run, history.attempts
    lost, succeeded_at = lost_rows(attempts, history.readings), acknowledged_at(attempts)
    out = None
    if run.injected:
        out = outage(succeeded_at, run.fault_at, cleared_at=run.cleared_at, stopped_at=run.stopped_at)
    signs = fault_signs(planned.fault, run)
    excused = _excused(history, out)
    short = _weaker(history, excused, lost)
    findings = _findings(history, excused, lost)
    in_effect = level_in_effect(run.states, short)
    assumptions = (*checked(history, findings, out, signs), in_effect)
    happened = next(a.holds for a in assumptions if a.name == "fault happened")
    cause = in_effect.failure if any((one.attempts & lost).any() for one in short) else ""
    at_risk = AtRisk(planned.level, loss_in_fact(planned.fault, planned.victim, run, happened=happened), cause)
    verdict, why = decided(findings, assumptions, at_risk, new_damage(run.states, history.problems))
    return Judgement(
        history,
        lost,
        succeeded_at,
        out,
        signs,
        findings=findings,
        assumptions=assumptions,
        at_risk=at_risk,
        verdict=verdict,
        why=why,
    )


def _excused(history: History, out: Outage | None) -> Mask:
    """Acknowledgements that may have waited for less than was asked; shape (attempts,).

    A new leader of a cluster that is not strict serves before its standbys are back, as one does after a crash: what
    it acknowledges then, a fault that stands alone no longer puts at risk. In a storm only its first moment is excused.
    """
    run, planned, attempts = history.run, history.planned, history.attempts
    if planned.storm:
        return before_named(attempts, planned.level, run.before.leader_timeline)
    again = loss_in_fact(planned.fault, planned.victim, run) in (Loss.POSTGRES_CRASH, Loss.POWER_CUT)
    served = out.first_after if out is not None and (run.taken_over or again) else None
    until = float("inf") if served is None else served
    return acknowledged(attempts) & ~acknowledged(attempts, until)


def _weaker(history: History, excused: Mask, lost: Mask) -> list[Weaker]:
    """How commits waited for less than was asked, but for those excused."""
    run = history.run
    senders = {sender for state in run.states for sender in state.senders or ()}
    chosen = acknowledged(history.attempts) & ~excused
    if history.planned.storm:
        # Each of its faults put at risk what was acknowledged before: what is lost, or may be, is not excused.
        chosen |= excused & lost if history.readings else excused
    return weaker(
        history.attempts,
        history.planned.level,
        chosen,
        declared=run.before.standby_names,
        members=[m.name for m in run.before.members],
        senders=sorted(senders),
    )


def _findings(history: History, excused: Mask, lost: Mask) -> Findings:
    """The counts, and how long no standby was named: while that was at risk, and on a new leader after the takeover."""
    attempts, without_name = history.attempts, unnamed(history.attempts, history.planned.level)
    findings = judged(attempts, history.readings, lost, history.witness)
    stale, backward = _not_visible(history)
    return replace(
        findings,
        # Where attempts are missing, rows without an attempt prove nothing.
        phantom=0 if history.run.incomplete else findings.phantom,
        broken_freshness=stale,
        backward_reads=backward,
        not_in_effect_s=lasting_s(attempts, without_name & ~excused),
        unnamed_after_takeover_s=lasting_s(attempts, without_name & excused),
    )


def _not_visible(history: History) -> tuple[int, int]:
    """At remote_apply: rows not visible, and reads that went back, on the standbys that every commit waits for.

    Judged only while nothing is broken: a standby that crashed may serve an older state until it has caught up.
    """
    planned, witness = history.planned, history.witness
    names = {n for n in history.attempts.standby_names if n}
    quorum = read_standby_names(next(iter(names))) if len(names) == 1 else None
    broken = planned.fault.steps or planned.storm
    if planned.level is not Level.REMOTE_APPLY or broken or quorum is None or not quorum.of_all:
        return 0, 0
    stale = sum(seen[1] for member, seen in witness.fresh_by_member.items() if quorum.counts(member))
    return stale, sum(times for member, times in witness.backward_by_member.items() if quorum.counts(member))


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
