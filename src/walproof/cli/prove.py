"""`walproof prove`: options in, one judged table out. Wires target, record and run; decides nothing about verdicts."""

import json
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from walproof.cli.journals import keep_journal
from walproof.cli.run_options import begun, sigterm_as_ctrl_c, with_options
from walproof.errors import MachineError
from walproof.model.event import Described, DrillDone, DrillStarted, Emit, Ended, Event, FaultChanged, Note
from walproof.model.ports import Target
from walproof.model.topology import route_of
from walproof.model.verdict import Drill
from walproof.proving.as_json import answer_as_json
from walproof.proving.campaign import PlannedDrill, enough, planned
from walproof.proving.conclusion import conclusion, control_sentences
from walproof.proving.faults import CATALOGUE
from walproof.proving.gate import Gate, exceeded, exit_code, gate, junit
from walproof.proving.inject import why_skipped
from walproof.proving.matrix import COLUMNS, matrix
from walproof.proving.options import ProveOptions, RawOptions, check_allowed, parse_options
from walproof.proving.run import Interrupted, Shell, run_drills
from walproof.records.writer import Writer
from walproof.targets.choose import choose

OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("--fault", "What is broken (kill); --dry-run shows each one's story.", "kill,cut,…"),
    ("--levels", "Commit levels (off,on).", "off,on,…"),
    ("--victim", "leader, sync, standby, all-standbys or cluster.", "WHO"),
    ("--writers", "Connections that write (16).", "N"),
    ("--route", "multi-host, haproxy, pgbouncer or direct.", "WORD"),
    ("--repeat", "Drills of each kind (1).", "N"),
    ("--until-bound", "Repeat until clean drills bound the loss probability so.", "5%"),
    ("--storm", "N random faults on random victims, from the seed.", "N"),
    ("--pitfall", "Reproduce a known pitfall, or all.", "P1|all"),
    ("--require", "Exit 1 when a drill exceeds this.", "rpo=0,rto=30s"),
    ("--junit", "Write JUnit XML there.", "FILE"),
    ("--seed", "Seed of every random choice (1).", "N"),
    ("--allow", "Faults allowed on a cluster of yours, by name.", "kill,…"),
)
FLAGS = (
    ("--matrix", "Level × fault: the manual's table, by experiment."),
    ("--quick", "With --matrix: one drill a cell."),
)


@click.command()
@with_options(OPTIONS, FLAGS)
@click.option(
    "--target", metavar="WHERE", default=None, help="The lab when not said; pretend; a target file, URL or DSN."
)
@click.option("--record", metavar="DIR", default=None, help="Where to write the record.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def prove(target: str | None, record: str | None, as_json: bool, dry_run: bool, **words: Any) -> int:
    """What each commit level survives: real faults against a ledger of acknowledged commits."""
    if words.get("pitfall"):
        return _pitfalls(words, Path(record) if record else None, as_json=as_json)
    question = parse_options(words)
    limits = gate(str(words["require"])) if words.get("require") else None
    planned(question)
    junit_file = _writable(words.get("junit"))
    place = choose(target)
    route_of(place.routes(), question.route)
    if place.external:
        check_allowed(question)
    if dry_run:
        click.echo("\n".join(said_beforehand(question, place)))
        return 0
    with Writer(Path(record) if record else None, "prove") as writer, sigterm_as_ctrl_c():
        keep_journal(place, writer.directory)
        drills, interrupted, events = _campaign(question, place, writer, words, quiet=as_json)
    if junit_file:
        junit_file.write_text(junit(drills, limits), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(answer_as_json(question, drills, str(writer.directory), limits)))
    else:
        _show(question, drills, events, limits, str(writer.directory))
    return 130 if interrupted else exit_code(drills, limits)


def _pitfalls(words: RawOptions, record: Path | None, *, as_json: bool) -> int:
    """`--pitfall`: each on a lab of its own making, judged into a record."""
    from walproof.studies.pitfalls import catalogue, run

    wanted, seed = catalogue.pitfalls(str(words["pitfall"])), parse_options(words).seed
    with Writer(record, "pitfalls") as writer, sigterm_as_ctrl_c():
        writer(begun("prove", words, at=time.time(), seed=seed))
        runs, interrupted = run.reproduce(wanted, writer, lambda text: click.echo(text, err=True))
    if as_json:
        found = [run.as_dict(one) for one in runs]
        click.echo(json.dumps({"record": str(writer.directory), "pitfalls": found}))
    else:
        click.echo(f"{run.as_text(runs, len(wanted))}\nrecord: {writer.directory}")
    return 130 if interrupted else run.exit_code(runs)


def _campaign(
    question: ProveOptions, place: Target, writer: Writer, words: RawOptions, *, quiet: bool
) -> tuple[list[Drill], bool, list[Event]]:
    """Run every drill into the record; (drills, whether Ctrl-C ended it, every event)."""
    events: list[Event] = []
    clock = place.clock

    def emit(event: Event) -> None:
        events.append(event)
        writer(event)
        if not quiet:
            _tell(event)

    emit(begun("prove", words, at=clock.now(), seed=question.seed))
    emit(Described(clock.now(), place.describe()))
    shell = Shell(place, emit, writer.keep, question.seed)
    drills, interrupted = _conducted(shell, question, emit)
    for sentence in control_sentences(drills):
        emit(Note(clock.now(), sentence))
    emit(Ended(clock.now(), "interrupted" if interrupted else "done"))
    return drills, interrupted, events


def _conducted(shell: Shell, question: ProveOptions, emit: Emit) -> tuple[list[Drill], bool]:
    clock = shell.target.clock
    start = clock.now()
    try:
        return run_drills(
            shell, _plan(question, shell.target), enough=lambda so_far: enough(question, so_far, clock.now() - start)
        ), False
    except Interrupted as stopped:
        emit(Note(shell.target.clock.now(), "interrupted: the cluster was healed first"))
        return stopped.drills, True


def _plan(question: ProveOptions, place: Target) -> list[PlannedDrill]:
    return planned(question, [name for name, fault in CATALOGUE.items() if why_skipped(place, fault) is None])


def _writable(name: object) -> Path | None:
    """The file to write later; MachineError now when it cannot be."""
    if not name:
        return None
    path = Path(str(name))
    try:
        path.touch()
    except OSError as wrong:
        raise MachineError(f"{path} cannot be written: {wrong.strerror}", "choose another --junit FILE") from None
    return path


def _tell(event: Event) -> None:
    """One line of progress on standard error."""
    match event:
        case DrillStarted():
            text = f"drill {event.number}: {event.fault} at {event.level}"
        case FaultChanged():
            who = ", ".join(event.members)
            text = f"  {event.fault}: {'healed' if event.cleared else 'in effect'} on {who}"
        case DrillDone():
            text = f"  {event.drill.verdict.mark} {event.drill.why}"
        case _:
            return
    click.echo(text, err=True)


def said_beforehand(question: ProveOptions, place: Target) -> list[str]:
    """What would be done, fault by fault with its story, and what this target cannot do."""
    plan = _plan(question, place)
    lines = [f"{len(plan)} drills on {place.name} with {question.writers} writers over {question.route}:"]
    for fault in dict.fromkeys(drill.fault for drill in plan):
        mine = [drill for drill in plan if drill.fault is fault]
        victims = ", ".join(dict.fromkeys(str(drill.victim) for drill in mine))
        levels = ", ".join(dict.fromkeys(str(drill.level) for drill in mine))
        lines.append(f"  {fault.name} on {victims}, {len(mine)} × at {levels}")
        lines.append(f"    happens:  {fault.story.happens}")
        lines.append(f"    promised: {fault.story.promises}")
        lines.append(f"    recovers: {fault.story.recovers}")
        skipped = why_skipped(place, fault)
        if skipped:
            lines.append(f"    skipped, because {skipped}")
    return lines


def _show(question: ProveOptions, drills: list[Drill], events: list[Event], limits: Gate | None, record: str) -> None:
    from walproof.reporting.terminal import prove_tables

    console = Console()
    console.print(conclusion(drills), style="bold", highlight=False)
    for part in prove_tables(events):
        console.print(part)
    if question.matrix:
        console.print(_matrix_table(question, drills))
    for drill in drills:
        over = exceeded(limits, drill) if limits else ""
        if over:
            console.print(f"drill {drill.number} exceeds the requirement: {over}", style="red", highlight=False)
    console.print(f"record: {record}", highlight=False)


def _matrix_table(question: ProveOptions, drills: list[Drill]) -> Table:
    table = Table(title="what a commit survives: ✔ kept  ✘ lost  ? undecided; (✔) what the manual promises")
    table.add_column("level")
    for _, heading, _ in COLUMNS:
        table.add_column(heading)
    for level, row in matrix(drills, question.levels).items():
        cells = [f"{c.mark} ({'✔' if c.promised else '✘'})\n{c.evidence}" for c in row.values()]
        table.add_row(str(level), *cells)
    return table
