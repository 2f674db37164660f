"""One table, or one name, that cannot be read or written keeps no other from being read and written."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.unit.test_salvage_recovered import delete, insert, loss, session, write
from walproof.salvaging import catalog, salvage
from walproof.salvaging.answers import number
from walproof.salvaging.changes import TableLoss
from walproof.salvaging.wal import LostWal


class Heavy(str):
    """A value that is too large to be quoted."""

    def replace(self, *_: Any) -> str:
        raise MemoryError


@pytest.mark.parametrize("value", [Heavy("x" * 9), "zero\0"])
def test_a_table_that_cannot_be_written_leaves_no_file_and_keeps_none_from_being_written(
    tmp_path: Path, value: str
) -> None:
    """A role's few large rows kept all tables of the database out of the files, of which one was cut off."""
    wrong = loss(2, changes=[delete("1", "a"), insert("2", "b"), insert("3", value)])
    losses = [loss(1, changes=[insert("2", "a")]), wrong, loss(3, changes=[delete("1", "a")])]
    done = write(tmp_path / "rows", session(), losses, [])
    assert [one.path.name.partition("_")[2] for one in done] == ["public.t3.sql", "public.t1.sql"]
    assert {path.name.partition("_")[2] for path in (tmp_path / "rows").iterdir()} == {
        f"public.{table}.{kind}" for table in ("t1", "t3") for kind in ("csv", "sql")
    }
    assert [one.split(": ")[0] for one in wrong.undecided] == ["its 3 lost rows cannot be written"]
    assert (wrong.changes, wrong.is_read, wrong.notes) == ([], False, wrong.undecided)
    assert [one.undecided for one in (losses[0], losses[2])] == [[], []]
    # A row that moved from one partition to another is not deleted from the first alone.
    leaves = [loss(oid, 9, [change]) for oid, change in ((4, delete("1", "a")), (5, insert("1", value)))]
    assert write(tmp_path / "moved", session(), leaves, []) == []
    assert [one.undecided[0].split(": ")[0] for one in leaves] == ["its 1 lost rows cannot be written"] * 2
    wrong.changes = [insert("3", value)]
    assert write(tmp_path / "none", session(), [wrong], []) == [] and not (tmp_path / "none").exists()


class Catalog:
    """A session whose server, or whose driver, says nothing of an answer that holds one of these oids."""

    def __init__(self, bad: dict[int, Exception], *, ends: bool = False) -> None:
        self.bad, self.ends, self.closed, self.asked = bad, ends, False, 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    def execute(self, _: str, words: dict[str, str]) -> list[tuple[int]]:
        self.asked += 1
        oids = [int(one) for one in words["oids"].strip("{}").split(",")]
        for oid in oids:
            if oid in self.bad:
                self.closed = self.ends
                raise self.bad[oid]
        return [(oid,) for oid in oids]


def test_an_answer_that_holds_what_is_no_text_is_divided_down_to_that() -> None:
    bad = {7: psycopg.errors.CharacterNotInRepertoire("0xe9"), 900: UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "x")}
    asked: Any = Catalog(bad)
    rows, unread = catalog._each(asked, "names", range(1000), number)
    assert [oid for (oid,) in rows] == [oid for oid in range(1000) if oid not in bad]
    assert sorted(unread) == [7, 900] and unread[7] == "0xe9"
    assert asked.asked < 50
    ended: Any = Catalog({7: psycopg.OperationalError("gone")}, ends=True)
    with pytest.raises(psycopg.OperationalError, match="gone"):
        catalog._each(ended, "names", range(1000), number)


def test_a_session_that_a_table_has_ended_is_opened_again_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq ends a session for an answer that it has no memory for: no table after that one was read."""
    opened = list[Any]()

    @contextmanager
    def opens() -> Iterator[Any]:
        opened.append(SimpleNamespace(info=SimpleNamespace(transaction_status=0), close=lambda: None))
        yield opened[-1]

    def read(copied: Any, _: str, one: Any, *__: Any) -> TableLoss:
        if one.oid == 2:
            copied.info.transaction_status = 4
            raise MemoryError
        return TableLoss(one, [insert("1", "a")])

    monkeypatch.setattr(salvage, "tables", lambda *_: [loss(oid).table for oid in (1, 2, 3)])
    monkeypatch.setattr(salvage, "read_table", read)
    with ExitStack() as stack:
        copied = salvage._Kept(opens, stack)
        read_of = salvage._read_tables(copied, "s", 5, LostWal(0x200), None)
    assert [(one.table.oid, one.is_read, len(one.changes)) for one in read_of] == [
        (1, True, 1),
        (2, False, 0),
        (3, True, 1),
    ]
    assert read_of[1].undecided == ["it cannot be read: it is too large for memory"] and len(opened) == 2
