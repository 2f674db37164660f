"""What the copy's catalogs say of a database's tables: columns, keys, TOAST, references. Runs no function of theirs."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from walproof.salvaging.server import QUERIES
from walproof.salvaging.wal import Relation

Session = Any
_AS_TEXT = ("json", "xml", "point", "line", "lseg", "path", "polygon", "box", "circle", "jsonpath", "xid", "cid")
"""Types without an equality of their own, or with one that is not of all of the value: compared as text."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is stored and can be written; `type` as the catalog formats it."""

    name: str
    type: str
    as_text: bool


@dataclass(slots=True)
class Table:
    """A heap table, or the leaf of a partitioned one. `key`: places of its key's columns, () without one."""

    oid: int
    schema: str
    name: str
    relation: Relation
    toast: tuple[Relation, str] | None
    why_not: str = ""
    columns: tuple[Column, ...] = ()
    key: tuple[int, ...] = ()
    refers_to: set[int] = field(default_factory=set)

    @property
    def full_name(self) -> str:
        """Schema and name, for people."""
        return f"{self.schema}.{self.name}"


def tables(session: Session, database: int, touched: Container[Relation]) -> list[Table]:
    """The tables that lost transactions wrote to, and unlogged ones, in the order of foreign keys: parents first."""
    found = []
    (strange,) = session.execute(QUERIES["strange-types"]).fetchone()
    references = session.execute(QUERIES["references"]).fetchall()
    for oid, schema, name, node, toast_name, toast, unlogged, method, space in session.execute(QUERIES["tables"]):
        relation = (int(space), database, int(node or 0))
        if relation not in touched and not unlogged:
            continue
        table = Table(oid, schema, name, relation, ((int(space), database, int(toast)), toast_name) if toast else None)
        table.refers_to = {int(parent) for child, parent in references if child == oid}
        found.append(table)
        rows = session.execute(QUERIES["columns"], (oid,)).fetchall()
        table.columns = tuple(
            Column(name, kind, number >= 10000 or base in _AS_TEXT or inner in _AS_TEXT)
            for name, kind, _, number, base, inner in rows
        )
        key = session.execute(QUERIES["key"], (oid,)).fetchone()
        numbers = [int(word) for word in str(key[0]).split()] if key else []
        places = {int(row[2]): place for place, row in enumerate(rows)}
        table.key = tuple(places[n] for n in numbers) if all(n in places for n in numbers) else ()
        if unlogged:
            table.why_not = "unlogged: a crash empties it, nothing of it can be told"
        elif method != 2:
            table.why_not = "its table access method is not heap"
        elif strange and any(row[3] >= 10000 for row in rows):
            table.why_not = "a type's output function is in a library that is not PostgreSQL's: not run"
    return in_order(found)


def in_order(found: Sequence[Table]) -> list[Table]:
    """Parents before those that refer to them; of a circle, in the order given."""
    waiting, done = list(found), list[Table]()
    while waiting:
        left = {table.oid for table in waiting}
        ready = [table for table in waiting if not table.refers_to & left] or waiting[:1]
        done += ready
        waiting = [table for table in waiting if table not in ready]
    return done
