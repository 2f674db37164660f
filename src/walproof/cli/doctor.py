"""`walproof doctor`: findings about a cluster's durability, live or in files, and an exit code; reads only."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import click
import cloup
from rich.text import Text

from walproof.advising.doctor import outputs
from walproof.advising.doctor.accepted import FILE, acceptances, accepting
from walproof.advising.doctor.catalogue import CATALOGUE, as_json, counts, diagnosed, failing
from walproof.advising.doctor.explained import explanation
from walproof.advising.doctor.finding import Examination, Finding, Severity
from walproof.advising.doctor.of_files import examined_files
from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import ExitCode, UsageError
from walproof.machine.untrusted import bounded, from_toml, regular
from walproof.model.drill import Capability
from walproof.model.facts import Facts
from walproof.model.units import counted
from walproof.records.layout import version
from walproof.reporting.console_output import console, print_json, print_result, write_file
from walproof.targets.choose import choose, declared_in

STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_WRITABLE = "name a writable file"


@dataclass(frozen=True, slots=True)
class _Result:
    """What was examined: a live cluster's facts, or what files declare and which of them were not read."""

    examinations: tuple[Examination, ...]
    facts: Facts | None = None
    skipped: dict[str, str] | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(f for one in self.examinations for f in one.findings)


@cloup.command(cls=Command)
@cloup.argument("files", nargs=-1, metavar="[FILE]…")
@opt.cluster()
@opt.output(
    opt.choice("--format", ["text", "json", "sarif", "github", "junit"], "What to print.", default="text"),
    opt.option("--sarif", "FILE", "SARIF 2.1.0 for code scanning; - is standard output."),
    opt.junit,
    opt.choice("--fail-on", ["error", "warning"], "The least that makes the exit code 1.", default="warning"),
    opt.flag("--list listed", "List the checks and ask no cluster."),
    opt.option("--explain", "CHECK", "Why a check is made, what shows it, how to undo it."),
)
def doctor(
    files: tuple[str, ...],
    target: str | None,
    as_json: bool,
    sarif: str | None,
    junit: str | None,
    listed: bool,
    fail_on: str,
    explain: str | None,
    **more: str,
) -> ExitCode:
    """What is wrong with a cluster's durability and failover: live, or in its files (folders, globs, - for standard
    input). Reads only; exit 1 on any error or warning."""
    shape = "json" if as_json else more["format"]
    if (shape != "text") + (as_json and more["format"] not in ("text", "json")) + (sarif == "-") + (junit == "-") > 1:
        raise UsageError(
            "only one thing can go to standard output", "choose one of --json, --format, --sarif -, --junit -"
        )
    if files and target:
        raise UsageError("files are examined without a cluster", "leave --target and --lab out, or the files")
    if listed or explain:
        return _print_checks(explain, as_json=shape == "json")
    result = _of_files(files) if files else _of_target(target)
    if sarif:
        write_file(sarif, outputs.sarif_text(result.examinations, version()), _WRITABLE)
    if junit:
        write_file(junit, outputs.as_junit(result.examinations), _WRITABLE)
    if "-" not in (sarif, junit):
        _print(result, shape)
    if failing(result.findings, Severity(fail_on)):
        return ExitCode.BROKEN
    return ExitCode.UNDECIDED if result.skipped else ExitCode.HELD


def _of_target(target: str | None) -> _Result:
    chosen = choose(target)
    able = chosen.capabilities()
    if able.inspection is None:
        raise UsageError(f"{chosen.name}: {able.why_not(Capability.INSPECT)}", "the doctor inspects real servers only")
    facts = able.inspection.facts()
    return _Result(_accepted([Examination(facts.target, diagnosed(facts))]), facts)


def _of_files(files: tuple[str, ...]) -> _Result:
    declared, skipped = declared_in(files)
    if not declared and skipped:
        name, why = next(iter(skipped.items()))
        raise UsageError(f"{name}: {why}", "docs/doctor.md says which files are read, and how")
    if not declared:
        kinds = "patroni.yml, a Cluster, postgresql.conf, haproxy.cfg, pgbouncer.ini"
        raise UsageError(f"no configuration that the doctor reads in {', '.join(files)}", f"name {kinds}")
    return _Result(_accepted([examined_files(one) for one in declared]), skipped=skipped)


def _accepted(examinations: list[Examination]) -> tuple[Examination, ...]:
    """With what .walproof.toml of this folder accepts until today."""
    try:
        with regular(Path(), Path(FILE)) as file:
            tree = from_toml(bounded(file, 1 << 20).decode())
    except FileNotFoundError:
        return tuple(examinations)
    except (OSError, ValueError) as wrong:
        raise UsageError(f"{FILE} cannot be read: {wrong}", "TOML with [[accept]] entries: docs/doctor.md") from None
    entries = acceptances(tree)
    return tuple(accepting(one, entries, date.today()) for one in examinations)


def _print_checks(explain: str | None, *, as_json: bool) -> ExitCode:
    if explain:
        tree = explanation(explain)
        print_result(tree, *(f"{name:9} {text}" for name, text in tree.items() if text), as_json=as_json)
        return ExitCode.HELD
    listing = {"checks": [{"id": c.id, "severity": str(c.severity), "title": c.title} for c in CATALOGUE]}
    print_result(listing, *(f"{c.severity:8} {c.id:32} {c.title}" for c in CATALOGUE), as_json=as_json)
    return ExitCode.HELD


def _print(result: _Result, shape: str) -> None:
    skipped = result.skipped or {}
    if shape == "json":
        facts = result.facts
        print_json(outputs.as_json(result.examinations, skipped) if facts is None else as_json(facts, result.findings))
    elif shape == "sarif":
        click.echo(outputs.sarif_text(result.examinations, version()), nl=False)
    elif shape == "junit":
        click.echo(outputs.as_junit(result.examinations), nl=False)
    elif shape == "github":
        click.echo(outputs.as_github(result.examinations, skipped), nl=False)
    else:
        _print_findings(result, skipped)


def _print_findings(result: _Result, skipped: dict[str, str]) -> None:
    screen = console()
    facts = result.facts
    for number, one in enumerate(result.examinations):
        if facts is None:
            checked = f"{len(CATALOGUE) - len(one.not_checked)} of {counted(len(CATALOGUE), 'check')} on files"
            screen.print(f"{chr(10) * (number > 0)}{one.target}: ", end="")
        else:
            if facts.cnpg:
                screen.print(f"as declared: {facts.cnpg.declared}", style="dim", soft_wrap=True)
            reached = f"{len(facts.inspected)} of {counted(len(facts.members), 'member')}"
            checked = f"{counted(len(CATALOGUE), 'check')} on {reached} in {facts.took_s:.1f} s"
        _print_one(one, checked)
    for name, why in skipped.items():
        screen.print(f"not read: {name}: {why}", style="yellow", soft_wrap=True)


def _print_one(one: Examination, checked: str) -> None:
    screen = console()
    if not one.findings:
        screen.print(f"nothing found: {checked}", style="bold green")
    else:
        tally = ", ".join(counted(n, name) for name, n in counts(one.findings).items() if n)
        screen.print(f"{tally}: {checked}", style="bold")
    for f in one.findings:
        screen.print()
        screen.print(Text.assemble((str(f.severity), STYLE[f.severity]), f"  {f.title}", (f"  [{f.id}]", "dim")))
        at = "" if f.place is None else f.place.text
        set_in = f"set in {f.where}" if f.where and not at else ""
        evidence = " · ".join(p for p in (f.member, f.evidence, set_in) if p)
        lines = (("at", at), ("seen", evidence), ("cost", f.could_cost), ("fix", f.fix), ("why", f.source))
        for label, text in (*lines, ("taken", f.accepted)):
            if text:
                screen.print(Text.assemble((f"  {label:5}", "dim"), text), soft_wrap=True)
    reasons = defaultdict(list)
    for check, why in one.not_checked.items():
        reasons[why].append(check)
    if reasons:
        screen.print()
        screen.print("not checked:", style="dim")
    for why, checks in reasons.items():
        screen.print(f"  {why}: {', '.join(checks)}", style="dim", soft_wrap=True)
