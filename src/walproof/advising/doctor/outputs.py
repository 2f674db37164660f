"""Findings where people read them: JSON, SARIF 2.1.0, JUnit XML, GitHub's workflow commands; and a check explained."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict

from walproof.advising.doctor.catalogue import CATALOGUE, GROUPS, Tree, counts
from walproof.advising.doctor.finding import Examination, Finding, Severity
from walproof.errors import UsageError
from walproof.machine.quoting import pasted
from walproof.machine.text_templates import filled
from walproof.machine.untrusted import field
from walproof.model.declared import Skipped
from walproof.model.junit import Case, junit


def as_json(examinations: Sequence[Examination], skipped: Skipped) -> Tree:
    """One object: what was found in each cluster, what was not checked, what was not read."""
    clusters = [asdict(one) | {"counts": counts(one.findings)} for one in examinations]
    return {"clusters": clusters, "checks": len(CATALOGUE), "not_read": {at.text: why for at, why in skipped.items()}}


def _words(finding: Finding) -> str:
    return f"{finding.title}: {finding.evidence}. {finding.could_cost} Fix: {finding.fix}"


def as_sarif(version: str, examinations: Sequence[Examination], skipped: Skipped) -> str:
    """By the template beside this file, laid out as JSON."""
    not_checked = [(one.target, *why) for one in examinations for why in one.not_checked.items()]
    findings = [(one.target, f, _words(f)) for one in examinations for f in one.findings]
    order = {check.id: number for number, check in enumerate(CATALOGUE)}
    given = {"checks": CATALOGUE, "order": order, "not_checked": not_checked, "findings": findings, "skipped": skipped}
    text = filled("walproof.advising.doctor", "sarif.json.j2", version=version, **given)
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


def as_junit(examinations: Sequence[Examination], skipped: Skipped) -> str:
    """A suite per group, a case per check: errors and warnings fail, notes are output; not checked or read: skipped."""
    groups = [(one, title, check.id) for one in examinations for title, checks in GROUPS.items() for check in checks]
    not_read = [Case("Files", "doctor", f"read {at.text}", "skipped", why) for at, why in skipped.items()]
    return junit("walproof doctor", [*(_case(*given) for given in groups), *not_read])


def _case(one: Examination, suite: str, check: str) -> Case:
    its = [f for f in one.findings if f.id == check]
    severe = [f for f in its if f.severity is not Severity.NOTE and not f.accepted]
    outcome = "failure" if severe else "system-out" if its else "skipped" * (check in one.not_checked)
    message = severe[0].title if severe else one.not_checked.get(check, "")
    lines = ((f"{f.place.text if f.place else f.member}: {f.evidence}", f.could_cost, f"fix: {f.fix}") for f in its)
    text = "\n".join(field(line) for three in lines for line in three)
    return Case(suite, f"doctor.{one.target}", check, outcome, message, text)


_DATA, _PROPERTY = "%\r\n", "%\r\n:,"
"""What GitHub decodes in data, and in a property (actions/toolkit, command.ts)."""


def _escaped(text: str, letters: str = _DATA) -> str:
    return field("".join(f"%{ord(letter):02X}" if letter in letters else letter for letter in text))


def as_github(examinations: Sequence[Examination], skipped: Skipped) -> str:
    """Workflow commands that put each finding beside its line."""
    findings = [f for one in examinations for f in one.findings if not f.accepted]
    said = [({"note": "notice"}.get(f.severity, str(f.severity)), f.place, f.id, _words(f)) for f in findings]
    said += [("warning", at, "not read", why) for at, why in skipped.items()]
    text = ""
    for level, at, title, words in said:
        where = f"file={_escaped(at.file, _PROPERTY)}," if at else ""
        where += f"line={at.line},col={at.column}," if at and at.line else ""
        text += f"::{level} {where}title={_escaped(title, _PROPERTY)}::{_escaped(field(words))}\n"
    return text


_UNDO = {
    "patroni": "patronictl edit-config --set KEY=FORMER --force; before the fix, patronictl show-config has it",
    "cnpg": "kubectl patch cluster with the former value, or revert the commit that set another",
    "haproxy": "put the former line back, haproxy -c -f haproxy.cfg, then reload HAProxy",
    "pgbouncer": "put the former value back, then RELOAD on PgBouncer's console",
}


def explanation(name: str) -> dict[str, str]:
    """Why a check is made, the evidence one can make oneself, how to undo its fix. UsageError for an unknown check."""
    check = next((one for one in CATALOGUE if one.id == name), None)
    if check is None:
        raise UsageError(f"{name!r} is no check of the doctor", "walproof doctor --list")
    pitfalls, _, drill = check.shown.partition(";")
    threads = re.finditer(r"\b(patroni|cloudnative-pg)#([0-9]+)", check.could_cost)
    texts = {
        "check": f"{check.id} ({check.severity}): {check.title}",
        "why": check.could_cost,
        "source": check.source,
        "pitfall": pitfalls and pasted("walproof prove --pitfall {names:shell}", names=pitfalls),
        "drill": drill and " ".join(("walproof prove", drill.strip())),
        "thread": ", ".join(f"https://github.com/{m[1]}/{m[1]}/issues/{m[2]}" for m in threads),
        "caused by": check.seed,
        "in files": "not checked" if check.files.startswith("live: ") else f"needs {check.files}",
        "undo": _UNDO.get(check.files.split()[0], "ALTER SYSTEM RESET NAME and a reload; or the file's former line"),
    }
    return {label: text for label, text in texts.items() if text}
