"""walproof's own metrics for Prometheus: commit latency per level, synchronous replication, waits by cause.

Reads through the poller, commit waits and a canary; changes nothing but the canary's own row.
"""

import sys
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from walproof.estimating.observed_waits import Observation
from walproof.lab.monitoring import Monitoring
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.model.topology import Role, Snapshot
from walproof.targets.choose import choose
from walproof.watching.alerts_and_dashboard import alert_rules
from walproof.watching.canary import Canary, Probe
from walproof.watching.collector import LeaseWatch, RecentWaits
from walproof.watching.http_server import MetricsServer
from walproof.watching.picture import sync_status
from walproof.watching.silent_leader import SilentLeader, beside_sql

BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Every metric of the catalogue that walproof itself exports, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.commit = Histogram("walproof_commit_seconds", "A canary's commit", ["level"], buckets=BUCKETS, registry=r)
        self.canary = Counter("walproof_canary", "Canary commits", ["level", "outcome"], registry=r)
        self.in_doubt = Counter("walproof_in_doubt", "Canary commits whose answer never came", registry=r)
        self.in_effect = Gauge("walproof_quorum_in_effect", "Standbys a synchronous commit waits for", registry=r)
        self.declared = Gauge("walproof_quorum_declared", "Standbys it should wait for", registry=r)
        self.spare = Gauge(
            "walproof_spare_synchronous_standbys", "Standbys that may fail before commits block", registry=None
        )
        self.changes = Counter("walproof_sync_set_changes", "Changes of the synchronous set", registry=r)
        self.waiting = Gauge("walproof_syncrep_waiting", "Sessions waiting in SyncRep", registry=None)
        self.longest = Gauge("walproof_syncrep_longest_seconds", "Longest of these waits", registry=None)
        self.lag = Gauge("walproof_lag_bytes", "WAL not replayed yet", ["member"], registry=r)
        self.up = Gauge("walproof_member_up", "The member answers", ["member"], registry=r)
        self.timeline = Gauge("walproof_timeline", "The leader's timeline", registry=r)
        self.leader = Gauge("walproof_leader_known", "A member accepts writes", registry=r)
        self.waits = Gauge("walproof_commit_wait_seconds", "Waited per commit, last 30 s", ["cause"], registry=r)
        self.silent = Gauge(
            "walproof_leader_silent_seconds",
            "How long the holder of the leader key has not answered",
            ["member", "by", "command"],
            registry=r,
        )
        self.lease = Gauge("walproof_leader_lease_seconds", "Its lease runs for at most", ["member"], registry=r)
        self.pool = Gauge("walproof_pgbouncer_clients", "Clients of the pool", ["state"], registry=r)
        self._synchronous: frozenset[str] | None = None
        self._told: dict[Gauge, set[str]] = {}
        self._known: set[Gauge] = set()
        """Of spare, waiting and longest those that are exported now."""

    def record_probe(self, probe: Probe) -> None:
        """Count one canary commit by outcome; only plain acknowledgements count as latency."""
        self.canary.labels(probe.level, probe.outcome_name).inc()
        if probe.unknown:
            self.in_doubt.inc()
        elif probe.acknowledged:
            self.commit.labels(probe.level).observe(probe.seconds)

    def record_snapshot(self, snapshot: Snapshot, declared: int) -> None:
        """Set every gauge from one snapshot."""
        view = snapshot.view
        sync = sync_status(view, declared)
        self.in_effect.set(sync.in_effect)
        self.declared.set(sync.declared)
        self._if_known(self.spare, sync.spare)
        self._if_known(self.waiting, snapshot.waiting)
        self._if_known(self.longest, snapshot.longest_wait_s)
        self.leader.set(1 if view.leader else 0)
        self._of_members(self.up, {m.name: 0 if m.role is Role.UNKNOWN else 1 for m in view.members})
        self._of_members(self.lag, {m.name: m.lag_bytes for m in view.members if m.lag_bytes is not None})
        for member in view.members:
            if member.name == view.leader and member.timeline:
                self.timeline.set(member.timeline)
        if view.leader and not view.unseen:
            synchronous = frozenset(view.synchronous)
            if self._synchronous is not None and synchronous != self._synchronous:
                self.changes.inc()
            self._synchronous = synchronous

    def _if_known(self, gauge: Gauge, value: float | None) -> None:
        """No sample of what is not known: a number of a metric is taken for sure, and alerts are built on it."""
        if value is not None:
            gauge.set(value)
        if (value is not None) is not (gauge in self._known):
            (self.registry.unregister if value is None else self.registry.register)(gauge)
            self._known ^= {gauge}

    def _of_members(self, gauge: Gauge, values: Mapping[str, float]) -> None:
        """Of the members there are now: one that is gone, or not known, is neither up nor 0 bytes behind."""
        for name in self._told.get(gauge, set()) - values.keys():
            gauge.remove(name)
        for name, value in values.items():
            gauge.labels(name).set(value)
        self._told[gauge] = set(values)

    def record_waits(self, made: Observation | None) -> None:
        """Set what commits wait for by cause; none where nothing is known, as where no leader answers."""
        self.waits.clear()
        for cause, ms in made.causes_ms.items() if made else ():
            self.waits.labels(cause).set(ms.value / 1000)

    def record_silent_leader(self, silent: SilentLeader | None) -> None:
        """Set how long the leader has been silent while its lease runs; none where it answers or the key is free."""
        self.silent.clear()
        self.lease.clear()
        if silent is not None:
            self.silent.labels(silent.member, silent.by, silent.command).set(silent.silent_s)
            if silent.lease_left_s is not None:
                self.lease.labels(silent.member).set(silent.lease_left_s)

    def record_pool(self, states: dict[str, int]) -> None:
        """Set PgBouncer's clients by state."""
        for state, count in states.items():
            self.pool.labels(state).set(count)


class Exporter:
    """Serves /metrics on an address and port until closed, behind the token where given; each level gets a canary.

    Without levels there is no canary, and nothing is written.
    """

    def __init__(
        self,
        target: Target,
        *,
        address: tuple[str, int],
        levels: Sequence[Level] = tuple(Level),
        declared: int | None = None,
        token: str = "",
    ) -> None:
        self.metrics = Metrics()
        able = target.capabilities()
        self._pool = able.pool
        self._declared, self._learn = declared or 0, declared is None
        self.unseen = ""
        """What has to be granted for all of it to be exported; "" where nothing, or where that is not known yet."""
        self.server = MetricsServer(self.metrics.registry, address, token)
        self._poller = target.poller()
        self._canary = Canary(target, levels, self.metrics.record_probe) if levels else None
        self._waits = RecentWaits(able.commit_waits, target.clock) if able.commit_waits is not None else None
        self._lease = LeaseWatch(able.leader_lease) if able.leader_lease is not None else None

    def update(self) -> None:
        """Export what the poller knows now; call it about twice a second."""
        snapshot = self._poller.snapshot()
        if self._learn:
            self._declared = max(self._declared, sync_status(snapshot.view, 0).in_effect)
        self.metrics.record_snapshot(snapshot, self._declared)
        self.unseen = snapshot.view.unseen
        if self._waits is not None:
            self.metrics.record_waits(self._waits.observed())
        if self._lease is not None:
            self.metrics.record_silent_leader(beside_sql(self._lease.silent, snapshot.view))
        if self._pool is not None:
            self.metrics.record_pool(self._pool.pool_clients())

    def close(self) -> str:
        """What of the canary stays on the cluster, in one sentence; "" for nothing."""
        left = self._canary.close() if self._canary is not None else ""
        for part in (self._waits, self._lease):
            if part is not None:
                part.close()
        self._poller.close()
        self.server.close()
        return left


def monitoring_of_labs() -> Monitoring:
    """What `lab up --monitoring` takes from here: the alert rules, and this exporter as a process of the lab."""
    return Monitoring(alert_rules(), (sys.executable, "-P", "-m", "walproof.watching.exporter"))


def main(address: str, port: int) -> None:
    """`python -m walproof.watching.exporter TARGET PORT`: metrics on 127.0.0.1 until it is killed."""
    target = choose(address)
    exporter = Exporter(target, address=("127.0.0.1", port))
    while True:
        exporter.update()
        target.clock.pause(0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
