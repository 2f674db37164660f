"""The same checks over what files declare: findings with their place; each check that could not run, with the reason.

A check that reads a setting which no file sets is not checked: what is in effect may be set elsewhere."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from walproof.advising.doctor.catalogue import CATALOGUE
from walproof.advising.doctor.finding import Check, Examination, Finding, finding_of, in_common, worst_first
from walproof.model.declared import Declared
from walproof.model.facts import Facts, SettingFact

_LIVE = "live: "
_NO_LEADER = "no file configures a server that takes commits"


class _Watched(dict[str, SettingFact]):
    """Settings that remember which of them were looked for in vain."""

    def __init__(self, settings: dict[str, SettingFact], missed: dict[str, None]) -> None:
        super().__init__(settings)
        self.missed = missed

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self.missed[key] = None
        return super().get(key, default)


def examined_files(declared: Declared, checks: Iterable[Check] = CATALOGUE) -> Examination:
    """Every check of the catalogue as a finding, as passed, or as not checked."""
    missed: dict[str, None] = {}
    members = tuple(replace(m, settings=_Watched(m.settings, missed)) for m in declared.facts.members)
    facts = replace(declared.facts, members=members)
    findings: list[Finding] = []
    not_checked: dict[str, str] = {}
    for check in checks:
        missed.clear()
        reason = _why_not(check, declared)
        hits = [] if reason else list(in_common(check.find(facts)))
        for hit in hits:
            texts = (hit.evidence, hit.where, check.keys)
            owners = [name for name in hit.member.split(", ") if name]
            findings.append(finding_of(check, hit, declared.places.of(texts, owners) or declared.start))
        if not hits and (reason := reason or _unseen(check, facts, declared, missed)):
            not_checked[check.id] = reason
    return Examination(declared.facts.target, worst_first(findings), not_checked)


def _why_not(check: Check, declared: Declared) -> str:
    """Why it cannot run on these files; "" where it can."""
    if check.files.startswith(_LIVE):
        return f"only a live cluster tells {check.files.removeprefix(_LIVE)}"
    absent = dict(declared.absent)
    if not declared.facts.access.proxies:
        absent["haproxy"] = "no file is a haproxy.cfg that leads to PostgreSQL"
    if not declared.facts.access.pools:
        absent["pgbouncer"] = "no file is a pgbouncer.ini or a Pooler"
    return next((absent[part] for part in check.files.split() if part in absent), "")


def _unseen(check: Check, facts: Facts, declared: Declared, missed: dict[str, None]) -> str:
    """Why one that found nothing has not passed; "" where it has."""
    if check.files != "settings":
        return ""
    if facts.leader is None:
        return _NO_LEADER
    known = [declared.absent[name] for name in missed if name in declared.absent]
    return next(iter(known or [f"no file sets {name}" for name in missed]), "")
