"""Which row each place of a table held, by the WAL: pages lose the versions between. Pure.

A row is known by the place of its version at the fork, whatever key, partition or place lost work gave it."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from walproof.salvaging.wal_records import Relation

Place = tuple[int, int]
"""Block and item of a row version."""


class AtFork(NamedTuple):
    """A row by its version at the fork."""

    relation: Relation
    place: Place


class Arrived(NamedTuple):
    """The row of a move to another partition, if that led to this relation (`Trails.know`)."""

    move: int
    relation: Relation


Row = AtFork | Arrived | None
"""None: it was inserted since the fork."""


class End(NamedTuple):
    """A version that was ended, and what followed: an UPDATE has both, a DELETE no new one, and a row that was inserted
    behind a move no old one. `is_moved`: the DELETE moved it to another partition."""

    lsn: int
    xid: int
    relation: Relation
    old: Place | None
    new: Place | None
    is_moved: bool = False


class _Move(NamedTuple):
    """A row that left for another partition, and where its transaction inserted next, by order: it is the first of
    these that may be one. Before it come TOAST, and what triggers write."""

    of: Relation
    row: Row
    to: list[Relation]


@dataclass(slots=True)
class Trails:
    """The rows of all tables, from what lost transactions did to them. They come in the order in which these ended, so
    that a place is written again only after the one that had emptied it."""

    _rows: dict[tuple[Relation, Place], tuple[Row, int]] = field(default_factory=dict)
    """Those of places that an UPDATE or a move wrote, and by which transaction."""
    _deleted: set[Row] = field(default_factory=set)
    _inserted: dict[tuple[Relation, int], int] = field(default_factory=dict)
    """By block, the items as bits."""
    _moves: list[_Move] = field(default_factory=list)
    _moving: dict[int, int] = field(default_factory=dict)
    """By transaction, the last one's number."""
    _led: list[tuple[Relation | None, AtFork | None]] = field(default_factory=list)
    """Of each move, to which partition it led, and which row that was."""
    _gone: set[AtFork] = field(default_factory=set)

    def insert(self, relation: Relation, block: int, items: int) -> None:
        """Rows were inserted into that block, the items as bits."""
        if items:
            self._inserted[relation, block] = self._inserted.get((relation, block), 0) | items

    def follow(self, end: End) -> None:
        """The row goes from one place to the other, or from the table."""
        if end.old is None:
            at = self._moving.get(end.xid)
            if at is not None and end.new is not None and end.relation not in self._moves[at].to:
                self._moves[at].to.append(end.relation)
                self._rows[end.relation, end.new] = Arrived(at, end.relation), end.xid
            return
        before = None if self._is_inserted(end.relation, end.old) else AtFork(end.relation, end.old)
        row, _ = self._rows.pop((end.relation, end.old), (before, 0))
        if end.new is not None:
            self._rows[end.relation, end.new] = row, end.xid
        elif end.is_moved:
            self._moving[end.xid] = len(self._moves)
            self._moves.append(_Move(end.relation, row, []))
        elif row is not None:
            self._deleted.add(row)

    def know(self, roots: Mapping[Relation, frozenset[int]], toasts: Container[Relation]) -> None:
        """Which files are of tables, by what each may be a partition of, and which are TOAST: a move leads to a
        partition of the same table. A file that is of none was dropped, and may be of any."""
        self._led = []
        for of, row, to in self._moves:
            own, led = roots.get(of), None
            for one in (one for one in to if one not in toasts):
                theirs = roots.get(one)
                if own is None or theirs is None or not own.isdisjoint(theirs):
                    led = one
                    break
            self._led.append((led, self._known(row)))
        self._gone = {known for row in self._deleted if (known := self._known(row)) is not None}

    def _known(self, row: Row) -> AtFork | None:
        if isinstance(row, Arrived):
            led, moved = self._led[row.move]
            return moved if led == row.relation else None
        return row

    def came(self, relation: Relation, place: Place, xid: int, *, is_update: bool) -> AtFork | tuple[()] | None:
        """Which row the version is of that this transaction wrote there, by an UPDATE or an INSERT; None for one that
        was inserted since the fork, () where that is not known: it was done before the WAL that was read.

        A row that is told so is one of the fork only if there is a version of the fork at its place: else what brought
        it there was not read."""
        row, by = self._rows.get((relation, place), (None, None))
        if by == xid:
            return self._known(row)
        return None if self._is_inserted(relation, place) and not is_update else ()

    def _is_inserted(self, relation: Relation, place: Place) -> bool:
        return bool(self._inserted.get((relation, place[0]), 0) >> place[1] & 1)

    def went(self, relation: Relation, place: Place) -> AtFork | None:
        """The row that was there at the fork, if lost work changed it or moved it; None if that deleted it."""
        row = AtFork(relation, place)
        return None if row in self._gone else row
