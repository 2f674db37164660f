"""Checks of the inspection itself: what could not be inspected is reported."""

from collections.abc import Iterator

from walproof.advising.doctor.finding import Check, Hit, Severity, in_pod
from walproof.model.facts import Facts


def _unreachable(facts: Facts) -> Iterator[Hit]:
    for member in facts.members:
        if member.error:
            fix = "let walproof reach it (pg_hba.conf, firewall, dsn in the target file) and run again"
            yield Hit(member.error, fix, member.address, member.name)


def _rights(facts: Facts) -> Iterator[Hit]:
    for refusal in facts.cnpg.refusals if facts.cnpg else ():
        what, _, fix = refusal.partition("; ")
        yield Hit(what, fix, "RBAC", severity=Severity.NOTE)
    for member in facts.inspected:
        if not member.monitor and facts.cnpg is not None and facts.leader_name not in ("", member.name):
            # A role is the same on every instance.
            continue
        if not member.monitor:
            evidence = f"role {member.user} is neither superuser nor a member of pg_monitor"
            fix = f'GRANT pg_monitor TO "{member.user}";'
            if facts.cnpg is not None:
                fix = in_pod(facts, facts.leader_name or facts.cnpg.current_primary, f"psql --command '{fix}'")
            severity = None if facts.cnpg is None else Severity.NOTE
            yield Hit(evidence, fix, "pg_roles", member.name, severity)


def _databases(facts: Facts) -> Iterator[Hit]:
    if facts.unseen_databases:
        evidence = "functions not inspected in: " + ", ".join(facts.unseen_databases)
        yield Hit(evidence, "run the doctor with a role that may CONNECT there", "pg_database")


CHECKS = (
    Check(
        "member-unseen",
        Severity.WARNING,
        "a member could not be inspected",
        "It may have any of the other errors.",
        "https://www.postgresql.org/docs/current/client-authentication-problems.html",
        "stop a standby",
        _unreachable,
    ),
    Check(
        "rights-missing",
        Severity.WARNING,
        "the role may not see everything",
        "Lags, waits, slots' holders and some settings stay hidden: checks on them find nothing.",
        "https://www.postgresql.org/docs/current/predefined-roles.html",
        "run the doctor as a plain LOGIN role",
        _rights,
    ),
    Check(
        "databases-unseen",
        Severity.NOTE,
        "some databases could not be inspected",
        "Functions there may override synchronous_commit.",
        "https://www.postgresql.org/docs/current/catalog-pg-proc.html",
        "REVOKE CONNECT ON DATABASE app",
        _databases,
    ),
)
