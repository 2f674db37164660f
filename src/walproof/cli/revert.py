"""`walproof revert`: reverts what an interrupted run or apply had changed, from the journals of this state folder."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import (
    Due,
    Layer,
    applied_folder,
    applying,
    covering,
    journal_of_apply,
    runs_folder,
    standing,
    undoing,
)
from walproof.errors import Error, ExitCode, MachineError, NotUndone, UsageError
from walproof.load.local_runner import remove_left
from walproof.machine import untrusted
from walproof.machine.quoting import pasted
from walproof.machine.redaction import in_text, without_secrets
from walproof.model.ports import Notebook, Reverting, Target
from walproof.model.units import counted, listed
from walproof.records.journal import NAME, Change, Journal, journals_in
from walproof.records.layout import only_ours, opened_folder, record_directory
from walproof.records.own_journals import OVER, RegisteredJournal, is_readable, registered
from walproof.reporting.console_output import print_result
from walproof.targets.choose import choose, is_external
from walproof.targets.configure import check_identity
from walproof.targets.external import consent


def _warn(sentence: str) -> None:
    click.echo(untrusted.field(sentence), err=True)


@dataclass(slots=True)
class Asked:
    """What the user says has ended, and what is told at once: sentences about what is left alone, and errors."""

    ended_on: frozenset[str]
    alone: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    code: ExitCode | None = None
    """Of the first error."""

    def leave(self, sentence: str) -> None:
        self.alone.append(untrusted.field(sentence))
        _warn(sentence)

    def fail(self, journal: Path, wrong: Error) -> None:
        """One error keeps no other journal from being reverted, nor any other error from being told."""
        if not isinstance(wrong, NotUndone) and str(journal) not in wrong.hint:
            gone = pasted("where that cluster is gone for good: rm {path:path}", path=journal)
            wrong.hint = f"{wrong.hint}; {gone}" if wrong.hint else gone
        error, hint = (untrusted.field(in_text(text, sys.argv[1:])) for text in (wrong.message, wrong.hint))
        self.failed.append({"journal": str(journal), "error": error, "hint": hint})
        self.code = self.code or wrong.exit_code
        for line in (f"walproof: {error}: {journal}", *([f"  hint: {hint}"] if hint else ())):
            _warn(line)


@dataclass(slots=True)
class Reverted:
    """What came of one target's changes in one journal: `removed` or put back, by kind and name; what stays."""

    target: str
    journal: str
    changes: int
    removed: list[dict[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def run(self, cluster: Target, journal: Notebook, asked: Asked) -> "Reverted":
        """Revert; an error is told, and what was done before it counts."""
        check_identity(journal, cluster, self.journal, silent=True)
        reverting = Reverting(
            lambda kind, name: self.removed.append({"kind": kind, "name": name}),
            asked.ended_on,
            _warn,
            lambda change, is_there: self._stays(change, is_there, asked),
        )
        try:
            self.left = cluster.revert(journal, reverting)
        except Error as wrong:
            asked.fail(Path(self.journal), wrong)
        return self

    def _stays(self, change: Change, is_there: Callable[[Change], bool], asked: Asked) -> bool:
        newer = standing(Path(self.journal), change, is_there)
        if newer:
            asked.leave(f"left alone until {newer} is undone, which has set {change.name} since: {self.journal}")
        return bool(newer)

    def lines(self) -> list[str]:
        first = f"nothing was left on {self.target}"
        if self.removed or self.left:
            first = f"{'reverted' if self.removed else 'not reverted'} on {self.target}:"
        stays = self.left and Journal(Path(self.journal)).pending(self.target)
        journal = [f"  what stays is in {self.journal}"] if stays else []
        removed = (f"  {one['kind']} {one['name']}" for one in self.removed)
        return [first, *removed, *(f"  {one}" for one in self.left), *journal]


@cloup.command(cls=Command)
@cloup.argument("record", required=False, metavar="[RECORD]")
@opt.cluster(
    opt.allow("what a RECORD from elsewhere would revert"),
    opt.words("--ended-on", "HOST,…", "Machines where every walproof has ended: what it made there goes too."),
    default="as the journal says",
)
@opt.output()
def revert(record: str | None, target: str | None, allow: str | None, ended_on: str | None, as_json: bool) -> ExitCode:
    """Revert what interrupted runs had changed: those of this machine, every one and every apply, or RECORD's."""
    remove_left()
    asked = Asked(frozenset(listed(ended_on, "ended-on") if ended_on else ()))
    with ExitStack() as stack:
        order = Order(stack.enter_context(undoing()))
        if record is not None:
            own = _of_record(record, target, consent.read(allow), asked, stack, as_json=as_json)
            done = _each(order.of(own), target, asked)
        else:
            done = _all(target, asked, order)
    over = bool(done or asked.failed)
    if not over:
        _warn(f"journals are those of {runs_folder().parent}; {_ELSEWHERE}")
    print_result(
        {"reverted": [asdict(one) for one in done], "left_alone": asked.alone, "failed": asked.failed},
        *(line for one in done for line in one.lines()),
        *(() if over else ("nothing reverted: some is left alone" if asked.alone else "nothing to revert",)),
        as_json=as_json,
    )
    if record is None:
        for text in _elsewhere():
            _warn(text)
    if asked.code is not None:
        return asked.code
    if any(one.left for one in done):
        return ExitCode.BROKEN
    return ExitCode.UNDECIDED if asked.alone else ExitCode.HELD


_READ_ELSEWHERE = 1 << 20
_ELSEWHERE = "what another user's or machine's walproof left: walproof revert --target cnpg:NAMESPACE/NAME, or RECORD"


@dataclass(slots=True)
class Own:
    """A journal that this user's walproof has kept, or one that he named, and what it is called when it is left."""

    path: Path
    journal: Notebook
    name: object
    told: Callable[[str], None]
    """Whom it is told that something of it is left alone."""

    def covered(self) -> dict[int, str]:
        """Its changes that a newer one of another journal covers: why each is left alone, by its number."""
        return {
            change.number: f"left alone until {newer} is undone, which changed {change.name} since: {self.name}"
            for change, newer in covering(self.path, self.journal.pending())
        }


@dataclass(slots=True)
class Order:
    """In which order changes are undone: the newest first, whichever journals are asked for."""

    announce: Callable[[Sequence[Change]], None]

    def of(self, journals: Iterable[Own]) -> Iterator[tuple[Path, Notebook]]:
        """Each with what is not covered just now; once more where that was undone since, as where two took turns."""
        rest = sorted(journals, key=lambda own: -max((one.at for one in own.journal.pending()), default=0.0))
        while rest:
            before = []
            for own in rest:
                with ExitStack() as lock:
                    if own.path.parent == applied_folder():
                        try:
                            lock.enter_context(applying(own.path))
                        except MachineError as wrong:
                            own.told(f"left alone, {wrong}: {own.path}")
                            continue
                    # Before it is looked what covers it, see `undoing`.
                    self.announce(pending := own.journal.pending())
                    covered = own.covered()
                    if len(covered) < len(pending):
                        yield own.path, Due(own.journal, covered)
                    before.append((own, covered))
            rest = []
            for own, covered in before:
                if covered and len(own.covered()) < len(covered):
                    rest.append(own)
                else:
                    for sentence in dict.fromkeys(covered.values()):
                        own.told(sentence)


def _each(
    journals: Iterable[tuple[Path, Notebook]], target: str | None, asked: Asked, wanted: Target | None = None
) -> list[Reverted]:
    """What came of every journal, and of every target in it."""
    done: list[Reverted] = []
    for path, journal in journals:
        for name in dict.fromkeys(str(change.target) for change in journal.pending()):
            try:
                done += _reverted(name, path, journal, target, asked, wanted)
            except Error as wrong:
                asked.fail(path, wrong)
    return done


def _all(target: str | None, asked: Asked, order: Order) -> list[Reverted]:
    """Every journal's changes, of the named target alone where one is named."""
    wanted = choose(target, answering=False) if target is not None else None
    done = _each(order.of(_ours(asked, wanted)), target, asked, wanted)
    if wanted is not None and is_external(target) and not done:
        # What ended runs left there is found by its label, without a journal.
        kept = journal_of_apply(wanted.name)
        with applying(kept.path):
            # What is pending there was tried above, in its order.
            rest = Due(Layer(kept, complete=False), {change.number for change in kept.pending()})
            try:
                one = Reverted(wanted.name, str(kept.path), 0).run(wanted, rest, asked)
                if one.removed or one.left or not (asked.alone or asked.failed):
                    done.append(one)
            except Error as wrong:
                asked.fail(kept.path, wrong)
    return done


def _is_of(name: str, wanted: Target) -> bool:
    return name in (wanted.name, f"lab:{wanted.name}")


def _reverted(
    name: str, path: Path, journal: Notebook, target: str | None, asked: Asked, wanted: Target | None
) -> list[Reverted]:
    """Revert what is pending of that target; where another is `wanted`, it stays and is named."""
    if wanted is not None and not _is_of(name, wanted):
        _warn(f"left alone, it is not of {wanted.name}: {path} of {name}")
        return []
    pending = len(journal.pending(name))
    cluster = choose(target or name, answering=False)
    cluster.name = name
    one = Reverted(name, str(path), pending).run(cluster, journal, asked)
    return [one] if one.removed or one.left or not journal.pending(name) else []


def _ours(asked: Asked, wanted: Target | None) -> Iterator[Own]:
    """Journals that this user's walproof has kept of what has ended; those of apply without what is complete."""
    for text in _unheeded():
        asked.leave(text)
    runs = ((run.registration, run, run.run.record or run.registration) for run in registered(runs_folder()))
    paths = sorted(applied_folder().glob("*.jsonl")) if only_ours(applied_folder()) else ()
    applies = ((path, Layer(Journal(path), complete=False), path) for path in paths if is_readable(path))
    kept: Iterable[tuple[Path, RegisteredJournal | Layer, object]] = (*runs, *applies)
    for path, journal, name in kept:
        pending = journal.pending()
        told = asked.leave if wanted is None or any(_is_of(one.target, wanted) for one in pending) else _warn
        where = journal.run.goes_on(asked.ended_on) if isinstance(journal, RegisteredJournal) else ""
        if where:
            elsewhere = "; where it has ended: --ended-on that machine" if "may still" in where else ""
            told(f"left alone, {where}{elsewhere}: {name}")
        elif pending:
            yield Own(path, journal, name, told)


def _unheeded() -> Iterator[str]:
    """Sentences about journals that are not obeyed, so that nothing is left behind unseen."""
    for folder in (runs_folder(), applied_folder()):
        for path in (folder, *folder.glob("*.jsonl")):
            if os.path.lexists(path) and not only_ours(path):
                yield f"left alone, others own it or may write it: {path}"
            elif path != folder and not is_readable(path):
                yield f"left alone, it cannot be read: {path}"


def _over() -> frozenset[str]:
    """Journals of runs that are undone, whatever copies of their records say."""
    path = runs_folder() / OVER
    return journals_in(path) if only_ours(path.parent) and only_ours(path) else frozenset()


def _elsewhere() -> Iterator[str]:
    """Sentences about records of this folder with changes that no journal of this user's state folder holds.

    They may be anybody's: told when all else is, a mebibyte of them is read, and no exit code is due to them.
    """
    known = {run.run.journal for run in registered(runs_folder())}
    over, room = _over(), _READ_ELSEWHERE
    for path in sorted((*Path().glob(f"*/{NAME}"), *Path("records").glob(f"*/{NAME}"))):
        record = f"./{path.parent}"
        try:
            if path.is_symlink() or not path.is_file():
                continue
            size = path.stat().st_size
            named = journals_in(path, room)
            if named & known or (named and named <= over) or not Journal(path, most=room).pending():
                room -= min(size, room)
                continue
            said = "left alone, it is not in this user's state folder: walproof revert {record:path} reads it out"
        except (MachineError, OSError):
            said = "not looked at: walproof revert {record:path} reads it out"
        yield pasted(said, record=record)


def _of_record(
    record: str, target: str | None, allowed: frozenset[str], asked: Asked, stack: ExitStack, *, as_json: bool
) -> Iterator[Own]:
    """The journals of a record: what the state folder holds for it, else its own, with the user's consent.

    Its own is read again while it is undone: in a folder that is opened once and that nobody else may write in.
    """
    folder = record_directory(Path(record))
    path = folder / NAME
    named = journals_in(path)
    runs = [r for r in registered(runs_folder()) if r.run.journal in named or r.run.record == str(folder.resolve())]
    for run in runs:
        if where := run.run.goes_on(asked.ended_on):
            raise MachineError(
                f"{run.run.record} is left alone: {where}",
                "wait for its end, or end it (kill); on another machine where it has ended: --ended-on that machine",
            )
    if runs:
        yield from (Own(run.registration, run, run.run.record, asked.leave) for run in runs)
        return
    for text in _unheeded():
        asked.leave(text)
    if named and named <= _over():
        _warn(f"undone already, before it was moved or while it was elsewhere: {path}")
        return
    try:
        opened = stack.enter_context(opened_folder(folder.resolve()))
    except OSError as wrong:
        raise MachineError(f"cannot open {folder}: {wrong.strerror}", "may you read it?") from None
    held = Path(f"/proc/self/fd/{opened}") / NAME
    if held.is_symlink() or not held.is_file():
        raise UsageError(
            f"{record} holds no journal: its run changed nothing on a cluster walproof did not start",
            "nothing to do",
        )
    ours = only_ours(opened) and only_ours(held)
    if pending := Journal(held).pending():
        _consented(path, pending, target, allowed, ours=ours, as_json=as_json)
        yield Own(path, Journal(held), path, asked.leave)


def _consented(
    path: Path, pending: Sequence[Change], target: str | None, allowed: frozenset[str], *, ours: bool, as_json: bool
) -> None:
    """A journal that this user's walproof did not keep: UsageError (exit 2) without target and consent, shown first.

    Without `ours` in any case: who may write it would write another between what is shown and what is undone.
    """
    needed = consent.to_revert(pending)
    if ours and target is not None and set(needed) <= allowed:
        return
    # As JSON, whose texts hold no control characters.
    lines = [f"  {json.dumps([c.what, c.name])}: {json.dumps(c.after)} → {json.dumps(c.before)}" for c in pending]
    tree = {"would_revert": [{"target": c.target, "what": c.what, "name": c.name, "before": c.after, "after": c.before}
                             for c in pending]}  # fmt: skip
    of = ", ".join(json.dumps(name) for name in dict.fromkeys(c.target for c in pending))
    print_result(tree, f"would revert {counted(len(pending), 'change')} of {of}:", *lines, as_json=as_json)
    if not ours:
        raise UsageError(
            f"others own {path} or its folder, or may write there, so what is read out need not be what is reverted",
            pasted("cp -R {record:path} mine && chmod -R go-w mine; read out and revert mine", record=path.parent),
        )
    if target is None:
        raise UsageError(
            f"{path} is not in this user's state folder, so the cluster that it names is not asked",
            pasted("read what it would do, then: --target WHERE --allow {words:shell}", words=",".join(needed)),
        )
    consent.require("reverting", needed, allowed, without_secrets(target))
