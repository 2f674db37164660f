"""`walproof prove`: options in, one judged table out. Opens target, record and run, and prints the verdicts."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import cloup
from rich.text import Text

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.prove_salvage import check_salvage, salvage_of_drills
from walproof.cli.runs import keep_journal, kept_files, started
from walproof.errors import ExitCode, MachineError, TargetError, UsageError
from walproof.load.workload_options import is_relative, scale_on
from walproof.machine.untrusted import field
from walproof.model.drill import Capability, Drill
from walproof.model.event import Described, DrillDone, DrillStarted, Emit, Ended, Event, FaultChanged, LoadSeen, Note
from walproof.model.junit import junit
from walproof.model.load import connections
from walproof.model.ports import Target
from walproof.model.salvage import SalvageJudged
from walproof.model.topology import route_of
from walproof.model.units import counted
from walproof.proving.campaign import PlannedDrill, consents_needed, enough, fewest, planned, planned_clauses
from walproof.proving.campaign_results import answer_as_json, conclusion, control_sentences
from walproof.proving.faults import CATALOGUE
from walproof.proving.gate import Gate, cases, exceeded, exit_code, gate
from walproof.proving.inject import HELD_ALONE_S, happens_here, no_takeover, why_skipped
from walproof.proving.options import ProveOptions, RawOptions, parse_options
from walproof.proving.own_load import prepare
from walproof.proving.return_order import orders
from walproof.proving.run import Interrupted, Shell, run_drills, shrink_storms
from walproof.records.writer import Writer
from walproof.reporting.console_output import print_json, print_result, print_tables, write_file
from walproof.targets.choose import choose
from walproof.targets.external import consent


@cloup.command(cls=Command)
@opt.group(
    "Drills",
    opt.words("--fault", "kill,partition,…", "What fails; --dry-run describes each.  [default: kill]"),
    opt.words("--levels", "off,on,…", "Commit levels.  [default: off,on]"),
    opt.option("--victim", "WHO", "leader, sync, standby, all-standbys or cluster.  [default: the fault's]"),
    opt.option(
        "--return-order", "all|n2,n1", "After a loss of all members: who comes back first, next …; or every order."
    ),
    opt.option("--repeat", "N", "Drills of each kind.  [default: 1]"),
    opt.option("--until-bound", "5%", "Repeat until clean drills bound the loss probability by this."),
    opt.option("--storm", "N", "N storms of faults that overlap, many just after a takeover."),
    opt.option("--storm-faults", "K", "Faults of each storm.  [default: 4]"),
    opt.option("--shrink", "R", "Storms tried to find the fewest faults that break.  [default: 8]"),
    opt.flag("--matrix", "Level × fault: documented guarantees, by experiment."),
    opt.flag("--quick", "With --matrix: one drill per cell."),
    opt.words("--pitfall", "P1|all", "A known pitfall, or all, on a lab of its own; K1 … on --target cnpg:…"),
    opt.option("--seed", "N", "Seed of every random choice.  [default: 1]"),
    opt.flag(
        "--salvage", "On a lab: find each lost commit on the old leader's disk (walproof salvage); exit 1 if not."
    ),
)
@opt.group(
    "Load",
    opt.option("--writers", "N", "Connections that write.  [default: 16]"),
    opt.option("--route", "WORD", "multi-host, haproxy, pgbouncer or direct.  [default: multi-host]"),
    opt.option("--client-timeout", "3s", "A writer tries another server after so long.  [default: 3s]"),
)
@opt.group(
    "Your own transactions beside the writers: load, no part of the verdict",
    *opt.workload,
    opt.option("--clients", "N", "Clients of --workload.  [default: 4]"),
)
@opt.cluster(opt.load_image, opt.load_pods, opt.allow("load, and the faults by name"))
@opt.output(
    opt.words("--require", "rpo=0,rto=30s", "Exit 1 when a drill exceeds this."),
    opt.junit,
    opt.record,
    opt.dry_run,
)
def prove(target: str | None, directory: Path | None, as_json: bool, dry_run: bool, **raw: Any) -> ExitCode:
    """What each commit level survives: real faults against a ledger of acknowledged commits."""
    if raw.get("pitfall"):
        return _pitfalls(raw, directory, target, as_json=as_json, dry_run=dry_run)
    options = parse_options(raw)
    allowed = consent.read(raw.get("allow"))
    limits = gate(str(raw["require"])) if raw.get("require") else None
    planned(options)
    if raw["junit"] == "-" and as_json:
        raise UsageError("only one thing can go to standard output", "name a file for --junit")
    junit_file = _writable(raw["junit"])
    chosen = choose(target)
    options = _with_workload(options, raw, chosen)
    options = _with_orders(options, raw, chosen)
    if options.salvage:
        check_salvage(chosen)
    route = route_of(chosen.routes(), options.route)
    plan = _plan(options, chosen)
    if dry_run:
        print_result(_plan_json(options, plan, chosen), *_plan_lines(options, plan, chosen), as_json=as_json)
        return ExitCode.HELD
    made = dict.fromkeys(f"{d.fault.name}: {why}" for d in plan if (why := no_takeover(chosen, d.fault, d.victim)))
    beforehand = "; ".join(made)
    hosts = 0
    with suppress(TargetError):  # a simulated cluster has no address
        hosts = len(chosen.endpoint(route.name).hosts)
    clients = connections(options.writers, route, hosts)
    clients += options.own_load.clients if options.own_load else 0
    consent.check(chosen, "proving", consents_needed(plan), allowed, clients=clients, beforehand=beforehand)
    with Writer(directory, "prove") as writer, closing(chosen):
        keep_journal(chosen, writer.directory)
        for kept, name in kept_files(options.own_load.workload) if options.own_load else ():
            writer.keep(kept, Path(name).read_text("utf-8"))
        drills, interrupted, events = _campaign(options, chosen, writer, raw, quiet=as_json)
    salvages = [event for event in events if isinstance(event, SalvageJudged)]
    if as_json:
        kinds = {"load": LoadSeen, "salvage": SalvageJudged}
        seen = {name: [asdict(event) for event in events if isinstance(event, kind)] for name, kind in kinds.items()}
        told = {name: some for name, some in seen.items() if some}
        print_json(answer_as_json(options, drills, str(writer.directory), limits) | told)
    elif junit_file != "-":
        _print_answer(drills, events, limits, str(writer.directory))
    if junit_file:
        write_file(
            junit_file,
            junit("walproof prove", cases(drills, limits, salvages)),
            "the record holds the verdicts; name another --junit FILE",
        )
    return ExitCode.INTERRUPTED if interrupted else exit_code(drills, limits, salvages)


def _with_workload(options: ProveOptions, raw: RawOptions, target: Target) -> ProveOptions:
    """With the workload's scale as the number it is on that target; UsageError where it runs no workload."""
    arm = options.own_load
    if arm is None:
        return options
    if why := target.capabilities().why_not(Capability.WORKLOAD):
        raise UsageError(f"{target.name} runs no --workload: {why}", "leave --workload out, or use the lab")
    if is_relative(raw):
        arm = replace(arm, workload=replace(arm.workload, scale=scale_on(target.describe(), str(raw["scale"]))))
    return replace(options, own_load=arm)


def _with_orders(options: ProveOptions, raw: RawOptions, target: Target) -> ProveOptions:
    """A drill for each order of --return-order; UsageError where members come back by themselves."""
    if not raw.get("return_order"):
        return options
    if reason := target.capabilities().why_not(Capability.RETURN_ORDER):
        raise UsageError(f"{target.name} has no --return-order: {reason}", "leave it out")
    return replace(options, return_orders=orders(str(raw["return_order"]), target.describe().members))


def _pitfalls(raw: RawOptions, directory: Path | None, target: str | None, *, as_json: bool, dry_run: bool) -> ExitCode:
    """`--pitfall`: each on a lab of its own making; with a target those of its manager, on that cluster."""
    from walproof.studies.pitfalls import catalogue

    text, seed = str(raw["pitfall"]), parse_options(raw).seed
    wanted: Sequence[catalogue.Pitfall] | Sequence[catalogue.TargetPitfall]
    chosen, consents = None, list[str]()
    if target is None:
        wanted = catalogue.pitfalls(text)
        runs = catalogue.run_all(wanted, _on_stderr)
    else:
        wanted = catalogue.target_pitfalls(text)
        chosen = choose(target)
        able = chosen.capabilities().pitfalls
        if not able:
            raise UsageError(
                f"{chosen.name} has no pitfalls of its own", "leave --target and --lab out, or cnpg:NAMESPACE/NAME"
            )
        consents = [word for pitfall in wanted for word in pitfall.consents]
        runs = catalogue.run_on_target(able, wanted, _on_stderr)
    if dry_run:
        tree = {"dry_run": True, "pitfalls": [{"number": p.number, "title": p.title} for p in wanted]}
        first = f"{counted(len(wanted), 'pitfall')} on {chosen.name if chosen else 'a lab of its own'}:"
        print_result(tree, first, *(f"  {p.number} {p.title}" for p in wanted), as_json=as_json)
        return ExitCode.HELD
    if chosen is not None:
        consent.check(chosen, "reproducing pitfalls", consents, consent.read(raw.get("allow")))
    with Writer(directory, "pitfalls") as writer, closing(chosen) if chosen else nullcontext():
        if chosen is not None:
            keep_journal(chosen, writer.directory)
        writer(started("prove", raw, at=time.time(), seed=seed))
        outcomes, interrupted = catalogue.reproduce(runs, writer)
    tree = {"record": str(writer.directory), "pitfalls": [catalogue.as_dict(one) for one in outcomes]}
    print_result(tree, *catalogue.as_lines(outcomes, len(wanted)), f"record: {writer.directory}", as_json=as_json)
    return ExitCode.INTERRUPTED if interrupted else catalogue.exit_code(outcomes)


def _on_stderr(text: str) -> None:
    click.echo(field(text), err=True)


def _campaign(
    options: ProveOptions, target: Target, writer: Writer, raw: RawOptions, *, quiet: bool
) -> tuple[list[Drill], bool, list[Event]]:
    """Run every drill into the record; (drills, whether Ctrl-C ended it, every event)."""
    events: list[Event] = []
    clock = target.clock

    def emit(event: Event) -> None:
        events.append(event)
        writer(event)
        if not quiet:
            _print_event(event)

    emit(started("prove", raw, at=clock.now(), seed=options.seed))
    emit(Described(clock.now(), target.describe()))
    with salvage_of_drills(target, writer.directory, asked=options.salvage) as salvage:
        shell = Shell(target, emit, writer.keep, options.seed, options.own_load, salvage)
        drills, interrupted = _conducted(shell, options, emit)
    for sentence in control_sentences(drills):
        emit(Note(clock.now(), sentence))
    emit(Ended(clock.now(), "interrupted" if interrupted else "done"))
    return drills, interrupted, events


def _conducted(shell: Shell, options: ProveOptions, emit: Emit) -> tuple[list[Drill], bool]:
    clock = shell.target.clock
    plan = _plan(options, shell.target)
    prepare(shell.target, options.own_load)
    start = clock.now()
    try:
        drills = run_drills(shell, plan, enough=lambda so_far: enough(options, so_far, clock.now() - start))
        return [*drills, *shrink_storms(shell, plan, drills, options.shrink)], False
    except Interrupted as stopped:
        emit(Note(shell.target.clock.now(), "interrupted: every fault was cleared first"))
        return stopped.drills, True


def _plan(options: ProveOptions, target: Target) -> list[PlannedDrill]:
    return planned(options, [name for name, fault in CATALOGUE.items() if why_skipped(target, fault) is None])


def _writable(name: str | None) -> str | None:
    """The file to write later; MachineError now when it cannot be."""
    try:
        if name and name != "-":
            Path(name).touch()
    except OSError as wrong:
        raise MachineError(f"{name} cannot be written: {wrong.strerror}", "choose another --junit FILE") from None
    return name


def _print_event(event: Event) -> None:
    """One line of progress on standard error."""
    match event:
        case DrillStarted():
            text = f"drill {event.number}: {event.fault} at {event.level}"
        case FaultChanged():
            who = ", ".join(event.members)
            text = f"  {event.fault}: {'cleared' if event.cleared else 'in effect'} on {who}"
        case DrillDone():
            text = f"  {event.drill.verdict.mark} {event.drill.why}"
        case LoadSeen() | SalvageJudged():
            text = f"  {event.text}"
        case _:
            return
    click.echo(field(text), err=True)


def _plan_lines(options: ProveOptions, plan: Sequence[PlannedDrill], target: Target) -> list[str]:
    """What would be done, fault by fault with its story, and what this target cannot do."""
    writers = f"with {counted(options.writers, 'writer')} over {options.route}"
    arm = options.own_load
    beside = f", and {counted(arm.clients, 'client')} of {arm.workload.text} beside them" if arm else ""
    beside += ", each lost commit looked for on the old leader's disk" if options.salvage else ""
    lines = [f"{counted(len(plan), 'drill')} on {target.name} {writers}{beside}:"]
    for fault in dict.fromkeys(drill.fault for drill in plan):
        drills = [drill for drill in plan if drill.fault is fault]
        victims = ", ".join(dict.fromkeys(str(drill.victim) for drill in drills))
        levels = ", ".join(dict.fromkeys(str(drill.level) for drill in drills))
        lines.append(f"  {fault.name} on {victims}, {len(drills)} × at {levels}")
        lines.append(f"    happens:  {happens_here(target, fault) or fault.story.happens}")
        lines.append(f"    promised: {fault.story.promises}")
        lines.append(f"    recovers: {fault.story.recovers}")
        if why := next((why for drill in drills if (why := no_takeover(target, fault, drill.victim))), ""):
            lines.append(f"    no RTO:   {why}; held for {HELD_ALONE_S:g} s")
        lines += [f"    back:     {', '.join(order)}" for order in options.return_orders if order]
        skipped = why_skipped(target, fault)
        if skipped:
            lines.append(f"    skipped, because {skipped}")
    for drill in (drill for drill in plan if drill.storm):
        lines.append(f"  drill {drill.number} at {drill.level}:")
        lines += [f"    {clause}" for clause in planned_clauses(drill.storm)]
    return lines


def _plan_json(options: ProveOptions, plan: Sequence[PlannedDrill], target: Target) -> dict[str, Any]:
    """What `--dry-run --json` prints: every drill, and why the target would skip it."""
    return {
        "dry_run": True,
        "target": target.name,
        "writers": options.writers,
        "route": options.route,
        "workload": options.own_load and options.own_load.workload.text,
        "clients": options.own_load and options.own_load.clients,
        "salvage": options.salvage,
        "drills": [
            {
                "fault": d.fault.name,
                "victim": d.victim,
                "level": d.level,
                "skipped": why_skipped(target, d.fault),
                "storm": planned_clauses(d.storm),
                "return_order": d.return_order,
                "no_rto": no_takeover(target, d.fault, d.victim) or None,
            }
            for d in plan
        ],
    }


def _print_answer(drills: list[Drill], events: list[Event], limits: Gate | None, record: str) -> None:
    from walproof.reporting.record_outline import results
    from walproof.reporting.terminal import tables

    over = {drill.number: exceeded(limits, drill) for drill in drills} if limits else {}
    exceeding = (Text(f"drill {n} exceeds the requirement: {why}", "red") for n, why in over.items() if why)
    least = [smallest] if (smallest := fewest(drills)) else []
    seen = (event.text for event in events if isinstance(event, LoadSeen | SalvageJudged))
    print_tables(conclusion(drills), tables(results(events)), *seen, *exceeding, *least, f"record: {record}")
