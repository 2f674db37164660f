"""Gathers what proves or explains a drill while it runs: signs of the members, their logs, the WAL of a lost leader."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from walproof.errors import Error
from walproof.model.event import Emit, Note
from walproof.model.member_state import MemberState
from walproof.model.ports import Target
from walproof.model.topology import ClusterView
from walproof.model.verdict import Drill, Verdict
from walproof.model.waiting import Wait, wait_for

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
        """Whether each standby has replayed all that the leader has now; waits for it. Empty where nobody can tell."""
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
        """Put the newest WAL of these members aside, before anybody rewinds them."""
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
