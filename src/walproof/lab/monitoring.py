"""The monitoring of the lab: Prometheus, a postgres-exporter for each member, and walproof's own exporter.

prometheus.yml, command lines, and starting them; they end with the lab."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from walproof.lab import client_access, home
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.privileges import make_folder, make_log, member_uid, write_private
from walproof.lab.programs import patroni_etcd
from walproof.machine import pid_files
from walproof.machine.clock import RealClock
from walproof.machine.programs import program
from walproof.model.waiting import Wait, wait_for


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


def prometheus_yml(settings: PrometheusSettings) -> str:
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


def prometheus_argv(settings: PrometheusSettings, program: Path, config: Path) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Where it listens (host:port), which PostgreSQL it asks (host:port), and the file that holds the password."""

    listen: str
    postgres: str
    password_file: Path


def exporter_argv(settings: ExporterSettings, program: Path) -> list[str]:
    """The command line. Its bgwriter collector queries columns that PostgreSQL 17 moved, so it is off."""
    return [
        str(program),
        f"--web.listen-address={settings.listen}",
        "--no-collector.bgwriter",
        "--disable-settings-metrics",
        "--log.level=error",
    ]


def exporter_environment(settings: ExporterSettings) -> dict[str, str]:
    """How it logs in; the password itself stays in its file."""
    return {
        "DATA_SOURCE_URI": f"{settings.postgres}/postgres?sslmode=disable",
        "DATA_SOURCE_USER": "postgres",
        "DATA_SOURCE_PASS_FILE": str(settings.password_file),
    }


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
    folder = blueprint.access_dir
    rules, config = folder / "rules.yml", folder / "prometheus.yml"
    settings = PrometheusSettings(blueprint.ports["prometheus"], folder / "prometheus", rules, _scrapes(blueprint))
    owner = member_uid(blueprint.number)
    make_folder(settings.data_dir, owner=owner)
    write_private(rules, wanted.rules, reader=owner)
    write_private(config, prometheus_yml(settings), reader=owner)
    _start_exporters(blueprint)
    _start_own(blueprint, wanted.exporter)
    client_access.spawn(blueprint, "prometheus", prometheus_argv(settings, program("prometheus"), config))
    wait_for(Wait.PROGRAM_READY, lambda: _answers(ready_url(settings.port)), RealClock(), pace_s=0.2)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=1).status_code == 200
    except httpx2.HTTPError:
        return False


def _scrapes(blueprint: Blueprint) -> tuple[Scrape, ...]:
    def each(port: int) -> dict[str, str]:
        return {m: f"{blueprint.address(m)}:{port}" for m in blueprint.members}

    local = {name: f"127.0.0.1:{port}" for name, port in blueprint.ports.items()}
    exporters = {m: f"{blueprint.gateway}:{EXPORTER_PORT + i}" for i, m in enumerate(blueprint.members)}
    return (
        Scrape("patroni", each(patroni_etcd.REST_PORT)),
        Scrape("etcd", each(patroni_etcd.CLIENT_PORT)),
        Scrape("haproxy", {"haproxy": local["haproxy-stats"]}),
        Scrape("postgres", exporters),
        Scrape("walproof", {"walproof": local["exporter"]}),
        Scrape("guard", {"guard": local["guard"]}),
    )


def _start_exporters(blueprint: Blueprint) -> None:
    password = blueprint.access_dir / "exporter-password"
    write_private(password, home.read_secrets(blueprint)["postgres"], reader=member_uid(blueprint.number))
    for i, member in enumerate(blueprint.members):
        settings = ExporterSettings(
            f"{blueprint.gateway}:{EXPORTER_PORT + i}", f"{blueprint.address(member)}:{POSTGRES_PORT}", password
        )
        argv = exporter_argv(settings, program("prometheus-postgres-exporter"))
        client_access.spawn(blueprint, f"exporter-{member}", argv, **exporter_environment(settings))


def _start_own(blueprint: Blueprint, exporter: tuple[str, ...]) -> None:
    """walproof's own exporter runs as the user who created the lab: it reads the lab's home."""
    make_log(blueprint.access_dir / "exporter.log")
    with (blueprint.access_dir / "exporter.log").open("ab") as log:
        process = subprocess.Popen(
            [*exporter, f"lab:{blueprint.name}", str(blueprint.ports["exporter"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=home.environment(blueprint, HOME=str(blueprint.home)),
            start_new_session=True,
        )
    pid_files.write(blueprint.access_dir / "walproof-exporter.pid", process.pid)
