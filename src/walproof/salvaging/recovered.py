"""The lost rows of a database as files that only their owner reads: CSV and SQL by table. Applies nothing."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from operator import gt, lt
from pathlib import Path

from jinja2 import Environment, Template

from walproof.salvaging.answers import answered, number
from walproof.salvaging.catalog import RanOn
from walproof.salvaging.changes import Change, ForeignKey, Row, Table, TableLoss
from walproof.salvaging.naming import values
from walproof.salvaging.private_folder import PrivateFolder
from walproof.salvaging.quoting import Quoting, is_operator, plain_table
from walproof.salvaging.rows import UNREADABLE, Session, reason
from walproof.salvaging.server import QUERIES

SEQUENCES = "sequences.sql"
NO_SQL = (
    "no SQL is written: there are names that it cannot say (in SQL_ASCII: that are not ASCII); the CSV has the rows"
)
SINCE_READ = "another row was put in the place of one that others here name: pause writes, and run salvage again"
"""How a file ends where the new primary wrote what would be named instead of a lost row since that was read."""
NOT_MADE = (
    "a lost row that others here name was not written, as another row is in its way: leave out the files of this table"
    " and of those that name it"
)
"""How a file ends where ON CONFLICT or a condition has left out what others name: they would be put under that row."""
HALF_MADE = (
    "a row to which lost work gave another key or partition would be there twice, or nowhere: it was written since,"
    " or what names its old key or holds its new one, a trigger changes it, or the files were run before: pause writes"
    " and run salvage again, or leave out the files of this table with its partitions, and of those that name it"
)
"""How a file ends where one half of such a row cannot be done, or was not, and the other one would be."""
PSQL_ALONE = "\\set ON_ERROR_STOP on\n"
"""The first line of each SQL file, the one that is for psql and no server."""


@dataclass(frozen=True, slots=True)
class SqlFile:
    """A file of one table's rows."""

    path: Path
    loss: TableLoss


def file_name(number: int, name: str) -> str:
    """A name that a shell takes as it is and sorts by its number, whatever the names are."""
    return f"{number:06d}_{re.sub('[^A-Za-z0-9_.-]+', '_', name)[-80:]}"


def in_order(losses: Sequence[TableLoss], references: Iterable[tuple[int, int]]) -> list[TableLoss]:
    """Tables that foreign keys name before those that name them; a circle is opened anywhere."""
    graph: dict[int, set[int]] = {loss.table.root: set() for loss in losses}
    for table, named in references:
        graph.setdefault(table, set()).update({named} - {table})
    while True:
        try:
            rank = {table: at for at, table in enumerate(TopologicalSorter(graph).static_order())}
            return sorted(losses, key=lambda loss: rank[loss.table.root])
        except CycleError as circle:
            first, second, *_ = circle.args[1]
            graph[second].discard(first)


def quoting(session: Session) -> Quoting:
    """How text is said in the session's database."""
    return Quoting(is_sql_ascii=session.pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII")


def write(
    parent: PrivateFolder,
    name: str,
    session: Session,
    losses: Sequence[TableLoss],
    moving: Sequence[RanOn],
    since: str,
) -> list[SqlFile]:
    """Write the tables' rows, and what moves the sequences `moving`, into a new folder; the tables' SQL in its order.

    `since`: the condition that the new primary has written a row since the fork, which no update or delete touches.

    Deletes come first, with updates that only set columns to NULL, of tables before those that they name, so that no
    unique value stands in the way. A delete of a row that is still named does nothing, and is tried again at the end,
    as an update is that ON UPDATE would carry there; so is an insert for which a delete or update makes room. Of a
    table that SQL cannot name in that database there is the CSV alone; of one that cannot be written, nothing, which it
    is told: the others, of which the largest come last, are written all the same.
    """
    changed = [loss for loss in losses if loss.changes and loss.table.columns]
    ordered = in_order(changed, answered(session.execute(QUERIES["references"]), number, number))
    if not ordered and not moving:
        return []
    quote, jinja, done = quoting(session), Environment(trim_blocks=True, lstrip_blocks=True), list[SqlFile]()
    jinja.filters.update(name=quote.name, value=quote.value, free=partial(_free, quote))
    jinja.globals.update(said=_said, zip=zip, held_by=held_by, since=since, since_read=SINCE_READ, not_made=NOT_MADE)
    jinja.globals.update(half_made=HALF_MADE)
    template = jinja.from_string((files("walproof.salvaging") / "recovered.sql.j2").read_text("utf-8"))
    steps = [step for step in _steps(ordered) if _chosen(*step)]
    said = {loss.table.oid for loss in ordered if any(of is loss for of, _ in steps) and _is_said(quote, loss)}
    numbered = dict(enumerate((step for step in steps if step[0].table.oid in said), 1))
    places = {loss.table.oid: at for at, loss in enumerate(ordered, 1)}
    whole = [[loss for loss in ordered if loss.table.root == root] for root in {one.table.root for one in ordered}]
    with parent.folder(name) as folder:
        for leaves in sorted(whole, key=_size):  # of a partitioned table a row may have moved from one to another
            mine = {number: step for number, step in numbered.items() if any(step[0] is loss for loss in leaves)}
            try:
                done += _write_table(folder, {places[one.table.oid]: one for one in leaves}, mine, quote, template)
            except (OSError, *UNREADABLE) as wrong:
                for loss in leaves:
                    loss.is_read = False
                    loss.undecided.append(f"its {len(loss.changes):,} lost rows cannot be written: {reason(wrong)}")
                    loss.notes += loss.undecided[-1:]
                    loss.changes = []
        if ran_on := [one for one in moving if not one.unread and quote.can_name(one.schema, one.name)]:
            moved, held = [_moved_on(quote, one) for one in ran_on], _sequences_held(quote, ran_on)
            text = template.generate(table=None, changes=(), held=held, guarded=(), named=((), ()), moving=moved)
            folder.write(file_name(len(numbered) + 1, SEQUENCES), text)
        is_empty = not folder.names()
    if is_empty:
        parent.remove(name)
    return sorted(done, key=lambda one: one.path.name)


def _write_table(
    folder: PrivateFolder,
    leaves: Mapping[int, TableLoss],
    steps: Mapping[int, tuple[TableLoss, bool]],
    quote: Quoting,
    template: Template,
) -> list[SqlFile]:
    """All files of a table, or none of them: its CSV and, of `_steps`, its SQL, by their numbers."""
    done, names = list[SqlFile](), list[str]()
    try:
        for number, (loss, is_delete) in steps.items():
            chosen = _chosen(loss, is_delete)
            keys = dict.fromkeys(key for one in chosen for key in held_by(loss.table, one))
            held = _tables_held(quote, loss, [*keys])
            earlier, later = (
                [deletes for at, (of, deletes) in steps.items() if of is loss and lies(at, number)] for lies in (lt, gt)
            )
            is_first = not is_delete and False not in earlier  # once more, and they are ours
            guarded = _guarded(loss, chosen) if is_first else ()
            named = _named(loss, is_last=False not in later) if not is_delete else ((), ())
            halves = _halves(loss)
            parts = {
                "going": [one.old for one in halves if one.old and not earlier],
                "made": [one.new for one in halves if one.new and not later],
                "gone": [one.old for one in halves if one.old and not one.new and not later],
            }
            text = template.generate(
                table=loss.table, changes=chosen, held=held, guarded=guarded, named=named, moving=(), **parts
            )
            done.append(SqlFile(folder.write(file_name(number, f"{loss.name}.sql"), text), loss))
            names.append(done[-1].path.name)
        for number, loss in leaves.items():
            names.append(folder.write(file_name(number, f"{loss.name}.csv"), _csv(loss)).name)
    except BaseException:
        folder.unlink(*names)
        raise
    return done


def _steps(ordered: Sequence[TableLoss]) -> list[tuple[TableLoss, bool]]:
    """Of which table the files are, in their order, and whether of its deletes (`_comes_first`)."""
    deletes, others = [(loss, True) for loss in reversed(ordered)], [(loss, False) for loss in ordered]
    kinds = {loss.name: {one.kind for one in loss.changes if one.is_in_sql} for loss in ordered}
    named = [loss for loss in ordered if any(held_by(loss.table, one) for one in loss.changes if one.is_in_sql)]
    crowded = [one for one in ordered if one.table.has_other_unique and {"insert", "update"} <= kinds[one.name]]
    again = [(loss, True) for loss in reversed(named)]
    again += [(loss, False) for loss in ordered if loss in (*named, *crowded) and not loss.table.is_deferrable]
    return [*deletes, *others, *again]


def _chosen(loss: TableLoss, is_delete: bool) -> list[Change]:
    return [one for one in loss.changes if one.is_in_sql and _comes_first(one) == is_delete]


def _said(one: Change) -> str:
    words = [one.state] * (one.state in ("conflict", "unsure")) + ["in part"] * one.is_part
    return f" -- {', '.join(words)}" if words else ""


def _comes_first(one: Change) -> bool:
    """Deletes, and updates that only set columns to NULL: these need no other row, and no row is named by them."""
    if one.kind == "update" and one.new and one.old:
        return all(new is None or new == old for new, old in zip(one.new, one.old, strict=True))
    return one.kind == "delete"


def _guarded(loss: TableLoss, changes: Sequence[Change]) -> Iterator[tuple[list[int], bool, list[Change]]]:
    """By which columns rows in the SQL name the table, as places, whether PostgreSQL's own = serves there, and the
    changes that make a row which may be named so."""
    keys = {tuple(own for own, *_ in key.pairs): key.is_builtin for key in loss.followed}
    for columns, is_builtin in keys.items():
        if not {*columns} <= {*loss.table.columns}:
            continue
        at = [loss.table.columns.index(column) for column in columns]
        made = [one for one in changes if one.new and one.state in ("clean", "unsure")]
        yield at, is_builtin, [one for one in made if not one.old or values(one.old, at) != values(one.new or (), at)]


def _named(loss: TableLoss, *, is_last: bool) -> tuple[list[int], list[Row]]:
    """What the file makes that rows in the SQL name, and by which columns, as places, it is known again: not by others,
    which a trigger may change. In the last file of the table all of it; before that what no deferrable key names."""
    owns = {own for key in loss.followed for own, *_ in key.pairs}
    at = [place for place, name in enumerate(loss.table.columns) if place in loss.table.key or name in owns]
    chosen = (loss.changes[place] for place, can_wait in loss.named.items() if is_last or not can_wait)
    made = [one for one in chosen if one.is_in_sql and one.state in ("clean", "unsure")]
    rows = [one.new for one in made if one.new and (not one.old or values(one.old, at) != values(one.new, at))]
    return at, list(dict.fromkeys(rows)) if at else []


def _halves(loss: TableLoss) -> list[Change]:
    """Those in the SQL that are one half of a row which lost work gave another key or partition."""
    parts = (one for one in loss.changes if one.is_in_sql and one.state != "conflict")
    return [one for one in parts if (one.came, one.went) != (None, None)]


def _size(leaves: Sequence[TableLoss]) -> int:
    rows = (row for loss in leaves for one in loss.changes for row in (one.new, one.old, one.now) if row)
    return sum(len(value) for row in rows for value in row if value)


def held_by(table: Table, change: Change) -> tuple[ForeignKey, ...]:
    """Foreign keys through which the change would write to rows that name its own."""
    if change.kind == "update" and change.new and change.old:
        pairs = zip(table.columns, change.new, change.old, strict=True)
        kept = {column for column, new, old in pairs if new == old}
        # A generated column may change with any other.
        return tuple(key for key in table.references if key.clears and not {own for own, *_ in key.pairs} <= kept)
    return table.references if change.kind == "delete" else ()


def _tables_held(quote: Quoting, loss: TableLoss, keys: Sequence[ForeignKey]) -> Iterator[str]:
    """What locks the tables that a file names, so that none is renamed, and ends it where one is no longer the table
    that was read: a name may have come to another table by now, or to a view, which runs what its owner wrote."""
    table = loss.table
    builtin = {table.columns[at] for at in table.key if table.is_key_builtin}
    builtin |= {pair[0] for key in (*keys, *loss.followed) if key.is_builtin for pair in key.pairs}
    named = [(table.oid, table.schema, table.name, table.numbered, builtin)]
    for key in keys:
        theirs = dict[str, int | None].fromkeys(pair[3] for pair in key.pairs)
        named.append((key.oid, key.schema, key.table, theirs, {*theirs} if key.is_builtin else set()))
    for oid, schema, name, columns, own in named:
        yield f"LOCK TABLE ONLY {quote.table(schema, name)} IN ACCESS SHARE MODE;"
        yield _as_it_was(quote, (oid, schema, name), "rp", columns, own)


def _sequences_held(quote: Quoting, sequences: Iterable[RanOn]) -> Iterator[str]:
    """The same of sequences, which no LOCK takes: asking one for its value holds it until the transaction's end."""
    yield "LOCK TABLE pg_catalog.pg_sequence IN ACCESS SHARE MODE; -- an error outside of a transaction"
    for one in sequences:
        yield f"SELECT pg_catalog.pg_sequence_last_value({one.oid:d}::pg_catalog.oid::pg_catalog.regclass);"
        yield _as_it_was(quote, (one.oid, one.schema, one.name), "S", {}, ())


def _as_it_was(
    quote: Quoting, what: tuple[int, str, str], kinds: str, columns: Mapping[str, int | None], builtin: Collection[str]
) -> str:
    """A query that fails where another relation than that of the oid has the name, or a column is gone (a function may
    be called so), has another attnum, or is one of `builtin` and has a type of users by now, who may make a cast of it.
    """
    whole, number = plain_table(*what[1:]), f"{what[0]:d}::pg_catalog.oid"
    there = f"""EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) {number}
    AND oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass({quote.value(whole)})::pg_catalog.oid
    AND relkind OPERATOR(pg_catalog.=) ANY ('{{{",".join(kinds)}}}'::pg_catalog."char"[]))"""
    is_numbered = None not in columns.values()
    wanted = (f"{attnum} {name}" if is_numbered else name for name, attnum in sorted(columns.items()))
    names, own = (", ".join(map(quote.value, some)) for some in (wanted, sorted(builtin)))
    named = "pg_catalog.format('%s %s', attnum, attname)" if is_numbered else "attname::pg_catalog.text"
    found = f"""(SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute
    WHERE attrelid OPERATOR(pg_catalog.=) {number} AND attnum OPERATOR(pg_catalog.>) 0
    AND {named} OPERATOR(pg_catalog.=) ANY (ARRAY[{names}]::pg_catalog.text[])
    AND (atttypid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid
      OR attname OPERATOR(pg_catalog.<>) ALL (ARRAY[{own}]::pg_catalog.name[])))"""
    says = quote.value(f"{whole} is not what was read: another has the name, or it has other columns")
    return (
        f"SELECT (CASE WHEN {there}\n  AND {found} OPERATOR(pg_catalog.=) {len(columns)}\n"
        f"  THEN 'true' ELSE {says} END)::pg_catalog.bool;"
    )


def _moved_on(quote: Quoting, one: RanOn) -> str:
    """What moves a sequence on where it is further on the old primary; never back. Where both hold the same value, the
    new primary may not have handed it out yet (is_called)."""
    before = "<=" if one.step > 0 else ">="
    called = f"pg_catalog.setval({quote.value(plain_table(one.schema, one.name))}, {one.last:d})"
    where = f"WHERE last_value OPERATOR(pg_catalog.{before}) {one.last:d}"
    return f"SELECT {called} FROM {quote.table(one.schema, one.name)} {where};"


def _is_said(quote: Quoting, loss: TableLoss) -> bool:
    """Whether SQL can name all of it, and may be written; a note where not."""
    keys = ((one.schema, one.table, *(name for pair in one.pairs for name in pair)) for one in loss.table.references)
    names = (loss.table.schema, loss.table.name, *loss.table.columns, *(name for key in keys for name in key))
    why = loss.no_sql or ("" if quote.can_name(*names) else NO_SQL)
    loss.notes += [why] if why and why not in loss.notes else []
    return not why


def _free(quote: Quoting, key: ForeignKey) -> str:
    """The condition that no row names `lost` by that key: one that names itself is in nobody's way."""
    if not all(is_operator(operator) for _, _, operator, _ in key.pairs):
        return "false"
    pairs = " AND ".join(
        f"lost.{quote.name(own)} OPERATOR({quote.name(schema)}.{operator}) naming.{quote.name(theirs)}"
        for own, schema, operator, theirs in key.pairs
    )
    is_itself = "naming.tableoid OPERATOR(pg_catalog.=) lost.tableoid AND naming.ctid OPERATOR(pg_catalog.=) lost.ctid"
    table = quote.table(key.schema, key.table)
    return f"NOT EXISTS (SELECT FROM {table} naming WHERE {pairs} AND NOT ({is_itself}))"


def _csv(loss: TableLoss) -> Iterator[str]:
    """As PostgreSQL writes it: every value in quotes, NULL as nothing. Tables have columns called state and version."""
    own = ("walproof_change", "walproof_state", "walproof_version", "walproof_transactions")
    rows: list[Row] = [(*own, *loss.table.columns)]
    for one in loss.changes:
        versions = {"lost": one.new, "at the fork": one.old, "on the new primary": one.now}
        by = " ".join(map(str, one.by)) + " in part" * one.is_part
        rows += [(one.kind, one.state, name, by, *row) for name, row in versions.items() if row is not None]
    for row in rows:
        yield ",".join("" if value is None else '"' + value.replace('"', '""') + '"' for value in row) + "\n"
