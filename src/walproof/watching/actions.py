"""The live page's actions: faults of the catalogue by name, and recovery. Acts only when asked to, one at a time."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from walproof.errors import Error, UsageError
from walproof.model.ports import Target
from walproof.model.topology import ClusterView
from walproof.proving.fault_steps import Fault
from walproof.proving.faults import CATALOGUE
from walproof.proving.inject import inject, why_skipped
from walproof.watching.picture import TimelineEvent

MEMBER_FAULTS = ("kill", "freeze", "partition", "isolate", "power-cut")
CLUSTER_FAULTS = ("switchover",)
RECOVER = "recover"


@dataclass(frozen=True, slots=True)
class Action:
    """One action offered: whether it needs a member, what it does in one clause, why it is not available (or None)."""

    name: str
    needs_member: bool
    effect: str
    why_not: str | None


@dataclass(frozen=True, slots=True)
class ActionStatus:
    """The action started last: its number counts from 1; state is running, done or failed; `error` says why."""

    number: int = 0
    text: str = ""
    state: str = ""
    error: str = ""


class Actions:
    """The actions of a target. `report` gets an event when one starts, when it fails, and when recovery is done.

    allowed: on an external cluster the faults that `--allow` names; no other is offered there.
    """

    def __init__(
        self, target: Target, report: Callable[[TimelineEvent], None], allowed: frozenset[str] = frozenset()
    ) -> None:
        self._target, self._report, self._allowed = target, report, allowed
        self._starting = threading.Lock()
        self.last = ActionStatus()

    def offered(self) -> tuple[Action, ...]:
        """Every action with why it is not available now, none where a target takes no faults; asks the target."""
        if self._target.capabilities().recovery is None:
            return ()
        faults = (CATALOGUE[name] for name in MEMBER_FAULTS + CLUSTER_FAULTS)
        return (
            *(Action(f.name, f.name in MEMBER_FAULTS, f.story.happens, self._why_not(f)) for f in faults),
            Action(RECOVER, False, "every fault is cleared and what is down is started", None),
        )

    def _why_not(self, fault: Fault) -> str | None:
        why = why_skipped(self._target, fault)
        if why is None and self._target.external and fault.name not in self._allowed:
            return f"you did not allow it: walproof watch --allow {fault.name} consents"
        return why

    def start(self, name: str, member: str) -> None:
        """Start one action on a thread of its own; UsageError when it is not offered or another is running."""
        action = next((a for a in self.offered() if a.name == name), None)
        if action is None or action.why_not is not None:
            why = (action.why_not if action else None) or "the page shows what is"
            raise UsageError(f"{name!r} is not available here", why)
        view = self._target.observe()
        if action.needs_member and view.member(member) is None:
            raise UsageError(f"there is no member {member!r}", f"members: {', '.join(m.name for m in view.members)}")
        victim = member if action.needs_member else ""
        with self._starting:
            if self.last.state == "running":
                raise UsageError(f"{self.last.text} is still running", "wait until it is done")
            self.last = ActionStatus(self.last.number + 1, f"{name} {victim}".strip(), "running")
        threading.Thread(target=self._run, args=(name, victim, view), daemon=True).start()

    def _run(self, name: str, member: str, view: ClusterView) -> None:
        started = self.last
        # Kept when the action ends by a defect: its traceback is printed where walproof watch runs.
        ended = replace(started, state="failed", error="internal error; see the output of walproof watch")
        try:
            self._add_event("recovery" if name == RECOVER else "fault", f"{name} on {member}" if member else name)
            self._act(name, member, view)
            ended = replace(started, state="done")
        except Error as error:
            ended = replace(started, state="failed", error=f"{error.message}; {error.hint}".removesuffix("; "))
        finally:
            self.last = ended
            if name == RECOVER or ended.error:
                self._add_event("recovery", f"{started.text} {ended.state}")

    def _act(self, name: str, member: str, view: ClusterView) -> None:
        target, recovery = self._target, self._target.capabilities().recovery
        if name != RECOVER:
            inject(target, CATALOGUE[name], CATALOGUE[name].steps, victims=(member,), view=view)
        elif recovery:
            recovery.recover()

    def _add_event(self, kind: str, text: str) -> None:
        self._report(TimelineEvent(self._target.clock.now(), kind, text))
