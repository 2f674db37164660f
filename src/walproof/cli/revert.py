"""`walproof revert`: reverts what an interrupted run or apply had changed, from the journals of this state folder."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command
from walproof.cli.runs import Layer, applied_folder, applying, journal_of_apply, runs_folder
from walproof.errors import Error, ExitCode, MachineError, NotUndone, UsageError
from walproof.load.local_runner import remove_left
from walproof.machine import untrusted
from walproof.machine.quoting import pasted
from walproof.machine.redaction import without_secrets
from walproof.model.ports import Notebook, Reverting, Target
from walproof.model.units import counted, listed
from walproof.records.journal import NAME, Change, Journal, journals_in, registered
from walproof.records.layout import only_ours, opened_folder, record_directory
from walproof.reporting.console_output import print_result
from walproof.targets.choose import choose, is_external
from walproof.targets.configure import check_identity
from walproof.targets.external import consent


def _warn(sentence: str) -> None:
    click.echo(untrusted.field(sentence), err=True)


@dataclass(slots=True)
class Asked:
    """What the user says has ended, and sentences about what is left alone: told at once."""

    ended_on: frozenset[str]
    alone: list[str] = field(default_factory=list)

    def leave(self, sentence: str) -> None:
        self.alone.append(untrusted.field(sentence))
        _warn(sentence)


@dataclass(slots=True)
class Reverted:
    """What came of one target's changes in one journal: `removed` or put back, by kind and name; what stays."""

    target: str
    journal: str
    changes: int
    removed: list[dict[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def run(self, cluster: Target, journal: Notebook, asked: Asked) -> "Reverted":
        """Revert; what was done before an error is printed, and the error goes on."""
        check_identity(journal, cluster, self.journal, silent=True)
        reverting = Reverting(
            lambda kind, name: self.removed.append({"kind": kind, "name": name}), asked.ended_on, _warn
        )
        try:
            self.left = cluster.revert(journal, reverting)
        except Error:
            for line in self.lines() if self.removed else ():
                _warn(line)
            raise
        return self

    def lines(self) -> list[str]:
        first = f"reverted on {self.target}:" if self.removed else f"nothing was left on {self.target}"
        return [first, *(f"  {one['kind']} {one['name']}" for one in self.removed), *(f"  {one}" for one in self.left)]


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
    failed: Error | None = None
    if record is not None:
        journals = _of_record(record, target, consent.read(allow), asked.ended_on, as_json=as_json)
        done = [one for path, journal in journals for one in _reverted(path, journal, target, asked)]
    else:
        done, failed = _all(target, asked)
    if not done and failed is None:
        _warn(f"journals are those of {runs_folder().parent}; {_ELSEWHERE}")
    print_result(
        {"reverted": [asdict(one) for one in done], "left_alone": asked.alone},
        *(line for one in done for line in one.lines()),
        *(() if done or failed else ("nothing reverted: some is left alone" if asked.alone else "nothing to revert",)),
        as_json=as_json,
    )
    if failed is not None:
        raise failed
    if any(one.left for one in done):
        return ExitCode.BROKEN
    return ExitCode.UNDECIDED if asked.alone else ExitCode.HELD


_ELSEWHERE = "what another user's or machine's walproof left: walproof revert --target cnpg:NAMESPACE/NAME, or RECORD"


def _all(target: str | None, asked: Asked) -> tuple[list[Reverted], Error | None]:
    """Every journal's changes, of the named target alone where one is named; the first error, after all others."""
    done: list[Reverted] = []
    failed: Error | None = None
    wanted = choose(target, answering=False) if target is not None else None
    for path, journal in _ours(asked, wanted):
        try:
            done += _reverted(path, journal, target, asked, wanted)
        except Error as wrong:
            if not isinstance(wrong, NotUndone) and str(path) not in wrong.hint:
                gone = pasted("where that cluster is gone for good: rm {path:path}", path=path)
                wrong.hint = f"{wrong.hint}; {gone}" if wrong.hint else gone
            failed = failed or wrong
    if wanted is not None and is_external(target) and not done:
        # What ended runs left there is found by its label, without a journal.
        kept = journal_of_apply(wanted.name)
        with applying(kept.path):
            try:
                done.append(Reverted(wanted.name, str(kept.path), 0).run(wanted, Layer(kept, complete=False), asked))
            except Error as wrong:
                failed = failed or wrong
    for text in _elsewhere():
        _warn(text)
    return done, failed


def _key(change: Change) -> tuple[str, str, str]:
    return change.target, change.what, change.name


def _is_of(name: str, wanted: Target) -> bool:
    return name in (wanted.name, f"lab:{wanted.name}")


def _reverted(
    path: Path, journal: Notebook, target: str | None, asked: Asked, wanted: Target | None = None
) -> list[Reverted]:
    """Revert what is pending, target by target; where one is `wanted`, the changes of others stay and are named."""
    done = []
    for name in dict.fromkeys(str(change.target) for change in journal.pending()):
        if wanted is not None and not _is_of(name, wanted):
            _warn(f"left alone, it is not of {wanted.name}: {path} of {name}")
            continue
        pending = len(journal.pending(name))
        cluster = choose(target or name, answering=False)
        cluster.name = name
        done.append(Reverted(name, str(path), pending).run(cluster, journal, asked))
    return done


def _ours(asked: Asked, wanted: Target | None) -> Iterator[tuple[Path, Notebook]]:
    """Journals that this user's walproof has kept; those of apply, locked, without what is complete."""
    for text in _unheeded():
        asked.leave(text)
    runs = [(run, run.run.goes_on(asked.ended_on), run.pending()) for run in registered(runs_folder())]
    at_work = {_key(one) for _, where, pending in runs if where for one in pending}
    for run, goes_on, pending in runs:
        # What that one found there may be what this one set: put back now, that would set it again at its own end.
        both = at_work & {_key(one) for one in pending}
        if where := goes_on or (f"a run that goes on has changed {min(both)[2]} too" if both else ""):
            elsewhere = "; where it has ended: --ended-on that machine" if "may still" in where else ""
            tell = asked.leave if wanted is None or any(_is_of(one.target, wanted) for one in pending) else _warn
            tell(f"left alone, {where}{elsewhere}: {run.run.record or run.registration}")
        else:
            yield run.registration, run
    for path in sorted(applied_folder().glob("*.jsonl")) if only_ours(applied_folder()) else ():
        with ExitStack() as lock:
            try:
                lock.enter_context(applying(path))
            except MachineError as wrong:
                asked.leave(f"left alone, {wrong}: {path}")
                continue
            if only_ours(path):
                yield path, Layer(Journal(path), complete=False)


def _unheeded() -> Iterator[str]:
    """Sentences about journals that are not obeyed, so that nothing is left behind unseen."""
    for folder in (runs_folder(), applied_folder()):
        for path in (folder, *folder.glob("*.jsonl")):
            if os.path.lexists(path) and not only_ours(path):
                yield f"left alone, others own it or may write it: {path}"


def _elsewhere() -> Iterator[str]:
    """Sentences about records of this folder with changes that no journal of this user's state folder holds.

    They may be anybody's: told after all of our own was reverted, and no exit code.
    """
    known = {run.run.journal for run in registered(runs_folder())}
    for path in sorted((*Path().glob(f"*/{NAME}"), *Path("records").glob(f"*/{NAME}"))):
        try:
            if path.is_symlink() or not path.is_file() or journals_in(path) & known or not Journal(path).pending():
                continue
        except MachineError as wrong:
            yield f"left alone, {wrong.message}"
            continue
        record = f"./{path.parent}"
        yield pasted(
            "left alone, it is not in this user's state folder: walproof revert {record:path} reads it out",
            record=record,
        )


def _of_record(
    record: str, target: str | None, allowed: frozenset[str], ended_on: frozenset[str], *, as_json: bool
) -> Iterator[tuple[Path, Notebook]]:
    """The journals of a record: what the state folder holds for it, else its own, with the user's consent.

    Its own is read again while it is undone: in a folder that is opened once and that nobody else may write in.
    """
    folder = record_directory(Path(record))
    path = folder / NAME
    named = journals_in(path)
    runs = [r for r in registered(runs_folder()) if r.run.journal in named or r.run.record == str(folder.resolve())]
    for run in runs:
        if where := run.run.goes_on(ended_on):
            raise MachineError(
                f"{run.run.record} is left alone: {where}",
                "wait for its end, or end it (kill); on another machine where it has ended: --ended-on that machine",
            )
    if runs:
        yield from ((run.registration, run) for run in runs)
        return
    with ExitStack() as stack:
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
            yield path, Journal(held)


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
