"""Which tables and databases are read, and what one that is not means for the others."""

import struct
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest

from tests.fixtures.losses import table
from tests.fixtures.tiers import every
from tests.fixtures.wal_writer import INSERT, TABLE, UPDATE, ended, wrote
from walproof.errors import MachineError
from walproof.salvaging import rows, salvage
from walproof.salvaging.changes import ForeignKey, Table, TableLoss
from walproof.salvaging.private_folder import PrivateFolder
from walproof.salvaging.refusals import refused
from walproof.salvaging.wal import LostWal
from walproof.salvaging.wal_records import Manager, Record

NODE = (1, 2, 3)
UNKNOWN = {"known_from": None}
Reads = Callable[..., list[TableLoss]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Reads the one table of the copy, by what the WAL tells, beside this one of the new primary."""

    def one(*of: Any) -> TableLoss:
        return rows.read_table(*of) if of[2].why_not else TableLoss(of[2], notes=["read"])

    def read(ours: Table, theirs: Table | None, lost: dict[str, Any], *, is_asked: bool = True) -> list[TableLoss]:
        def found(session: str, _: int, is_wanted: Any) -> list[Table]:
            there = [theirs] if theirs else []
            some = there if session == "new" else [ours]
            return [one for one in some if is_wanted(one.oid, one.relation, bool(one.why_not))]

        monkeypatch.setattr(salvage, "tables", found)
        monkeypatch.setattr(salvage, "read_table", one)
        of, sessions = LostWal(0x200, **{"known_from": 1, "xids": {9}, **lost}), (lambda: "old", lambda: "new")
        return salvage._read_tables(sessions[0], "s", 5, of, sessions[1] if is_asked else None)

    return read


def test_a_table_whose_file_nothing_tells_to_have_been_there_at_the_fork_is_read_whole(reads: Reads) -> None:
    def is_read(lost: dict[str, Any], theirs: tuple[int, int, int] | None, is_new_file: bool | None) -> None:
        there = replace(table(), relation=theirs) if theirs else None
        found = [loss.table.is_new_file for loss in reads(table(), there, lost)]
        assert found == ([] if is_new_file is None else [is_new_file])

    every(
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
        is_read,
    )


def test_a_table_that_became_unlogged_after_the_fork_lost_rows_that_nothing_tells(reads: Reads) -> None:
    def is_told(lost: dict[str, Any], theirs: str | None, is_since: bool, is_asked: bool) -> None:
        there = None if theirs is None else replace(table(), why_not=theirs, relation=(1, 2, 4))
        (loss,) = reads(replace(table(), why_not=rows.UNLOGGED), there, lost, is_asked=is_asked)
        assert loss.notes == [f"not read: {rows.UNLOGGED_SINCE if is_since else rows.UNLOGGED}"]
        assert (loss.undecided, loss.is_read) == ((loss.notes, False) if is_since else ([], True))

    every(
        [
            ({}, "", False, True),  # it was unlogged at the fork
            ({"created": {NODE}}, "", True, True),
            ({"created": {NODE}}, rows.UNLOGGED, False, True),
            ({"created": {NODE}}, None, False, True),
            (UNKNOWN, "", True, True),
            (UNKNOWN, rows.UNLOGGED, False, True),
            ({}, None, False, False),  # the new primary could not be asked
            ({"created": {NODE}}, None, True, False),
            (UNKNOWN, None, True, False),
        ],
        is_told,
    )


def test_the_sql_minds_what_names_the_table_on_the_new_primary_by_now(reads: Reads) -> None:
    keys = {one: ForeignKey(one, "t", ()) for one in ("ours", "theirs")}
    ours, theirs = (replace(table(), references=(key,), warnings=(one,)) for one, key in keys.items())
    (loss,) = reads(ours, theirs, UNKNOWN)
    assert (loss.table.references, loss.table.warnings) == ((keys["theirs"],), ("ours", "theirs"))
    (loss,) = reads(ours, theirs, UNKNOWN, is_asked=False)
    assert (loss.table.references, loss.table.warnings) == ((keys["ours"],), ("ours",))


def test_places_of_unique_columns_are_taken_from_the_same_columns_alone(reads: Reads) -> None:
    def takes(columns: str, attnums: tuple[int, ...], uniques: tuple[tuple[int, ...], ...], again: set[str]) -> None:
        ours = replace(table(), attnums=(1, 3))
        (loss,) = reads(ours, replace(ours, columns=tuple(columns.split()), attnums=attnums, uniques=((1,),)), UNKNOWN)
        assert loss.table.uniques == uniques and {*loss.table.renumbered} == again

    every([("id v", (1, 3), ((1,),), set()), ("id x v", (1, 2, 3), (), set()), ("id v", (1, 4), (), {"v"})], takes)


def test_a_database_that_cannot_be_read_is_undecided_and_the_others_are_read(tmp_path: Path) -> None:
    """The old primary that was back at a host of --new is no database that lets nobody in either: its rows were not
    compared, and exit 0 said that all was told."""
    wrong = {"a": MachineError("it ended", ""), "b": psycopg.errors.DataCorrupted("a page"), "back": None}

    def connect(name: str) -> Any:
        asked.append(name)
        if error := wrong[name]:
            raise error
        return MagicMock()

    def add_functions(name: str) -> None:
        if name == "damaged":  # its catalogs
            raise MachineError("an error", "")

    asked, names = list[str](), {4: b"damaged", 5: b"a", 6: b"b", 8: b"caf\xe9", 9: b"back"}
    wrote = defaultdict(list, {frozenset((1, n, 2) for n in range(4, 10)): [9]})
    copied: Any = SimpleNamespace(databases=names, add_functions=add_functions, started=nullcontext, connect=connect)
    lost, out = LostWal(0x200, known_from=1, wrote=wrote), PrivateFolder(tmp_path, -1)
    refuses: Any = MagicMock(side_effect=refused("another-primary"))
    done, notes = salvage._read_databases(refuses, out, copied, lost, None)
    assert (asked, done, notes) == (["a", "b", "back"], [], ["database 7 was dropped: not read"])
    assert [tuple(one.split(" cannot be read: ")) for one in lost.undecided[:4]] == [
        ("database damaged", "an error"),
        ("database caf\\xe9", "'utf-8' codec can't decode byte 0xe9 in position 3: unexpected end of data"),
        ("database a", "it ended"), ("database b", "a page"),
    ]  # fmt: skip
    assert lost.undecided[4].startswith("database back cannot be read: another server answers as --new")
    lost.xids.add((1 << 32) - 1)  # older than what was read
    assert salvage._read_databases(refuses, out, copied, lost, None)[1] == [salvage.BEGAN_BEFORE, *notes]


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
    files = struct.pack("=II IIIIII", 4, 2, 1663, 5, 16392, 1663, 5, 9)
    lost.add(dropped._replace(kind=0x80, data=dropped.data + files))
    assert lost.dropped == {(1663, 5, 16392), (1663, 5, 9)}
    session: Any = SimpleNamespace(execute=lambda _: [(16390,), (None,)])
    (said,) = salvage._of_no_table(session, 5, "app", lost)
    assert said == "lost transactions wrote to 2 files of app that its catalog has of no table: 16391, 16393"
    session = SimpleNamespace(execute=lambda _: [(16394,)])
    assert salvage._of_no_table(session, 6, "app", lost) == []
