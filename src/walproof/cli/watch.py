"""walproof watch: the live page, the same in the terminal, or metrics for Prometheus. No decisions."""

import threading
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from walproof.errors import UsageError
from walproof.model.guarantee import Level, level
from walproof.model.ports import Target
from walproof.records.layout import record_directory
from walproof.targets.choose import choose
from walproof.watching.canary import Canary
from walproof.watching.collector import Collector
from walproof.watching.exporter import Exporter
from walproof.watching.page import Page
from walproof.watching.rules import alert_rules, dashboard
from walproof.watching.terminal import rendered


@click.command()
@click.argument("record", required=False, type=click.Path(path_type=Path))
@click.option("--target", metavar="WHERE", help="The lab when not said; a target file, URL or DSN.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; beyond loopback reading needs the token.",
)
@click.option("--port", metavar="PORT", type=int, default=0, help="Port to listen on; any free one when not said.")
@click.option("--terminal", is_flag=True, help="Draw here instead of serving a page.")
@click.option("--canary", is_flag=True, help="Commit one tiny row per level per second and draw its latency.")
@click.option("--exporter", is_flag=True, help="Serve metrics for Prometheus (canary included) instead of a page.")
@click.option(
    "--quorum", metavar="N", type=click.IntRange(0), help="Standbys declared; the most seen in effect when not said."
)
@click.option("--levels", metavar="LEVEL,…", default=",".join(Level), show_default=True, help="Levels of the canary.")
@click.option("--seconds", metavar="N", type=float, help="End by itself after so long.")
@click.option(
    "--print", "printed", type=click.Choice(["rules", "dashboard"]), help="Print alert rules or the Grafana dashboard."
)
def watch(
    record: Path | None,
    target: str | None,
    host: str,
    port: int,
    terminal: bool,
    canary: bool,
    exporter: bool,
    quorum: int | None,
    levels: str,
    seconds: float | None,
    printed: str | None,
) -> int:
    """The cluster live: page, terminal or metrics. RECORD is a record to follow, growing or whole."""
    if printed:
        click.echo(alert_rules() if printed == "rules" else dashboard())
        return 0
    chosen_levels = tuple(level(text) for text in levels.split(",") if text.strip())
    if not chosen_levels:
        raise UsageError("no level is named", f"--levels takes some of {', '.join(Level)}")
    _check(port, seconds)
    if exporter and terminal:
        raise UsageError("--exporter serves metrics and --terminal draws here", "choose one of them")
    if canary and record and not target:
        raise UsageError("a record takes no canary", "add --target, or leave --canary out")
    directory = record_directory(record) if record else None
    chosen = None if directory and not target else choose(target)
    ended = threading.Event()
    if exporter:
        if chosen is None:
            raise UsageError("a record has no metrics", "leave RECORD out, or leave --exporter out")
        return _export(chosen, (host, port or 9187), (chosen_levels, quorum), _timer(seconds, ended.set), ended)
    collector = Collector(chosen, record=directory)
    probing = Canary(chosen, chosen_levels, collector.add_probe) if canary and chosen else None
    try:
        if terminal:
            _draw(collector, _timer(seconds, ended.set), ended)
        else:
            page = Page(collector, chosen, host=host, port=port)
            _timer(seconds, page.stop)
            page.run(lambda url: click.echo(f"watching at {url}\nCtrl-C ends it", err=True))
    finally:
        if probing:
            probing.close()
        collector.close()
    return 0


def _check(port: int, seconds: float | None) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is not a port", "give one between 1 and 65535, or leave --port out")
    if seconds is not None and not 0 < seconds < threading.TIMEOUT_MAX:
        raise UsageError(f"{seconds:g} seconds is not valid", "--seconds 60, or leave it out")


def _timer(seconds: float | None, end: Callable[[], None]) -> threading.Timer | None:
    if seconds is None:
        return None
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def _draw(collector: Collector, _timer: threading.Timer | None, ended: threading.Event) -> None:
    with Live(console=Console(), refresh_per_second=4, screen=Console().is_terminal) as live:
        while not ended.wait(0.25):
            live.update(rendered(collector.picture))


def _export(
    target: Target,
    address: tuple[str, int],
    declared: tuple[tuple[Level, ...], int | None],
    _timer: threading.Timer | None,
    ended: threading.Event,
) -> int:
    exporter = Exporter(target, address=address, levels=declared[0], declared=declared[1])
    click.echo(f"metrics at http://{address[0]}:{address[1]}/metrics\nCtrl-C ends it", err=True)
    try:
        while not ended.wait(0.5):
            exporter.update()
    finally:
        exporter.close()
    return 0
