"""The Prometheus alert rules and the Grafana dashboard, made from the list of alerts and panels beside this file.

Pure: text out, nothing written."""

import json
import tomllib
from dataclasses import dataclass
from importlib import resources
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


_CATALOGUE = tomllib.loads((resources.files(__package__) / "alerts_and_panels.toml").read_text("utf-8"))
PANELS = tuple(Panel(**panel) for panel in _CATALOGUE["panel"])
ALERTS = tuple(Alert(**alert) for alert in _CATALOGUE["alert"])


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
