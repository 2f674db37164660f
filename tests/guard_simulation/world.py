"""Virtual time: an event heap, actors that are greenlets, processes that can be frozen and killed, cut links.

Same seed, same run: nothing here asks the time, hashes, or goes through a set.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from greenlet import GreenletExit, getcurrent, greenlet

Act = Callable[[], object]


@dataclass(slots=True, eq=False)
class Process:
    """What is frozen, killed and cut off as a whole. held: what became due while it was frozen."""

    name: str
    host: str
    frozen: int = 0
    """How many faults hold it now."""
    dead: bool = False
    born: int = 0
    """Its incarnation: what an earlier one waited for is gone."""
    held: list[Act] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Actor:
    """One thread of a process. token: which of its waits is the present one."""

    process: Process
    run: greenlet
    token: int = 0
    woken: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """A line of the story."""

    at: float
    who: str
    what: str


class World:
    """Everything that happens, in the order of its time."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.now = 0.0
        self.story: list[Happened] = []
        self.recording = False
        """Whether the story is kept: only when it will be printed."""
        self.listeners: dict[str, list[Act]] = {}
        """What is to be done when a point is reached, by its label."""
        self._heap: list[tuple[float, int, Process | None, int, Act]] = []
        self._number = 0
        self._hub = getcurrent()
        self._actors: list[Actor] = []
        self._cuts: dict[tuple[str, str], int] = {}
        self._current: Actor | None = None

    def random(self, name: str) -> Random:
        """A generator of one actor: what another one draws changes nothing here."""
        return Random(f"{self.seed}/{name}")

    def tell(self, who: str, what: str) -> None:
        """Remember what happened."""
        if self.recording:
            self.story.append(Happened(self.now, who, what))

    def after(self, seconds: float, act: Act, process: Process | None = None) -> None:
        """Do it later, unless its process is dead then; when that is frozen, when it goes on."""
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, process, process.born if process else 0, act))

    def spawn(self, process: Process, main: Act) -> Actor:
        """A thread of a process, which starts at once."""
        actor = Actor(process, greenlet(main, parent=self._hub))
        self._actors.append(actor)
        self.after(0.0, self._resume(actor), process)
        return actor

    def _resume(self, actor: Actor) -> Act:
        token = actor.token

        def act() -> None:
            if actor.token == token and not actor.run.dead:
                before, self._current = self._current, actor
                actor.run.switch()
                self._current = before

        return act

    def sleep(self, seconds: float) -> None:
        """Let time pass for the thread that calls."""
        actor = self._current
        assert actor is not None
        actor.token += 1
        self.after(seconds, self._resume(actor), actor.process)
        self._hub.switch()

    def wait(self, seconds: float) -> None:
        """Sleep, or return when somebody has woken this thread since its last wait."""
        actor = self._current
        assert actor is not None
        if not actor.woken:
            actor.waits = True
            self.sleep(seconds)
            actor.waits = False
        actor.woken = False

    def wake(self, actor: Actor) -> None:
        """End a thread's wait, or its next one."""
        actor.woken = True
        if actor.waits:
            actor.token += 1
            self.after(0.0, self._resume(actor), actor.process)

    def point(self, label: str) -> None:
        """An interesting step: faults may be tied to it. The thread that calls may be frozen or killed here."""
        for act in self.listeners.pop(label, ()):
            act()
        actor = self._current
        if actor is None:
            return
        if actor.process.dead:
            raise GreenletExit
        if actor.process.frozen:
            self.sleep(0.0)

    def freeze(self, process: Process) -> None:
        """No thread of it goes on until it is thawed as often as it was frozen."""
        process.frozen += 1

    def thaw(self, process: Process) -> None:
        """Undo one freeze."""
        if not process.frozen:
            return
        process.frozen -= 1
        if process.frozen == 0:
            held, process.held = process.held, []
            for act in held:
                self.after(0.0, act, process)

    def kill(self, process: Process) -> None:
        """None of its threads ever goes on, nothing that it waited for comes."""
        process.dead, process.frozen = True, 0
        process.born += 1
        process.held.clear()

    def revive(self, process: Process) -> None:
        """A new process in its place; the caller starts its threads."""
        for actor in self._actors:
            if actor.process is process and actor.run and not actor.run.dead:
                actor.run.throw(GreenletExit)
        process.dead = False

    def cut(self, a: str, b: str, by: int = 1) -> None:
        """Drop what `a` sends to `b`; by=-1 undoes it."""
        self._cuts[a, b] = self._cuts.get((a, b), 0) + by

    def reaches(self, a: str, b: str) -> bool:
        """Whether a question of `a` to `b` is answered, as far as the network goes."""
        cuts = self._cuts
        return not cuts or a == b or not (cuts.get((a, b)) or cuts.get((b, a)))

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Go on until that time, or until it is over (asked every half second)."""
        heap, asked = self._heap, 0.5
        while heap and heap[0][0] <= until:
            at, _, process, born, act = heappop(heap)
            if process is not None:
                if process.dead or process.born != born:
                    continue
                if process.frozen:
                    process.held.append(act)
                    continue
            self.now = at
            act()
            if at >= asked:
                asked = at + 0.5
                if over():
                    break

    def close(self) -> None:
        """End every thread."""
        for actor in self._actors:
            if not actor.run.dead and actor.run:
                actor.run.throw(GreenletExit)
