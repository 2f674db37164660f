"""Does the deeds of a fault to a target, through its optional capabilities; decides nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from walproof.errors import TargetError
from walproof.model.ports import CanBreak, CanRevive, Clock, Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Victim
from walproof.proving.faults import SLOW_FLUSH_S, Deed, Fault, Step, Whom


def why_skipped(target: Target, fault: Fault) -> str | None:
    """Why this target cannot do the fault now, None when it can."""
    if fault.steps and not isinstance(target, CanBreak):
        return f"{target.name} cannot break anything"
    for capability in fault.needs:
        reason = target.why_not(capability)
        if reason:
            return reason
    if any(step.deed is Deed.REVIVE for step in fault.steps) and not isinstance(target, CanRevive):
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
        Whom.VICTIM: victims,
        Whom.LEADER: leader,
        Whom.STANDBYS: standbys,
        Whom.EVERYBODY: (*leader, *standbys),
    }[step.whom]


def _do(target: CanBreak, deed: Deed, member: str, slow_s: float, others: tuple[str, ...]) -> None:
    match deed:
        case Deed.SLOW_DISK:
            target.hurt_disk(member, "slow", slow_s)
        case Deed.FAILING_DISK:
            target.hurt_disk(member, "failing")
        case Deed.FULL_DISK:
            target.hurt_disk(member, "full")
        case Deed.PARTITION_ONE_WAY:
            for other in others:
                target.cut_one_way(member, other)
        case Deed.REVIVE:
            if isinstance(target, CanRevive):
                target.revive(member)
        case _:
            verbs: dict[Deed, Callable[[str], None]] = {
                Deed.KILL: target.kill,
                Deed.STOP: target.stop,
                Deed.KILL_MEMBER: target.kill_member,
                Deed.FREEZE: target.freeze,
                Deed.CUT_POWER: target.cut_power,
                Deed.PARTITION: target.cut,
                Deed.ISOLATE: target.isolate,
                Deed.RESTART: target.restart,
            }
            verbs[deed](member)


def inject(
    target: CanBreak,
    fault: Fault,
    steps: tuple[Step, ...],
    *,
    victims: tuple[str, ...],
    view: ClusterView,
    clock: Clock,
) -> None:
    """Do the steps one after another; a deed on several members goes out to all at once on a real clock."""
    slow_s = SLOW_FLUSH_S.get(fault.name, 0.01)
    everybody = tuple(m.name for m in view.members)
    for step in steps:
        if step.after_s:
            clock.pause(step.after_s)
        if step.deed is Deed.LOSE_DCS:
            target.lose_dcs()
            continue
        if step.deed is Deed.SWITCH_OVER:
            target.switch_over(None)
            continue
        members = _members(step, victims, view)
        work = [(m, tuple(o for o in everybody if o != m)) for m in members]
        if getattr(clock, "virtual", False) or len(work) < 2 or step.apart_s:
            for place, (member, others) in enumerate(work):
                if place and step.apart_s:
                    clock.pause(step.apart_s)
                _do(target, step.deed, member, slow_s, others)
            continue
        with ThreadPoolExecutor(len(work)) as pool:
            for done in [pool.submit(_do, target, step.deed, m, slow_s, o) for m, o in work]:
                done.result()
