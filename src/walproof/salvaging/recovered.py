"""The lost rows of a database as files that only their owner reads: CSV and SQL by table. Applies nothing."""

import re
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment
from psycopg.pq import Escaping

from walproof.machine.untrusted import create
from walproof.salvaging.rows import Row, Session, TableLoss
from walproof.salvaging.server import QUERIES

SEQUENCES = "sequences.sql"


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


def write(folder: Path, session: Session, losses: Sequence[TableLoss], moving: Sequence[str]) -> list[Path]:
    """Write the tables' rows and the statements `moving` sequences into a new folder; the SQL files in their order.

    Deletes come first, of tables before those that they name, so that no unique value stands in the way; a delete of a
    row that is still named does nothing, and is tried again at the end; so is an insert for which a delete or update
    makes room. libpq quotes names and values.
    """
    changed = [loss for loss in losses if loss.changes and loss.table.columns]
    ordered = in_order(changed, session.execute(QUERIES["references"]))
    if not ordered:
        return []
    folder.mkdir(mode=0o700)
    libpq, jinja = Escaping(session.pgconn), Environment(trim_blocks=True, lstrip_blocks=True)
    jinja.filters["name"] = lambda of: libpq.escape_identifier(of.encode()).decode()
    jinja.filters["value"] = lambda of: "NULL" if of is None else libpq.escape_literal(of.encode()).decode()
    template = jinja.from_string((files("walproof.salvaging") / "recovered.sql.j2").read_text("utf-8"))
    deletes, others = [(loss, True) for loss in reversed(ordered)], [(loss, False) for loss in ordered]
    kinds = {loss.name: {one.kind for one in loss.changes if one.is_in_sql} for loss in ordered}
    named = [loss for loss in ordered if loss.table.references and "delete" in kinds[loss.name]]
    crowded = [one for one in ordered if one.table.has_other_unique and {"insert", "update"} <= kinds[one.name]]
    again = [(loss, True) for loss in reversed(named)]
    again += [(loss, False) for loss in ordered if loss in (*named, *crowded) and not loss.table.is_deferrable]
    done = list[Path]()
    for loss, is_delete in (*deletes, *others, *again):
        chosen = [one for one in loss.changes if one.is_in_sql and (one.kind == "delete") == is_delete]
        if chosen:
            text = template.generate(table=loss.table, changes=chosen, zip=zip)
            done.append(_write(folder, len(done) + 1, f"{loss.name}.sql", text))
    for at, loss in enumerate(ordered, 1):
        _write(folder, at, f"{loss.name}.csv", _csv(loss))
    if moving:
        _write(folder, len(done) + 1, SEQUENCES, [f"{one}\n" for one in moving])
    return done


def _write(folder: Path, number: int, name: str, text: Iterable[str]) -> Path:
    path = folder / file_name(number, name)
    with open(create(folder, path), "w", encoding="utf-8", newline="") as file:
        file.writelines(text)
    return path


def _csv(loss: TableLoss) -> Iterator[str]:
    """As PostgreSQL writes it: every value in quotes, NULL as nothing. Tables have columns called state and version."""
    rows: list[Row] = [("walproof_change", "walproof_state", "walproof_version", *loss.table.columns)]
    for one in loss.changes:
        versions = {"lost": one.new, "at the fork": one.old, "on the new primary": one.now}
        rows += [(one.kind, one.state, name, *row) for name, row in versions.items() if row is not None]
    for row in rows:
        yield ",".join("" if value is None else '"' + value.replace('"', '""') + '"' for value in row) + "\n"
