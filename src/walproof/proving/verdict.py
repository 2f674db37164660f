"""Held, broken, expected loss or undecided, with one sentence why. Pure.

From findings, and from what must have been true for a drill to mean anything: each assumption with the reason given
when it was not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from walproof.model.drill import Findings, Verdict
from walproof.model.guarantee import Level, Loss, survives
from walproof.model.load import Outcome
from walproof.model.topology import MemberState, Role
from walproof.model.units import counted
from walproof.proving.fault_happened import Sign
from walproof.proving.history import DrillRun, History
from walproof.proving.level_in_effect import Weaker, odd_table, overrides, void
from walproof.proving.outage import Outage


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that must be true for a drill to mean anything, and the reason to give when it is not."""

    name: str
    holds: bool
    failure: str
    invalidates_loss: bool = False
    """Whether rows that are missing prove nothing either when it does not hold."""


_AFTER = {
    Loss.POSTGRES_CRASH: "a crash of PostgreSQL",
    Loss.POWER_CUT: "a power cut",
    Loss.LEADER_GONE: "the loss of the leader",
    Loss.LEADER_AND_STANDBY_POSTGRES: "the loss of the leader and a crash of the standby's PostgreSQL",
    Loss.LEADER_AND_STANDBY_POWER: "the loss of the leader and a power cut of the standby",
}


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What was gone for good, None when nothing was, and whether the level is documented to survive it."""

    level: Level
    loss: Loss | None
    weaker: str = ""
    """Why lost commits waited for less than the level promises, in a clause; "" when they did not."""

    @property
    def promise(self) -> bool | None:
        """Whether the level is documented to survive the loss; None when nothing is at risk."""
        return None if self.loss is None else survives(self.level, self.loss)

    @property
    def text(self) -> str:
        """What a loss then means, in a clause."""
        if self.loss is None:
            return "though nothing was at risk"
        promises = "promises" if self.promise else "does not promise"
        return f"which {self.level} {promises} to keep after {_AFTER[self.loss]}"


def violations(findings: Findings, damage: Sequence[str] = ()) -> list[str]:
    """What, besides lost commits, contradicts a sound cluster, each in a clause; `damage`: clauses about the data."""
    counts = (
        (findings.out_of_order, "commit lost from before others that were kept: WAL cannot lose those alone"),
        (findings.corrupted, "row corrupted"),
        (findings.duplicate, "row duplicate"),
        (findings.phantom, "phantom row"),
        (findings.broken_freshness, "acknowledged row not visible at once"),
        (findings.backward_reads, "read that showed less than an earlier one"),
        (findings.divergent, "row in which a standby that has replayed everything differs from the leader"),
    )
    clauses = [_several(count, what) for count, what in counts if count]
    if findings.two_leaders_s > 0:
        clauses.append(f"two leaders acknowledged at once for {findings.two_leaders_s:.1f} s")
    return [*clauses, *damage]


def _several(count: int, what: str) -> str:
    """A count with its noun, the first word, in the plural where it is not one.

    >>> _several(2, "phantom row"), _several(1, "row corrupted"), _several(3, "commit lost from before others")
    ('2 phantom rows', '1 row corrupted', '3 commits lost from before others')
    """
    noun = next(n for n in ("phantom row", "acknowledged row", "commit", "row", "read") if what.startswith(n))
    return counted(count, noun) + what[len(noun) :]


def decided(
    findings: Findings,
    assumptions: Iterable[Assumption],
    risk: AtRisk,
    damage: Sequence[str] = (),
) -> tuple[Verdict, str]:
    """The verdict and one sentence why.

    A proven loss wins over every failed assumption but those without which missing rows prove nothing. What was lost
    without a promise is an expected loss; anything else that contradicts a sound cluster is broken.
    """
    failed = [a for a in assumptions if not a.holds]
    reasons = [a.failure for a in failed if a.failure != risk.weaker]
    if any(a.invalidates_loss for a in failed):
        rows = "row of an acknowledged commit is" if findings.lost == 1 else "rows of acknowledged commits are"
        missing = [f"{findings.lost:,} {rows} missing, which proves nothing then"] if findings.lost else []
        return Verdict.UNDECIDED, "; ".join([*reasons, *missing])
    others = violations(findings, damage)
    if findings.lost:
        lost = f"{counted(findings.lost, 'acknowledged commit')} lost"
        if risk.promise is False and not others:
            return Verdict.EXPECTED_LOSS, "; ".join([f"expected loss: {lost}, {risk.text}", *reasons])
        cause = f"because {risk.weaker}" if risk.weaker else risk.text
        return Verdict.BROKEN, "; ".join([f"{lost}, {cause}", *others, *reasons])
    if others:
        return Verdict.BROKEN, "; ".join([*others, *reasons])
    if failed:
        return Verdict.UNDECIDED, "; ".join(reasons)
    return Verdict.HELD, f"all {findings.acknowledged:,} acknowledged commits are there"


_MIN_ACKNOWLEDGED = 10
"""With fewer acknowledgements than this before the fault there is too little to judge."""


def checked(history: History, findings: Findings, out: Outage | None, signs: Sequence[Sign]) -> list[Assumption]:
    """Every assumption of a drill but for the level that ran, in the order in which they are reported."""
    run, attempts = history.run, history.attempts
    before = int((attempts.ended[attempts.outcome == Outcome.ACKNOWLEDGED] <= run.fault_at).sum())
    read = [reading.member for reading in history.readings]
    wanted = {m.name for m in run.after.members} if run.after is not None else set()
    missing = ", ".join(sorted(wanted - set(read)))
    table, strangers = odd_table(run.states), _strangers(run.states)
    # Without them all, attempts after the last that is known are missing, not refused.
    endless = out is not None and out.first_after is None and not run.incomplete
    return [
        Assumption("cluster healthy before", run.before.healthy, "the cluster was not healthy before the fault"),
        Assumption("ledger complete", not run.incomplete, run.incomplete),
        Assumption(
            "writers alive",
            before >= _MIN_ACKNOWLEDGED,
            f"the writers had only {before} commits acknowledged before the fault",
        ),
        Assumption("ledger table ordinary", not table, "; ".join(table), invalidates_loss=True),
        Assumption("same cluster", not strangers, strangers, invalidates_loss=True),
        _fault_happened(history, findings, out, signs),
        Assumption(
            "takeover on a new timeline",
            not run.same_timeline,
            f"{run.leader_after or ''} is reported as leader, on the old timeline: no standby was promoted",
        ),
        Assumption(
            "commits came back",
            not run.timed_out and not endless,
            run.timed_out or "commits did not come back to stay before the drill ended",
        ),
        Assumption("cluster recovered", run.recovered, run.error or "the cluster did not recover"),
        Assumption("leader read", bool(read), "the leader could not be read afterwards"),
        Assumption(
            "every member read",
            run.after is not None and not missing,
            f"{missing or 'not every member'} could not be read afterwards",
        ),
    ]


def _fault_happened(history: History, findings: Findings, out: Outage | None, signs: Sequence[Sign]) -> Assumption:
    name, run, fault = "fault happened", history.run, history.planned.fault
    if run.refused:
        return Assumption(name, False, run.refused)
    if run.struck and not run.carried_out:
        return Assumption(name, False, f"no fault of the storm could be carried out: {run.struck[0].refused}")
    against = [sign for sign in signs if sign.seen is False]
    if against:
        where = "; ".join(f"{sign.member}: {sign.what}" if sign.member else sign.what for sign in against)
        what = ", ".join(dict.fromkeys(str(sign.operation) for sign in against)) if run.struck else fault.name
        return Assumption(name, False, f"{what} did not happen: {where}")
    shown = bool(signs) and all(sign.seen for sign in signs)
    happened = shown or not fault.noticed or _noticed(run, findings, out)
    return Assumption(name, happened, f"nothing that was observed shows that {fault.name} happened")


def _noticed(run: DrillRun, findings: Findings, out: Outage | None) -> bool:
    """Whether clients or observers noticed anything: all there is where the members cannot be asked."""
    for view in (v for v in run.views if v.at >= run.fault_at):
        if view.leader != run.before.leader:
            return True
        for name in run.victims:
            member = view.member(name)
            if member is None or member.role is Role.UNKNOWN or not member.serving:
                return True
    if findings.unknown + findings.refused > 0:
        return True
    return out is not None and (out.seconds is None or out.seconds > out.noticeable_s)


def _strangers(states: Sequence[MemberState]) -> str:
    """Which members are of another cluster than the others; "" when all are of one."""
    systems = {state.system: state.member for state in states if state.system}
    if len(systems) < 2:
        return ""
    return f"{' and '.join(sorted(systems.values()))} say that they are of different clusters"


def level_in_effect(states: Sequence[MemberState], weaker: Sequence[Weaker]) -> Assumption:
    """Every commit that the fault put at risk waited for what was asked, and nothing made that void."""
    clauses = [one.cause for one in weaker]
    set_elsewhere = overrides(states)
    if clauses and set_elsewhere:
        clauses.append(f"set there: {set_elsewhere}")
    clauses += void(states)
    return Assumption("level in effect", not clauses, "; ".join(clauses))
