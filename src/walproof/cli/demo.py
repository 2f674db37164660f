"""walproof demo: a real cluster, the price of its five levels, two kill drills, one conclusion, and nothing left."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from walproof.cli.progress import progress_bar
from walproof.cli.run_options import begun, sigterm_as_ctrl_c
from walproof.cli.temporary_lab import own_lab
from walproof.estimating.stopping import StoppedBy
from walproof.lab import home
from walproof.lab.design import LabOrder
from walproof.model.event import Described, Ended, Event
from walproof.model.guarantee import Level
from walproof.model.ports import Target
from walproof.pricing.bench import Bench, OnProgress, RunProgress
from walproof.pricing.options import parse_options
from walproof.pricing.run import run_price
from walproof.proving.campaign import planned
from walproof.proving.faults import fault
from walproof.proving.options import ProveOptions
from walproof.proving.run import Shell, run_drills
from walproof.records.writer import Writer, check_place
from walproof.reporting.conclusion import conclusion
from walproof.reporting.terminal import tables

PRICED = {"levels": ",".join(Level), "clients": "1,16", "precision": "2%"}


@click.command()
@click.option("--record", "directory", metavar="DIR", type=click.Path(path_type=Path), help="Where the record goes.")
@click.option(
    "--port", metavar="PORT", type=int, default=5500, show_default=True, help="First of eight ports on 127.0.0.1."
)
@click.option("--postgres", metavar="15|PATH", help="Another install.  [default: PostgreSQL 18 of the Python wheel]")
@click.option("--budget", metavar="75s", default="75s", show_default=True, help="Measuring time of the prices.")
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="Seed of every random choice.")
@click.option("--watch", "watched", is_flag=True, help="The live page beside it.")
def demo(directory: Path | None, port: int, postgres: str | None, budget: str, seed: int, watched: bool) -> int:
    """A real cluster, its prices, two drills, one conclusion."""
    question = parse_options({**PRICED, "budget": budget, "seed": seed}).question()
    console, events = Console(stderr=True), list[Event]()

    def say(words: str) -> None:
        console.print(f"[dim]{words}[/dim]")

    check_place(directory)
    order = LabOrder(name=f"{home.lab_name()}-demo", port=port, postgres=postgres)
    with sigterm_as_ctrl_c(), own_lab(order, say) as target, Writer(directory, "demo") as writer:
        now = target.clock.now

        def emit(event: Event) -> None:
            events.append(event)
            writer(event)

        with _page(target, writer.directory, wanted=watched), progress_bar(console) as tell:
            asked = {**PRICED, "budget": budget, "fault": "kill", "drilled": "off,on"}
            emit(begun("demo", asked, at=now(), seed=seed))
            emit(Described(now(), target.describe()))
            say("pricing five commit levels with 1 and 16 clients")
            if run_price(Bench(target, emit, seed), question, tell) is StoppedBy.INTERRUPTED:
                raise KeyboardInterrupt
            say("killing the leader under load, at off and at on")
            _drills(Shell(target, emit, writer.keep, seed), tell)
            emit(Ended(now(), "done"))
    _print(events, writer.directory)
    return 0


def _drills(shell: Shell, tell: OnProgress) -> None:
    plan = planned(ProveOptions((fault("kill"),), (Level.OFF, Level.ON), seed=shell.seed))
    tell(RunProgress(0.0, 1.0, 0, "two kill drills"))
    run_drills(shell, plan, enough=lambda _: False)


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


def _print(events: Sequence[Event], directory: Path) -> None:
    console = Console()
    for table in tables(events):
        console.print(table)
    console.print()
    console.print(conclusion(events), style="bold", highlight=False)
    click.echo(f"\nrecord: {directory}   (walproof report {directory} --html report.html)")
