"""Carries out the steps of a fault, or a whole storm, on a target through its capabilities, and undoes them.

Each strike of a storm comes at its moment, each fault is cleared in its time, one member stays unharmed."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from walproof.errors import Error, PartlyDone, TargetError, UsageError, WaitTimeout
from walproof.model.drill import Capability, Mark, Victim
from walproof.model.event import Emit, FaultChanged, Note
from walproof.model.ports import Capabilities, Target
from walproof.model.topology import ClusterView
from walproof.model.waiting import Wait, longest_s, wait_for
from walproof.proving.campaign import Strike, Struck
from walproof.proving.fault_steps import Fault, Step, members_of
from walproof.proving.faults import CATALOGUE
from walproof.proving.observer import Gathered, Observer

HELD_ALONE_S = 10.0
"""How long a fault of the leader is held that no member takes over from: no commit is awaited before it ends."""


def why_skipped(target: Target, fault: Fault) -> str | None:
    """Why this target cannot do the fault now, or has no ledger for it; None when it can."""
    able = target.capabilities()
    return next((reason for one in (*fault.needs, Capability.LEDGER) if (reason := able.why_not(one))), None)


def happens_here(target: Target, fault: Fault) -> str:
    """What a fault of one step does on this target, in the target's words; "" where the catalogue's say it."""
    operations = [step.operation for step in fault.steps]
    return target.capabilities().happens.get(operations[0], "") if len(operations) == 1 else ""


def no_takeover(target: Target, fault: Fault, victim: Victim) -> str:
    """Why no member takes over while the fault lasts, so that its outage is as long as walproof makes it; else ""."""
    able = target.capabilities()
    if fault.takes_all and able.why_not(Capability.RETURN_ORDER) is None:
        return "every member is down until walproof brings it back"
    reasons = able.no_takeover if victim.takes_the_leader else {}
    return next((reasons[step.operation] for step in fault.steps if step.operation in reasons), "")


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
    every = tuple(m.name for m in view.members)
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
            partial(_on_member, able, step, member, fault.slow_flush_s, tuple(o for o in every if o != member))
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


_SERVES_S = 2.0
"""A member that leads serves for so long before the next one comes back."""


def bring_back(target: Target, fault: Fault, order: Sequence[str]) -> tuple[Mark, ...]:
    """Undo the fault member after member, the next once one leads, or none has for as long as a takeover ever takes."""
    marks: list[Mark] = []
    for member in order:
        if marks:
            with suppress(WaitTimeout):
                wait_for(Wait.TAKEOVER, lambda: target.observe().leader is not None, target.clock, pace_s=0.5)
                target.clock.pause(_SERVES_S)
        marks.append(Mark(target.clock.now(), "comes back", member))
        undo(target, fault, member)
    return tuple(marks)


_STEP_S = 0.05
_AGAIN_S = 5.0
_NOBODY = "no member that it could fall on served, or it would have left none unharmed"
_STARTED_ANEW = (Capability.KILL, Capability.STOP, Capability.KILL_MEMBER, Capability.FREEZE, Capability.POWER_CUT)
"""To undo one of these starts a member, and ends every other fault of it."""


@dataclass(slots=True)
class StormRun:
    """One storm under way. `struck` grows as it goes, and is there when something interrupts it."""

    target: Target
    emit: Emit
    observer: Observer
    gathered: Gathered
    view: ClusterView
    """The newest observation; at the beginning the one before the storm."""
    struck: list[Struck] = field(default_factory=list)
    _due: dict[int, float] = field(default_factory=dict)
    """When each strike in effect is to be cleared, by its place in `struck`; never, where that failed twice."""
    _failed: set[int] = field(default_factory=set)

    def carry_out(self, storm: Sequence[Strike]) -> None:
        """Every strike at its moment; returns when each has lasted its time and is cleared."""
        for strike in storm:
            if strike.after_takeover and self.struck and self.struck[-1].led and not self.struck[-1].refused:
                self._await_takeover()
            self._pause(strike.after_s)
            self._leave_one_unharmed()
            self._strike(strike)
        while any(map(math.isfinite, self._due.values())):
            self._pause(_STEP_S)

    def end(self, *, cleared: bool) -> tuple[Struck, ...]:
        """What was carried out; what was not undone yet is cleared now by the recovery of the cluster, or is not."""
        now = self.target.clock.now()
        for place in self._due:
            self.struck[place] = replace(self.struck[place], cleared_at=now, cleared=cleared)
        self._due.clear()
        return tuple(self.struck)

    def _pause(self, seconds: float) -> None:
        clock = self.target.clock
        until = clock.now() + seconds
        while True:
            for place in [place for place, due in self._due.items() if due <= clock.now()]:
                if place in self._due:
                    self._clear_one(place)
            left = until - clock.now()
            if left <= 0:
                return
            clock.pause(min(_STEP_S, left))

    def _await_takeover(self) -> None:
        """Until another member leads, or the same on a new timeline; not longer than a takeover ever takes."""
        then, clock = self.view, self.target.clock
        until = clock.now() + longest_s(Wait.TAKEOVER, clock)
        while clock.now() < until:
            now = self._newest()
            if now.leader is not None and (now.leader, now.leader_timeline) != (then.leader, then.leader_timeline):
                return
            self._pause(_STEP_S)

    def _newest(self) -> ClusterView:
        return self.observer.newest or self.view

    def _harmed(self, *more: str) -> set[str]:
        """Members under a fault just now; one that leaves them serving does not count, unless it is among `more`."""
        ongoing = [self.struck[place] for place in self._due]
        return {one.member for one in ongoing if not CATALOGUE[one.fault].leaves_serving or one.fault in more}

    @property
    def _one_is_left(self) -> bool:
        """Whether no more than one member is unharmed."""
        return len(self._harmed()) >= max(1, len(self.view.members) - 1)

    def _leave_one_unharmed(self) -> None:
        """Clear the oldest fault while it and another one would leave no member unharmed."""
        while self._one_is_left:
            harmed = self._harmed()
            ongoing = [n for n, due in self._due.items() if math.isfinite(due) and self.struck[n].member in harmed]
            if not ongoing:
                return  # the next strike falls on nobody, unless it leaves its member serving
            self._clear_one(min(ongoing))

    def _strike(self, strike: Strike) -> None:
        self.view = self._newest()
        member = self._member(strike)
        fault, clock = CATALOGUE[strike.fault], self.target.clock
        if not strike.after_takeover:  # else every moment counts, and the new leader has not been restarted
            self.gathered.ask_members()
            clock.pause(_STEP_S)
        led, at = member == self.view.leader, clock.now()
        if not member:
            self.struck.append(Struck(strike.fault, "", False, at, at, _NOBODY))
            return
        try:
            inject(self.target, fault, fault.steps, victims=(member,), view=self.view)
        except (Error, OSError) as no:
            # The others refuse before they do anything.
            partly = isinstance(no, PartlyDone) or not isinstance(no, UsageError | TargetError)
            if partly:
                self._due[len(self.struck)] = at  # whatever is in effect is undone next
            self.struck.append(Struck(strike.fault, member, led and partly, at, at, f"{no}", partly=partly))
            return
        self._due[len(self.struck)] = at + strike.lasts_s
        self.struck.append(Struck(strike.fault, member, led, at, at))
        self.emit(FaultChanged(at, strike.fault, (member,), cleared=False))
        self.gathered.ask_members()
        if led:
            self.gathered.save_traces([member])

    def _member(self, strike: Strike) -> str:
        """The member that it falls on now; another one where none leads or none follows, "" where none serves."""
        if self._one_is_left and not CATALOGUE[strike.fault].leaves_serving:
            return ""
        harmed = self._harmed(strike.fault)
        free = [m.name for m in self.view.members if m.serving and m.name not in harmed]
        leaders = [name for name in free if name == self.view.leader]
        standbys = [name for name in free if name != self.view.leader]
        victims = CATALOGUE[strike.fault].victims
        if victims == (Victim.LEADER,):
            candidates = leaders
        elif Victim.LEADER not in victims or no_takeover(self.target, CATALOGUE[strike.fault], Victim.LEADER):
            candidates = standbys
        else:
            candidates = (leaders or standbys) if strike.victim is Victim.LEADER else (standbys or leaders)
        return candidates[int(strike.pick * len(candidates))] if candidates else ""

    def _clear_one(self, place: int) -> None:
        """That strike; with one after which the member is started anew, whatever else it has ends too."""
        one, clock = self.struck[place], self.target.clock
        try:
            undo(self.target, CATALOGUE[one.fault], one.member)
        except (Error, OSError) as no:
            self._due[place] = math.inf if place in self._failed else clock.now() + _AGAIN_S
            self._failed.add(place)
            self.emit(Note(clock.now(), f"{one.fault} of {one.member} could not be cleared yet: {no}"))
            return
        del self._due[place]
        self.struck[place] = replace(one, cleared_at=clock.now())
        if not one.refused:
            self.emit(FaultChanged(clock.now(), one.fault, (one.member,), cleared=True))
        if one.fault in _STARTED_ANEW:
            for other in [n for n in self._due if self.struck[n].member == one.member]:
                if other in self._due:
                    self._clear_one(other)
