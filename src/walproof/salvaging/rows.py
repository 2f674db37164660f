"""Lost rows of a table: the final state in the copy, what was there at the fork, what the new primary holds now.

Old versions are read from the copy's heap pages, made visible there (pageinspect, pg_surgery), before any scan prunes
them. What the old primary had pruned is looked up on the new primary, where the row still is at its old place."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from walproof.machine.untrusted import one_line
from walproof.salvaging.server import QUERIES
from walproof.salvaging.wal import LostWal, Relation

Session = Any
Row = tuple[str | None, ...]
Place = tuple[int, int]
"""Block and item of a row version."""
REWRITTEN = (
    "rewritten or truncated after the fork (VACUUM FULL, CLUSTER, TRUNCATE, ALTER TABLE):"
    " rows that it held at the fork may be among the inserted, or missing among the deleted"
)
_WRITTEN_SINCE = (
    "(xmin::text::int8 - {0} + 4294967296) % 4294967296"
    " < (pg_snapshot_xmax(pg_current_snapshot())::text::int8 - {0}) % 4294967296, "
)
"""Whether the new primary wrote a row since the fork, whose next transaction id is {0}: they go round at 2^32."""
_TIDS, _KEYS = 2000, 500


@dataclass(slots=True)
class Table:
    """A heap table, or the leaf of a partitioned one. `columns` are stored and can be written.

    `key`: places of its key's columns, () without one. `why_not`: why its rows are not read.
    """

    oid: int
    schema: str
    name: str
    relation: Relation
    toast: tuple[Relation, str] | None
    why_not: str = ""
    columns: tuple[str, ...] = ()
    key: tuple[int, ...] = ()
    root: int = 0
    """The partitioned table that it is a leaf of, or itself."""
    is_key_builtin: bool = False
    """Whether the types of its key are PostgreSQL's own."""


@dataclass(frozen=True, slots=True)
class Change:
    """One lost change of a row: insert, update or delete; `now` is the new primary's row of that key.

    `state`: clean, conflict (it was changed there too), there (it holds the lost state already), not compared.
    """

    kind: str
    new: Row | None
    old: Row | None
    now: Row | None = None
    state: str = "not compared"


@dataclass(slots=True)
class TableLoss:
    """What was lost of one table; `notes` say what cannot be told."""

    table: Table
    changes: list[Change] = field(default_factory=list)
    versions_gone: int = 0
    unkeyed_old: int = 0
    notes: list[str] = field(default_factory=list)


def tables(session: Session, database: int, touched: Container[Relation] | None) -> list[Table]:
    """The tables of these relations, or all of them, and unlogged ones, by their oids."""
    found = []
    for space, node, toast, toast_name, why_not, *rest in session.execute(QUERIES["tables"]):
        oid, schema, name, columns, key, root, is_builtin = rest
        relation = (int(space), database, int(node or 0))
        if touched is None or relation in touched or why_not.startswith("unlogged"):
            code = "" if why_not else own_code(session, oid)
            why = f"it would run the directory's own code (function {code})" if code else why_not
            stored = ((relation[0], database, int(toast)), toast_name) if toast else None
            places = () if key is None or None in key else tuple(key)
            found.append(
                Table(oid, schema, name, relation, stored, why, tuple(columns or ()), places, root, bool(is_builtin))
            )
    return found


def own_code(session: Session, table: int) -> str:
    """A function of theirs that reading the table would run; "" when there is none."""
    row = session.execute(QUERIES["own-code"], {"table": table}).fetchone()
    return one_line(row[0], 200) if row else ""


def read_table(copied: Session, schema: str, table: Table, lost: LostWal, new: Session | None) -> TableLoss:
    """Every lost change of the table; `schema` holds our functions, `new` is a session of the new primary."""
    loss = TableLoss(table, notes=[f"not read: {table.why_not}"] if table.why_not else [])
    try:
        if not table.why_not:
            _read(copied, schema, loss, lost, new)
    except psycopg.Error as wrong:
        loss.notes.append(f"it cannot be read: {one_line(wrong, 200)}")
    return loss


def _read(copied: Session, schema: str, loss: TableLoss, lost: LostWal, new: Session | None) -> None:
    table = loss.table
    for relation, toast in [table.toast] if table.toast else []:
        _versions(copied, schema, f"pg_toast.{toast}", relation, lost)
    name = sql.Identifier(table.schema, table.name).as_string(copied)
    last, at_fork, superseded = _versions(copied, schema, name, table.relation, lost)
    final, old = (list(_at(copied, table, places, loss)) for places in (last, at_fork))
    ended = lost.writes.ended[table.relation]
    if not (final or old or ended or table.relation in lost.created):
        return
    there = _file_there(copied, new, loss, lost) if new is not None else None
    if new is not None and there is not None:
        since = _WRITTEN_SINCE.format(lost.next_xid)
        is_same = there == table.relation
        gone = lost.writes.ended[there] - set(at_fork if is_same else ())
        gone = set() if is_same and there in lost.created else gone
        ended = ended | gone
        for part in parts(sorted(gone), _TIDS):
            rows = _select(new, table, since, _at_places(part))
            old += [row[1:] for row in rows if row[0] == "f"]
    loss.changes = changes(table, final, old)
    loss.versions_gone = max(0, len(ended) - len(old) - superseded)
    loss.unkeyed_old = 0 if table.key else len(old)
    if new is not None and there is not None and table.key:
        loss.changes = list(_compared(new, table, loss.changes, since))


def _file_there(copied: Session, new: Session, loss: TableLoss, lost: LostWal) -> Relation | None:
    """The table's file on the new primary; None, and why in the notes, where its rows cannot be compared."""
    table = loss.table
    there, here = (one.execute(QUERIES["shape"], (table.schema, table.name)).fetchone() for one in (new, copied))
    if there is None:
        loss.notes.append("the new primary has no such table: made after the fork, or dropped there")
        return None
    oid, node, columns, is_filtered = there
    why = "its next transaction id at the fork is not known" if lost.next_xid is None else ""
    why = f"it would run the new primary's own code (function {code})" if (code := own_code(new, oid)) else why
    why = "row security hides rows of it: the role needs BYPASSRLS" if is_filtered else why
    why = "the new primary's table has other columns" if columns != here[2] else why
    loss.notes += [f"not compared: {why}"] if why else []
    if table.relation in lost.created or node != here[1]:
        loss.notes.append(REWRITTEN)
    return None if why else (*table.relation[:2], int(node))


def _versions(
    copied: Session, schema: str, name: str, relation: Relation, lost: LostWal
) -> tuple[list[Place], list[Place], int]:
    """Places of lost final versions, of those at the fork, which are made visible, and how many were in between."""
    ((size,),) = copied.execute(QUERIES["blocks"], (name,))
    is_known = lost.all_blocks_known and relation not in lost.created  # of a rewritten file pages are logged whole
    written = sorted(lost.writes.blocks[relation]) if is_known else range(size)
    asked = {"xids": f"{{{','.join(map(str, lost.xids))}}}", "blocks": [one for one in written if one < size]}
    versions, freeze = (sql.SQL(QUERIES[one]).format(sql.Identifier(schema)) for one in ("versions", "freeze"))
    seen = copied.execute(versions, {**asked, "name": name}).fetchall() if asked["blocks"] else []
    final = [(block, item) for block, item, is_lost, is_ended in seen if not is_ended]
    at_fork = [(block, item) for block, item, is_lost, is_ended in seen if not is_lost]
    for part in parts(at_fork, _TIDS):
        copied.execute(freeze, (name, _tids(part)))
    return final, at_fork, len(seen) - len(final) - len(at_fork)


def parts(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """The values in lists of at most that size."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


def _tids(places: Sequence[Place]) -> str:
    return "{" + ",".join(f'"({block},{item})"' for block, item in places) + "}"


def _at_places(places: Sequence[Place]) -> sql.Composed:
    return sql.SQL("ctid = ANY({}::tid[])").format(sql.Literal(_tids(places)))


def _select(session: Session, table: Table, before: str, condition: sql.Composable) -> list[Row]:
    """Rows as text by the types' output functions alone: no cast, which may be a function of theirs."""
    names = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    words = (sql.SQL(before), names, sql.Identifier(table.schema, table.name), condition)
    query = sql.SQL("COPY (SELECT {}{} FROM ONLY {} WHERE {}) TO STDOUT").format(*words)
    with session.cursor() as cursor, cursor.copy(query) as rows:
        return list(rows.rows())


def _at(copied: Session, table: Table, places: Sequence[Place], loss: TableLoss) -> Iterator[Row]:
    """Rows at these places; one that cannot be read, as its TOAST is gone, is noted."""
    for part in parts(places, _TIDS):
        try:
            yield from _select(copied, table, "", _at_places(part))
        except psycopg.Error as wrong:
            if len(part) == 1:
                loss.notes.append(f"the version at {part[0]} cannot be read: {one_line(wrong, 120)}")
            for one in part if len(part) > 1 else ():
                yield from _at(copied, table, [one], loss)


def key(table: Table, row: Row) -> Row:
    """The values of the row's key."""
    return tuple(row[place] for place in table.key)


def changes(table: Table, final: Sequence[Row], old: Sequence[Row]) -> list[Change]:
    """Final and old versions of one key are one update; of tables without key, rows inserted alone."""
    if not table.key:
        return [Change("insert", row, None) for row in final]
    before = {key(table, row): row for row in old}
    both = [(row, before.pop(key(table, row), None)) for row in final]
    lost = [Change("insert" if was is None else "update", row, was) for row, was in both if was != row]
    return [*lost, *(Change("delete", None, row) for row in before.values())]


def _compared(new: Session, table: Table, lost: Sequence[Change], since: str) -> Iterator[Change]:
    """Each change beside the new primary's row of its key."""
    names = sql.SQL(", ").join(sql.Identifier(table.columns[place]) for place in table.key)
    for part in parts(lost, _KEYS):
        keys = [key(table, one.new or one.old or ()) for one in part]
        typed = [map(sql.Literal, values) for values in keys]
        tuples = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(one)) for one in typed)
        rows = _select(new, table, since, sql.SQL("({}) IN ({})").format(names, tuples))
        now = {key(table, row[1:]): row for row in rows}
        for values, one in zip(keys, part, strict=True):
            changed, *rest = now.get(values, ("f",))
            yield judged(one, tuple(rest) or None, unchanged=changed == "f")


def judged(change: Change, now: Row | None, *, unchanged: bool) -> Change:
    """The change beside the new primary's row; `unchanged`: it has not written that row since the fork."""
    kind, old = change.kind, change.old
    if kind == "insert" and now is not None and now != change.new and unchanged:
        kind, old = "update", now  # the old primary has pruned the version at the fork
    state = "there" if now == change.new else "clean" if now == old else "conflict"
    return Change(kind, change.new, old, now, state)
