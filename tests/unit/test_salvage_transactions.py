"""A lost transaction is one change: what it deleted is left where the SQL does not have all that it wrote."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from tests.fixtures.losses import delete, insert, loss
from tests.fixtures.tiers import every
from walproof.salvaging.changes import NOT_READ, Change, TableLoss
from walproof.salvaging.transactions import LEFT, Version, leave_deletes, mark_parts, note
from walproof.salvaging.wal import LostWal

LOST = LostWal(0x200, known_from=1)


def by(change: Change, *xids: int) -> Change:
    return replace(change, by=xids)


def left(*losses: TableLoss, lost: LostWal = LOST) -> set[str]:
    """Keys of deletes that are left; each is told once by its table."""
    assert leave_deletes(losses, lost) != leave_deletes(losses, lost) or not any(one.notes for one in losses)
    found = {str(one.old and one.old[0]) for of in losses for one in of.changes if one.kind == "delete" and one.is_left}
    told = [note.rpartition(" ")[2] for of in losses for note in of.notes if note.startswith(LEFT)]
    assert sum(int(count.replace(",", "")) for count in told) == len(found)
    return found


def test_a_delete_is_left_where_its_transaction_wrote_what_the_sql_has_not() -> None:
    rows = [
        (insert("7", "x"), True),
        (insert("7", "x", "there"), True),
        (insert("7", "x", "unsure"), True),
        (insert("7", "x", "not compared"), True),
        (insert("7", "x", "conflict"), False),  # an order was deleted, and archived nowhere
        (replace(insert("7", "x", "conflict"), is_left=True), False),
        (insert("7", "x", NOT_READ), False),
        (Change("update", ("7", "x"), ("7", "y"), ("7", "z"), "conflict"), False),
        (Change("update", ("7", "x"), None, state="unsure"), False),  # without a key: in no SQL
        (replace(delete("7", "x"), state="conflict"), False),
    ]

    def is_as_told(other: Change, is_whole: bool) -> None:
        deletes = [by(delete("1", "a"), 5), by(delete("2", "a"), 6), by(delete("3", "a"))]
        losses = loss(1, changes=deletes), loss(2, changes=[by(other, 4, 5), by(insert("8", "y"), 5, 6)])
        assert left(*losses) == (set() if is_whole else {"1"})
        assert mark_parts(losses, LOST) == (0 if is_whole else 1)
        assert losses[1].changes[1].is_part is not is_whole

    every(rows, is_as_told)


def test_what_a_left_delete_was_part_of_is_not_whole_either() -> None:
    chain = [by(delete(str(at), "a"), at, at + 1) for at in range(1, 3000)]
    assert len(left(loss(1, changes=[*chain, by(insert("x", None, "conflict"), 3000)]))) == 2999


def test_what_was_not_read_counts_too() -> None:
    wrote = {frozenset({(1, 2, 2), (1, 2, 1)}): [5], frozenset({(1, 2, 1)}): [6]}

    def is_left(of: dict[str, Any], words: dict[str, Any]) -> None:
        other = loss(2, changes=[by(insert("7", "x"), 5)])
        other.table = replace(other.table, **of)
        for name, value in words.items():
            setattr(other, name, value)
        deletes = loss(1, changes=[by(delete("1", "a"), 5), by(delete("2", "a"), 6)])
        assert left(deletes, other, lost=LostWal(0x200, wrote=defaultdict(list, wrote))) == {"1"}

    every([({}, {"outside": {5}}), ({}, {"is_read": False}), ({"why_not": "unlogged"}, {})], is_left)


def test_each_delete_is_left_where_rows_of_the_same_partitioned_table_have_no_place() -> None:
    """One transaction copied rows to a partition made since, the next one deleted them: they were deleted here too."""
    elsewhere, there = loss(2, changes=[by(insert("7", "x"), 5)]), loss(1)
    for root, expected in ((2, set[str]()), (1, {"1", "2"})):
        there.changes = [by(delete("1", "a"), 6), delete("2", "a")]
        there.table = replace(there.table, root=1)
        elsewhere.table = replace(elsewhere.table, has_no_place=True, root=root)
        assert left(there, elsewhere) == expected


def test_a_row_is_of_each_transaction_that_wrote_one_of_its_versions() -> None:
    """The first updates it, a part of the second gives it another key, the third deletes another row, which it had
    inserted itself; of one that is gone the WAL tells who ended it."""
    seen = [
        Version((0, 1), 2, False, 11, False, (0, 2)),
        Version((0, 2), 11, True, 13, True, (0, 3)),
        Version((0, 3), 13, True, None, True, (0, 3)),
        Version((0, 4), 14, True, 14, False, (0, 4)),
        Version((0, 5), 2, False, 14, False, (0, 5)),
        Version((0, 7), 15, True, None, False, (0, 7)),
    ]
    lost, relation, there = LostWal(0x200, top={13: 12}), (1, 2, 1), (1, 2, 9)
    lost.ended_first[relation].update({(0, 1): 99, (0, 6): 16})
    lost.ended_first[there].update({(0, 1): 17})
    rows = [{(0, 7): ("7", "i")}, {(0, 3): ("3", "u")}, {(0, 1): ("1", "v")}, {(0, 5): ("5", "d")}]
    rows[2] |= {(-1, 1): ("8", "w"), (0, 6): ("6", "w")}
    of = loss(1, changes=[insert("7", "i"), insert("3", "u"), *(delete(id, "v") for id in "1568")])
    note(of, rows, {(0, 7)}, seen, lost, there)
    assert [one.by for one in of.changes] == [(15,), (11, 12), (11, 12), (14,), (16,), (17,)]
    assert of.outside == {15}
    of.table = replace(of.table, key=())
    note(of, rows, (), seen, lost, there)
    assert of.outside == {11, 12, 14, 16, 17}, "without a key no change has what was there at the fork"
