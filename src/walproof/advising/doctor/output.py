"""Findings as JSON, SARIF 2.1.0 and JUnit XML: text in, text out."""

import json
from typing import Any
from xml.etree import ElementTree

from walproof.advising.doctor.catalogue import CATALOGUE, GROUPS
from walproof.advising.doctor.finding import Finding, Severity
from walproof.model.facts import Facts

Tree = dict[str, Any]


def counts(findings: tuple[Finding, ...]) -> dict[str, int]:
    """How many of each severity."""
    return {str(s): sum(f.severity is s for f in findings) for s in Severity}


def as_json(facts: Facts, findings: tuple[Finding, ...]) -> Tree:
    """One object: target, members, seconds, checks run, counts and findings; on CloudNativePG what is declared."""
    return {
        "target": facts.target,
        **({"declared": facts.cnpg.declared} if facts.cnpg else {}),
        "members": [
            {"name": m.name, "address": m.address, "role": "leader" if m.leader else "standby", "error": m.error}
            for m in facts.members
        ],
        "seconds": round(facts.took_s, 3),
        "checks": len(CATALOGUE),
        "counts": counts(findings),
        "findings": [
            {
                "id": f.id,
                "severity": str(f.severity),
                "title": f.title,
                "member": f.member,
                "evidence": f.evidence,
                "where": f.where,
                "could_cost": f.loses,
                "fix": f.fix,
                "source": f.source,
            }
            for f in findings
        ],
    }


def as_sarif(facts: Facts, findings: tuple[Finding, ...], version: str) -> Tree:
    """SARIF 2.1.0 (OASIS): a rule per check, a result per finding, the member as logical location."""
    rules = [
        {
            "id": c.id,
            "shortDescription": {"text": c.title},
            "fullDescription": {"text": c.loses},
            "helpUri": c.source,
            "defaultConfiguration": {"level": str(c.severity)},
        }
        for c in CATALOGUE
    ]
    order = {c.id: i for i, c in enumerate(CATALOGUE)}
    results = [
        {
            "ruleId": f.id,
            "ruleIndex": order[f.id],
            "level": str(f.severity),
            "message": {"text": f"{f.title}: {f.evidence}. {f.loses} Fix: {f.fix}"},
            "locations": [{"logicalLocations": [{"name": f.member or facts.target, "kind": "resource"}]}],
        }
        for f in findings
    ]
    driver = {"name": "walproof doctor", "version": version, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def as_junit(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """JUnit XML: a suite per group, a case per check; errors and warnings are failures, notes are output."""
    root = ElementTree.Element("testsuites", name="walproof doctor", tests=str(len(CATALOGUE)))
    for title, checks in GROUPS.items():
        suite = ElementTree.SubElement(root, "testsuite", name=title, tests=str(len(checks)))
        failed = 0
        for check in checks:
            case = ElementTree.SubElement(suite, "testcase", classname=f"doctor.{facts.target}", name=check.id)
            found = [f for f in findings if f.id == check.id]
            text = "\n".join(f"{f.member}: {f.evidence}\n{f.loses}\nfix: {f.fix}" for f in found)
            if any(f.severity is not Severity.NOTE for f in found):
                failed += 1
                failure = ElementTree.SubElement(case, "failure", message=check.title, type=str(found[0].severity))
                failure.text = text
            elif found:
                ElementTree.SubElement(case, "system-out").text = text
        suite.set("failures", str(failed))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def sarif_text(facts: Facts, findings: tuple[Finding, ...], version: str) -> str:
    """The SARIF log as text."""
    return json.dumps(as_sarif(facts, findings, version), indent=2, ensure_ascii=False) + "\n"
