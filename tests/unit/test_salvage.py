"""`walproof salvage` without a server: timelines, WAL as pg_waldump prints it, and data directories that are none."""

import io
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console

from tests.fixtures.command_line import Run, one_sentence, walproof
from tests.fixtures.data_directory import CONTROL, SEGMENT, directory, wal
from tests.fixtures.own_folder import own_folder
from walproof.errors import Error, MachineError, UsageError
from walproof.model.topology import Endpoint
from walproof.reporting.console_output import progress_bar
from walproof.salvaging import data_directory, plan, refusals
from walproof.salvaging.changes import REWRITTEN, Change, Table, TableLoss
from walproof.salvaging.data_directory import inspect, roots, size
from walproof.salvaging.report import brought, loss_tree, table_tree, text
from walproof.salvaging.timelines import Span, read_history
from walproof.salvaging.trial import tried
from walproof.salvaging.wal import LostWal

__all__ = ["directory", "own_folder", "walproof"]
DSN = "host=127.0.0.1 port=1 user=postgres"


def forked(monkeypatch: pytest.MonkeyPatch, fork: str) -> None:
    """The new primary's timeline is 2, and left timeline 1 there; the old one's is 1."""
    texts = {1: "", 2: f"1 {fork}"}
    monkeypatch.setattr(plan, "history", lambda timeline, *_: read_history(timeline, texts[timeline]))


# Data directories


def test_no_configuration_slot_signal_or_stranger_is_copied(directory: Path) -> None:
    for name in (
        "postgresql.conf",
        "postgresql.auto.conf",
        "pg_hba.conf",
        "recovery.signal",
        "standby.signal",
        "evil.so",
    ):
        (directory / name).write_text("archive_command = 'touch /tmp/evil'")
    (directory / "pg_replslot/evil").mkdir(parents=True)
    copied = {path.name for path in roots(inspect(directory, None))}
    assert copied == {"PG_VERSION", "base", "global", "pg_commit_ts", "pg_multixact", "pg_twophase", "pg_xact"}


@pytest.mark.parametrize("link", ["/nonexistent", "/etc", "/proc"])
def test_a_tablespace_that_is_not_where_its_link_points_is_refused(directory: Path, link: str) -> None:
    (directory / "pg_tblspc/16500").symlink_to(link)
    with pytest.raises(MachineError, match="16500"):
        size(inspect(directory, None))


@pytest.mark.parametrize(
    ("version", "says"),
    [("", "no PG_VERSION"), ("13\n", "13"), ("19\n", "19"), ("15.2\n", "15.2"), ("\x1b[2J", "says")],
)
def test_another_version_is_refused(directory: Path, version: str, says: str) -> None:
    (directory / "PG_VERSION").write_text(version)
    with pytest.raises(UsageError, match=says):
        inspect(directory, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Bytes per WAL segment", "12345"), ("Bytes per WAL segment", "0"), ("Latest checkpoint's TimeLineID", "x"),
        ("Latest checkpoint's REDO location", "0"), ("Database system identifier", ""), ("Bytes per WAL segment", None),
    ],
)  # fmt: skip
def test_a_pg_control_that_says_nonsense_is_corrupt(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    said = {key: word for key, word in (CONTROL | {name: value}).items() if word is not None}
    monkeypatch.setattr(data_directory, "_control", lambda *_: said)
    with pytest.raises(MachineError, match="corrupt or encrypted"):
        inspect(directory, None)


def test_a_directory_that_pg_rewind_has_begun_on_is_refused(directory: Path) -> None:
    (directory / "backup_label").write_text("START WAL LOCATION: 0/3\nBACKUP METHOD: pg_rewind\n")
    with pytest.raises(UsageError, match="was rewound"):
        inspect(directory, None)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("postgres", ""), ("pg_rewind", "-D {0}"), ("pg_rewind", "-PD{0} --source-server=x"),
        ("pg_rewind", "--source-server x -D ../old"), ("pg_rewind", "--target-pgdata={0}"),
    ],
)  # fmt: skip
def test_a_directory_in_which_a_server_or_pg_rewind_runs_is_in_use(
    directory: Path, program: str, arguments: str
) -> None:
    """pg_rewind has another working directory, and writes pg_control last."""
    script = f"import sys; open('/proc/self/comm', 'w').write('{program}'); print(flush=True); sys.stdin.read()"
    argv, where = arguments.format(directory).split(), directory.parent / "base"
    where.mkdir()
    folder = directory if program == "postgres" else where
    with subprocess.Popen([sys.executable, "-c", script, *argv], cwd=folder, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(MachineError, match=f"in use: PostgreSQL runs in it, process {process.pid}"):
            inspect(directory, None)
        process.communicate()
    (directory / "postmaster.pid").write_text("1\n")  # of a server that crashed
    assert inspect(directory, None).system == 7


# The verb


@pytest.mark.parametrize(
    ("identity", "says"), [((8, 2, 15), "another cluster"), ((7, 2, 18), "of PostgreSQL 15, the new primary of 18")]
)
def test_another_cluster_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[int, int, int], says: str
) -> None:
    monkeypatch.setattr(plan, "identity", lambda _: identity)
    with pytest.raises(UsageError, match=says):
        plan.plan(directory, DSN, None, None)


def test_where_nothing_is_left_the_exit_code_is_undecided(
    directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run
) -> None:
    monkeypatch.setattr(plan, "identity", lambda _: (7, 1, 15))
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--dry-run")
    assert code == 4
    assert "nothing to salvage" in out
    monkeypatch.setattr(plan, "identity", lambda _: (7, 2, 15))
    forked(monkeypatch, "0/410000")
    wal(directory / "pg_wal", 3, 4)
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--dry-run")
    assert code == 0
    assert "parted at 0/410000 on timeline 1" in out
    in_place = ("salvage", "--old", str(directory), "--new", DSN, "--dry-run", "--in-place")
    one_sentence(walproof(*in_place), "other users may write there", 2)  # below /tmp it could be swapped for another
    monkeypatch.setattr(plan, "private_folder", nullcontext)
    code, out, err = walproof(*in_place)
    assert (code, "to copy: 0.002 GB" in out, "no evidence any more" in err) == (0, True, True)
    monkeypatch.setattr("walproof.cli.salvage.run", lambda *_: {"lost_transactions": 0, "undecided": ["it is damaged"]})
    code, out, _ = walproof("salvage", "--old", str(directory), "--new", DSN, "--out", str(directory))
    assert (code, "UNDECIDED: it is damaged" in out, "nothing was lost" in out) == (4, True, False)


def test_the_window_before_the_fork_is_counted_from_the_fork(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_MOST", 3)
    monkeypatch.setattr(plan, "identity", lambda _: (7, 2, 15))
    forked(monkeypatch, "0/A10000")
    wal(directory / "pg_wal", *range(1, 30))
    made = plan.plan(directory, DSN, None, None)
    assert made.begin == 3 * SEGMENT  # pg_control's redo is in segment 3
    assert made.spans == (Span(1, 0xA10000, 30 * SEGMENT),)


@pytest.mark.parametrize("wrong", [MemoryError(), psycopg.errors.CharacterNotInRepertoire("0xe9"), ValueError("x")])
def test_what_fails_while_the_new_primary_is_asked_beside_is_not_told_as_its_own(
    monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    """Memory that rows took, and the copy's errors, were told as "the new primary does not answer or refuses"."""
    opened = SimpleNamespace(execute=lambda _: None, info=SimpleNamespace(user="u"), close=lambda: None)
    monkeypatch.setattr(plan, "_opened", lambda *_, **__: opened)
    with pytest.raises(type(wrong)), plan.new_session(DSN):
        raise wrong
    monkeypatch.setattr(opened, "execute", lambda _: (_ for _ in ()).throw(wrong))
    with pytest.raises(MachineError, match="does not answer or refuses"), plan.new_session(DSN):
        pytest.fail("it was opened")


@pytest.mark.parametrize(
    ("check", "says", "undecided"),
    [
        (None, [], []),
        ([], ["rolled back: it brings 1 of 1 changes to what was lost\n"], []),
        (["public.t: 1 of 2 rows"], [], ["--check of app: public.t: 1 of 2 rows"]),
        (["not tried: x", "y"], [], ["--check of app: not tried: x", "--check of app: y"]),
    ],
)
def test_what_a_trial_says_is_in_the_report(
    directory: Path, check: list[str] | None, says: list[str], undecided: list[str]
) -> None:
    lost = LostWal(0x410000, end=0x420000, commits=1, times=(0.0, 1.0), prepared={7: "xa'17"})
    of_table = table_tree(
        TableLoss(
            Table((1, 2, 3), None, "", 1, "public", "t", key=(0,)),
            [Change("insert", ("1", "a"), None, state="unsure")],
        )
    )
    tree = loss_tree(
        plan.Plan(inspect(directory, None), 2, (Span(1, 0x410000),)),
        lost,
        [{"database": "app", "tables": [of_table], "check": check, "files": "lost/000001_app"}],
        ([{"gid": "g", "database": "app"}], [{"gid": "h", "database": "app"}]),
        [],
    )
    shown = "\n".join(text(tree))
    assert tree["undecided"][0].endswith("holds prepared: commit that there, then run this again")
    assert tree["undecided"][1].endswith("holds prepared: roll it back there") and "ROLLBACK PREPARED 'h'" in shown
    assert tree["undecided"][2].endswith("rolled back, and not read: 'xa''17'")
    assert tree["undecided"][3:] == undecided
    assert all(
        word in shown
        for word in [*says, *undecided, "was lost: the new primary still holds", "then run this again: its"]
    )
    assert ("to what was lost" in shown) == (check == []) and "every row" not in shown, "what is prepared is left"
    assert "1 inserted, 0 updated, 0 deleted; inserted, or deleted on the new primary since: 1\n" in shown


KEYED, KEYLESS = (Table((1, 2, 3), None, "", 1, "public", "t", ("id",), key) for key in ((0,), ()))
INSERT, DELETE = Change("insert", ("1",), None, state="clean"), Change("delete", None, ("2",), state="conflict")


@pytest.mark.parametrize(
    ("losses", "is_whole", "says"),
    [
        ([TableLoss(KEYED, [INSERT])] * 2, True, "it brings every row to what was lost (2 of 2 changes)"),
        ([TableLoss(KEYED, [INSERT])], False, "it brings 1 of 1 changes to what was lost"),
        ([TableLoss(KEYED, [INSERT], notes=[REWRITTEN])], True, "it brings 1 of 1 changes to what was lost"),
        (
            [TableLoss(KEYED, [INSERT, DELETE]), TableLoss(KEYLESS, [INSERT] * 2, versions_gone=5)],
            True,
            "it brings 1 of 4 changes to what was lost; in conflict with the new primary, and left as they are: 1;"
            " inserted without a key, and not compared: 2; versions no longer there, of which nothing tells: 5",
        ),
    ],
)
def test_a_trial_that_went_through_says_of_how_many_changes(losses: list[TableLoss], is_whole: bool, says: str) -> None:
    assert brought({"tables": [table_tree(loss) for loss in losses]}, is_whole=is_whole) == says


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (TableLoss(KEYED, [replace(INSERT, state="there")]), []),
        (TableLoss(KEYED, [INSERT]), ["no SQL can say it: 1"]),
        (TableLoss(KEYLESS, [Change("update", ("1",), None)] * 2, unkeyed_old=1), ["without a key: 2"]),
        (TableLoss(KEYED, [Change("not read", None, ("1",), state="not read")], unread=3), ["not read: 3"]),
        (TableLoss(KEYED, is_read=False), ["what was not read of it"]),
    ],
)
def test_what_is_in_no_sql_is_told_though_there_is_nothing_to_try(loss: TableLoss, says: list[str]) -> None:
    assert tried("no DSN", {"load"}, "app", [loss], [], planned=None) == [f"public.t: in no SQL: {one}" for one in says]


def test_what_a_killed_run_left_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run, own_folder: Path
) -> None:
    monkeypatch.setattr(plan, "identity", lambda _: (7, 2, 15))
    forked(monkeypatch, "0/410000")
    wal(directory / "pg_wal", 3, 4)
    (own_folder / "lost/copy-abc").mkdir(parents=True)
    typed = ("salvage", "--old", str(directory), "--new", DSN, "--out", str(own_folder / "lost"))
    one_sentence(walproof(*typed), "lost is not empty: copy-abc", 2)


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ("--new x", "--old is missing", 2),
        ("--old .", "--new is missing", 2),
        ("--old nowhere --new x", "there is no directory nowhere", 2),
        ("--old . --new x", "it has no PG_VERSION", 2),
        ("--old DIR --new x --wal nowhere", "--wal nowhere is no directory", 2),
        (f"--old DIR --new '{DSN}'", "does not answer", 3),
        ("--old DIR --new =", "not a DSN", 2),
    ],
)
def test_refusals_are_one_sentence_each(directory: Path, walproof: Run, words: str, says: str, code: int) -> None:
    typed = [word.strip("'") for word in words.replace("DIR", str(directory)).replace(DSN, "DSN").split()]
    one_sentence(walproof("salvage", *(word.replace("DSN", DSN) for word in typed)), says, code)


@pytest.mark.parametrize("missing", data_directory.PROGRAMS)
def test_bin_without_all_programs_is_refused(tmp_path: Path, missing: str) -> None:
    for name in set(data_directory.PROGRAMS) - {missing}:
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(UsageError, match=f"has no {missing}"):
        data_directory._programs(15, tmp_path)
    (tmp_path / missing).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n")
    (tmp_path / missing).chmod(0o755)
    assert data_directory._programs(15, tmp_path) == tmp_path
    with pytest.raises(UsageError, match="is not PostgreSQL 1:"):
        data_directory._programs(1, tmp_path)


def test_a_version_without_programs_here_names_what_to_install() -> None:
    with pytest.raises(MachineError, match="are not on this machine"):
        data_directory._programs(9, None)


def test_every_refusal_can_be_said() -> None:
    words = {word: "x" for text in refusals._TABLE.values() for word in re.findall(r"\{(\w+)\}", str(text))}
    for name in refusals._TABLE:
        assert isinstance(refusals.refused(name, **words), Error)


@dataclass
class Led:
    """A target by its leader alone."""

    closed: bool = False

    def endpoint(self, route: str) -> Endpoint:
        assert route == "direct"
        return Endpoint((("10.0.0.6", 5433),), "app", "postgres", "/run/pgpass", named=(("10.0.0.6", 5433),))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("words", "differs"),
    [
        ((), {}),
        (("--new", "user=salvager"), {"user": "salvager"}),
        (("--new", "dbname=x sslmode=require"), {"dbname": "x", "sslmode": "require"}),
        (("--new", "postgresql://salvager@:5434"), {"user": "salvager", "port": "5434"}),
    ],
)
def test_a_target_is_asked_at_its_leader(
    directory: Path, monkeypatch: pytest.MonkeyPatch, walproof: Run, words: tuple[str, ...], differs: dict[str, str]
) -> None:
    led, asked = Led(), list[str]()
    monkeypatch.setattr("walproof.cli.salvage.choose", lambda text: {"c.toml": led}[text])

    def identity(dsn: str) -> tuple[int, int, int]:
        asked.append(dsn)
        return 7, 1, 15

    monkeypatch.setattr(plan, "identity", identity)
    code, _, err = walproof("salvage", "--old", str(directory), "--target", "c.toml", *words, "--dry-run")
    assert (code, led.closed) == (4, True), err
    own = {"host": "10.0.0.6", "port": "5433", "dbname": "app", "user": "postgres", "passfile": "/run/pgpass"}
    assert {name: word for name, word in conninfo_to_dict(asked[0]).items() if word} == own | differs


def test_a_target_without_a_leader_or_an_address_is_refused(directory: Path, walproof: Run) -> None:
    old = ("salvage", "--old", str(directory), "--target")
    one_sentence(walproof(*old, "sim"), "a simulated cluster has no address", 3)
    one_sentence(walproof(*old, "sim", "--new", "="), "--new is not a DSN", 2)
    one_sentence(walproof(*old, "nowhere"), "'nowhere' is no target", 2)
    one_sentence(walproof(*old, "lab:none"), "no lab is up", 3)


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
