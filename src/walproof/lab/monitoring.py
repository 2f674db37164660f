"""The monitoring of the lab: Prometheus, an exporter beside each PostgreSQL, and walproof's own. Ends with the lab."""

import subprocess
import sys

import httpx2

from walproof.errors import MachineError
from walproof.lab import access, home
from walproof.lab.blueprint import ETCD_CLIENT_PORT, POSTGRES_PORT, REST_PORT, Blueprint
from walproof.lab.privileges import make_folder, write_private
from walproof.lab.programs import postgres_exporter, prometheus
from walproof.machine.clock import RealClock
from walproof.machine.software import program
from walproof.model.waiting import Wait, wait_for

EXPORTER_PORT = 9187
"""First port on the lab's own gateway for the exporters of PostgreSQL, one a member."""


def start(blueprint: Blueprint) -> None:
    """Start everything and wait until Prometheus answers; MachineError names a missing package."""
    folder = blueprint.access_dir
    rules, config = folder / "rules.yml", folder / "prometheus.yml"
    settings = prometheus.PrometheusSettings(
        blueprint.ports["prometheus"], folder / "prometheus", rules, _scrapes(blueprint)
    )
    make_folder(settings.data_dir)
    write_private(rules, _rules())
    write_private(config, prometheus.config_text(settings))
    _start_exporters(blueprint)
    _start_own(blueprint)
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
        prometheus.Scrape("patroni", each(REST_PORT)),
        prometheus.Scrape("etcd", each(ETCD_CLIENT_PORT)),
        prometheus.Scrape("haproxy", {"haproxy": local["haproxy-stats"]}),
        prometheus.Scrape("postgres", exporters),
        prometheus.Scrape("walproof", {"walproof": local["exporter"]}),
    )


def _start_exporters(blueprint: Blueprint) -> None:
    password = blueprint.access_dir / "exporter-password"
    write_private(password, home.read_secrets(blueprint)["postgres"])
    for i, member in enumerate(blueprint.members):
        settings = postgres_exporter.ExporterSettings(
            f"{blueprint.gateway}:{EXPORTER_PORT + i}", f"{blueprint.address(member)}:{POSTGRES_PORT}", password
        )
        argv = postgres_exporter.argv(settings, program("prometheus-postgres-exporter"))
        access.spawn(blueprint, f"exporter-{member}", argv, **postgres_exporter.environment(settings))


def _rules() -> str:
    """The alert rules, from the verb that prints them: the catalogue lives above the lab."""
    said = subprocess.run(
        [sys.executable, "-m", "walproof", "watch", "--print", "rules"], capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise MachineError(f"walproof watch --print rules failed: {said.stderr.strip()}", "make install")
    return said.stdout


def _start_own(blueprint: Blueprint) -> None:
    """walproof's own exporter runs as who raised the lab: it reads the lab's home."""
    argv = [sys.executable, "-m", "walproof", "watch", "--exporter", "--target", f"lab:{blueprint.name}"]
    with (blueprint.access_dir / "exporter.log").open("ab") as log:
        process = subprocess.Popen(
            [*argv, "--port", str(blueprint.ports["exporter"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=home.environment(blueprint, HOME=str(blueprint.home)),
            start_new_session=True,
        )
    (blueprint.access_dir / "walproof-exporter.pid").write_text(str(process.pid))
