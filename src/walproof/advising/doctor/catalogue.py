"""Every check in one place, run over a snapshot; its findings as JSON, SARIF 2.1.0 and JUnit XML: text out.

The tables of docs/doctor.md are made from the catalogue."""

import json
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from walproof.advising.doctor import (
    checks_access,
    checks_cnpg,
    checks_durability,
    checks_patroni,
    checks_quorum,
    checks_standby,
    checks_timeouts,
)
from walproof.advising.doctor.finding import Check, Finding, Severity, examined
from walproof.model.facts import Facts

GROUPS: dict[str, tuple[Check, ...]] = {
    "What reaches the disk": checks_durability.CHECKS,
    "What a commit guarantees": checks_durability.LEVEL_CHECKS,
    "Which standbys must answer": checks_quorum.CHECKS,
    "How standbys follow": checks_standby.CHECKS,
    "How soon errors are detected": checks_timeouts.CHECKS,
    "Patroni": checks_patroni.CHECKS,
    "CloudNativePG": checks_cnpg.CHECKS,
    "What could be inspected": checks_access.CHECKS,
}

CATALOGUE: tuple[Check, ...] = tuple(check for group in GROUPS.values() for check in group)


def diagnosed(facts: Facts) -> tuple[Finding, ...]:
    """Every finding of the whole catalogue over one snapshot, the worst first."""
    return examined(facts, CATALOGUE)


def failing(findings: tuple[Finding, ...]) -> bool:
    """Whether the exit code is 1: any finding of severity error or warning; notes alone do not fail."""
    return any(f.severity != "note" for f in findings)


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
        "findings": [asdict(f) for f in findings],
    }


def as_sarif(facts: Facts, findings: tuple[Finding, ...], version: str) -> Tree:
    """SARIF 2.1.0 (OASIS): a rule per check, a result per finding, the member as logical location."""
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
    results = [
        {
            "ruleId": f.id,
            "ruleIndex": order[f.id],
            "level": str(f.severity),
            "message": {"text": f"{f.title}: {f.evidence}. {f.could_cost} Fix: {f.fix}"},
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
            its = [f for f in findings if f.id == check.id]
            text = "\n".join(f"{f.member}: {f.evidence}\n{f.could_cost}\nfix: {f.fix}" for f in its)
            if any(f.severity is not Severity.NOTE for f in its):
                failed += 1
                failure = ElementTree.SubElement(case, "failure", message=check.title, type=str(its[0].severity))
                failure.text = text
            elif its:
                ElementTree.SubElement(case, "system-out").text = text
        suite.set("failures", str(failed))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def sarif_text(facts: Facts, findings: tuple[Finding, ...], version: str) -> str:
    """The SARIF log as text."""
    return json.dumps(as_sarif(facts, findings, version), indent=2, ensure_ascii=False) + "\n"
