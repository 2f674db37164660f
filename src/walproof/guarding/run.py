"""The guard at work: reads the lock, checks the signs of life, takes turns, acts, and shows its state as metrics.

Decides nothing itself."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from walproof.errors import MachineError, TargetError, UsageError
from walproof.guarding.decide import (
    Act,
    Action,
    Memory,
    Policy,
    Sight,
    State,
    handed_over,
    not_known,
    not_taken,
    seal_of,
    taken,
    turn,
)
from walproof.guarding.seal_quorum import why_never
from walproof.model.ports import Clock
from walproof.model.takeover import GuardStatus, LeaderLock, LockState, SignsOfLife, Takeover

_PACE_S = 0.05
_CALM_S = 0.5
"""How often the lock is read while nothing is wrong."""
_STALL_S = 0.5
_PART_S = 2.0
"""How often the DCS's own leader is looked for."""
Log = Callable[[str], None]


def a_thread_ended() -> MachineError:
    """What ends a guard that would go on blind."""
    return MachineError(
        "the guard cannot see any more: one of its threads ended by the error above",
        "start it again; as a service with Restart=always",
    )


class Guard:
    """A guard of one cluster: one thread reads the lock, another takes turns."""

    def __init__(self, lock: LeaderLock, life: SignsOfLife, clock: Clock, policy: Policy, log: Log) -> None:
        self.lock, self.life, self.clock, self.policy = lock, life, clock, policy
        self.memory = Memory()
        self._log = log
        self._seen: LockState | None = None
        self._paused_at: float | None = None
        self._refused_at = 0.0
        self._reading = clock.every(_PACE_S, self._read_if_due)
        self._parting = clock.every(_PART_S, self._part_leaders)

    def turn(self) -> None:
        """One turn: see, decide, act, and a short pause; MachineError when a thread that sees has ended."""
        if self._reading.failed or self._parting.failed or self.life.failed():
            raise a_thread_ended()
        now = self.clock.now()
        stalled = self._paused_at is not None and now - self._paused_at > _PACE_S + _STALL_S
        if self._seen is not None:
            sight = Sight(now, self._seen, self.life.signs(), stalled)
            self.memory, action = turn(self.memory, sight, self.policy)
            self._log_lines()
            self._act(action, sight)
        self._paused_at = self.clock.now()
        self.clock.pause(_PACE_S)

    def close(self) -> None:
        """Stop reading and asking."""
        self._parting.close()
        self._reading.close()
        self.life.close()

    def status(self) -> GuardStatus:
        """What it does now."""
        m = self.memory
        durations = m.steps.durations_s if m.steps.promoted is not None else {}
        return GuardStatus(m.state, m.leader, m.why_not, m.suspicions, m.takeovers, self.policy.dry_run, durations)

    def _read_if_due(self) -> None:
        """Read the lock twice a second, and again and again when something is wrong."""
        seen, now = self._seen, self.clock.now()
        silent = now - self.memory.last_sign > self.policy.suspect_after_s / 2
        calm = self.memory.state in (State.WATCHING, State.NOT_READY) and not silent
        last = max(seen.at if seen is not None else 0.0, self._refused_at)
        if calm and now - last < _CALM_S:
            return
        try:
            self._seen = self.lock.read()
        except TargetError:
            self._refused_at = now

    def _part_leaders(self) -> None:
        """While nothing is wrong: the DCS's own leader away from the machine whose failure is waited for."""
        seen = self._seen
        if seen is None or not self.policy.moves_dcs_leader or self.memory.state is not State.WATCHING:
            return
        with suppress(TargetError):
            moved = self.lock.part(seen)
            if moved:
                self._log(f"the DCS's own leader moved to {moved}, off the machine of {seen.holder}")

    def _act(self, action: Action, sight: Sight) -> None:
        try:
            match action.act:
                case Act.SEAL:
                    done = self.lock.seal(sight.lock, self.policy.name, seal_of(self.memory, sight, self.policy))
                    self.memory = taken(self.memory, sight.lock, self.clock.now()) if done else not_taken(self.memory)
                case Act.HAND_OVER:
                    if self.lock.hand_over(sight.lock, action.to):
                        self.memory = handed_over(self.memory, self.clock.now())
                case Act.NONE:
                    return
        except TargetError:
            self.memory = not_known(self.memory, self.clock.now())
            return
        self._log_lines()

    def _log_lines(self) -> None:
        for line in self.memory.lines:
            self._log(line)
        self.memory = replace(self.memory, lines=())


def open_guard(takeover: Takeover, clock: Clock, policy: Policy, log: Log) -> Guard:
    """A guard that is ready to take turns; UsageError or TargetError where it can do nothing, with the reason."""
    lock = takeover.lock()
    state = lock.read()
    never = why_never(state)
    if never:
        raise UsageError(f"nothing to guard: {never}", "patronictl edit-config: synchronous_mode: quorum")
    return Guard(lock, takeover.signs_of_life(), clock, policy, log)


class GuardMetrics:
    """Metrics of one guard, taken from its status when they are asked for; `registry` is what a server shows."""

    def __init__(self, status: Callable[[], GuardStatus]) -> None:
        self._status = status
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every metric now."""
        status = self._status()
        own = type(status.state) if isinstance(status.state, StrEnum) else State
        states = {str(state): float(status.state == state) for state in own}
        yield _labelled("state", "1 for what the guard is doing now", "state", states)
        yield _single("ready", "1 when it would take over now if the leader disappeared", float(status.ready))
        yield _single("suspicions_total", "times the leader showed no sign of life for too long", status.suspicions)
        yield _single("takeovers_total", "times it handed the leader lock over", status.takeovers)
        yield _labelled("step_seconds", "each step of the last takeover", "step", status.steps_s)


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"walproof_guard_{name}", text, value)


def _labelled(name: str, text: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"walproof_guard_{name}", text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family
