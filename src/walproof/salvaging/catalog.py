"""What tables and sequences a server has, by its catalogs: what it says of one keeps no other from being known.

Any role may give what it makes a name of bytes that are no text (a database in SQL_ASCII takes all), or of letters
that UTF-8 has not: the answer that holds it is then an error as a whole."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from walproof.salvaging.answers import Kind, answered, many, maybe, number, numbers, shown, truth, word
from walproof.salvaging.changes import ForeignKey, Table
from walproof.salvaging.quoting import is_operator
from walproof.salvaging.rows import UNLOGGED, UNREADABLE, Session, reason
from walproof.salvaging.server import QUERIES
from walproof.salvaging.wal_records import Relation

NO_NAMES = ForeignKey("", "", (("", "", "", ""),))
"""A foreign key whose names cannot be read: no SQL can say them."""


@dataclass(frozen=True, slots=True)
class RanOn:
    """A sequence that ran on: where it is on the old primary, its file node, and its oid; `unread`: why it is not known
    how far."""

    schema: str
    name: str
    node: int
    last: int
    step: int
    oid: int = 0
    unread: str = ""


@contextmanager
def unconverted(session: Session) -> Iterator[None]:
    """Names come as the bytes that they are (answers.shown)."""
    with session.transaction():
        session.execute("SET LOCAL client_encoding = 'SQL_ASCII'")
        yield


def _each(
    session: Session, query: str, oids: Sequence[int], *kinds: Kind
) -> tuple[list[tuple[Any, ...]], dict[int, str]]:
    """What is answered of these oids, and why nothing is, by the oid: halves are asked alone, down to the one."""
    if not oids:
        return [], {}
    try:
        with session.transaction():
            return answered(session.execute(QUERIES[query], {"oids": _array(oids)}), *kinds), {}
    except UNREADABLE as wrong:
        if session.closed:
            raise
        if len(oids) == 1:
            return [], {oids[0]: reason(wrong)}
    (rows, unread), (more, others) = (
        _each(session, query, some, *kinds) for some in (oids[: len(oids) // 2], oids[len(oids) // 2 :])
    )
    return rows + more, unread | others


def _array(oids: Sequence[int]) -> str:
    return f"{{{','.join(map(str, oids))}}}"


def _shown(session: Session, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Schemas and names of relations for people alone: what is no text by escapes."""
    with unconverted(session):
        rows = answered(session.execute(QUERIES["names"], {"oids": _array(oids)}), number, shown, shown)
    return {oid: (schema, name) for oid, schema, name in rows}


def tables(
    session: Session, database: int, is_wanted: Callable[[int, Relation, bool], bool] = lambda *_: True
) -> list[Table]:
    """Those wanted (by oid, relation, and whether it is unlogged), by their oids: of one that cannot be read, why. Of
    others no name is asked; ValueError for no answer."""
    kinds: tuple[Kind, ...] = (number, number, maybe(number), truth, number)
    known = [
        one
        for one in answered(session.execute(QUERIES["relations"]), *kinds)
        if is_wanted(one[0], (one[1], database, one[2] or 0), one[3])
    ]
    naming, found = _foreign_keys(session, {oid for oid, *_ in known}), []
    kinds = (number, maybe(number), maybe(number), maybe(word), truth, truth, number, word, word)
    words, places = many(word), many(number)
    more = (words, places, number, truth, truth, truth, words, words, many(numbers), places, places)
    rows, unread = _each(session, "tables", [oid for oid, *_ in known], *kinds, *more)
    for space, node, toast, toast_name, unlogged, is_heap, oid, schema, name, *rest in rows:
        relation = (space, database, node or 0)
        why = "" if is_heap else "its table access method is not heap"
        columns, key, root, is_builtin, is_deferrable, has_other_unique, triggers, *most = rest
        extensions, uniques, above, attnums = most
        references = tuple(naming.get(oid, ()))
        strange = {op for one in references for _, _, op, _ in one.pairs if not is_operator(op)}
        warnings = [f"the SQL fires its trigger {one}" for one in triggers]
        warnings += [f"it belongs to extension {one}: look whether rows of it may be put back" for one in extensions]
        warnings += [f"a foreign key names it by {op!r}, no operator: the SQL deletes no row of it" for op in strange]
        found.append(
            Table(
                relation=relation,
                toast=((space, database, toast), toast_name) if toast else None,
                why_not=UNLOGGED if unlogged else why,
                oid=oid,
                schema=schema,
                name=name,
                columns=columns,
                key=key if all(0 <= place < len(columns) for place in key) else (),
                root=root,
                is_key_builtin=is_builtin,
                is_deferrable=is_deferrable,
                has_other_unique=has_other_unique,
                uniques=tuple(one for one in uniques if all(0 <= place < len(columns) for place in one)),
                references=references,
                above=above,
                warnings=tuple(warnings),
                attnums=attnums,
                fires=bool(triggers),
            )
        )
    names = _shown(session, [*unread]) if unread else {}
    for oid, space, node, unlogged, root in known:
        if oid in unread:
            schema, name = names.get(oid, ("?", str(oid)))
            table = Table(
                (space, database, node or 0), None, UNLOGGED if unlogged else "", oid, schema, name, root=root
            )
            found.append(replace(table, references=tuple(naming.get(oid, ())), unread=unread[oid]))
    return found


def _foreign_keys(session: Session, tables: Container[int]) -> dict[int, list[ForeignKey]]:
    """By the table that they name, of these."""
    columns: dict[tuple[int, int, str, str, int, bool, bool, bool], list[tuple[str, str, str, str, bool]]] = {}
    kinds = (number, number, word, word, number, truth, truth, truth, word, word, word, word, truth)
    known = answered(session.execute(QUERIES["named-by"]), number, number, number)
    named = {key: (of, by) for key, of, by in known if of in tables}
    rows, unread = _each(session, "foreign-keys", [*named], *kinds)
    for row in rows:
        columns.setdefault(row[:8], []).append(row[8:])
    found: dict[int, list[ForeignKey]] = {}
    for (of, _, schema, table, oid, is_builtin, *more), pairs in columns.items():
        loose = tuple(pair[3] for pair in pairs if pair[4])
        found.setdefault(of, []).append(
            ForeignKey(schema, table, tuple(pair[:4] for pair in pairs), oid, is_builtin, loose, *more)
        )
    for broken in unread:
        found.setdefault(named[broken][0], []).append(replace(NO_NAMES, oid=named[broken][1]))
    return found


def sequences(session: Session, nodes: Container[int] | None = None) -> list[RanOn]:
    """Every sequence (of these file nodes) that was used, or of which that cannot be read; ValueError for no answer."""
    files = dict(answered(session.execute(QUERIES["used"]), number, maybe(number)))
    known = {oid: node for oid, node in files.items() if nodes is None or node in nodes}
    kinds = (word, word, number, maybe(number), number, number)
    rows, unread = _each(session, "sequences", [*known], *kinds)
    names = _shown(session, [*unread]) if unread else {}
    found = [RanOn(*row) for row in rows if row[3] is not None]
    return found + [
        RanOn(*names.get(oid, ("?", str(oid))), known[oid] or 0, 0, 0, oid, unread=why) for oid, why in unread.items()
    ]
