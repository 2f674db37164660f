"""The files of lost rows: in which order, under which names, what their SQL does and does not do, and its trial."""

import csv
import io
import os
import socket
import subprocess
import textwrap
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import PGconn

from tests.fixtures.command_line import Run, one_sentence, walproof
from walproof.salvaging import trial
from walproof.salvaging.catalog import RanOn
from walproof.salvaging.changes import Change, ForeignKey, Table, TableLoss
from walproof.salvaging.private_folder import PrivateFolder
from walproof.salvaging.recovered import HALF_MADE, PSQL_ALONE, SqlFile, file_name, in_order
from walproof.salvaging.recovered import write as write_below
from walproof.salvaging.row_trails import AtFork

__all__ = ["walproof"]
KEY = ForeignKey("public", "t1", (("id", "pg_catalog", "=", "p"),))
FREE = (
    'NOT EXISTS (SELECT FROM "public"."t1" naming WHERE lost."id" OPERATOR("pg_catalog".=) naming."p" AND NOT'
    " (naming.tableoid OPERATOR(pg_catalog.=) lost.tableoid AND naming.ctid OPERATOR(pg_catalog.=) lost.ctid))"
)


def write(folder: Path, session: Any, losses: list[TableLoss], moving: Iterable[RanOn]) -> list[SqlFile]:
    """What is written into a new folder, opened by its parent."""
    opened = os.open(folder.parent, os.O_RDONLY)
    try:
        return write_below(PrivateFolder(folder.parent, opened), folder.name, session, losses, [*moving], "(SINCE)")
    finally:
        os.close(opened)


def loss(oid: int, root: int | None = None, changes: Iterable[Change] = (), **more: Any) -> TableLoss:
    words: dict[str, Any] = {"columns": ("id", "v"), "key": (0,), "is_key_builtin": True, **more}
    return TableLoss(Table((1, 2, oid), None, "", oid, "public", f"t{oid}", root=root or oid, **words), [*changes])


def session(references: Iterable[tuple[int, int]] = ()) -> Any:
    """One that knows foreign keys and libpq's quoting, and never had a server."""
    return SimpleNamespace(execute=lambda _: references, pgconn=PGconn.connect_start(b"host=/nonexistent"))


def insert(id: str, v: str | None, state: str = "clean") -> Change:
    return Change("insert", (id, v), None, state=state)


def delete(id: str, v: str | None) -> Change:
    return Change("delete", None, (id, v), state="clean")


def written(folder: Path, losses: list[TableLoss], references: Iterable[tuple[int, int]] = ()) -> list[tuple[str, str]]:
    """The SQL files: each one's table and what stands below its settings."""
    paths = [one.path for one in write(folder / "rows", session(references), losses, [])]
    assert paths == sorted((folder / "rows").glob("*.sql"))
    texts = (path.read_text().partition("ALL DEFERRED;")[2] for path in paths)
    return [(path.name.split(".")[1], " ".join(text.split())) for path, text in zip(paths, texts, strict=True)]


@pytest.mark.parametrize(
    ("references", "first", "then"),
    [
        ([(1, 2), (2, 3)], 3, 1),
        ([(1, 1), (1, 3)], 3, 1),
        ([(1, 9), (9, 3)], 3, 1),  # by way of a table that lost nothing
        ([(1, 7)], 4, 1),  # 4 is a partition of 7
        ([(7, 3)], 3, 4),
    ],
)
def test_tables_that_others_name_come_first(references: list[tuple[int, int]], first: int, then: int) -> None:
    done = [one.table.oid for one in in_order([loss(1), loss(2), loss(3), loss(4, 7)], references)]
    assert sorted(done) == [1, 2, 3, 4]
    assert done.index(first) < done.index(then)


@pytest.mark.parametrize(
    "references", [[(1, 2), (2, 1)], [(1, 2), (2, 3), (3, 1)], [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1)]]
)
def test_tables_that_name_each_other_come_in_some_order(references: list[tuple[int, int]]) -> None:
    assert sorted(one.table.oid for one in in_order([loss(1), loss(2), loss(3)], references)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("public.t", "000007_public.t"), ("../../etc/passwd", "000007_.._.._etc_passwd"), ("-rf *", "000007_-rf_"),
        ("a\n\x00b'\"$(x)", "000007_a_b_x_"), ("é" * 90, "000007__"), ("x" * 90, "000007_" + "x" * 80),
    ],
)  # fmt: skip
def test_a_files_name_is_one_word_in_a_shell(name: str, file: str) -> None:
    assert file_name(7, name) == file


ON, BACK = RanOn("s", 'a"b', 7, 5, 1), RanOn("s", "down", 7, -5, -1)


def test_without_rows_there_are_no_files_but_that_of_sequences(tmp_path: Path) -> None:
    assert write(tmp_path / "none", session(), [loss(1)], []) == []
    assert not (tmp_path / "none").exists()
    assert write(tmp_path / "moved", session(), [loss(1)], [ON]) == []
    assert [one.name for one in (tmp_path / "moved").iterdir()] == ["000001_sequences.sql"]


def test_ten_thousand_files_are_in_their_order() -> None:
    names = [file_name(number, "t") for number in (1, 999, 9_999, 10_000, 123_456)]
    assert sorted(names) == names


DELETE_1 = """DELETE FROM ONLY "public"."t1" AS lost WHERE lost."id" OPERATOR(pg_catalog.=) '1' AND """
HELD = "pg_catalog.format('%s', lost.\"id\") COLLATE pg_catalog.\"C\" OPERATOR(pg_catalog.=) '1' AND "
HELD += "pg_catalog.format('%s', lost.\"v\") COLLATE pg_catalog.\"C\" OPERATOR(pg_catalog.=) 'a' AND NOT (SINCE)"
INSERT_2 = """INSERT INTO "public"."t1" ("id", "v") OVERRIDING SYSTEM VALUE VALUES ('2', 'a')"""


@pytest.mark.parametrize(
    ("changes", "table", "says"),
    [
        # A unique value goes from a row to another: the row that has it goes first, or neither would be left.
        ([insert("2", "a"), delete("1", "a")], {}, [DELETE_1 + HELD + ";", f"{INSERT_2} ON CONFLICT DO NOTHING;"]),
        # ON DELETE CASCADE would take what the new primary wrote since: not while a row names it.
        ([delete("1", "a")], {"references": (KEY,)}, [f"{DELETE_1}{HELD} AND {FREE};"] * 2),
        (
            [insert("2", "a"), delete("1", "a")],
            {"references": (KEY,)},
            [f"{DELETE_1}{HELD} AND {FREE};", f"{INSERT_2} ON CONFLICT DO NOTHING;"] * 2,
        ),
        # ON CONFLICT is an error where a constraint is deferrable.
        ([insert("2", "a"), insert("3", "a", "conflict")], {"is_deferrable": True}, [INSERT_2 + " ;"]),
        # Without a key an updated version would become a second row.
        ([Change("update", ("2", "a"), None), insert("2", "a")], {"key": ()}, [INSERT_2 + " ON CONFLICT DO NOTHING;"]),
        ([insert("2", "a", "unsure")], {}, [f"{INSERT_2} -- unsure ON CONFLICT DO NOTHING;"]),
        ([insert("2", "a", "conflict")], {}, [f"{INSERT_2} -- conflict ON CONFLICT DO NOTHING;"]),
        ([insert("2", "a", "there")], {}, []),
        (
            [replace(insert("2", "a", state), is_part=True) for state in ("clean", "unsure")],
            {},
            [f"{INSERT_2}, -- in part ('2', 'a') -- unsure, in part ON CONFLICT DO NOTHING;"],
        ),
        ([replace(insert("2", "a", "conflict"), is_left=True)], {}, []),
        (
            [Change("update", ("1", None), ("1", "a"), state="clean")],
            {},
            [f"UPDATE ONLY \"public\".\"t1\" AS lost SET \"v\" = NULL WHERE {DELETE_1.partition('WHERE ')[2]}{HELD};"],
        ),
        ([delete("1", "a")], {"is_key_builtin": False}, [f'DELETE FROM ONLY "public"."t1" AS lost WHERE {HELD};']),
    ],
)  # fmt: skip
def test_the_sql_harms_nothing_that_was_not_lost(
    tmp_path: Path, changes: list[Change], table: dict[str, Any], says: list[str]
) -> None:
    assert [text for _, text in written(tmp_path, [loss(1, changes=changes, **table)])] == says


def test_where_one_half_of_a_row_with_another_key_is_left_out_the_file_ends_with_an_error(tmp_path: Path) -> None:
    row = AtFork((1, 2, 7), (0, 1))
    some = [replace(insert("2", "a", "unsure"), came=row), replace(delete("1", "a"), went=row), delete("3", "a")]
    texts = [text for _, text in written(tmp_path, [loss(1, changes=some, references=(KEY,))])]
    assert [text.count(HALF_MADE) for text in texts] == [1, 0, 0, 2]
    parts = [texts[0].split("FOR UPDATE")[0], *texts[-1].split("SELECT (CASE WHEN")[1:]]
    assert [[one for one in "123" if f"=) '{one}' AND" in part] for part in parts] == [["1"], ["2"], ["1"]]


def test_rows_that_name_others_of_their_table_are_deleted_before_them(tmp_path: Path) -> None:
    ((_, text),) = written(tmp_path, [loss(1, changes=[delete("1", "a"), delete("2", "1")])])
    assert text.index("=) '2'") < text.index("=) '1'")


def test_deletes_come_before_and_after_the_rest_against_the_foreign_keys(tmp_path: Path) -> None:
    both = [insert("2", "a"), delete("1", "a")]
    losses = [loss(1, changes=both), loss(2, changes=both, references=(KEY,)), loss(3, changes=both)]
    done = [(table, text.split()[0]) for table, text in written(tmp_path, losses, [(1, 2), (2, 3)])]
    assert done == [
        ("t1", "DELETE"), ("t2", "DELETE"), ("t3", "DELETE"), ("t3", "INSERT"), ("t2", "INSERT"), ("t1", "INSERT"),
        ("t2", "DELETE"), ("t2", "INSERT"),
    ]  # fmt: skip


def test_sequences_are_moved_last_in_a_file_that_no_trial_runs(tmp_path: Path) -> None:
    done = write(tmp_path / "rows", session(), [loss(1, changes=[insert("2", "a")])], [ON, BACK])
    assert [one.path.name for one in done] == ["000001_public.t1.sql"]
    held, _, moved = (tmp_path / "rows/000002_sequences.sql").read_text().partition("SET CONSTRAINTS ALL DEFERRED;\n")
    assert held.endswith("::pg_catalog.bool;\n") and held.count("pg_sequence_last_value(") == 2
    assert moved == (
        """SELECT pg_catalog.setval('"s"."a""b"', 5) FROM "s"."a""b" WHERE last_value OPERATOR(pg_catalog.<=) 5;\n"""
        """SELECT pg_catalog.setval('"s"."down"', -5) FROM "s"."down" WHERE last_value OPERATOR(pg_catalog.>=) -5;\n"""
    )


@pytest.mark.parametrize("value", ["a\nb", 'say "x"', "a,b", "a\r\nb", "\\N", "NULL", "", None, " "])
def test_a_csv_reads_back_as_it_was(tmp_path: Path, value: str | None) -> None:
    write(tmp_path / "rows", session(), [loss(1, changes=[replace(insert("2", value), by=(7, 8), is_part=True)])], [])
    with (tmp_path / "rows/000001_public.t1.csv").open(encoding="utf-8", newline="") as file:
        text = file.read()
        (row,) = csv.DictReader(io.StringIO(text, newline=""))
    names = ("change", "state", "version", "transactions")
    assert [row[f"walproof_{name}"] for name in names] == ["insert", "clean", "lost", "7 8 in part"]
    assert row["id"] == "2"
    assert row["v"] == (value or "")
    assert text.endswith(',"2",\n' if value is None else '"\n')


@pytest.mark.parametrize("columns", [("state", "v"), ("change", "version"), ("version", "state"), ("id", "change")])
def test_columns_of_a_table_are_told_from_ours(tmp_path: Path, columns: tuple[str, str]) -> None:
    write(tmp_path / "rows", session(), [loss(1, changes=[insert("7", "x")], columns=columns)], [])
    with (tmp_path / "rows/000001_public.t1.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert [row[name] for name in columns] == ["7", "x"]
    assert (row["walproof_version"], len(row)) == ("lost", 6)


# The trial on the new primary


class Server:
    """A session of a new primary: what runs beside the SQL, which statements fail, what it holds afterwards."""

    def __init__(
        self,
        *,
        outside: tuple[tuple[str, str, str], ...] = (),
        code: str = "",
        fails: str = "",
        late: str = "",
        swapped: bool = False,
    ) -> None:
        self.outside, self.code, self.fails, self.late, self.did = outside, code, fails, late, list[str]()
        self.sleeps, self.swapped, self.is_held = threading.Event(), swapped, False
        self.wires, self.info = socket.socketpair(), SimpleNamespace(backend_pid=1)

    def execute(self, query: Any, parameters: object = None) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        self.did.append(text)
        if "row_security_active" in text:
            return SimpleNamespace(fetchone=lambda: (1, 7, ["id", "v"], False))
        if "extname" in text:
            assert self.is_held
            oid = 9 if self.swapped else 1
            shape = ["id", "v"], [0], oid, True, False, False, *[[]] * 5
            return [(1, 1, None, None, False, True, oid, "public", "t1", *shape)]
        if "CASE c.reltablespace" in text:
            return [(9 if self.swapped else 1, 1, None, False, 1)]
        if "SHARE UPDATE" in text:
            self.is_held = True
        if "pg_rewrite" in text:
            assert self.is_held, "what was looked at before the lock may have changed since"
            outside = [(at, "public", table, kind, True, own) for at, (table, kind, own) in enumerate(self.outside, 1)]
            return [(1, "public", "t1", "r", True, None), *outside]
        if "reached(class" in text:
            assert isinstance(parameters, dict)
            assert parameters["writes"] and self.is_held
            code = [(self.code,)] if self.code and parameters["table"] == 1 else []
            return SimpleNamespace(fetchone=lambda: next(iter(code), None))
        if self.late and self.late in text:
            assert self.sleeps.wait(60)
            raise psycopg.errors.QueryCanceled("canceling statement due to user request")
        if self.fails and self.fails in text:
            raise psycopg.errors.ForeignKeyViolation("it violates a foreign key")
        return []

    def fileno(self) -> int:
        return self.wires[0].fileno()

    def cancel_safe(self, timeout: float = 0.0) -> None:
        self.sleeps.set()

    @contextmanager
    def transaction(self, *, force_rollback: bool = False) -> Iterator[None]:
        self.did.append("BEGIN")
        try:
            yield
        finally:
            self.did.append("ROLLBACK" if force_rollback else "RELEASE")


def tries(
    monkeypatch: pytest.MonkeyPatch, folder: Path, server: Server, there: str, allowed: Iterable[str] = ("load",)
) -> list[str]:
    """What the trial of an INSERT says, on a server where the row would then be in that state."""
    asked: list[dict[str, Any]] = []

    @contextmanager
    def opened(_: str, **words: Any) -> Iterator[Server]:
        asked.append(words)
        yield server

    monkeypatch.setattr(trial, "new_session", opened)
    monkeypatch.setattr(trial, "compared", lambda _, __, lost, ___: [replace(one, state=there) for one in lost])
    lost = loss(1, changes=[insert("2", "a"), insert("3", "a", "conflict")])
    says = trial.tried(
        "", frozenset(allowed), "app", [lost], write(folder / "rows", session(), [lost], []), planned=None
    )
    usual = {"planned": None, "dbname": "app"}
    assert asked == [usual, {"reads_only": False, **usual}]
    return says


NOTHING_RUN = ("lock_timeout", "SHARE UPDATE")


@pytest.mark.parametrize(
    ("server", "there", "says"),
    [
        (Server(), "there", []),
        (Server(), "conflict", ["public.t1: 1 of 1 rows would not be as they were lost"]),  # a trigger changed it
        (
            Server(fails="INSERT"),
            "there",
            ["000001_public.t1.sql: it violates a foreign key"],
        ),
        (Server(fails="ALL IMMEDIATE"), "there", ["deferred constraints: it violates"]),
        (Server(fails="lock_timeout"), "there", ["not tried to the end, and rolled back"]),
        (Server(fails="SHARE UPDATE"), "there", ["public.t1: it violates"]),
        (Server(swapped=True), "there", ["public.t1: it has other columns, or it or what names it was replaced"]),
    ],
)
def test_a_trial_says_what_stands_in_the_way_and_is_always_rolled_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server, there: str, says: list[str]
) -> None:
    done = tries(monkeypatch, tmp_path, server, there)
    assert len(done) == len(says)
    assert all(said.startswith(word) for said, word in zip(done, says, strict=True))
    begin, limits = server.did.index("BEGIN"), next(at for at, one in enumerate(server.did) if "lock_timeout" in one)
    assert (limits, server.did[-1]) == (begin + 1, "ROLLBACK")
    assert not any("setval" in one or "COMMIT" in one or PSQL_ALONE in one for one in server.did)
    assert any("INSERT" in one for one in server.did) == (not server.swapped and server.fails not in NOTHING_RUN)


def test_a_trial_that_takes_long_is_cancelled_and_rolled_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "LONGEST_S", 0.01)
    server = Server(late="INSERT")
    done = tries(monkeypatch, tmp_path, server, "there")
    assert done[-1] == "it took longer than 0 s: rolled back before its end"
    assert (server.did[-1], any("ALL IMMEDIATE" in one for one in server.did)) == ("ROLLBACK", False)


@pytest.mark.parametrize(
    "server",
    [
        Server(outside=(("t1", "r", "audit"),)), Server(outside=(("t1", "r", "audit"), ("t9", "r", "\x1b[2Jx"))),
        Server(outside=(("t1", "r", "a_rule"),)), Server(code="public.t1: a"),
    ],
)  # fmt: skip
def test_what_would_run_a_function_of_users_is_not_tried_without_its_own_consent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    (said,) = tries(monkeypatch, tmp_path, server, "there")
    assert said.startswith("not tried: it would run ")
    assert "t1: a" in said
    assert "\x1b" not in said
    assert not any("INSERT" in one for one in server.did)
    (tmp_path / "again").mkdir()
    assert tries(monkeypatch, tmp_path / "again", server, "there", ("load", "existing-tables")) == []


@pytest.mark.parametrize("allow", [(), ("--allow", "existing-tables"), ("--allow", "config,switchover")])
def test_a_trial_asks_for_consent_before_anything_is_read(walproof: Run, allow: tuple[str, ...]) -> None:
    one_sentence(walproof("salvage", "--old", "nowhere", "--new", "x", "--check", *allow), "locked for up to a minute")


def test_what_keep_prints_copies_what_pg_rewind_overwrites(walproof: Run, tmp_path: Path) -> None:
    code, out, _ = walproof("salvage", "--keep")
    assert code == 0
    assert walproof("salvage", "--keep", "--json")[0] == 0
    assert {"use_pg_rewind: false", "wal_keep_size = '16GB'        #"} <= {
        line.strip()[:31] for line in out.splitlines()
    }
    script = out[out.index("    #!/bin/sh") : out.index("Once it has")]
    (tmp_path / "pg_rewind").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pg_rewind").chmod(0o755)
    script = textwrap.dedent(script).replace("/usr/lib/postgresql/17/bin", str(tmp_path))
    (tmp_path / "rewind").write_text(script)
    (tmp_path / "data/base").mkdir(parents=True)
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal/00000001").write_text("lost")
    (tmp_path / "data/pg_wal").symlink_to(tmp_path / "wal")
    typed = ["--restore-target-wal", "-D", str(tmp_path / "data"), "--source-server", "x"]
    for arguments, copies in ((["--help"], 0), (typed, 1)):
        argv = ["sh", str(tmp_path / "rewind"), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout.split() == arguments
        kept = list(tmp_path.glob("data.before-rewind.*"))
        assert len(kept) == copies
    assert (kept[0] / "pg_wal/00000001").read_text() == "lost"
    assert not (kept[0] / "pg_wal").is_symlink()
    failed = subprocess.run(["sh", tmp_path / "rewind", "-D", tmp_path / "none"], capture_output=True, check=False)
    assert failed.returncode
    assert failed.stdout == b""
