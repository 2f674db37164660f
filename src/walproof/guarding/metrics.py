"""A guard's state as metrics for Prometheus. Serves nothing."""

from prometheus_client import CollectorRegistry, Gauge

from walproof.guarding.decide import State
from walproof.model.takeover import GuardStatus

STEPS = ("suspect", "seal", "check", "promote")


class GuardMetrics:
    """Metrics of one guard; `registry` is what a server shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"walproof_guard_{name}", text, labels, registry=self.registry)

        self._state = gauge("state", "1 for what the guard is doing now", "state")
        self._ready = gauge("ready", "1 when it would take over now if the leader disappeared")
        self._suspicions = gauge("suspicions_total", "times the leader showed no sign of life for too long")
        self._takeovers = gauge("takeovers_total", "times it handed the leader lock over")
        self._steps = gauge("step_seconds", "each step of the last takeover", "step")

    def record(self, status: GuardStatus) -> None:
        """Set every metric."""
        for state in State:
            self._state.labels(str(state)).set(status.state == state)
        self._ready.set(status.ready)
        self._suspicions.set(status.suspicions)
        self._takeovers.set(status.takeovers)
        for step in STEPS:
            if step in status.steps_s:
                self._steps.labels(step).set(status.steps_s[step])
