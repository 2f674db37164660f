"""Every check in one place, and the tables of docs/doctor.md made from it."""

from walproof.advising.doctor import (
    checks_access,
    checks_cnpg,
    checks_durability,
    checks_levels,
    checks_patroni,
    checks_quorum,
    checks_standby,
    checks_timeouts,
)
from walproof.advising.doctor.finding import Check, Finding, examined
from walproof.model.facts import Facts

GROUPS: dict[str, tuple[Check, ...]] = {
    "What reaches the disk": checks_durability.CHECKS,
    "What a commit guarantees": checks_levels.CHECKS,
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


def catalogue_table() -> str:
    """The checks as Markdown tables, one per group: id, severity, what could be lost, how to seed it, source."""
    lines: list[str] = []
    for title, checks in GROUPS.items():
        lines += [
            f"### {title}",
            "",
            "| check | severity | finds, and what it may cost | seeded by |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| [`{c.id}`]({c.source}) | {c.severity} | {c.title}. {c.loses} | {c.seed.replace('|', '/')} |"
            for c in checks
        ]
        lines.append("")
    return "\n".join(lines)
