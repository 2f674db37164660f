"""The words of the doctor: severity, check, hit, finding; and one way to run checks over facts."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from walproof.model.facts import Facts, MemberFacts, SettingFact


class Severity(StrEnum):
    """ERROR: acknowledged commits can be lost or writes hang now. WARNING: after one fault. NOTE: know it."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Hit:
    """What one look found: the evidence (value), where it is set, the fix to paste, the member concerned."""

    evidence: str
    fix: str
    where: str = ""
    member: str = ""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check: an entry of the catalogue and the pure question `look`. `seed` is how to cause it on purpose."""

    id: str
    severity: Severity
    title: str
    loses: str
    source: str
    seed: str
    look: Callable[[Facts], Iterator[Hit]]


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
        for hit in check.look(facts)
    ]
    return tuple(sorted(found, key=lambda f: (_ORDER[f.severity], f.id, f.member)))


def said(member: MemberFacts, setting: SettingFact) -> tuple[str, str, str]:
    """(evidence, where, member) of one setting: the words most hits begin with."""
    return f"{setting.name} = {setting.text}", setting.where, member.name


def set_by_sql(name: str, value: str, *, restart: bool = False) -> str:
    """The statement to paste, with what makes it take effect."""
    then = "restart PostgreSQL" if restart else "SELECT pg_reload_conf();"
    return f"ALTER SYSTEM SET {name} = '{value}'; {then}"


def set_anywhere(facts: Facts, name: str, value: str, *, restart: bool = False) -> str:
    """The fix in the manager's own words: patronictl where Patroni writes the configuration, else ALTER SYSTEM."""
    if facts.patroni is None:
        return set_by_sql(name, value, restart=restart)
    then = " && patronictl restart CLUSTER" if restart else ""
    return f"patronictl edit-config --pg {name}={value} --force{then}"


def set_patroni(name: str, value: str) -> str:
    """A key of Patroni's dynamic configuration."""
    return f"patronictl edit-config --set {name}={value} --force"
