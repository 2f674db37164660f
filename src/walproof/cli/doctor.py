"""`walproof doctor`: a look, findings, an exit code. Read-only; decides nothing by itself."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from walproof.advising.doctor.catalogue import CATALOGUE, diagnosed, failing
from walproof.advising.doctor.finding import Finding
from walproof.advising.doctor.output import as_json, as_junit, counts, sarif_text
from walproof.errors import MachineError, UsageError
from walproof.model.facts import Facts
from walproof.model.ports import Capability
from walproof.records.layout import version
from walproof.targets.choose import choose

STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@click.command()
@click.option("--target", metavar="WHERE", default=None, help="The lab when not said; a target file, URL or DSN.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on standard output, nothing else.")
@click.option("--sarif", metavar="FILE", default=None, help="SARIF 2.1.0 for code scanning; - is standard output.")
@click.option("--junit", metavar="FILE", default=None, help="JUnit XML for CI; - is standard output.")
@click.option("--list", "listed", is_flag=True, help="List the checks and look at nothing.")
def doctor(target: str | None, json_wanted: bool, sarif: str | None, junit: str | None, listed: bool) -> int:
    """What is wrong with a cluster's durability and failover. Reads only; exit 1 on any error or warning."""
    if listed:
        for check in CATALOGUE:
            click.echo(f"{check.severity:8} {check.id:32} {check.title}")
        return 0
    place = choose(target)
    able = place.capabilities()
    if able.inspection is None:
        raise UsageError(f"{place.name}: {able.why_not(Capability.INSPECT)}", "the doctor inspects real servers only")
    facts = able.inspection.facts()
    findings = diagnosed(facts)
    if sarif:
        _write(sarif, sarif_text(facts, findings, version()))
    if junit:
        _write(junit, as_junit(facts, findings))
    if json_wanted:
        click.echo(json.dumps(as_json(facts, findings)))
    elif "-" not in (sarif, junit):
        _show(facts, findings)
    return 1 if failing(findings) else 0


def _write(where: str, text: str) -> None:
    if where == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(where).write_text(text, "utf-8")
    except OSError as wrong:
        raise MachineError(f"cannot write {where}: {wrong.strerror}", "name a writable file") from None


def _show(facts: Facts, findings: tuple[Finding, ...]) -> None:
    console = Console(highlight=False)
    seen = f"{len(CATALOGUE)} checks on {len(facts.inspected)} of {len(facts.members)} members in {facts.took_s:.1f} s"
    if not findings:
        console.print(f"nothing found: {seen}", style="bold green")
        return
    counted = ", ".join(f"{n} {name}{'s' if n > 1 else ''}" for name, n in counts(findings).items() if n)
    console.print(f"{counted}: {seen}", style="bold")
    for f in findings:
        console.print()
        console.print(Text.assemble((str(f.severity), STYLE[f.severity]), f"  {f.title}", (f"  [{f.id}]", "dim")))
        place = " · ".join(p for p in (f.member, f.evidence, f"set in {f.where}" if f.where else "") if p)
        for label, words in (("seen", place), ("cost", f.loses), ("fix", f.fix), ("why", f.source)):
            console.print(Text.assemble((f"  {label:5}", "dim"), words), soft_wrap=True)
