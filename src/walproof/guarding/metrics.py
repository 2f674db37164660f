"""A guard's state as metrics for Prometheus. Serves nothing."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from walproof.guarding.decide import State
from walproof.model.takeover import GuardStatus


class GuardMetrics:
    """Metrics of one guard, taken from its status when they are asked for; `registry` is what a server shows."""

    def __init__(self, status: Callable[[], GuardStatus]) -> None:
        self._status = status
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every metric now."""
        status = self._status()
        states = {str(state): float(status.state == state) for state in State}
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
