"""A row to which lost work gave another key, partition or table is two changes: both are in the SQL, or neither.

Judged apart, the row was there twice (its delete in conflict, its insert made), or nowhere (the other way round)."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.wal_writer import DELETE, INSERT, TABLE, UPDATE, ended, wrote
from tests.unit.test_salvage_rows import table
from walproof.salvaging.changes import Change, Origin, Place, Row, TableLoss
from walproof.salvaging.key_changes import LEFT, Identity, Version, leave_key_changes, mark, origins
from walproof.salvaging.row_trails import Trail
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record

MOVED, FORK = (4294967295, 65533), 3
OID = table().oid


def version(item: int, xmin: int, ended_by: int | None, to: int | Place | None = None, **more: bool) -> Version:
    """Of item `item` of block 0, ended by an UPDATE that leads to `to`, or a DELETE."""
    leads = (0, to or item) if isinstance(to, int | None) else to
    return Version((0, item), xmin, xmin != FORK, ended_by, more.get("is_update", xmin != FORK), leads)


@pytest.mark.parametrize(
    ("seen", "rows"),
    [
        ([version(1, FORK, 9, 2), version(2, 9, None)], {1: (OID, 0, 1), 2: (OID, 0, 1)}),
        (
            [version(2, 9, 10, 3), version(3, 10, None), version(1, FORK, 9, 2)],
            {1: (OID, 0, 1), 3: (OID, 0, 1)},
        ),  # in any order
        ([version(1, FORK, 9, 2), version(2, 8, None)], {1: (), 2: ()}),  # another version has its place by now
        ([version(1, FORK, 9, 2)], {1: ()}),
        ([version(1, FORK, 9)], {1: (0, 9)}),
        ([version(1, FORK, 9, 2), version(2, 9, 10)], {1: (0, 10)}),  # an UPDATE, then a DELETE
        ([version(1, FORK, 9, MOVED)], {1: (9,)}),
        ([version(1, 10, None, is_update=False)], {1: (10,)}),  # 10 has moved rows
        ([version(1, 10, 11, 2, is_update=False), version(2, 11, None)], {1: (10,), 2: (10,)}),
        ([version(1, 9, 11, 2, is_update=False), version(2, 11, None)], {1: (0, 9), 2: (0, 9)}),
        ([version(1, 10, None)], {1: ()}),
        ([version(1, 9, 9, 2), version(2, 9, 9, 1)], {}),  # no page has a circle: the directory may be a stranger's
    ],
)  # fmt: skip
def test_which_row_a_version_is_of(seen: list[Version], rows: dict[int, Origin]) -> None:
    found, passed = origins(Identity(OID, {10}), seen)
    assert {item: row for (_, item), row in found.items()} == rows and (passed == [] or not rows)


def test_a_row_that_came_to_a_partition_and_went_again_leads_from_one_to_the_next() -> None:
    came = version(1, 10, 11, MOVED, is_update=False)
    seen = [came, version(2, 10, 11, is_update=False), version(3, 9, 10, MOVED)]
    assert origins(Identity(OID, {10}), seen)[1] == [
        ((10,), (11,)),
        ((10,), (0, 11)),
        ((), (10,)),
    ]


def trail(*records: Record) -> Trail:
    """Of one-block tables, whose transactions 9, 10 and 11 end one after another; items are given as in `wrote`."""
    lost = LostWal(0x200)
    lost.moved |= {10}
    for xid in (9, 10, 11):
        for one in (*(one for one in records if one.xid == xid), ended(xid)):
            lost.add(one)
    return lost.trails[TABLE]


@pytest.mark.parametrize(
    ("records", "came", "went"),
    [
        # A version between was pruned: of a row of the fork, one that was inserted since, one that came by a move.
        ([wrote(9, UPDATE, 0, item=1, new=2), wrote(10, UPDATE, 0, item=2, new=3)], (OID, 0, 1), (OID, 0, 1)),
        ([wrote(9, INSERT, 0, item=2), wrote(10, UPDATE, 0, item=2, new=3)], (0, 0), (OID, 0, 1)),
        ([wrote(10, INSERT, 0, item=2), wrote(10, UPDATE, 0, item=2, new=3)], (10,), (OID, 0, 1)),
        ([wrote(9, UPDATE, 0, item=1, new=2), wrote(10, DELETE, 0, item=2)], (), (0, 10)),
        ([wrote(9, UPDATE, 0, item=1, new=2), wrote(10, DELETE, 0, item=2, flags=0x10)], (), (10,)),
        # The place of one that was deleted is another's by then.
        (
            [wrote(9, DELETE, 0, item=1), wrote(10, UPDATE, 0, item=4, new=1), wrote(10, UPDATE, 0, item=1, new=3)],
            (OID, 0, 4), (0, 9),
        ),
        (
            [wrote(9, DELETE, 0, item=1), wrote(10, INSERT, 0, item=1), wrote(11, DELETE, 0, item=1)], (), (0, 9),
        ),
        ([wrote(9, UPDATE, 0, item=1, new=3), wrote(12, UPDATE, 0, item=3, new=4)], (), (OID, 0, 1)),  # 12 never ended
    ],
)  # fmt: skip
def test_where_pages_have_lost_a_version_the_wal_tells_the_row(
    records: list[Record], came: Origin, went: Origin
) -> None:
    told = trail(*records)
    known = Identity(OID, {10}, told, told)
    assert (known.came(version(3, 10, None)), known.went((0, 1))) == (came, went)
    assert known.went((-1, 1)) == went
    before = Identity(OID, {10}, Trail(), told)  # the old primary has rewritten the table since
    assert before.went((-1, 1)) == (went if len(went) < 3 else ())


def test_the_wal_tells_of_rows_that_came_to_a_partition_and_went_again() -> None:
    gone = trail(wrote(10, INSERT, 0, item=2), wrote(10, INSERT, 0, item=3), wrote(11, DELETE, 0, item=2))
    assert Identity(OID, {10}, gone).passed() == [((10,), (0, 11))]
    assert Identity(OID, set(), gone).passed() == [((0, 10), (0, 11))]  # moved, but from another table's partition


def test_rows_that_are_inserted_by_the_page_are_known_by_their_items() -> None:
    """COPY: of a new page there is no list of them."""
    rows = Trail()
    data = struct.pack("=HH", 0, 3)
    for kind, more in ((0x50, struct.pack("=3H", 4, 5, 9)), (0xD0, b"")):
        lost = LostWal(0x200)
        lost.add(wrote(9, INSERT, 0)._replace(manager=Manager.HEAP2, kind=kind, data=data + more))
        lost.add(ended(9))
        rows.insert(0, lost.trails[TABLE]._inserted[0])
    assert rows._inserted == {0: 0b1000111110}


def lost(went_from: bool = True, came_to: bool = True) -> LostWal:
    of = {table().relation}
    return LostWal(0x200, went_from=of if went_from else set(), came_to=of if came_to else set())


ROWS: list[dict[Place, Row]] = [
    {(0, 5): ("5", "in")}, {(0, 2): ("2", "x"), (0, 4): ("4", "y")}, {(0, 1): ("1", "x"), (0, 4): ("4", "x")},
    {(0, 6): ("6", "out")},
]  # fmt: skip
SEEN = [version(1, FORK, 9, 2), version(2, 9, None), version(6, FORK, 9), version(5, 9, None, is_update=False)]


@pytest.mark.parametrize(
    ("more", "lost", "marks"),
    [
        ({}, lost(), {"1": (None, (OID, 0, 1)), "2": ((OID, 0, 1), None), "6": (None, (0, 9))}),
        # No UPDATE took a row from its key, of a file that was written anew too.
        ({"is_new_file": True}, lost(False, False), {"1": (None, (0, 0)), "6": (None, (0, 0))}),
        ({"is_new_file": True}, lost(), {"1": (None, ()), "2": ((), None), "6": (None, ())}),
        ({"is_new_file": True}, replace(lost(False, False), dropped={(7, 8, 9)}, went_from={(7, 8, 9)}),
         {"1": (None, ()), "6": (None, ())}),
        ({"has_no_place": True}, lost(),
         {"1": (None, (OID, 0, 1)), "2": ((OID, 0, 1), None), "6": (None, (0, 9)), "5": ((0, 9), None)}),
        ({"key": ()}, lost(), {}),
    ],
)  # fmt: skip
def test_changes_are_marked_where_their_row_may_have_had_another_key(
    more: dict[str, Any], lost: LostWal, marks: dict[str, tuple[Origin | None, Origin | None]]
) -> None:
    made = [Change("insert", ROWS[0][0, 5], None), Change("insert", ROWS[1][0, 2], None, state="unsure")]
    old = [Change("delete", None, ROWS[2][0, 1]), Change("delete", None, ROWS[3][0, 6])]
    loss = TableLoss(table(**{"key": (0,), **more}), [*made, Change("update", ROWS[1][0, 4], ROWS[2][0, 4]), *old])
    mark(loss, ROWS, SEEN, lost, set(), None)
    found = {str((one.new or one.old or ())[0]): (one.came, one.went) for one in loss.changes}
    assert {key: mark for key, mark in found.items() if mark != (None, None)} == marks


R1, R2, BY_9, BY_10 = (OID, 0, 1), (OID, 0, 2), (9,), (10,)


def gone(row: Origin, state: str = "clean", **more: Any) -> Change:
    return Change("delete", None, ("1", "x"), state=state, went=row, **more)


def came(row: Origin, state: str = "unsure", **more: Any) -> Change:
    return Change("insert", ("2", "x"), None, state=state, came=row, **more)


def on(came: Origin | None, went: Origin | None, state: str = "clean") -> Change:
    return Change("update", ("3", "x"), ("3", "y"), state=state, came=came, went=went)


PLAIN = [Change("insert", ("7", "x"), None, state="clean"), Change("delete", None, ("8", "x"), state="clean")]


@pytest.mark.parametrize(
    ("changes", "more", "left"),
    [
        ([gone(R1), came(R1)], {}, []),
        ([gone(R1, "conflict"), came(R1)], {}, [1]),
        ([gone(R1, "conflict"), came(R1), gone(R2), came(R2)], {}, [1]),  # a row for itself
        ([gone(R1), came(R1, "conflict")], {}, [0]),
        ([gone(R1), came(R1, "conflict", is_left=True)], {}, [0]),  # as it names another's row
        ([gone(R1, "there"), came(R1)], {}, [1]),  # deleted there, or given another key
        ([gone(R1, "there"), came(R1, "there")], {}, []),
        ([gone(R1), came(R1, "there")], {}, []),
        ([replace(gone(R1), kind="not read", state="not read"), came(R1)], {}, [1]),
        ([gone(R1, "not compared"), came(R1, "not compared")], {}, [0, 1]),
        # Keys that were moved on by one: each row takes the place of another.
        ([gone(R1), on(R1, R2), came(R2, "conflict")], {}, [0, 1]),
        ([gone(R1, "conflict"), on(R1, R2), came(R2)], {}, [1, 2]),
        # Moved by one transaction; two that were moved twice; one that was moved there too.
        ([gone(BY_9, "conflict"), gone(BY_9), came(BY_9), came(BY_9)], {}, [1, 2, 3]),
        ([gone(BY_9, "conflict"), came(BY_10)], {"passed": [(BY_9, BY_10)]}, [1]),
        ([gone(BY_9, "there"), gone(BY_9), came(BY_9, "there"), came(BY_9)], {}, []),
        # With an INSERT of the transaction besides, of which another one tells nothing.
        ([gone(BY_9, "conflict"), came(BY_9), came(BY_9), gone(BY_10), came(BY_10), came(BY_10)], {}, [1, 2]),
        # Where versions between are gone, any may be the other half.
        ([gone(()), came(())], {}, []),
        ([gone((), "conflict"), came(()), gone(R1), came(R1)], {}, [1]),
        ([gone(()), came((), "conflict")], {}, [0]),
        ([gone(()), came(BY_9, "conflict")], {}, [0]),
        ([gone(BY_9, "conflict"), came(BY_10)], {}, [1]),  # it was moved again, of which nothing is left
        ([came(()), came(R1)], {"unread": 1}, [0, 1]),
        ([came(()), gone(R1), came(R1)], {"has_gone": True}, [0]),
        # One transaction deleted rows, and wrote them to a table which the new primary does not have.
        ([gone((0, 9)), gone((0, 10)), came((0, 9), "not compared"), came((0, 11))], {"has_no_place": True}, [0, 2]),
        ([gone((0, 9)), gone((0, 0)), came((0, 11), "not compared")], {"has_no_place": True}, [1]),
        ([gone((0, 9), "conflict"), gone((0, 9))], {}, []),
    ],
)  # fmt: skip
def test_both_halves_of_a_row_are_in_the_sql_or_neither(
    changes: Sequence[Change], more: dict[str, Any], left: list[int]
) -> None:
    told = {name: value for name, value in more.items() if name != "has_no_place"}
    loss = TableLoss(table(key=(0,), root=7, has_no_place="has_no_place" in more), [*changes, *PLAIN], **told)
    assert leave_key_changes([loss, TableLoss(table(root=8))]) is (left != [])
    found = [at for at, one in enumerate(loss.changes) if one.is_left and not changes[at].is_left]
    assert found == left and all(loss.changes[at].state == "conflict" for at in found)
    assert loss.notes == ([f"{LEFT}: {len(left)}"] if left else [])
    assert not leave_key_changes([loss])


def test_partitions_of_one_table_are_looked_at_together() -> None:
    leaves = [TableLoss(table(root=7), [gone(BY_9, "conflict")]), TableLoss(table(root=7), [came(BY_9)])]
    other = TableLoss(table(root=8), [came(BY_9)])
    assert leave_key_changes([*leaves, other])
    assert [one.changes[0].is_left for one in (*leaves, other)] == [False, True, False]


def test_of_which_files_a_row_got_another_key_is_in_the_wal() -> None:
    lost, (other, third) = LostWal(0x200), ((1663, 5, 16385), (1663, 5, 16386))
    moved = wrote(9, DELETE, 3, flags=0x10)
    rekeyed = wrote(10, UPDATE, 3, of=other)
    rekeyed = rekeyed._replace(data=rekeyed.data[:6] + b"\x10" + rekeyed.data[7:])
    for one in (wrote(9, INSERT, 1, of=other), moved, wrote(9, INSERT, 4, of=third), rekeyed, wrote(10, UPDATE, 4)):
        lost.add(one)
    assert (lost.went_from, lost.came_to) == ({TABLE, other}, {third, other})
