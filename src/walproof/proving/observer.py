"""What is seen, awaited and kept of a target during a drill: views, commits, signs of members, their logs, lost WAL.

Judges nothing."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from walproof.errors import Error, WaitTimeout
from walproof.model.drill import Drill, Mark, Verdict
from walproof.model.event import Emit, Note, Observed
from walproof.model.load import LedgerRun
from walproof.model.ports import Clock, Closes, Poller, Target
from walproof.model.topology import ClusterView, MemberState
from walproof.model.waiting import Wait, wait_for
from walproof.proving.outage import NOTICEABLE_S

_PACE_S, _POLLER_PACE_S = 0.2, 0.05

_SETTLED_S = 0.5
"""Answers under way when a fault falls may still arrive: commits count as back when acknowledged later than this."""

_LASTING_S = 3.0
"""Writers go on for so long, without a pause or another leader, once all is cleared: a thawed leader serves shortly."""


class Observer:
    """Collects observations; emits one whenever a role, state, timeline or the standby names changed."""

    def __init__(self, target: Target, emit: Emit) -> None:
        self._target, self._emit = target, emit
        self._views: list[ClusterView] = []
        self._last_shape: object = None
        self.last: ClusterView | None = None
        """The newest observation of every member."""
        self.steps: list[Mark] = []
        """Steps of the manager's failovers so far; none where it does not show them."""
        self._ended = False
        self._poller: Poller | None = None
        self._repeated: list[Closes] = []
        self._polled_leader: str | None = None

    def observe(self) -> None:
        """Observe once now and keep it."""
        try:
            view = self._target.observe()
        except Error:
            return
        self._views.append(view)
        self.last = view
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
    def newest(self) -> ClusterView | None:
        """The newest observation, of the poller's too."""
        return max(self._views, key=lambda view: view.at, default=None)

    def led(self) -> tuple[str, int | None] | None:
        """Who led on which timeline when it was last seen; None where no member did."""
        return _led(self.newest)

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
        self._repeated = [clock.every(_PACE_S, self.observe), clock.every(_POLLER_PACE_S, self._poll)]
        shown = self._target.capabilities().failover_steps
        if shown is not None:
            self._repeated.append(clock.every(_PACE_S, lambda: self.steps.extend(shown.since_last())))
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        for repeated in self._repeated:
            repeated.close()
        if self._poller is not None:
            self._poller.close()


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of a drill's writers, awaited by what the writers say and by who leads."""

    observer: Observer
    run: LedgerRun
    clock: Clock

    def wait_back(self, since: float, *, elsewhere: bool = False) -> str:
        """Wait for commits acknowledged a while after `since`; the message of a wait that ran out, or "".

        `elsewhere`: they count once another leads, because the old leader goes on acknowledging.
        """
        first = self.observer.views[0] if self.observer.views else None

        def back() -> bool:
            progress, now = self.run.progress(), self.observer.last
            if progress.writers_alive == 0:
                return True  # no writer would commit: the ledger says so itself
            last = progress.last_acknowledged_at
            if last is None or last < since + _SETTLED_S:
                return False
            if not elsewhere or now is None or first is None:
                return True
            return now.leader is not None and _led(now) != _led(first)

        try:
            wait_for(Wait.FIRST_COMMIT_AFTER, back, self.clock)
        except WaitTimeout as timeout:
            return timeout.message
        return ""

    def wait_lasting(self) -> None:
        """Wait until service lasts, or for as long as that may take: what the judge then finds is what there was."""
        since = asked_before = self.clock.now()
        last_before, led_before = self.run.progress().last_acknowledged_at or 0.0, _led(self.observer.last)

        def lasts() -> bool:
            nonlocal since, asked_before, last_before, led_before
            asked, progress, led = self.clock.now(), self.run.progress(), _led(self.observer.last)
            last = progress.last_acknowledged_at or 0.0
            paused = max(asked - last, last - last_before) > max(NOTICEABLE_S, 2 * (asked - asked_before))
            if paused or led is None or led != led_before:
                since = asked
            asked_before, last_before, led_before = asked, last, led
            return progress.writers_alive == 0 or asked - since >= _LASTING_S

        with suppress(WaitTimeout):
            wait_for(Wait.SERVICE_LASTS, lasts, self.clock)


def _led(view: ClusterView | None) -> tuple[str, int | None] | None:
    """Who leads on which timeline; None where no member does."""
    return None if view is None or view.leader is None else (view.leader, view.leader_timeline)


Keep = Callable[[str, str | bytes], object]
"""Keeps a text or the bytes of a file with the record: (name, content)."""


@dataclass(slots=True)
class Gathered:
    """Everything gathered in one drill; nothing that cannot be asked stops the drill."""

    target: Target
    states: list[MemberState] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)
    """Members whose newest WAL was put aside."""

    def ask_members(self) -> None:
        """Ask every member for its signs now."""
        source = self.target.capabilities().member_states
        if source is not None:
            with suppress(Error):
                self.states += source.states()

    def caught_up(self, leader: str) -> dict[str, bool]:
        """Whether each standby has replayed all that the leader has now; waits for it. Empty where not known."""
        source = self.target.capabilities().member_states
        if source is None:
            return {}
        head: int | None = None
        reached: dict[str, bool] = {}

        def every() -> bool:
            nonlocal head, reached
            at = {state.member: state.lsn for state in source.states() if state.answers}
            head = at.get(leader) if head is None else head
            behind = head is None
            reached = {} if behind else {m: lsn is not None and lsn >= (head or 0) for m, lsn in at.items()}
            return behind or all(reached.values())

        with suppress(Error):
            wait_for(Wait.REPLAYED, every, self.target.clock)
        return reached

    def save_traces(self, members: Sequence[str]) -> None:
        """Put the newest WAL of these members aside, before they are rewound."""
        traces = self.target.capabilities().traces
        if traces is None:
            return
        for member in members:
            with suppress(Error):
                traces.save(member)
                self.saved.append(member)

    def save_logs(self, view: ClusterView) -> None:
        """Every member's logs as they are now."""
        source = self.target.capabilities().logs
        if source is None:
            return
        for member in view.members:
            try:
                self.logs[member.name] = source.logs(member.name)
            except Error as error:
                self.logs[member.name] = error.message

    def keep(self, drill: Drill, keep: Keep, emit: Emit, first_lost: int) -> None:
        """Keep logs and WAL of a drill that is broken or undecided with the record; discard what was put aside.

        `first_lost`: WAL position (bytes) of the first lost commit, 0 for everything that was put aside.
        """
        if drill.verdict in (Verdict.BROKEN, Verdict.UNDECIDED):
            for member, text in self.logs.items():
                keep(f"drill-{drill.number}-{member}.log", text)
            for member in self.saved:
                keep(f"drill-{drill.number}-{member}.wal.txt", self._described(member, drill, first_lost))
            if self.logs or self.saved:
                kept = f"drill {drill.number}: logs of every member are kept in the record"
                emit(Note(self.target.clock.now(), kept))
        traces = self.target.capabilities().traces
        if traces is not None:
            with suppress(Error):
                traces.discard()

    def _described(self, member: str, drill: Drill, first_lost: int) -> str:
        traces = self.target.capabilities().traces
        assert traces is not None
        try:
            return traces.describe(member, timeline=drill.timeline_before or 1, since=first_lost)
        except Error as error:
            return error.message
