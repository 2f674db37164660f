"""walproof's own metrics for Prometheus: commit latency per level, guarantee in effect against declared, who waits.

Reads through standing eyes and a canary; changes nothing but the canary's own row.
"""

import sys
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from walproof.errors import MachineError
from walproof.lab.monitoring import Monitoring
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.model.topology import Role, Snapshot
from walproof.targets.choose import choose
from walproof.watching.canary import Canary, Chirp
from walproof.watching.metrics import promise
from walproof.watching.rules import alert_rules

BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Every metric of the catalogue that walproof itself exports, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.commit = Histogram("walproof_commit_seconds", "A canary's commit", ["level"], buckets=BUCKETS, registry=r)
        self.canary = Counter("walproof_canary", "Canary commits", ["level", "outcome"], registry=r)
        self.in_doubt = Counter("walproof_in_doubt", "Canaries whose answer never came", registry=r)
        self.in_effect = Gauge("walproof_quorum_in_effect", "Standbys a remote commit waits for", registry=r)
        self.declared = Gauge("walproof_quorum_declared", "Standbys it should wait for", registry=r)
        self.left = Gauge("walproof_quorum_left", "Standbys that may go before commits wait", registry=r)
        self.changes = Counter("walproof_sync_set_changes", "Changes of the synchronous set", registry=r)
        self.waiting = Gauge("walproof_syncrep_waiting", "Sessions waiting in SyncRep", registry=r)
        self.longest = Gauge("walproof_syncrep_longest_seconds", "Longest of these waits", registry=r)
        self.lag = Gauge("walproof_lag_bytes", "WAL not replayed yet", ["member"], registry=r)
        self.up = Gauge("walproof_member_up", "The member answers", ["member"], registry=r)
        self.timeline = Gauge("walproof_timeline", "The leader's timeline", registry=r)
        self.leader = Gauge("walproof_leader_known", "A member accepts writes", registry=r)
        self.pool = Gauge("walproof_pgbouncer_clients", "Clients of the pool", ["state"], registry=r)
        self._seen: frozenset[str] | None = None

    def heard(self, chirp: Chirp) -> None:
        """Count one canary."""
        self.canary.labels(chirp.level, chirp.outcome).inc()
        if chirp.outcome == "unknown":
            self.in_doubt.inc()
        elif chirp.outcome == "acknowledged":
            self.commit.labels(chirp.level).observe(chirp.seconds)

    def looked(self, glance: Snapshot, declared: int) -> None:
        """Take over one look."""
        view = glance.view
        now = promise(view, declared)
        self.in_effect.set(now.in_effect)
        self.declared.set(now.declared)
        self.left.set(now.left)
        self.waiting.set(glance.waiting)
        self.longest.set(glance.longest_wait_s)
        self.leader.set(1 if view.leader else 0)
        for member in view.members:
            self.up.labels(member.name).set(0 if member.role is Role.UNKNOWN else 1)
            if member.lag_bytes is not None:
                self.lag.labels(member.name).set(member.lag_bytes)
            if member.name == view.leader and member.timeline:
                self.timeline.set(member.timeline)
        if view.leader:
            synchronous = frozenset(view.synchronous)
            if self._seen is not None and synchronous != self._seen:
                self.changes.inc()
            self._seen = synchronous

    def pooled(self, states: dict[str, int]) -> None:
        """Take over PgBouncer's clients by state."""
        for state, count in states.items():
            self.pool.labels(state).set(count)


class Exporter:
    """Serves /metrics on an address and port until closed; levels get a canary each."""

    def __init__(
        self,
        target: Target,
        *,
        address: tuple[str, int],
        levels: Sequence[Level] = tuple(Level),
        declared: int | None = None,
        pool: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        self.metrics = Metrics()
        self._target, self._pool, self._declared = target, pool, declared or 0
        self._learn = declared is None
        try:
            self._server, _ = start_http_server(address[1], addr=address[0], registry=self.metrics.registry)
        except OSError as error:
            raise MachineError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}", "choose another with --port"
            ) from None
        self._eyes = target.poller()
        self._canary = Canary(target, levels, self.metrics.heard)

    def turn(self) -> None:
        """One look taken over; call it about twice a second."""
        glance = self._eyes.snapshot()
        if self._learn:
            self._declared = max(self._declared, promise(glance.view, 0).in_effect)
        self.metrics.looked(glance, self._declared)
        if self._pool is not None:
            self.metrics.pooled(self._pool())

    def close(self) -> None:
        """Stop serving, looking and singing."""
        self._canary.close()
        self._eyes.close()
        self._server.shutdown()
        self._server.server_close()


def monitoring_of_labs() -> Monitoring:
    """What `lab up --monitoring` takes from here: the alert rules, and this exporter as a process of the lab."""
    return Monitoring(alert_rules(), (sys.executable, "-m", "walproof.watching.exporter"))


def main(address: str, port: int) -> None:
    """`python -m walproof.watching.exporter TARGET PORT`: metrics on 127.0.0.1 until it is killed."""
    target = choose(address)
    pool = target.capabilities().pool
    exporter = Exporter(target, address=("127.0.0.1", port), pool=None if pool is None else pool.pool_clients)
    while True:
        exporter.turn()
        target.clock.pause(0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
