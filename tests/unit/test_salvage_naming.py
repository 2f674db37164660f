"""Lost rows that name a row which on the new primary is not the lost one are in conflict too, and nothing else is.

What the SQL makes of it is in lab/test_salvage: `booked` and `account` are looked for, `shop` clears no `offer`."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.fixtures.tiers import every
from walproof.salvaging.changes import NOT_READ, Change, ForeignKey, Row, Table, TableLoss
from walproof.salvaging.naming import leave_named

ANOTHER, SAME, FORK = ("1", "u", "another"), ("1", "u", "lost"), ("1", "u", "at the fork")


def key(by: int, own: str = "id", theirs: str = "up", operator: str = "=") -> ForeignKey:
    return ForeignKey("public", f"t{by}", ((own, "pg_catalog", operator, theirs),), by, is_builtin=True)


def loss(oid: int, changes: Iterable[Change], *references: ForeignKey, **more: Any) -> TableLoss:
    words = {"columns": ("id", "up", "v"), "key": (0,), "root": oid, **more}
    return TableLoss(Table((1, 2, oid), None, "", oid, "public", f"t{oid}", references=references, **words), [*changes])


def insert(id: str, up: str | None, state: str = "clean", **more: Any) -> Change:
    return Change("insert", (id, up, "lost"), None, state=state, **more)


def update(state: str, now: Row | None, old: Row | None = FORK, **more: Any) -> Change:
    return Change("update", SAME, old, now, state, **more)


def left(*losses: TableLoss) -> set[tuple[int, str]]:
    """Tables and keys of what is left by this; each is in conflict, and told once by its table."""
    before = {id(change): change for one in losses for change in one.changes}
    leave_named(losses)
    found = [(one, change) for one in losses for change in one.changes if id(change) not in before]
    assert all(change.state == "conflict" and change.is_left and not change.is_in_sql for _, change in found)
    told = (note.rpartition(" ")[2] for one in losses for note in one.notes if note.startswith("in conflict too"))
    assert sum(int(count.replace(",", "")) for count in told) == len(found)
    return {(one.table.oid, str(change.new and change.new[0])) for one, change in found}


def test_a_row_is_left_where_what_it_names_is_not_the_lost_one() -> None:
    rows = [
        (insert("1", None), False),
        (insert("1", None, "there"), False),
        (insert("1", None, "there", now=("1", None, "lost"), is_since=True), True),  # made there too: another's
        (update("there", SAME, is_since=True), False),
        (insert("1", None, "unsure"), False),  # it is inserted
        (insert("1", None, "conflict", now=ANOTHER), True),
        (insert("1", None, "conflict", is_left=True), True),  # a unique value of it is taken
        (insert("1", None, "not compared"), True),
        (insert("1", None, NOT_READ), True),
        (Change(NOT_READ, None, FORK, state=NOT_READ), True),
        (update("unsure", None, None), True),  # without a key: in no SQL
        (update("clean", FORK), False),
        (update("conflict", ANOTHER), False),  # it was there at the fork, and has its key
        (update("not compared", None), False),
        (update("conflict", None), True),  # deleted there
        (insert("2", None, "conflict", now=ANOTHER), False),  # another one
    ]
    naming = [insert("9", "1"), insert("8", None), insert("7", "3"), insert("6", "1", "there")]
    naming += [Change("update", ("5", "1", "v"), ("5", "1", "w"), ("5", "1", "w"), "clean")]  # names it since the fork
    naming += [Change("update", ("4", "1", "v"), ("4", "3", "v"), ("4", "3", "v"), "clean")]
    naming += [Change("delete", None, ("3", "1", "v"), ("3", "1", "v"), "clean")]

    def is_as_told(named: Change, is_left: bool) -> None:
        assert left(loss(1, [named], key(2)), loss(2, naming)) == ({(2, "9"), (2, "4")} if is_left else set())

    every(rows, is_as_told)


def test_what_is_named_by_another_unique_value_is_left_where_that_has_moved() -> None:
    """The first keeps it, that of the second was changed by lost work, that of the third on the new primary."""
    named = [Change("update", (id, new, "lost"), (id, old, "v"), (id, now, "other"), "conflict") for id, old, new, now
             in (("1", "a", "a", "a"), ("2", "x", "b", "x"), ("3", "c", "c", "y"))]  # fmt: skip
    naming = [insert(id, up) for id, up in (("7", "a"), ("8", "b"), ("9", "c"))]
    assert left(loss(1, named, key(2, own="up")), loss(2, naming)) == {(2, "8"), (2, "9")}


def test_rows_that_name_one_that_is_left_are_left_whatever_the_way() -> None:
    rows = [insert(str(at), str(at - 1)) for at in range(1, 3000)]  # each names the one before it
    assert len(left(loss(1, [insert("0", None, "conflict"), *rows], key(1)))) == 2999
    circle = [loss(1, [insert("1", "2")], key(2)), loss(2, [insert("2", "1"), insert("3", "4")], key(1))]
    assert left(*circle, loss(3, [insert("1", None)])) == set()
    circle[0].changes = [insert("1", "2", "conflict")]
    assert left(*circle) == {(1, "1"), (2, "2")}
    assert {one.state for one in circle[0].changes} == {"conflict"}


def test_partitions_are_named_and_name_by_the_tables_above_them() -> None:
    leaves = [loss(11, [insert("1", None, "conflict")], key(2), root=1), loss(12, [insert("2", None)], key(2), root=1)]
    naming = [loss(21, [insert("8", "1"), insert("7", "2")], root=2, above=(2,)), loss(3, [insert("9", "1")])]
    assert left(*leaves, *naming) == {(21, "8")}
    for blind in ({"unread": 1}, {"is_read": False}):  # a partition that was not read whole may have what is named
        leaves = [loss(11, [], key(2), root=1), loss(12, [insert("2", None), insert("1", None)], key(2), root=1)]
        for name, value in blind.items():
            setattr(leaves[0], name, value)
        assert left(*leaves, loss(2, [insert("8", "1"), insert("7", "3"), insert("6", None)], root=2)) == {(2, "7")}


def test_what_names_a_column_that_was_dropped_and_added_again_is_left() -> None:
    """The same value, there in another column of that name, is another row's."""
    kept = Change("update", SAME, ("1", "u", "v"), FORK, "not compared")
    naming = [insert("9", "u"), insert("8", None), Change("update", ("7", "u", "w"), ("7", "u", "v"), None, "clean")]
    assert left(loss(1, [kept], key(2, own="up"), renumbered={"v"}), loss(2, naming)) == set()
    assert left(loss(1, [kept], key(2, own="up"), renumbered={"up"}), loss(2, naming)) == {(2, "9")}


def test_what_names_by_a_key_of_which_not_all_is_known_is_left() -> None:
    """ON CONFLICT left out a shop of which the slug was taken, and its offer was put under the other shop."""

    def of_no_known_value(of: ForeignKey) -> None:
        assert left(loss(1, [insert("1", None)], of), loss(2, [insert("8", "5")])) == {(2, "8")}

    every([key(2, own="generated"), ForeignKey("", "", (("",) * 4,), 2)], of_no_known_value)
    naming = [insert("8", "5"), Change("update", ("7", "5", "v"), ("7", "5", "w"), ("7", "5", "w"), "clean")]

    def loose(of: ForeignKey) -> None:
        """All is left that may name what is left."""
        assert left(loss(1, [insert("1", None)], of), loss(2, naming)) == set()
        assert left(loss(1, [insert("1", None, "conflict")], of), loss(2, naming)) == {(2, "8"), (2, "7")}

    every([replace(key(2), loose=("up",)), key(2, theirs="generated"), key(2, operator="&&")], loose)


def test_a_foreign_key_of_the_old_primary_or_of_two_columns_counts_too() -> None:
    named = loss(1, [insert("1", None, "conflict"), insert("2", None)], old_references=(key(2),))
    assert left(named, loss(2, [insert("8", "1"), insert("9", "2")])) == {(2, "8")}
    both = ForeignKey("public", "t2", (("id", "pg_catalog", "=", "up"), ("up", "pg_catalog", "=", "v")), 2)
    naming = [Change("insert", (id, "1", v), None, state="clean") for id, v in (("7", "a"), ("8", "b"), ("9", None))]
    assert left(loss(1, [insert("1", "a", "conflict"), insert("1", "b")], both), loss(2, naming)) == {(2, "7")}


def test_a_table_knows_which_of_its_rows_others_name_by_which_keys_and_whether_that_can_wait() -> None:
    named = loss(1, [insert(id, None) for id in "12345"], key(2), replace(key(3), is_deferrable=True), key(4))
    naming = [insert("7", "1"), insert("8", "2", "conflict"), insert("9", "3", "there"), insert("6", "4")]
    leave_named([named, loss(2, naming), loss(3, [insert("7", "1"), insert("8", "5")])])
    assert named.named == {0: False, 3: False, 4: True}
    named = loss(1, [insert("1", None)], key(2), key(3), key(4))
    leave_named([named, loss(2, [insert("8", "1")]), loss(3, [insert("9", "1", "there")])])
    assert named.followed == [key(2)]
