"""Carries out the steps of a fault on a target, through its capabilities."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from walproof.errors import TargetError
from walproof.model.ports import Capabilities, Capability, Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Victim
from walproof.proving.faults import SLOW_FLUSH_S, Fault, Step, members_of


def why_skipped(target: Target, fault: Fault) -> str | None:
    """Why this target cannot do the fault now, None when it can."""
    able = target.capabilities()
    return next((reason for capability in fault.needs if (reason := able.why_not(capability))), None)


def chosen_victims(view: ClusterView, victim: Victim, pick: Callable[[Sequence[str]], str]) -> tuple[str, ...]:
    """The members meant by a kind of victim in this view; `pick` chooses one of several. TargetError when none is."""
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


def _on_member(able: Capabilities, step: Step, member: str, slow_s: float, others: tuple[str, ...]) -> None:
    """One step on one member; TargetError when the target lost the capability meanwhile."""
    capability = step.operation
    if step.operation is Capability.SLOW_DISK and able.slow_disk:
        if step.undo:
            able.slow_disk.undo(member)
        else:
            able.slow_disk.inject(member, slow_s)
    elif step.operation is Capability.PARTITION_ONE_WAY and able.partition_one_way:
        for other in others:
            able.partition_one_way.inject(member, other)
    elif step.operation is Capability.RESTART and able.restart:
        able.restart.restart(member)
    elif capability in able.faults:
        fault = able.faults[capability]
        (fault.undo if step.undo else fault.inject)(member)
    else:
        raise TargetError(f"{step.operation} cannot be done any more: {able.why_not(capability)}")


def inject(
    target: Target,
    fault: Fault,
    steps: tuple[Step, ...],
    *,
    victims: tuple[str, ...],
    view: ClusterView,
    before_undo: Callable[[], None] = lambda: None,
) -> None:
    """Carry out the steps one after another; one on several members is carried out on all at once.

    `before_undo` is called before a step that undoes an earlier one: its signs show no longer afterwards.
    """
    able, clock = target.capabilities(), target.clock
    slow_s = SLOW_FLUSH_S.get(fault.name, 0.01)
    everybody = tuple(m.name for m in view.members)
    for step in steps:
        if step.after_s:
            clock.pause(step.after_s)
        if step.undo:
            before_undo()
        if step.operation is Capability.DCS_LOSS and able.dcs_loss:
            able.dcs_loss.inject()
            continue
        if step.operation is Capability.SWITCHOVER and able.switchover:
            able.switchover.switch_over(None)
            continue
        acts = [
            partial(_on_member, able, step, member, slow_s, tuple(o for o in everybody if o != member))
            for member in members_of(step, victims, view)
        ]
        if step.apart_s:
            for place, act in enumerate(acts):
                if place:
                    clock.pause(step.apart_s)
                act()
        elif acts:
            clock.together(acts)


def undo(target: Target, fault: Fault, member: str) -> None:
    """Undo what a fault of one step did to one member, and start what it ended; nothing where it ends by itself."""
    step = replace(fault.steps[0], undo=True)
    if step.operation not in (Capability.RESTART, Capability.SWITCHOVER):
        _on_member(target.capabilities(), step, member, 0.0, ())
