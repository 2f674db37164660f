"""walproof study: the published studies listed, shown, run and judged side by side. No decisions."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from walproof.cli.journals import keep_journal
from walproof.cli.progress import progress_bar
from walproof.cli.run_options import begun, sigterm_as_ctrl_c
from walproof.cli.temporary_lab import own_lab
from walproof.lab.blueprint import Disk
from walproof.lab.design import LabOrder
from walproof.lab.faults import volumes
from walproof.model.event import ClaimJudged, Described, Ended
from walproof.model.ports import Target
from walproof.records.writer import Writer, check_writable
from walproof.reporting.conclusion import claims_tally
from walproof.reporting.terminal import study_tables
from walproof.studies.declaration import Study, read_study, shipped, studies
from walproof.studies.run import StudyOptions, run_study
from walproof.targets.choose import choose, is_external
from walproof.targets.external import consent


@click.group()
def study() -> None:
    """Published studies, reproduced side by side with their figures."""


@study.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def list_studies(as_json: bool) -> None:
    """The studies there are."""
    found = [shipped(name)[0] for name in studies()]
    if as_json:
        click.echo(json.dumps({"studies": [{"name": s.name, "title": s.title, "source": s.source} for s in found]}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "claims", "what", "source"):
        table.add_column(heading, justify="right" if heading == "claims" else "left")
    for s in found:
        table.add_row(s.name, str(len(s.claim)), s.title, s.source)
    Console().print(table)
    click.echo("walproof study run NAME --quick runs one in about five minutes on a lab of its own.")


@study.command()
@click.argument("name")
def show(name: str) -> None:
    """What a study claims, on which machine, and how it is carried over."""
    declared, story = shipped(name)
    console = Console()
    console.print(f"[bold]{declared.title}[/bold]\n{declared.source}\n{declared.machine}\n")
    console.print(story)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "the paper says", "here it is judged on"):
        table.add_column(heading)
    for claim in declared.claim:
        table.add_row(claim.name, f"{claim.says}: {claim.paper}", claim.scaled or "the same, on this machine")
    console.print(table)


@study.command()
@click.argument("name")
@click.option("--quick", is_flag=True, help="Within six minutes.")
@click.option("--budget", type=float, metavar="SECONDS", help="Measuring time, when not the declared one.")
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="Seed of every random choice.")
@click.option("--target", metavar="WHERE", help="A lab of its own when not said; a target file, URL or DSN.")
@click.option("--record", "directory", metavar="DIR", type=click.Path(path_type=Path), help="Where the record goes.")
@click.option("--port", metavar="PORT", type=int, default=6900, show_default=True, help="First port of its own lab.")
@click.option("--allow", metavar="WORD,…", help="Consent on a cluster of yours: load; kill where a study has drills.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def run(
    name: str,
    quick: bool,
    budget: float | None,
    seed: int,
    target: str | None,
    directory: Path | None,
    port: int,
    allow: str | None,
    as_json: bool,
) -> int:
    """Run a study, by name or the path of a study.toml."""
    declared = read_study(Path(name)) if name.endswith(".toml") else shipped(name)[0]
    options = StudyOptions(quick, seed, budget)
    if target is not None and is_external(target):
        needed = ["load", "kill"] if declared.drill else ["load"]
        consent.require("running a study", needed, consent.read(allow), str(target).rpartition("@")[2])
    check_writable(directory)
    console = Console(stderr=True)
    with (
        sigterm_as_ctrl_c(),
        _target(declared, target, port, console) as chosen,
        Writer(directory, "study") as writer,
    ):
        keep_journal(chosen, writer.directory)
        now = chosen.clock.now
        asked = {"study": declared.name, "quick": quick, "budget_s": budget, "baseline": str(declared.baseline)}
        writer(begun("study", asked, at=now(), seed=seed))
        writer(Described(now(), chosen.describe()))
        with progress_bar(console) as tell:
            events = run_study(declared, chosen, writer, writer.keep, options, tell)
        claims = [e for e in events if isinstance(e, ClaimJudged)]
        writer(Ended(now(), "done"))
    if as_json:
        words = [
            {"claim": c.claim, "paper": c.paper, "measured": c.measured, "verdict": c.verdict, "why": c.why}
            for c in claims
        ]
        click.echo(json.dumps({"record": str(writer.directory), "claims": words}))
    else:
        click.echo(f"{declared.title}: {claims_tally(claims)}.\n")
        for shown in study_tables(events):
            Console(highlight=False).print(shown)
        click.echo(f"record: {writer.directory}   (walproof report {writer.directory} --html study.html)")
    return 0


@contextmanager
def _target(declared: Study, target: str | None, port: int, console: Console) -> Iterator[Target]:
    if target is not None:
        yield choose(target)
        return
    needed = declared.lab
    not_apart = volumes.unavailable() if needed.wal_volume else None
    if not_apart:
        console.print(f"[yellow]the WAL stays with the data: {not_apart}[/yellow]")
    apart = needed.wal_volume and not not_apart
    order = LabOrder(
        name=f"study-{os.getpid()}",
        members=needed.members,
        sync=needed.sync,
        quorum=needed.quorum,
        parameters=dict(needed.parameters),
        port=port,
        disk=Disk("image" if apart else "plain", wal_volume=apart),
    )
    with own_lab(order, lambda words: console.print(f"[dim]{words}[/dim]")) as lab:
        yield lab
