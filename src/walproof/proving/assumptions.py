"""What must have been true for a drill to mean anything; each with the reason given when it was not. Pure."""

from collections.abc import Sequence

from walproof.model.attempt import Outcome
from walproof.model.member_state import MemberState
from walproof.model.topology import Role
from walproof.model.verdict import Findings
from walproof.proving.happened import Sign, same_timeline
from walproof.proving.history import DrillRun, History
from walproof.proving.in_effect import Weaker, odd_table, overrides, void
from walproof.proving.outage import Outage
from walproof.proving.verdicts import Assumption

_UNNOTICEABLE = (
    "none",
    "slow-disk",
    "cpu-stress",
    "link-delay",
    "restart",
    "partition-one-way",
    "crash-restart",
    "partition-wal",
    "partition-acks",
    "pause-replay",
    "full-disk",
    "switchover",
    "dcs-loss",
)
"""Faults that a healthy cluster may survive without any sign to clients, such as a lost DCS under failsafe mode."""
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
            not same_timeline(run),
            f"{run.after.leader if run.after else ''} is reported as leader, on the old timeline: nobody was promoted",
        ),
        Assumption("commits came back", not run.timed_out, run.timed_out),
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
    happened = shown or fault.name in _UNNOTICEABLE or _noticed(run, findings, out)
    return Assumption(name, happened, f"nothing that was observed shows that {fault.name} happened")


def _noticed(run: DrillRun, findings: Findings, out: Outage | None) -> bool:
    """Whether clients or observers noticed anything: all there is where nobody can ask the members."""
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


def level_in_effect(history: History, weaker: Sequence[Weaker]) -> Assumption:
    """Every commit that the fault put at risk waited for what was asked, and nothing made that void."""
    states = history.run.states
    clauses = [one.cause for one in weaker]
    set_elsewhere = overrides(states)
    if clauses and set_elsewhere:
        clauses.append(f"set there: {set_elsewhere}")
    clauses += void(states)
    return Assumption("level in effect", not clauses, "; ".join(clauses))
