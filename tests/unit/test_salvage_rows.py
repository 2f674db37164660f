"""Lost rows of a table: which versions are one change, what the new primary makes of it, and what cannot be read."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.losses import table
from tests.fixtures.tiers import every
from walproof.salvaging import rows
from walproof.salvaging.changes import (
    NOT_READ,
    Change,
    Row,
    Table,
    TableLoss,
    Unread,
    Untold,
    changes,
    judged,
    leave_untold,
)
from walproof.salvaging.wal import LostWal

A, B, C = ("1", "a"), ("1", "b"), ("1", "c")
INSERT, UPDATE, DELETE = Change("insert", A, None), Change("update", A, B), Change("delete", None, B)
UNSURE = Change("insert", A, None, state="unsure")
"""Only its updated version is left: the new primary may have deleted the row."""
UNREAD_FORK, UNREAD_LOST = Change(NOT_READ, A, None, state=NOT_READ), Change(NOT_READ, None, B, state=NOT_READ)


def test_a_change_beside_the_new_primarys_row() -> None:
    judgements = [
        (INSERT, None, False, "insert clean"),
        (INSERT, A, False, "insert there"),
        (INSERT, B, False, "insert conflict"),
        (INSERT, B, True, "update clean"),
        (UPDATE, B, True, "update clean"),
        (UPDATE, B, False, "update conflict"),  # written, and again as it was
        (UPDATE, C, False, "update conflict"),
        (UPDATE, None, False, "update conflict"),
        (DELETE, B, True, "delete clean"),
        (DELETE, B, False, "delete conflict"),
        (DELETE, None, False, "delete there"),
        (DELETE, C, False, "delete conflict"),
        (UNSURE, None, False, "insert unsure"),
        (UNSURE, B, True, "update clean"),
        (UNSURE, B, False, "insert conflict"),
        (UNSURE, A, False, "insert there"),
        (UNREAD_FORK, None, False, "not read not read"),
        (UNREAD_FORK, B, False, "not read not read"),
        (UNREAD_FORK, A, False, "not read there"),
        (UNREAD_FORK, B, True, "update clean"),  # it still has the version that cannot be read
        (UNREAD_LOST, None, False, "not read not read"),
        (UNREAD_LOST, B, True, "not read not read"),
    ]

    def is_judged(change: Change, now: Row | None, unchanged: bool, says: str) -> None:
        done = judged(change, now, unchanged=unchanged)
        assert f"{done.kind} {done.state}" == says
        assert done.now == now or change.kind == NOT_READ

    every(judgements, is_judged)


def test_final_and_old_versions_of_a_key_are_one_change() -> None:
    made, replaced = [("2", "same"), ("3", "in"), ("6", "again")], [("1", "new"), ("5", "was it there")]
    old = [("1", "was"), ("2", "same"), ("4", "out"), ("6", "before")]
    kinds = [(one.kind, one.new, one.old, one.state) for one in changes(table(key=(0,)), made, replaced, old)]
    assert kinds == [
        ("insert", ("3", "in"), None, "not compared"),
        ("update", ("6", "again"), ("6", "before"), "not compared"),
        ("update", ("1", "new"), ("1", "was"), "not compared"),
        ("insert", ("5", "was it there"), None, "unsure"),
        ("delete", None, ("4", "out"), "not compared"),
    ]
    done = changes(table(), [("3", "in")], [("1", "new"), ("1", "new")], [("1", "was")])
    assert [(one.kind, one.is_in_sql) for one in done] == [("insert", True), ("update", False), ("update", False)]


OF_1, ANY, BOTH = Unread({("1",)}), Unread(is_any=True), {("1",), ("2",)}


def test_a_row_of_which_a_version_was_not_read_is_neither_updated_nor_deleted() -> None:
    x3, x4, x2 = [("3", "x")], [("4", "x")], [("2", "x")]
    untold: list[tuple[Untold, list[Row], list[Row], str]] = [
        (Untold(), [], [], "delete, delete"),
        # Each was replaced, by a version that cannot be read: of whatever key it is now.
        (Untold(final=OF_1), [], [], "not read, not read"),
        # A DELETE ended 1 and 2; then 1 came again, and cannot be read.
        (Untold(final=OF_1, deleted=BOTH), [], [], "not read, delete"),
        (Untold(final=ANY, deleted=BOTH), [], [], "not read, not read"),
        (Untold(final=OF_1, deleted={("1",)}), [], [*x2], "update, not read"),
        (Untold(at_fork=Unread({("3",)})), [*x3], [*x4], "not read, insert unsure, delete, delete"),
        (Untold(at_fork=ANY), [*x3], [*x4], "insert unsure, insert unsure, delete, delete"),
    ]

    def says(of: Untold, made: list[Row], replaced: list[Row], said: str) -> None:
        done = changes(table(key=(0,)), made, replaced, [("1", "was"), ("2", "was")], of)
        kinds = (one.kind + (" unsure" if one.state == "unsure" else "") for one in done)
        assert ", ".join(kinds) == said
        assert [one.is_in_sql for one in done] == [one.kind != NOT_READ for one in done]

    every(untold, says)


def test_a_row_that_is_gone_from_a_partition_may_be_in_one_that_was_not_read() -> None:
    def is_told(other: dict[str, Any], of: dict[str, Any], is_deleted: bool) -> None:
        leaves = [replace(table(key=(0,), root=9), oid=oid) for oid in (1, 2)]
        gone = TableLoss(leaves[0], [Change("delete", None, ("1", "a")), Change("insert", ("2", "a"), None)])
        alone = TableLoss(replace(table(key=(0,), root=3), oid=3), [Change("delete", None, ("1", "a"))], unread=1)
        leave_untold([gone, TableLoss(replace(leaves[1], **of), **other), alone])
        assert [one.kind for one in gone.changes] == ["delete" if is_deleted else NOT_READ, "insert"]
        assert gone.in_no_sql(is_said=True) == ({} if is_deleted else {NOT_READ: 1})
        assert (len(gone.undecided), alone.changes[0].kind, alone.undecided) == (0 if is_deleted else 1, "delete", [])

    every([({}, {}, True), ({"unread": 1}, {}, False), ({"is_read": False}, {}, False),
           ({}, {"why_not": rows.UNLOGGED}, False)], is_told)  # fmt: skip


SHAPE = (7, 3, ["id integer", "v text"], False)
BYTES = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
SEEN = (0, 1, 9, True, None, False, "(0,1)")


class Copied:
    """A session of the copy in which a table has one lost row, inserted or updated; COPY hands out these rows."""

    def __init__(
        self, found: list[Any] | Exception, shape: tuple[object, ...] | None = None, seen: tuple[object, ...] = SEEN
    ) -> None:
        self.found, self.shape, self.seen = found, shape, seen

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def execute(self, query: object, _: object = None) -> Any:
        if "row_security_active" in str(query):
            return SimpleNamespace(fetchone=lambda: self.shape)
        if "heap_page_items" in str(query):
            return SimpleNamespace(fetchall=lambda: [self.seen], fetchone=lambda: None)
        return [(1,)]

    def cursor(self) -> Any:
        return nullcontext(self)

    def copy(self, query: object) -> Any:
        self.places = ["(0,1)"] if "SQL('ctid, ')" in str(query) else []
        return nullcontext(self)

    def rows(self) -> list[tuple[str, ...]]:
        if isinstance(self.found, Exception):
            raise self.found
        return [(*self.places, *row) for row in self.found]


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the table runs no function of anybody's."""
    monkeypatch.setattr(rows, "own_code", lambda *_: "")


def read_one(copied: Copied, **more: Any) -> TableLoss:
    lost = LostWal(0x200, xids={9}, known_from=1, next_xid=9)
    lost.blocks[1, 2, 3].add(0)
    session: Any = copied
    return rows.read_table(session, "s", table(key=(0,), **more), lost, None)


@pytest.mark.usefixtures("no_code")
def test_a_row_that_cannot_be_read_is_noted() -> None:
    """Nor is an answer of another type than asked for: the old superuser may have replaced any function there."""
    unread = "the version at (0, 1) cannot be read"
    wrong: list[tuple[Copied, str]] = [
        (Copied(BYTES), unread),
        (Copied(psycopg.errors.DataCorrupted("missing chunk")), unread),
        (Copied(psycopg.OperationalError("gone")), unread),
        (Copied([]), f"{unread}: no query shows it"),
        (Copied([A, B]), f"{unread}: no query shows it"),
        (Copied([A], SHAPE, (0, 1, 9, "\\! id", None, False, "(0,1)")), "true or false"),
        (Copied([A], SHAPE, ("\\! id", 1, 9, True, None, False, "(0,1)")), "invalid literal"),
        (Copied([A], SHAPE, (0, 1, 9, True, None, False, "\\! id")), "not enough values"),
        (Copied([A], SHAPE, (0, 1, 9, True, None, False, 1)), "has text"),
        (Copied([A], SHAPE, (0, 1.5, 9, True, None, False, "(0,1)")), "a number"),
        (Copied([A], SHAPE, (0, 1 << 70, 9, True, None, False, "(0,1)")), "71 bits"),
        (Copied([A], SHAPE, (0, 1)), "shorter"),
    ]

    def is_noted(copied: Copied, says: str) -> None:
        loss = read_one(copied)
        assert loss.changes == [] and says in loss.notes[0] and loss.undecided
        assert unread not in says or loss.unread == 1

    every(wrong, is_noted)


@pytest.mark.usefixtures("no_code")
def test_what_applying_rows_does_besides_is_noted_with_them() -> None:
    assert read_one(Copied([A]), warnings=("it fires a\x1bb",)).notes == ["it fires a?b"]
    assert "it fires" not in str(read_one(Copied([]), warnings=("it fires a\x1bb",)).notes)


def test_a_change_whose_unique_value_the_new_primary_gave_to_another_row_is_in_conflict() -> None:
    uniques = [
        (Change("insert", A, None, None, "clean"), ("t", "2", "a"), True),
        (Change("insert", A, None, None, "unsure"), ("t", "2", "a"), True),
        (Change("insert", A, None, None, "clean"), ("f", "2", "a"), False),  # lost work took it from there
        (Change("insert", A, None, A, "there"), ("t", "1", "a"), False),
        (Change("insert", A, None, B, "conflict"), ("t", "1", "a"), False),  # its own
        (Change("insert", ("1", None), None, None, "clean"), ("t", "2", None), False),
        (Change("update", A, B, B, "clean"), ("t", "2", "a"), True),
        (Change("update", A, A, A, "clean"), ("t", "2", "a"), False),
        (Change("delete", None, A, A, "clean"), ("t", "2", "a"), False),
    ]

    def is_as_told(change: Change, there: tuple[str, ...], is_left: bool) -> None:
        new: Any = Copied([there])
        (found,) = rows.taken(new, table(key=(0,), uniques=((0,), (1,))), [change], "false")
        is_changed = replace(change, state="conflict", is_left=True, now=change.now or there[1:])
        assert found == (is_changed if is_left else change)

    every(uniques, is_as_told)


# What comparing costs the new primary: no work that is lost rows times its rows, and an end

NEW: Any = SimpleNamespace(transaction=nullcontext, execute=lambda _: None)
LOST = [Change("update", (str(at), "new"), (str(at), "old")) for at in range(1001)]


def test_where_no_index_finds_the_key_each_row_is_looked_at_once_by_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def selected(_: object, __: Table, ___: str, condition: sql.Composable) -> Iterator[Row]:
        asked.append(condition.as_string(None))
        # Of a key that none of the lost has, though each of its columns is in some of them.
        yield from [("f", "7", "old"), ("f", "8", "new"), ("t", "9", "new")]

    monkeypatch.setattr(rows, "_selected", selected)

    def asks(is_builtin: bool, uniques: tuple[tuple[int, ...], ...], begins: str, times: int) -> None:
        asked.clear()
        lost, of = [*LOST, Change("insert", ("7", "at 7"), None)], table(key=(0, 1), uniques=uniques)
        found = list(rows.compared(NEW, replace(of, is_key_builtin=is_builtin), lost, "false"))
        assert [found[8].state, found[9].state, found[7].state] == ["there", "there", "conflict"]
        assert found[-1].now is None and asked[0].startswith(begins) and len(asked) == times
        assert len(asked) > 1 or (asked[0].count(" IN ") == 2 and " OR " not in asked[0])

    every(
        [
            (True, ((1,), (1, 0)), "(\"id\", \"v\") IN (('0', 'new'), ('1'", 3),
            (True, ((1,),), "\"id\" IN ('0', '1'", 1),
            (False, (), "format('%s', \"id\") COLLATE \"C\" IN ('0', '1'", 1),
        ],
        asks,
    )


def test_what_comparing_and_each_statement_of_the_sql_costs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(*_: object) -> Iterator[Row]:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    def told(selected: Any, uniques: tuple[tuple[int, ...], ...], notes: list[str]) -> None:
        monkeypatch.setattr(rows, "_selected", selected)
        loss = TableLoss(table(key=(0,), is_key_builtin=True, uniques=uniques), [*LOST])
        rows._compare(NEW, loss, "false")
        assert loss.notes == notes and (selected is not cancelled or loss.changes == LOST)

    every(
        [
            (cancelled, ((0,),), [f"not compared: a query of it took longer than {rows.LONGEST_S} s"]),
            (lambda *_: iter([]), ((0,),), []),
            (lambda *_: iter([]), (), [f"{rows.SCANNED}: 1,001"]),
        ],
        told,
    )
