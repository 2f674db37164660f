"""Hostile files around us: planted links, pipes and pids, programs and modules in the current folder. No lab needed."""

import grp
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.fixtures.blueprints import a_blueprint
from tests.fixtures.tiers import each
from walproof.errors import MachineError, TargetError
from walproof.lab import members, privileges
from walproof.lab.blueprint import Blueprint
from walproof.lab.faults import crashes
from walproof.lab.privileges import make_log, member_uid, unused, write_private
from walproof.load.local_runner import LocalWorkspace
from walproof.machine import pid_files, programs, untrusted
from walproof.model.sample import SYSBENCH, Workload, WorkloadKind
from walproof.model.topology import Endpoint
from walproof.targets.sql import workloads

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
THEIRS = "not ours, unchanged"


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A file of somebody else's, outside the folder under attack: it must stay as it is."""
    file = tmp_path / "elsewhere" / "postmaster.pid"
    file.parent.mkdir()
    file.write_text(THEIRS)
    yield file
    assert file.read_text() == THEIRS


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def _own(file: Path, pid: int) -> None:
    pid_files.write(file, pid)


def _reused(file: Path, pid: int) -> None:
    """The pid lives, but it is another process than the one that was named: it started at another time."""
    number, ticks, boot = (pid_files.identity(pid) or "").split()
    file.write_text(f"{number} {int(ticks) - 1} {boot}")


def _last_boot(file: Path, pid: int) -> None:
    number, ticks, _ = (pid_files.identity(pid) or "").split()
    file.write_text(f"{number} {ticks} 00000000-0000-0000-0000-000000000000")


def _link(file: Path, pid: int) -> None:
    pid_files.write(file.with_name("real"), pid)
    file.symlink_to("real")


PLANTED: dict[str, Callable[[Path, int], object]] = {
    "a-reused-pid": _reused,
    "a-pid-of-the-last-boot": _last_boot,
    "a-link-to-another-pid-file": _link,
    "a-pipe-that-nobody-writes": lambda file, _: os.mkfifo(file),
    "a-pid-alone": lambda file, pid: file.write_text(str(pid)),
    "init": lambda file, _: file.write_text(pid_files.identity(1) or ""),
    "every-process": lambda file, _: file.write_text("-1 0 0"),
    "our-own-group": lambda file, _: file.write_text("0 0 0"),
    "binary": lambda file, _: file.write_bytes(b"\xff\xfe\0" * 1000),
    "nothing": lambda file, _: file.write_text(""),
}


def test_a_pid_file_names_the_process_that_was_written(tmp_path: Path, sleeper: int) -> None:
    _own(tmp_path / "it.pid", sleeper)
    assert pid_files.living(tmp_path / "it.pid") == sleeper


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_pid_file_names_no_process_when_it_holds(
    plant: Callable[[Path, int], object], tmp_path: Path, sleeper: int
) -> None:
    plant(tmp_path / "it.pid", sleeper)
    assert pid_files.living(tmp_path / "it.pid") is None


def test_a_process_that_nobody_has_reaped_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        _own(tmp_path / "it.pid", process.pid)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert pid_files.living(tmp_path / "it.pid") is None


@pytest.mark.parametrize("write", [_own, lambda f, _: write_private(f, "x")], ids=["pid-file", "private-file"])
@pytest.mark.parametrize("planted", ["it.pid", "it.pid.new"])
def test_writing_replaces_a_planted_link(
    write: Callable[[Path, int], object], planted: str, tmp_path: Path, theirs: Path
) -> None:
    (tmp_path / planted).symlink_to(theirs)
    write(tmp_path / "it.pid", os.getpid())
    assert not (tmp_path / "it.pid").is_symlink()


def test_a_log_is_never_written_through_a_link(tmp_path: Path, theirs: Path) -> None:
    (tmp_path / "init.log").symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic"):
        make_log(tmp_path / "init.log", 60600)
    assert theirs.stat().st_uid == os.geteuid()


def _linked_file(data: Path, theirs: Path) -> None:
    data.mkdir(parents=True)
    (data / theirs.name).symlink_to(theirs)


def _hard_link(data: Path, theirs: Path) -> None:
    data.mkdir(parents=True)
    os.link(theirs, data / theirs.name)


def _linked_folder(data: Path, theirs: Path) -> None:
    data.parent.mkdir(parents=True, exist_ok=True)
    data.symlink_to(theirs.parent)


LINKS = {"a-link": _linked_file, "a-hard-link": _hard_link, "its-folder-a-link": _linked_folder}


@pytest.fixture
def paper(tmp_path: Path) -> Blueprint:
    return a_blueprint(tmp_path)


@pytest.mark.parametrize("plant", LINKS.values(), ids=LINKS)
def test_removing_a_postmaster_pid_removes_nothing_of_others(
    plant: Callable[[Path, Path], None], paper: Blueprint, theirs: Path
) -> None:
    plant(paper.data_dir("n1"), theirs)
    crashes.remove_postmaster_pid(paper, "n1")
    assert theirs.exists()


@pytest.mark.parametrize("plant", LINKS.values(), ids=LINKS)
def test_a_file_created_in_a_members_folder_is_a_new_one(
    plant: Callable[[Path, Path], None], paper: Blueprint, theirs: Path
) -> None:
    folder = paper.data_dir("n1")
    plant(folder, theirs)
    trusted = paper.member_dir("n1")
    if plant is _linked_folder:
        with pytest.raises(OSError, match=r"link|directory"):
            untrusted.create(trusted, folder / theirs.name)
        return
    with os.fdopen(untrusted.create(trusted, folder / theirs.name), "w") as file:
        file.write("ours")
    assert (folder / theirs.name).read_text() == "ours"


@pytest.mark.parametrize("text", ["1", "-1", "0", "99999999999999999999", "\0", "1; rm -rf /"])
def test_a_planted_postmaster_pid_names_no_process_to_kill(text: str, paper: Blueprint) -> None:
    paper.data_dir("n1").mkdir(parents=True, exist_ok=True)
    (paper.data_dir("n1") / "postmaster.pid").write_text(text)
    assert members.postmaster(paper, "n1") is None


def test_a_postmaster_pid_that_is_a_pipe_delays_nobody(paper: Blueprint) -> None:
    paper.data_dir("n1").mkdir(parents=True)
    os.mkfifo(paper.data_dir("n1") / "postmaster.pid")
    assert members.postmaster(paper, "n1") is None


@each(["", ".", ":", "./bin", "..:.", "bin"])
def test_a_program_of_the_current_folder_is_never_run(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "walproof-planted").write_text("#!/bin/sh\n")
        (folder / "walproof-planted").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    assert programs.lookup("walproof-planted") is None
    assert programs.lookup("./walproof-planted") is None
    assert programs.lookup("sh") is not None
    assert programs.lookup(str(tmp_path / "walproof-planted")) == tmp_path / "walproof-planted"
    with pytest.raises(MachineError, match="walproof-planted is missing"):
        programs.program("walproof-planted")


@each(["ip", "bridge", "losetup", "mkfs.ext4"])
def test_programs_of_sbin_are_found_with_an_ordinary_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/games")
    assert programs.lookup(name) is not None


@pytest.fixture
def planted_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a secrets.py that says it was imported."""
    (tmp_path / "secrets.py").write_text("raise SystemExit('IMPORTED FROM THE CURRENT FOLDER')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_m_walproof_imports_nothing_from_the_current_folder(planted_module: Path) -> None:
    words = [sys.executable, "-m", "walproof", "lab", "status"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"WALPROOF_STATE": "/nowhere"})
    assert "IMPORTED" not in done.stdout + done.stderr
    assert "no lab is up" in done.stderr


def test_a_child_imports_nothing_from_its_work_directory(planted_module: Path) -> None:
    workspace = LocalWorkspace()
    try:
        workspace.put("secrets.py", (planted_module / "secrets.py").read_text())
        child = workspace.start_module("secrets", "", "log")
        assert child.wait(30)
        assert "IMPORTED" not in workspace.fetch("log")[0].read_text()
    finally:
        workspace.close()


def test_no_lua_of_the_current_folder_makes_sysbenchs_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sysbench looks for its tests, and for what they require, in ./?.lua first."""
    (tmp_path / "oltp_read_write.lua").touch()
    program = tmp_path / "bin" / SYSBENCH
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nls *.lua src *.so lib >&2\npwd >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workloads, "comment_on", lambda *_: None)
    workload = Workload(WorkloadKind.SCRIPT, 1, script="oltp_read_write", driver=SYSBENCH)
    with pytest.raises(TargetError, match=r"^sysbench prepare: /\Z"):
        workloads._sysbench(MagicMock(), Endpoint((("127.0.0.1", 1),)), workload)


def test_a_first_process_that_does_not_listen_yet_is_sent_no_signal(sleeper: int) -> None:
    """SIGHUP would end it; once it listens it is asked to start what is missing."""
    assert not members.listens(sleeper)
    script = "import signal, sys; signal.signal(1, lambda *_: None); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1) as ready:
        assert ready.stdout is not None
        ready.stdout.readline()
        assert members.listens(ready.pid)
        ready.communicate()


def test_an_environment_that_is_closed_itself_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    with pytest.raises(MachineError, match="closed to others") as refused:
        privileges.closed_folders([tmp_path / "environment"])
    assert f"chmod -R go+rX {tmp_path}/environment" in refused.value.hint


@needs_root
@each([(7, {60607, 60861}), (510, {61110})])
def test_nothing_runs_as_an_account_of_the_machine(
    number: int, uids: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory (SSSD) lists nobody: it answers for the uid, or gid, that it is asked for."""
    monkeypatch.setattr(privileges, "_running", set)
    assert [*unused([number, number + 1])] == [number, number + 1]
    for uid in uids:
        for database, ask in ((pwd, "getpwuid"), (grp, "getgrgid")):
            with monkeypatch.context() as patch:
                patch.setattr(database, ask, {uid: "somebody"}.__getitem__)
                assert [*unused([number, number + 1])] == [number + 1], (ask, uid)
        (tmp_path / "subuid").write_text(f"# ours\nsomebody:{uid}:1\nodd\n")
        with monkeypatch.context() as patch:
            patch.setattr(privileges, "_SUBORDINATE", (tmp_path / "none", tmp_path / "subuid"))
            assert [*unused([number, number + 1])] == [number + 1]


@needs_root
def test_a_program_below_a_closed_folder_runs_without_rights_and_sees_nothing_else_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "secret").write_text("root's")
    tools = tmp_path / "deep" / "tools"
    (tools / "bin").mkdir(parents=True)
    script = tools / "bin" / "report"
    script.write_text(
        f"#!/bin/sh\nid -u; id -G; grep ^Cap /proc/self/status; cat {tmp_path}/secret; touch {tools}/planted; exit 0\n"
    )
    script.chmod(0o755)
    for folder in (tmp_path / "deep", tools, tools / "bin"):
        folder.chmod(0o755)
    argv = privileges.confined_check([str(script)], tools)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    uid, groups, *capabilities = done.stdout.splitlines()
    assert (uid, groups) == (str(member_uid(0)), str(member_uid(0)))
    assert {line.split()[1] for line in capabilities} == {"0" * 16}
    assert "root's" not in done.stdout
    assert "secret" in done.stderr
    assert not (tools / "planted").exists()
    assert Path("/proc/self/mountinfo").read_text().count(str(tmp_path)) == 0
