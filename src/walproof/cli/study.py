"""`walproof study`: the published studies listed, shown, run and judged side by side."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import click
import cloup
from click.shell_completion import CompletionItem
from rich.text import Text

from walproof.cli import options as opt
from walproof.cli.options import Group
from walproof.cli.runs import keep_journal, own_lab, progress_bar, started
from walproof.lab import disk_images
from walproof.lab.blueprint import Disk
from walproof.lab.create import LabOrder
from walproof.machine import processors
from walproof.machine.quoting import pasted
from walproof.machine.redaction import without_secrets
from walproof.model.event import ClaimJudged, Described, Ended
from walproof.model.ports import Target
from walproof.pricing.command import restarts_forecast
from walproof.records.writer import Writer, check_writable
from walproof.reporting.conclusion import claims_tally
from walproof.reporting.console_output import console, plain_table, print_json, print_result, print_step, print_tables
from walproof.reporting.record_outline import claim_sections
from walproof.reporting.terminal import tables
from walproof.studies.declaration import Study, read_study, shipped, studies
from walproof.studies.run import (
    StudyOptions,
    consents_needed,
    consents_needed_on,
    most_clients,
    plan_as_json,
    plan_lines,
    run_study,
)
from walproof.targets.choose import choose, is_external
from walproof.targets.external import consent


def _names(_ctx: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in studies() if name.startswith(incomplete)]


@cloup.group(cls=Group)
def study() -> None:
    """Published studies, reproduced side by side with their figures."""


@study.command("list")
@opt.json_output
def list_studies(as_json: bool) -> None:
    """The studies there are."""
    listed = [shipped(name)[0] for name in studies()]
    if as_json:
        print_json({"studies": [{"name": s.name, "title": s.title, "source": s.source} for s in listed]})
        return
    table = plain_table("name", ">claims", "what", "source")
    for s in listed:
        table.add_row(s.name, str(len(s.claim)), s.title, s.source)
    console().print(table)
    click.echo("walproof study run NAME --quick runs one in about five minutes on a lab of its own.")


@study.command()
@cloup.argument("name", shell_complete=_names)
@opt.json_output
def show(name: str, as_json: bool) -> None:
    """What a study claims, on which machine, and how it is carried over."""
    declared, story = shipped(name)
    if as_json:
        print_json({**declared.model_dump(mode="json"), "story": story})
        return
    screen = console()
    screen.print(declared.title, style="bold")
    screen.print(declared.source, declared.machine, "", Text(story), sep="\n")
    table = plain_table("claim", "the paper says", "here it is judged on")
    for claim in declared.claim:
        here = "; ".join(note for note in (claim.scaled, claim.accepted) if note) or "the same, on this machine"
        table.add_row(claim.name, f"{claim.says}: {claim.paper}", here)
    screen.print(table)


@study.command()
@cloup.argument("name", shell_complete=_names)
@opt.group(
    "Run",
    opt.flag("--quick", "Within six minutes."),
    opt.option("--budget", "2min", "Measuring time.  [default: as declared]", type=opt.DURATION),
    opt.seed,
    opt.option("--port", "PORT", "First port of its own lab.", type=int, default=6900),
)
@opt.cluster(
    opt.load_image,
    opt.load_pods,
    opt.allow("load, scale, the faults by name where a study has drills"),
    default="a lab of its own",
)
@opt.output(opt.record, opt.dry_run)
def run(
    name: str,
    quick: bool,
    budget: float | None,
    seed: int,
    port: int,
    target: str | None,
    allow: str | None,
    directory: Path | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Run a study, by name or the path of a study.toml."""
    declared = read_study(Path(name)) if name.endswith(".toml") else shipped(name)[0]
    options = StudyOptions(quick, seed, budget)
    allowed = consent.read(allow)
    if dry_run:
        _print_plan(declared, options, target, as_json=as_json)
        return
    if target is not None and is_external(target):
        consent.require("running a study", consents_needed(declared), allowed, without_secrets(target))
    check_writable(directory)
    with (
        _lab(declared, port) if target is None else _given(declared, target, allowed) as chosen,
        Writer(directory, "study") as writer,
    ):
        keep_journal(chosen, writer.directory)
        now = chosen.clock.now
        asked = {"study": declared.name, "quick": quick, "budget_s": budget, "baseline": str(declared.baseline)}
        writer(started("study", asked, at=now(), seed=seed))
        writer(Described(now(), chosen.describe()))
        with progress_bar(quiet=as_json) as show_progress:
            events = run_study(declared, chosen, writer, writer.keep, options, show_progress)
        claims = [event for event in events if isinstance(event, ClaimJudged)]
        writer(Ended(now(), "done"))
    if as_json:
        keys = ("claim", "paper", "measured", "verdict", "why", "caveats")
        judged = [{key: getattr(claim, key) for key in keys} for claim in claims]
        print_json({"record": str(writer.directory), "claims": judged})
    else:
        link = pasted("record: {at:comment}   (walproof report {at:path} --html study.html)", at=writer.directory)
        print_tables(f"{declared.title}: {claims_tally(claims)}.", tables(claim_sections(events)), "", link)


def _print_plan(declared: Study, options: StudyOptions, target: str | None, *, as_json: bool) -> None:
    with closing(choose(target)) if target is not None else nullcontext() as chosen:
        plan = plan_as_json(declared, options, chosen)
        lines = plan_lines(plan, declared, options)
        words = ",".join(plan["consents"])
        means = "; ".join(consent.MEANS[word] for word in plan["consents"])
        print_result(plan, *lines, *([f"needs --allow {words}: {means}"] if words else []), as_json=as_json)


@contextmanager
def _given(declared: Study, target: str, allowed: frozenset[str]) -> Iterator[Target]:
    """The target that was named, once it may be used."""
    with closing(choose(target)) as chosen:
        needed = consents_needed_on(chosen, declared)
        sized = [scenario for part in declared.part for scenario in part.scenarios()] if "scale" in needed else []
        restarts, clients = restarts_forecast(chosen, sized), most_clients(declared)
        consent.check(chosen, "running a study", needed, allowed, clients=clients, beforehand=restarts)
        if restarts:
            console(stderr=True).print(restarts)
        yield chosen


@contextmanager
def _lab(declared: Study, port: int) -> Iterator[Target]:
    """The lab that the study declares, as far as this machine can."""
    needed = declared.lab
    why_not = disk_images.unavailable() if needed.wal_volume else None
    if why_not:
        console(stderr=True).print(f"the WAL stays with the data: {why_not}", style="yellow")
    wal_volume = needed.wal_volume and not why_not
    unlimited = processors.control_groups_unavailable() if needed.cores else None
    if unlimited:
        console(stderr=True).print(f"members share every processor: {unlimited}", style="yellow")
    order = LabOrder(
        name=f"study-{os.getpid()}",
        members=needed.members,
        sync=needed.sync,
        quorum=needed.quorum,
        parameters=dict(needed.parameters),
        port=port,
        cores=None if unlimited else needed.cores,
        disk=Disk("image" if wal_volume else "plain", wal_volume=wal_volume),
    )
    with own_lab(order, print_step, "study") as lab:
        yield lab
