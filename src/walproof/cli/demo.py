"""`walproof demo`: a real cluster, the price of its five levels, three drills, one conclusion."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import own_lab, progress_bar, started
from walproof.estimating.intervals import StoppedBy
from walproof.lab import home
from walproof.lab.create import LabOrder
from walproof.machine.quoting import pasted
from walproof.model.event import Described, Ended, Event
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.pricing.options import parse_options
from walproof.pricing.run import run_price
from walproof.pricing.sampling import Bench, OnProgress, RunProgress
from walproof.proving.campaign import planned
from walproof.proving.faults import fault
from walproof.proving.options import ProveOptions
from walproof.proving.run import Shell, run_drills
from walproof.records.writer import Writer, check_writable
from walproof.reporting.conclusion import conclusion
from walproof.reporting.console_output import print_json, print_step, print_tables
from walproof.reporting.json_csv_hdrhistogram import record_json
from walproof.reporting.record_outline import results
from walproof.reporting.terminal import tables

PRICED = {"levels": ",".join(Level), "clients": "1,16", "precision": "2%"}


@cloup.command(cls=Command)
@opt.group(
    "Lab",
    opt.option("--lab", "NAME", "Name of the temporary lab.  [default: $WALPROOF_LAB-demo]"),
    opt.port,
    opt.postgres,
)
@opt.group(
    "Run",
    opt.option("--budget", "75s", "Measuring time of the prices.", default="75s"),
    opt.seed,
    opt.flag("--watch watched", "The live page too."),
)
@opt.output(opt.record)
def demo(
    lab: str | None,
    port: int,
    postgres: str | None,
    budget: str,
    seed: int,
    watched: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """A real cluster, its prices, three drills, one conclusion."""
    question = parse_options({**PRICED, "budget": budget, "seed": seed}).question()
    events = list[Event]()
    check_writable(directory)
    order = LabOrder(name=lab or f"{home.lab_name()}-demo", port=port, postgres=postgres)
    with own_lab(order, print_step, "demo") as target, Writer(directory, "demo") as writer:
        now = target.clock.now

        def emit(event: Event) -> None:
            events.append(event)
            writer(event)

        with _page(target, writer.directory, wanted=watched), progress_bar(quiet=as_json) as show_progress:
            asked = {**PRICED, "budget": budget, "fault": "kill,isolate", "drilled": "off,on"}
            emit(started("demo", asked, at=now(), seed=seed))
            emit(Described(now(), target.describe()))
            print_step("pricing five commit levels with 1 and 16 clients")
            if run_price(Bench(target, emit, seed), question, show_progress) is StoppedBy.INTERRUPTED:
                raise KeyboardInterrupt
            print_step("killing the leader under load, at off and at on; then cutting it off, like a dead machine")
            _drills(Shell(target, emit, writer.keep, seed), show_progress)
            emit(Ended(now(), "done"))
    _print_result(events, writer.directory, as_json=as_json)


def _drills(shell: Shell, show_progress: OnProgress) -> None:
    plan = planned(ProveOptions((fault("kill"),), (Level.OFF, Level.ON), seed=shell.seed))
    # Clients that wait 3 s for an answer, the default, would add their own waiting to Patroni's.
    gone = planned(ProveOptions((fault("isolate"),), (Level.ON,), seed=shell.seed))
    gone = [replace(drill, number=len(plan) + 1, client_timeout_s=1.0) for drill in gone]
    show_progress(RunProgress(0.0, 1.0, 0, "three drills"))
    run_drills(shell, [*plan, *gone], enough=lambda _: False)


@contextmanager
def _page(target: Target, record: Path, *, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    from walproof.watching.collector import Collector
    from walproof.watching.page import Page

    collector = Collector(target, record=record)
    page = Page(collector, target)
    server = threading.Thread(
        target=page.run, args=(lambda url: click.echo(f"watch it at {url}", err=True),), daemon=True
    )
    server.start()
    try:
        yield
    finally:
        page.stop()
        server.join(timeout=5)
        collector.close()


def _print_result(events: Sequence[Event], directory: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(record_json(events, str(directory), ()))
        return
    link = pasted("record: {at:comment}   (walproof report {at:path} --html report.html)", at=directory)
    print_tables(conclusion(events), tables(results(events)), "", link)
