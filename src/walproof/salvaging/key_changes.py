"""Rows to which lost work gave another key, or which it moved to another partition or table. Such a row is two changes:
both are in the SQL, or neither. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from walproof.salvaging.changes import Change, Origin, Place, Row, TableLoss, key
from walproof.salvaging.row_trails import Trail
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Relation

Side = tuple[Origin | None, Origin | None]
"""Which row came to a key or a table, and which one went from it."""
LEFT = (
    "in conflict too, and in no SQL, as lost work changed the key, partition or table of their row, which there is in"
    " conflict, was not read, is no longer there, or has no place on the new primary"
)
_MOVED = (4294967295, 65533)
"""Where t_ctid leads when the row went to another partition (ItemPointerSetMovedPartitions)."""


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


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells which row a version is of. `table`: its oid; `moved`: transactions that moved rows to another partition;
    `trail`, `there`: what the WAL tells of the table's file, and of the new primary's, which may be one from before it
    was rewritten; None where it does not tell all."""

    table: int
    moved: Container[int]
    trail: Trail | None = None
    there: Trail | None = None

    def came(self, first: Version) -> Origin:
        """Which row came there, by the first of its versions that is found; () where that is not known."""
        if not first.is_lost:
            return (self.table, *first.place)
        if first.is_update:
            return self._of_table(self.trail.came(first.place, first.xmin)) if self.trail else ()
        return (first.xmin,) if first.xmin in self.moved else (0, first.xmin)

    def went(self, place: Place) -> Origin:
        """What became of the row that was at that place at the fork, of the new primary's file by -1 - block; () where
        that is not known."""
        trail, at = (self.trail, place) if place[0] >= 0 else (self.there, (-1 - place[0], place[1]))
        went = self._of_table(trail.went(at)) if trail else ()
        return went if trail is self.trail or len(went) < 3 else ()  # it goes on in the other file

    def passed(self) -> list[Side]:
        """Rows that came from another partition and went."""
        passed = self.trail.passed if self.trail else ()
        return [(self._of_table(came), self._of_table(went)) for came, went in passed]

    def _of_table(self, row: Origin) -> Origin:
        if len(row) == 1:
            return row if row[0] in self.moved else (0, *row)
        return (self.table, *row[1:]) if len(row) == 3 else row


def origins(known: Identity, seen: Sequence[Version]) -> tuple[dict[Place, Origin], list[Side]]:
    """Of final versions which row came there, and of those at the fork which went; and rows that came and went."""
    rows, passed = dict[Place, Origin](), known.passed()
    for first, last in ((chain[0], chain[-1]) for chain in chains(seen)):
        came = known.came(first)
        if last.ended_by is None:
            rows[first.place] = rows[last.place] = came
            continue
        is_known = last.next in (_MOVED, last.place)
        went = () if not is_known else (last.ended_by,) if last.next == _MOVED else (0, last.ended_by)
        if not first.is_lost:
            rows[first.place] = went or known.went(first.place)
        elif known.trail is None:
            passed.append((came, went))
    return rows, passed


def mark(
    loss: TableLoss,
    rows: Sequence[Mapping[Place, Row]],
    seen: Sequence[Version],
    lost: LostWal,
    moved: Container[int],
    there: Relation | None,
) -> None:
    """Note of each change which row came, and which one went. `rows`: final ones, inserted and written by an UPDATE,
    and those at the fork, replaced and deleted; those of the new primary's file `there` by -1 - block."""
    table, (made, replaced, *at_fork) = loss.table, rows
    files = {table.relation, *lost.dropped} if table.is_new_file else {table.relation}
    comes, goes = (not files.isdisjoint(some) for some in (lost.came_to, lost.went_from))
    loss.has_gone = goes and loss.versions_gone > 0
    trails = (lost.trails[one] if one and lost.knows(one) else None for one in (table.relation, there))
    known = Identity(table.oid, moved, *trails)
    # ALTER TABLE has written each version anew.
    of, loss.passed = origins(known, () if table.is_new_file and not table.has_no_place else seen)
    final = {**made, **replaced} if table.has_no_place else replaced
    came = {key(table, row): of.get(at, ()) or (() if comes else None) for at, row in final.items()}
    went = {
        key(table, row): of.get(at, ()) or known.went(at) or (() if goes else (0, 0))
        for some in at_fork
        for at, row in some.items()
    }
    for at, one in enumerate(loss.changes if table.key else ()):
        new = came.get(key(table, one.new)) if one.new else None
        old = went.get(key(table, one.old)) if one.old else None
        if one.kind == "update":  # it is the row of that key, if nothing tells that it is another
            new, old = (
                row if row and len(row) != 2 and not (new == old and len(row) == 3) else None for row in (new, old)
            )
        if (new, old) != (None, None):
            loss.changes[at] = replace(one, came=new, went=old)


def leave_key_changes(losses: Collection[TableLoss]) -> bool:
    """Mark what would be one half of a row in the SQL, and note it; whether there was any."""
    deleted = {one.went for loss in losses for one in loss.changes if one.went is not None}
    inserted = {one.came for loss in losses if loss.table.has_no_place for one in loss.changes if one.came is not None}
    roots = defaultdict[int, list[TableLoss]](list)
    for loss in losses:
        roots[loss.table.root].append(loss)
    split = {one for one in deleted & inserted if len(one) == 2}
    return any([_leave(leaves, split) for leaves in roots.values()])


def _leave(leaves: Sequence[TableLoss], split: Collection[Origin]) -> bool:
    parts = [(loss, one) for loss in leaves for one in loss.changes if one.came is not None or one.went is not None]
    if not parts:
        return False
    sides = [*((one.came, one.went) for _, one in parts), *(side for loss in leaves for side in loss.passed)]
    is_blind = any(loss.has_gone or loss.unread or not loss.is_read or loss.table.why_not for loss in leaves)
    rows = _linked(sides, is_blind=is_blind)
    bad = _not_made([(one, loss.table.has_no_place, rows((one.came, one.went))) for loss, one in parts])
    bad |= {()} if is_blind else set()
    bad |= {(), (0, 0)} if any(loss.table.has_no_place for loss, _ in parts) else set()
    bad = _with_linked(bad, map(rows, sides)).union(split)
    is_any = False
    for loss in leaves:
        left = 0
        for at, one in enumerate(loss.changes):
            found = rows((one.came, one.went)) | {one.came, one.went}
            if one.is_in_sql and one.state != "conflict" and not found.isdisjoint(bad):
                loss.changes[at], left = replace(one, state="conflict", is_left=True), left + 1
        loss.notes += [f"{LEFT}: {left:,}"] if left else []
        is_any |= left > 0
    return is_any


def _linked(sides: Sequence[Side], *, is_blind: bool) -> Callable[[Side], set[Origin]]:
    """What tells the rows of which one half decides on the other: also the one that is not known, where some went of
    which it is not known where to, for those that came from nowhere, and the other way round."""
    came, went = (
        Counter(one for one in some if one is not None and len(one) != 2) for some in zip(*sides, strict=True)
    )
    loose = {one for one in {*came, *went} if came[one] != went[one]}
    if not (is_blind or went[()] or any(went[one] > came[one] for one in loose)):
        loose = set()

    def rows(side: Side) -> set[Origin]:
        known = {one for one in side if one is not None and len(one) != 2}
        return known if known.isdisjoint(loose) else {*known, ()}

    return rows


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


def _not_made(parts: Iterable[tuple[Change, bool, set[Origin]]]) -> set[Origin]:
    """Rows of which the SQL does not make one half: the new primary has written it, or may have, or has no place."""
    bad, gone = set[Origin](), Counter[Origin]()
    for one, has_no_place, rows in parts:
        if one.state == "there":  # deleted there too: but for one that came there as well, it was that alone
            gone.update(rows if one.went is not None else ())
            gone.subtract(rows if one.came is not None else ())
        elif not one.is_in_sql or one.state == "conflict" or (one.state == "not compared" and one.old) or has_no_place:
            bad |= rows
    return bad | {one for one, count in gone.items() if one and count > 0}
