"""Which journal a verb keeps: all in the state folder; runs with a copy in their record."""

from collections.abc import Sequence
from pathlib import Path

from walproof.lab import home
from walproof.model.ports import Target
from walproof.records.journal import Change, Journal
from walproof.records.layout import safe_name
from walproof.records.registered import check_ours, register

APPLIED = "applied"


def runs_folder() -> Path:
    """Where journals of runs lie, each until nothing of it is left to be undone."""
    return home.state_folder() / "journals"


def keep_journal(target: Target, directory: Path) -> None:
    """Let an external cluster note its changes, for the record at `directory`; other targets need no journal."""
    if target.external:
        target.journal = register(runs_folder(), directory)


def applied_folder() -> Path:
    """Where journals of apply lie."""
    return home.state_folder() / APPLIED


def journal_of_apply(target: str) -> Journal:
    """The journal of everything ever applied to that target; MachineError where it is not the user's alone."""
    path = applied_folder() / f"{safe_name(target)}.jsonl"
    for one in (path.parent, path):
        check_ours(one)
    return Journal(path)


class Layer:
    """The newest part of a journal of apply: down to the last complete application, or that one included."""

    def __init__(self, journal: Journal, *, complete: bool) -> None:
        self._journal = journal
        self._complete = complete

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Change:
        """As the journal itself."""
        return self._journal.note(at, target, what, name, before=before, after=after)

    def undone(self, change: Change) -> None:
        """As the journal itself."""
        self._journal.undone(change)

    def pending(self, target: str | None = None) -> Sequence[Change]:
        """Changes of that layer, newest first, without the marks of completion."""
        found: list[Change] = []
        marks = 0
        for change in self._journal.pending(target):
            if change.what == APPLIED:
                marks += 1
                if marks > int(self._complete):
                    break
                continue
            found.append(change)
        return found

    def close(self, target: str) -> None:
        """Remove the mark of the application that was just reverted too."""
        newest = next(iter(self._journal.pending(target)), None)
        if self._complete and newest is not None and newest.what == APPLIED:
            self._journal.undone(newest)
