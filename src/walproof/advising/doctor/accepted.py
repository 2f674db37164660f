"""Findings that are known and accepted, with a reason and a last day: .walproof.toml. Pure: the day is an argument."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from typing import Any

from walproof.advising.doctor.catalogue import CATALOGUE
from walproof.advising.doctor.finding import Examination, Finding
from walproof.errors import UsageError

FILE = ".walproof.toml"
_EXAMPLE = (
    '[[accept]] with check = "level-off", reason = "…", until = 2027-06-30, and file = "…" where it is of one file'
)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One entry: which check, in which file or member ("*": any), why, and its last day."""

    check: str
    reason: str
    until: date
    file: str = "*"


def acceptances(tree: dict[str, Any]) -> list[Acceptance]:
    """The entries of the file; UsageError names what is wrong with one."""
    entries = tree.get("accept", [])
    if tree.keys() - {"accept"} or not isinstance(entries, list):
        raise UsageError(f"{FILE} holds something else than [[accept]]", _EXAMPLE)
    return [_acceptance(entry, number) for number, entry in enumerate(entries, 1)]


def _acceptance(entry: Any, number: int) -> Acceptance:
    wrong = ""
    if not isinstance(entry, dict) or entry.keys() - {"check", "reason", "until", "file"}:
        wrong = "has keys other than check, reason, until, file"
    elif entry.get("check") not in {check.id for check in CATALOGUE}:
        wrong = f"names no check: {entry.get('check')!r} (walproof doctor --list)"
    elif not isinstance(entry.get("reason"), str) or not entry["reason"].strip():
        wrong = "has no reason"
    elif not isinstance(entry.get("until"), date) or not isinstance(entry.get("file", "*"), str):
        wrong = "has no last day: until = 2027-06-30, unquoted"
    if wrong:
        raise UsageError(f"{FILE}: entry {number} {wrong}", _EXAMPLE)
    until = entry["until"]
    return Acceptance(entry["check"], entry["reason"], date(until.year, until.month, until.day), entry.get("file", "*"))


def accepting(examination: Examination, entries: Iterable[Acceptance], today: date) -> Examination:
    """The same with each finding marked that an entry accepts; one whose day is over says so."""
    entries = list(entries)
    return replace(examination, findings=tuple(_marked(f, entries, today) for f in examination.findings))


def _marked(finding: Finding, entries: list[Acceptance], today: date) -> Finding:
    where = finding.place.file if finding.place else finding.member
    its = [e for e in entries if e.check == finding.id and fnmatchcase(where, e.file)]
    if not its:
        return finding
    entry = max(its, key=lambda e: e.until)
    if entry.until < today:
        return replace(finding, evidence=f"{finding.evidence}; it was accepted until {entry.until}")
    return replace(finding, accepted=f"{entry.reason} (until {entry.until})")
