"""Lost transactions of which the SQL does not have each row. Their deletes are left: what a transaction deletes it may
have written elsewhere. Their inserts and updates are marked. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from walproof.salvaging.changes import Change, Row, TableLoss, key
from walproof.salvaging.row_trails import Place
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Relation

LEFT = (
    "in conflict too, and in no SQL, as they were deleted by transactions of which other rows are in conflict, were not"
    " read or are in no SQL, or rows that may be theirs have no place on the new primary"
)
_OF_NO_PLACE = 0
"""No transaction's number (InvalidTransactionId)."""


class Version(NamedTuple):
    """A row version as `versions` of queries.sql selects it; `next` is its t_ctid."""

    place: Place
    xmin: int
    is_lost: bool
    ended_by: int | None
    is_update: bool
    next: Place


def chains(seen: Sequence[Version]) -> Iterator[list[Version]]:
    """The versions of each row, from the first on: one follows another where t_ctid leads to it, and what ended the
    other has written it."""
    after = {(one.place, one.xmin): one for one in seen if one.is_lost}
    for first in sorted(seen, key=lambda one: (one.is_lost, one.is_update)):
        if first.is_lost and after.pop((first.place, first.xmin), None) is None:
            continue  # it follows another one
        chain = [first]
        while (ended := chain[-1].ended_by) is not None and (following := after.pop((chain[-1].next, ended), None)):
            chain.append(following)
        yield chain


def located(place: Place, here: Relation, there: Relation | None) -> tuple[Relation | None, Place]:
    """The file and the place in it of a version that is told by -1 - block where it is of the new primary's file."""
    return (there, (-1 - place[0], place[1])) if place[0] < 0 else (here, place)


def note(
    loss: TableLoss,
    rows: Sequence[Mapping[Place, Row]],
    unread: Collection[Place],
    seen: Sequence[Version],
    lost: LostWal,
    there: Relation | None,
) -> None:
    """Note of each change the transactions that wrote its versions, and of the table those of what is no change.

    `rows`: final ones, inserted and written by an UPDATE, and those at the fork, replaced and deleted; those of the new
    primary's file `there` by -1 - block. `unread`: places of versions that cannot be read.
    """
    table, writers, by = loss.table, _writers(seen), defaultdict[Row, set[int]](set)

    def wrote(place: Place) -> set[int]:
        relation, at = located(place, table.relation, there)
        first = lost.ended_first[relation].get(at) if relation and place not in writers else None
        return {lost.top.get(one, one) for one in (*writers.get(place, ()), first) if one is not None}

    for side in rows:
        for place, row in side.items():
            by[key(table, row) or row] |= wrote(place)
    outside = [*unread, *([] if table.key else (place for side in rows[2:] for place in side))]
    loss.outside = set[int]().union(*map(wrote, outside))
    same = dict[tuple[int, ...], tuple[int, ...]]()  # one for all rows of a transaction
    for at, change in enumerate(loss.changes):
        row = change.new or change.old or ()
        xids = tuple(sorted(by.get(key(table, row) or row, ())))
        loss.changes[at] = replace(change, by=same.setdefault(xids, xids))


def _writers(seen: Sequence[Version]) -> dict[Place, set[int]]:
    """Who wrote and ended the versions of the same row, by the places of the first and the last."""
    found = dict[Place, set[int]]()
    for chain in chains(seen):
        xids = {one.xmin for one in chain if one.is_lost} | {one.ended_by for one in chain if one.ended_by is not None}
        found[chain[0].place] = found[chain[-1].place] = xids
    return found


def leave_deletes(losses: Collection[TableLoss], lost: LostWal) -> bool:
    """Leave each delete of a transaction of which the SQL does not have all, and each of a partitioned table of which
    lost rows have no place on the new primary; whether there was any."""
    deletes, left = defaultdict[int, list[tuple[TableLoss, int]]](list), dict[int, int]()
    # Another transaction may have moved them there: by copying, and deleting later.
    no_place = {loss.table.root for loss in losses if loss.table.has_no_place and loss.changes} - {0}
    for loss in losses:
        for at, one in enumerate(loss.changes):
            if one.kind == "delete" and _is_applied(loss, one):
                for xid in (*one.by, *((_OF_NO_PLACE,) if loss.table.root in no_place else ())):
                    deletes[xid].append((loss, at))
    todo = [*_not_whole(losses, lost), _OF_NO_PLACE]
    while todo:
        for loss, at in deletes.pop(todo.pop(), ()):
            one = loss.changes[at]
            if not one.is_left:
                loss.changes[at] = replace(one, state="conflict", is_left=True, is_part=True)
                left[loss.table.oid] = left.get(loss.table.oid, 0) + 1
                todo += one.by
    for loss in losses:
        loss.notes += [f"{LEFT}: {left[loss.table.oid]:,}"] if loss.table.oid in left else []
    return bool(left)


def mark_parts(losses: Collection[TableLoss], lost: LostWal) -> int:
    """Mark changes in the SQL of transactions of which it does not have all; how many transactions these are."""
    torn, met = _not_whole(losses, lost), set[int]()
    for loss in losses:
        for at, one in enumerate(loss.changes):
            if _is_applied(loss, one) and not torn.isdisjoint(one.by):
                loss.changes[at] = replace(one, is_part=True)
                met |= torn.intersection(one.by)
    return len(met)


def _is_applied(loss: TableLoss, one: Change) -> bool:
    return one.is_in_sql and one.state != "conflict" and not loss.table.has_no_place


def _not_whole(losses: Collection[TableLoss], lost: LostWal) -> set[int]:
    """Transactions that wrote what is in no SQL, or in conflict."""
    blind = {loss.table.relation for loss in losses if not loss.is_read or loss.table.why_not}
    torn = {xid for wrote, xids in lost.wrote.items() if blind and not blind.isdisjoint(wrote) for xid in xids}
    for loss in losses:
        torn |= loss.outside
        for one in loss.changes:
            if one.state != "there" and not _is_applied(loss, one):
                torn.update(one.by)
    return torn
