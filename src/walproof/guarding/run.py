"""The guard at work: reads the lock, looks at the signs of life, takes turns, acts. Decides nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from walproof.errors import TargetError, UsageError
from walproof.guarding.decide import (
    Act,
    Action,
    Memory,
    Policy,
    Sight,
    State,
    before_seal,
    handed_over,
    not_taken,
    taken,
    turn,
)
from walproof.guarding.safety import why_never
from walproof.model.ports import Clock
from walproof.model.takeover import GuardStatus, LeaderLock, LockState, SignsOfLife, Takeover

_PACE_S = 0.05
_CALM_S = 0.5
"""How often the lock is read while nothing is wrong."""
_STALL_S = 0.5
Log = Callable[[str], None]


@dataclass(slots=True)
class Guard:
    """A guard of one cluster."""

    lock: LeaderLock
    life: SignsOfLife
    clock: Clock
    policy: Policy
    log: Log
    memory: Memory = field(default_factory=Memory)
    seen: LockState | None = None
    paused_at: float | None = None

    def turn(self) -> None:
        """One turn: see, decide, act, and a short pause."""
        now = self.clock.now()
        stalled = self.paused_at is not None and now - self.paused_at > _PACE_S + _STALL_S
        stalled = self._read_if_due(now) or stalled
        if self.seen is not None:
            sight = Sight(self.clock.now(), self.seen, self.life.signs(), stalled)
            self.memory, action = turn(self.memory, sight, self.policy)
            self._log_lines()
            self._act(action, sight)
        self.paused_at = self.clock.now()
        self.clock.pause(_PACE_S)

    def close(self) -> None:
        """Stop asking the members."""
        self.life.close()

    def status(self) -> GuardStatus:
        """What it does now."""
        m = self.memory
        durations = m.steps.durations_s if m.steps.promoted is not None else {}
        return GuardStatus(m.state, m.leader, m.why_not, m.suspicions, m.takeovers, self.policy.dry_run, durations)

    def _read_if_due(self, now: float) -> bool:
        """Read the lock when it is time, always when something is wrong; whether that took far too long."""
        seen, allowed_s = self.seen, self.policy.suspect_after_s
        silent = now - self.memory.last_sign > allowed_s / 2
        calm = self.memory.state in (State.WATCHING, State.NOT_READY) and not silent
        if seen is not None and calm and now - seen.at < _CALM_S:
            return False
        try:
            self.seen = self.lock.read()
        except TargetError as wrong:
            if calm:
                self.memory = replace(self.memory, state=State.NOT_READY, why_not=wrong.message, lines=(wrong.message,))
                self._log_lines()
        return False

    def _act(self, action: Action, sight: Sight) -> None:
        try:
            match action.act:
                case Act.SEAL:
                    self.memory = before_seal(self.memory, sight)
                    held = self.lock.seal(sight.lock, self.policy.name)
                    self.memory = taken(self.memory, self.clock.now()) if held else not_taken(self.memory)
                case Act.HAND_OVER:
                    if self.lock.hand_over(sight.lock, action.to):
                        self.memory = handed_over(self.memory, action.to, self.clock.now())
                case Act.NONE:
                    return
        except TargetError:
            return  # whether it was done, the next reading of the lock says
        self._log_lines()

    def _log_lines(self) -> None:
        for line in self.memory.lines:
            self.log(line)
        self.memory = replace(self.memory, lines=())


def open_guard(takeover: Takeover, clock: Clock, policy: Policy, log: Log) -> Guard:
    """A guard that is ready to take turns; UsageError or TargetError where it can do nothing, with the reason."""
    lock = takeover.lock()
    state = lock.read()
    never = why_never(state)
    if never:
        raise UsageError(f"nothing to guard: {never}", "patronictl edit-config: synchronous_mode: quorum")
    return Guard(lock, takeover.signs_of_life(), clock, policy, log)
