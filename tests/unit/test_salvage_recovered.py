"""The files of lost rows: in which order, under which names, and what their SQL does and does not do.

That the SQL does what it says, and its trial, are proven on a real new primary (tests/lab/test_salvage*)."""

import csv
import io
import shlex
import subprocess
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.losses import FREE, KEY, delete, insert, loss, write, written
from tests.fixtures.tiers import every
from walproof.salvaging.catalog import RanOn
from walproof.salvaging.changes import Change
from walproof.salvaging.recovered import HALF_MADE, file_name, in_order
from walproof.salvaging.row_trails import AtFork

__all__ = ["walproof"]
NODES = st.sampled_from([1, 2, 3, 7, 9])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(st.tuples(NODES, NODES), max_size=8))
def test_tables_that_others_name_come_first(references: list[tuple[int, int]]) -> None:
    """9 lost nothing, but others name by way of it; 4 is a partition of 7. In a circle any order does."""
    of = {1: 1, 2: 2, 3: 3, 7: 4}
    done = [one.table.oid for one in in_order([loss(1), loss(2), loss(3), loss(4, 7)], references)]
    reached = {*references}
    for _ in of:
        reached |= {(one, there) for one, by in reached for again, there in reached if by == again}
    one_way = [(of[one], of[by]) for one, by in reached if (by, one) not in reached and one in of and by in of]
    assert sorted(done) == [1, 2, 3, 4]
    assert [pair for pair in one_way if done.index(pair[0]) < done.index(pair[1])] == []


@given(TEXTS)
@example("a\n\0b'\"$(x)")
@example("é" * 90)
def test_a_files_name_is_one_word_in_a_shell(name: str) -> None:
    said = file_name(7, name)
    assert said.startswith("000007_") and shlex.quote(said) == said and "/" not in said and len(said) <= 87


def test_ten_thousand_files_are_in_their_order_and_say_their_table() -> None:
    names = [file_name(number, "public.t") for number in (1, 999, 9_999, 10_000, 123_456)]
    assert sorted(names) == names and names[0] == "000001_public.t"


ON, BACK = RanOn("s", 'a"b', 7, 5, 1), RanOn("s", "down", 7, -5, -1)


def test_without_rows_there_are_no_files_but_that_of_sequences(tmp_path: Path) -> None:
    assert write(tmp_path / "none", [loss(1)]) == [] and not (tmp_path / "none").exists()
    assert write(tmp_path / "moved", [loss(1)], [ON]) == []
    assert [one.name for one in (tmp_path / "moved").iterdir()] == ["000001_sequences.sql"]


DELETE_1 = """DELETE FROM ONLY "public"."t1" AS lost WHERE lost."id" OPERATOR(pg_catalog.=) '1' AND """
HELD = "pg_catalog.format('%s', lost.\"id\") COLLATE pg_catalog.\"C\" OPERATOR(pg_catalog.=) '1' AND "
HELD += "pg_catalog.format('%s', lost.\"v\") COLLATE pg_catalog.\"C\" OPERATOR(pg_catalog.=) 'a' AND NOT (SINCE)"
INSERT_2 = """INSERT INTO "public"."t1" ("id", "v") OVERRIDING SYSTEM VALUE VALUES ('2', 'a')"""
SET_NULL = f'UPDATE ONLY "public"."t1" AS lost SET "v" = NULL WHERE {DELETE_1.partition("WHERE ")[2]}{HELD};'
OVER, BOTH, NAMED = " ON CONFLICT DO NOTHING;", [insert("2", "a"), delete("1", "a")], {"references": (KEY,)}
IN_PART = [replace(insert("2", "a", state), is_part=True) for state in ("clean", "unsure")]


def test_the_sql_harms_nothing_that_was_not_lost() -> None:
    rows: list[tuple[list[Change], dict[str, Any], list[str]]] = [
        # A unique value goes from a row to another: the row that has it goes first, or neither would be left.
        (BOTH, {}, [DELETE_1 + HELD + ";", INSERT_2 + OVER]),
        # ON DELETE CASCADE would take what the new primary wrote since: not while a row names it.
        ([delete("1", "a")], NAMED, [f"{DELETE_1}{HELD} AND {FREE};"] * 2),
        (BOTH, NAMED, [f"{DELETE_1}{HELD} AND {FREE};", INSERT_2 + OVER] * 2),
        # ON CONFLICT is an error where a constraint is deferrable.
        ([insert("2", "a"), insert("3", "a", "conflict")], {"is_deferrable": True}, [INSERT_2 + " ;"]),
        # Without a key an updated version would become a second row.
        ([Change("update", ("2", "a"), None), insert("2", "a")], {"key": ()}, [INSERT_2 + OVER]),
        ([insert("2", "a", "unsure")], {}, [f"{INSERT_2} -- unsure{OVER}"]),
        ([insert("2", "a", "conflict")], {}, [f"{INSERT_2} -- conflict{OVER}"]),
        ([insert("2", "a", "there")], {}, []),
        (IN_PART, {}, [f"{INSERT_2}, -- in part ('2', 'a') -- unsure, in part{OVER}"]),
        ([replace(insert("2", "a", "conflict"), is_left=True)], {}, []),
        ([Change("update", ("1", None), ("1", "a"), state="clean")], {}, [SET_NULL]),
        ([delete("1", "a")], {"is_key_builtin": False}, [f'DELETE FROM ONLY "public"."t1" AS lost WHERE {HELD};']),
    ]

    def says(changes: list[Change], table: dict[str, Any], said: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert [text for _, text in written(Path(folder, "rows"), [loss(1, changes=changes, **table)])] == said

    every(rows, says)


def test_where_one_half_of_a_row_with_another_key_is_left_out_the_file_ends_with_an_error(tmp_path: Path) -> None:
    row = AtFork((1, 2, 7), (0, 1))
    some = [replace(insert("2", "a", "unsure"), came=row), replace(delete("1", "a"), went=row), delete("3", "a")]
    texts = [text for _, text in written(tmp_path / "rows", [loss(1, changes=some, references=(KEY,))])]
    assert [text.count(HALF_MADE) for text in texts] == [1, 0, 0, 2]
    parts = [texts[0].split("FOR UPDATE")[0], *texts[-1].split("SELECT (CASE WHEN")[1:]]
    assert [[one for one in "123" if f"=) '{one}' AND" in part] for part in parts] == [["1"], ["2"], ["1"]]


def test_deletes_come_before_and_after_the_rest_against_the_foreign_keys(tmp_path: Path) -> None:
    losses = [loss(1, changes=BOTH), loss(2, changes=BOTH, references=(KEY,)), loss(3, changes=BOTH)]
    done = [(table, text.split()[0]) for table, text in written(tmp_path / "rows", losses, [(1, 2), (2, 3)])]
    assert done == [
        ("t1", "DELETE"), ("t2", "DELETE"), ("t3", "DELETE"), ("t3", "INSERT"), ("t2", "INSERT"), ("t1", "INSERT"),
        ("t2", "DELETE"), ("t2", "INSERT"),
    ]  # fmt: skip
    ((_, text),) = written(tmp_path / "self", [loss(1, changes=[delete("1", "a"), delete("2", "1")])])
    assert text.index("=) '2'") < text.index("=) '1'"), "rows that name others of their table go before them"


def test_sequences_are_moved_last_in_a_file_that_no_trial_runs(tmp_path: Path) -> None:
    done = write(tmp_path / "rows", [loss(1, changes=[insert("2", "a")])], [ON, BACK])
    assert [one.path.name for one in done] == ["000001_public.t1.sql"]
    held, _, moved = (tmp_path / "rows/000002_sequences.sql").read_text().partition("SET CONSTRAINTS ALL DEFERRED;\n")
    assert held.endswith("::pg_catalog.bool;\n") and held.count("pg_sequence_last_value(") == 2
    assert moved == (
        """SELECT pg_catalog.setval('"s"."a""b"', 5) FROM "s"."a""b" WHERE last_value OPERATOR(pg_catalog.<=) 5;\n"""
        """SELECT pg_catalog.setval('"s"."down"', -5) FROM "s"."down" WHERE last_value OPERATOR(pg_catalog.>=) -5;\n"""
    )


NAMES = st.sampled_from(["id", "v", "state", "change", "version", "transactions"])


@given(st.none() | TEXTS, st.lists(NAMES, min_size=2, max_size=2, unique=True))
@example("a\r\nb", ["id", "v"])
@example("\\N", ["version", "state"])
def test_a_csv_reads_back_as_it_was(value: str | None, columns: list[str]) -> None:
    """Whatever a value holds, and though a column is called as one of ours."""
    change = replace(insert("7", value), by=(7, 8), is_part=True)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "rows"), [loss(1, changes=[change], columns=tuple(columns))])
        text = Path(folder, "rows/000001_public.t1.csv").read_bytes().decode()
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    ours = [row[f"walproof_{name}"] for name in ("change", "state", "version", "transactions")]
    assert ours == ["insert", "clean", "lost", "7 8 in part"]
    assert ([row[name] for name in columns], len(row)) == (["7", value or ""], 6)
    assert text.endswith(',"7",\n' if value is None else '"\n'), "NULL is no empty text"


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
    done = write(tmp_path / "rows", losses)
    assert [one.path.name.partition("_")[2] for one in done] == ["public.t3.sql", "public.t1.sql"]
    assert {path.name.partition("_")[2] for path in (tmp_path / "rows").iterdir()} == {
        f"public.{table}.{kind}" for table in ("t1", "t3") for kind in ("csv", "sql")
    }
    assert [one.split(": ")[0] for one in wrong.undecided] == ["its 3 lost rows cannot be written"]
    assert (wrong.changes, wrong.is_read, wrong.notes) == ([], False, wrong.undecided)
    assert [one.undecided for one in (losses[0], losses[2])] == [[], []]
    # A row that moved from one partition to another is not deleted from the first alone.
    leaves = [loss(oid, 9, [change]) for oid, change in ((4, delete("1", "a")), (5, insert("1", value)))]
    assert write(tmp_path / "moved", leaves) == []
    assert [one.undecided[0].split(": ")[0] for one in leaves] == ["its 1 lost rows cannot be written"] * 2
    wrong.changes = [insert("3", value)]
    assert write(tmp_path / "none", [wrong]) == [] and not (tmp_path / "none").exists()


def test_a_trial_asks_for_consent_before_anything_is_read(walproof: Run) -> None:
    def refused(*allow: str) -> None:
        said = walproof("salvage", "--old", "nowhere", "--new", "x", "--check", *allow)
        one_sentence(said, "locked for up to a minute")

    every([(), ("--allow", "existing-tables"), ("--allow", "config,switchover")], refused)


def test_what_keep_prints_copies_what_pg_rewind_overwrites(walproof: Run, tmp_path: Path) -> None:
    code, out, _ = walproof("salvage", "--keep")
    assert code == 0 and walproof("salvage", "--keep", "--json")[0] == 0
    assert {"use_pg_rewind: false", "wal_keep_size = '16GB'        #"} <= {
        line.strip()[:31] for line in out.splitlines()
    }
    script = out[out.index("    #!/bin/sh") : out.index("Once it has")]
    (tmp_path / "pg_rewind").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pg_rewind").chmod(0o755)
    (tmp_path / "rewind").write_text(textwrap.dedent(script).replace("/usr/lib/postgresql/17/bin", str(tmp_path)))
    (tmp_path / "data/base").mkdir(parents=True)
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal/00000001").write_text("lost")
    (tmp_path / "data/pg_wal").symlink_to(tmp_path / "wal")
    typed = ["--restore-target-wal", "-D", str(tmp_path / "data"), "--source-server", "x"]
    for arguments, copies in ((["--help"], 0), (typed, 1)):
        argv = ["sh", str(tmp_path / "rewind"), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        kept = list(tmp_path.glob("data.before-rewind.*"))
        assert done.stdout.split() == arguments and len(kept) == copies
    assert (kept[0] / "pg_wal/00000001").read_text() == "lost" and not (kept[0] / "pg_wal").is_symlink()
    failed = subprocess.run(["sh", tmp_path / "rewind", "-D", tmp_path / "none"], capture_output=True, check=False)
    assert failed.returncode and failed.stdout == b""
