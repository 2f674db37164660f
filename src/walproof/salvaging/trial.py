"""`salvage --check`: the SQL on the new primary in a transaction that is rolled back, and what it would leave.

Rows that it writes are locked until then: it waits for nobody's lock, and gives up after a minute. What a trigger does
outside the transaction no rollback undoes, so without consent nothing is tried that would run a function of users."""

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import psycopg

from walproof.errors import Error
from walproof.machine.untrusted import one_line
from walproof.salvaging.plan import new_session
from walproof.salvaging.rows import UNREADABLE, Session, TableLoss, compared, own_code
from walproof.salvaging.server import QUERIES

LONGEST_S = 60.0


def tried(
    dsn: str, allowed: Collection[str], database: str, losses: Sequence[TableLoss], paths: Sequence[Path]
) -> list[str]:
    """What stands in the way of the files, a sentence each; [] when they bring every row to its lost state."""
    try:
        with new_session(dsn, dbname=database) as session:
            found = session.execute(QUERIES["outside"], ([loss.name for loss in losses],)).fetchall()
            codes = [own_code(session, oid, writes=True) for oid in dict(found)]
        outside = [one_line(one, 120) for one in (*(fired for _, fired in found), *codes) if one]
        if outside and "existing-tables" not in allowed:
            return [f"not tried: it would run {', '.join(outside[:5])}: --allow load,existing-tables consents"]
        # As psql's: functions of users find what they name by the search_path that role and database have.
        with new_session(dsn, reads_only=False, dbname=database) as session:
            return _tried(session, losses, paths)
    except (Error, psycopg.Error, UnicodeError) as wrong:
        return [f"not tried to the end, and rolled back: {one_line(wrong, 300)}"]


def _tried(session: Session, losses: Sequence[TableLoss], paths: Sequence[Path]) -> list[str]:
    late, says = threading.Event(), list[str]()

    def attempt(name: str, does: Callable[[], object]) -> None:
        try:
            with session.transaction():  # a savepoint: what fails is undone, the rest is tried
                does()
        except UNREADABLE as wrong:
            # Without the detail, which holds values of rows.
            said = wrong.diag.message_primary if isinstance(wrong, psycopg.Error) else None
            says.append(f"{name}: {one_line(said or wrong, 300)}")

    def run(path: Path) -> None:
        session.execute(path.read_bytes())

    steps: list[tuple[str, Callable[[], object]]] = [(path.name, partial(run, path)) for path in paths]
    steps.append(("deferred constraints", partial(session.execute, "SET CONSTRAINTS ALL IMMEDIATE")))
    steps.append(("its end", partial(session.execute, "SET LOCAL search_path = pg_catalog")))
    steps += [(loss.name, partial(_compare, session, loss, says)) for loss in losses]

    def give_up() -> None:
        late.set()
        session.cancel()

    timer = threading.Timer(LONGEST_S, give_up)
    timer.start()
    try:
        with session.transaction(force_rollback=True):
            session.execute(QUERIES["limits"])
            for name, does in steps:
                if not late.is_set():
                    attempt(name, does)
    finally:
        timer.cancel()
    return [*says, f"it took longer than {LONGEST_S:.0f} s: rolled back before its end"] if late.is_set() else says


def _compare(session: Session, loss: TableLoss, says: list[str]) -> None:
    wanted = [one for one in loss.changes if one.state in ("clean", "unsure")]
    left = sum(one.state != "there" for one in compared(session, loss.table, wanted, "false, "))
    says += [f"{loss.name}: {left} of {len(wanted)} rows would not be as they were lost"] if left else []
