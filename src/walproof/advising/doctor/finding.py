"""Severity, check, hit and finding of the doctor; how checks run over facts, and how fixes are written."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from walproof.model.facts import Facts, MemberFacts, SettingFact


class Severity(StrEnum):
    """ERROR: acknowledged commits can be lost or writes hang now. WARNING: after one fault. NOTE: know it."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Hit:
    """One occurrence: the evidence (value), where it is set, the fix to paste, the member concerned."""

    evidence: str
    fix: str
    where: str = ""
    member: str = ""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check: an entry of the catalogue and the pure function `find`. `seed` is how to cause it on purpose."""

    id: str
    severity: Severity
    title: str
    loses: str
    source: str
    seed: str
    find: Callable[[Facts], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that found something."""

    id: str
    severity: Severity
    title: str
    evidence: str
    where: str
    member: str
    loses: str
    fix: str
    source: str


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def examined(facts: Facts, checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Every finding, the worst first, then by id and member."""
    found = [
        Finding(
            check.id,
            hit.severity or check.severity,
            check.title,
            hit.evidence,
            hit.where,
            hit.member,
            check.loses,
            hit.fix,
            check.source,
        )
        for check in checks
        for hit in check.find(facts)
    ]
    return tuple(sorted(found, key=lambda f: (_ORDER[f.severity], f.id, f.member)))


def setting_hit(
    member: MemberFacts, setting: SettingFact, fix: str, *, more: str = "", severity: Severity | None = None
) -> Hit:
    """A hit whose evidence is the value of one setting, with `more` after it."""
    return Hit(f"{setting.name} = {setting.text}{more}", fix, setting.where, member.name, severity)


def bad_setting(
    name: str,
    bad: Callable[[SettingFact], bool],
    good: str,
    *,
    members: Callable[[Facts], Iterable[MemberFacts]] = lambda facts: facts.inspected,
    restart: bool = False,
) -> Callable[[Facts], Iterator[Hit]]:
    """A function that finds one setting of every member whose value is `bad`; the fix sets `good`."""

    def find(facts: Facts) -> Iterator[Hit]:
        for member in members(facts):
            setting = member.setting(name)
            if setting is not None and bad(setting):
                yield setting_hit(member, setting, set_anywhere(facts, name, good, restart=restart))

    return find


def set_by_sql(name: str, value: str, *, restart: bool = False) -> str:
    """The statement to paste, with what makes it take effect."""
    then = "restart PostgreSQL" if restart else "SELECT pg_reload_conf();"
    return f"ALTER SYSTEM SET {name} = '{value}'; {then}"


def set_anywhere(facts: Facts, name: str, value: str, *, restart: bool = False) -> str:
    """The fix as the manager takes it: patronictl or kubectl where one writes the configuration, else ALTER SYSTEM."""
    if facts.cnpg is not None:
        return patch_cluster(facts, {"postgresql": {"parameters": {name: value}}})
    if facts.patroni is None:
        return set_by_sql(name, value, restart=restart)
    then = " && patronictl restart CLUSTER" if restart else ""
    return f"patronictl edit-config --pg {name}={value} --force{then}"


def patch_cluster(facts: Facts, spec: dict[str, Any]) -> str:
    """The command that merges this into the Cluster's spec."""
    cluster = facts.cnpg.name if facts.cnpg else "CLUSTER"
    namespace = facts.cnpg.namespace if facts.cnpg else "NAMESPACE"
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return f"kubectl patch cluster {cluster} --namespace {namespace} --type merge --patch '{body}'"


def in_pod(facts: Facts, member: str, command: str) -> str:
    """The command that runs another one in an instance's container."""
    namespace = facts.cnpg.namespace if facts.cnpg else "NAMESPACE"
    return f"kubectl exec {member} --namespace {namespace} --container postgres -- {command}"


def set_patroni(name: str, value: str) -> str:
    """The command that sets a key of Patroni's dynamic configuration."""
    return f"patronictl edit-config --set {name}={value} --force"
