"""The files of lost rows: in which order, under which names, and nothing where there are none."""

import subprocess
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.command_line import Run, walproof
from walproof.salvaging.recovered import file_name, in_order, write
from walproof.salvaging.rows import Table, TableLoss

__all__ = ["walproof"]


def loss(oid: int, root: int | None = None) -> TableLoss:
    return TableLoss(Table(oid, "public", f"t{oid}", (1, 2, oid), None, root=root or oid))


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
        ("public.t", "0007_public.t"), ("../../etc/passwd", "0007_.._.._etc_passwd"), ("-rf *", "0007_-rf_"),
        ("a\n\x00b'\"$(x)", "0007_a_b_x_"), ("é" * 90, "0007__"), ("x" * 90, "0007_" + "x" * 80),
    ],
)  # fmt: skip
def test_a_files_name_is_one_word_in_a_shell(name: str, file: str) -> None:
    assert file_name(7, name) == file


def test_without_rows_there_are_no_files(tmp_path: Path) -> None:
    session = SimpleNamespace(execute=lambda _: [])
    assert write(tmp_path / "none", session, [loss(1)]) is None
    assert not (tmp_path / "none").exists()


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
