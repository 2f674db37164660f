"""Conducts drills on a target: load, fault, recovery, reading; emits events. Its pure neighbours judge."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from walproof.errors import Error, MachineError, UsageError, WaitTimeout
from walproof.machine.signals import shielded
from walproof.model.drill import Capability, Drill, Mark, Verdict
from walproof.model.event import DrillDone, DrillStarted, Emit, FaultChanged, Note
from walproof.model.load import LedgerOrder, LedgerRun, Rows
from walproof.model.ports import Ledger, Target
from walproof.model.salvage import SalvageJudged
from walproof.model.sample import Arm
from walproof.model.waiting import Wait, wait_for
from walproof.proving.campaign import PlannedDrill, Strike, shrunk
from walproof.proving.faults import SHRUNK, STORM
from walproof.proving.history import DrillRun, History, decode, encode, history_name
from walproof.proving.inject import (
    HELD_ALONE_S,
    StormRun,
    bring_back,
    chosen_victims,
    happens_here,
    inject,
    no_takeover,
    why_skipped,
)
from walproof.proving.judge import judge
from walproof.proving.lost_commits import MemberReading, compared
from walproof.proving.observer import Commits, Gathered, Keep, Observer
from walproof.proving.own_load import half_the_cap, running_beside
from walproof.proving.return_order import by_name


@dataclass(frozen=True, slots=True)
class Shell:
    """What a run acts with: the target, where events go, where logs are kept, the seed."""

    target: Target
    emit: Emit
    keep: Keep
    seed: int = 1
    own_load: Arm | None = None
    """A workload to run beside the writers."""
    salvage: Callable[[Drill], SalvageJudged] | None = None
    """Looks for the lost commits of a drill that was judged."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a campaign: every fault is undone; the drills judged so far are in `drills`."""

    def __init__(self, drills: list[Drill]) -> None:
        super().__init__("interrupted")
        self.drills = drills


def run_drills(shell: Shell, plan: Iterable[PlannedDrill], *, enough: Callable[[Sequence[Drill]], bool]) -> list[Drill]:
    """Run drill after drill until the plan ends or `enough` says so; stops early when the cluster does not recover.

    Ctrl-C undoes the fault first, then raises Interrupted with the drills so far.
    """
    drills: list[Drill] = []
    for planned in plan:
        try:
            drill = one_drill(shell, planned)
            drills.append(drill)
            shell.emit(DrillDone(shell.target.clock.now(), drill))
            if shell.salvage is not None and drill.verdict is not Verdict.SKIPPED:
                shell.emit(shell.salvage(drill))
        except KeyboardInterrupt:
            raise Interrupted(drills) from None
        if drill.assumptions.get("cluster recovered") is False:
            shell.emit(Note(shell.target.clock.now(), "the cluster did not recover: no further drill"))
            break
        if enough(drills):
            break
    return drills


def shrink_storms(shell: Shell, plan: Iterable[PlannedDrill], drills: Sequence[Drill], tries: int) -> list[Drill]:
    """For each storm that broke a promise, storms of fewer faults: every one that was tried, at most `tries` a storm.

    Ctrl-C raises Interrupted with all drills so far.
    """
    if any(drill.assumptions.get("cluster recovered") is False for drill in drills):
        return []
    broken = {d.number for d in drills if d.fault == STORM.name and d.verdict is Verdict.BROKEN}
    tried: list[Drill] = []
    number = max((d.number for d in drills), default=0)

    def breaks(planned: PlannedDrill, storm: tuple[Strike, ...]) -> bool:
        smaller = replace(planned, number=number + len(tried) + 1, fault=SHRUNK, storm=storm)
        try:
            tried.extend(run_drills(shell, [smaller], enough=lambda _: True))
        except Interrupted:
            raise Interrupted([*drills, *tried]) from None
        return tried[-1].verdict is Verdict.BROKEN

    for planned in plan:
        if planned.number in broken:
            shrunk(planned.storm, partial(breaks, planned), tries)
    return tried


def one_drill(shell: Shell, planned: PlannedDrill) -> Drill:
    """One drill from a healthy cluster to its verdict; every error of the target makes it undecided, not an error."""
    target = shell.target
    skipped, ledger = why_skipped(target, planned.fault), target.capabilities().ledger
    if skipped or ledger is None:
        return _drill(planned, Verdict.SKIPPED, f"skipped, because {skipped}")
    try:
        wait_for(Wait.CLUSTER_HEALTHY, lambda: target.observe().healthy, target.clock)
    except Error as error:
        return _drill(planned, Verdict.UNDECIDED, f"the cluster was not healthy before the fault: {error.message}")
    with Observer(target, shell.emit) as observer:
        return _under_load(shell, planned, observer, ledger)


def _under_load(shell: Shell, planned: PlannedDrill, observer: Observer, ledger: Ledger) -> Drill:
    order = LedgerOrder(
        planned.level,
        planned.writers,
        planned.route,
        drill=planned.number,
        rate=half_the_cap(shell.target, shell.own_load),
        answer_timeout_s=planned.client_timeout_s,
    )
    gathered = Gathered(shell.target)
    run: LedgerRun | None = None
    try:
        run = ledger.open_ledger(order)
        wait_for(Wait.WRITERS_UP, partial(_writing, run, planned.writers), shell.target.clock)
        with running_beside(shell.target, shell.emit, shell.own_load, planned, observer.led) as tell:
            shell.emit(DrillStarted(shell.target.clock.now(), planned.number, planned.fault.name, str(planned.level)))
            drill_run = _drill_run(shell, planned, observer, gathered, run)
            tell(drill_run.fault_at)
        attempts, witness, incomplete = run.stop(), run.witnessed(), run.incomplete()
    except Error as error:
        # A script that ran in a drill before fails by what that left: the verdicts so far stay the answer.
        if isinstance(error, UsageError) and planned.number == 1:
            raise
        return _drill(planned, Verdict.UNDECIDED, error.message)
    finally:
        if run is not None:
            run.stop()
    drill_run = replace(_healthy_again(shell, drill_run), incomplete=incomplete)
    after = shell.target.observe()
    gathered.ask_members()
    drill_run = replace(
        drill_run,
        after=after,
        views=observer.views,
        states=tuple(gathered.states),
        steps=tuple(observer.steps),
    )
    return _read_and_judge(shell, gathered, History(planned, drill_run, attempts, witness))


def _healthy_again(shell: Shell, run: DrillRun) -> DrillRun:
    """Wait until it is healthy, with at least as many members as before the fault."""

    def recovered() -> bool:
        view = shell.target.observe()
        return view.healthy and len(view.members) >= len(run.before.members)

    try:
        wait_for(Wait.CLUSTER_HEALTHY, recovered, shell.target.clock)
    except Error as error:
        return replace(run, recovered=False, error=run.error or f"the cluster did not recover: {error.message}")
    return run


def _drill_run(shell: Shell, planned: PlannedDrill, observer: Observer, gathered: Gathered, run: LedgerRun) -> DrillRun:
    """Fault or storm in at its seeded moment, commits again, hold, recover."""
    target, clock = shell.target, shell.target.clock
    rng = np.random.default_rng([shell.seed, planned.number])
    before = target.observe()
    victims = chosen_victims(before, planned.victim, lambda names: names[int(rng.integers(len(names)))])
    gathered.ask_members()
    storm = StormRun(target, shell.emit, observer, gathered, before)
    commits = Commits(observer, run, clock)
    carry_out = partial(inject, target, planned.fault, victims=victims, view=before, before_undo=gathered.ask_members)
    refused = stalled = ""
    alone = no_takeover(target, planned.fault, planned.victim)
    harmed: tuple[str, ...] = ()
    elected: float | None = None
    returned: list[Mark] = []
    try:
        if planned.fault.prepares:
            carry_out(planned.fault.prepares)
            gathered.ask_members()
        clock.pause(planned.warm_s + float(rng.uniform(0, 1)))
        fault_at = clock.now()
        if planned.storm:
            storm.carry_out(planned.storm)
        else:
            harmed = victims
            carry_out(planned.fault.steps)
            shell.emit(FaultChanged(fault_at, planned.fault.name, victims, cleared=False))
            gathered.ask_members()
            gathered.save_traces([m for m in victims if m == before.leader])
            if planned.fault.serves_after and not alone:
                # Not since `fault_at`: on a busy machine the fault itself takes a while, and commits go on meanwhile.
                elsewhere = planned.fault.name == Capability.PARTITION and planned.victim.takes_the_leader
                stalled = commits.wait_back(clock.now(), elsewhere=elsewhere)
            with suppress(Error):
                elected = target.elected_at(fault_at)
        clock.pause(HELD_ALONE_S if alone else planned.fault.hold_s)
        gathered.ask_members()
        gathered.save_logs(before)
        returned += bring_back(target, planned.fault, by_name(planned.return_order, before))
    except Error as no:
        refused, fault_at, harmed = f"{planned.fault.name} could not be done: {no.message}", clock.now(), ()
    finally:
        recover_at = clock.now()
        if planned.storm:
            harmed = tuple(dict.fromkeys(s.member for s in storm.struck if not s.refused))
        with shielded():
            error = _recover(shell, planned, harmed)
    struck = storm.end(cleared=not error and target.capabilities().recovery is not None)
    timed_out = commits.wait_back(recover_at) if planned.fault.steps or planned.storm else ""
    commits.wait_lasting()
    return DrillRun(
        harmed if planned.storm else victims,
        before,
        fault_at,
        recover_at,
        clock.now(),
        recovered=not error,
        error=error,
        happens=happens_here(target, planned.fault),
        stalled=stalled,
        timed_out=timed_out,
        elected_at=elected,
        refused=refused,
        struck=struck,
        no_takeover=alone,
        returned=tuple(returned),
    )


def _writing(run: LedgerRun, writers: int) -> bool:
    """Whether every writer is up and may have committed once; MachineError when none of them is alive any more."""
    progress = run.progress()
    if progress.writers_alive == 0:
        raise MachineError(f"the writers ended: {progress.last_error or 'no reason is known'}", "see the machine's log")
    return progress.connected >= writers and progress.acknowledged >= writers


def _recover(shell: Shell, planned: PlannedDrill, harmed: tuple[str, ...]) -> str:
    """Undo every fault, even after an error; why the cluster did not recover, "" when it did.

    Whom no fault was injected into, none is cleared of.
    """
    why = ""
    recovery = shell.target.capabilities().recovery
    try:
        if recovery is not None:
            recovery.recover()
    except (Error, OSError) as error:
        why = f"the cluster did not recover: {error}"
    if harmed:
        shell.emit(FaultChanged(shell.target.clock.now(), planned.fault.name, harmed, cleared=not why))
    return why


def _read_and_judge(shell: Shell, gathered: Gathered, history: History) -> Drill:
    """Read every member, the surviving leader first, and judge."""
    readings, problems = _readings(shell, gathered, history)
    kept = encode(replace(history, readings=readings, problems=problems))
    shell.keep(history_name(history.planned.number), kept)
    # Judged is what was kept: judging the file again gives the same.
    judgement = judge(decode(kept))
    drill = judgement.drill
    gathered.keep(drill, shell.keep, shell.emit, judgement.first_lost)
    return drill


def _readings(shell: Shell, gathered: Gathered, history: History) -> tuple[tuple[MemberReading, ...], dict[str, str]]:
    """What each member holds, the surviving leader first, and what went wrong where; nothing when it cannot be read."""
    ledger, after = shell.target.capabilities().ledger, history.run.after
    assert ledger is not None
    assert after is not None
    leader = after.leader or history.run.before.leader or ""
    readings: list[MemberReading] = []
    problems: dict[str, str] = {}
    caught_up = gathered.caught_up(leader)
    for member in (leader, *(m.name for m in after.members if m.name != leader)):
        try:
            rows = _rows(shell, ledger, member, history)
        except Error as error:
            problems[f"{member} unread"] = error.message
            if member == leader:
                break
            continue
        problems |= _data_checked(ledger, member)
        readings.append(compared(history.attempts, rows, caught_up=caught_up.get(member)))
    return tuple(readings), problems


def _rows(shell: Shell, ledger: Ledger, member: str, history: History) -> Rows:
    """The member's rows of the ledger; asked again for a while: one that just came back may not answer yet."""
    read: list[Rows] = []
    refusals: list[Error] = []

    def answered() -> bool:
        try:
            read.append(ledger.read_ledger(member, history.planned.number))
        except Error as error:
            refusals.append(error)
        return bool(read) or bool(history.run.error)

    with suppress(WaitTimeout):
        wait_for(Wait.PROGRAM_READY, answered, shell.target.clock, pace_s=1.0)
    if not read:
        raise refusals[-1]
    return read[0]


def _data_checked(ledger: Ledger, member: str) -> dict[str, str]:
    """The problem that the member's data files have, or why they could not be checked."""
    try:
        wrong = ledger.check_data(member)
    except Error as error:
        return {f"{member} unchecked": f"{error.message}: {error.hint}" if error.hint else error.message}
    return {f"data of {member}": wrong} if wrong else {}


def _drill(planned: PlannedDrill, verdict: Verdict, why: str) -> Drill:
    return Drill(
        planned.number,
        planned.fault.name,
        planned.victim,
        planned.level,
        verdict,
        why,
        route=str(planned.route),
    )
