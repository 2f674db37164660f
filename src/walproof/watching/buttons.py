"""What the page's buttons do: the lab's faults and healings by name. Acts only when told to."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from walproof.errors import Error, UsageError
from walproof.model.ports import Capability, Target


@dataclass(frozen=True, slots=True)
class Button:
    """One action: its word, whether it needs a member, and why it cannot be pressed here (None when it can)."""

    word: str
    needs_member: bool
    why_not: str | None


class Buttons:
    """The actions a target offers; one at a time, the last error kept for the page."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._busy = threading.Lock()
        self.last = ""

    def offered(self) -> tuple[Button, ...]:
        """Every button with what forbids it."""
        able = self._target.capabilities()
        if able.recovery is None:
            return ()
        why = able.why_not
        return (
            Button("kill", True, why(Capability.KILL)),
            Button("freeze", True, why(Capability.FREEZE)),
            Button("partition", True, why(Capability.PARTITION)),
            Button("isolate", True, why(Capability.ISOLATE)),
            Button("power-cut", True, why(Capability.POWER_CUT)),
            Button("switchover", False, why(Capability.SWITCHOVER)),
            Button("recover", False, None),
        )

    def press(self, word: str, member: str) -> None:
        """Start one action on a thread of its own; UsageError when it is not offered or another is running."""
        button = next((b for b in self.offered() if b.word == word), None)
        if button is None or button.why_not is not None:
            raise UsageError(f"{word!r} cannot be done here", button.why_not or "" if button else "see the buttons")
        if button.needs_member and self._target.observe().member(member) is None:
            raise UsageError(f"there is no member {member!r}", "press a member's own button")
        if not self._busy.acquire(blocking=False):
            raise UsageError("another action is still running", "wait until it is done")
        threading.Thread(target=self._run, args=(word, member, self._action(word, member)), daemon=True).start()

    def _action(self, word: str, member: str) -> Callable[[], None]:
        able = self._target.capabilities()
        if word == "recover" and able.recovery is not None:
            return able.recovery.recover
        if word == "switchover" and able.switchover is not None:
            return able.switchover.switch_over
        fault = able.faults[Capability(word)]
        return lambda: fault.inject(member)

    def _run(self, word: str, member: str, action: Callable[[], None]) -> None:
        try:
            self.last = f"{word} {member} …"
            action()
            self.last = f"{word} {member}: done"
        except Error as error:
            self.last = f"{word} {member}: {error.message}"
        finally:
            self._busy.release()
