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
    """The row of a move to another partition, if that led to this relation (`Trails.know`) and it is the first of
    those that came there then."""

    move: int
    relation: Relation
    number: int


Row = AtFork | Arrived | None
"""None: it was inserted since the fork."""
Known = AtFork | tuple[()] | None
"""The same, once it is known where moves led; () where that is not."""


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
    """A row that left for another partition, and where its transaction inserted then, by order, and how often: it is
    the first that may be one, but for what triggers write; before it comes TOAST."""

    xid: int
    of: Relation
    row: Row
    to: dict[Relation, int]


@dataclass(slots=True)
class Trails:
    """The rows of all tables, from what lost transactions did to them. They come in the order in which these ended, so
    that a place is written again only after the one that had emptied it.

    `begun`: transactions that may have moved a row before the WAL that was read, and inserted it then."""

    begun: set[int] = field(default_factory=set)

    _rows: dict[tuple[Relation, Place], tuple[Row, int]] = field(default_factory=dict)
    """Those of places that an UPDATE or a move wrote, and by which transaction."""
    _deleted: set[Row] = field(default_factory=set)
    _inserted: dict[tuple[Relation, int], int] = field(default_factory=dict)
    """By block, the items as bits."""
    _moves: list[_Move] = field(default_factory=list)
    _moving: dict[int, int] = field(default_factory=dict)
    """By transaction, the last one's number."""
    _tangled: set[int] = field(default_factory=set)
    """Transactions of which a move began before the last one had led anywhere: a trigger has done it."""
    _led: list[tuple[Relation | None, Known]] = field(default_factory=list)
    """Of each move, to which partition it led, None where that is not known, and which row that was."""
    _unsure: set[int] = field(default_factory=set)
    """Transactions with a move of which that is not known."""
    _gone: set[Known] = field(default_factory=set)

    def insert(self, relation: Relation, block: int, items: int) -> None:
        """Rows were inserted into that block, the items as bits."""
        if items:
            self._inserted[relation, block] = self._inserted.get((relation, block), 0) | items

    def follow(self, end: End) -> None:
        """The row goes from one place to the other, or from the table."""
        if end.old is None:
            at = self._moving.get(end.xid)
            if at is not None and end.new is not None:
                to = self._moves[at].to
                to[end.relation] = number = to.get(end.relation, 0) + 1
                self._rows[end.relation, end.new] = Arrived(at, end.relation, number), end.xid
            return
        before = None if self._is_inserted(end.relation, end.old) else AtFork(end.relation, end.old)
        row, _ = self._rows.pop((end.relation, end.old), (before, 0))
        if end.new is not None:
            self._rows[end.relation, end.new] = row, end.xid
        elif end.is_moved:
            last = self._moving.get(end.xid)
            self._tangled |= {end.xid} if last is not None and not self._moves[last].to else set()
            self._moving[end.xid] = len(self._moves)
            self._moves.append(_Move(end.xid, end.relation, row, {}))
        elif row is not None:
            self._deleted.add(row)

    def know(
        self, roots: Mapping[Relation, frozenset[int]], toasts: Container[Relation], fired: Container[Relation]
    ) -> None:
        """Which files are of tables, by what each may be a partition of, which are TOAST, and at which tables triggers
        fire: a move leads to a partition of the same table. A file that is of none was dropped, and may be of any."""
        self._led, self._unsure = [], self._tangled | self.begun
        for move in self._moves:
            led = self._led_to(move, roots, toasts, fired) if move.xid not in self._tangled else None
            self._unsure |= {move.xid} if led is None else set()
            self._led.append((led, self._known(move.row)))
        self._gone = {self._known(row) for row in self._deleted}

    @staticmethod
    def _led_to(
        move: _Move,
        roots: Mapping[Relation, frozenset[int]],
        toasts: Container[Relation],
        fired: Container[Relation],
    ) -> Relation | None:
        own, to = roots.get(move.of), [one for one in move.to if one not in toasts]
        for one in to:
            theirs = roots.get(one)
            if own is None or theirs is None:
                return one if len(to) == 1 else None
            if not own.isdisjoint(theirs):
                others = (more for more in to if more != one and not own.isdisjoint(roots.get(more, own)))
                is_one = move.to[one] == 1 and not any(others)
                return one if is_one or one not in fired else None
        return None

    def _known(self, row: Row) -> Known:
        if isinstance(row, Arrived):
            led, moved = self._led[row.move]
            return () if led is None else moved if (led, 1) == (row.relation, row.number) else None
        return row

    def came(self, relation: Relation, place: Place, xid: int, *, is_update: bool) -> Known:
        """Which row the version is of that this transaction wrote there, by an UPDATE or an INSERT; None for one that
        was inserted since the fork, () where that is not known: it was done before the WAL that was read, or more than
        one may be the row that a move led there.

        A row that is told so is one of the fork only if there is a version of the fork at its place: else what brought
        it there was not read."""
        row, by = self._rows.get((relation, place), (None, None))
        if by == xid:
            return self._known(row)
        is_inserted = self._is_inserted(relation, place) and not is_update and xid not in self._unsure
        return None if is_inserted else ()

    def _is_inserted(self, relation: Relation, place: Place) -> bool:
        return bool(self._inserted.get((relation, place[0]), 0) >> place[1] & 1)

    def went(self, relation: Relation, place: Place) -> AtFork | None:
        """The row that was there at the fork, if lost work changed it or moved it; None if that deleted it."""
        row = AtFork(relation, place)
        return None if row in self._gone else row
