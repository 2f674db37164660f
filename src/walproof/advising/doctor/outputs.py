"""Findings where people read them: JSON, SARIF 2.1.0, JUnit XML, GitHub's workflow commands; and a check explained."""

import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from walproof.advising.doctor.catalogue import CATALOGUE, GROUPS, Tree, counts
from walproof.advising.doctor.finding import Examination, Finding, Severity
from walproof.errors import UsageError


def as_json(examinations: Iterable[Examination], skipped: Mapping[str, str]) -> Tree:
    """One object: what was found in each cluster, what was not checked, which files were not read."""
    clusters = [asdict(one) | {"counts": counts(one.findings)} for one in examinations]
    return {"clusters": clusters, "checks": len(CATALOGUE), "not_read": dict(skipped)}


def _words(finding: Finding) -> str:
    return f"{finding.title}: {finding.evidence}. {finding.could_cost} Fix: {finding.fix}"


def _result(target: str, index: int, finding: Finding) -> Tree:
    """With the file's line and column, or the member of a live cluster; suppressed where it is accepted."""
    place = finding.place
    location: Tree = {"logicalLocations": [{"name": finding.member or target, "kind": "resource"}]}
    if place is not None:
        address = {"uri": urllib.parse.quote(place.file, safe="/")}
        region = {"startLine": place.line, "startColumn": place.column}
        location = {"physicalLocation": {"artifactLocation": address, "region": region}}
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": str(finding.severity),
        "message": {"text": _words(finding)},
        "locations": [location],
        "suppressions": [{"kind": "external", "justification": finding.accepted}] if finding.accepted else [],
    }


def as_sarif(examinations: Iterable[Examination], version: str) -> Tree:
    """A rule per check, a result per finding; checks that did not run as notifications."""
    rules = [
        {
            "id": c.id,
            "shortDescription": {"text": c.title},
            "fullDescription": {"text": c.could_cost},
            "helpUri": c.source,
            "defaultConfiguration": {"level": str(c.severity)},
        }
        for c in CATALOGUE
    ]
    examinations, order = list(examinations), {c.id: i for i, c in enumerate(CATALOGUE)}
    unchecked = [
        {"level": "note", "message": {"text": f"{one.target}: not checked: {why}"}, "associatedRule": {"id": check}}
        for one in examinations
        for check, why in one.not_checked.items()
    ]
    run = {
        "tool": {"driver": {"name": "walproof doctor", "version": version, "rules": rules}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unchecked}],
        "results": [_result(one.target, order[f.id], f) for one in examinations for f in one.findings],
    }
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def sarif_text(examinations: Iterable[Examination], version: str) -> str:
    """The SARIF log as text."""
    return json.dumps(as_sarif(examinations, version), indent=2, ensure_ascii=False) + "\n"


def as_junit(examinations: Iterable[Examination]) -> str:
    """A suite per cluster and group, a case per check: errors and warnings fail, notes are output, the rest skipped."""
    examinations = list(examinations)
    root = ElementTree.Element("testsuites", name="walproof doctor", tests=str(len(CATALOGUE) * len(examinations)))
    for one in examinations:
        for title, checks in GROUPS.items():
            suite = ElementTree.SubElement(root, "testsuite", name=title, tests=str(len(checks)))
            suite.set("failures", str(sum(_case(suite, one, check.id) for check in checks)))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, one: Examination, check: str) -> bool:
    """The case of one check, and whether it failed."""
    case = ElementTree.SubElement(suite, "testcase", classname=f"doctor.{one.target}", name=check)
    its = [f for f in one.findings if f.id == check]
    severe = [f for f in its if f.severity is not Severity.NOTE and not f.accepted]
    where = [f.place.text if f.place else f.member for f in its]
    lines = [f"{at}: {f.evidence}\n{f.could_cost}\nfix: {f.fix}" for at, f in zip(where, its, strict=True)]
    if severe:
        failure = ElementTree.SubElement(case, "failure", message=severe[0].title, type=str(severe[0].severity))
        failure.text = "\n".join(lines)
    elif its:
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines)
    elif check in one.not_checked:
        ElementTree.SubElement(case, "skipped", message=one.not_checked[check])
    return bool(severe)


def _escaped(text: str, letters: str = "%\r\n") -> str:
    """As GitHub takes data, and with `:,` a property (actions/toolkit, command.ts)."""
    return "".join(f"%{ord(letter):02X}" if letter in letters else letter for letter in text)


def as_github(examinations: Iterable[Examination], skipped: Mapping[str, str]) -> str:
    """Workflow commands that put each finding beside its line."""
    lines = []
    for f in (f for one in examinations for f in one.findings if not f.accepted):
        name, at = {"note": "notice"}.get(f.severity, str(f.severity)), f.place
        where = f"file={_escaped(at.file, '%:,')},line={at.line},col={at.column}," if at else ""
        lines.append(f"::{name} {where}title={f.id}::{_escaped(_words(f))}\n")
    lines += [f"::warning file={_escaped(n, '%:,')},title=not read::{_escaped(why)}\n" for n, why in skipped.items()]
    return "".join(lines)


_THREAD = re.compile(r"\b(patroni|cloudnative-pg)#([0-9]+)")
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
    threads = [f"https://github.com/{m[1]}/{m[1]}/issues/{m[2]}" for m in _THREAD.finditer(check.could_cost)]
    texts: dict[str, Any] = {
        "check": f"{check.id} ({check.severity}): {check.title}",
        "why": check.could_cost,
        "source": check.source,
        "pitfall": pitfalls and f"walproof prove --pitfall {pitfalls}",
        "drill": drill and f"walproof prove {drill.strip()}",
        "thread": ", ".join(threads),
        "caused by": check.seed,
        "in files": "not checked" if check.files.startswith("live: ") else f"needs {check.files}",
        "undo": _UNDO.get(check.files.split()[0], "ALTER SYSTEM RESET NAME and a reload; or the file's former line"),
    }
    return {label: text for label, text in texts.items() if text}
