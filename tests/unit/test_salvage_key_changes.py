"""A row to which lost work gave another key, partition or table is two changes: both are in the SQL, or neither.

Judged apart, the row was there twice (its delete in conflict, its insert made), or nowhere (the other way round)."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.losses import table
from tests.fixtures.tiers import every
from tests.fixtures.wal_writer import DELETE, INSERT, TABLE, UPDATE, ended, wrote
from walproof.salvaging.changes import Change, Origin, TableLoss
from walproof.salvaging.key_changes import LEFT, leave_key_changes
from walproof.salvaging.row_trails import AtFork, Trails
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record, Relation

A, B, C, TOAST, GONE = TABLE, (1663, 5, 16385), (1663, 5, 16386), (1663, 5, 16387), (1663, 5, 16388)
"""Three partitions of one table, the TOAST of one, and a file that no table has any more."""
ROOTS = dict.fromkeys((A, B, C), frozenset({7})) | {(1663, 5, 16389): frozenset({9})}
MOVED = 0x10


def told(*records: Record) -> LostWal:
    """What was lost of these transactions, which end one after another: 9, 10, 11."""
    lost = LostWal(0x200, known_from=1)
    for number, one in enumerate(sorted(records, key=lambda one: one.xid)):
        lost.add(one._replace(lsn=0x300 + number))
    for xid in (9, 10, 11):
        lost.add(ended(xid, lsn=0x400 + xid))
    lost.trails.know(ROOTS, {TOAST}, {C})
    return lost


def moved(xid: int, item: int, *to: tuple[Relation, int], of: Relation = A) -> list[Record]:
    """The row leaves, and these are inserted then."""
    return [wrote(xid, DELETE, 0, item=item, flags=MOVED, of=of)] + [
        wrote(xid, INSERT, 0, item=at, of=relation) for relation, at in to
    ]


FIRST = AtFork(A, (0, 1))


def test_where_pages_have_lost_a_version_the_wal_tells_the_row() -> None:
    rows: list[tuple[list[Record], Origin | None, Origin | None]] = [
        # A version between was pruned: of a row of the fork, and of one that was inserted since.
        ([wrote(9, UPDATE, 0, item=1, new=2), wrote(10, UPDATE, 0, item=2, new=3)], FIRST, FIRST),
        ([wrote(9, INSERT, 0, item=2), wrote(10, UPDATE, 0, item=2, new=3)], None, FIRST),
        ([wrote(9, UPDATE, 0, item=1, new=2), wrote(10, DELETE, 0, item=2)], (), None),
        # The place of one that was deleted is another's by then.
        (
            [wrote(9, DELETE, 0, item=1), wrote(10, UPDATE, 0, item=4, new=1), wrote(10, UPDATE, 0, item=1, new=3)],
            AtFork(A, (0, 4)), None,
        ),
        ([wrote(9, DELETE, 0, item=1), wrote(10, INSERT, 0, item=1), wrote(11, DELETE, 0, item=1)], (), None),
        ([wrote(9, UPDATE, 0, item=1, new=3), wrote(12, UPDATE, 0, item=3, new=4)], (), FIRST),  # 12 never ended
        ([wrote(9, UPDATE, 0, item=1, new=3), wrote(12, DELETE, 0, item=1)], (), FIRST),
    ]  # fmt: skip

    def tells(records: list[Record], came: Origin | None, went: Origin | None) -> None:
        trails = told(*records).trails
        assert (trails.came(A, (0, 3), 10, is_update=True), trails.went(A, (0, 1))) == (came, went)

    every(rows, tells)


def test_a_move_leads_to_the_partition_into_which_its_transaction_inserts_next() -> None:
    moves: list[tuple[list[Record], dict[tuple[Relation, int, int], Origin | None]]] = [
        (moved(9, 1, (B, 1)), {(B, 1, 9): FIRST}),
        # Of what its transaction inserts then only the first in a partition is the row.
        (moved(9, 1, (B, 1), (B, 2), (C, 3)), {(B, 1, 9): FIRST, (B, 2, 9): None, (C, 3, 9): None}),
        (moved(9, 1, (TOAST, 5), ((1663, 5, 16389), 6), (B, 1)), {(B, 1, 9): FIRST}),
        (moved(9, 1, (B, 1)) + moved(9, 2, (B, 2)), {(B, 1, 9): FIRST, (B, 2, 9): AtFork(A, (0, 2))}),
        # It goes on from there, also by way of a partition that was dropped then.
        (moved(9, 1, (B, 1)) + moved(10, 1, (C, 4), of=B), {(C, 4, 10): FIRST}),
        (moved(9, 1, (GONE, 1)) + moved(10, 1, (C, 4), of=GONE), {(C, 4, 10): FIRST}),
        ([*moved(9, 1, (B, 1)), wrote(10, UPDATE, 0, item=1, new=2, of=B)], {(B, 2, 10): FIRST}),
        ([wrote(9, INSERT, 0, item=3, of=B), *moved(9, 1, (B, 1))], {(B, 3, 9): None, (B, 1, 9): FIRST}),
        ([*moved(9, 1, (B, 1)), wrote(10, INSERT, 0, item=7, of=B)], {(B, 7, 10): None}),
        (moved(9, 1), {(B, 1, 9): ()}),  # no INSERT was read
        # Any of them may be the row: a file may be a partition that was dropped, or TOAST of one that was rewritten, or
        # a trigger's; where the old partition is gone, or triggers fire; where another move has begun meanwhile.
        (moved(9, 1, (GONE, 5), (B, 1)), {(B, 1, 9): (), (GONE, 5, 9): ()}),
        (moved(9, 1, (C, 1), (B, 2)), {(C, 1, 9): (), (B, 2, 9): ()}),
        (moved(9, 1, (C, 1), (C, 2)), {(C, 1, 9): (), (C, 2, 9): ()}),
        (moved(9, 1, (C, 1), ((1663, 5, 16389), 6)), {(C, 1, 9): FIRST}),
        (moved(9, 1, (B, 1), (C, 2), of=GONE), {(B, 1, 9): (), (C, 2, 9): ()}),
        (moved(9, 1, ((1663, 5, 16389), 6)), {((1663, 5, 16389), 6, 9): ()}),
        (moved(9, 1) + moved(9, 2, (B, 1), (B, 2)), {(B, 1, 9): (), (B, 2, 9): ()}),
        (moved(9, 1, (GONE, 5), (B, 1)) + moved(10, 1, (C, 4), of=B), {(C, 4, 10): ()}),
        ([*moved(9, 1, (C, 1), (C, 2)), wrote(10, UPDATE, 0, item=2, new=3, of=C)], {(C, 3, 10): ()}),
        ([*moved(9, 1, (B, 1), (B, 2)), wrote(10, UPDATE, 0, item=2, new=3, of=B)], {(B, 3, 10): None}),
    ]  # fmt: skip

    def leads(records: list[Record], rows: dict[tuple[Relation, int, int], Origin | None]) -> None:
        trails = told(*records).trails
        assert {(of, at, xid): trails.came(of, (0, at), xid, is_update=False) for of, at, xid in rows} == rows

    every(moves, leads)


def test_rows_that_are_inserted_by_the_page_are_known_by_their_items() -> None:
    """COPY: of a new page there is no list of them."""
    for kind, more, items in ((0x50, struct.pack("=3H", 4, 5, 9), (4, 5, 9)), (0xD0, b"", (1, 2, 3))):
        record = wrote(9, INSERT, 0)._replace(manager=Manager.HEAP2, kind=kind, data=struct.pack("=HH", 0, 3) + more)
        trails = told(record).trails
        assert [at for at in range(12) if trails.came(A, (0, at), 9, is_update=False) is None] == [*items]


def test_an_insert_where_reading_begins_may_belong_to_a_delete_that_was_not_read() -> None:
    lost = LostWal(0x200)
    for xid, lsn in ((9, 0x300), (10, 0x300 + (1 << 16))):
        lost.add(wrote(xid, INSERT, 0, item=xid, lsn=lsn))
        lost.add(ended(xid, lsn=lsn + 8))
    lost.trails.know(ROOTS, (), ())
    assert [lost.trails.came(A, (0, xid), xid, is_update=False) for xid in (9, 10)] == [(), None]


def test_what_on_conflict_has_taken_back_was_never_a_row() -> None:
    lost = told(wrote(9, INSERT, 0, item=5), wrote(9, DELETE, 0, item=5, flags=0x08))
    assert lost.ended == {} and lost.trails.went(A, (0, 5)) is not None


R1, R2 = AtFork(A, (0, 1)), AtFork(A, (0, 2))


def gone(row: Origin, state: str = "clean", **more: Any) -> Change:
    return Change("delete", None, ("1", "x"), state=state, went=row, **more)


def came(row: Origin, state: str = "unsure", **more: Any) -> Change:
    return Change("insert", ("2", "x"), None, state=state, came=row, **more)


def on(came: Origin | None, went: Origin | None, state: str = "clean") -> Change:
    return Change("update", ("3", "x"), ("3", "y"), state=state, came=came, went=went)


PLAIN = [Change("insert", ("7", "x"), None, state="clean"), Change("delete", None, ("8", "x"), state="clean")]


def test_both_halves_of_a_row_are_in_the_sql_or_neither() -> None:
    halves: list[tuple[list[Change], bool, list[int]]] = [
        ([gone(R1), came(R1)], False, []),
        ([gone(R1, "conflict"), came(R1)], False, [1]),
        ([gone(R1, "conflict"), came(R1), gone(R2), came(R2)], False, [1]),  # a row for itself
        ([gone(R1), came(R1, "conflict")], False, [0]),
        ([gone(R1), came(R1, "conflict", is_left=True)], False, [0]),  # as it names another's row
        ([gone(R1, "there"), came(R1)], False, [1]),  # deleted there, or given another key
        ([gone(R1, "there"), came(R1, "there")], False, []),
        ([gone(R1), came(R1, "there")], False, []),
        ([gone(R1, "there"), came(R1), gone(R2), came(R2, "there")], False, [1]),  # one does not stand for another
        ([replace(gone(R1), kind="not read", state="not read"), came(R1)], False, [1]),
        ([gone(R1, "not compared"), came(R1, "not compared")], False, [0, 1]),
        # Keys that were moved on by one: each row takes the place of another.
        ([gone(R1), on(R1, R2), came(R2, "conflict")], False, [0, 1]),
        ([gone(R1, "conflict"), on(R1, R2), came(R2)], False, [1, 2]),
        # The other half was not seen, or may be any.
        ([came(R1), gone(R2)], False, [0, 1]),
        ([on(R1, None)], False, [0]),
        ([gone(()), came(()), gone(R1), came(R1)], False, [0, 1]),
        ([on(R1, ()), gone(R1)], False, [0, 1]),
        ([gone(R1), came(R1, "not compared")], True, [0, 1]),
    ]

    def are_left(changes: list[Change], has_no_place: bool, left: list[int]) -> None:
        loss = TableLoss(table(key=(0,), has_no_place=has_no_place), [*changes, *PLAIN])
        assert leave_key_changes([loss, TableLoss(table())]) is (left != [])
        found = [at for at, one in enumerate(loss.changes) if one.is_left and not changes[at].is_left]
        assert found == left and all(loss.changes[at].state == "conflict" for at in found)
        assert loss.notes == ([f"{LEFT}: {len(left)}"] if left else [])
        assert not leave_key_changes([loss])

    every(halves, are_left)


def test_all_tables_are_looked_at_together() -> None:
    tables = [TableLoss(table(root=7), [gone(R1, "conflict")]), TableLoss(table(root=8), [came(R1), *PLAIN])]
    assert leave_key_changes(tables)
    assert [one.is_left for loss in tables for one in loss.changes] == [False, True, False, False]


def test_places_that_no_page_has_are_no_row() -> None:
    """MaxHeapTuplesPerPage: a stranger's WAL may say any."""
    for record in (wrote(9, INSERT, 0, item=292), wrote(9, UPDATE, 0, new=292), wrote(9, INSERT, 0, item=0)):
        with pytest.raises(ValueError, match="is of no row"):
            LostWal(0x200).add(record)
    assert Trails().went(A, (0, 65535)) == AtFork(A, (0, 65535))
