"""Conducts drills on a target: load, fault, healing, reading; emits events. Its pure neighbours judge."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walproof.errors import Error, WaitTimeout
from walproof.model.attempt import Attempts, Rows
from walproof.model.event import DrillDone, DrillStarted, Emit, FaultChanged, Note
from walproof.model.ports import CanBreak, CanKeepLedger, LedgerOrder, LedgerRun, Target, WitnessReport
from walproof.model.topology import ClusterView
from walproof.model.verdict import Drill, Verdict
from walproof.model.waiting import Wait, wait_for
from walproof.proving.assumptions import DrillRun
from walproof.proving.campaign import PlannedDrill
from walproof.proving.conclude import DrillData, concluded_drill
from walproof.proving.faults import loss_of
from walproof.proving.inject import chosen_victims, inject, why_skipped
from walproof.proving.manager_log import elected_at
from walproof.proving.observer import Observer

Keep = Callable[[str, str], object]
"""Keeps a text beside the record: (name, text)."""


@dataclass(frozen=True, slots=True)
class Shell:
    """What a run acts with: the target, where events go, where logs are kept, the seed."""

    target: Target
    emit: Emit
    keep: Keep
    seed: int = 1


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a campaign: everything is healed; the drills judged so far are in `drills`."""

    def __init__(self, drills: list[Drill]) -> None:
        super().__init__("interrupted")
        self.drills = drills


def conduct(shell: Shell, plan: Iterable[PlannedDrill], *, enough: Callable[[Sequence[Drill]], bool]) -> list[Drill]:
    """Run drill after drill until the plan ends or `enough` says so; stops early when the cluster does not heal.

    Ctrl-C heals first, then raises Interrupted with the drills so far.
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
            shell.emit(Note(shell.target.clock.now(), "the cluster did not heal: no further drill"))
            break
        if enough(drills):
            break
    return drills


def one_drill(shell: Shell, planned: PlannedDrill) -> Drill:
    """One drill from a whole cluster to its verdict; every error of the target makes it undecided, not an error."""
    target = shell.target
    skipped = why_skipped(target, planned.fault)
    if skipped is None and not isinstance(target, CanKeepLedger):
        skipped = f"{target.name} cannot keep the ledger"
    if skipped:
        return _drill(planned, Verdict.SKIPPED, f"skipped, because {skipped}")
    assert isinstance(target, CanKeepLedger)
    try:
        _wait_whole(shell)
    except Error as error:
        return _drill(planned, Verdict.UNDECIDED, f"the cluster was not whole before the fault: {error.message}")
    with Observer(target, shell.emit) as observer:
        return _under_load(shell, planned, observer, target)


def _under_load(shell: Shell, planned: PlannedDrill, observer: Observer, ledger: CanKeepLedger) -> Drill:
    order = LedgerOrder(planned.level, planned.writers, planned.route, drill=planned.number)
    run: LedgerRun | None = None
    try:
        run = ledger.open_ledger(order)
        course = _course(shell, planned, observer, run)
        attempts, witness = run.stop(), run.witnessed()
    except Error as error:
        return _drill(planned, Verdict.UNDECIDED, error.message)
    finally:
        if run is not None:
            run.stop()
    try:
        wait_for(Wait.CLUSTER_HEALTHY, lambda: shell.target.observe().healthy, observer.clock)
    except Error as error:
        course = replace(course, recovered=False, error=course.error or f"the cluster did not heal: {error.message}")
    course = replace(course, after=shell.target.observe(), views=observer.looks)
    if not course.recovered:
        _keep_logs(shell, planned, course)
    return _read_and_tell(shell, planned, course, attempts, witness)


def _course(shell: Shell, planned: PlannedDrill, observer: Observer, run: LedgerRun) -> DrillRun:
    """Load up, fault in at its seeded moment, commits again, hold, heal."""
    target, clock = shell.target, observer.clock
    rng = np.random.default_rng([shell.seed, planned.number])
    wait_for(Wait.WRITERS_UP, lambda: run.progress().acknowledged >= planned.writers, clock)
    shell.emit(DrillStarted(clock.now(), planned.number, planned.fault.name, str(planned.level)))
    before = target.observe()
    victims = chosen_victims(before, planned.victim, lambda names: names[int(rng.integers(len(names)))])
    breaker = target if isinstance(target, CanBreak) else None
    error, refused, healed = "", "", True
    elected: float | None = None
    try:
        if breaker and planned.fault.prepares:
            inject(breaker, planned.fault, planned.fault.prepares, victims=victims, view=before, clock=clock)
        clock.pause(planned.warm_s + float(rng.uniform(0, 1)))
        fault_at = clock.now()
        if breaker and planned.fault.steps:
            inject(breaker, planned.fault, planned.fault.steps, victims=victims, view=before, clock=clock)
        shell.emit(FaultChanged(fault_at, planned.fault.name, victims, cleared=False))
        error = _wait_commits(planned, observer, run, fault_at)
        elected = _elected(target, observer.last, fault_at)
        clock.pause(planned.fault.hold_s)
    except Error as no:
        refused, fault_at = f"{planned.fault.name} could not be done: {no.message}", clock.now()
    finally:
        heal_at = clock.now()
        if breaker:
            healed, unhealed = _heal(shell, breaker, planned, victims)
            error = unhealed or error
    if planned.fault.steps:
        error = _wait_commits(planned, observer, run, heal_at, healing=True) or error
    clock.pause(1.0)
    return DrillRun(
        planned.fault,
        planned.level,
        victims,
        before,
        fault_at,
        heal_at,
        clock.now(),
        observer.looks,
        healed,
        error,
        refused=refused,
        elected_at=elected,
    )


def _wait_commits(
    planned: PlannedDrill, observer: Observer, run: LedgerRun, since: float, *, healing: bool = False
) -> str:
    """Wait for a commit begun after `since` plus a moment for answers under way; what was awaited in vain, or ""."""
    if not healing and not planned.fault.serves_after:
        return ""
    settled = 0.5
    taken_over = loss_of(planned.fault, planned.victim) is not None
    first = observer.looks[0] if observer.looks else None
    before = first.leader if first else None
    timeline = _timeline(first) if first else None

    def back() -> bool:
        last = run.progress().last_acknowledged_at
        if last is None or last < since + settled:
            return False
        now = observer.last
        if healing or not taken_over or now is None:
            return True
        return now.leader is not None and (now.leader != before or _timeline(now) != timeline)

    try:
        wait_for(Wait.FIRST_COMMIT_AFTER, back, observer.clock)
    except WaitTimeout as vain:
        return vain.message
    return ""


def _timeline(view: ClusterView) -> int | None:
    leader = view.member(view.leader) if view.leader else None
    return leader.timeline if leader else None


def _elected(target: Target, view: ClusterView | None, fault_at: float) -> float | None:
    """What the log of whoever leads now says about its election."""
    if view is None or view.leader is None or not isinstance(target, CanBreak):
        return None
    try:
        return elected_at(target.logs(view.leader), fault_at)
    except Error:
        return None


def _heal(shell: Shell, breaker: CanBreak, planned: PlannedDrill, victims: tuple[str, ...]) -> tuple[bool, str]:
    """Heal, whatever happened; (healed, why not)."""
    healed, why = True, ""
    try:
        breaker.heal()
    except Error as error:
        healed, why = False, f"the cluster did not heal: {error.message}"
    shell.emit(FaultChanged(shell.target.clock.now(), planned.fault.name, victims, cleared=healed))
    return healed, why


def _keep_logs(shell: Shell, planned: PlannedDrill, course: DrillRun) -> None:
    """Every member's logs beside the record."""
    target = shell.target
    for member in course.before.members:
        if isinstance(target, CanBreak):
            try:
                text = target.logs(member.name)
            except Error as error:
                text = error.message
            shell.keep(f"drill-{planned.number}-{member.name}.log", text)
    shell.emit(Note(target.clock.now(), f"drill {planned.number}: logs of every member are kept in the record"))


def _wait_whole(shell: Shell) -> None:
    clock = shell.target.clock
    wait_for(Wait.CLUSTER_HEALTHY, lambda: shell.target.observe().healthy, clock)


def _read_and_tell(
    shell: Shell, planned: PlannedDrill, course: DrillRun, attempts: Attempts, witness: WitnessReport
) -> Drill:
    """Read every member, the surviving leader first, and judge."""
    target = shell.target
    assert isinstance(target, CanKeepLedger)
    assert course.after is not None
    leader = course.after.leader or course.before.leader or ""
    members = [leader, *(m.name for m in course.after.members if m.name != leader)]
    notes = DrillData(attempts, witness)

    def rows() -> Iterator[Rows]:
        for member in members:
            try:
                one = target.read_ledger(member, planned.number)
                wrong = target.check_data(member)
            except Error as error:
                notes.problems[f"{member} unread"] = error.message
                if member == leader:
                    return
                continue
            if wrong:
                notes.problems[f"data of {member}"] = wrong
            notes.read.append(member)
            yield one

    return concluded_drill(planned, course, rows(), notes)


def _drill(planned: PlannedDrill, verdict: Verdict, why: str) -> Drill:
    return Drill(
        planned.number, planned.fault.name, planned.victim, planned.level, verdict, why, route=str(planned.route)
    )
