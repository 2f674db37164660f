"""What the copy's catalogs say of a database's tables: columns, keys, TOAST. Runs no function of theirs."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from walproof.machine.untrusted import one_line
from walproof.salvaging.server import QUERIES
from walproof.salvaging.wal import Relation

Session = Any


@dataclass(slots=True)
class Table:
    """A heap table, or the leaf of a partitioned one. `columns` are stored and can be written.

    `key`: places of its key's columns, () without one.
    """

    oid: int
    schema: str
    name: str
    relation: Relation
    toast: tuple[Relation, str] | None
    why_not: str = ""
    columns: tuple[str, ...] = ()
    key: tuple[int, ...] = ()


def tables(session: Session, database: int, touched: Container[Relation] | None) -> list[Table]:
    """The tables of these relations, or all of them, and unlogged ones, by their oids."""
    found = []
    for oid, schema, name, node, toast_name, toast, unlogged, method, space in session.execute(QUERIES["tables"]):
        relation = (int(space), database, int(node or 0))
        if touched is not None and relation not in touched and not unlogged:
            continue
        table = Table(oid, schema, name, relation, ((int(space), database, int(toast)), toast_name) if toast else None)
        found.append(table)
        rows = session.execute(QUERIES["columns"], (oid,)).fetchall()
        table.columns = tuple(str(row[0]) for row in rows)
        key = session.execute(QUERIES["key"], (oid,)).fetchone()
        numbers = [int(word) for word in str(key[0]).split()[: key[1]]] if key else []
        places = {int(row[1]): place for place, row in enumerate(rows)}
        table.key = tuple(places[n] for n in numbers) if all(n in places for n in numbers) else ()
        if unlogged:
            table.why_not = "unlogged: a crash empties it, nothing of it can be told"
        elif method != 2:
            table.why_not = "its table access method is not heap"
        elif code := own_code(session, oid):
            table.why_not = f"it would run the directory's own code (function {code})"
    return found


def own_code(session: Session, table: int) -> str:
    """A function of theirs that reading the table would run; "" when there is none."""
    row = session.execute(QUERIES["own-code"], {"table": table}).fetchone()
    return one_line(row[0], 200) if row else ""
