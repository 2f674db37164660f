"""Every panel and alert of the monitoring, and the Prometheus alert rules and Grafana dashboard made from that list.

Pure: text out, nothing written."""

import json
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of the dashboard: a PromQL query, what a line is called, and its unit as Grafana names it."""

    title: str
    query: str
    legend: str
    description: str
    unit: str = "short"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert: a PromQL condition, how long it must hold, what it means and what to do."""

    name: str
    condition: str
    hold: str
    severity: str
    summary: str
    action: str


PANELS = (
    Panel(
        "Commit latency, 95th percentile",
        "histogram_quantile(0.95, sum by (level, le) (rate(walproof_commit_seconds_bucket[1m])))",
        "{{level}}",
        "latency of a tiny transaction at each level",
        unit="s",
    ),
    Panel(
        "Commit latency, mean",
        "sum by (level) (rate(walproof_commit_seconds_sum[1m]))"
        " / sum by (level) (rate(walproof_commit_seconds_count[1m]))",
        "{{level}}",
        "the same as a mean",
        unit="s",
    ),
    Panel(
        "Canary commits by outcome",
        "sum by (outcome) (rate(walproof_canary_total[1m]))",
        "{{outcome}}",
        "acknowledged; downgraded (acknowledged after a cancelled wait); unknown; refused",
        unit="ops",
    ),
    Panel(
        "Quorum in effect",
        "walproof_quorum_in_effect",
        "in effect",
        "how many standbys a commit waits for; 0 means that synchronous replication is inactive",
    ),
    Panel("Quorum declared", "walproof_quorum_declared", "declared", "how many standbys a commit should wait for"),
    Panel(
        "Spare synchronous standbys",
        "walproof_spare_synchronous_standbys",
        "spare",
        "standbys that may fail before commits block; below 0 they are blocked now",
    ),
    Panel("Backends waiting for a standby", "walproof_syncrep_waiting", "waiting", "sessions in SyncRep"),
    Panel(
        "Longest wait for a standby",
        "walproof_syncrep_longest_seconds",
        "longest",
        "statement_timeout does not end it",
        unit="s",
    ),
    Panel("Commits in doubt", "walproof_in_doubt_total", "in doubt", "canary commits whose answer never came"),
    Panel("Replication lag", "walproof_lag_bytes", "{{member}}", "WAL a standby has not replayed yet", unit="bytes"),
    Panel("Members up", "walproof_member_up", "{{member}}", "1 when the member answers"),
    Panel("Timeline", "walproof_timeline", "timeline", "grows by one at each promotion"),
    Panel("Leader", "patroni_primary", "{{instance}}", "1 at the member that holds the leader key"),
    Panel("PostgreSQL running", "patroni_postgres_running", "{{instance}}", "as Patroni sees it"),
    Panel(
        "WAL position",
        "patroni_xlog_location > 0 or patroni_xlog_replayed_location",
        "{{instance}}",
        "written on the leader, replayed on standbys",
        unit="bytes",
    ),
    Panel("etcd has a leader", "etcd_server_has_leader", "{{instance}}", "0 and Patroni demotes"),
    Panel("etcd leader changes", "etcd_server_leader_changes_seen_total", "{{instance}}", "elections of the DCS"),
    Panel("HAProxy servers up", "haproxy_backend_active_servers", "{{proxy}}", "one behind the leader's port"),
    Panel(
        "Transactions",
        "sum by (instance) (rate(pg_stat_database_xact_commit[1m]))",
        "{{instance}}",
        "commits per second by member",
        unit="ops",
    ),
    Panel("PostgreSQL up", "pg_up", "{{instance}}", "as postgres-exporter sees it"),
    Panel("PgBouncer pools", "walproof_pgbouncer_clients", "{{state}}", "clients active and waiting in the pool"),
    Panel(
        "Guard ready", "walproof_guard_ready", "ready", "1 when the guard would take over now if the leader disappeared"
    ),
    Panel(
        "Guard suspicions and takeovers",
        "label_replace(walproof_guard_suspicions_total, 'what', 'suspicions', '', '')"
        " or label_replace(walproof_guard_takeovers_total, 'what', 'takeovers', '', '')",
        "{{what}}",
        "a suspicion without a takeover was a leader that came back",
    ),
)

ALERTS = (
    Alert(
        "WalproofSyncReplicationInactive",
        "walproof_quorum_declared > 0 and walproof_quorum_in_effect == 0",
        "5s",
        "critical",
        "synchronous replication inactive: synchronous_standby_names is empty, no commit waits for a standby",
        "see which standby is missing: patronictl list; strict mode blocks commits instead",
    ),
    Alert(
        "WalproofQuorumReduced",
        "walproof_quorum_in_effect > 0 and walproof_quorum_in_effect < walproof_quorum_declared",
        "5s",
        "warning",
        "fewer standbys are waited for than declared",
        "bring the missing standby back; a second loss may lose acknowledged commits",
    ),
    Alert(
        "WalproofSyncSetChanged",
        "increase(walproof_sync_set_changes_total[1m]) > 0",
        "0s",
        "info",
        "the set of synchronous standbys changed",
        "nothing, if it was planned",
    ),
    Alert(
        "WalproofCommitsStuck",
        "walproof_syncrep_longest_seconds > 2",
        "1s",
        "critical",
        "commits wait for a standby that does not answer",
        "pg_stat_replication shows who is missing; cancelling the wait makes the commit visible and unreplicated",
    ),
    Alert(
        "WalproofNoLeader",
        "walproof_leader_known == 0",
        "5s",
        "critical",
        "no member accepts writes",
        "patronictl list, and the DCS: etcdctl endpoint status",
    ),
    Alert(
        "WalproofInDoubt",
        "increase(walproof_in_doubt_total[1m]) > 0",
        "0s",
        "warning",
        "a canary's connection broke before its answer: commits may or may not exist",
        "applications with the same gap must check before they try again",
    ),
    Alert(
        "WalproofGuardNotReady",
        "walproof_guard_ready == 0",
        "1m",
        "warning",
        "the guard would not take over now: a dead leader costs Patroni's ttl",
        "its /state and its log say why; journalctl -u walproof-guard",
    ),
    Alert(
        "WalproofGuardTakeover",
        "increase(walproof_guard_takeovers_total[5m]) > 0",
        "0s",
        "info",
        "the guard handed the leader lock over",
        "see why the leader disappeared; commits at local and off that it acknowledged last may be lost",
    ),
)


def alert_rules() -> str:
    """A Prometheus rule file (YAML), as `promtool check rules` accepts it."""
    rules = [
        {
            "alert": a.name,
            "expr": a.condition,
            "for": a.hold,
            "labels": {"severity": a.severity},
            "annotations": {"summary": a.summary, "description": a.action},
        }
        for a in ALERTS
    ]
    return yaml.safe_dump(
        {"groups": [{"name": "walproof", "interval": "1s", "rules": rules}]}, sort_keys=False, width=120
    )


def dashboard() -> str:
    """A Grafana dashboard (JSON, schema version 39), two panels a row; its Prometheus is chosen on import."""
    return json.dumps(
        {
            "title": "walproof: commit guarantees, latency and waits",
            "uid": "walproof",
            "schemaVersion": 39,
            "refresh": "5s",
            "time": {"from": "now-15m", "to": "now"},
            "templating": {
                "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
            },
            "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
        },
        indent=1,
    )


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0 if panel.title != "Spare synchronous standbys" else None},
            "overrides": [],
        },
        "targets": [{"refId": "A", "datasource": source, "expr": panel.query, "legendFormat": panel.legend}],
    }
