"""The acting part of a salvage, in its order: copy, read WAL, replay, read the lost rows, compare."""

import json
import secrets
import tempfile
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

from psycopg.pq import TransactionStatus

from walproof.errors import Error
from walproof.lab.privileges import number_of_no_lab, shown_alone
from walproof.machine.untrusted import one_line, remove_tree
from walproof.model.units import lsn_text
from walproof.salvaging import recovered
from walproof.salvaging.answers import answered, maybe, number, shown, word
from walproof.salvaging.catalog import sequences, tables, unconverted
from walproof.salvaging.changes import OTHER_KEY, Table, TableLoss, is_alike, leave_untold, renumbered
from walproof.salvaging.data_directory import copy
from walproof.salvaging.key_changes import leave_key_changes
from walproof.salvaging.naming import leave_named
from walproof.salvaging.plan import Plan, Sessions, new_session, of_new_primary
from walproof.salvaging.private_folder import PrivateFolder, private_folder
from walproof.salvaging.recovered import SqlFile
from walproof.salvaging.refusals import refused
from walproof.salvaging.report import Tree, loss_tree, table_tree
from walproof.salvaging.rows import (
    UNLOGGED,
    UNLOGGED_SINCE,
    UNREADABLE,
    Session,
    read_table,
    reason,
    written_since,
)
from walproof.salvaging.server import QUERIES, Copy, bounded_memory
from walproof.salvaging.transactions import leave_deletes, mark_parts
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_folders import ends_elsewhere, goes_on, not_read
from walproof.salvaging.wal_records import Relation, WalReader

Progress = Callable[[str, float], object]
"""A step, and the share of it that is done: 0.0 at its beginning."""
Check = Callable[[str, Sequence[TableLoss], Sequence[SqlFile]], list[str]]

BEGAN_BEFORE = (
    "lost transactions may have begun before the WAL that was read: of rows that these deleted, those that"
    " VACUUM has removed are not seen"
)
UNTOLD = (
    "the new primary does not know any more whether transactions that were prepared before the fork were committed"
    " there too: what they wrote is counted as lost"
)
TANGLED = "no SQL is written: too many rows that are left make others be left in turn; the CSV has the rows"
_ROUNDS = 50
"""Of looking for these."""
HIDDEN = "no SQL is written: its rows may name a table that the catalog has lost; the CSV has them"
_RECORDS = 10_000
"""After so many the share is told again."""


def run(plan: Plan, dsn: str, out: Path, progress: Progress, check: Check | None = None) -> Tree:
    """Copy, replay, read and compare below `out`, and write the report there; the copy is removed at the end, whatever
    happens.

    `check`: what tries a database's SQL, of its losses and the files (`trial.tried`); None: nothing is tried.
    """
    given = (plan.old.directory, *(file.parent for file in plan.wal.values()))
    if any(out.resolve().is_relative_to(folder.resolve()) for folder in given):
        raise refused("out-inside", folder=out)
    if seen := [one for one in shown_alone(plan.old.programs) if out.resolve().is_relative_to(one.resolve())]:
        raise refused("out-seen", folder=out, seen=seen[0])
    with private_folder(out) as folder:
        if names := folder.names():
            raise refused("out-not-empty", folder=out, names=", ".join(names[:3]))
        tree = {"dry_run": False, "out": str(out), **_salvaged(plan, dsn, folder, progress, check)}
        folder.write("report.json", [json.dumps(tree, allow_nan=False), "\n"])
    return tree


def _salvaged(plan: Plan, dsn: str, out: PrivateFolder, progress: Progress, check: Check | None) -> Tree:
    databases, notes = list[Tree](), list[str]()
    sessions = partial(new_session, dsn, planned=plan.primary)
    with of_new_primary(), sessions() as new:
        try:
            prepared = answered(new.execute(QUERIES["prepared"]), number, word, word)
        except UNREADABLE:  # a name of any role's may be no text
            with unconverted(new):
                prepared = answered(new.execute(QUERIES["prepared"]), number, shown, shown)
        held = {xid: {"gid": gid, "database": where} for xid, gid, where in prepared}
    with bounded_memory(), number_of_no_lab() as user, _work(out, notes) as (work, sockets):
        step = f"copying {plan.copied_bytes / 1e9:,.3f} GB"
        progress(step, 0.0)
        for done in copy(plan.old, plan.wal, plan.copied_bytes, work, in_place=plan.in_place):
            progress(step, done / plan.copied_bytes or 1e-9)
        copied = Copy(plan.old, work, sockets, user)
        progress("reading the WAL", 0.0)
        lost = read_wal(copied, plan, held, done=partial(progress, "reading the WAL"))
        if lost.prepared_at_fork:
            ended = _ended_there(sessions, lost.prepared_at_fork)
            on_both = {xid for xid, said in ended.items() if said == "committed"}
            lost = (
                read_wal(copied, plan, held, on_both, partial(progress, "reading the WAL again")) if on_both else lost
            )
            lost.undecided += [UNTOLD] if None in ended.values() else []
        if lost.commits and not lost.tablespaces:
            progress("replaying the WAL", 0.0)
            copied.replay()
            progress("reading the rows", 0.0)
            databases, found = _read_databases(sessions, out, copied, lost, check)
            notes += found
    still_held = [[held[xid] for xid in sorted(some)] for some in (lost.prepared_before, lost.rolled_back_before)]
    return loss_tree(plan, lost, databases, still_held, notes)


def _ended_there(sessions: Sessions, xids: Collection[int]) -> dict[int, str | None]:
    """What became of transactions on the new primary; None where it does not know any more."""
    with of_new_primary(), sessions() as new:
        return dict(answered(new.execute(QUERIES["ended-there"], (sorted(xids),)), number, maybe(word)))


@contextmanager
def _work(out: PrivateFolder, notes: list[str]) -> Iterator[tuple[Path, Path]]:
    """Where the copy is, which its user may enter, and where its socket is, each in a folder that no other may; both
    are removed with all that is below, links themselves: the copy's server may have made some. A note where one stays.
    """
    name, closed = f"copy-{secrets.token_hex(6)}", tempfile.mkdtemp(prefix="walproof-salvage-")
    sockets = Path(closed, "sockets")
    sockets.mkdir()
    try:
        with out.folder(name) as above, above.folder("copy", 0o711) as work:
            yield work.path, sockets
    finally:
        if not out.remove(name):
            notes.append(f"the copy could not be removed whole: {out.path / name}")
        with suppress(OSError):
            remove_tree(closed)


def read_wal(
    copied: Copy,
    plan: Plan,
    held: Container[int] = (),
    on_both: Container[int] = (),
    done: Callable[[float], object] = lambda _: None,
) -> LostWal:
    """Fold the WAL's records from before the fork to the end of the old timeline; a refusal where it has none.

    Where reading ends before what recovery needs, it begins anew behind that: segments that were kept may be damaged.
    `done` is told the share that was read.
    """
    size, begin, needed = plan.old.segment_size, plan.begin, min(plan.old.redo, plan.spans[0].start)
    while True:
        lost = LostWal(plan.spans[0].start, plan.old.major, plan.old.redo, held, on_both)
        _fold(lost, copied, plan, begin, needed, done)
        begin = (max(lost.end, begin) // size + 1) * size
        if lost.end >= needed or begin > needed:
            break
    if not lost.end:
        raise refused("wal-unreadable", why=f"no record begins behind {lsn_text(plan.begin)}")
    if lost.end >= lost.fork and goes_on(plan.present, plan.spans[-1], lost.end, size):
        lost.undecided.append(
            f"the WAL was read up to {lsn_text(lost.end)} and goes on after it: damaged, or a segment is missing"
        )
    lost.undecided += not_read(plan.unread, plan.spans[-1], lost.end, size)
    if not lost.undecided:
        lost.undecided += ends_elsewhere(plan.old, plan.present, plan.spans[-1], lost.end)
    if lost.tablespaces:
        lost.undecided.append(
            f"no rows were read: replaying would make tablespace {lost.tablespaces[0]} again, in its place"
        )
    return lost


def _fold(lost: LostWal, copied: Copy, plan: Plan, begin: int, needed: int, done: Callable[[float], object]) -> None:
    old, whole = plan.old, (plan.spans[-1].end or 0) - plan.begin
    for span in (replace(plan.reads[0], start=begin), *plan.reads[1:]):
        reader = WalReader(old.major, old.system, span.timeline, old.segment_size, copied.wal(span.timeline))
        try:
            for number, record in enumerate(reader.records(span.start, span.end or 0), 1):
                lost.add(record)
                if number % _RECORDS == 0:
                    done((lost.end - plan.begin) / whole)
        except ValueError as wrong:
            lost.undecided.append(str(wrong))
        except MemoryError:
            raise refused("wal-too-large", where=lsn_text(lost.end)) from None
        is_last = span.timeline == plan.spans[-1].timeline
        lost.close(max(lost.fork, span.start, old.written) if is_last else span.end or 0)
        if lost.end < needed:
            break


def _session(copied: Copy, database: str) -> AbstractContextManager[Session]:
    return closing(copied.connect(database))


class _Kept:
    """A session that is opened when it is first wanted, and anew where an answer, too large perhaps, has ended it."""

    def __init__(self, opens: Callable[[], AbstractContextManager[Session]], stack: ExitStack) -> None:
        self._opens, self._stack = opens, stack
        self._opened: Session | None = None

    def __call__(self) -> Session:
        if self._opened is not None and self._opened.info.transaction_status != TransactionStatus.IDLE:
            self._opened = self._opened.close()
        if self._opened is None:
            self._opened = self._stack.enter_context(self._opens())
        return self._opened


def _read_tables(
    copied: Callable[[], Session], schema: str, database: int, lost: LostWal, new: Callable[[], Session] | None
) -> list[TableLoss]:
    def is_wanted(_: int, relation: Relation, is_unlogged: bool) -> bool:
        return relation in lost.blocks or is_unlogged or not lost.knows(relation)

    ours, chosen = tables(copied(), database, is_wanted), list[Table]()
    oids = {one.oid for one in ours}
    # The SQL minds what the new primary has by now: foreign keys that name a table, triggers.
    theirs = {one.oid: one for one in (tables(new(), database, lambda oid, *_: oid in oids) if new else ())}
    for found in ours:
        there, relation, why = theirs.get(found.oid, found), found.relation, found.why_not
        is_the_same = found.oid in theirs and there.relation == relation and relation not in lost.created
        is_new_file = not lost.knows(relation) and not is_the_same
        if why == UNLOGGED and is_new_file and (new is None or there.why_not != UNLOGGED):
            why = UNLOGGED_SINCE
        unknown = (f"what the new primary's table has is not known: {there.unread}",) if there.unread else ()
        warnings = tuple(dict.fromkeys((*found.warnings, *there.warnings, *unknown)))
        # Of what lost work took off its table, too, rows came from partitions of that.
        root = there.root if found.root == found.oid else found.root
        one = replace(found, references=there.references, old_references=found.references, root=root)
        uniques = there.uniques if there.numbered == found.numbered else ()  # else its places are of other columns
        one = replace(one, uniques=uniques, warnings=warnings, renumbered=renumbered(found, there))
        is_there = new is None or (found.oid in theirs and is_alike(found, there))
        if is_there and found.key_columns != there.key_columns:
            one = replace(one, key=(), warnings=(*warnings, OTHER_KEY))
        chosen.append(replace(one, why_not=why, is_new_file=is_new_file, has_no_place=not is_there))
    roots = {one.relation: frozenset((one.root, theirs.get(one.oid, one).root)) for one in ours}
    toasts = {one.toast[0] for one in ours if one.toast}
    lost.trails.know(roots, toasts, {one.relation for one in ours if one.fires})
    # Those of which least was written come first: it is the larger ones that memory may not be enough for.
    chosen.sort(key=partial(_written, lost))
    read = [_read_one(copied, schema, table, lost, new) for table in chosen]
    read.sort(key=lambda loss: loss.table.oid)
    leave_untold(read)
    leave_key_changes(read)
    leave_named(read)
    # The half of a row that is left as it names another's, or as the rest of its transaction is.
    rounds = 0
    while rounds < _ROUNDS and (leave_key_changes(read) or leave_deletes(read, lost)):
        leave_named(read)
        rounds += 1
    for loss in read if rounds == _ROUNDS else ():
        loss.no_sql = TANGLED
    return [loss for loss in read if loss.changes or loss.notes or loss.versions_gone or loss.unkeyed_old]


def _written(lost: LostWal, table: Table) -> float:
    """Blocks of the table that lost work has written, as far as they are known."""
    files = (table.relation, *(table.toast or ())[:1])
    return sum(len(lost.blocks[one]) if one in lost.blocks else 0 if lost.knows(one) else inf for one in files)


def _read_one(
    copied: Callable[[], Session],
    schema: str,
    table: Table,
    lost: LostWal,
    new: Callable[[], Session] | None,
) -> TableLoss:
    """It gets half of the memory that is left: the next ones, and the files at last, have the other half."""
    try:
        ours, theirs = copied(), new() if new else None
        with bounded_memory(parts=2):
            return read_table(ours, schema, table, lost, theirs)
    except (Error, *UNREADABLE) as wrong:
        why = f"it cannot be read: {reason(wrong)}"
    return TableLoss(table, is_read=False, notes=[why], undecided=[why])


@contextmanager
def _apart(lost: LostWal, name: str) -> Iterator[None]:
    """An error of one database is none of the others: of that one more may be lost."""
    try:
        yield
    except (Error, *UNREADABLE) as wrong:
        lost.undecided.append(f"database {name} cannot be read: {one_line(wrong, 200)}")


def _of_no_table(session: Session, database: int, name: str, lost: LostWal) -> list[str]:
    """That there are files to which lost transactions wrote, and of which the catalog of the copy knows nothing."""
    known = {node for (node,) in answered(session.execute(QUERIES["files"]), maybe(number))}
    here = {one for one in lost.blocks if one[1] == database and one[2] not in known} - lost.dropped
    nodes = ", ".join(str(one[2]) for one in sorted(here)[:5])
    says = f"lost transactions wrote to {len(here):,} files of {name} that its catalog has of no table: {nodes}"
    return [says] if here else []


def _read_databases(
    sessions: Sessions, out: PrivateFolder, copied: Copy, lost: LostWal, check: Check | None
) -> tuple[list[Tree], list[str]]:
    done, ready = list[Tree](), list[tuple[int, str]]()
    touched = lost.databases | (set() if lost.all_blocks_known else set(copied.databases))
    notes = [] if lost.all_blocks_known else [BEGAN_BEFORE]
    for oid in sorted(touched):
        if raw := copied.databases.get(oid):
            with _apart(lost, raw.decode(errors="backslashreplace")):
                copied.add_functions(name := raw.decode())
                ready.append((oid, name))
        else:
            notes.append(f"database {oid} was dropped: not read")
    with copied.started():
        for oid, name in ready:
            target, new = recovered.file_name(len(done) + 1, name), None
            with _apart(lost, name):
                with ExitStack() as stack:
                    session = _Kept(partial(_session, copied, name), stack)
                    theirs = _Kept(partial(sessions, dbname=name), stack)
                    session()
                    try:
                        new = theirs if theirs() else None
                    except Error as wrong:
                        if wrong.message == refused("another-primary").message:
                            raise
                    lost.catalogs.update(answered(session().execute(QUERIES["catalogs"]), number, number))
                    lost.undecided += (hidden := _of_no_table(session(), oid, name, lost))
                    losses = _read_tables(session, copied.role, oid, lost, new)
                    for loss in losses:
                        loss.no_sql = HIDDEN if hidden else loss.no_sql
                    nodes = {node for _, where, node in lost.blocks if where == oid}
                    ran_on = sequences(session(), nodes)
                    in_part = mark_parts(losses, lost)
                    paths = recovered.write(out, target, session(), losses, ran_on, written_since(lost))
                is_told = new is not None or not losses
                notes += [] if is_told else [f"rows of {name} are not compared: the new primary does not let us in"]
                unread = ((f"{one.schema}.{one.name}", one.unread) for one in ran_on if one.unread)
                lost.undecided += [f"sequence {one} of {name} cannot be read: {why}" for one, why in unread]
                lost.undecided += [f"{loss.name} of {name}: {why}" for loss in losses for why in loss.undecided]
                said = check(name, losses, paths) if check else []
                found: Tree = {"database": name, "tables": [table_tree(loss) for loss in losses]}
                found |= {"files": str(out.path / target) if target in out.names() else None}
                found |= {"ddl_transactions": lost.ddl(oid), "transactions_in_part": in_part}
                found |= {"sequences_ran_on": [f"{one.schema}.{one.name}" for one in ran_on]}
                found |= {"check": said if check and (paths or said) else None}
                if losses or ran_on or lost.ddl(oid):
                    done.append(found)
    return done, notes
