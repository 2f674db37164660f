"""Findings that are known and accepted, with a reason and a last day: .walproof.toml. Pure: the day is an argument."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from walproof.advising.doctor.catalogue import CATALOGUE
from walproof.advising.doctor.finding import Examination, Finding
from walproof.errors import UsageError
from walproof.machine.toml_files import described

FILE = ".walproof.toml"
_EXAMPLE = '[[accept]] with check = "level-off", reason = "…", until = 2027-06-30 and, of one file, file = "…"'


class Acceptance(BaseModel):
    """One entry: which check, why, its last day, and in which file or member."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, str_strip_whitespace=True)
    check: str
    reason: str = Field(min_length=1)
    until: date
    file: str = "*"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    accept: list[Acceptance] = []


def accepting(examinations: Iterable[Examination], tree: dict[str, Any], today: date) -> list[Examination]:
    """The same with each finding marked that an entry of the file accepts; UsageError names what is wrong with one."""
    entries = described(_File, tree, FILE, _EXAMPLE).accept
    if unknown := {entry.check for entry in entries} - {check.id for check in CATALOGUE}:
        raise UsageError(f"{FILE} names no check: {min(unknown)!r}", "walproof doctor --list")
    return [replace(one, findings=tuple(_marked(f, entries, today) for f in one.findings)) for one in examinations]


def _marked(finding: Finding, entries: list[Acceptance], today: date) -> Finding:
    """One whose last day is over says so."""
    where = finding.place.file if finding.place else finding.member
    its = [entry for entry in entries if entry.check == finding.id and fnmatchcase(where, entry.file)]
    last = max(its, key=lambda entry: entry.until, default=None)
    if last is None:
        return finding
    if last.until < today:
        return replace(finding, evidence=f"{finding.evidence}; it was accepted until {last.until}")
    return replace(finding, accepted=f"{last.reason} (until {last.until})")
