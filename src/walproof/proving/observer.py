"""Looks at a target again and again beside a drill: a thread on a real clock, at every pause on a virtual one."""

import threading
from collections.abc import Callable

from walproof.errors import Error
from walproof.model.event import Emit, Observed
from walproof.model.ports import CanBeWatchedClosely, Clock, CloseLook, Target
from walproof.model.topology import ClusterView


class WatchedClock:
    """A virtual clock that calls back after every pause, so that looks happen as if beside."""

    virtual = True

    def __init__(self, clock: Clock, after: Callable[[], None]) -> None:
        self._clock, self._after = clock, after
        self.patience = clock.patience

    def now(self) -> float:
        """The virtual time."""
        return self._clock.now()

    def pause(self, seconds: float) -> None:
        """Let time pass, then look."""
        self._clock.pause(seconds)
        self._after()


class Observer:
    """Collects looks; emits one whenever a role, state, timeline or the standby names changed."""

    def __init__(self, target: Target, emit: Emit, *, pace_s: float = 0.2) -> None:
        self._target, self._emit, self._pace_s = target, emit, pace_s
        self._looks: list[ClusterView] = []
        self._last: object = None
        self._last_look: ClusterView | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.clock: Clock = target.clock
        if getattr(target.clock, "virtual", False):
            self.clock = WatchedClock(target.clock, self.look)
        else:
            self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._closely: CloseLook | None = None
        self._close_thread = threading.Thread(target=self._watch_closely, name="close observer", daemon=True)

    def look(self) -> None:
        """Take one look now and keep it."""
        try:
            view = self._target.observe()
        except Error:
            return
        self._looks.append(view)
        self._last_look = view
        shape = (
            view.leader,
            view.standby_names,
            tuple((m.role, m.state, m.timeline, m.sync_state) for m in view.members),
        )
        if shape != self._last and not self._ended.is_set():
            self._last = shape
            self._emit(Observed(view.at, view))

    @property
    def looks(self) -> tuple[ClusterView, ...]:
        """Every look so far, in order."""
        return tuple(sorted(self._looks, key=lambda view: view.at))

    @property
    def last(self) -> ClusterView | None:
        """The newest whole look."""
        return self._last_look

    def _watch_closely(self) -> None:
        """Keep the looks in which another member has become the leader: a promotion falls between two whole looks."""
        leader: str | None = None
        while self._closely is not None and not self._ended.wait(0.05):
            view = self._closely.view()
            if view.leader is not None and view.leader != leader:
                leader = view.leader
                self._looks.append(view)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(self._pace_s)

    def __enter__(self) -> "Observer":
        self.look()
        if self._thread:
            self._thread.start()
            if isinstance(self._target, CanBeWatchedClosely):
                self._closely = self._target.closely()
                self._close_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join(timeout=30)
        if self._closely is not None:
            self._close_thread.join(timeout=5)
            self._closely.close()
