"""What a run of a verb has: its first event, its progress bar, its journal, its end after `--duration`.

Also the temporary lab of `demo` and `study`, which ends with the command, after an error or Ctrl-C too."""

import atexit
import hashlib
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walproof.cli.options import LEAVES
from walproof.errors import Error, MachineError, UndecidedError
from walproof.lab import home
from walproof.lab.create import LabOrder, design, temporary_lab
from walproof.machine.clock import RealClock
from walproof.machine.quoting import pasted
from walproof.machine.redaction import command_line
from walproof.model.event import Started
from walproof.model.guarantee import same_server
from walproof.model.ports import Notebook, Target
from walproof.model.sample import Workload
from walproof.model.units import counted
from walproof.pricing.sampling import OnProgress, RunProgress
from walproof.records.journal import Change, Journal
from walproof.records.layout import make_folder, safe_name, version
from walproof.records.own_journals import (
    APPLIES,
    RUNS,
    UNDOING,
    OwnJournal,
    announce,
    check_ours,
    pending_beside,
    register,
    same_setting,
)
from walproof.reporting.console_output import console
from walproof.targets.choose import choose
from walproof.targets.configure import apart, check_identity


def started(verb: str, asked: Mapping[str, Any], *, at: float, seed: int) -> Started:
    """The first event of a run: what was asked, this command line without secrets, the version of walproof."""
    given = {name: value for name, value in asked.items() if value not in (None, False)}
    return Started(at, verb, given, command_line(sys.argv[1:]), seed, version())


def kept_files(workload: Workload) -> tuple[tuple[str, str], ...]:
    """Names in the record, and paths, of the files that the workload reads."""
    return tuple((safe_name(f"{i} {Path(name).name}"), name) for i, name in enumerate(workload.files, 1))


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[OnProgress]:
    """A bar with the time left on standard error, on a terminal only; gives the function that moves it."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("preparing", total=None)

        def move(progress: RunProgress) -> None:
            done = min(progress.elapsed_s, progress.budget_s)
            bar.update(task, description=progress.doing, completed=done, total=progress.budget_s)

        yield move


APPLIED, BEGUN = "applied", "undoing"
"""Marks in a journal of apply: an application is complete; that one, by its number, is being undone."""


def runs_folder() -> Path:
    """Where journals of runs lie, each until nothing of it is left to be undone."""
    return home.own_state() / RUNS


def keep_journal(target: Target | None, directory: Path | None) -> None:
    """Let an external cluster note its changes, for the record at `directory` or none; others need no journal."""
    if target is not None and target.external:
        journal = register(runs_folder(), directory, target.identity)
        check_identity(journal, target, journal.registration)
        for change, newer in covering(journal.registration, journal.pending()):
            raise MachineError(
                f"the run was cut off with {change.name} changed, and {newer} has changed that since",
                "undo that, then walproof revert, then go on",
            )
        target.journal = journal
        if context := click.get_current_context(silent=True):
            context.meta.setdefault(LEAVES, []).append(partial(_leaves, target))
        # Registered before the target's own: called after it has removed what it made.
        atexit.register(_say_what_is_left, target.name, target.journal)


def _leaves(target: Target) -> bool:
    """Whether something of a run that ends could not be undone."""
    target.close()
    return bool(target.journal.pending(target.name))


def _say_what_is_left(name: str, journal: Notebook) -> None:
    try:
        pending = len(journal.pending(name))
        said = (
            f"{counted(pending, 'change')} could not be undone on {name}: walproof revert does it, or says what stays"
        )
    except MachineError as wrong:
        pending, said = 1, wrong.message
    with suppress(OSError):
        if pending:
            click.echo(f"walproof: {said}", err=True)


def applied_folder() -> Path:
    """Where journals of apply lie."""
    return home.own_state() / APPLIES


def journal_of_apply(target: str, cluster: str = "") -> Journal:
    """The journal of everything ever applied to that target; MachineError where others may write it.

    Until 1.0.0 targets whose names differ in odd characters had one file: it is used until nothing of this one is left.
    """
    name = safe_name(target)
    until_1_0_0 = applied_folder() / f"{name}.jsonl"
    path = applied_folder() / f"{name}-{hashlib.sha256(target.encode()).hexdigest()[:16]}.jsonl"
    for one in (path.parent, until_1_0_0, path):
        check_ours(one)
    return OwnJournal(until_1_0_0 if Journal(until_1_0_0).pending(target) else path, None, cluster, home.own_state())


def applied_as(cluster: str) -> list[str]:
    """Targets' names as which something stands applied on that cluster, a system identifier; none where it is ""."""
    beside = pending_beside(home.own_state(), home.own_state())
    return sorted({one.target for _, one in beside if one.what == APPLIED and cluster and one.cluster == cluster})


@contextmanager
def undoing() -> Iterator[Callable[[Sequence[Change]], None]]:
    """For revert and `apply --undo`: one process at a time undoes, from reading what is pending until that is undone.

    UndecidedError, at once, where another does. Gives what announces the changes that are undone next: before it is
    read which of them a newer one covers, so that a run either is seen, or sees it and changes nothing.
    """
    with _locked(home.own_state() / UNDOING, runs_folder(), _undoes) as file:
        yield partial(announce, file)


def _undoes(process: str) -> UndecidedError:
    return UndecidedError(f"left alone, a revert or `apply --undo` goes on (process {process})", "wait for its end")


@contextmanager
def applying(journal: Path) -> Iterator[None]:
    """For an apply, its undo and its revert: one at a time may change by that journal and number its entries.

    MachineError, at once, where another process is at it. The lock ends with its process, killed or not.
    """
    lock = journal.with_suffix(".lock")
    check_ours(lock.parent)
    with _locked(lock, lock.parent, _goes_on):
        yield


@contextmanager
def _locked(lock: Path, folder: Path, refusal: Callable[[str], Error]) -> Iterator[IO[str]]:
    check_ours(lock)
    with ExitStack() as stack:
        try:
            make_folder(folder)
            file = stack.enter_context(home.exclusively(lock, refusal))
        except OSError as wrong:
            raise MachineError(f"cannot lock {lock}: {wrong.strerror}", "may you write in its folder?") from None
        yield file


def _goes_on(process: str) -> MachineError:
    return MachineError(f"an apply goes on (process {process})", "wait for its end, or end it (kill)")


class Layer:
    """The newest part of a journal of apply: down to the last complete application, or that one included.

    One whose undoing was begun counts as incomplete, so that `revert` ends what a killed `apply --undo` had begun.
    """

    def __init__(self, journal: Journal, *, complete: bool) -> None:
        self._journal = journal
        self._complete = complete

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Change:
        return self._journal.note(at, target, what, name, before=before, after=after)

    def undone(self, change: Change) -> None:
        """As the journal itself; with its last change go the marks of an application whose undoing was begun."""
        rest = any(other.number != change.number for other in self.pending(change.target))
        self._journal.undone(change, *(() if rest else self._over(change.target)))

    def _marks(self, target: str) -> list[tuple[Change, bool]]:
        """Of complete applications, the newest first: each one's mark, and whether its undoing was begun."""
        pending = self._journal.pending(target)
        begun = {change.name for change in pending if change.what == BEGUN}
        return [(change, str(change.number) in begun) for change in pending if change.what == APPLIED]

    def _over(self, target: str) -> list[Change]:
        """The marks of the newest application where its undoing was begun; those of undoings that have no other."""
        marks = self._marks(target)
        over = [mark for mark, begun in marks[:1] if begun]
        stay = {str(mark.number) for mark, _ in marks} - {str(mark.number) for mark in over}
        return [*over, *(c for c in self._journal.pending(target) if c.what == BEGUN and c.name not in stay)]

    def begin(self, at: float, target: str) -> bool:
        """Note that the last complete application is being undone, unless it is already; whether there is one."""
        for mark, begun in self._marks(target)[:1]:
            if not begun:
                self._journal.note(at, target, BEGUN, str(mark.number), before=None, after=None)
            return True
        return False

    def pending(self, target: str | None = None) -> Sequence[Change]:
        """Changes of that layer, newest first, without the marks; None: of each target that the journal names."""
        if target is None:
            names = {change.target for change in self._journal.pending()}
            return sorted((one for name in names for one in self.pending(name)), key=lambda one: -one.number)
        marks = self._marks(target)
        below = marks[1:] if self._complete or (marks and marks[0][1]) else marks
        last = below[0][0].number if below else 0
        changes = (change for change in self._journal.pending(target) if change.what not in (APPLIED, BEGUN))
        return [change for change in changes if change.number > last]

    def servers(self) -> frozenset[str]:
        return self._journal.servers()

    def close(self, target: str) -> None:
        """Remove the marks of an application that was reverted whole."""
        if not self.pending(target):
            self._journal.undone(*self._over(target))

    def check_undone(self, target: str) -> None:
        """MachineError where the undoing of an application was begun and is not ended: nothing is applied upon it."""
        self.close(target)
        if any(begun for _, begun in self._marks(target)[:1]):
            raise MachineError(
                f"`apply --undo` was cut off or found not all members: some of it is still to be undone on {target}",
                pasted("walproof revert; where what it leaves is over: rm {path:path}", path=self._journal.path),
            )


class Due:
    """A journal less the changes that are left alone just now, by their numbers."""

    def __init__(self, journal: Notebook, alone: Container[int]) -> None:
        self._journal = journal
        self._alone = alone
        self.note, self.undone, self.servers = journal.note, journal.undone, journal.servers

    def pending(self, target: str | None = None) -> Sequence[Change]:
        return [change for change in self._journal.pending(target) if change.number not in self._alone]


def covering(path: Path, changes: Sequence[Change]) -> list[tuple[Change, str]]:
    """Those of the changes of which another own journal holds a newer pending one of that setting on that member, and
    which run or apply that is.

    It found there what this one set, and would set that again when it is undone itself. An apply may stay for ever: of
    a manager's configuration, whose keys are put back one by one, it covers those alone that it changes.
    """
    beside = list(pending_beside(home.own_state(), path))
    found = ((change, next(filter(None, (_covers(*one, change) for one in beside)), "")) for change in changes)
    return [(change, newer) for change, newer in found if newer]


def _covers(path: Path, newer: Change, change: Change) -> str:
    if not (newer.at > change.at and same_setting(newer, change)):
        return ""
    return "" if path.parent == applied_folder() and apart(newer, change) else _whose(path)


def _whose(path: Path) -> str:
    if path.parent == applied_folder():
        return f"the apply of {path}"
    return f"the run of {next((head['record'] for head in Journal(path).heads() if head.get('record')), path)}"


def standing(path: Path, change: Change, is_there: Callable[[Change], bool]) -> str:
    """Which run or apply's newer change, on that server by another name, is what stands there; "" for none.

    Two targets of one system identifier may be a cluster and its copy, so the server itself is asked.
    """
    beside = ((one, other) for one, other in pending_beside(home.own_state(), path) if other.at > change.at)
    newer = ((one, other) for one, other in beside if same_setting(other, change) is None and is_there(other))
    covering = (f"{_whose(one)} on {other.target}" for one, other in newer if not _as_well(other, change))
    return next(covering, "")


def _as_well(newer: Change, change: Change) -> bool:
    """Whether both set one value, by two targets' names and on two servers, as far as that is known: none covers."""
    two = bool(newer.server and change.server) and not same_server(newer.server, change.server)
    return two and newer.target != change.target and newer.after == change.after


def call_after(duration: float | None, end: Callable[[], None]) -> None:
    """Call `end` after so many seconds, in a thread that holds nothing up; never for None."""
    if duration is not None:
        timer = threading.Timer(duration, end)
        timer.daemon = True
        timer.start()


@contextmanager
def own_lab(order: LabOrder, say: Callable[[str], None], made_by: str) -> Iterator[Target]:
    """The target of a new lab; MachineError when one of that name is in use, which is left alone."""
    with temporary_lab(design(order), RealClock(), say, made_by) as blueprint:
        yield choose(f"lab:{blueprint.name}")
