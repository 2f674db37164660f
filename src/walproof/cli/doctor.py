"""`walproof doctor`: findings about a cluster's durability, live or in files, and an exit code; reads only."""

import os
import stat
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import click
import cloup
from rich.text import Text

from walproof.advising.doctor import outputs
from walproof.advising.doctor.accepted import FILE, accepting
from walproof.advising.doctor.catalogue import CATALOGUE, counts, diagnosed, failing
from walproof.advising.doctor.catalogue import as_json as as_json_of
from walproof.advising.doctor.finding import Examination, Severity
from walproof.advising.doctor.of_files import examined_files
from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import Error, ExitCode, UsageError
from walproof.machine.untrusted import bounded, field, from_toml, is_own_group, regular
from walproof.model.declared import Declared, Skipped
from walproof.model.drill import Capability
from walproof.model.facts import Facts
from walproof.model.units import counted
from walproof.records.layout import version
from walproof.reporting.console_output import console, print_json, print_result, write_file
from walproof.targets.choose import choose, declared_in

MOST_SECONDS = 120.0
"""For all checks of all that was read."""
TOOK_TOO_LONG = "checking took too long, and ended before this: name fewer files"
STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@cloup.command(cls=Command)
@cloup.argument("files", nargs=-1, metavar="[FILE]…")
@opt.cluster()
@opt.output(
    opt.choice("--format shape", ["text", "json", "sarif", "github", "junit"], "What to print.", default="text"),
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
    shape: str,
) -> ExitCode:
    """What is wrong with a cluster's durability and failover: live, or in its files (folders, globs, - for standard
    input). Reads only; exit 1 on any error or warning."""
    printed = [as_json or shape == "json", shape not in ("json", "text"), sarif == "-", junit == "-"]
    if sum(printed) > 1:
        hint = "choose one of --json, --format, --sarif -, --junit -"
        raise UsageError("only one thing can go to standard output", hint)
    if files and target:
        raise UsageError("files are examined without a cluster", "leave --target and --lab out, or the files")
    if listed or explain:
        return _print_checks(explain, as_json=printed[0])
    facts = None if files else _facts(target)
    declared, skipped = ([], Skipped()) if facts else _declared(files)
    examinations = [Examination(facts.target, diagnosed(facts))] if facts else examined(declared, skipped)
    examinations = _accepted(examinations, files)
    writers: dict[str, Callable[[list[Examination], Skipped], str]] = {
        "sarif": partial(outputs.as_sarif, version()), "junit": outputs.as_junit, "github": outputs.as_github
    }  # fmt: skip
    for name, path in (("sarif", sarif), ("junit", junit), (shape, "-")):
        if path and name in writers:
            write_file(path, writers[name](examinations, skipped), "name a writable file")
    if printed[0]:
        print_json(as_json_of(facts, examinations[0].findings) if facts else outputs.as_json(examinations, skipped))
    elif not any(printed):
        _print(examinations, facts, skipped)
    if any(failing(one.findings, Severity(fail_on)) for one in examinations):
        return ExitCode.BROKEN
    return ExitCode.UNDECIDED if skipped else ExitCode.HELD


def examined(
    declared: list[Declared], skipped: Skipped, now: Callable[[], float] = time.monotonic
) -> list[Examination]:
    """What the checks find in each cluster, as long as there is time; `skipped` gets the others."""
    done: list[Examination] = []
    ends = now() + MOST_SECONDS
    for one in declared:
        if now() > ends:
            skipped[one.start] = TOOK_TOO_LONG
            continue
        try:
            done.append(examined_files(one))
        except Error as wrong:  # of one cluster's files, which does not blind the doctor for the others
            skipped[one.start] = wrong.message[:200]
    return done


def _facts(target: str | None) -> Facts:
    chosen = choose(target)
    able = chosen.capabilities()
    if able.inspection is None:
        raise UsageError(f"{chosen.name}: {able.why_not(Capability.INSPECT)}", "the doctor inspects real servers only")
    return able.inspection.facts()


def _declared(files: tuple[str, ...]) -> tuple[list[Declared], Skipped]:
    declared, skipped = declared_in(files)
    if not declared:
        kinds = "patroni.yml, a Cluster, postgresql.conf, haproxy.cfg, pgbouncer.ini"
        nothing = f"no configuration that the doctor reads in {', '.join(files)}"
        why = next((f"{at.text}: {reason}" for at, reason in skipped.items()), nothing)
        raise UsageError(why, f"name {kinds}; docs/doctor.md says how they are read")
    return declared, skipped


def _accepted(examinations: list[Examination], files: tuple[str, ...]) -> list[Examination]:
    """With what .walproof.toml of this folder accepts until today, where it is this user's or root's.

    Of files below this folder its owner accepts what is found, in a checkout of CI too; of others, and of a cluster,
    nobody else does.
    """
    here = Path().resolve()
    is_of_here = files and all(Path(os.path.realpath(one)).is_relative_to(here) for one in files)
    believed = {here.stat().st_uid} if is_of_here else set[int]()
    try:
        with regular(Path(), Path(FILE)) as file:
            status = os.fstat(file.fileno())
            shared = status.st_mode & stat.S_IWGRP and not is_own_group(status.st_gid, file.fileno(), status.st_uid)
            if status.st_uid not in {0, os.geteuid(), *believed} or status.st_mode & stat.S_IWOTH or shared:
                click.echo(f"{FILE} accepts nothing: others own it, or may write in it", err=True)
                return examinations
            tree = from_toml(bounded(file, 1 << 20).decode())
    except FileNotFoundError:
        return examinations
    except (OSError, ValueError) as wrong:
        raise UsageError(f"{FILE} cannot be read: {wrong}", "TOML with [[accept]] entries: docs/doctor.md") from None
    return accepting(examinations, tree, date.today())


def _print_checks(explain: str | None, *, as_json: bool) -> ExitCode:
    if explain:
        texts = outputs.explanation(explain)
        print_result(texts, *(f"{label:9} {text}" for label, text in texts.items()), as_json=as_json)
    else:
        tree = {"checks": [{"id": c.id, "severity": str(c.severity), "title": c.title} for c in CATALOGUE]}
        print_result(tree, *(f"{c.severity:8} {c.id:32} {c.title}" for c in CATALOGUE), as_json=as_json)
    return ExitCode.HELD


def _print(examinations: list[Examination], facts: Facts | None, skipped: Skipped) -> None:
    screen = console()
    if facts and facts.cnpg:
        screen.print(f"as declared: {facts.cnpg.declared}", style="dim", soft_wrap=True)
    for one in examinations:
        if facts:
            reached = f"{len(facts.inspected)} of {counted(len(facts.members), 'member')}"
            checked = f"{counted(len(CATALOGUE), 'check')} on {reached} in {facts.took_s:.1f} s"
        else:
            checked = f"{len(CATALOGUE) - len(one.not_checked)} of {counted(len(CATALOGUE), 'check')} on {one.target}"
        tally = ", ".join(counted(n, name) for name, n in counts(one.findings).items() if n) or "nothing found"
        screen.print(f"{tally}: {checked}", style="bold" if one.findings else "bold green")
        for f in one.findings:
            screen.print()
            screen.print(Text.assemble((str(f.severity), STYLE[f.severity]), f"  {f.title}", (f"  [{f.id}]", "dim")))
            at, where = f.place.text if f.place else "", "" if f.place or not f.where else f"set in {f.where}"
            evidence = " · ".join(filter(None, (f.member, f.evidence, where)))
            its = {"at": at, "seen": evidence, "cost": f.could_cost, "fix": f.fix, "why": f.source, "taken": f.accepted}
            for label, text in its.items():
                if text:
                    screen.print(Text.assemble((f"  {label:5}", "dim"), field(text)), soft_wrap=True)
        if one.not_checked:
            text = f"not checked: {len(one.not_checked)} of {len(CATALOGUE)} (--json lists them, each with the reason)"
            screen.print(Text(f"\n{text}"), style="dim", soft_wrap=True)
    for place, why in skipped.items():
        screen.print(f"not read: {place.text}: {why}", style="yellow", soft_wrap=True)
