"""What comparing lost rows costs the new primary: no work that is lost rows times its rows, and an end."""

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.unit.test_salvage_rows import table
from walproof.salvaging import rows
from walproof.salvaging.changes import Change, Row, Table, TableLoss

NEW: Any = SimpleNamespace(transaction=nullcontext, execute=lambda _: None)
LOST = [Change("update", (str(at), "new"), (str(at), "old")) for at in range(1001)]


@pytest.mark.parametrize(
    ("more", "asks"),
    [
        ({"is_key_builtin": True, "uniques": ((1,), (1, 0))}, ['("id", "v") IN ((\'0\', \'new\'), (\'1\'', 3]),
        ({"is_key_builtin": True, "uniques": ((1,),)}, ['"id" IN (\'0\', \'1\'', 1]),
        ({"is_key_builtin": False}, ['format(\'%s\', "id") COLLATE "C" IN (\'0\', \'1\'', 1]),
    ],
)  # fmt: skip
def test_where_no_index_finds_the_key_each_row_is_looked_at_once_by_hashes(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], asks: list[Any]
) -> None:
    asked = list[str]()

    def selected(_: object, __: Table, ___: str, condition: sql.Composable) -> Iterator[Row]:
        asked.append(condition.as_string(None))
        # Of a key that none of the lost has, though each of its columns is in some of them.
        yield from [("f", "7", "old"), ("f", "8", "new"), ("t", "9", "new")]

    monkeypatch.setattr(rows, "_selected", selected)
    found = list(rows.compared(NEW, table(key=(0, 1), **more), [*LOST, Change("insert", ("7", "at 7"), None)], "false"))
    assert [found[8].state, found[9].state, found[7].state] == ["there", "there", "conflict"]
    assert found[-1].now is None
    assert (asked[0].startswith(asks[0]), len(asked)) == (True, asks[1])
    if len(asked) == 1:
        assert asked[0].count(" IN ") == 2 and " OR " not in asked[0]


def test_a_table_of_which_comparing_takes_long_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def selected(*_: object) -> Iterator[Row]:
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr(rows, "_selected", selected)
    loss = TableLoss(table(key=(0,), is_key_builtin=True, uniques=((0,),)), [*LOST])
    rows._compare(NEW, loss, "false")
    assert loss.changes == LOST and loss.notes == [f"not compared: a query of it took longer than {rows.LONGEST_S} s"]


def test_what_each_statement_of_the_sql_costs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_selected", lambda *_: iter([]))
    for more, notes in (({"uniques": ((0,),)}, []), ({"uniques": ()}, [f"{rows.SCANNED}: 1,001"])):
        loss = TableLoss(table(key=(0,), is_key_builtin=True, **more), [*LOST])
        rows._compare(NEW, loss, "false")
        assert loss.notes == notes
