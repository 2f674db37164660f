"""`salvage --check`: the SQL on the new primary in a transaction that is rolled back, and what it would leave.

Rows that it writes are locked until then: it waits for nobody's lock, and gives up after a minute. What a trigger does
outside the transaction no rollback undoes, so without consent nothing is tried that would run a function of users: that
is looked at under a lock in which no table can be swapped or changed, in the transaction that then runs the SQL."""

import os
import socket
import threading
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from functools import partial

import psycopg

from walproof.errors import Error
from walproof.machine.answering import answering
from walproof.machine.untrusted import one_line
from walproof.salvaging.answers import answered, maybe, number, truth, word
from walproof.salvaging.catalog import tables
from walproof.salvaging.changes import Table, TableLoss, renumbered
from walproof.salvaging.plan import Planned, Sessions, new_session
from walproof.salvaging.recovered import PSQL_ALONE, SqlFile, held_by
from walproof.salvaging.rows import UNREADABLE, Session, compared, hold, own_code, shape
from walproof.salvaging.server import QUERIES

LONGEST_S, GRACE_S = 60.0, 5.0
"""Of a trial, after which it is canceled, and then its session ended: a function of users may catch the first."""
_ROUNDS = 20
"""Of looking and locking, after which tables that foreign keys lead to are given up: each round adds some."""


def tried(
    dsn: str,
    allowed: Collection[str],
    database: str,
    losses: Sequence[TableLoss],
    files: Sequence[SqlFile],
    *,
    planned: Planned | None,
) -> list[str]:
    """What stands in the way of the files, and what was lost and is in none, a sentence each; [] when they bring every
    row to its lost state but those that are told to be in conflict or, without a key, cannot be compared."""
    left = _in_no_sql(losses, files)
    sessions = partial(new_session, dsn, planned=planned, dbname=database)
    return [*_tried_there(sessions, allowed, losses, files), *left] if files else left


def _in_no_sql(losses: Sequence[TableLoss], files: Sequence[SqlFile]) -> list[str]:
    says = list[str]()
    for loss in losses:
        counts = loss.in_no_sql(is_said=any(one.loss is loss for one in files))
        why = [f"{why}: {count:,}" for why, count in counts.items()]
        why += [] if loss.is_read else ["what was not read of it"]
        says += [f"{one_line(loss.name)}: in no SQL: {', '.join(why)}"] if why else []
    return says


def _tried_there(
    sessions: Sessions, allowed: Collection[str], losses: Sequence[TableLoss], files: Sequence[SqlFile]
) -> list[str]:
    try:
        # As psql's: functions of users find what they name by the search_path that role and database have.
        # What ends the session is opened before anything runs in it: a database's owner may let none in afterwards.
        with sessions() as another, sessions(reads_only=False) as session:
            return _in_time(session, allowed, losses, files, partial(_end, another, session.info.backend_pid))
    except (Error, *UNREADABLE) as wrong:
        return [f"not tried to the end, and rolled back: {one_line(wrong, 300)}"]


def _end(another: Session, pid: int) -> None:
    with suppress(psycopg.Error), answering(another):
        another.execute("SELECT pg_terminate_backend(%s)", (pid,))


def _in_time(
    session: Session,
    allowed: Collection[str],
    losses: Sequence[TableLoss],
    files: Sequence[SqlFile],
    end: Callable[[], object],
) -> list[str]:
    late, ended = threading.Event(), threading.Event()
    wire = socket.socket(fileno=os.dup(session.fileno()))

    def give_up() -> None:
        late.set()
        with suppress(psycopg.Error):
            session.cancel_safe(timeout=GRACE_S)  # cancel() waits for the server, and nobody else runs meanwhile
        if not ended.wait(GRACE_S):
            end()  # and where the server does not answer:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)  # the server ends a session whose client is gone (`limits`)

    timer = threading.Timer(LONGEST_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        with session.transaction(force_rollback=True):
            session.execute(QUERIES["limits"])
            says = _tried(session, allowed, losses, files, late)
    finally:
        ended.set()
        timer.cancel()
        wire.close()
    return [*says, f"it took longer than {LONGEST_S:.0f} s: rolled back before its end"] if late.is_set() else says


def _tried(
    session: Session,
    allowed: Collection[str],
    losses: Sequence[TableLoss],
    files: Sequence[SqlFile],
    late: threading.Event,
) -> list[str]:
    says = list[str]()

    def attempt(name: str, does: Callable[[], object]) -> bool:
        try:
            with session.transaction():  # a savepoint: what fails is undone, the rest is tried
                does()
        except UNREADABLE as wrong:
            # Without the detail, which holds values of rows.
            said = wrong.diag.message_primary if isinstance(wrong, psycopg.Error) else None
            says.append(f"{name}: {one_line(said or wrong, 300)}")
            return False
        return True

    there = _held(session, losses, attempt, says)
    if not there:
        return says
    outside = _outside(session, there) if "existing-tables" not in allowed else []
    if outside:
        return [f"not tried: it would run {', '.join(outside[:5])}: --allow load,existing-tables consents"]
    steps = list[tuple[str, Callable[[], object]]]()
    steps += [(one.path.name, partial(_run, session, one)) for one in files if any(one.loss is loss for loss in there)]
    steps.append(("deferred constraints", partial(session.execute, "SET CONSTRAINTS ALL IMMEDIATE")))
    steps.append(("its end", partial(session.execute, "SET LOCAL search_path = pg_catalog")))
    steps += [(one_line(loss.name), partial(_compare, session, loss, says)) for loss in there]
    for name, does in steps:
        if not late.is_set():
            attempt(name, does)
    return says


def _held(
    session: Session,
    losses: Sequence[TableLoss],
    attempt: Callable[[str, Callable[[], object]], bool],
    says: list[str],
) -> list[TableLoss]:
    """Those whose tables are on the new primary and locked now; why the others are not is added to `says`."""
    locked, there = list[TableLoss](), list[TableLoss]()
    for loss in losses:
        name = one_line(loss.name)
        if not _is_there(session, loss):
            says.append(f"{name}: the new primary has no such table: its files were not tried")
        elif attempt(name, partial(_hold_all, session, loss.table)):
            locked.append(loss)
    now = _tables_now(session, {loss.table.oid for loss in locked}) if locked else {}
    for loss in locked:
        # Between the two looks another table may have come to the name, or to that of one that names it.
        if _is_as_read(loss.table, now.get(loss.table.oid)):
            there.append(loss)
        else:
            name = one_line(loss.name)
            why = "it has other columns, or it or what names it was replaced meanwhile"
            says.append(f"{name}: {why}: its files were not tried")
    return there


def _hold_all(session: Session, table: Table) -> None:
    """Lock each table that the SQL names, by that name."""
    named = [(table.schema, table.name), *((one.schema, one.table) for one in table.references)]
    for schema, name in dict.fromkeys(named):
        hold(session, schema, name)


def _tables_now(session: Session, oids: Container[int]) -> dict[int, Table]:
    with session.transaction(force_rollback=True):
        session.execute("SET LOCAL search_path = pg_catalog")
        return {one.oid: one for one in tables(session, 0, lambda oid, *_: oid in oids)}


def _is_as_read(was: Table, now: Table | None) -> bool:
    """Whether the names in its SQL are those of what was read: foreign keys, with their tables' oids, and columns, of
    which a key's are compared as PostgreSQL's own types, if they were: no user makes a cast of these."""
    if now is None or (now.schema, now.name) != (was.schema, was.name):
        return False
    keys = [[one.columns[place] for place in one.key] for one in (was, now)]
    is_same_key = not (was.key and was.is_key_builtin) or (now.is_key_builtin and keys[0] == keys[1])
    return was.references == now.references and is_same_key and {*was.columns} <= {*now.columns} - renumbered(was, now)


def _own_operators(losses: Sequence[TableLoss]) -> list[str]:
    """Foreign keys that changes look through by operators or types of users, each of which may get another function
    or a cast at any time."""
    keys = [(loss, key) for loss in losses for one in loss.changes if one.is_in_sql for key in held_by(loss.table, one)]
    strange = dict.fromkeys((loss.name, key.table) for loss, key in keys if not key.is_builtin)
    return [one_line(f"{name}: the operator or type of its key in {table}", 120) for name, table in strange]


def _run(session: Session, file: SqlFile) -> None:
    text = file.path.read_text("ascii")
    session.execute(text.removeprefix(PSQL_ALONE).encode())


def _is_there(session: Session, loss: TableLoss) -> bool:
    """Whether the new primary's table of that name is the one that lost rows."""
    with session.transaction(force_rollback=True):
        session.execute("SET LOCAL search_path = pg_catalog")
        found = shape(session, loss.table)
    return found is not None and found[0] == loss.table.oid


def _outside(session: Session, losses: Sequence[TableLoss]) -> list[str]:
    """What of users the SQL would run, now that each table that it may write to or check is locked; [] for nothing."""
    if says := _own_operators(losses):
        return says
    oids, held = [loss.table.oid for loss in losses], set[tuple[int, str, str]]()
    for _ in range(_ROUNDS):
        with session.transaction(force_rollback=True):
            session.execute("SET LOCAL search_path = pg_catalog")
            kinds = (number, word, word, word, truth, maybe(word))
            found = answered(session.execute(QUERIES["outside"], (oids,)), *kinds)
            is_written = {oid: written for oid, _, _, _, written, _ in found}
            codes = [own_code(session, oid, writes=is_written[oid]) for oid in sorted(is_written)]
        fired = [f"{table}: {own}" for _, _, table, _, _, own in found if own is not None]
        if says := [one_line(one, 120) for one in (*fired, *codes) if one]:
            return says
        named = {one[:3] for one in found if one[0] not in oids and one[3] in ("r", "p")}
        if not (new := named - held):  # each had that name once it was locked by it: it cannot have another
            return []
        for _, schema, table in sorted(new):
            hold(session, schema, table)
        held |= new
    return ["what foreign keys lead to, which changes meanwhile"]


def _compare(session: Session, loss: TableLoss, says: list[str]) -> None:
    """Each change that is in the SQL but for conflicts, which are told; without a key nothing finds a row again."""
    wanted = [one for one in loss.changes if one.is_in_sql and one.state != "conflict" and loss.table.key]
    left = sum(one.state != "there" for one in compared(session, loss.table, wanted, "false"))
    says += [f"{one_line(loss.name)}: {left} of {len(wanted)} rows would not be as they were lost"] if left else []
