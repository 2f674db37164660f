"""What a guard says of itself: one status, and its metrics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from walproof.guarding.kubernetes_freeze import State

Log = Callable[[str], None]
"""Takes a line of what the guard does."""


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """What it does, about which primary (`leader`), why it would not act, how often it suspected and took over."""

    state: State
    leader: str = ""
    why_not: str = ""
    suspicions: int = 0
    takeovers: int = 0
    dry_run: bool = False

    @property
    def ready(self) -> bool:
        """Whether it would act now."""
        return self.state is State.WATCHING and not self.why_not


class GuardMetrics:
    """Metrics of one guard, taken from its status when they are asked for; `registry` is what a server shows."""

    def __init__(self, status: Callable[[], GuardStatus]) -> None:
        self._status = status
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every metric now."""
        status = self._status()
        states = GaugeMetricFamily("walproof_guard_state", "1 for what the guard is doing now", labels=["state"])
        for state in State:
            states.add_metric([state], float(status.state is state))
        yield states
        yield _single("ready", "1 when it would take over now if the primary froze", float(status.ready))
        yield _single("suspicions_total", "times the primary seemed frozen for too long", status.suspicions)
        yield _single("takeovers_total", "times it deleted a frozen primary's pod", status.takeovers)


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"walproof_guard_{name}", text, value)
