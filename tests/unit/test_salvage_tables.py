"""Which tables and databases are read, and what one that is not means for the others."""

import struct
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest

from tests.fixtures.wal_writer import INSERT, TABLE, UPDATE, ended, wrote
from tests.unit.test_salvage_rows import table
from walproof.errors import MachineError
from walproof.salvaging import recovered, rows, salvage
from walproof.salvaging.changes import ForeignKey, Table, TableLoss
from walproof.salvaging.plan import new_session
from walproof.salvaging.private_folder import PrivateFolder
from walproof.salvaging.quoting import Quoting
from walproof.salvaging.refusals import refused
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record

NODE = (1, 2, 3)
UNKNOWN = {"known_from": None}


@pytest.mark.parametrize(
    ("lost", "theirs", "is_new_file"),
    [
        ({"created": {NODE}}, NODE, True),  # both were made anew, with one number
        ({"of_whom": {NODE}}, (1, 2, 4), True),
        ({"of_whom": {NODE}}, NODE, False),
        ({"of_whom": {NODE}}, None, True),
        (UNKNOWN, (1, 2, 4), True),
        (UNKNOWN, (1, 2, 3), False),
        (UNKNOWN, (9, 2, 3), True),  # of another tablespace
        ({"blocks": {NODE: {1}}}, (1, 2, 4), False),  # the new primary rewrote it
        ({}, (1, 2, 4), None),
    ],
)
def test_a_table_whose_file_nothing_tells_to_have_been_there_at_the_fork_is_read_whole(
    monkeypatch: pytest.MonkeyPatch, lost: dict[str, Any], theirs: tuple[int, int, int] | None, is_new_file: bool | None
) -> None:
    there = [replace(table(), relation=theirs)] if theirs else []

    def tables(session: str, _: int, is_wanted: Any) -> list[Table]:
        found = there if session == "new" else [table()]
        return [one for one in found if is_wanted(one.oid, one.relation, False)]

    monkeypatch.setattr(salvage, "tables", tables)
    monkeypatch.setattr(salvage, "read_table", lambda _, __, one, *___: TableLoss(one, notes=["read"]))
    of = LostWal(0x200, **{"known_from": 1, "xids": {9}, **lost})
    read = salvage._read_tables(lambda: "old", "s", 5, of, lambda: "new")
    assert [loss.table.is_new_file for loss in read] == ([] if is_new_file is None else [is_new_file])


@pytest.mark.parametrize(
    ("lost", "theirs", "is_undecided"),
    [
        ({}, "", False),  # it was unlogged at the fork
        ({"created": {NODE}}, "", True),
        ({"created": {NODE}}, rows.UNLOGGED, False),
        ({"created": {NODE}}, None, False),
        (UNKNOWN, "", True),
        (UNKNOWN, rows.UNLOGGED, False),
    ],
)
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_table_that_became_unlogged_after_the_fork_lost_rows_that_nothing_tells(
    monkeypatch: pytest.MonkeyPatch, lost: dict[str, Any], theirs: str | None, is_undecided: bool, is_asked: bool
) -> None:
    there = [] if theirs is None else [replace(table(), why_not=theirs, relation=(1, 2, 4))]
    here = [replace(table(), why_not=rows.UNLOGGED)]
    monkeypatch.setattr(salvage, "tables", lambda session, *_: there if session == "new" else here)
    told = LostWal(0x200, **{"known_from": 1, "xids": {9}, **lost})
    (loss,) = salvage._read_tables(lambda: None, "s", 5, told, (lambda: "new") if is_asked else None)
    why = rows.UNLOGGED_SINCE if (is_undecided if is_asked else lost) else rows.UNLOGGED
    assert loss.notes == [f"not read: {why}"]
    assert (loss.undecided, loss.is_read) == (([], True) if why == rows.UNLOGGED else (loss.notes, False))


def test_another_server_that_answers_meanwhile_is_not_one_that_lets_nobody_in(tmp_path: Path) -> None:
    """The old primary was back at a host of --new: its rows were not compared, and exit 0 said that all was told."""
    copied: Any = SimpleNamespace(
        databases={5: b"a"}, started=nullcontext, connect=lambda _: MagicMock(), add_functions=lambda _: None
    )
    lost = LostWal(0x200, known_from=1, wrote=defaultdict(list, {frozenset({(1, 5, 20000)}): [9]}))
    sessions: Any = MagicMock(side_effect=refused("another-primary"))
    assert salvage._read_databases(sessions, PrivateFolder(tmp_path, -1), copied, lost, None)[0] == []
    assert lost.undecided[-1].startswith("database a cannot be read: another server answers as --new")


def test_the_sql_minds_what_names_the_table_on_the_new_primary_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {one: ForeignKey(one, "t", ()) for one in ("ours", "theirs")}
    ours, theirs = (replace(table(), references=(key,), warnings=(one,)) for one, key in keys.items())
    monkeypatch.setattr(salvage, "tables", lambda session, *_: [theirs if session == "new" else ours])
    monkeypatch.setattr(salvage, "read_table", lambda _, __, one, *___: TableLoss(one, notes=["read"]))
    (loss,) = salvage._read_tables(lambda: "old", "s", 5, LostWal(0x200), lambda: "new")
    assert (loss.table.references, loss.table.warnings) == ((keys["theirs"],), ("ours", "theirs"))
    (loss,) = salvage._read_tables(lambda: "old", "s", 5, LostWal(0x200), None)
    assert (loss.table.references, loss.table.warnings) == ((keys["ours"],), ("ours",))


def test_places_of_unique_columns_are_taken_from_the_same_columns_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = replace(table(), attnums=(1, 3))
    theirs = [replace(ours, columns=columns, attnums=attnums, uniques=((1,),)) for columns, attnums
              in ((("id", "v"), (1, 3)), (("id", "x", "v"), (1, 2, 3)), (("id", "v"), (1, 4)))]  # fmt: skip
    monkeypatch.setattr(salvage, "read_table", lambda _, __, one, *___: TableLoss(one, notes=["read"]))
    found = list[object]()
    for there in theirs:
        monkeypatch.setattr(salvage, "tables", lambda session, *_, one=there: [one if session == "new" else ours])
        (loss,) = salvage._read_tables(lambda: "old", "s", 5, LostWal(0x200), lambda: "new")
        found.append((loss.table.uniques, loss.table.renumbered))
    assert found == [(((1,),), frozenset()), ((), frozenset()), ((), {"v"})]


@pytest.mark.parametrize(
    "wrong", [psycopg.OperationalError("gone"), psycopg.errors.DataCorrupted("a page"), MachineError("it ended", "")]
)
def test_a_database_that_cannot_be_read_is_undecided_and_the_others_are_read(tmp_path: Path, wrong: Exception) -> None:
    def connect(name: str) -> Any:
        asked.append(name)
        raise wrong

    def add_functions(name: str) -> None:
        if name == "damaged":  # its catalogs
            raise MachineError("an error", "")

    out = PrivateFolder(tmp_path, -1)
    sessions = partial(new_session, "")
    wrote = defaultdict(list, {frozenset((1, n, 2) for n in range(4, 9)): [9]})
    asked, lost = list[str](), LostWal(0x200, known_from=1, wrote=wrote)
    names = {4: b"damaged", 5: b"a", 6: b"b", 8: b"caf\xe9"}
    copied: Any = SimpleNamespace(databases=names, add_functions=add_functions, started=nullcontext, connect=connect)
    done, notes = salvage._read_databases(sessions, out, copied, lost, None)
    assert (asked, done) == (["a", "b"], [])
    assert [one.split(" cannot be read: ") for one in lost.undecided] == [
        ["database damaged", "an error"],
        ["database caf\\xe9", "'utf-8' codec can't decode byte 0xe9 in position 3: unexpected end of data"],
        ["database a", str(wrong)], ["database b", str(wrong)],
    ]  # fmt: skip
    assert notes == ["database 7 was dropped: not read"]
    lost.xids.add((1 << 32) - 1)  # older than what was read
    assert salvage._read_databases(sessions, out, copied, lost, None)[1] == [salvage.BEGAN_BEFORE, *notes]


def test_where_a_row_was_written_last_is_known_of_each_block_that_the_table_still_has() -> None:
    """A page that is older was not written to the disk: what its rows became was taken for deleted."""
    cut = Record(0x250, 0x258, 0, Manager.STORAGE, 0x20, (), struct.pack("=IIIII", 8, *TABLE, 7))
    only_maps = Record(0x260, 0x268, 0, Manager.STORAGE, 0x20, (), struct.pack("=IIIII", 0, *TABLE, 6))
    lock, frozen = wrote(10, 0x60, 7, lsn=0x240), Record(0x248, 0x250, 10, Manager.HEAP2, 0x40, ((TABLE, 7),), b"")
    lost = LostWal(0x200)
    for one in (wrote(10, INSERT, 7, lsn=0x110), wrote(11, UPDATE, 9, 7, lsn=0x230), lock, frozen, cut, only_maps):
        lost.add(one)
    lost.add(Record(0x270, 0x278, 10, Manager.XLOG, 0xB0, ((TABLE, 1), (TABLE, 2)), b""))
    assert lost.last(TABLE) == {7: 0x230, 1: 0x270, 2: 0x270}


def test_a_file_that_lost_work_wrote_to_and_that_is_no_tables_is_told() -> None:
    """A page of pg_class is lost, and with it tables: what is not there is not taken for never lost."""
    lost = LostWal(0x200)
    for node in (16390, 16391, 16392, 16393):
        lost.add(wrote(7, INSERT, 0, of=(1663, 5, node)))
    lost.add(wrote(7, INSERT, 0, of=(1663, 6, 16394)))
    dropped = ended(7)
    lost.add(
        dropped._replace(kind=0x80, data=dropped.data + struct.pack("=II IIIIII", 4, 2, 1663, 5, 16392, 1663, 5, 9))
    )
    assert lost.dropped == {(1663, 5, 16392), (1663, 5, 9)}
    session: Any = SimpleNamespace(execute=lambda _: [(16390,), (None,)])
    (said,) = salvage._of_no_table(session, 5, "app", lost)
    assert said == "lost transactions wrote to 2 files of app that its catalog has of no table: 16391, 16393"
    session = SimpleNamespace(execute=lambda _: [(16394,)])
    assert salvage._of_no_table(session, 6, "app", lost) == []


def test_no_sql_is_said_of_a_table_whose_rows_may_name_one_that_the_catalog_lost() -> None:
    """Its lost payments were put under the new primary's orders, for nothing told of the lost ones."""
    loss, quote = TableLoss(table(), no_sql=salvage.HIDDEN), Quoting()
    assert not recovered._is_said(quote, loss) and loss.notes == [salvage.HIDDEN]
    assert recovered._is_said(quote, TableLoss(table()))
