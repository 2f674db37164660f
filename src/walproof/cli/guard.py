"""`walproof guard`: watches one CloudNativePG cluster and has its primary replaced in seconds when that freezes."""

import secrets
import threading
from contextlib import closing
from dataclasses import asdict
from datetime import datetime

import click
import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import call_after
from walproof.errors import UsageError
from walproof.guarding.kubernetes_freeze import Policy
from walproof.guarding.status_and_metrics import GuardMetrics
from walproof.machine.addresses import is_loopback
from walproof.machine.untrusted import one_line
from walproof.reporting.console_output import print_result
from walproof.targets.choose import choose_guarded
from walproof.targets.external import consent
from walproof.watching.http_server import MetricsServer


@cloup.command(cls=Command)
@opt.group(
    "Cluster",
    opt.option("--target", "WHERE", "cnpg:NAMESPACE/NAME, or a target file of one.", callback=opt.addressed),
    opt.kube_context,
    opt.allow("takeover"),
)
@opt.group(
    "Guard",
    opt.option("--suspect-after", "1s", "Silence of the primary that is suspicious.", type=opt.DURATION, default="1s"),
    opt.flag("--dry-run", "Say what it would do and do nothing."),
    opt.option("--duration", "1min", "Exit after this time.  [default: at Ctrl-C]", type=opt.DURATION),
)
@opt.group(
    "Server",
    opt.option("--listen", "HOST:PORT", "Serve /metrics and /state there.  [default: nowhere]"),
)
@opt.output()
def guard(
    target: str | None,
    allow: str | None,
    suspect_after: float,
    dry_run: bool,
    duration: float | None,
    listen: str | None,
    as_json: bool,
) -> None:
    """Recovery in seconds: a frozen CloudNativePG primary is replaced when no acknowledged commit can be lost.

    A line for everything it does goes to standard error; --json prints what it did in all when it ends.
    """
    if not 0.2 <= suspect_after <= 60:
        raise UsageError(f"--suspect-after must be from 0.2s to 60s, not {suspect_after:g} s", "--suspect-after 1s")
    address = _address(listen)
    allowed = consent.read(allow)
    # Its capabilities are not asked for: what is asked for them, the owner of a database could answer.
    chosen = choose_guarded(target)
    if not dry_run:
        consent.require("guarding", ["takeover"], allowed, chosen.name)
    policy = Policy(f"walproof-guard-{secrets.token_hex(4)}", suspect_after, dry_run=dry_run)
    ended = threading.Event()
    call_after(duration, ended.set)
    watcher = chosen.guard(policy, _log)
    with closing(watcher):
        server = None
        if address:
            metrics = GuardMetrics(watcher.status).registry
            server = MetricsServer(metrics, address, state=lambda: asdict(watcher.status()))
        _log(f"guarding {chosen.name}{' (dry run)' if dry_run else ''}")
        try:
            while not ended.is_set():
                watcher.turn()
        except KeyboardInterrupt:
            _log("ended")
            raise
        finally:
            if server is not None:
                server.close()
            print_result(asdict(watcher.status()), as_json=as_json)


def _address(listen: str | None) -> tuple[str, int] | None:
    """Host and port of --listen; UsageError where others than this machine could read without a token."""
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535 or not host:
        raise UsageError(f"--listen {listen!r} is not HOST:PORT", "--listen 127.0.0.1:9189")
    if not is_loopback(host):
        raise UsageError(
            f"--listen {host} lets other machines read without a token",
            "listen on 127.0.0.1, and let your proxy or agent read it",
        )
    return host, int(port)


def _log(text: str) -> None:
    # Names and tags in it are others': none may move the terminal or begin a line.
    click.echo(f"{datetime.now().isoformat(' ', 'milliseconds')} {one_line(text)}", err=True)
