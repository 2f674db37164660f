"""`walproof doctor`: findings about a cluster's durability and an exit code; reads only."""

import cloup
from rich.text import Text

from walproof.advising.doctor.catalogue import CATALOGUE, as_junit, counts, diagnosed, failing, sarif_text
from walproof.advising.doctor.catalogue import as_json as findings_json
from walproof.advising.doctor.finding import Finding
from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.errors import ExitCode, UsageError
from walproof.model.drill import Capability
from walproof.model.facts import Facts
from walproof.model.units import counted
from walproof.records.layout import version
from walproof.reporting.console_output import console, print_json, print_result, write_file
from walproof.targets.choose import choose

STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@cloup.command(cls=Command)
@opt.cluster()
@opt.output(
    opt.option("--sarif", "FILE", "SARIF 2.1.0 for code scanning; - is standard output."),
    opt.junit,
    opt.flag("--list listed", "List the checks and ask no cluster."),
)
def doctor(target: str | None, as_json: bool, sarif: str | None, junit: str | None, listed: bool) -> ExitCode:
    """What is wrong with a cluster's durability and failover. Reads only; exit 1 on any error or warning."""
    if as_json + (sarif == "-") + (junit == "-") > 1:
        raise UsageError("only one thing can go to standard output", "choose one of --json, --sarif -, --junit -")
    if listed:
        _print_checks(as_json=as_json)
        return ExitCode.HELD
    chosen = choose(target)
    able = chosen.capabilities()
    if able.inspection is None:
        raise UsageError(f"{chosen.name}: {able.why_not(Capability.INSPECT)}", "the doctor inspects real servers only")
    facts = able.inspection.facts()
    findings = diagnosed(facts)
    if sarif:
        write_file(sarif, sarif_text(facts, findings, version()), "name a writable file")
    if junit:
        write_file(junit, as_junit(facts, findings), "name a writable file")
    if as_json:
        print_json(findings_json(facts, findings))
    elif "-" not in (sarif, junit):
        _print_findings(facts, findings)
    return ExitCode.BROKEN if failing(findings) else ExitCode.HELD


def _print_checks(*, as_json: bool) -> None:
    tree = {"checks": [{"id": c.id, "severity": str(c.severity), "title": c.title} for c in CATALOGUE]}
    print_result(tree, *(f"{c.severity:8} {c.id:32} {c.title}" for c in CATALOGUE), as_json=as_json)


def _print_findings(facts: Facts, findings: tuple[Finding, ...]) -> None:
    screen = console()
    if facts.cnpg:
        screen.print(f"as declared: {facts.cnpg.declared}", style="dim", soft_wrap=True)
    reached = f"{len(facts.inspected)} of {counted(len(facts.members), 'member')}"
    checked = f"{counted(len(CATALOGUE), 'check')} on {reached} in {facts.took_s:.1f} s"
    if not findings:
        screen.print(f"nothing found: {checked}", style="bold green")
        return
    tally = ", ".join(counted(n, name) for name, n in counts(findings).items() if n)
    screen.print(f"{tally}: {checked}", style="bold")
    for f in findings:
        screen.print()
        screen.print(Text.assemble((str(f.severity), STYLE[f.severity]), f"  {f.title}", (f"  [{f.id}]", "dim")))
        evidence = " · ".join(p for p in (f.member, f.evidence, f"set in {f.where}" if f.where else "") if p)
        for label, text in (("seen", evidence), ("cost", f.could_cost), ("fix", f.fix), ("why", f.source)):
            screen.print(Text.assemble((f"  {label:5}", "dim"), text), soft_wrap=True)
