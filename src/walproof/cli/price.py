"""`walproof price`: options in, one priced table out. Wires target, record and run; decides nothing about prices."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from walproof.cli.journals import keep_journal
from walproof.cli.progress import progress_bar
from walproof.cli.run_options import begun, sigterm_as_ctrl_c, with_options
from walproof.errors import UsageError
from walproof.model.event import Described, Ended, Event
from walproof.pricing.bench import Bench
from walproof.pricing.command import (
    PriceResult,
    check_target,
    consents_needed,
    dry_run_lines,
    result_as_json,
    result_lines,
    run_command,
)
from walproof.pricing.options import RawOptions, parse_options
from walproof.records.layout import FORMAT
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.targets.choose import choose
from walproof.targets.external import consent

WIDE = 140
"""Columns of a table that goes into a file or a pipe."""
OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("--levels", "Commit levels, all five when not said.", "off,local,on"),
    ("--clients", "Numbers of clients.", "1,16"),
    ("--baseline", "The level others are divided by (local).", "LEVEL"),
    ("--quorum", "Quorums: anyK, firstK, all.", "any1,first1,all"),
    ("--rtt", "Round trips between members.", "0,3ms,10ms"),
    ("--regions", "Named region plans of the wire.", "NAME,…"),
    ("--cpu", "Processors per member.", "1,2"),
    ("--workload", "tpcb-like, select-only, simple-update, insert, batch:N or a pgbench script.", "WORD"),
    ("--scale", "pgbench's scale (20).", "N"),
    ("--route", "direct, multi-host, haproxy or pgbouncer.", "WORD"),
    ("--pool", "PgBouncer's pool size.", "N"),
    ("--wal-volume", "WAL on its own volume: on, off.", "on,off"),
    ("--fsync", "fsync: on, off.", "on,off"),
    ("--mix", "One run with weights per level.", "on=10,local=90"),
    ("--load", "Open loop at these fractions of measured capacity.", "0.5,0.8"),
    ("--rate", "Offer at most this many transactions per second.", "TPS"),
    ("--max-clients", "Never more clients than this.", "N"),
    ("--sample", "Length of one sample; chosen by the budget when not said.", "2s"),
    ("--precision", "Stop when every ratio is within ± this share (3%).", "3%"),
    ("--budget", "Stop after this time of measuring (2min).", "2min"),
    ("--seed", "Seed of every random choice (1).", "N"),
    ("--limit", "Latency limit (p95) of --tune.", "10ms"),
    ("--level", "Level that --tune tunes (on).", "LEVEL"),
    ("--predict", "Clients and round trip to predict from what was measured.", "CLIENTS@RTT,…"),
    ("--allow", "Consent on a cluster of yours: load, config; and not-in-effect.", "WORD,…"),
)
FLAGS = (
    ("--aa", "Run the baseline against itself: its interval must cover 1."),
    ("--tune", "Search for the largest throughput of a level under --limit."),
    ("--break-even", "Search for the clients at which each level reaches 99 % of local's peak."),
    ("--hold-out", "Report the prediction's error on points it was not shown."),
)


@click.command()
@with_options(OPTIONS, FLAGS)
@click.option(
    "--target", metavar="WHERE", default=None, help="The lab when not said; pretend; a target file, URL or DSN."
)
@click.option("--record", metavar="DIR", default=None, help="Where to write the record.")
@click.option("--resume", metavar="RECORD", default=None, help="Continue a record with the question it holds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def price(target: str | None, record: str | None, resume: str | None, as_json: bool, dry_run: bool, **raw: Any) -> int:
    """What each commit level costs, with honest error bars."""
    if resume and record:
        raise UsageError("--resume continues a record, so --record has no place beside it", "leave one of them out")
    earlier: tuple[Event, ...] = ()
    if resume:
        earlier, raw, target = _resumed(Path(resume), raw, target)
    options = parse_options(raw)
    place = choose(target)
    if dry_run:
        click.echo("\n".join(dry_run_lines(options, place)))
        return 0
    allowed = consent.read(raw.get("allow"))
    check_target(place, options, allowed)
    if place.external:
        consent.require("pricing", consents_needed(options), allowed, place.name)
    where = Path(resume) if resume else (Path(record) if record else None)
    with (
        Writer(where, "price", resume=bool(resume)) as writer,
        sigterm_as_ctrl_c(),
        progress_bar(Console(stderr=True), quiet=as_json) as tell,
    ):
        keep_journal(place, writer.directory)
        bench = Bench(place, writer, options.grid.seed, earlier)
        if not resume:
            bench.emit(begun("price", {**raw, **_defaults(raw, target)}, at=bench.now(), seed=bench.seed))
        bench.emit(Described(bench.now(), place.describe()))
        result = run_command(bench, options, tell)
        bench.emit(Ended(bench.now(), str(result.stopped_by)))
    _show(result, bench.events, str(writer.directory), as_json=as_json)
    if result.stopped_by == "interrupted":
        return 130
    return 0 if result.table.arms or result.parts else 4


def _defaults(raw: RawOptions, target: str | None) -> dict[str, Any]:
    return {"baseline": raw.get("baseline") or "local", "target": target or "lab"}


def _resumed(
    record: Path, raw: dict[str, Any], target: str | None
) -> tuple[tuple[Event, ...], dict[str, Any], str | None]:
    """Events and question of a record; --budget, --precision and --allow may be said anew, other words may not."""
    found = read(record)
    first = found.started
    if first is None or first.verb != "price":
        raise UsageError(f"{record} holds no price run to continue", "give the directory that `walproof price` named")
    if found.format > FORMAT:
        raise UsageError(
            f"{record} was written by a newer walproof (format {found.format}; this one writes {FORMAT})",
            "continue it with that walproof, or start anew",
        )
    anew = {k for k, v in raw.items() if v not in (None, False)}
    if anew - {"budget", "precision", "allow"}:
        spoken = ", ".join("--" + k.replace("_", "-") for k in sorted(anew - {"budget", "precision", "allow"}))
        raise UsageError(
            f"a resumed run keeps its own question, so {spoken} cannot change", "leave it out, or start anew"
        )
    question = {**raw, **{k: v for k, v in first.question.items() if k not in ("target",)}}
    question.update({k: raw[k] for k in anew})
    said = first.question.get("target")
    return found.events, question, target or (None if said in (None, "lab") else str(said))


def _show(result: PriceResult, events: list[Event], record: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result_as_json(result, record)))
        return
    from walproof.reporting.terminal import price_tables

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    lines = result_lines(result)
    console.print(lines[0], style="bold", highlight=False)
    for part in price_tables(events):
        console.print(part)
    for line in lines[1:]:
        console.print(line, highlight=False)
    console.print(f"stopped by {result.stopped_by}; record: {record}", highlight=False)
