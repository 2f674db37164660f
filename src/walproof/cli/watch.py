"""`walproof watch`: the live page, the same in the terminal, metrics for Prometheus, or one snapshot as JSON."""

import threading
from pathlib import Path

import click
import cloup
from cloup.constraints import mutually_exclusive
from rich.live import Live

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import call_after, keep_journal
from walproof.errors import UsageError
from walproof.machine.addresses import is_loopback
from walproof.model.guarantee import AskedQuorum, Level, level
from walproof.model.ports import Target
from walproof.model.units import listed
from walproof.records.layout import record_directory
from walproof.reporting.console_output import console, print_json, status_json
from walproof.targets.choose import choose
from walproof.targets.external import consent
from walproof.watching.alerts_and_dashboard import alert_rules, dashboard
from walproof.watching.canary import Canary
from walproof.watching.collector import Collector
from walproof.watching.exporter import Exporter
from walproof.watching.http_server import base_url, new_token, token_in
from walproof.watching.page import Page
from walproof.watching.terminal import rendered

EXPORTER_PORT = 19187
"""Outside the range of Prometheus' list of default ports: 9187 is postgres_exporter's."""


@cloup.command(cls=Command)
@cloup.argument("record", required=False, type=click.Path(path_type=Path))
@opt.cluster(opt.allow("canary, and the faults by name for the page's buttons"))
@opt.group(
    "Instead of the page",
    opt.flag("--terminal", "Draw here."),
    opt.flag("--exporter", "Serve metrics for Prometheus, canary included."),
    opt.choice("--print printed", ["rules", "dashboard"], "Alert rules or the Grafana dashboard."),
    opt.flag("--json as_json", "One snapshot as one JSON object on standard output, then exit."),
    constraint=mutually_exclusive,
)
@opt.group(
    "Server",
    opt.option("--host", "ADDRESS", "Where to listen; beyond loopback reading needs the token.", default="127.0.0.1"),
    opt.option(
        "--port",
        "PORT",
        "Where to listen; 0 is any free port (19187 for --exporter).",
        type=click.IntRange(0, 65535),
        default=0,
    ),
    opt.option(
        "--token-file",
        "FILE",
        "Holds the token, mode 0600; made when missing.  [default: a new token each time]",
        type=click.Path(path_type=Path),
    ),
    opt.option("--duration", "1min", "Exit after this time.  [default: at Ctrl-C]", type=opt.DURATION),
)
@opt.group(
    "Canary",
    opt.flag("--canary", "Commit one tiny row per level per second and draw its latency."),
    opt.flag("--no-canary", "Export without one: nothing is written, and no consent is needed."),
    opt.words("--levels", "LEVEL,…", "Levels of the canary.", default=list(Level)),
    opt.option(
        "--quorum", "any1", "What should be in effect: anyK, firstK or all.  [default: the most seen]", type=opt.QUORUM
    ),
)
def watch(
    record: Path | None,
    target: str | None,
    allow: str | None,
    terminal: bool,
    exporter: bool,
    printed: str | None,
    as_json: bool,
    host: str,
    port: int,
    token_file: Path | None,
    duration: float | None,
    canary: bool,
    no_canary: bool,
    levels: str,
    quorum: AskedQuorum | None,
) -> None:
    """The cluster live: page, terminal or metrics. RECORD is a record to follow, growing or complete."""
    if printed:
        click.echo(alert_rules() if printed == "rules" else dashboard())
        return
    if no_canary and (canary or not exporter):
        raise UsageError("--no-canary is for --exporter, without --canary", "leave one of them out")
    probed = tuple(dict.fromkeys(map(level, listed(levels, "levels"))))
    if duration is not None and not 0 < duration < threading.TIMEOUT_MAX:
        raise UsageError("--duration must be greater than 0", "--duration 1min, or leave it out")
    if record and not target and (canary or exporter or as_json):
        option = "--canary" if canary else "--exporter" if exporter else "--json"
        raise UsageError(f"{option} needs a cluster, not a record", "add --target, or use walproof report RECORD")
    allowed = consent.read(allow)
    directory = record_directory(record) if record else None
    chosen = None if directory and not target else choose(target)
    if chosen and as_json:
        print_json({"target": chosen.name, **status_json(chosen.observe())})
        return
    if chosen and (canary or (exporter and not no_canary)):
        consent.check(chosen, "the canary", ["canary"], allowed, clients=len(probed))
    ended = threading.Event()
    call_after(duration, ended.set)
    if chosen and exporter:
        declared = quorum and (quorum[1] or len(chosen.observe().standbys))
        _export(chosen, (host, port or EXPORTER_PORT), (() if no_canary else probed, declared), token_file, ended)
        return
    # The faults of the page's buttons are undone by `walproof revert` after kill -9.
    keep_journal(chosen if allowed else None, None)
    collector = Collector(chosen, record=directory)
    canary_writer = Canary(chosen, probed, collector.add_probe) if canary and chosen else None
    try:
        if terminal:
            _draw(collector, ended)
        else:
            token = token_in(token_file) if token_file else ""
            page = Page(collector, chosen, host=host, port=port, token=token, allowed=allowed)
            call_after(duration, page.stop)
            page.run(lambda url: click.echo(f"watching at {url}\nCtrl-C ends it", err=True))
    finally:
        if canary_writer:
            _warn(canary_writer.close())
        collector.close()


def _draw(collector: Collector, ended: threading.Event) -> None:
    screen = console()
    with Live(console=screen, refresh_per_second=4, screen=screen.is_terminal) as live:
        while not ended.wait(0.25):
            live.update(rendered(collector.picture, collector.stale_s))


def _export(
    target: Target,
    address: tuple[str, int],
    declared: tuple[tuple[Level, ...], int | None],
    token_file: Path | None,
    ended: threading.Event,
) -> None:
    token = token_in(token_file) if token_file else "" if is_loopback(address[0]) else new_token()
    exporter = Exporter(target, address=address, levels=declared[0], declared=declared[1], token=token)
    click.echo(f"metrics at {base_url(address[0], exporter.server.port)}/metrics", err=True)
    if token:
        click.echo(
            f"for `Authorization: Bearer` with {f'the token in {token_file}' if token_file else token}", err=True
        )
    click.echo("Ctrl-C ends it", err=True)
    said = ""
    try:
        while not ended.wait(0.5):
            exporter.update()
            if exporter.unseen not in ("", said):
                said = exporter.unseen
                click.echo(f"who streams and what waits is not known: {said}", err=True)
    finally:
        _warn(exporter.close())


def _warn(left: str) -> None:
    if left:
        click.echo(f"walproof: {left}", err=True)
