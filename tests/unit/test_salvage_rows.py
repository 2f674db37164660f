"""Lost rows of a table: which versions are one change, what the new primary makes of it, and what cannot be read."""

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from walproof.salvaging import rows
from walproof.salvaging.changes import (
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
from walproof.salvaging.transactions import Version
from walproof.salvaging.wal import LostWal


@pytest.mark.parametrize(
    ("change", "now", "unchanged", "kind", "state"),
    [
        (Change("insert", ("1", "a"), None), None, False, "insert", "clean"),
        (Change("insert", ("1", "a"), None), ("1", "a"), False, "insert", "there"),
        (Change("insert", ("1", "a"), None), ("1", "b"), False, "insert", "conflict"),
        (Change("insert", ("1", "a"), None), ("1", "b"), True, "update", "clean"),
        (Change("update", ("1", "a"), ("1", "b")), ("1", "b"), True, "update", "clean"),
        (
            Change("update", ("1", "a"), ("1", "b")),
            ("1", "b"),
            False,
            "update",
            "conflict",
        ),  # written, and again as it was
        (Change("update", ("1", "a"), ("1", "b")), ("1", "c"), False, "update", "conflict"),
        (Change("update", ("1", "a"), ("1", "b")), None, False, "update", "conflict"),
        (Change("delete", None, ("1", "b")), ("1", "b"), True, "delete", "clean"),
        (Change("delete", None, ("1", "b")), ("1", "b"), False, "delete", "conflict"),
        (Change("delete", None, ("1", "b")), None, False, "delete", "there"),
        (Change("delete", None, ("1", "b")), ("1", "c"), False, "delete", "conflict"),
    ],
)
def test_a_change_beside_the_new_primarys_row(
    change: Change, now: tuple[str, ...] | None, unchanged: bool, kind: str, state: str
) -> None:
    done = judged(change, now, unchanged=unchanged)
    assert (done.kind, done.state, done.now) == (kind, state, now)


def table(**more: Any) -> Table:
    return Table((1, 2, 3), None, "", 1, "public", "t", columns=("id", "v"), **more)


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


def test_without_a_key_an_updated_version_is_no_row_that_was_inserted() -> None:
    done = changes(table(), [("3", "in")], [("1", "new"), ("1", "new")], [("1", "was")])
    assert [(one.kind, one.is_in_sql) for one in done] == [("insert", True), ("update", False), ("update", False)]


@pytest.mark.parametrize(
    ("now", "unchanged", "kind", "state"),
    [
        (None, False, "insert", "unsure"), (("1", "b"), True, "update", "clean"),
        (("1", "b"), False, "insert", "conflict"), (("1", "a"), False, "insert", "there"),
    ],
)  # fmt: skip
def test_a_row_of_which_only_the_updated_version_is_left_may_have_been_deleted_there(
    now: tuple[str, ...] | None, unchanged: bool, kind: str, state: str
) -> None:
    done = judged(Change("insert", ("1", "a"), None, state="unsure"), now, unchanged=unchanged)
    assert (done.kind, done.state) == (kind, state)


OF_1, ANY = Unread({("1",)}), Unread(is_any=True)


@pytest.mark.parametrize(
    ("untold", "made", "replaced", "says"),
    [
        (Untold(), [], [], ["delete", "delete"]),
        # Each was replaced, by a version that cannot be read: of whatever key it is now.
        (Untold(final=OF_1), [], [], ["not read", "not read"]),
        # A DELETE ended 1 and 2; then 1 came again, and cannot be read.
        (Untold(final=OF_1, deleted={("1",), ("2",)}), [], [], ["not read", "delete"]),
        (Untold(final=ANY, deleted={("1",), ("2",)}), [], [], ["not read", "not read"]),
        (Untold(final=OF_1, deleted={("1",)}), [], [("2", "x")], ["update", "not read"]),
        (
            Untold(at_fork=Unread({("3",)})),
            [("3", "x")],
            [("4", "x")],
            ["not read", "insert unsure", "delete", "delete"],
        ),
        (Untold(at_fork=ANY), [("3", "x")], [("4", "x")], ["insert unsure", "insert unsure", "delete", "delete"]),
    ],
)
def test_a_row_of_which_a_version_was_not_read_is_neither_updated_nor_deleted(
    untold: Untold, made: list[Row], replaced: list[Row], says: list[str]
) -> None:
    done = changes(table(key=(0,)), made, replaced, [("1", "was"), ("2", "was")], untold)
    assert [f"{one.kind} {one.state}".removesuffix(" not compared").replace("not read not read", "not read")
            for one in done] == says  # fmt: skip
    assert [one.is_in_sql for one in done] == [one.kind != "not read" for one in done]


@pytest.mark.parametrize(
    ("new", "old", "now", "unchanged", "kind", "state"),
    [
        (("1", "a"), None, None, False, "not read", "not read"),
        (("1", "a"), None, ("1", "b"), False, "not read", "not read"),
        (("1", "a"), None, ("1", "a"), False, "not read", "there"),
        (("1", "a"), None, ("1", "b"), True, "update", "clean"),  # it still has the version that cannot be read
        (None, ("1", "b"), None, False, "not read", "not read"),
        (None, ("1", "b"), ("1", "b"), True, "not read", "not read"),
    ],
)
def test_a_row_that_was_not_read_beside_the_new_primarys(
    new: Row | None, old: Row | None, now: Row | None, unchanged: bool, kind: str, state: str
) -> None:
    done = judged(Change("not read", new, old, state="not read"), now, unchanged=unchanged)
    assert (done.kind, done.state) == (kind, state)


@pytest.mark.parametrize(("unread", "is_read"), [(1, True), (0, False), (0, True)])
def test_a_row_that_is_gone_from_a_partition_may_be_in_one_that_was_not_read(unread: int, is_read: bool) -> None:
    leaves = [replace(table(key=(0,), root=9), oid=oid) for oid in (1, 2)]
    gone = TableLoss(leaves[0], [Change("delete", None, ("1", "a")), Change("insert", ("2", "a"), None)])
    alone = TableLoss(replace(table(key=(0,), root=3), oid=3), [Change("delete", None, ("1", "a"))], unread=1)
    leave_untold([gone, TableLoss(leaves[1], unread=unread, is_read=is_read), alone])
    is_told = not unread and is_read
    assert [one.kind for one in gone.changes] == ["delete" if is_told else "not read", "insert"]
    assert (len(gone.undecided), gone.in_no_sql(is_said=True)) == ((0, {}) if is_told else (1, {"not read": 1}))
    assert (alone.changes[0].kind, alone.undecided) == ("delete", [])


def test_a_row_that_may_have_moved_into_an_unlogged_partition_is_not_deleted() -> None:
    leaves = [replace(table(key=(0,), root=9), oid=oid) for oid in (1, 2)]
    gone = TableLoss(leaves[0], [Change("delete", None, ("1", "a"))])
    leave_untold([gone, TableLoss(replace(leaves[1], why_not=rows.UNLOGGED))])
    assert ([one.kind for one in gone.changes], len(gone.undecided)) == (["not read"], 1)


@pytest.mark.parametrize("is_new_file", [False, True])
def test_a_place_is_not_looked_up_in_another_file_of_that_number(
    monkeypatch: pytest.MonkeyPatch, is_new_file: bool
) -> None:
    """Both sides rewrote the table into one number: a row that nobody had deleted stood at that place of the other."""
    asked, one = list[set[tuple[int, int]]](), table(key=(0,))

    def at(_: object, __: object, places: Iterable[tuple[int, int]], unread: dict[tuple[int, int], str]) -> list[str]:
        unread.update(dict.fromkeys(places, "why"))
        return []

    def still_there(*words: Any) -> list[str]:
        asked.append(set(words[-1]))
        return []

    monkeypatch.setattr(rows, "_versions", lambda *_: ([], [], [(0, 9)], [], 0, [], []))
    monkeypatch.setattr(rows, "_at", at)
    monkeypatch.setattr(rows, "_unread", lambda *_: Unread())
    monkeypatch.setattr(rows, "_file_there", lambda *_: one.relation)
    monkeypatch.setattr(rows, "_still_there", still_there)
    lost = LostWal(0x100, next_xid=1)
    lost.created |= {one.relation} if is_new_file else set()
    rows._read(cast(Any, None), "", TableLoss(one), lost, cast(Any, Copied([])))
    assert asked == [set() if is_new_file else {(0, 9)}]


def test_a_place_of_which_no_query_shows_one_row_is_not_read() -> None:
    unread = dict[tuple[int, int], str]()
    copied = Copied([("1", "a"), ("1", "b")])
    assert list(rows._at(copied, table(), [(0, 1), (0, 2), (0, 3)], unread)) == []
    assert unread == dict.fromkeys([(0, 1), (0, 2), (0, 3)], "no query shows it")


def test_what_cannot_be_read_is_named_by_a_few() -> None:
    loss = TableLoss(table())
    rows._note_unread(loss, {(0, item): "why" for item in range(1005)})
    assert loss.notes[4:] == ["the version at (0, 4) cannot be read: why", "nor can 1,000 others"]


SHAPE = (7, 3, ["id integer", "v text"], False)
BYTES = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


class Copied:
    """A session of the copy in which a table has one lost row, inserted or updated; COPY hands out these rows."""

    def __init__(
        self,
        rows: list[tuple[str, ...]] | Exception,
        shape: tuple[object, ...] | None = None,
        swapped: tuple[object, ...] | None = None,
    ) -> None:
        self.rows_there, self.shape, self.swapped, self.did = rows, shape, swapped, list[str]()

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def execute(self, query: object, _: object = None) -> Any:
        text = str(query)
        self.did.append(text)
        if "row_security_active" in text:
            return SimpleNamespace(fetchone=lambda: self.shape)
        if "SHARE UPDATE" in text:
            self.shape = self.shape if self.swapped is None else self.swapped
        seen = [(0, 1, 9, True, None, False, "(0,1)")] if "heap_page_items" in text else [(1,)]
        return SimpleNamespace(fetchall=lambda: seen, fetchone=lambda: None) if seen != [(1,)] else seen

    def cursor(self) -> Any:
        return nullcontext(self)

    def copy(self, query: object) -> Any:
        self.places = ["(0,1)"] if "SQL('ctid, ')" in str(query) else []
        return nullcontext(self)

    def rows(self) -> list[tuple[str, ...]]:
        if isinstance(self.rows_there, Exception):
            raise self.rows_there
        return [(*self.places, *row) for row in self.rows_there]


def read_one(
    monkeypatch: pytest.MonkeyPatch, copied: Copied, new: Copied | None, *, is_new_file: bool = False, **more: Any
) -> TableLoss:
    monkeypatch.setattr(rows, "own_code", lambda *_: "")
    lost = LostWal(0x200, xids={9}, known_from=1, next_xid=9)
    lost.blocks[1, 2, 3].add(0)
    lost.created |= {(1, 2, 3)} if is_new_file else set()
    one = table(**{"key": (0,), "is_new_file": is_new_file, **more})
    return rows.read_table(copied, "s", one, lost, new)


@pytest.mark.parametrize(
    "wrong", [BYTES, psycopg.errors.DataCorrupted("missing chunk"), psycopg.OperationalError("gone")]
)
def test_a_row_that_cannot_be_read_is_noted(monkeypatch: pytest.MonkeyPatch, wrong: Exception) -> None:
    loss = read_one(monkeypatch, Copied(wrong), None)
    assert loss.changes == []
    assert any("the version at (0, 1) cannot be read" in note for note in loss.notes)
    assert loss.unread == 1 and loss.undecided == ["1 versions of its rows cannot be read: no SQL changes these rows"]


@pytest.mark.parametrize("shape", [None, (8, *SHAPE[1:])])
def test_a_view_or_another_table_in_the_tables_place_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[object, ...] | None
) -> None:
    loss = read_one(monkeypatch, Copied([("1", "a")], SHAPE), Copied([], shape))
    assert [one.state for one in loss.changes] == ["not compared"]
    assert any("has no such table" in note for note in loss.notes)


@pytest.mark.parametrize(
    ("new", "key", "is_new_file", "says"),
    [
        (Copied([], SHAPE), (), True, ("update", "not compared", False)),  # or each row of it would be there twice
        (None, (), True, ("update", "not compared", False)),
        (Copied([], SHAPE), (0,), True, ("insert", "unsure", True)),  # the new primary may have deleted it
        (Copied([("t", "1", "b")], SHAPE), (0,), True, ("insert", "conflict", True)),
        (Copied([], SHAPE), (), False, ("insert", "not compared", True)),
        (Copied([], SHAPE), (0,), False, ("insert", "clean", True)),
        (Copied([], None), (), True, ("insert", "not compared", True)),  # a new table
    ],
)
def test_rows_of_a_rewritten_table_need_not_have_been_inserted(
    monkeypatch: pytest.MonkeyPatch,
    new: Copied | None,
    key: tuple[int, ...],
    is_new_file: bool,
    says: tuple[str, str, bool],
) -> None:
    copied = Copied([("1", "a")], SHAPE)
    (change,) = read_one(monkeypatch, copied, new, is_new_file=is_new_file, key=key).changes
    assert (change.kind, change.state, change.is_in_sql) == says


@pytest.mark.parametrize(
    ("change", "there", "is_left"),
    [
        (Change("insert", ("1", "a"), None, None, "clean"), ("t", "2", "a"), True),
        (Change("insert", ("1", "a"), None, None, "unsure"), ("t", "2", "a"), True),
        (Change("insert", ("1", "a"), None, None, "clean"), ("f", "2", "a"), False),  # lost work took it from there
        (Change("insert", ("1", "a"), None, ("1", "a"), "there"), ("t", "1", "a"), False),
        (Change("insert", ("1", "a"), None, ("1", "b"), "conflict"), ("t", "1", "a"), False),  # its own
        (Change("insert", ("1", None), None, None, "clean"), ("t", "2", None), False),
        (Change("update", ("1", "a"), ("1", "b"), ("1", "b"), "clean"), ("t", "2", "a"), True),
        (Change("update", ("1", "a"), ("1", "a"), ("1", "a"), "clean"), ("t", "2", "a"), False),
        (Change("delete", None, ("1", "a"), ("1", "a"), "clean"), ("t", "2", "a"), False),
    ],
)
def test_a_change_whose_unique_value_the_new_primary_gave_to_another_row_is_in_conflict(
    change: Change, there: tuple[str, ...], is_left: bool
) -> None:
    new: Any = Copied([there])
    (found,) = rows.taken(new, table(key=(0,), uniques=((0,), (1,))), [change], "false")
    assert found == (
        replace(change, state="conflict", is_left=True, now=change.now or there[1:]) if is_left else change
    )


def test_what_applying_rows_does_besides_is_noted_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[tuple[str, ...]] = [("1", "a")]
    unread = ["the version at (0, 1) cannot be read: no query shows it"]
    for found, notes in ((there, ["the SQL fires its trigger a?b"]), ([], unread)):
        assert read_one(monkeypatch, Copied(found), None, warnings=("the SQL fires its trigger a\x1bb",)).notes == notes


def test_old_rows_that_share_a_key_are_paired_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = Copied([("1", "a")], SHAPE)
    monkeypatch.setattr(rows, "_versions", lambda *_: ([], [], [(0, 1)], [(0, 2)], 0, [], []))
    loss = read_one(monkeypatch, copied, None)
    assert (loss.changes, loss.unkeyed_old, loss.notes) == ([], 2, [rows.KEY_SINCE])


def test_a_file_made_after_the_fork_says_nothing_of_the_new_primarys_of_that_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old primary deleted rows of a new table; the new primary has since rewritten this one into that number."""
    lost = LostWal(0x200, xids={9}, known_from=1, next_xid=9, created={(1, 2, 4)})
    lost.ended[1, 2, 4] = Counter({(0, 1): 1})
    monkeypatch.setattr(rows, "own_code", lambda *_: "")
    one = Version((0, 1), 9, is_lost=True, ended_by=None, is_update=False, next=(0, 1))
    monkeypatch.setattr(rows, "_versions", lambda *_: ([(0, 1)], [], [], [], 0, [], [one]))
    new = Copied([("f", "5", "is there")], (7, 4, *SHAPE[2:]))
    loss = rows.read_table(Copied([("1", "a")], SHAPE), "s", table(key=(0,)), lost, new)
    assert [one.kind for one in loss.changes] == ["insert"]


def test_a_table_that_is_swapped_while_it_is_locked_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Copied([("f", "1", "a")], SHAPE, swapped=(8, *SHAPE[1:]))
    loss = read_one(monkeypatch, Copied([("1", "a")], SHAPE), new)
    assert [one.state for one in loss.changes] == ["not compared"] and loss.notes == [rows.NO_TABLE]


def test_what_is_seen_of_the_new_primarys_table_is_seen_under_a_lock_in_which_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = Copied([("f", "1", "b")], SHAPE)
    read_one(monkeypatch, Copied([("1", "a")], SHAPE), new)
    locked = next(at for at, one in enumerate(new.did) if "SHARE UPDATE" in one)
    assert "READ WRITE" in new.did[0] and "READ ONLY" in new.did[locked + 1] and "row_security" in new.did[locked + 2]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((0, 1, 9, "\\! id", None, False, "(0,1)"), "true or false"),
        (("\\! id", 1, 9, True, None, False, "(0,1)"), "invalid literal"),
        ((0, 1, 9, True, None, False, "\\! id"), "not enough values"), ((0, 1, 9, True, None, False, 1), "has text"),
        ((0, 1.5, 9, True, None, False, "(0,1)"), "a number"), ((0, 1 << 70, 9, True, None, False, "(0,1)"), "71 bits"),
        ((0, 1), "shorter"),
    ],
)  # fmt: skip
def test_an_answer_of_another_type_is_none(monkeypatch: pytest.MonkeyPatch, row: tuple[object, ...], says: str) -> None:
    """The old server's superuser may have replaced any function of its catalog."""
    copied = Copied([("1", "a")], SHAPE)
    asked = copied.execute
    answer = SimpleNamespace(fetchall=lambda: [row])
    monkeypatch.setattr(copied, "execute", lambda q, p=None: answer if "heap_page_items" in str(q) else asked(q, p))
    loss = read_one(monkeypatch, copied, None)
    assert loss.changes == [] and says in loss.notes[0]
