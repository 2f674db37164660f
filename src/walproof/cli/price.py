"""`walproof price`: options in, one priced table out. Opens target, record and run, and prints the answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import keep_journal, kept_files, progress_bar, started
from walproof.errors import ExitCode, UsageError
from walproof.links.round_trips import shipped
from walproof.load.workload_options import code_in
from walproof.machine.redaction import in_text, without_secrets
from walproof.model.event import Described, Ended, Event, SampleDone
from walproof.model.ports import Target
from walproof.model.sample import Workload
from walproof.pricing.command import (
    PriceResult,
    check_target,
    consents_needed,
    dry_run_lines,
    question_as_json,
    restarts_forecast,
    result_as_json,
    result_lines,
    run_command,
)
from walproof.pricing.options import PriceOptions, parse_options
from walproof.pricing.results_and_gate import Required, exit_code, required, required_as_json
from walproof.pricing.sampling import Bench
from walproof.records.layout import FILES
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.reporting.console_output import console, print_json, print_result, print_tables
from walproof.targets.choose import choose, is_external
from walproof.targets.external import consent

ANEW = {"budget", "precision", "allow", "require"}
"""Options that a resumed run takes anew; all others are its record's."""
_OURS = ("target", "allow")
"""What a record says of these holds for the run that wrote it alone: the record may be a stranger's."""


@cloup.command(cls=Command)
@opt.group(
    "Compare",
    opt.words("--levels", "off,local,on", "Commit levels.  [default: all five]"),
    opt.words("--clients", "1,16", "Numbers of clients.  [default: 1,16]"),
    opt.option("--baseline", "LEVEL", "The level others are divided by.  [default: local]"),
    opt.words("--mix", "on=10,local=90", "One run with weights per level."),
    opt.ratios_required,
    opt.flag("--aa", "Run the baseline against itself: its interval must cover 1."),
)
@opt.group(
    "Scenarios",
    opt.words("--quorum", "any1,first1,all", "Quorums: anyK, firstK, all."),
    opt.words("--mode", "WORD,…", "Without enough standbys of --quorum: strict waits, degrading goes on."),
    opt.words("--rtt", "0,3ms,10ms", "Round trips between members."),
    opt.words("--regions", "NAME,…", "Named maps of regions."),
    opt.words("--cpu", "1,2", "Processors per member: of a lab, or of pods."),
    opt.words("--memory", "1Gi,4Gi", "Memory per member: of pods."),
    opt.words("--wal-volume", "on,off", "WAL on its own volume: on, off."),
    opt.words("--fsync", "on,off", "fsync: on, off."),
)
@opt.group(
    "Load",
    *opt.workload,
    opt.option(
        "--driver", "COMMAND", "pgbench, sysbench, or a program whose last line is `tps 1234.5`.  [default: pgbench]"
    ),
    opt.option("--tables", "existing", "Use the target's own database and the tables it has."),
    opt.option("--route", "WORD", "direct, multi-host, haproxy or pgbouncer.  [default: direct]"),
    opt.option("--pool", "N", "The pool size of a lab's PgBouncer."),
    opt.words("--load", "0.5,0.8", "Open loop at these fractions of measured capacity."),
    opt.option("--rate", "TPS", "Offer at most this many transactions per second."),
    opt.option("--max-clients", "N", "Never more clients than this."),
)
@opt.group(
    "Time and precision",
    opt.option("--precision", "3%", "Stop when every ratio is within ± this share.  [default: 3%]"),
    opt.option("--budget", "2min", "Stop after this time of measuring.  [default: 2min]"),
    opt.option("--steady", "N", "Measure N whole checkpoint cycles, however long they take, in place of --budget."),
    opt.option("--soak", "30min", "One level, or two alternately, for this long; every second is kept."),
    opt.option("--sample", "2s", "Length of one sample.  [default: chosen by the budget]"),
    opt.option("--seed", "N", "Seed of every random choice.  [default: 1]"),
)
@opt.group(
    "Search and predict",
    opt.flag("--tune", "Search for the largest throughput of a level under --limit."),
    opt.option("--limit", "10ms", "Latency limit (p95) of --tune."),
    opt.option("--level", "LEVEL", "Level that --tune tunes.  [default: on]"),
    opt.flag("--break-even", "Search for the clients at which each level reaches 99 % of the baseline's peak."),
    opt.words("--predict", "CLIENTS@RTT,…", "Clients and round trip to predict from what was measured."),
    opt.flag("--hold-out", "Report the prediction's error on points it was not shown."),
)
@opt.cluster(opt.load_image, opt.load_pods, opt.allow("load, config, scale, not-in-effect"))
@opt.output(opt.record, opt.option("--resume", "RECORD", "Continue a record with the question it holds."), opt.dry_run)
def price(
    target: str | None, directory: Path | None, resume: str | None, as_json: bool, dry_run: bool, **raw: Any
) -> ExitCode:
    """What each commit level costs, with honest error bars."""
    if resume and directory:
        raise UsageError("--resume cannot be used with --record", "leave one of them out")
    earlier: tuple[Event, ...] = ()
    if resume:
        earlier, raw, target = _resumed(Path(resume), raw, target)
    options = parse_options(raw)
    workload = options.grid.arms[0].workload
    if resume:
        _same_files(Path(resume), workload)
    chosen = choose(target)
    if options.relative_scale:
        options = options.scaled(chosen.describe())
        raw["scale"] = options.grid.arms[0].workload.scale
    restarts = restarts_forecast(chosen, options.question().scenarios)
    if dry_run:
        _print_plan(chosen, options, restarts, as_json=as_json)
        return ExitCode.HELD
    allowed = consent.read(raw.get("allow"))
    clients = max(arm.clients for arm in options.grid.arms)
    consent.check(chosen, "pricing", consents_needed(options), allowed, clients=clients, beforehand=restarts)
    check_target(chosen, options, allowed)
    with (
        Writer(Path(resume) if resume else directory, "price", resume=bool(resume)) as writer,
        progress_bar(quiet=as_json) as show_progress,
    ):
        keep_journal(chosen, writer.directory)
        for kept, name in kept_files(workload):
            writer.keep(kept, Path(name).read_text("utf-8"))
        bench = Bench(chosen, writer, options.grid.seed, earlier)
        if not resume:
            asked = {**raw, "baseline": raw.get("baseline") or "local", "target": without_secrets(target or "lab")}
            bench.emit(started("price", asked, at=bench.now(), seed=bench.seed))
        bench.emit(Described(bench.now(), chosen.describe()))
        _tell(bench, restarts)
        result = run_command(bench, options, show_progress)
        bench.emit(Ended(bench.now(), str(result.stopped_by)))
    answers = required(options.requirements, result.table)
    if as_json:
        decided = {"requirements": required_as_json(answers)} if answers else {}
        print_json({**result_as_json(result, str(writer.directory)), **decided})
    else:
        _print_result(result, bench.events, str(writer.directory), [one.text for one in answers])
    return _ended(result, bench.events, answers)


def _ended(result: PriceResult, events: Sequence[Event], answers: Sequence[Required]) -> ExitCode:
    if result.stopped_by == "interrupted":
        return ExitCode.INTERRUPTED
    if result.table.left_out and not any(isinstance(event, SampleDone) for event in events):
        return ExitCode.ENVIRONMENT
    undecided = result.table.not_in_effect or not (result.table.arms or result.parts)
    return ExitCode.UNDECIDED if undecided else exit_code(answers)


def _print_plan(target: Target, options: PriceOptions, restarts: str, *, as_json: bool) -> None:
    question = options.question(len(target.observe().standbys))
    costs = {"restarts": restarts} if restarts else {}
    tree = {"dry_run": True, "target": target.name, **question_as_json(question), **costs}
    print_result(tree, *dry_run_lines(options, question, target.name), *costs.values(), as_json=as_json)


def _tell(bench: Bench, restarts: str) -> None:
    """What restarts will cost, before the first: on standard error, and in the record."""
    if restarts:
        console(stderr=True).print(restarts)
        bench.note(restarts)


def _same_files(record: Path, workload: Workload) -> None:
    """UsageError where a file is not the one that the record measured and keeps."""
    for kept, name in kept_files(workload):
        path = record / FILES / kept
        if path.is_file() and path.read_text("utf-8") != in_text(Path(name).read_text("utf-8")):
            raise UsageError(f"{name} has changed since it was measured", f"{path} is the one measured; or start anew")


def _resumed(
    record: Path, raw: dict[str, Any], target: str | None
) -> tuple[tuple[Event, ...], dict[str, Any], str | None]:
    """Events and question of a record; only the options ANEW may be given anew."""
    earlier = read(record)
    first = earlier.started
    if first is None or first.verb != "price":
        raise UsageError(f"{record} holds no price run to continue", "give the directory that `walproof price` named")
    recorded = {k: v for k, v in first.question.items() if k not in _OURS}
    anew = {k for k, v in raw.items() if v not in (None, False) and (k in ANEW or v != recorded.get(k))}
    if anew - ANEW:
        fixed = ", ".join("--" + k.replace("_", "-") for k in sorted(anew - ANEW))
        raise UsageError(f"{fixed} cannot be changed with --resume", "leave it out, or start anew")
    for name in code_in(recorded):
        if raw.get(name) is None:
            raise UsageError(
                f"the record's --{name} is run as your own code, and a record may be a stranger's: {recorded[name]!r}",
                f"read what it does, then give it again: --{name} …",
            )
    maps = [name.strip() for name in str(recorded.get("regions") or "").split(",")]
    if not {*maps, ""} <= {*shipped(), ""} and raw.get("regions") is None:
        raise UsageError(
            f"the record's --regions names a file here, and a record may be a stranger's: {recorded['regions']!r}",
            "give it again: --regions …",
        )
    question = {**raw, **recorded, **{k: raw[k] for k in anew}}
    return earlier.events, question, _same_target(str(first.question.get("target") or "lab"), target)


def _same_target(recorded: str, given: str | None) -> str | None:
    """The target of a resumed run: an external cluster is named anew, for the record holds no password."""
    if given is None and is_external(recorded):
        raise UsageError(f"the record is of {recorded} and holds no password", "give its --target again")
    if given is not None and without_secrets(given) != recorded:
        raise UsageError(f"the record is of {recorded}, not of {without_secrets(given)}", "give the same --target")
    return given or (None if recorded == "lab" else recorded)


def _print_result(result: PriceResult, events: list[Event], record: str, answers: list[str]) -> None:
    from walproof.reporting.record_outline import results
    from walproof.reporting.terminal import tables

    first, *others = result_lines(result)
    last = f"stopped by {result.stopped_by}; record: {record}"
    print_tables(first, tables(results(events, result.table)), *others, *answers, last)
