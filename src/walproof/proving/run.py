"""Conducts drills on a target: load, fault, recovery, reading; emits events. Its pure neighbours judge."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walproof.errors import Error, WaitTimeout
from walproof.machine.signals import shielded
from walproof.model.attempt import Attempts, Rows
from walproof.model.event import DrillDone, DrillStarted, Emit, FaultChanged, Note
from walproof.model.load import LedgerOrder, LedgerRun, WitnessReport
from walproof.model.ports import Capability, Ledger, Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Drill, Verdict
from walproof.model.waiting import Wait, wait_for
from walproof.proving.assumptions import DrillRun
from walproof.proving.campaign import PlannedDrill
from walproof.proving.conclude import DrillData, concluded_drill
from walproof.proving.faults import loss_of
from walproof.proving.inject import chosen_victims, inject, why_skipped
from walproof.proving.observer import Observer

Keep = Callable[[str, str], object]
"""Keeps a text with the record: (name, text)."""


@dataclass(frozen=True, slots=True)
class Shell:
    """What a run acts with: the target, where events go, where logs are kept, the seed."""

    target: Target
    emit: Emit
    keep: Keep
    seed: int = 1


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
        except KeyboardInterrupt:
            raise Interrupted(drills) from None
        drills.append(drill)
        shell.emit(DrillDone(shell.target.clock.now(), drill))
        if drill.assumptions.get("cluster recovered") is False:
            shell.emit(Note(shell.target.clock.now(), "the cluster did not recover: no further drill"))
            break
        if enough(drills):
            break
    return drills


def one_drill(shell: Shell, planned: PlannedDrill) -> Drill:
    """One drill from a healthy cluster to its verdict; every error of the target makes it undecided, not an error."""
    target = shell.target
    skipped = why_skipped(target, planned.fault)
    ledger = target.capabilities().ledger
    if skipped is None and ledger is None:
        skipped = target.capabilities().why_not(Capability.LEDGER)
    if skipped:
        return _drill(planned, Verdict.SKIPPED, f"skipped, because {skipped}")
    assert ledger is not None
    try:
        _wait_healthy(shell)
    except Error as error:
        return _drill(planned, Verdict.UNDECIDED, f"the cluster was not healthy before the fault: {error.message}")
    with Observer(target, shell.emit) as observer:
        return _under_load(shell, planned, observer, ledger)


def _under_load(shell: Shell, planned: PlannedDrill, observer: Observer, ledger: Ledger) -> Drill:
    order = LedgerOrder(planned.level, planned.writers, planned.route, drill=planned.number)
    run: LedgerRun | None = None
    try:
        run = ledger.open_ledger(order)
        drill_run = _drill_run(shell, planned, observer, run)
        attempts, witness = run.stop(), run.witnessed()
    except Error as error:
        return _drill(planned, Verdict.UNDECIDED, error.message)
    finally:
        if run is not None:
            run.stop()
    try:
        wait_for(Wait.CLUSTER_HEALTHY, lambda: _recovered(shell.target.observe(), drill_run.before), shell.target.clock)
    except Error as error:
        drill_run = replace(
            drill_run, recovered=False, error=drill_run.error or f"the cluster did not recover: {error.message}"
        )
    drill_run = replace(drill_run, after=shell.target.observe(), views=observer.views)
    if not drill_run.recovered:
        _keep_logs(shell, planned, drill_run)
    return _read_and_tell(shell, planned, drill_run, attempts, witness)


def _drill_run(shell: Shell, planned: PlannedDrill, observer: Observer, run: LedgerRun) -> DrillRun:
    """Load up, fault in at its seeded moment, commits again, hold, recover."""
    target, clock = shell.target, shell.target.clock
    rng = np.random.default_rng([shell.seed, planned.number])
    wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged >= planned.writers, clock)
    shell.emit(DrillStarted(clock.now(), planned.number, planned.fault.name, str(planned.level)))
    before = target.observe()
    victims = chosen_victims(before, planned.victim, lambda names: names[int(rng.integers(len(names)))])
    error, refused, recovered = "", "", True
    elected: float | None = None
    try:
        if planned.fault.prepares:
            inject(target, planned.fault, planned.fault.prepares, victims=victims, view=before, clock=clock)
        clock.pause(planned.warm_s + float(rng.uniform(0, 1)))
        fault_at = clock.now()
        if planned.fault.steps:
            inject(target, planned.fault, planned.fault.steps, victims=victims, view=before, clock=clock)
        shell.emit(FaultChanged(fault_at, planned.fault.name, victims, cleared=False))
        error = _wait_commits(shell, planned, observer, run, fault_at)
        elected = _elected(target, fault_at)
        clock.pause(planned.fault.hold_s)
    except Error as no:
        refused, fault_at = f"{planned.fault.name} could not be done: {no.message}", clock.now()
    finally:
        recover_at = clock.now()
        with shielded():
            recovered, why_not = _recover(shell, planned, victims)
        error = why_not or error
    if planned.fault.steps:
        error = _wait_commits(shell, planned, observer, run, recover_at, recovering=True) or error
    clock.pause(1.0)
    return DrillRun(
        planned.fault,
        planned.level,
        victims,
        before,
        fault_at,
        recover_at,
        clock.now(),
        observer.views,
        recovered,
        error,
        refused=refused,
        elected_at=elected,
    )


def _wait_commits(
    shell: Shell, planned: PlannedDrill, observer: Observer, run: LedgerRun, since: float, *, recovering: bool = False
) -> str:
    """Wait for a commit acknowledged half a second after `since`; the message of a wait that timed out, or ""."""
    if not recovering and not planned.fault.serves_after:
        return ""
    settled = 0.5
    taken_over = loss_of(planned.fault, planned.victim) is not None
    first = observer.views[0] if observer.views else None
    before = first.leader if first else None
    timeline = _timeline(first) if first else None

    def back() -> bool:
        last = run.progress().last_acknowledged_at
        if last is None or last < since + settled:
            return False
        now = observer.last
        if recovering or not taken_over or now is None:
            return True
        return now.leader is not None and (now.leader != before or _timeline(now) != timeline)

    try:
        wait_for(Wait.FIRST_COMMIT_AFTER, back, shell.target.clock)
    except WaitTimeout as vain:
        return vain.message
    return ""


def _timeline(view: ClusterView) -> int | None:
    leader = view.member(view.leader) if view.leader else None
    return leader.timeline if leader else None


def _recovered(view: ClusterView, before: ClusterView) -> bool:
    """Healthy, with at least as many members as before the fault."""
    return view.healthy and len(view.members) >= len(before.members)


def _elected(target: Target, fault_at: float) -> float | None:
    """When the target says that a successor was elected; None when it does not."""
    try:
        return target.elected_at(fault_at)
    except Error:
        return None


def _recover(shell: Shell, planned: PlannedDrill, victims: tuple[str, ...]) -> tuple[bool, str]:
    """Undo every fault, whatever happened; (recovered, why not)."""
    recovered, why = True, ""
    recovery = shell.target.capabilities().recovery
    try:
        if recovery is not None:
            recovery.recover()
    except Error as error:
        recovered, why = False, f"the cluster did not recover: {error.message}"
    shell.emit(FaultChanged(shell.target.clock.now(), planned.fault.name, victims, cleared=recovered))
    return recovered, why


def _keep_logs(shell: Shell, planned: PlannedDrill, drill_run: DrillRun) -> None:
    """Every member's logs with the record."""
    target = shell.target
    source = target.capabilities().logs
    if source is None:
        return
    for member in drill_run.before.members:
        try:
            text = source.logs(member.name)
        except Error as error:
            text = error.message
        shell.keep(f"drill-{planned.number}-{member.name}.log", text)
    shell.emit(Note(target.clock.now(), f"drill {planned.number}: logs of every member are kept in the record"))


def _wait_healthy(shell: Shell) -> None:
    wait_for(Wait.CLUSTER_HEALTHY, lambda: shell.target.observe().healthy, shell.target.clock)


def _read_and_tell(
    shell: Shell, planned: PlannedDrill, drill_run: DrillRun, attempts: Attempts, witness: WitnessReport
) -> Drill:
    """Read every member, the surviving leader first, and judge."""
    target = shell.target
    ledger = target.capabilities().ledger
    assert ledger is not None
    assert drill_run.after is not None
    leader = drill_run.after.leader or drill_run.before.leader or ""
    members = [leader, *(m.name for m in drill_run.after.members if m.name != leader)]
    notes = DrillData(attempts, witness)

    def rows() -> Iterator[Rows]:
        for member in members:
            try:
                one = ledger.read_ledger(member, planned.number)
                wrong = ledger.check_data(member)
            except Error as error:
                notes.problems[f"{member} unread"] = error.message
                if member == leader:
                    return
                continue
            if wrong:
                notes.problems[f"data of {member}"] = wrong
            notes.read.append(member)
            yield one

    return concluded_drill(planned, drill_run, rows(), notes)


def _drill(planned: PlannedDrill, verdict: Verdict, why: str) -> Drill:
    return Drill(
        planned.number, planned.fault.name, planned.victim, planned.level, verdict, why, route=str(planned.route)
    )
