"""`walproof forecast`: records of drills and failure rates in, a year's outage and loss of configurations out."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloup
from rich.text import Text

from walproof.advising.evidence import evidence_of
from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import UsageError
from walproof.forecasting.as_json import forecasts_json
from walproof.forecasting.failure_rates import YEAR_S, Failures, failures_of
from walproof.forecasting.forecast import Forecast, one_period
from walproof.forecasting.forecast import forecast as forecast_of
from walproof.forecasting.outages_from_drills import Measured, Model, Timeouts, measured
from walproof.forecasting.sensitivity import Studied, of_rates, of_the_rest
from walproof.forecasting.simulate import Each, in_turn
from walproof.forecasting.topology import Configuration, check, layout_of, topology
from walproof.machine.processors import several_processes
from walproof.model.advice import PricedArm
from walproof.model.guarantee import level, read_quorum
from walproof.model.units import listed
from walproof.pricing.estimates import caveats_by_arm
from walproof.pricing.options import is_strict
from walproof.proving.faults import fault
from walproof.records.reader import read
from walproof.reporting.console_output import print_json, print_step, print_tables, write_file
from walproof.reporting.forecast_page import forecast_outline
from walproof.reporting.outline import Outline
from walproof.reporting.terminal import tables

YEARS = (1000, 100_000_000)
FEW_YEARS = 20_000
"""So many are simulated as fast as further processes are started."""


@cloup.command(cls=Command)
@cloup.argument("records", nargs=-1, required=True, metavar="RECORD…")
@opt.group(
    "Configuration",
    opt.words(
        "--layout",
        "PLACE,…",
        "Each member's region/zone/rack/server.  [default: nodes as recorded, else z1,z2,z3]",
    ),
    opt.words("--witness", "PLACE,…", "Further voters of the DCS, without a database."),
    opt.option(
        "--leader", "PLACE", "Where one leads when all are well, for instance r1.  [default: anywhere]", default=""
    ),
    opt.words("--levels", "on,…", "Commit levels, one forecast each.", default=["on"]),
    opt.words("--quorum quorums", "any1,…", "Quorums, one forecast each: anyK, firstK, all.", default=["any1"]),
    opt.words(
        "--mode modes", "WORD,…", "Without enough standbys: strict waits, degrading goes on.", default=["strict"]
    ),
    opt.option("--ttl", "30s", "Patroni's ttl.  [default: as drilled]", type=opt.DURATION),
    opt.option("--loop-wait", "10s", "Patroni's loop_wait.  [default: 10s]", type=opt.DURATION),
)
@opt.group(
    "Assumptions",
    opt.option("--failures failures_file", "FILE", "Failure rates.  [default: the shipped ones, with sources]"),
    opt.flag("--exact-rates", "Take every rate and time as it stands, without its range."),
)
@opt.group(
    "Simulation",
    opt.option("--years", "1e6", "Simulated years.", default="1e6"),
    opt.option("--period", "720h", "Also what one such period may bring, in 90 % intervals.", type=opt.DURATION),
    opt.seed,
)
@opt.output(opt.option("--html html_file", "FILE", "Write one self-contained page; - is standard output."))
def forecast(records: tuple[str, ...], html_file: str | None, as_json: bool, **options: Any) -> None:
    """What a year costs and loses: minutes without writes, P(lost commit), and which assumption matters most."""
    if html_file == "-" and as_json:
        raise UsageError("only one thing can go to standard output", "name a file for --html")
    failures = failures_of(Path(options["failures_file"]) if options["failures_file"] else None)
    events = [(name, read(Path(name)).events) for name in records]
    known = measured(events, failures)
    options["layout"] = options["layout"] or layout_of(known.nodes.values()) or "z1,z2,z3"
    models, years = _models(options, failures, known), _years(options["years"])
    if not known.has_takeovers:
        raise UsageError(
            "the records hold no decided drill of a leader", "walproof prove --fault kill,isolate,power-cut"
        )
    arms = evidence_of(events, {name: caveats_by_arm(of) for name, of in events}).priced
    with nullcontext(in_turn) if years <= FEW_YEARS else several_processes() as each:
        made = [_studied(model, years, options, arms, each) for model in models]
    outline = forecast_outline(made, failures, records, options["seed"])
    if html_file:
        _write_page(html_file, outline)
    if as_json:
        print_json(forecasts_json(made, failures, options["seed"]))
    elif html_file != "-":
        _print(outline, failures, years)


def _studied(model: Model, years: int, options: dict[str, Any], arms: Sequence[PricedArm], each: Each) -> Studied:
    """One configuration's forecast, with its price where the records hold one, and what its assumptions do to it."""
    layout, seed, vary = options["layout"], options["seed"], not options["exact_rates"]
    one = forecast_of(model, layout, years=years, seed=seed, vary=vary, each=each)
    if options["period"]:
        one = replace(one, period=one_period(model, options["period"], seed, vary=vary))
    effects = sorted((*of_rates(one), *of_the_rest(model, seed, each=each)), key=lambda effect: -effect.swing)
    return _with_price(one, model.what, arms), tuple(effects)


def _write_page(name: str, outline: Outline) -> None:
    from walproof.reporting.html_and_markdown import page

    write_file(name, page(outline), "name a writable file with --html")
    if name != "-":
        print_step(f"report: {name}")


def _models(options: dict[str, Any], failures: Failures, known: Measured) -> list[Model]:
    """One for each configuration that was asked for."""
    where = topology(options["layout"], options["witness"] or "", options["leader"])
    for name in {name for kind in failures.kinds for name in kind.drills}:
        fault(name)
    configurations = _configurations(options, len(where.members) - 1)
    for what in configurations:
        check(where, what)
    if options["period"] is not None and not 1 <= options["period"] <= YEAR_S:
        raise UsageError(f"--period {options['period']:g} s is not valid", "1s to a year, for instance 720h")
    for name in ("ttl", "loop_wait"):
        if options[name] is not None and not 0 < options[name] <= 3600:
            raise UsageError(f"--{name.replace('_', '-')} {options[name]:g} s is not valid", "1s to 1h")
    timeouts = Timeouts(options["ttl"], options["loop_wait"])
    return [Model(where, what, failures, known, timeouts) for what in configurations]


def _years(text: str) -> int:
    try:
        years = float(text)
    except ValueError:
        years = math.nan
    if not YEARS[0] <= years <= YEARS[1]:
        raise UsageError(f"--years {text} is not valid", f"{YEARS[0]:,} to {YEARS[1]:,}, for instance 1e6")
    return int(years)


def _configurations(options: dict[str, Any], standbys: int) -> tuple[Configuration, ...]:
    configurations: list[Configuration] = []
    modes = [is_strict(word) for word in listed(options["modes"], "mode")]
    quorums = [(kind, k or standbys) for kind, k in map(read_quorum, listed(options["quorums"], "quorum"))]
    for word in listed(options["levels"], "levels"):
        of = level(word)
        if of.remote:
            configurations += [Configuration(of, kind, k, strict) for kind, k in quorums for strict in modes]
        else:
            configurations.append(Configuration(of))
    return tuple(dict.fromkeys(configurations))


def _with_price(made: Forecast, what: Configuration, arms: Sequence[PricedArm]) -> Forecast:
    """With the throughput of the best arm of that level and quorum, where the records hold one, and its caveats."""
    same = [
        arm
        for arm in arms
        if arm.level is what.level and (not what.waits or (arm.quorum_kind, arm.quorum) == (what.quorum_kind, what.k))
    ]
    best = max(same, key=lambda arm: arm.tps.value, default=None)
    if best is None:
        return made
    caveats = tuple(f"{made.text}: transactions/s and p95: {caveat}" for caveat in best.caveats)
    return replace(made, tps=best.tps, p95_ms=best.p95_ms, caveats=(*made.caveats, *caveats))


def _print(outline: Outline, failures: Failures, years: int) -> None:
    how = (
        f"{years:,} simulated years each; rates of {failures.name} with their ranges; intervals are 95 %; "
        "own error: of the simulation, in minutes and in losses by structure"
    )
    notices = (Text(f"⚠ {notice}", "yellow") for notice in outline.notices)
    print_tables("\n".join(outline.sentences), tables(outline.sections), *notices, Text(how, "dim"))
