"""Carries out a storm on a target: each strike at its moment, each fault cleared in its time, one member unharmed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from walproof.errors import Error
from walproof.model.event import Emit, FaultChanged, Note
from walproof.model.ports import Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Victim
from walproof.model.waiting import Wait, longest_s
from walproof.proving.faults import CATALOGUE, LEAVES_SERVING
from walproof.proving.gather import Gathered
from walproof.proving.inject import inject, undo
from walproof.proving.observer import Observer
from walproof.proving.storm import Strike, Struck

_STEP_S = 0.05


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
    """When each strike in effect is to be cleared, by its place in `struck`."""

    def carry_out(self, storm: Sequence[Strike]) -> None:
        """Every strike at its moment; returns when each has lasted its time and is cleared."""
        for strike in storm:
            if strike.after_takeover and self.struck and self.struck[-1].led:
                self._await_takeover()
            self._pause(strike.after_s)
            self._leave_one_unharmed()
            self._strike(strike)
        while self._due:
            self._pause(_STEP_S)

    def end(self) -> tuple[Struck, ...]:
        """What was carried out; what nobody cleared ends now, with the recovery of the cluster."""
        now = self.target.clock.now()
        for place in self._due:
            self.struck[place] = replace(self.struck[place], cleared_at=now)
        self._due.clear()
        return tuple(self.struck)

    def _pause(self, seconds: float) -> None:
        clock = self.target.clock
        until = clock.now() + seconds
        while True:
            for place in [place for place, due in self._due.items() if due <= clock.now()]:
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
        return {one.member for one in ongoing if one.fault not in LEAVES_SERVING or one.fault in more}

    def _leave_one_unharmed(self) -> None:
        """Clear the oldest fault while it and another one would leave no member unharmed."""
        while len(self._harmed()) >= max(1, len(self.view.members) - 1):
            self._clear_one(min(place for place in self._due if self.struck[place].member in self._harmed()))

    def _strike(self, strike: Strike) -> None:
        self.view = self._newest()
        member = self._member(strike)
        fault, clock = CATALOGUE[strike.fault], self.target.clock
        if not strike.after_takeover:  # else every moment counts, and nobody has restarted the new leader
            self.gathered.ask_members()
            clock.pause(_STEP_S)
        led, at = member == self.view.leader, clock.now()
        if not member:
            self.struck.append(Struck(strike.fault, "", False, at, at, "no member served that it could fall on"))
            return
        try:
            inject(self.target, fault, fault.steps, victims=(member,), view=self.view)
        except Error as no:
            self.struck.append(Struck(strike.fault, member, False, at, at, no.message))
            return
        self._due[len(self.struck)] = at + strike.lasts_s
        self.struck.append(Struck(strike.fault, member, led, at, at))
        self.emit(FaultChanged(at, strike.fault, (member,), cleared=False))
        self.gathered.ask_members()
        if led:
            self.gathered.save_traces([member])

    def _member(self, strike: Strike) -> str:
        """The member that it falls on now; another one where nobody leads or nobody follows, "" where nobody serves."""
        harmed = self._harmed(strike.fault)
        free = [m.name for m in self.view.members if m.serving and m.name not in harmed]
        leaders = [name for name in free if name == self.view.leader]
        standbys = [name for name in free if name != self.view.leader]
        victims = CATALOGUE[strike.fault].victims
        if victims == (Victim.LEADER,):
            candidates = leaders
        elif Victim.LEADER not in victims:
            candidates = standbys
        else:
            candidates = (leaders or standbys) if strike.victim is Victim.LEADER else (standbys or leaders)
        return candidates[int(strike.pick * len(candidates))] if candidates else ""

    def _clear_one(self, place: int) -> None:
        one, clock = self.struck[place], self.target.clock
        del self._due[place]
        try:
            undo(self.target, CATALOGUE[one.fault], one.member)
        except Error as no:
            self.emit(Note(clock.now(), f"{one.fault} of {one.member} could not be cleared yet: {no.message}"))
        self.struck[place] = replace(one, cleared_at=clock.now())
        self.emit(FaultChanged(clock.now(), one.fault, (one.member,), cleared=True))
