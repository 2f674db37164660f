"""Observes a target again and again during a drill, on the target's own clock."""

from walproof.errors import Error
from walproof.model.event import Emit, Observed
from walproof.model.ports import Closes, Poller, Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Mark

_POLLER_PACE_S = 0.05


class Observer:
    """Collects observations; emits one whenever a role, state, timeline or the standby names changed."""

    def __init__(self, target: Target, emit: Emit, *, pace_s: float = 0.2) -> None:
        self._target, self._emit, self._pace_s = target, emit, pace_s
        self._views: list[ClusterView] = []
        self._last_shape: object = None
        self._last: ClusterView | None = None
        self._ended = False
        self._poller: Poller | None = None
        self._repeated: list[Closes] = []
        self._polled_leader: str | None = None
        self._steps: list[Mark] = []

    def observe(self) -> None:
        """Observe once now and keep it."""
        try:
            view = self._target.observe()
        except Error:
            return
        self._views.append(view)
        self._last = view
        shape = (
            view.leader,
            view.standby_names,
            tuple((m.name, m.role, m.state, m.timeline, m.sync_state) for m in view.members),
        )
        if shape != self._last_shape and not self._ended:
            self._last_shape = shape
            self._emit(Observed(view.at, view))

    @property
    def views(self) -> tuple[ClusterView, ...]:
        """Every observation so far, in order."""
        return tuple(sorted(self._views, key=lambda view: view.at))

    @property
    def steps(self) -> tuple[Mark, ...]:
        """Steps of the manager's failovers so far; none where it does not show them."""
        return tuple(self._steps)

    @property
    def newest(self) -> ClusterView | None:
        """The newest observation, of the poller's too."""
        return max(self._views, key=lambda view: view.at, default=None)

    @property
    def last(self) -> ClusterView | None:
        """The newest observation of every member."""
        return self._last

    def _poll(self) -> None:
        """Keep snapshots in which another member has become the leader: a promotion falls between two observations."""
        if self._poller is None or self._ended:
            return
        view = self._poller.snapshot().view
        if view.leader is not None and view.leader != self._polled_leader:
            self._polled_leader = view.leader
            self._views.append(view)

    def __enter__(self) -> "Observer":
        clock = self._target.clock
        self._poller = self._target.poller(pace_s=0.1, silent_s=0.4)
        self._repeated = [clock.every(self._pace_s, self.observe), clock.every(_POLLER_PACE_S, self._poll)]
        shown = self._target.capabilities().failover_steps
        if shown is not None:
            self._repeated.append(clock.every(self._pace_s, lambda: self._steps.extend(shown.since_last())))
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        for repeated in self._repeated:
            repeated.close()
        if self._poller is not None:
            self._poller.close()
