"""The catalogue as Prometheus alert rules and as a Grafana dashboard. Pure: text out, nothing written."""

import json
from collections.abc import Sequence
from typing import Any

import yaml

from walproof.watching.catalogue import ALERTS, PANELS, Alert, Panel


def alert_rules(alerts: Sequence[Alert] = ALERTS) -> str:
    """A Prometheus rule file (YAML), as `promtool check rules` accepts it."""
    rules = [
        {
            "alert": a.name,
            "expr": a.condition,
            "for": a.hold,
            "labels": {"severity": a.severity},
            "annotations": {"summary": a.summary, "description": a.action},
        }
        for a in alerts
    ]
    return yaml.safe_dump(
        {"groups": [{"name": "walproof", "interval": "1s", "rules": rules}]}, sort_keys=False, width=120
    )


def dashboard(panels: Sequence[Panel] = PANELS) -> str:
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
            "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
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
