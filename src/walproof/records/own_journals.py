"""Journals of this user's runs and applies in his state folder, which alone `revert` obeys, and in which order.

A record can be a stranger's, so its journal is a copy. Never touches a cluster."""

import fcntl
import json
import math
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from walproof.errors import MachineError
from walproof.machine import pid_files
from walproof.model.guarantee import same_server
from walproof.records.journal import NAME, Change, Journal, journals_in
from walproof.records.layout import only_ours, opened_folder, opener

_CHANGE = TypeAdapter(Change)
_WAIT = "wait for its end; where it has ended on another machine: walproof revert --ended-on that machine"
RUNS, APPLIES, UNDOING = "journals", "applied", ".undoing"
"""In a state folder: where journals of runs lie, and those of applies; the lock of all undoing, and what is undone."""
OVER = "undone"
"""Among the journals of runs: which of them are undone, for copies that do not say so."""


def same_setting(one: Change, other: Change) -> bool | None:
    """Whether two changes are of one setting of one member; None where they may be: their targets or members have two
    names, which one server can have, or two of which one is a copy; or a name has moved to another server.
    """
    if one.name != other.name or (one.cluster and other.cluster and one.cluster != other.cluster):
        return False
    if one.target != other.target:
        return None
    known, same = one.server and other.server, same_server(one.server, other.server)
    if one.kind == other.kind:
        return True if same or not known else None
    return bool(known and same)


class OwnJournal(Journal):
    """One of the state folder, whose other journals are read: every change is later than what it is made upon."""

    def __init__(self, path: Path, head: Mapping[str, str] | None, cluster: str, state: Path) -> None:
        super().__init__(path, head, cluster)
        self._state = state

    def add(self, change: Change) -> Change:
        """MachineError where a run or apply at work has changed that setting too, which would then be put back out of
        order, or a revert is undoing it.
        """
        # Clocks are set back, and machines share a folder.
        latest = max((other.at for _, other in pending_beside(self._state, self.path)), default=-math.inf)
        super().add(change := replace(change, at=max(change.at, math.nextafter(latest, math.inf))))
        # Appended before it is looked: who begins just now sees it, or is seen.
        if why := _at_work(self._state, self.path, change) or _undoes(self._state, change):
            self.undone(change)
            raise MachineError(f"{change.name} is not changed: {why}", _WAIT)
        return change


def pending_beside(state: Path, but: Path) -> Iterator[tuple[Path, Change]]:
    """Pending changes of every own journal of a state folder but that one, each with its journal."""
    for folder in (state / RUNS, state / APPLIES):
        for path in folder.glob("*.jsonl") if only_ours(folder) else ():
            journal = Journal(path)
            if path != but and is_readable(path) and (path.parent.name == APPLIES or _run(journal)):
                yield from ((path, change) for change in journal.pending())


def is_readable(path: Path) -> bool:
    """Whether it is a file that this user alone may write, and may read."""
    return only_ours(path) and path.is_file() and os.access(path, os.R_OK)


def announce(lock: IO[str], changes: Sequence[Change]) -> None:
    """Write into the lock of all undoing, held by this process, which changes it undoes from now on."""
    lock.truncate(0)
    undone = (json.dumps(asdict(change)) for change in changes)
    lock.writelines(f"{line}\n" for line in (os.getpid(), pid_files.this_process(), *undone))
    lock.flush()
    os.fsync(lock.fileno())


def _at_work(state: Path, path: Path, change: Change) -> str:
    """Which run or apply at work holds a pending change of that setting in another own journal; "" for none."""
    beside = ((one, other, same_setting(other, change)) for one, other in pending_beside(state, path))
    known = {
        one: other.target for one, other, same in beside if same or (same is None and other.cluster and change.cluster)
    }
    for one, target in known.items():
        run = _run(Journal(one))
        if where := run.goes_on() if run else _held(one.with_suffix(".lock"), "its apply "):
            return f"{one} holds a change of it on {target}, and {where}"
    return ""


def _undoes(state: Path, change: Change) -> str:
    """Whether another process holds the lock of all undoing and may be undoing that setting; "" for none."""
    try:
        with open(state / UNDOING, encoding="utf-8", opener=opener) as file:
            _, whose, *lines = file.read().splitlines()
        undone = [_CHANGE.validate_json(line) for line in lines]
    except (OSError, ValueError):
        # There is none, or it is written just now: what is undone then is read after this change was noted.
        return ""
    ours = pid_files.is_this(whose) or all(same_setting(one, change) is False for one in undone)
    return "" if ours else _held(state / UNDOING, "a revert undoes an older change of it, and ")


def _held(lock: Path, what: str) -> str:
    """That `what` goes on, in the process that holds the lock; "" where none does."""
    try:
        with open(lock, encoding="utf-8", opener=opener) as file:
            process = file.readline(20).strip()
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"{what}goes on (process {process})"
    except OSError:
        return ""
    return ""


@dataclass(frozen=True, slots=True)
class Run:
    """Whose journal it is. journal: its random id; process: see `pid_files.identity`; machine: "" in old journals."""

    journal: str
    record: str
    """The real path of the record, "" where the run keeps none."""
    process: str
    machine: str = ""

    def goes_on(self, ended_on: frozenset[str] = frozenset()) -> str:
        """Where the run is at work, or may be, on another machine that shares this folder; "" where it has ended."""
        pid, machine = self.process.partition(" ")[0], self.machine or pid_files.machine()
        run = f"{machine} {self.process}"
        over = pid_files.is_this(run) or pid_files.of_earlier_boot(run) or pid_files.ended(run, ended_on)
        elsewhere = f"it was started on {machine.partition('/')[0]}, where it may still run"
        return "" if over else f"{elsewhere if over is None else 'its run goes on'} (process {pid})"


class RegisteredJournal:
    """A run's journal; its file in the state folder is removed once nothing of it is left to be undone."""

    def __init__(self, folder: Path, run: Run, cluster: str = "") -> None:
        self._folder, self._cluster = folder, cluster
        self._name(run)
        self._one = threading.Lock()
        """Faults of a storm are noted at once: none may be lost with the file, and no two may have one number."""

    def _name(self, run: Run) -> None:
        self.run = run
        self.registration = self._folder / f"{run.journal}.jsonl"
        self.path = Path(run.record) / NAME if run.record else self.registration
        self._own = OwnJournal(self.registration, asdict(run), self._cluster, self._folder.parent)

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Change:
        """Append a change, fsynced here and in the record, before it is made."""
        with self._one, self._copy() as copy:
            # The copy outlives what is forgotten here: a number is never used twice in it.
            number = 1 + max(self._own.last(), copy.last() if copy else 0)
            change = self._own.add(Change(number, at, target, what, name, before, after, self._cluster))
            if copy:
                copy.add(change)
            return change

    def go_on(self) -> None:
        """Say that this process is at work with what another left; MachineError where that goes on, or is undone now.

        Said before it is looked: a revert that begins just now leaves it alone, or is seen.
        """
        try:
            with open(self.registration, "r+b", opener=opener) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                run = _run(self._own)
                if not (why := run.goes_on() if run else ""):
                    self._own.begin()
        except OSError as wrong:
            why = f"{self.registration}: {wrong.strerror}"
        if why := why or _held(self.registration.parent.parent / UNDOING, "a revert "):
            raise MachineError(f"{self.run.record} is not continued: {why}", _WAIT)

    def undone(self, change: Change) -> None:
        with self._one, self._copy() as copy:
            self._own.undone(change)
            if copy and self.run.journal in journals_in(copy.path):
                with suppress(MachineError):
                    copy.undone(change)
            self.forget()

    def forget(self) -> None:
        """Remove the file where nothing of it is pending and no other process goes on with it.

        What is undone is kept by its id: copies of a record do not say so. Where that cannot be written, it stays.
        """
        with suppress(OSError, MachineError), open(self.registration, "r+b", opener=opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _run(self._own) == self.run and not self._own.pending():
                if self.run.record:
                    Journal(self.registration.with_name(OVER), {"journal": self.run.journal}).begin()
                self._own.remove()
                # What it changes from now on is not over: a journal of its own.
                self._name(replace(self.run, journal=secrets.token_hex(16)))

    @contextmanager
    def _copy(self) -> Iterator[Journal | None]:
        """The copy in the record's folder, which is opened once for it; None where no such copy may be written.

        The folder above may be another user's, who puts a link or a folder of his own in the record's place.
        """
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(opened_folder(self.run.record))
            except OSError:
                yield None
                return
            path = Path(f"/proc/self/fd/{folder}") / NAME
            in_place = only_ours(folder) and os.path.realpath(path.parent) == self.run.record
            yield Journal(path, {"journal": self.run.journal}) if in_place and not path.is_symlink() else None

    def pending(self, target: str | None = None) -> Sequence[Change]:
        """Changes not reverted, newest first, by its own file alone."""
        return self._own.pending(target)

    def servers(self) -> frozenset[str]:
        return self._own.servers()


def register(folder: Path, record: Path | None, cluster: str = "") -> RegisteredJournal:
    """The journal of a run of this process into that record: the one it has there, where it is continued, or a new one.

    None: it keeps no record. The file is made with the first change. MachineError where others may write in the folder.
    """
    check_ours(folder)
    real = os.path.realpath(record) if record else ""
    known = next((one.run.journal for one in registered(folder) if record and one.run.record == real), None)
    process = pid_files.identity(os.getpid()) or ""
    run = Run(known or secrets.token_hex(16), real, process, pid_files.machine())
    journal = RegisteredJournal(folder, run, cluster)
    if known:
        journal.go_on()
    return journal


def registered(folder: Path) -> list[RegisteredJournal]:
    """Every journal of the folder with something to undo, the newest first; those without are forgotten."""
    if not only_ours(folder):
        return []
    journals: list[tuple[float, RegisteredJournal]] = []
    for path in folder.glob("*.jsonl"):
        run = _run(Journal(path)) if is_readable(path) else None
        if run is None:
            continue
        journal = RegisteredJournal(folder, run)
        if pending := journal.pending():
            journals.append((max(change.at for change in pending), journal))
        elif not run.goes_on():
            journal.forget()
    return [one for _, one in sorted(journals, key=lambda pair: -pair[0])]


def _run(journal: Journal) -> Run | None:
    """The newest run of a file in the state folder, None where its name and its first line differ."""
    heads = [head for head in journal.heads() if all(isinstance(head.get(n), str) for n in ("record", "process"))]
    if not heads or heads[-1]["journal"] != journal.path.stem:
        return None
    head = heads[-1]
    return Run(head["journal"], head["record"], head["process"], str(head.get("machine", "")))


def check_ours(path: Path) -> None:
    """MachineError where there is such a folder or file, and others own it or may write in it."""
    if os.path.lexists(path) and not only_ours(path):
        raise MachineError(
            f"others own {path} or may write in it, so no journal there is obeyed and nothing is changed",
            "set WALPROOF_STATE to a folder of your own, mode 0700",
        )
