"""Findings where people read them: SARIF 2.1.0 for code hosting, JUnit XML and GitHub's workflow commands: text out."""

import json
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from walproof.advising.doctor.catalogue import CATALOGUE, GROUPS, Tree, counts
from walproof.advising.doctor.finding import Examination, Finding, Severity


def as_json(examinations: Iterable[Examination], skipped: Mapping[str, str]) -> Tree:
    """One object: what was found in each cluster, what was not checked, which files were not read."""
    clusters = [
        {
            "target": one.target,
            "counts": counts(one.findings),
            "findings": [asdict(f) for f in one.findings],
            "not_checked": dict(one.not_checked),
        }
        for one in examinations
    ]
    return {"clusters": clusters, "checks": len(CATALOGUE), "not_read": dict(skipped)}


def _location(target: str, finding: Finding) -> Tree:
    """The file's line and column, or the member of a live cluster."""
    if (place := finding.place) is None:
        return {"logicalLocations": [{"name": finding.member or target, "kind": "resource"}]}
    address = {"uri": urllib.parse.quote(place.file, safe="/")}
    region = {"startLine": place.line, "startColumn": place.column}
    return {"physicalLocation": {"artifactLocation": address, "region": region}}


def _words(finding: Finding) -> str:
    return f"{finding.title}: {finding.evidence}. {finding.could_cost} Fix: {finding.fix}"


def as_sarif(examinations: Iterable[Examination], version: str) -> Tree:
    """A rule per check, a result per finding; accepted ones as suppressed, checks that did not run as notifications."""
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
    order = {c.id: i for i, c in enumerate(CATALOGUE)}
    results: list[Tree] = []
    unchecked: list[Tree] = []
    for one in examinations:
        for f in one.findings:
            accepted: Any = [{"kind": "external", "justification": f.accepted}] if f.accepted else []
            results.append(
                {
                    "ruleId": f.id,
                    "ruleIndex": order[f.id],
                    "level": str(f.severity),
                    "message": {"text": _words(f)},
                    "locations": [_location(one.target, f)],
                    "suppressions": accepted,
                }
            )
        unchecked += [
            {"level": "note", "message": {"text": f"{one.target}: not checked: {why}"}, "associatedRule": {"id": check}}
            for check, why in one.not_checked.items()
        ]
    driver = {"name": "walproof doctor", "version": version, "rules": rules}
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": unchecked}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "invocations": [invocation], "results": results}],
    }


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
            failed = sum(_case(suite, one, check.id) for check in checks)
            suite.set("failures", str(failed))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, one: Examination, check: str) -> bool:
    """The case of one check, and whether it failed."""
    case = ElementTree.SubElement(suite, "testcase", classname=f"doctor.{one.target}", name=check)
    its = [f for f in one.findings if f.id == check]
    severe = [f for f in its if f.severity is not Severity.NOTE and not f.accepted]
    text = "\n".join(f"{_who(f)}: {f.evidence}\n{f.could_cost}\nfix: {f.fix}" for f in its)
    if severe:
        ElementTree.SubElement(case, "failure", message=severe[0].title, type=str(severe[0].severity)).text = text
    elif its:
        ElementTree.SubElement(case, "system-out").text = text
    elif check in one.not_checked:
        ElementTree.SubElement(case, "skipped", message=one.not_checked[check])
    return bool(severe)


def _who(finding: Finding) -> str:
    return finding.place.text if finding.place else finding.member


def _escaped(text: str, more: str = "") -> str:
    """As GitHub takes data, and with `more` a property (actions/toolkit, command.ts)."""
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def as_github(examinations: Iterable[Examination], skipped: Mapping[str, str]) -> str:
    """Workflow commands that put each finding beside its line."""
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
    lines = []
    for f in (f for one in examinations for f in one.findings if not f.accepted):
        place = f.place
        where = f"file={_escaped(place.file, ':,')},line={place.line},col={place.column}," if place else ""
        lines.append(f"::{names[f.severity]} {where}title={_escaped(f.id, ':,')}::{_escaped(_words(f))}")
    lines += [f"::warning file={_escaped(n, ':,')},title=not read::{_escaped(why)}" for n, why in skipped.items()]
    return "".join(f"{line}\n" for line in lines)
