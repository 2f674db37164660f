"""`walproof advise`: records and requirements in, ranked choices out.

Brings forecasts of a year to advising, which ranks by them: advising and forecasting do not see each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import cloup
from cloup.constraints import mutually_exclusive
from rich.console import Console
from rich.table import Table

from walproof.advising.advise import advise as advised
from walproof.advising.advise import as_json as advice_json
from walproof.advising.advise import choose_environment, chosen
from walproof.advising.evidence import cluster_of, evidence_of
from walproof.advising.proof import effective_level, waits_for_standby
from walproof.advising.recipes import config_change, recipe, recipes
from walproof.advising.requirements import REQUIREMENTS, classes_of, requirements_of
from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import Error, ExitCode, UsageError
from walproof.forecasting.failure_rates import failures_of
from walproof.forecasting.forecast import forecast
from walproof.forecasting.outages_from_drills import Model, measured
from walproof.forecasting.topology import Configuration, check, layout_of, topology
from walproof.machine.processors import several_processes
from walproof.model.advice import Advice, Choice, ClusterProfile, Evidence, YearlyRisk
from walproof.model.estimate import Estimate
from walproof.model.event import Event
from walproof.model.guarantee import Setting
from walproof.model.ports import Target
from walproof.model.units import duration_s
from walproof.pricing.estimates import caveats_by_arm
from walproof.records.reader import read
from walproof.reporting.console_output import console, print_json, write_files
from walproof.targets.choose import choose, settings_for
from walproof.targets.configure import configuration_of

YEARS = 20_000
DEFAULT_MEMBERS = 3


def years_of(
    events: Sequence[tuple[str, Sequence[Event]]], evidence: Evidence, layout: str | None, failures_file: str | None
) -> tuple[YearlyRisk, ...]:
    """The year of every configuration that was priced, strict and degrading; UsageError without drills."""
    failures = failures_of(Path(failures_file) if failures_file else None)
    known = measured(events, failures)
    if not known.has_takeovers:
        raise UsageError(
            "a forecast of a year needs drills, and the records hold none of a leader",
            "walproof prove --fault kill,isolate,power-cut",
        )
    members = len(evidence.cluster.members) or DEFAULT_MEMBERS
    apart = ",".join(f"z{number + 1}" for number in range(members))
    where = topology(layout or layout_of(known.nodes.values()) or apart)
    configurations = _configurations(evidence)
    for what in configurations:
        check(where, what)
    with several_processes() as each:
        made = [
            forecast(Model(where, what, failures, known), layout or "", years=YEARS, seed=1, each=each)
            for what in configurations
        ]
    return tuple(
        YearlyRisk(
            what.level,
            what.quorum_kind,
            what.k,
            what.strict,
            availability=one.availability,
            structural=one.p_structural,
            p_loss=one.p_loss,
            caveats=one.caveats,
        )
        for what, one in zip(configurations, made, strict=True)
    )


def _configurations(evidence: Evidence) -> tuple[Configuration, ...]:
    """What was priced: without named standbys every remote level is local."""
    configurations = []
    for arm in evidence.priced:
        if waits_for_standby(arm):
            strict = Configuration(arm.level, arm.quorum_kind, arm.quorum)
            configurations += [strict, replace(strict, strict=False)]
        else:
            configurations.append(Configuration(effective_level(arm)))
    return tuple(dict.fromkeys(configurations))


def requirement_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The requirements among the options, by the names that advising knows."""
    given = ((name, options[name.replace("-", "_")]) for name in REQUIREMENTS)
    return {name: str(value) for name, value in given if value is not None and value is not False}


def advice_of(records: tuple[str, ...], options: Mapping[str, Any], target: Target | None = None) -> Advice:
    """The advice from those records for what `options.requirements` took, and for that target, else the records'."""
    events = [(name, read(Path(name)).events) for name in records]
    evidence = evidence_of(events, {name: caveats_by_arm(of) for name, of in events})
    if target is not None:
        evidence = replace(evidence, cluster=cluster_of(target.describe()))
    requirements = requirements_of(requirement_options(options).items())
    if requirements.of_a_year:
        years = years_of(events, evidence, options["layout"], options["failures_file"])
        evidence = replace(evidence, years=years)
    elif options["layout"] or options["failures_file"]:
        raise UsageError("--layout and --failures need --availability or --loss-per-year", "--availability 99.99")
    rtt = options["rtt"]
    around = choose_environment(evidence, None if rtt is None else 1000 * duration_s(rtt), options["workload"])
    advice = advised(evidence, requirements, around, classes_of(options["classes"]))
    return replace(advice, choices=tuple(with_settings(one, advice.cluster, target) for one in advice.choices))


def with_settings(choice: Choice, cluster: ClusterProfile, target: Target | None) -> Choice:
    """With all that `apply` sets for it: on the target as it is now, else on a cluster such as the records'."""
    try:
        change = config_change(choice, cluster)
        settings = settings_for(change, cluster) if target is None else configuration_of(target).plan(change).settings
    except Error as no:
        return replace(choice, trade_offs=(*choice.trade_offs, f"apply refuses it: {no.message}"))
    return replace(choice, settings=settings)


@cloup.command(cls=Command)
@cloup.argument("records", nargs=-1, required=True, metavar="RECORD…")
@opt.requirements
@opt.cluster(default="that of the records")
@opt.group(
    "Choice",
    opt.option("--choice number", "N", "The choice that recipes are made of.", type=int, default=1),
    opt.option("--out", "DIR", "Write every recipe of the choice there."),
)
@opt.group(
    "Output",
    opt.option("--recipe wanted", "NAME", "Print one recipe: plain, patroni, cnpg …"),
    opt.json_output,
    constraint=mutually_exclusive,
)
def advise(
    records: tuple[str, ...],
    target: str | None,
    number: int,
    out: str | None,
    wanted: str | None,
    as_json: bool,
    **options: Any,
) -> ExitCode:
    """Which level, quorum, pool and timeouts to run, from records of price and prove.

    Exit 1 when a requirement cannot be met, 4 when no drill decides about what may be lost.
    """
    advice = advice_of(records, options, None if target is None else choose(target))
    if out:
        made = recipes(chosen(advice, number), advice.cluster).values()
        write_files(Path(out), {one.file: one.text for one in made}, "name another --out")
    if wanted:
        click.echo(recipe(chosen(advice, number), advice.cluster, wanted).text, nl=False)
    elif as_json:
        print_json(advice_json(advice))
    else:
        _print_advice(advice)
    if advice.refused:
        return ExitCode.BROKEN
    loss = any(required.of_loss for required in (advice.requirements, *(of for _, of in advice.classes)))
    return ExitCode.UNDECIDED if advice.prove and loss else ExitCode.HELD


def print_settings(heading: str, settings: Sequence[Setting], now: Mapping[str, str] | None = None) -> None:
    """The list of settings, for both verbs; now: what those that differ are."""
    screen = console()
    screen.print(heading, style="bold", soft_wrap=True)
    for one in settings:
        state = "" if now is None else f"  (now {now[one.name]})" if one.name in now else "  (as it is)"
        screen.print(f"  {one.text}{state}", soft_wrap=True)


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}–{estimate.high:.{digits}f})"


def _stacked(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f}\n{estimate.low:.{digits}f}–{estimate.high:.{digits}f}"


def _print_advice(advice: Advice) -> None:
    screen = console()
    requirements = advice.requirements.text or "no requirement"
    if advice.refused:
        screen.print(f"refused: {requirements} ({advice.environment.text})", style="bold red")
        for refused in advice.refused:
            screen.print(f"  {refused.requirement}: {refused.limit}", soft_wrap=True)
            screen.print(f"  nearest possible: {refused.nearest}", soft_wrap=True)
        return
    first = advice.choices[0]
    numbers = f"{first.text}: {_interval(first.tps, 0)} transactions/s, p95 {_interval(first.p95_ms, 1)} ms"
    if not advice.prove:
        screen.print(f"run {numbers}", style="bold")
    else:
        asked = advice.requirements.level
        met = f" that meets {advice.requirements.text}" if advice.requirements.text else ""
        what = f"{first.text}, as asked, is not proven" if asked else f"nothing{met} is proven"
        screen.print(f"{what}: {first.undecided}", style="bold yellow", soft_wrap=True)
        screen.print(f"prove it first: {advice.prove}", soft_wrap=True)
        screen.print(f"{'as priced' if asked else 'by price alone'}, {numbers}")
    screen.print(
        f"for {requirements}; {advice.environment.text}; {advice.dominated} dominated choices dropped", style="dim"
    )
    table = Table("", "level", "drilled", "quorum", "strict", "clients", "transactions/s", "p95, ms", "ttl")
    table.columns[1].no_wrap = True
    for c in advice.choices:
        quorum = f"{c.quorum_kind} {c.quorum}" if c.quorum else "–"
        cells = (c.number, c.level, "no" if c.undecided else "yes", quorum, "yes" if c.strict else "no", c.clients)
        ttl = f"{c.timeouts.ttl} s" if c.timeouts.rto_required else "unchanged"
        table.add_row(*map(str, cells), _stacked(c.tps, 0), _stacked(c.p95_ms, 1), ttl)
    screen.print(table)
    _print_details(screen, first)
    for caveat in dict.fromkeys(caveat for one in advice.choices for caveat in one.caveats):
        numbers = ", ".join(str(one.number) for one in advice.choices if caveat in one.caveats)
        screen.print(f"caveat of {numbers}: {caveat}", style="yellow", soft_wrap=True)
    for caveat in advice.caveats:
        screen.print(f"caveat: {caveat}", style="yellow", soft_wrap=True)
    print_settings(f"apply sets on {advice.cluster.target or 'such a cluster'}:", first.settings)
    screen.print("hint: walproof advise … --json > advice.json; walproof apply advice.json --dry-run", style="dim")


def _print_details(screen: Console, choice: Choice) -> None:
    for label, lines in (("proven", choice.proven), ("assumed", choice.assumed), ("trade-off", choice.trade_offs)):
        for line in lines or ("nothing in these records",):
            screen.print(f"  {label:9} {line}", soft_wrap=True)
    if choice.year is not None:
        screen.print(f"  a year    {choice.year.text}", soft_wrap=True)
    if choice.rto_s is not None:
        seen = choice.rto_s
        # No middle: it would be one over faults, and over takeovers and restarts in place.
        times = f"{seen.low:.1f}" if seen.low == seen.high else f"{seen.low:.1f} to {seen.high:.1f}"
        screen.print(f"  recovery  {times} s seen in drills of the leader")
    if choice.timeouts.rto_required:
        screen.print(f"  failure   a failed leader is replaced within {choice.timeouts.leader_failure_s:g} s")
    for line in choice.failovers:
        screen.print(f"  timeouts  {line}", soft_wrap=True)
    for one in choice.classes:
        screen.print(f"  class     {one.name}: {one.level} ({one.why})", soft_wrap=True)
