"""Prometheus, the lab's monitoring. Settings → prometheus.yml, argv and readiness question; starts nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Scrape:
    """One job: its name and host:port by instance name; the instance becomes the label `instance`."""

    job: str
    targets: dict[str, str]
    path: str = "/metrics"


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Its port on the loopback, where it keeps data, its rule file, and what it scrapes."""

    port: int
    data_dir: Path
    rules: Path
    scrapes: tuple[Scrape, ...]


def config_text(settings: PrometheusSettings) -> str:
    """prometheus.yml: everything scraped and evaluated once a second."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(settings.rules)],
        "scrape_configs": [_job(scrape) for scrape in settings.scrapes],
    }
    return yaml.safe_dump(config, sort_keys=False)


def _job(scrape: Scrape) -> dict[str, Any]:
    static = [{"targets": [address], "labels": {"instance": name}} for name, address in scrape.targets.items()]
    return {"job_name": scrape.job, "metrics_path": scrape.path, "static_configs": static}


def argv(settings: PrometheusSettings, program: Path, config: Path) -> list[str]:
    """The command line; listens on the loopback only, keeps two hours."""
    return [
        str(program),
        f"--config.file={config}",
        f"--web.listen-address=127.0.0.1:{settings.port}",
        f"--storage.tsdb.path={settings.data_dir}",
        "--storage.tsdb.retention.time=2h",
        "--log.level=warn",
    ]


def ready_url(port: int) -> str:
    """Answers 200 once it is ready."""
    return f"http://127.0.0.1:{port}/-/ready"
