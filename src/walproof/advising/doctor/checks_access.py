"""Checks of the inspection itself: what could not be inspected is reported."""

from collections.abc import Iterator

from walproof.advising.doctor.finding import Hit, Severity, checks_of, in_pod
from walproof.machine.quoting import pasted
from walproof.model.facts import Facts


def _member_unseen(facts: Facts) -> Iterator[Hit]:
    for member in facts.members:
        if member.error:
            fix = pasted("let walproof reach it (pg_hba.conf, firewall, dsn in the target file) and run again")
            yield Hit(member.error, fix, member.address, member.name)


def _rights_missing(facts: Facts) -> Iterator[Hit]:
    cnpg = facts.cnpg
    for refusal in cnpg.refusals if cnpg else ():
        what, _, fix = refusal.partition("; ")
        yield Hit(what, pasted("{fix:words}", fix=fix), "RBAC", severity=Severity.NOTE)
    for member in facts.inspected:
        # In CloudNativePG a role is the same on every instance.
        if member.monitor or (cnpg is not None and facts.leader_name not in ("", member.name)):
            continue
        evidence = f"role {member.user} is neither superuser nor a member of pg_monitor"
        fix, severity = pasted("GRANT pg_monitor TO {user:sql_name};", user=member.user), None
        if cnpg is not None:
            fix = in_pod(cnpg, facts.leader_name or cnpg.current_primary, pasted("psql --command {sql:shell}", sql=fix))
            severity = Severity.NOTE
        yield Hit(evidence, fix, "pg_roles", member.name, severity)


def _databases_unseen(facts: Facts) -> Iterator[Hit]:
    if facts.unseen_databases:
        evidence = "functions not inspected in: " + ", ".join(facts.unseen_databases)
        yield Hit(evidence, pasted("run the doctor with a role that may CONNECT there"), "pg_database")


CHECKS = checks_of("access", globals())
