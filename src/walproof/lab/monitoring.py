"""The monitoring of the lab: Prometheus, a postgres-exporter for each member, and walproof's own exporter.

prometheus.yml, command lines, and starting them; they end with the lab."""

from dataclasses import dataclass
from pathlib import Path

import httpx2
import yaml

from walproof.lab import client_access, home
from walproof.lab.blueprint import ETCD_METRICS_PORT, POSTGRES_PORT, REST_PORT, Blueprint
from walproof.lab.privileges import access_uid, make_folder, write_private
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.machine.programs import program
from walproof.model.waiting import Wait, wait_for

EXPORTER_PORT = 9187
"""First port on the lab's own gateway for the exporters of PostgreSQL, one a member."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What watches the lab: Prometheus' alert rules (YAML), and the command line of walproof's own exporter.

    The lab (lab:NAME) and the exporter's port are appended to that command line.
    """

    rules: str
    exporter: tuple[str, ...]


def start(blueprint: Blueprint, wanted: Monitoring) -> None:
    """Start everything and wait until Prometheus answers; MachineError names a missing package."""
    folder, owner = blueprint.access_dir, access_uid(blueprint.number)
    rules, config, data = folder / "rules.yml", folder / "prometheus.yml", folder / "prometheus"
    make_folder(data, owner=owner)
    write_private(rules, wanted.rules, reader=owner)
    write_private(config, prometheus_yml(blueprint, rules), reader=owner)
    _start_exporters(blueprint)
    # walproof's own exporter runs as the user who created the lab: it reads the lab's home.
    own = [*wanted.exporter, f"lab:{blueprint.name}", str(blueprint.ports["exporter"])]
    environment = home.environment(blueprint, HOME=str(blueprint.home))
    pid_files.start(own, folder / "walproof-exporter.pid", folder / "exporter.log", environment)
    address = f"127.0.0.1:{blueprint.ports['prometheus']}"
    argv = [
        str(program("prometheus")),
        f"--config.file={config}",
        f"--web.listen-address={address}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=2h",
        "--log.level=warn",
    ]
    client_access.spawn(blueprint, "prometheus", argv)
    wait_for(Wait.PROGRAM_READY, lambda: _answers(f"http://{address}/-/ready"), RealClock(), pace_s=0.2)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=1).status_code == 200
    except httpx2.HTTPError:
        return False


def prometheus_yml(blueprint: Blueprint, rules: Path) -> str:
    """prometheus.yml: everything scraped and evaluated once a second; a job's targets by their label `instance`."""

    def members_at(port: int) -> dict[str, str]:
        return {m: f"{blueprint.address(m)}:{port}" for m in blueprint.members}

    local = {name: f"127.0.0.1:{port}" for name, port in blueprint.ports.items()}
    jobs = {
        "patroni": members_at(REST_PORT),
        "etcd": members_at(ETCD_METRICS_PORT),
        "haproxy": {"haproxy": local["haproxy-stats"]},
        "postgres": _exporters(blueprint),
        "walproof": {"walproof": local["exporter"]},
    }
    scraped = [
        {
            "job_name": job,
            "metrics_path": "/metrics",
            "static_configs": [{"targets": [at], "labels": {"instance": name}} for name, at in targets.items()],
        }
        for job, targets in jobs.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": scraped,
    }
    return yaml.safe_dump(config, sort_keys=False)


def _exporters(blueprint: Blueprint) -> dict[str, str]:
    """Where each member's exporter of PostgreSQL listens."""
    return {m: f"{blueprint.gateway}:{EXPORTER_PORT + i}" for i, m in enumerate(blueprint.members)}


def _start_exporters(blueprint: Blueprint) -> None:
    password = blueprint.access_dir / "exporter-password"
    write_private(password, home.read_secrets(blueprint)["postgres"], reader=access_uid(blueprint.number))
    for member, listen in _exporters(blueprint).items():
        argv = [
            str(program("prometheus-postgres-exporter")),
            f"--web.listen-address={listen}",
            "--no-collector.bgwriter",  # it queries columns that PostgreSQL 17 moved
            "--disable-settings-metrics",
            "--log.level=error",
        ]
        client_access.spawn(
            blueprint,
            f"exporter-{member}",
            argv,
            DATA_SOURCE_URI=f"{blueprint.address(member)}:{POSTGRES_PORT}/postgres?sslmode=disable",
            DATA_SOURCE_USER="postgres",
            DATA_SOURCE_PASS_FILE=str(password),
        )
