"""Every check in one place, run over a snapshot. The tables of docs/doctor.md are made from the catalogue."""

from dataclasses import asdict
from typing import Any

from walproof.advising.doctor import (
    checks_access,
    checks_cnpg,
    checks_durability,
    checks_path,
    checks_patroni,
    checks_quorum,
    checks_standby,
    checks_timeouts,
)
from walproof.advising.doctor.finding import Check, Finding, Severity, finding_of, in_common, worst_first
from walproof.model.facts import Facts

GROUPS: dict[str, tuple[Check, ...]] = {
    "What reaches the disk": checks_durability.CHECKS,
    "What a commit guarantees": checks_durability.LEVEL_CHECKS,
    "Which standbys must answer": checks_quorum.CHECKS,
    "How standbys follow": checks_standby.CHECKS,
    "How soon errors are detected": checks_timeouts.CHECKS,
    "Patroni": checks_patroni.CHECKS,
    "CloudNativePG": checks_cnpg.CHECKS,
    "Clients' way to the leader": checks_path.CHECKS,
    "What could be inspected": checks_access.CHECKS,
}

CATALOGUE: tuple[Check, ...] = tuple(check for group in GROUPS.values() for check in group)


def diagnosed(facts: Facts) -> tuple[Finding, ...]:
    """Every finding of the whole catalogue over one snapshot, the worst first.

    Where a manager writes the configuration, what members have in common is one finding with one fix, of all of them.
    """
    hits = ((check, in_common(check.find(facts)) if facts.managed else check.find(facts)) for check in CATALOGUE)
    return worst_first(finding_of(check, hit) for check, its in hits for hit in its)


def failing(findings: tuple[Finding, ...], fail_on: Severity = Severity.WARNING) -> bool:
    """Whether the exit code is 1: any finding as severe as that, or more, which is not accepted; notes do not fail."""
    severe = [Severity.ERROR, fail_on]
    return any(f.severity in severe and not f.accepted for f in findings)


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
