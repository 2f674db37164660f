"""Does the operations of a fault on a target, through its optional capabilities; decides nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from walproof.errors import TargetError
from walproof.model.ports import CanBreak, CanRevive, Clock, Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Victim
from walproof.proving.faults import SLOW_FLUSH_S, Fault, Operation, Step, StepVictim


def why_skipped(target: Target, fault: Fault) -> str | None:
    """Why this target cannot do the fault now, None when it can."""
    if fault.steps and not isinstance(target, CanBreak):
        return f"{target.name} cannot break anything"
    for capability in fault.needs:
        reason = target.why_not(capability)
        if reason:
            return reason
    if any(step.operation is Operation.REVIVE for step in fault.steps) and not isinstance(target, CanRevive):
        return f"{target.name} cannot bring back one member alone"
    return None


def chosen_victims(view: ClusterView, victim: Victim, pick: Callable[[Sequence[str]], str]) -> tuple[str, ...]:
    """The members meant by a kind of victim in this look; `pick` chooses one of several. TargetError when none is."""
    standbys = tuple(m.name for m in view.members if m.name != view.leader)
    candidates = {
        Victim.LEADER: (view.leader,) if view.leader else (),
        Victim.SYNC_STANDBY: view.synchronous,
        Victim.STANDBY: standbys,
        Victim.ALL_STANDBYS: standbys,
        Victim.CLUSTER: tuple(m.name for m in view.members),
    }[victim]
    if not candidates:
        raise TargetError(f"there is no {victim} to be the victim just now", "see walproof lab status")
    return candidates if victim in (Victim.ALL_STANDBYS, Victim.CLUSTER) else (pick(candidates),)


def _members(step: Step, victims: tuple[str, ...], view: ClusterView) -> tuple[str, ...]:
    standbys = tuple(m.name for m in view.members if m.name != view.leader)
    leader = (view.leader,) if view.leader else ()
    return {
        StepVictim.VICTIM: victims,
        StepVictim.LEADER: leader,
        StepVictim.STANDBYS: standbys,
        StepVictim.ALL: (*leader, *standbys),
    }[step.victim]


def _do(target: CanBreak, operation: Operation, member: str, slow_s: float, others: tuple[str, ...]) -> None:
    match operation:
        case Operation.SLOW_DISK:
            target.hurt_disk(member, "slow", slow_s)
        case Operation.FAILING_DISK:
            target.hurt_disk(member, "failing")
        case Operation.FULL_DISK:
            target.hurt_disk(member, "full")
        case Operation.PARTITION_ONE_WAY:
            for other in others:
                target.cut_one_way(member, other)
        case Operation.REVIVE:
            if isinstance(target, CanRevive):
                target.revive(member)
        case _:
            verbs: dict[Operation, Callable[[str], None]] = {
                Operation.KILL: target.kill,
                Operation.STOP: target.stop,
                Operation.KILL_MEMBER: target.kill_member,
                Operation.FREEZE: target.freeze,
                Operation.POWER_CUT: target.cut_power,
                Operation.PARTITION: target.cut,
                Operation.ISOLATE: target.isolate,
                Operation.RESTART: target.restart,
            }
            verbs[operation](member)


def inject(
    target: CanBreak,
    fault: Fault,
    steps: tuple[Step, ...],
    *,
    victims: tuple[str, ...],
    view: ClusterView,
    clock: Clock,
) -> None:
    """Do the steps one after another; an operation on several members goes out to all at once on a real clock."""
    slow_s = SLOW_FLUSH_S.get(fault.name, 0.01)
    everybody = tuple(m.name for m in view.members)
    for step in steps:
        if step.after_s:
            clock.pause(step.after_s)
        if step.operation is Operation.DCS_LOSS:
            target.lose_dcs()
            continue
        if step.operation is Operation.SWITCHOVER:
            target.switch_over(None)
            continue
        members = _members(step, victims, view)
        work = [(m, tuple(o for o in everybody if o != m)) for m in members]
        if getattr(clock, "virtual", False) or len(work) < 2 or step.apart_s:
            for place, (member, others) in enumerate(work):
                if place and step.apart_s:
                    clock.pause(step.apart_s)
                _do(target, step.operation, member, slow_s, others)
            continue
        with ThreadPoolExecutor(len(work)) as pool:
            for done in [pool.submit(_do, target, step.operation, m, slow_s, o) for m, o in work]:
                done.result()
