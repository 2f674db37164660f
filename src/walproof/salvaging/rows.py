"""Lost rows of a table: the final state in the copy, what was there at the fork, what the new primary holds now.

Old versions are read from the copy's heap pages, made visible there (pageinspect, pg_surgery), before any scan prunes
them. What the old primary had pruned, or its TOAST, is looked up on the new primary, where it still is in its place."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from walproof.machine.untrusted import one_line
from walproof.model.units import counted
from walproof.salvaging.answers import answered, many, maybe, number, truth, word
from walproof.salvaging.changes import (
    REWRITTEN,
    Change,
    Row,
    Table,
    TableLoss,
    Unread,
    Untold,
    changes,
    judged,
    key,
)
from walproof.salvaging.key_changes import mark
from walproof.salvaging.quoting import plain_table
from walproof.salvaging.row_trails import Place
from walproof.salvaging.server import QUERIES
from walproof.salvaging.transactions import Version, note
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Relation

Session = Any
NO_TABLE = "the new primary has no such table: made or renamed after the fork, or dropped there"
KEY_SINCE = "rows that it held at the fork share a key: it has had that since, so that no old and new one are paired"
TAKEN = "in conflict, and in no SQL, as another row has a unique value of theirs on the new primary"
UNLOGGED = "unlogged: a crash empties it, nothing of it can be told"
UNLOGGED_SINCE = "unlogged since the fork: of the rows that it lost while it was logged nothing can be told"
SCANNED = "updates and deletes that each read the whole table, as no index there finds its key by a type of PostgreSQL"
LONGEST_S = 300
"""Of a query that compares, in a transaction in which nothing of the new primary can be vacuumed."""
_TIDS, _KEYS, _SCANNED, _SHOWN = 2000, 500, 20_000, 5
UNREADABLE = (psycopg.Error, ValueError, MemoryError)
"""A database in SQL_ASCII hands out bytes as they are; an answer may be no answer to the question."""


def reason(wrong: BaseException) -> str:
    """What is told of it, on one line."""
    return one_line(wrong, 200) or (
        "it is too large for memory" if isinstance(wrong, MemoryError) else "it does not say"
    )


def own_code(session: Session, table: int, *, writes: bool = False) -> str:
    """A function of theirs that reading the table would run, or writing; "" when there is none."""
    row = session.execute(QUERIES["own-code"], {"table": table, "writes": writes}).fetchone()
    return one_line(row[0], 200) if row else ""


def shape(session: Session, table: Table) -> tuple[int, int, tuple[str, ...], bool] | None:
    """The ordinary table of that name: its oid, file node, columns with types, and whether row security hides rows."""
    asked = session.execute(QUERIES["shape"], (table.schema, table.name)).fetchone()
    for oid, node, columns, is_filtered in answered([asked] if asked else [], number, number, many(word), truth):
        return oid, node, columns, is_filtered
    return None


def hold(session: Session, schema: str, name: str) -> None:
    """Lock a table by its name until the transaction ends, so that what is seen of it holds while it is used."""
    session.execute(sql.SQL(QUERIES["lock"]).format(sql.Identifier(schema, name)))


def written_since(lost: LostWal) -> str:
    """The condition that the new primary has written a row since the fork: the values that it had then do not tell."""
    if lost.next_xid is None:
        return "false"
    prepared = ",".join(map(str, sorted(lost.prepared_at_fork)))
    return QUERIES["written-since"].splitlines()[-1].format(lost.next_xid, prepared)


def read_table(copied: Session, schema: str, table: Table, lost: LostWal, new: Session | None) -> TableLoss:
    """Every lost change of the table; `schema` holds our functions, `new` is a session of the new primary."""
    loss, why = TableLoss(table), table.why_not
    try:
        if table.unread:
            raise ValueError(table.unread)
        if not why and (code := own_code(copied, table.oid)):
            why = f"it would run the directory's own code (function {code})"
        loss.notes += [f"not read: {why}"] if why else []
        loss.is_read = why in ("", UNLOGGED)
        loss.undecided += [] if loss.is_read else loss.notes[-1:]
        if not why:
            _read(copied, schema, loss, lost, new)
    except UNREADABLE as wrong:
        loss.is_read = False
        loss.undecided.append(f"it cannot be read: {reason(wrong)}")
        loss.notes += loss.undecided[-1:]
    loss.notes += [one_line(warning, 300) for warning in table.warnings if loss.changes]
    return loss


def _read(copied: Session, schema: str, loss: TableLoss, lost: LostWal, new: Session | None) -> None:
    with ExitStack() as stack:
        _read_both(copied, schema, loss, lost, new, stack)


def _read_both(
    copied: Session, schema: str, loss: TableLoss, lost: LostWal, new: Session | None, stack: ExitStack
) -> None:
    """What is looked at of the new primary is what is read: in one transaction, which ends with `stack`."""
    table = loss.table
    is_leaf = table.root not in (0, table.oid)
    for relation, toast in [table.toast] if table.toast else []:
        _versions(copied, schema, f"pg_toast.{toast}", relation, lost)
    name = plain_table(table.schema, table.name)
    moved = lost.moved if is_leaf else set[int]()
    *places, superseded, stale, versions = _versions(copied, schema, name, table.relation, lost, moved)
    unread = dict[Place, str]()
    rows = [dict(_at(copied, table, some, unread)) for some in places]
    made, replaced, updated, deleted = (list(some.values()) for some in rows)
    at_fork, ended = {*places[2], *places[3]}, lost.ended[table.relation]
    _note_stale(loss, stale)
    if not (made or replaced or at_fork or unread or ended or table.is_new_file):
        return
    there, old = None, updated + deleted
    if new is not None:
        stack.enter_context(new.transaction())
        new.execute("SET TRANSACTION READ WRITE")  # or the table may not be locked against changes
        there = _file_there(copied, new, loss, lost)
    # What ended a version that is found is counted once; what a transaction from before the WAL ended, not at all.
    ends, found = ended.total(), len(at_fork & ended.keys())
    if new is not None and there is not None:
        since = written_since(lost)
        # A file that is of lost work is another one than the new primary's of that number.
        theirs = lost.ended[there] if there not in lost.created else Counter[Place]()
        mine = at_fork if there == table.relation and there not in lost.created else set[Place]()
        ends += theirs.total() if there != table.relation else 0
        carried = Counter(old) if there != table.relation else Counter[Row]()  # CLUSTER takes versions along
        seen = dict(_still_there(new, table, since, (theirs.keys() - mine) | (mine & unread.keys())))
        old += (Counter(seen.values()) - carried).elements()
        rows[2] |= {at if at in mine else (-1 - at[0], at[1]): row for at, row in seen.items()}
        for place in seen:
            if place in mine:
                unread.pop(place, None)
            else:
                found += 1
    if table.is_new_file and NO_TABLE not in loss.notes:  # ALTER TABLE inserts every row anew
        made, replaced, rows[1] = [], made + replaced, rows[0] | rows[1]
    _note_unread(loss, unread)
    if table.key and len({key(table, row) for row in old}) < len(old):
        loss.table = table = replace(table, key=())
        loss.notes.append(KEY_SINCE)
    blind = Unread(is_any=True) if stale else None
    final, before = (
        blind or _unread(copied, table, unread.keys() & some) for some in ({*places[0], *places[1]}, at_fork)
    )
    untold = Untold(final, before, {key(table, row) for row in deleted})
    loss.changes = changes(table, made, replaced, old, untold)
    loss.versions_gone = max(0, ends - found - superseded)
    loss.unkeyed_old = 0 if table.key else len(old)
    if new is not None and there is not None and table.key:
        _compare(new, loss, since)
    mark(loss, rows, versions, lost, there)
    note(loss, rows, unread, versions, lost, there)


def _compare(new: Session, loss: TableLoss, since: str) -> None:
    table = loss.table
    try:
        with new.transaction():
            new.execute(f"SET LOCAL statement_timeout = '{LONGEST_S}s'")
            loss.changes = list(taken(new, table, list(compared(new, table, loss.changes, since)), since))
    except psycopg.errors.QueryCanceled:
        loss.notes.append(f"not compared: a query of it took longer than {LONGEST_S} s")
    left = sum(one.is_left for one in loss.changes)
    loss.notes += [f"{TAKEN}: {left:,}"] if left else []
    reads = sum(one.is_in_sql and one.kind in ("update", "delete") for one in loss.changes)
    loss.notes += [f"{SCANNED}: {reads:,}"] if reads and not _is_indexed(table) else []


def _still_there(new: Session, table: Table, since: str, places: Iterable[Place]) -> Iterator[tuple[Place, Row]]:
    """Versions at the fork that the new primary still has at these places of its own file."""
    for part in parts(sorted(places), _TIDS):
        for is_written, place, *row in _select(new, table, f"{since}, ctid, ", _at_places(part)):
            if is_written == "f":
                yield _place(place), tuple(row)


def _note_unread(loss: TableLoss, unread: dict[Place, str]) -> None:
    loss.unread += len(unread)
    shown = list(unread.items())[:_SHOWN]
    loss.notes += [f"the version at {place} cannot be read: {why}" for place, why in shown]
    if len(unread) > _SHOWN:
        loss.notes.append(f"nor can {len(unread) - _SHOWN:,} others")
    if unread:
        loss.undecided.append(f"{len(unread):,} versions of its rows cannot be read: no SQL changes these rows")


def _note_stale(loss: TableLoss, stale: Sequence[int]) -> None:
    loss.unread += len(stale)
    if stale:
        said = f"{counted(len(stale), 'block')} of it, as {stale[0]}, {'is' if len(stale) == 1 else 'are'} not"
        loss.notes.append(
            f"{said} what the WAL wrote there: the disk has lost a write, or is of another time; none of its rows is"
            " taken for deleted"
        )
        loss.undecided.append(loss.notes[-1])


def _unread(copied: Session, table: Table, places: Collection[Place]) -> Unread:
    """Of versions that cannot be read the keys, where these can."""
    if not table.key or not places:
        return Unread(is_any=bool(places))
    blind = dict[Place, str]()
    alone = replace(table, columns=tuple(table.columns[one] for one in table.key))
    return Unread(frozenset(row for _, row in _at(copied, alone, sorted(places), blind)), bool(blind))


def _file_there(copied: Session, new: Session, loss: TableLoss, lost: LostWal) -> Relation | None:
    """The table's file on the new primary, which is locked now; None, and why in the notes, where its rows cannot be
    compared."""
    table = loss.table
    here, why, there = shape(copied, table), "", shape(new, table)
    # Another table may have the name by now; a view has no file, nor has a partitioned table.
    if here is not None and there is not None and there[0] == here[0]:
        why = _held_against_its_owner(new, table)
        there = shape(new, table) if not why else there
    if here is None or there is None or there[0] != here[0]:
        loss.notes.append(NO_TABLE)
        return None
    oid, node, columns, is_filtered = there
    if not why:
        why = "its next transaction id at the fork is not known" if lost.next_xid is None else ""
        why = f"it would run the new primary's own code (function {code})" if (code := own_code(new, oid)) else why
        why = "row security hides rows of it: the role needs BYPASSRLS" if is_filtered else why
        why = "the new primary's table has other columns" if columns != here[2] else why
    loss.notes += [f"not compared: {why}"] if why else []
    if table.is_new_file or node != here[1]:
        loss.notes.append(REWRITTEN)
    return None if why else (*table.relation[:2], node)


def _held_against_its_owner(new: Session, table: Table) -> str:
    """Why it cannot be locked, "" once it is; nothing is written from here on."""
    try:
        with new.transaction():
            hold(new, table.schema, table.name)
    except psycopg.Error as wrong:
        said = one_line(wrong.diag.message_primary or wrong, 120)
        return f"it cannot be locked against changes while it is read ({said}): the role needs pg_write_all_data"
    new.execute("SET TRANSACTION READ ONLY")
    return ""


def _blocks(copied: Session, schema: str, name: str, relation: Relation, lost: LostWal) -> tuple[list[int], list[int]]:
    """Blocks that lost transactions wrote to, and may have; and those of them that are not as the WAL left them."""
    ((size,),) = answered(copied.execute(QUERIES["blocks"], (name,)), number)
    blocks, last = set(lost.blocks[relation]), lost.last(relation)
    if not lost.knows(relation):
        blocks.update(range(size), last)
    known = sorted(blocks & last.keys())
    expected = {"name": name, "blocks": known, "lsns": [last[block] for block in known]}
    query = sql.SQL(QUERIES["stale"]).format(sql.Identifier(schema))
    stale = [block for (block,) in answered(copied.execute(query, expected).fetchall() if known else [], number)]
    return sorted(one for one in blocks - set(stale) if one < size), stale


def _versions(
    copied: Session, schema: str, name: str, relation: Relation, lost: LostWal, moved: Container[int] = ()
) -> tuple[list[Place], list[Place], list[Place], list[Place], int, list[int], list[Version]]:
    """Places of lost final versions, inserted and written by an UPDATE (or by one of `moved`), of those at the fork,
    which are made visible, replaced and ended by a DELETE, how many were in between, blocks that are not as the WAL
    left them, of which none is looked at, and all these versions."""
    blocks, stale = _blocks(copied, schema, name, relation, lost)
    asked = {"xids": f"{{{','.join(map(str, lost.xids))}}}", "blocks": blocks}
    versions, freeze = (sql.SQL(QUERIES[one]).format(sql.Identifier(schema)) for one in ("versions", "freeze"))
    answer = copied.execute(versions, {**asked, "name": name}).fetchall() if asked["blocks"] else []
    kinds = (number, number, number, truth, maybe(number), truth, _place)
    seen = [Version((block, item), *more) for block, item, *more in answered(answer, *kinds)]
    final = [(one.place, one.is_update or one.xmin in moved) for one in seen if one.ended_by is None]
    old = [(one.place, one.next == one.place) for one in seen if not one.is_lost]
    kept = ([place for place, is_kind in some if is_kind is kind] for some in (final, old) for kind in (False, True))
    made, replaced, updated, deleted = kept
    for part in parts([place for place, _ in old], _TIDS):
        copied.execute(freeze, (name, _tids(part)))
    return made, replaced, updated, deleted, len(seen) - len(final) - len(old), stale, seen


def _place(answer: object) -> Place:
    block, item = word(answer).strip("()").split(",")
    return int(block), int(item)


def parts(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """The values in lists of at most that size."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


def _tids(places: Sequence[Place]) -> str:
    return "{" + ",".join(f'"({block},{item})"' for block, item in places) + "}"


def _at_places(places: Sequence[Place]) -> sql.Composed:
    return sql.SQL("ctid = ANY({}::tid[])").format(sql.Literal(_tids(places)))


def _select(session: Session, table: Table, before: str, condition: sql.Composable) -> list[Row]:
    return list(_selected(session, table, before, condition))


def _selected(session: Session, table: Table, before: str, condition: sql.Composable) -> Iterator[Row]:
    """Rows as text by the types' output functions alone: no cast, which may be a function of theirs."""
    names = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    words = (sql.SQL(before), names, sql.Identifier(table.schema, table.name), condition)
    query = sql.SQL("COPY (SELECT {}{} FROM ONLY {} WHERE {}) TO STDOUT").format(*words)
    with session.cursor() as cursor, cursor.copy(query) as rows:
        yield from rows.rows()


def _at(
    copied: Session, table: Table, places: Sequence[Place], unread: dict[Place, str]
) -> Iterator[tuple[Place, Row]]:
    """Rows by these places, one each; a place of which there is none is added to `unread`, with why: its TOAST is gone,
    or no query shows it."""
    for part in parts(places, _TIDS):
        found, why = list[tuple[Place, Row]](), ""
        try:
            found = [(_place(at), tuple(row)) for at, *row in _select(copied, table, "ctid, ", _at_places(part))]
        except UNREADABLE as wrong:
            why = reason(wrong)
        if len(found) == len(part):
            yield from found
        elif len(part) == 1:
            unread[part[0]] = why or "no query shows it"
        else:
            for one in part:
                yield from _at(copied, table, [one], unread)


def compared(new: Session, table: Table, lost: Sequence[Change], since: str) -> Iterator[Change]:
    """Each change beside the new primary's row of its key."""
    for part in parts(lost, _KEYS if _is_indexed(table) else _SCANNED):
        keys = [key(table, one.new or one.old or ()) for one in part]
        now = _now(new, table, keys, since)
        for values, one in zip(keys, part, strict=True):
            changed, *rest = now.get(values, ("f",))
            yield judged(one, tuple(rest) or None, unchanged=changed == "f")


def taken(new: Session, table: Table, lost: Sequence[Change], since: str) -> Iterator[Change]:
    """Each change; it is in conflict where a unique value that it writes is another row's, which the new primary has
    written since the fork. One that it has not is a row that lost work deleted or gave another value."""
    for part in parts(lost, _KEYS):
        for places in table.uniques if table.key else ():
            alone = replace(table, key=places, is_key_builtin=True)
            mine = [_written(alone, one) for one in part]
            asked = [values for values in mine if values]
            now = _now(new, alone, asked, since) if asked and {*places} != {*table.key} else {}
            for at, (one, values) in enumerate(zip(part, mine, strict=True)):
                changed, *row = now.get(values, ("f",))
                if changed == "t" and key(table, tuple(row)) != key(table, one.new or ()):
                    part[at] = replace(one, state="conflict", is_left=True, now=one.now or tuple(row))
        yield from part


def _written(table: Table, change: Change) -> Row:
    """The values of the key that the change gives a row; () for none, or NULL, which is nobody's."""
    if change.new is None or not change.is_in_sql:
        return ()
    wanted = key(table, change.new)
    return () if None in wanted or (change.old and key(table, change.old) == wanted) else wanted


def _is_indexed(table: Table) -> bool:
    return table.is_key_builtin and {*table.key} in map(set, table.uniques)


def _now(new: Session, table: Table, keys: Sequence[Row], since: str) -> dict[Row, Row]:
    """The new primary's rows of these keys, each behind whether it has written it."""
    # By its text where a type is a user's: its owner may add a cast at any time, which a comparison would then run.
    name = "{}" if table.is_key_builtin else "format('%s', {}) COLLATE \"C\""
    names = [sql.SQL(name).format(sql.Identifier(table.columns[place])) for place in table.key]
    if _is_indexed(table):
        typed = [map(sql.Literal, values) for values in keys]
        tuples = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(one)) for one in typed)
        condition = sql.SQL("({}) IN ({})").format(sql.SQL(", ").join(names), tuples)
    else:  # each row of the table is looked at: of each column by a hash, not by each key
        lists = [sql.SQL(", ").join(map(sql.Literal, dict.fromkeys(some))) for some in zip(*keys, strict=True)]
        conditions = [sql.SQL("{} IN ({})").format(*one) for one in zip(names, lists, strict=True)]
        condition = sql.SQL(" AND ").join(conditions)
    wanted = {*keys}
    return {of: row for row in _selected(new, table, f"{since}, ", condition) if (of := key(table, row[1:])) in wanted}
