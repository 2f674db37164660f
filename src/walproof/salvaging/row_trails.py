"""Which row each place of a table held, by the WAL: pages lose the versions between. Pure."""

from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[int, int]
"""Block and item of a row version."""
Row = tuple[int, ...]
"""The place of its version at the fork behind a 1, or the transaction that moved it to the partition; (0, 0): one that
was inserted since."""
_INSERTED: Row = (0, 0)


class End(NamedTuple):
    """A version that was ended, and what followed: an UPDATE has both, a DELETE no new one, and a row that came from
    another partition no old one. `is_moved`: the DELETE moved it to another partition."""

    lsn: int
    xid: int
    old: Place | None
    new: Place | None
    is_moved: bool = False


@dataclass(slots=True)
class Trail:
    """The rows of a file, from what lost transactions did to them. They come in the order in which these ended, so that
    a place is written again only after the one that had emptied it.

    `rows`: those of places that an UPDATE or a move wrote, and by which transaction; `ended`: how rows of the fork
    ended, by their place then: 0 and who deleted it, or who moved it; `passed`: rows that moved there, and how they
    ended.
    """

    rows: dict[Place, tuple[Row, int]] = field(default_factory=dict)
    ended: dict[Place, Row] = field(default_factory=dict)
    passed: list[tuple[Row, Row]] = field(default_factory=list)
    _inserted: dict[int, int] = field(default_factory=dict)

    def insert(self, block: int, items: int) -> None:
        """Rows were inserted into that block, the items as bits."""
        if items:
            self._inserted[block] = self._inserted.get(block, 0) | items

    def follow(self, end: End) -> None:
        """The row goes from one place to the other, or from the table."""
        row: Row = (end.xid,)
        if end.old is not None:
            is_inserted = self._inserted.get(end.old[0], 0) >> end.old[1] & 1
            row, _ = self.rows.pop(end.old, (_INSERTED if is_inserted else (1, *end.old), 0))
        if end.new is not None:
            self.rows[end.new] = row, end.xid
            return
        went = (end.xid,) if end.is_moved else (0, end.xid)
        if len(row) == 1:
            self.passed.append((row, went))
        elif row != _INSERTED:
            self.ended[row[1], row[2]] = went

    def came(self, place: Place, xid: int) -> Row:
        """Which row the version is of that this transaction's UPDATE wrote there; () where that is not known."""
        row, by = self.rows.get(place, ((), xid))
        return row if by == xid else ()

    def went(self, place: Place) -> Row:
        """What became of the row that was there at the fork, and that lost work changed."""
        return self.ended.get(place, (1, *place))
