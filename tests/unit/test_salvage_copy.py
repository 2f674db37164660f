"""The copy that salvage works on: what is copied, and what its owner changes meanwhile is not followed."""

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.data_directory import SEGMENT, directory, made_in, wal
from tests.fixtures.tiers import every
from walproof.errors import MachineError
from walproof.machine.clock import RealClock
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging import data_directory
from walproof.salvaging.data_directory import inspect, links, size
from walproof.salvaging.server import Copy, try_here
from walproof.salvaging.timelines import Span, segment
from walproof.salvaging.wal_folders import check_own, wal_files

__all__ = ["directory"]
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, or have a root of its own")


def behind_a_link(path: Path, to: Path) -> None:
    """What lies there is moved, and a link leads to it."""
    path.rename(to)
    path.symlink_to(to)


def test_a_copy_is_a_copy_and_in_place_its_files_are_the_given_ones(directory: Path, tmp_path: Path) -> None:
    old = inspect(directory, None)
    wal(directory / "pg_wal", 3)
    for at, in_place in enumerate((False, True)):
        (tmp_path / str(at)).mkdir()
        list(data_directory.copy(old, wal_files(old, None), 0, tmp_path / str(at), in_place=in_place))
        for name in ("base/5/1259", f"pg_wal/{segment(1, 3, SEGMENT)}"):  # WAL may be an archive's
            linked = in_place and name.startswith("base")
            assert (tmp_path / str(at) / "data" / name).samefile(directory / name) == linked


@pytest.fixture
def tablespace(directory: Path, tmp_path: Path) -> Path:
    """A folder of a tablespace outside of the directory, with one file."""
    made = tmp_path / "space/PG_15_202209061/5"
    made.mkdir(parents=True)
    (made / "16384").write_bytes(bytes(8192))
    (directory / "pg_tblspc/16500").symlink_to(tmp_path / "space")
    return made


def test_a_tablespace_elsewhere_is_copied_and_not_worked_on_in_place(directory: Path, tablespace: Path) -> None:
    """The link may lead to that of a server that runs: its own, of which the directory is a copy, or any other."""
    old = inspect(directory, None)
    assert size(old) > tablespace.joinpath("16384").stat().st_size
    with pytest.raises(MachineError, match="lies outside of --old"):
        size(old, in_place=True)


@pytest.fixture(params=["pg_tblspc/16500", "pg_wal"])
def link(request: pytest.FixtureRequest, directory: Path, tmp_path: Path, tablespace: Path) -> str:
    """What of the directory lies behind a link."""
    if request.param == "pg_wal":
        (directory / "pg_tblspc/16500").unlink()
        behind_a_link(directory / "pg_wal", tmp_path / "wal")
    return str(request.param)


def is_in_use(directory: Path, argv: list[str | Path], cwd: Path) -> None:
    """By this program, once it has its name."""
    with subprocess.Popen(argv, cwd=cwd, stdout=subprocess.DEVNULL) as server:
        try:
            comm = Path(f"/proc/{server.pid}/comm")  # has its name a moment after the exec
            wait_for(Wait.PROGRAM_READY, lambda: comm.read_text() == "postgres\n", RealClock(), pace_s=0.01)
            with pytest.raises(MachineError, match=f"is in use: PostgreSQL runs in it, process {server.pid}"):
                inspect(directory, None)
        finally:
            server.kill()


def test_what_a_running_server_has_by_a_link_is_in_use_by_it(directory: Path, tmp_path: Path, link: str) -> None:
    """A copy's links lead to the folders of the server that was copied: it may have come back, and have other rows."""
    shutil.copytree(directory, tmp_path / "back", symlinks=True)
    assert inspect(directory, None).major == 15, f"{link} alone"
    is_in_use(directory, [shutil.copy("/bin/sleep", tmp_path / "postgres"), "600"], tmp_path / "back")


@as_root
def test_a_server_in_a_container_uses_what_its_links_lead_to_there(directory: Path, tmp_path: Path) -> None:
    container = tmp_path / "container"
    container.mkdir()
    (directory / "pg_wal").rename(container / "wal")
    (directory / "pg_wal").symlink_to("/wal")
    shutil.copytree(directory, container / "data", symlinks=True)
    (directory / "pg_wal").unlink()
    (directory / "pg_wal").symlink_to(container / "wal")
    there = "import os, sys, time; comm = open('/proc/self/comm', 'w'); os.chroot(sys.argv[1]); os.chdir('/data')"
    script = f"{there}; comm.write('postgres'); comm.flush(); time.sleep(600)"
    is_in_use(directory, [sys.executable, "-c", script, container], tmp_path)


@as_root
def test_what_a_link_leads_to_is_read_only_where_the_directorys_user_might(
    directory: Path, tablespace: Path, tmp_path: Path
) -> None:
    """root can read another cluster's tablespace, and WAL; whoever wrote the link could not."""
    old = inspect(directory, None)

    def is_refused(whose: str) -> None:
        (tmp_path / "work").mkdir()
        os.chown(tablespace.parent / whose, NOBODY, NOBODY)
        with pytest.raises(MachineError, match="belongs to another user"):
            size(old)
        with pytest.raises(MachineError, match="belongs to another user"):
            list(data_directory.copy(old, {}, 0, tmp_path / "work"))
        assert not list((tmp_path / "work").rglob("16384"))
        os.chown(tablespace.parent / whose, 0, 0)
        shutil.rmtree(tmp_path / "work")

    every(["", "5", "5/16384"], is_refused)


@as_root
def test_wal_of_another_user_is_read_where_the_archive_is_named_and_not_by_a_link(
    directory: Path, tmp_path: Path
) -> None:
    (directory / "pg_wal").rename(tmp_path / "theirs")
    wal(tmp_path / "theirs", 3)
    os.chown(tmp_path / "theirs" / segment(1, 3, SEGMENT), NOBODY, NOBODY)
    old = inspect(directory, None)
    (tmp_path / "named").mkdir()
    list(data_directory.copy(old, wal_files(old, tmp_path / "theirs"), 0, tmp_path / "named"))
    (directory / "pg_wal").symlink_to(tmp_path / "theirs")
    old = inspect(directory, None)
    (tmp_path / "linked").mkdir()
    with pytest.raises(MachineError, match="belongs to another user"):
        list(data_directory.copy(old, wal_files(old, None), 0, tmp_path / "linked"))


@as_root
def test_a_file_with_another_name_is_not_worked_on_in_place(directory: Path, tmp_path: Path) -> None:
    """Nor is any other given away then; `size` tells it with --dry-run too."""
    of_others = "it has another name, and would change there too"

    def is_refused(name: str) -> None:
        made = made_in(tmp_path / name.replace("/", "-") / "old")
        (made / name).write_bytes(b"x")
        old, work, later = inspect(made, None), made.parent / "work", made.parent / "later"
        assert size(old, in_place=True)
        for folder in (work, later):
            folder.mkdir()
        list(data_directory.copy(old, {}, 0, work, in_place=True))
        os.link(made / name, made.parent / "evidence")
        with pytest.raises(MachineError, match=of_others):
            data_directory.take(old, work, NOBODY)
        assert {path.stat().st_uid for path in made.rglob("*")} == {0}
        shutil.rmtree(work)
        with pytest.raises(MachineError, match=of_others):
            list(data_directory.copy(old, {}, 0, later, in_place=True))
        shutil.rmtree(later)
        with pytest.raises(MachineError, match=of_others):
            size(old, in_place=True)
        assert size(old)

    every(["base/5/1259", "base/5/1259_vm", "pg_xact/0000", "global/pg_control"], is_refused)


@as_root
def test_a_directory_that_a_server_worked_in_since_it_was_looked_at_is_not_taken(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started while files are linked or copied is seen before any is given, or cannot open pg_control."""

    def is_refused(at: int, is_seen: bool) -> None:
        made = made_in(tmp_path / f"{at}{is_seen}/old")
        old, control, owners = inspect(made, None), made / "global/pg_control", list[int]()
        (made.parent / "work").mkdir()
        list(data_directory.copy(old, {}, 0, made.parent / "work", in_place=True))

        def look(_: Path) -> None:
            owners.append(control.stat().st_uid)
            if len(owners) == at:
                control.write_bytes(b"in production")
                if is_seen:
                    raise MachineError("a server runs")

        with monkeypatch.context() as patched:
            patched.setattr(data_directory, "check_unused", look)
            with pytest.raises(MachineError, match="a server runs" if is_seen else "changed since"):
                data_directory.take(old, made.parent / "work", NOBODY)
        assert owners == [0, NOBODY][:at]
        assert {path.stat().st_uid for path in made.rglob("*")} == {0}

    every([(1, True), (1, False), (2, True), (2, False)], is_refused)


def test_files_that_cannot_be_linked_are_named(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", elsewhere)
    with pytest.raises(MachineError, match="cannot be worked on in place: Invalid cross-device link"):
        list(data_directory.copy(inspect(directory, None), {}, 0, tmp_path, in_place=True))


@pytest.mark.parametrize("in_place", [False, True])
def test_what_its_owner_swaps_while_it_is_copied_is_not_followed(
    directory: Path, tmp_path: Path, in_place: bool
) -> None:
    """After the check a folder becomes a link, a file a link or a pipe: nothing behind them is read."""
    old, secret = inspect(directory, None), tmp_path / "secret"
    secret.mkdir()
    (secret / "1259").write_text("secret")
    assert size(old) > 0
    swaps: list[tuple[str, Callable[[Path], object]]] = [
        ("base/5", lambda path: path.symlink_to(secret)),
        ("base/5/1259", lambda path: path.symlink_to(secret / "1259")),
        ("base/5/1259", os.mkfifo),
        ("base", lambda path: path.symlink_to(secret)),
    ]
    for at, (place, swap) in enumerate(swaps):
        (directory / place).rename(tmp_path / f"was{at}")
        swap(directory / place)
        (tmp_path / f"to{at}").mkdir()
        with pytest.raises(MachineError):
            list(data_directory.copy(old, {}, 0, tmp_path / f"to{at}", in_place=in_place))
        assert not [path for path in (tmp_path / f"to{at}").rglob("1259") if path.is_symlink() or path.read_bytes()]
        (directory / place).unlink()
        (tmp_path / f"was{at}").rename(directory / place)


@as_root
def test_all_of_the_copy_is_given_and_nothing_that_a_link_names(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted/PG_15_202209061/5").mkdir(parents=True)
    (tmp_path / "mounted/PG_15_202209061/5/16390").write_text("x")
    (directory / "pg_tblspc/16500").symlink_to(tmp_path / "mounted")
    work = tmp_path / "work"
    work.mkdir()
    list(data_directory.copy(inspect(directory, None), {}, 0, work))
    assert (work / "data/pg_tblspc/16500/PG_15_202209061/5/16390").read_text() == "x"
    data_directory.give((work / "data", work / "tablespaces"), NOBODY)
    assert {path.lstat().st_uid for path in work.rglob("*")} == {NOBODY}
    assert {path.lstat().st_uid for path in (tmp_path / "mounted").rglob("*")} == {0}
    for target in ("/etc/passwd", "/etc"):
        (work / "data/base/5/1260").symlink_to(target)
        with pytest.raises(MachineError, match="does not belong into a data directory"):
            data_directory.give((work / "data",), NOBODY)
        (work / "data/base/5/1260").unlink()
    assert Path("/etc/passwd").stat().st_uid == 0


def test_files_that_no_server_needs_are_not_copied(directory: Path, tmp_path: Path) -> None:
    for name in ("evil.so", "pg_internal.init", "t3_16384", "x y", "16384_fsm", "16384.1"):
        (directory / "base/5" / name).write_text("x")
    (directory / "base/pgsql_tmp").mkdir()
    list(data_directory.copy(inspect(directory, None), {}, 0, tmp_path))
    assert sorted(path.name for path in (tmp_path / "data/base").rglob("*")) == ["1259", "16384.1", "16384_fsm", "5"]


def test_a_copy_says_how_much_was_copied_while_it_goes_on(directory: Path, tmp_path: Path) -> None:
    content = os.urandom(40 << 20)
    with (directory / "base/5/1259").open("wb") as file:
        file.write(content)
        file.truncate(41 << 20)
    told = list(data_directory.copy(inspect(directory, None), {}, len(content), tmp_path))
    assert told == sorted(told) and len(told) > 2 and len(content) <= told[-1] <= 41 << 20
    assert (tmp_path / "data/base/5/1259").read_bytes() == content + bytes(1 << 20)


def test_its_configuration_suits_segments_of_any_size() -> None:
    """PostgreSQL does not start where either is less than two segments, of which the largest has 1 GB."""
    text = resources.files("walproof.salvaging").joinpath("copy_postgresql.conf.txt").read_text("utf-8")
    assert [int(gb) >= 2 for gb in re.findall(r"(?m)^(?:min|max)_wal_size = (\d+)GB$", text)] == [True, True]


def test_a_copys_links_that_its_original_uses_too_are_not_read(directory: Path, tmp_path: Path, link: str) -> None:
    """pg_rewind of the original changes what they lead to: its rows, or WAL that ends at the fork, are others."""
    said, text = ("postmaster.opts", f'/bin/postgres "-D" "{directory}" "-c" "x=1"\n')
    said, text = (said, text) if link == "pg_wal" else ("postmaster.pid", f"1\n{directory}\n")
    (directory / said).write_text(text)
    kept = shutil.copytree(directory, tmp_path / "kept", symlinks=True)
    assert links(inspect(directory, None)) == {link: Path(os.path.realpath(directory / link))}
    with pytest.raises(MachineError, match=f"{link} is a link to .*, which {directory} uses too"):
        links(inspect(kept, None))
    (kept / link).unlink()
    shutil.copytree(directory / link, kept / link)
    assert links(inspect(kept, None)) == {}
    behind_a_link(kept / link, tmp_path / "its own")
    assert links(inspect(kept, None)) == {link: tmp_path / "its own"}
    for nothing in ("", "1\n", "1\n\0\n", "1\n" + "/x" * 4000):
        (kept / "postmaster.pid").write_text(nothing)
        assert links(inspect(kept, None)) == {link: tmp_path / "its own"}


def test_wal_of_another_timeline_behind_a_link_is_that_of_a_rewound_server(directory: Path, tmp_path: Path) -> None:
    def is_seen(name: str) -> None:
        made = made_in(tmp_path / name / "old")
        old = replace(inspect(made, None), history=(Span(1, 0),))
        wal(made / "pg_wal", 3, 4)
        (made / "pg_wal/00000002.history").touch()  # of a server that came back, and could not follow
        (made / "pg_wal" / name).write_bytes(bytes(SEGMENT))
        new = (Span(1, 0, 2 * SEGMENT), Span(3, 2 * SEGMENT))
        check_own(old, new)
        with pytest.raises(MachineError, match=r"that .* never had: a rewind was begun"):
            check_own(old, (Span(1, 0, SEGMENT), Span(2, SEGMENT)))
        behind_a_link(made / "pg_wal", made.parent / "wal")
        with pytest.raises(MachineError, match=f"{name} is of a timeline that it never had"):
            check_own(replace(old, wal=made.parent / "wal"), new)
        (made.parent / "wal" / name).unlink()
        check_own(replace(old, wal=made.parent / "wal"), new)

    every([segment(2, 3, SEGMENT), f"{segment(2, 3, SEGMENT)}.gz"], is_seen)


def test_numbers_in_a_strangers_pg_control_take_no_memory_before_anything_is_copied(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that was tried, with --dry-run too, took memory for any number of sessions and locks, without end."""
    asked: list[tuple[Any, ...]] = []

    def start(_: Copy, argv: Any, **pipes: Any) -> "subprocess.Popen[str]":
        asked.append((resource.getrlimit(resource.RLIMIT_AS)[0], *argv))
        return subprocess.Popen(["echo", "LOG:  starting PostgreSQL"], text=True, stdout=pipes["stdout"])

    monkeypatch.setattr(Copy, "_start", start)
    old = inspect(directory, None)
    numbers = {f"{name} setting": "1000000" for name in ("max_connections", "max_prepared_xacts", "max_locks_per_xact")}
    try_here(replace(old, control={**old.control, **numbers, "track_commit_timestamp setting": "off"}))
    ((limit, *words),) = asked
    assert limit != resource.RLIM_INFINITY
    assert {"--max_connections=10", "--max_locks_per_transaction=64", "--max_prepared_transactions=0"} <= set(words)


def test_what_the_copys_user_made_in_the_place_of_prepared_transactions_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of the directory's catalogs ran with the first start, and root emptied any folder that its link named."""
    victim, place = tmp_path / "victim", tmp_path / "data/pg_twophase"
    victim.mkdir()
    (victim / "kept").write_text("")
    place.parent.mkdir()
    monkeypatch.setattr(Copy, "single", lambda *_: "")
    copy = object.__new__(Copy)
    copy.work, copy.role = tmp_path, "w"
    for made in ("a link", "a folder in it"):
        if made == "a link":
            place.symlink_to(victim)
        else:
            place.unlink()
            (place / "folder").mkdir(parents=True)
        with pytest.raises(MachineError, match="the copy does not start: pg_twophase: "):
            copy.replay()
        assert (victim / "kept").exists()
