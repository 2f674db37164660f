"""Rows to which lost work gave another key, or which it moved to another partition or table. Such a row is two changes:
both are in the SQL, or neither. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from walproof.salvaging.changes import Change, Origin, Row, TableLoss, key
from walproof.salvaging.row_trails import Place
from walproof.salvaging.transactions import Version, located
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Relation

LEFT = (
    "in conflict too, and in no SQL, as lost work changed the key, partition or table of their row, or may have, which"
    " there is in conflict, was not read, is no longer there, or has no place on the new primary"
)


def mark(
    loss: TableLoss,
    rows: Sequence[Mapping[Place, Row]],
    seen: Sequence[Version],
    lost: LostWal,
    there: Relation | None,
) -> None:
    """Note of each change which row came, and which one went. `rows`: final ones, inserted and written by an UPDATE,
    and those at the fork, replaced and deleted; those of the new primary's file `there` by -1 - block."""
    table, (made, replaced, *at_fork) = loss.table, rows
    file, was_there = table.relation, lost.was_there(table.relation)
    files = {file, *lost.dropped} if table.is_new_file else {file}
    is_leaf = table.root not in (0, table.oid)  # no row moves to another table
    comes, goes = (not files.isdisjoint(some) for some in (lost.came_to, lost.went_from))
    final = {one.place: one for one in seen if one.ended_by is None}
    came, went = dict[Row, Origin | None](), dict[Row, Origin | None]()
    for at, row in (*made.items(), *replaced.items()):
        xid, is_update = final[at].xmin, final[at].is_update
        if was_there:
            known = lost.trails.came(file, at, xid, is_update=is_update)
            may_be_moved = is_update or is_leaf or xid in lost.moved
            came[key(table, row)] = known if known != () or may_be_moved else None
        else:  # ALTER TABLE has written each version anew
            is_rewritten = xid == lost.made_by.get(file)
            came[key(table, row)] = () if is_update or is_rewritten or xid in lost.moved else None
    for at, row in (pair for some in at_fork for pair in some.items()):
        of, place = located(at, file, there)
        is_known = was_there and of == file
        went[key(table, row)] = lost.trails.went(file, place) if is_known else () if goes else None
    for number, one in enumerate(loss.changes if table.key else ()):
        new = came.get(key(table, one.new)) if one.new else None
        old = went.get(key(table, one.old), () if comes or goes else None) if one.old else None
        is_of_its_key = one.kind == "update" and (new == old != () or not (comes or goes))
        if (new, old) != (None, None) and not is_of_its_key:
            loss.changes[number] = replace(one, came=new, went=old)


def leave_key_changes(losses: Collection[TableLoss]) -> bool:
    """Mark what would be one half of a row in the SQL, or of a row that is not known, and note it; whether there was
    any."""
    parts = [(loss, at) for loss in losses for at, one in enumerate(loss.changes) if _rows(one) or _is_unknown(one)]
    bad = _not_made([(loss.changes[at], loss.table.has_no_place) for loss, at in parts])
    bad = _with_linked(bad, [_rows(loss.changes[at]) for loss, at in parts])
    left = defaultdict[int, int](int)
    for loss, at in parts:
        one = loss.changes[at]
        is_bad = _is_unknown(one) or not _rows(one).isdisjoint(bad)
        if is_bad and one.is_in_sql and one.state != "conflict":
            loss.changes[at] = replace(one, state="conflict", is_left=True)
            left[loss.table.oid] += 1
    for loss in losses:
        loss.notes += [f"{LEFT}: {left[loss.table.oid]:,}"] if left[loss.table.oid] else []
    return any(left.values())


def _rows(one: Change) -> set[Origin]:
    return {row for row in (one.came, one.went) if row}


def _is_unknown(one: Change) -> bool:
    return () in (one.came, one.went)


def _with_linked(bad: Collection[Origin], groups: Iterable[set[Origin]]) -> set[Origin]:
    by, todo, found = defaultdict[Origin, list[set[Origin]]](list), [*bad], {*bad}
    for group in groups:
        for row in group:
            by[row].append(group)
    while todo:
        for group in by.pop(todo.pop(), ()):
            todo += group - found
            found |= group
    return found


def _not_made(parts: Collection[tuple[Change, bool]]) -> set[Origin]:
    """Rows of which the SQL does not make one half: the new primary has written it, or may have, or it was not read."""
    ones, bad = [one for one, _ in parts], set[Origin]()
    came, went = {one.came for one in ones if one.came}, {one.went for one in ones if one.went}
    there = [one for one in ones if one.state == "there"]
    # Deleted there too, or given another key: but for one that came there as well.
    bad |= {one.went for one in there if one.went} - {one.came for one in there}
    for one, has_no_place in parts:
        is_old = one.state == "not compared" and one.old is not None
        is_out = one.state != "there" and (not one.is_in_sql or one.state == "conflict" or is_old or has_no_place)
        bad |= _rows(one) if is_out or _is_unknown(one) else set()
    return bad | (came ^ went)
