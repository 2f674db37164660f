"""`walproof forecast`: records of drills and failure rates in, a year's outage and loss of configurations out."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloup
from rich.table import Table

from walproof.cli import options as opt
from walproof.cli.console import console, print_json
from walproof.cli.groups import Command
from walproof.errors import UsageError
from walproof.forecasting.answer import Forecast, nines
from walproof.forecasting.answer import forecast as forecast_of
from walproof.forecasting.as_json import forecasts_json
from walproof.forecasting.behaviour import Model, Timeouts
from walproof.forecasting.failures import Failures
from walproof.forecasting.failures_file import failures_of
from walproof.forecasting.measured import measured
from walproof.forecasting.sensitivity import Effect, loudest, of_rates, of_the_rest
from walproof.forecasting.topology import Configuration, Topology, check, topology
from walproof.model.advice import PricedArm
from walproof.model.estimate import Estimate
from walproof.model.guarantee import QuorumKind, level
from walproof.model.units import duration_s
from walproof.proving.faults import fault
from walproof.records.reader import read

YEARS = (1000, 100_000_000)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for, read."""

    where: Topology
    configurations: tuple[Configuration, ...]
    failures: Failures
    timeouts: Timeouts
    years: int


@cloup.command(cls=Command)
@cloup.argument("records", nargs=-1, required=True, metavar="RECORD…")
@opt.group(
    "Configuration",
    opt.option("--layout", "PLACE,…", "Each member's region/zone/rack/server; the first leads.", default="z1,z2,z3"),
    opt.option("--witness", "PLACE,…", "Further voters of the DCS, without a database.", default=""),
    opt.option("--level levels", "on,…", "Commit levels, one forecast each.", default="on"),
    opt.option("--quorum quorums", "'ANY 1',…", "Quorums, one forecast each.", default="ANY 1"),
    opt.choice("--mode", ["strict", "degrading", "both"], "Without enough standbys: wait, or go on.", default="strict"),
    opt.option("--takeover", "3s-4s", "Also with a guard that takes over in so long (assumed)."),
    opt.option("--ttl", "30s", "Patroni's ttl.  [default: as drilled]", type=opt.DURATION),
    opt.option("--loop-wait", "10s", "Patroni's loop_wait.  [default: 10s]", type=opt.DURATION),
)
@opt.group(
    "Assumptions",
    opt.option("--failures failures_file", "FILE", "Failure rates.  [default: the shipped ones, with sources]"),
    opt.flag("--exact-rates", "Take every rate as it stands, without its range."),
)
@opt.group("Simulation", opt.option("--years", "1e6", "Simulated years.", default="1e6"), opt.seed)
@opt.output()
def forecast(records: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """What a year costs and loses: minutes without writes, P(lost commit), and which assumption matters most."""
    asked = _asked(options)
    events = [(name, read(Path(name)).events) for name in records]
    known = measured(events, asked.failures)
    if not any(t.outages_s for t in known.takeovers.values()):
        raise UsageError(
            "the records hold no decided drill of a leader", "walproof prove --fault kill,isolate,power-cut"
        )
    arms = _priced(events)
    made: list[tuple[Forecast, tuple[Effect, ...]]] = []
    for what in asked.configurations:
        model = Model(asked.where, what, asked.failures, known, asked.timeouts)
        vary = not options["exact_rates"]
        one = forecast_of(model, options["layout"], years=asked.years, seed=options["seed"], vary=vary)
        effects = (*of_rates(one), *of_the_rest(model, options["seed"]))
        made.append((_with_price(one, what, arms), tuple(sorted(effects, key=lambda e: -e.swing))))
    if as_json:
        print_json(forecasts_json(made, asked.failures, options["seed"]))
    else:
        _print(made, asked)
    return 0


def _asked(options: dict[str, Any]) -> Asked:
    where = topology(options["layout"], options["witness"])
    failures = failures_of(Path(options["failures_file"]) if options["failures_file"] else None)
    for name in {name for kind in failures.kinds for name in kind.drills}:
        fault(name)
    configurations = _configurations(options)
    for what in configurations:
        check(where, what)
    for name in ("ttl", "loop_wait"):
        if options[name] is not None and not 0 < options[name] <= 3600:
            raise UsageError(f"--{name.replace('_', '-')} {options[name]:g} s is not valid", "1s to 1h")
    return Asked(
        where, configurations, failures, Timeouts(options["ttl"], options["loop_wait"]), _years(options["years"])
    )


def _years(text: str) -> int:
    try:
        years = float(text)
    except ValueError:
        years = math.nan
    if not YEARS[0] <= years <= YEARS[1]:
        raise UsageError(f"--years {text} is not valid", f"{YEARS[0]:,} to {YEARS[1]:,}, for instance 1e6")
    return int(years)


def _quorum(text: str) -> tuple[QuorumKind, int]:
    found = re.fullmatch(r"(ANY|FIRST)\s+(\d{1,2})", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{text!r} is not a quorum", "for instance --quorum 'ANY 1,FIRST 2'")
    return QuorumKind(found[1].upper()), int(found[2])


def _configurations(options: dict[str, Any]) -> tuple[Configuration, ...]:
    found: list[Configuration] = []
    modes = {"strict": (True,), "degrading": (False,), "both": (True, False)}[options["mode"]]
    quorums = [_quorum(text) for text in options["quorums"].split(",")]
    for word in options["levels"].split(","):
        of = level(word)
        if of.remote:
            found += [Configuration(of, kind, k, strict) for kind, k in quorums for strict in modes]
        else:
            found.append(Configuration(of))
    guard = _range_s(options["takeover"])
    if guard:
        found += [replace(what, takeover_s=guard) for what in found]
    return tuple(dict.fromkeys(found))


def _range_s(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, dash, high = text.partition("-")
    if not dash:
        raise UsageError(f"--takeover {text} is not a range", "for instance --takeover 3s-4s")
    shortest, longest = duration_s(low), duration_s(high)
    if not 0 <= shortest <= longest <= 3600:
        raise UsageError(f"--takeover {text} is not valid", "the shorter first, at most an hour")
    return shortest, longest


def _priced(events: Sequence[tuple[str, Any]]) -> tuple[PricedArm, ...]:
    from walproof.advising.evidence import evidence_of

    return evidence_of(events).priced


def _with_price(made: Forecast, what: Configuration, arms: Sequence[PricedArm]) -> Forecast:
    """With the throughput of the best arm of that level and quorum, where the records hold one."""
    same = [
        arm
        for arm in arms
        if arm.level is what.level and (not what.waits or (arm.quorum_kind, arm.quorum) == (what.quorum_kind, what.k))
    ]
    best = max(same, key=lambda arm: arm.tps.value, default=None)
    return made if best is None else replace(made, tps=best.tps, p95_ms=best.p95_ms)


def _interval(estimate: Estimate, form: str = ".3g") -> str:
    return f"{estimate.value:{form}}\n{estimate.low:{form}}–{estimate.high:{form}}"


def _conclusion(made: Forecast) -> str:
    at_most = "at most " if made.upper_bound else ""
    minutes = made.minutes
    return (
        f"{made.text}, {made.layout}: {minutes.value:.3g} minutes a year without writes "
        f"({minutes.low:.3g}–{minutes.high:.3g}); "
        f"a lost acknowledged commit in {at_most}{made.p_loss.value:.2g} of years "
        f"({made.p_loss.low:.2g}–{made.p_loss.high:.2g}), {made.p_structural.value:.2g} by structure alone"
    )


def _print(made: Sequence[tuple[Forecast, Sequence[Effect]]], asked: Asked) -> None:
    screen = console()
    for one, _ in made:
        screen.print(_conclusion(one), style="bold", markup=False, soft_wrap=True)
    table = Table(
        "", "minutes a year", "p95", "p99.9", "availability", "P(loss a year)", "by structure", "commits lost a year",
        "transactions/s", "p95, ms",
    )  # fmt: skip
    for one, _ in made:
        upper = "≤ " if one.upper_bound else ""
        table.add_row(
            one.text,
            _interval(one.minutes),
            _interval(one.p95_minutes),
            _interval(one.p999_minutes),
            f"{100 * one.availability.value:.5g} %\n{nines(one.availability.value):.1f} nines",
            upper + _interval(one.p_loss, ".2g"),
            _interval(one.p_structural, ".2g"),
            "–" if math.isnan(one.commits) else f"{upper}{one.commits:.2g}",
            "–" if one.tps is None else _interval(one.tps, ".0f"),
            "–" if one.p95_ms is None else _interval(one.p95_ms, ".1f"),
        )
    screen.print(table)
    first, effects = made[0]
    screen.print(_parts_table(first))
    _print_sensitivity(first, effects)
    for caveat in dict.fromkeys(caveat for one, _ in made for caveat in one.caveats):
        screen.print(f"caveat: {caveat}", style="yellow", markup=False, soft_wrap=True)
    screen.print(
        f"{asked.years:,} simulated years each; rates of {asked.failures.name} with their ranges; intervals are 95 %; "
        f"rare losses by importance sampling, standard error {100 * first.rare_error:.0f} %",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _parts_table(one: Forecast) -> Table:
    table = Table(
        "failure", "minutes a year", "takeovers a year", "losses a year", "outage from", "drills of it", title=one.text
    )
    for part in one.parts:
        row = (f"{part.minutes:.3g}", f"{part.takeovers:.3g}", f"{part.losses:.2g}", part.basis, part.drilled)
        table.add_row(part.name, *row)
    return table


def _print_sensitivity(one: Forecast, effects: Sequence[Effect]) -> None:
    screen = console()
    for number, effect in enumerate(effects[:3]):
        label = "matters most" if number == 0 else "then"
        text = f"  {label:12}  {effect.assumption}: {effect.low:.3g} to {effect.high:.3g} minutes a year"
        screen.print(text, markup=False, soft_wrap=True)
    if name := loudest(one):
        screen.print(f"  for losses    rate of {name}, and drills of it", markup=False, soft_wrap=True)
