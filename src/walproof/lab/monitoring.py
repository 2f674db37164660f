"""The monitoring of the lab: Prometheus, an exporter for each PostgreSQL, and walproof's own. Ends with the lab."""

import subprocess
from dataclasses import dataclass

import httpx2

from walproof.lab import access, home
from walproof.lab.blueprint import POSTGRES_PORT, Blueprint
from walproof.lab.privileges import make_folder, make_log, member_uid, write_private
from walproof.lab.programs import etcd, patroni, postgres_exporter, prometheus
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
    folder = blueprint.access_dir
    rules, config = folder / "rules.yml", folder / "prometheus.yml"
    settings = prometheus.PrometheusSettings(
        blueprint.ports["prometheus"], folder / "prometheus", rules, _scrapes(blueprint)
    )
    owner = member_uid(blueprint.number)
    make_folder(settings.data_dir, owner=owner)
    write_private(rules, wanted.rules, reader=owner)
    write_private(config, prometheus.config_text(settings), reader=owner)
    _start_exporters(blueprint)
    _start_own(blueprint, wanted.exporter)
    access.spawn(blueprint, "prometheus", prometheus.argv(settings, program("prometheus"), config))
    wait_for(Wait.PROGRAM_READY, lambda: _answers(prometheus.ready_url(settings.port)), RealClock(), pace_s=0.2)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=1).status_code == 200
    except httpx2.HTTPError:
        return False


def _scrapes(blueprint: Blueprint) -> tuple[prometheus.Scrape, ...]:
    def each(port: int) -> dict[str, str]:
        return {m: f"{blueprint.address(m)}:{port}" for m in blueprint.members}

    local = {name: f"127.0.0.1:{port}" for name, port in blueprint.ports.items()}
    exporters = {m: f"{blueprint.gateway}:{EXPORTER_PORT + i}" for i, m in enumerate(blueprint.members)}
    return (
        prometheus.Scrape("patroni", each(patroni.REST_PORT)),
        prometheus.Scrape("etcd", each(etcd.CLIENT_PORT)),
        prometheus.Scrape("haproxy", {"haproxy": local["haproxy-stats"]}),
        prometheus.Scrape("postgres", exporters),
        prometheus.Scrape("walproof", {"walproof": local["exporter"]}),
        prometheus.Scrape("guard", {"guard": local["guard"]}),
    )


def _start_exporters(blueprint: Blueprint) -> None:
    password = blueprint.access_dir / "exporter-password"
    write_private(password, home.read_secrets(blueprint)["postgres"], reader=member_uid(blueprint.number))
    for i, member in enumerate(blueprint.members):
        settings = postgres_exporter.ExporterSettings(
            f"{blueprint.gateway}:{EXPORTER_PORT + i}", f"{blueprint.address(member)}:{POSTGRES_PORT}", password
        )
        argv = postgres_exporter.argv(settings, program("prometheus-postgres-exporter"))
        access.spawn(blueprint, f"exporter-{member}", argv, **postgres_exporter.environment(settings))


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
