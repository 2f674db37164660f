"""`walproof salvage` without a server: what is refused, which cluster is meant, and what the report says."""

import io
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.data_directory import CONTROL, SEGMENT, directory, wal
from tests.fixtures.own_folder import own_folder
from tests.fixtures.tiers import every
from walproof.errors import MachineError, UsageError
from walproof.model.topology import Endpoint
from walproof.reporting.console_output import progress_bar
from walproof.salvaging import data_directory, plan
from walproof.salvaging.changes import REWRITTEN, Change, Table, TableLoss
from walproof.salvaging.data_directory import inspect
from walproof.salvaging.report import brought, loss_tree, table_tree, text
from walproof.salvaging.timelines import Span, read_history
from walproof.salvaging.trial import tried
from walproof.salvaging.wal import LostWal

__all__ = ["directory", "own_folder", "walproof"]
DSN = "host=127.0.0.1 port=1 user=postgres"


def forked(monkeypatch: pytest.MonkeyPatch, fork: str, identity: tuple[int, int, int] = (7, 2, 15)) -> None:
    """The new primary's timeline is 2, and left timeline 1 there; the old one's is 1."""
    texts = {1: "", 2: f"1 {fork}"}
    monkeypatch.setattr(plan, "history", lambda timeline, *_: read_history(timeline, texts[timeline]))
    monkeypatch.setattr(plan, "identity", lambda _: identity)


# Data directories


def test_another_version_or_a_pg_control_that_says_nonsense_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_corrupt(name: str, value: str | None) -> None:
        said = {key: word for key, word in (CONTROL | {name: value}).items() if word is not None}
        monkeypatch.setattr(data_directory, "_control", lambda *_: said)
        with pytest.raises(MachineError, match="corrupt or encrypted"):
            inspect(directory, None)

    size, nonsense = "Bytes per WAL segment", [("Latest checkpoint's TimeLineID", "x")]
    nonsense += [("Latest checkpoint's REDO location", "0"), ("Database system identifier", "")]
    every([(size, "12345"), (size, "0"), (size, None), *nonsense], is_corrupt)

    def is_refused(version: str, says: str) -> None:
        (directory / "PG_VERSION").write_text(version)
        with pytest.raises(UsageError, match=says):
            inspect(directory, None)

    every([("", "no PG_VERSION"), ("13\n", "13"), ("19\n", "19"), ("15.2\n", "15.2")], is_refused)


def test_a_directory_in_which_a_server_or_pg_rewind_runs_is_in_use(directory: Path) -> None:
    """pg_rewind has another working directory, and writes pg_control last."""
    where = directory.parent / "base"
    where.mkdir()

    def is_in_use(program: str, arguments: str) -> None:
        script = f"import sys; open('/proc/self/comm', 'w').write('{program}'); print(flush=True); sys.stdin.read()"
        argv = [sys.executable, "-c", script, *arguments.format(directory).split()]
        folder = directory if program == "postgres" else where
        with subprocess.Popen(argv, cwd=folder, stdin=-1, stdout=-1) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(MachineError, match=f"in use: PostgreSQL runs in it, process {process.pid}"):
                inspect(directory, None)
            process.communicate()

    forms = ["-D {0}", "-PD{0} --source-server=x", "--source-server x -D ../old", "--target-pgdata={0}"]
    every([("postgres", ""), *(("pg_rewind", one) for one in forms)], is_in_use)
    (directory / "postmaster.pid").write_text("1\n")  # of a server that crashed
    assert inspect(directory, None).system == 7


# The verb


def test_another_cluster_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for identity, says in (((8, 2, 15), "another cluster"), ((7, 2, 18), "of PostgreSQL 15, the new primary of 18")):
        monkeypatch.setattr(plan, "identity", lambda _, one=identity: one)
        with pytest.raises(UsageError, match=says):
            plan.plan(directory, DSN, None, None)


def test_where_nothing_is_left_the_exit_code_is_undecided(
    directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run
) -> None:
    typed = ("salvage", "--old", str(directory), "--new", DSN)
    forked(monkeypatch, "0/410000", (7, 1, 15))
    code, out, _ = walproof(*typed, "--dry-run")
    assert code == 4 and "nothing to salvage" in out
    forked(monkeypatch, "0/410000")
    wal(directory / "pg_wal", 3, 4)
    code, out, _ = walproof(*typed, "--dry-run")
    assert code == 0 and "parted at 0/410000 on timeline 1" in out
    in_place = (*typed, "--dry-run", "--in-place")
    one_sentence(walproof(*in_place), "other users may write there", 2)  # below /tmp it could be swapped for another
    monkeypatch.setattr(plan, "private_folder", nullcontext)
    code, out, err = walproof(*in_place)
    assert (code, "to copy: 0.002 GB" in out, "no evidence any more" in err) == (0, True, True)
    monkeypatch.setattr("walproof.cli.salvage.run", lambda *_: {"lost_transactions": 0, "undecided": ["it is damaged"]})
    code, out, _ = walproof(*typed, "--out", str(directory))
    assert (code, "UNDECIDED: it is damaged" in out, "nothing was lost" in out) == (4, True, False)


def test_the_window_before_the_fork_is_counted_from_the_fork(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_MOST", 3)
    forked(monkeypatch, "0/A10000")
    wal(directory / "pg_wal", *range(1, 30))
    made = plan.plan(directory, DSN, None, None)
    assert made.begin == 3 * SEGMENT  # pg_control's redo is in segment 3
    assert made.spans == (Span(1, 0xA10000, 30 * SEGMENT),)


def test_what_fails_while_the_new_primary_is_asked_beside_is_not_told_as_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory that rows took, and the copy's errors, were told as "the new primary does not answer or refuses"."""

    def fails(wrong: Exception) -> None:
        opened = SimpleNamespace(execute=lambda _: None, info=SimpleNamespace(user="u"), close=lambda: None)
        monkeypatch.setattr(plan, "_opened", lambda *_, **__: opened)
        with pytest.raises(type(wrong)), plan.new_session(DSN):
            raise wrong
        opened.execute = lambda _: (_ for _ in ()).throw(wrong)
        with pytest.raises(MachineError, match="does not answer or refuses"), plan.new_session(DSN):
            pytest.fail("it was opened")

    every([MemoryError(), psycopg.errors.CharacterNotInRepertoire("0xe9"), ValueError("x")], fails)


KEYED, KEYLESS = (Table((1, 2, 3), None, "", 1, "public", "t", ("id",), key) for key in ((0,), ()))
INSERT, DELETE = Change("insert", ("1",), None, state="clean"), Change("delete", None, ("2",), state="conflict")


def test_what_a_trial_says_is_in_the_report(directory: Path) -> None:
    of_table = table_tree(TableLoss(KEYED, [replace(INSERT, state="unsure")]))
    old = inspect(directory, None)

    def says(check: list[str] | None, undecided: list[str]) -> None:
        lost = LostWal(0x410000, end=0x420000, commits=1, times=(0.0, 1.0), prepared={7: "xa'17"})
        database = {"database": "app", "tables": [of_table], "check": check, "files": "lost/000001_app"}
        prepared = [{"gid": "g", "database": "app"}], [{"gid": "h", "database": "app"}]
        tree = loss_tree(plan.Plan(old, 2, (Span(1, 0x410000),)), lost, [database], prepared, [])
        shown = "\n".join(text(tree))
        assert tree["undecided"][0].endswith("holds prepared: commit that there, then run this again")
        assert tree["undecided"][1].endswith("holds prepared: roll it back there")
        assert tree["undecided"][2].endswith("rolled back, and not read: 'xa''17'")
        assert tree["undecided"][3:] == [f"--check of app: {one}" for one in undecided]
        words = (*undecided, "ROLLBACK PREPARED 'h'", "was lost: the new primary still holds")
        assert [word for word in words if word not in shown] == []
        assert ("rolled back: it brings 1 of 1 changes to what was lost\n" in shown) == (check == [])
        assert "every row" not in shown, "what is prepared is left"
        assert "1 inserted, 0 updated, 0 deleted; inserted, or deleted on the new primary since: 1\n" in shown

    failed, untried = ["public.t: 1 of 2 rows"], ["not tried: x", "y"]
    every([(None, []), ([], []), (failed, failed), (untried, untried)], says)


def test_a_trial_says_of_how_many_changes_and_what_is_in_no_sql() -> None:
    def brings(losses: list[TableLoss], is_whole: bool, says: str) -> None:
        said = brought({"tables": [table_tree(loss) for loss in losses]}, is_whole=is_whole)
        assert said == f"it brings {says}"

    more = "; in conflict with the new primary, and left as they are: 1; inserted without a key, and not compared: 2"
    gone = "; versions no longer there, of which nothing tells: 5"
    many = [TableLoss(KEYED, [INSERT, DELETE]), TableLoss(KEYLESS, [INSERT] * 2, versions_gone=5)]
    rows = [
        ([TableLoss(KEYED, [INSERT])] * 2, True, "every row to what was lost (2 of 2 changes)"),
        ([TableLoss(KEYED, [INSERT])], False, "1 of 1 changes to what was lost"),
        ([TableLoss(KEYED, [INSERT], notes=[REWRITTEN])], True, "1 of 1 changes to what was lost"),
        (many, True, f"1 of 4 changes to what was lost{more}{gone}"),
    ]
    every(rows, brings)

    def is_told(loss: TableLoss, *says: str) -> None:
        told = tried("no DSN", {"load"}, "app", [loss], [], planned=None)
        assert told == [f"public.t: in no SQL: {one}" for one in says]

    without = [
        (TableLoss(KEYED, [replace(INSERT, state="there")]),),
        (TableLoss(KEYED, [INSERT]), "no SQL can say it: 1"),
        (TableLoss(KEYLESS, [Change("update", ("1",), None)] * 2, unkeyed_old=1), "without a key: 2"),
        (TableLoss(KEYED, [Change("not read", None, ("1",), state="not read")], unread=3), "not read: 3"),
        (TableLoss(KEYED, is_read=False), "what was not read of it"),
    ]
    every(without, is_told)


def test_refusals_are_one_sentence_each(
    directory: Path, walproof: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_directory = ("--old", str(directory), "--new")

    def refused(code: int, says: str, *words: str) -> None:
        one_sentence(walproof("salvage", *words), says, code)

    rows = [
        (2, "--old is missing", "--new", "x"),
        (2, "--new is missing", "--old", "."),
        (2, "there is no directory nowhere", "--old", "nowhere", "--new", "x"),
        (2, "it has no PG_VERSION", "--old", ".", "--new", "x"),
        (2, "--wal nowhere is no directory", *of_directory, "x", "--wal", "nowhere"),
        (3, "does not answer", *of_directory, DSN),
        (2, "not a DSN", *of_directory, "="),
        (3, "a simulated cluster has no address", *of_directory[:2], "--target", "sim"),
        (2, "--new is not a DSN", *of_directory, "=", "--target", "sim"),
        (2, "'nowhere' is no target", *of_directory[:2], "--target", "nowhere"),
        (3, "no lab is up", *of_directory[:2], "--target", "lab:none"),
    ]
    every(rows, refused)
    forked(monkeypatch, "0/410000")
    wal(directory / "pg_wal", 3, 4)
    (own_folder / "lost/copy-abc").mkdir(parents=True)  # a killed run left it
    refused(2, "lost is not empty: copy-abc", *of_directory, DSN, "--out", str(own_folder / "lost"))


def test_bin_without_all_programs_is_refused(tmp_path: Path) -> None:
    def made(name: str) -> None:
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n")
        (tmp_path / name).chmod(0o755)

    for missing in data_directory.PROGRAMS:
        with pytest.raises(UsageError, match=f"has no {missing}"):
            data_directory._programs(15, tmp_path)
        made(missing)
    assert data_directory._programs(15, tmp_path) == tmp_path
    with pytest.raises(UsageError, match="is not PostgreSQL 1:"):
        data_directory._programs(1, tmp_path)
    with pytest.raises(MachineError, match="are not on this machine"):
        data_directory._programs(9, None)


@dataclass
class Led:
    """A target by its leader alone."""

    closed: bool = False

    def endpoint(self, route: str) -> Endpoint:
        assert route == "direct"
        return Endpoint((("10.0.0.6", 5433),), "app", "postgres", "/run/pgpass", named=(("10.0.0.6", 5433),))

    def close(self) -> None:
        self.closed = True


def test_a_target_is_asked_at_its_leader(directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run) -> None:
    own = {"host": "10.0.0.6", "port": "5433", "dbname": "app", "user": "postgres", "passfile": "/run/pgpass"}

    def is_asked(words: tuple[str, ...], differs: dict[str, str]) -> None:
        led, identity = Led(), Mock(return_value=(7, 1, 15))
        monkeypatch.setattr("walproof.cli.salvage.choose", lambda text: {"c.toml": led}[text])
        monkeypatch.setattr(plan, "identity", identity)
        code, _, err = walproof("salvage", "--old", str(directory), "--target", "c.toml", *words, "--dry-run")
        assert (code, led.closed) == (4, True), err
        assert {
            name: word for name, word in conninfo_to_dict(identity.call_args[0][0]).items() if word
        } == own | differs

    rows = [
        ((), {}),
        (("--new", "user=salvager"), {"user": "salvager"}),
        (("--new", "dbname=x sslmode=require"), {"dbname": "x", "sslmode": "require"}),
        (("--new", "postgresql://salvager@:5434"), {"user": "salvager", "port": "5434"}),
    ]
    every(rows, is_asked)


def test_a_bar_is_for_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for is_terminal in (True, False):
        screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
        with progress_bar(screen) as tell:
            tell("copying 1.000 GB", 0.0)
            tell("copying 1.000 GB", 0.43)
        assert isinstance(screen.file, io.StringIO)
        shown[is_terminal] = screen.file.getvalue()
        assert capsys.readouterr().err == "copying 1.000 GB\n"
    assert "43%" in shown[True] and not shown[False]
