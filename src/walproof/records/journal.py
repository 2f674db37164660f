"""The journal of settings changed on a cluster, so that `walproof revert` can revert them, after kill -9 too.

The value before is on disk before the change is made. Journals of this user's runs are registered in the state folder,
which alone `revert` obeys: a record can be a stranger's, so its journal is a copy. Never touches a cluster."""

import fcntl
import json
import math
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from walproof.errors import MachineError
from walproof.machine import pid_files
from walproof.machine.untrusted import bounded, from_json
from walproof.records.layout import make_folder, only_ours, opened_folder, opener


@dataclass(frozen=True, slots=True)
class Change:
    """One change about to be made: the target's name, what kind of setting, its name, its value before and after.

    `before` None means it was not set; `after` is the requested value, to recognise changes made by others since.
    """

    number: int
    at: float
    target: str
    what: str
    name: str
    before: str | None
    after: str | None = None
    cluster: str = ""
    """The identity of the cluster of that name, see `Target.identity`; "" where it was not known."""


_CHANGE = TypeAdapter(Change)
_MOST = 16 << 20
_WAIT = "wait for its end; where it has ended on another machine: walproof revert --ended-on that machine"


def same_setting(one: Change, other: Change) -> bool | None:
    """Whether two changes are of one setting of one cluster; None where that cluster has two names and no identity.

    The member does not count: one member has other names under another target's name.
    """
    if one.name != other.name:
        return False
    if one.cluster and other.cluster:
        return one.cluster == other.cluster
    return one.target == other.target or None


class Journal:
    """A journal file, only ever appended to. `head`: the entry before this run's first; `cluster`: whose changes.

    `state`: the state folder whose other journals are read, so that every change is later than what it is made upon.
    `most`: bytes of it that are read; MachineError where it has more.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, str] | None = None,
        cluster: str = "",
        state: Path | None = None,
        most: int = _MOST,
    ) -> None:
        self.path, self._most = path, most
        self._cluster = cluster
        self._state = state
        self._head = dict(head or {})
        self._findable = False
        """Whether the file's name, and those of the folders above it, are known to be on disk."""

    def note(self, at: float, target: str, what: str, name: str, *, before: str | None, after: str | None) -> Change:
        """Append a change, fsynced, before it is made; give the result to `undone` once it is reverted."""
        return self.add(Change(1 + self.last(), at, target, what, name, before, after, self._cluster))

    def add(self, change: Change) -> Change:
        """Append a change that has its number already. In a state folder later than all that is pending there.

        MachineError where a run or apply at work has changed that setting too, which would then be put back out of
        order, or a revert is undoing it.
        """
        if self._state is None:
            self._append({"change": asdict(change)})
            return change
        # Clocks are set back, and machines share a folder.
        latest = max((other.at for _, other in pending_beside(self._state, self.path)), default=-math.inf)
        change = replace(change, at=max(change.at, math.nextafter(latest, math.inf)))
        self._append({"change": asdict(change)})
        # Appended before it is looked: who begins just now sees it, or is seen.
        if why := _at_work(self._state, self.path, change) or _undoes(self._state, change):
            self.undone(change)
            raise MachineError(f"{change.name} is not changed: {why}", _WAIT)
        return change

    def last(self) -> int:
        """The largest number of a change in it, 0 for none."""
        return max((change.number for change in self.changes()), default=0)

    def heads(self) -> Iterator[dict[str, Any]]:
        """What stands before the changes of each run."""
        return self._entries("journal")

    def undone(self, change: Change) -> None:
        self._append({"undone": change.number})

    def changes(self) -> tuple[Change, ...]:
        """Every change ever appended."""
        changes = []
        for entry in self._entries("change"):
            # Else nothing that walproof wrote.
            with suppress(ValidationError):
                changes.append(_CHANGE.validate_python(entry["change"]))
        return tuple(changes)

    def pending(self, target: str | None = None) -> tuple[Change, ...]:
        """Changes not reverted, newest first: undo them in this order."""
        undone = {entry["undone"] for entry in self._entries("undone") if isinstance(entry["undone"], int)}
        left = (c for c in self.changes() if c.number not in undone and target in (None, c.target))
        return tuple(sorted(left, key=lambda c: -c.number))

    def _entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """Those that have that key, one by one: as lists a stranger's short lines fill 50 times their own room."""
        try:
            with open(self.path, "rb", opener=opener) as file:
                lines = BytesIO(bounded(file, self._most))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as wrong:
            raise MachineError(f"cannot read the journal {self.path}: {wrong.strerror}", "is it walproof's?") from None
        for line in lines:
            # A torn line means that the change it announces was never made.
            with suppress(ValueError):
                entry = from_json(line)
                if isinstance(entry, dict) and kind in entry:
                    yield entry

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._findable = False

    def begin(self) -> None:
        """Append this run's head, unless it is there."""
        self._append()

    def _append(self, *entries: dict[str, object]) -> None:
        head = [] if not self._head or self._head in self.heads() else [self._head]
        lines = b"".join(json.dumps(one).encode() + b"\n" for one in (*head, *entries))
        try:
            make_folder(self.path.parent)
            with open(self.path, "a+b", opener=opener) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                torn = size > 0 and file.read(1) != b"\n"
                file.write((b"\n" if torn else b"") + lines)
                file.flush()
                os.fsync(file.fileno())
            if not self._findable:
                _flush_folders(Path(os.path.realpath(self.path.parent)))
                self._findable = True
        except OSError as wrong:
            raise MachineError(
                f"cannot write the journal {self.path}: {wrong.strerror or wrong}",
                "nothing was changed; free some space or set WALPROOF_STATE to a writable folder",
            ) from None


RUNS, APPLIES, UNDOING = "journals", "applied", ".undoing"
"""In a state folder: where journals of runs lie, and those of applies; the lock of all undoing, and what is undone."""


def pending_beside(state: Path, but: Path) -> Iterator[tuple[Path, Change]]:
    """Pending changes of every own journal of a state folder but that one, each with its journal."""
    for folder in (state / RUNS, state / APPLIES):
        for path in folder.glob("*.jsonl") if only_ours(folder) else ():
            if path != but and only_ours(path):
                yield from ((path, change) for change in Journal(path).pending())


def announce(lock: IO[str], changes: Sequence[Change]) -> None:
    """Write into the lock of all undoing, held by this process, which changes it undoes from now on."""
    lock.truncate(0)
    undone = (json.dumps(asdict(change)) for change in changes)
    lock.writelines(f"{line}\n" for line in (os.getpid(), pid_files.this_process(), *undone))
    lock.flush()


def _at_work(state: Path, path: Path, change: Change) -> str:
    """Which run or apply at work holds a pending change of that setting in another own journal; "" for none."""
    for one in {one for one, other in pending_beside(state, path) if same_setting(other, change)}:
        run = _run(Journal(one))
        if where := run.goes_on() if run else _held(one.with_suffix(".lock"), "its apply "):
            return f"{one} holds a change of it, and {where}"
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


def _flush_folders(folder: Path) -> None:
    """Bring the entries of a folder and of all above it to disk: without them a flushed file has no name."""
    for one in (folder, *folder.parents):
        try:
            descriptor = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            # A folder that may be passed but not read is older than this run.
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


NAME, OVER = "journal.jsonl", "undone"
"""The copy in a record; among the journals of runs, which of them are undone and have a copy that does not say so."""


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
        self.run = run
        self.registration = folder / f"{run.journal}.jsonl"
        self.path = Path(run.record) / NAME if run.record else self.registration
        self._cluster = cluster
        self._own = Journal(self.registration, asdict(run), state=folder.parent)
        self._one = threading.Lock()
        """Faults of a storm are noted at once: none may be lost with the file, and no two may have one number."""

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
            with open(self.registration, encoding="utf-8", opener=opener) as file:
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
            if not self._own.pending():
                if self.run.record and copy is None:
                    with suppress(MachineError):
                        Journal(self.registration.with_name(OVER), {"journal": self.run.journal}).begin()
                self._own.remove()

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
        journal = Journal(path)
        run = _run(journal) if only_ours(path) else None
        if run is None:
            continue
        if pending := journal.pending():
            journals.append((max(change.at for change in pending), RegisteredJournal(folder, run)))
        elif not run.goes_on():
            journal.remove()
    return [one for _, one in sorted(journals, key=lambda pair: -pair[0])]


def journals_in(path: Path, most: int = _MOST) -> frozenset[str]:
    """Ids that a record's journal names; none for what is no file of its own."""
    if path.is_symlink() or not path.is_file():
        return frozenset()
    return frozenset(str(head["journal"]) for head in Journal(path, most=most).heads())


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
