"""What the page's buttons do: the lab's faults and healings by name. Acts only when told to."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from walproof.errors import Error, UsageError
from walproof.model.ports import CanBreak, Capability, Target


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
        if not isinstance(self._target, CanBreak):
            return ()
        why = self._target.why_not
        return (
            Button("kill", True, why(Capability.KILL)),
            Button("freeze", True, why(Capability.FREEZE)),
            Button("cut", True, why(Capability.CUT_LINKS)),
            Button("isolate", True, why(Capability.CUT_LINKS)),
            Button("power cut", True, why(Capability.CUT_POWER)),
            Button("switch over", False, why(Capability.SWITCH_OVER)),
            Button("heal", False, None),
        )

    def press(self, word: str, member: str) -> None:
        """Start one action on a thread of its own; UsageError when it is not offered or another is running."""
        button = next((b for b in self.offered() if b.word == word), None)
        if button is None or button.why_not is not None or not isinstance(self._target, CanBreak):
            raise UsageError(f"{word!r} cannot be done here", button.why_not or "" if button else "see the buttons")
        if button.needs_member and member not in self._target.describe().members:
            raise UsageError(f"there is no member {member!r}", "press a member's own button")
        if not self._busy.acquire(blocking=False):
            raise UsageError("another action is still running", "wait until it is done")
        target = self._target
        actions: dict[str, Callable[[], None]] = {
            "kill": lambda: target.kill(member),
            "freeze": lambda: target.freeze(member),
            "cut": lambda: target.cut(member),
            "isolate": lambda: target.isolate(member),
            "power cut": lambda: target.cut_power(member),
            "switch over": lambda: target.switch_over(None),
            "heal": target.heal,
        }
        threading.Thread(target=self._run, args=(word, member, actions[word]), daemon=True).start()

    def _run(self, word: str, member: str, action: Callable[[], None]) -> None:
        try:
            self.last = f"{word} {member} …"
            action()
            self.last = f"{word} {member}: done"
        except Error as error:
            self.last = f"{word} {member}: {error.message}"
        finally:
            self._busy.release()
