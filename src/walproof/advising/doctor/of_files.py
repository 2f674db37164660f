"""The same checks over what files declare: findings with their place; each check that could not run, with the reason.

A check that reads a setting which no file sets is not checked: what is in effect may be set elsewhere."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from walproof.advising.doctor.catalogue import CATALOGUE
from walproof.advising.doctor.finding import Examination, Finding, Hit, finding_of, in_common, worst_first
from walproof.model.declared import Declared
from walproof.model.facts import SettingFact


class _Watched(dict[str, SettingFact]):
    """Settings that remember which of them were looked for in vain."""

    def __init__(self, settings: dict[str, SettingFact], missed: dict[str, None]) -> None:
        super().__init__(settings)
        self.missed = missed

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self.missed[key] = None
        return super().get(key, default)


def examined_files(declared: Declared) -> Examination:
    """Every check of the catalogue as a finding, as passed, or as not checked."""
    missed: dict[str, None] = {}
    members = (replace(member, settings=_Watched(member.settings, missed)) for member in declared.facts.members)
    facts, absent = replace(declared.facts, members=tuple(members)), dict(declared.absent)
    absent |= {} if facts.access.proxies else {"haproxy": "no file is a haproxy.cfg that leads to PostgreSQL"}
    absent |= {} if facts.access.pools else {"pgbouncer": "no file is a pgbouncer.ini or a Pooler"}
    absent |= {} if facts.access.clients else {"clients": "no file holds a client's connection string"}
    findings: list[Finding] = []
    not_checked: dict[str, str] = {}
    for check in CATALOGUE:
        missed.clear()
        part, _, untold = check.files.partition("live: ")
        reason = f"only a live cluster tells {untold}" if untold else ""
        reason = reason or next((absent[one] for one in part.split() if one in absent), "")
        found: Iterable[Hit] = () if reason else check.find(facts)
        # Members may have a setting in common; each proxy, pool and client has its own.
        hits = list(found if part in ("haproxy", "pgbouncer", "clients") else in_common(found))
        for hit in hits:
            place = declared.places.of((hit.evidence, hit.where, check.keys), hit.member.split(", "))
            findings.append(finding_of(check, hit, place or declared.start))
        if not hits and not reason and part == "settings":
            # It found nothing: passed only where it saw all that it asked for.
            leaderless = [] if facts.leader else ["no file configures a server that takes commits"]
            reasons = [absent[name] for name in missed if name in absent]
            reason = next(iter([*leaderless, *reasons, *(f"no file sets {name}" for name in missed)]), "")
        not_checked |= {check.id: reason} if reason else {}
    return Examination(declared.facts.target, worst_first(findings), not_checked)
