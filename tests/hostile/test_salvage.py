"""`walproof salvage` beside names that are options, and users who could not keep the copy to itself."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

import psutil
import pytest

from tests.fixtures.own_folder import own_folder
from tests.fixtures.tiers import every
from walproof.errors import MachineError
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import apart, confined_alone, is_user_of_labs, member_uid, number_of_no_lab
from walproof.machine.clock import RealClock
from walproof.model.topology import Endpoint
from walproof.model.waiting import Wait, wait_for
from walproof.salvaging import report
from walproof.salvaging.plan import plan
from walproof.salvaging.server import Copy
from walproof.targets.lab.target import LabOldDisks
from walproof.targets.simulated.clock import VirtualClock

__all__ = ["own_folder"]


def _a_copy(work: Path) -> Copy:
    """One of which no server was started."""
    copied = object.__new__(Copy)
    copied.work = copied.sockets = work
    return copied


def _single(monkeypatch: pytest.MonkeyPatch, work: Path, database: str, prints: str) -> tuple[list[object], str]:
    """The command line of a copy's server in single-user mode, and its answer where it runs that instead."""
    asked: list[object] = []

    def started(_: Copy, argv: list[object], **pipes: int) -> "subprocess.Popen[str]":
        asked.extend(argv)
        return subprocess.Popen(["sh", "-c", prints], text=True, **pipes)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(Copy, "_start", started)
    return asked, _a_copy(work).single(database, "")


def test_a_database_whose_name_is_an_option_is_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, _ = _single(monkeypatch, tmp_path, "-r/home/you/.bashrc", "true")
    assert asked[-2:] == ["--", "-r/home/you/.bashrc"]


def test_what_the_copys_server_prints_without_an_end_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A function that its catalogs have in the place of PostgreSQL's may raise warnings for ever."""
    endless = "yes | head -c 20000000"
    assert len(_single(monkeypatch, tmp_path, "app", endless)[1]) == 16 << 20
    with pytest.raises(MachineError, match="why it ended"):
        _single(monkeypatch, tmp_path, "app", f"({endless}; echo 'FATAL:  why it ended') >&2; exit 1")


def test_a_name_in_a_line_of_the_copys_log_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A role with CREATEDB had every salvage of the cluster refused by how it called a database."""
    (tmp_path / "log").write_text('WARNING:  database "ERROR:  x\n\tFATAL:  y" has no actual collation version\n')
    assert _single(monkeypatch, tmp_path, "app", f"cat {tmp_path}/log >&2; echo told")[1] == "told\n"
    (tmp_path / "log").write_text("LOG:  a\nERROR:  b\n")
    with pytest.raises(MachineError, match="does not start: b"):
        _single(monkeypatch, tmp_path, "app", f"cat {tmp_path}/log >&2")


def test_only_root_has_a_user_to_spare_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match="which takes root"):
        plan(tmp_path, "host=127.0.0.1 port=1", None, None)


def test_a_name_makes_no_line_of_the_report_and_a_statement_to_paste_has_it_quoted() -> None:
    """Who may prepare a transaction chooses its gid; who commits it is a superuser, perhaps."""
    forged, gid = "t\nthe old primary committed nothing\x1b[2J", "a'; ALTER ROLE thief SUPERUSER; --"
    tree = {
        "fork": {"lsn": "0/1", "timeline": 1}, "lost_transactions": 1, "lost_wal_bytes": 1, "undecided": [forged],
        "databases": [
            {"database": forged, "tables": [{"table": forged, "notes": [forged]}], "sequences_ran_on": [forged]},
        ],
        "prepared_on_new_primary": [{"gid": one, "database": forged} for one in (forged, gid)], "notes": [forged],
    }  # fmt: skip
    lines = report.text(tree)
    assert sum("committed nothing" in line for line in lines) == 8
    assert not any(line.startswith("the old primary committed nothing") for line in lines)
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith("COMMIT PREPARED 'a''; ALTER ROLE thief SUPERUSER; --' was lost") for line in lines)


def test_a_link_in_place_of_a_copy_is_not_followed(tmp_path: Path) -> None:
    class Members:
        members = ("n1",)

        def data_dir(self, member: str) -> Path:
            return tmp_path / member / "data"

    (tmp_path / "n1/data.before-rewind.2").mkdir(parents=True)
    (tmp_path / "of_another").mkdir()
    (tmp_path / "n1/data.before-rewind.1").symlink_to(tmp_path / "of_another")
    disks = LabOldDisks(Path("/bin"), cast(Blueprint, Members()), VirtualClock(), lambda: Endpoint(()))
    assert [path.name for _, path in disks.copies()] == ["data.before-rewind.2"]
    assert not list((tmp_path / "n1").iterdir()) and (tmp_path / "of_another").is_dir()


def _running(number: int) -> list[int]:
    return [one.pid for one in psutil.process_iter(["uids"]) if member_uid(number) in (one.info["uids"] or ())]


@pytest.mark.lab
@pytest.mark.parametrize("is_killed", [False, True])
def test_all_that_a_program_on_the_copy_began_ends_with_it_and_with_us(own_folder: Path, is_killed: bool) -> None:
    """A stranger's catalogs can make the server run code: what called setsid lived on, and read the next salvage."""
    own_folder.chmod(0o711)
    (own_folder / "passwd").write_text("")
    begins = "setsid sh -c 'trap : TERM HUP; sleep 600; sleep 600' & ls -d /proc/[0-9]* | wc -l"
    with number_of_no_lab() as number, number_of_no_lab() as another:
        assert number != another and not is_user_of_labs(member_uid(number))
        argv = ["/bin/sh", "-c", f"{begins}; {'sleep 600' if is_killed else ''}"]
        with subprocess.Popen(confined_alone(number, argv, own_folder), stdout=subprocess.PIPE) as process:
            assert int(cast(IO[bytes], process.stdout).readline()) <= 8, "it sees its own processes alone"
            if is_killed:
                assert _running(number)
                process.kill()  # as pdeathsig does where walproof was killed
        wait_for(Wait.PROGRAM_READY, lambda: not _running(number), RealClock())


@pytest.mark.lab
def test_it_leaves_no_file_by_which_another_becomes_its_user_in_the_next_salvage(own_folder: Path) -> None:
    """A setuid file; its number is used again, and no_new_privs keeps from running one, not from making it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as closed:
        sockets = Path(closed, "socket")
        sockets.mkdir(0o711)
        own_folder.chmod(0o711)
        (own_folder / "passwd").write_text("")
        (own_folder / "data").mkdir()
        with number_of_no_lab() as number:
            for folder in (own_folder / "data", sockets):
                os.chown(folder, member_uid(number), member_uid(number))
            folders = " ".join(["/tmp", "/var/tmp", "/dev/shm", "/run/lock", str(own_folder / "data"), str(sockets)])
            leaves = "cp /bin/true $f/walproof-test-left && chmod 4755 $f/walproof-test-left && echo $f"
            argv = ["/bin/sh", "-c", f"for f in {folders}; do {leaves}; done"]
            done = subprocess.run(
                confined_alone(number, argv, own_folder, sockets),
                check=False,
                capture_output=True,
                text=True,
                **apart(),
            )
        assert done.stdout.split() == ["/dev/shm", str(own_folder / "data"), str(sockets)], done
        left = [f for f in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock") if Path(f, "walproof-test-left").exists()]
        assert left == [] and not Path(closed).stat().st_mode & 0o077, "and what lies in its own is not reached"


_CONNECTS = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except OSError:
        continue
    print(path)
"""


@pytest.mark.lab
def test_no_socket_of_the_machine_answers_it(own_folder: Path) -> None:
    """A namespace of the network holds back none that has a path, and a read-only mount no connect(2)."""
    own_folder.chmod(0o711)
    (own_folder / "passwd").write_text("")
    (own_folder / "data").mkdir()
    folders = [
        own_folder / "data",
        *map(Path, ("/", "/run", "/tmp", "/var/tmp", "/var/lib", "/home", "/dev", "/dev/shm")),
    ]
    paths = [folder / f"walproof-test-{os.getpid()}" for folder in folders]
    with ExitStack() as stack, number_of_no_lab() as number:
        for path in paths:
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(path))
            stack.callback(path.unlink)
            path.chmod(0o777)
            one.listen()
        argv = [sys.executable, "-IS", "-c", _CONNECTS, *map(str, paths)]
        confined = confined_alone(number, argv, own_folder)
        done = subprocess.run(confined, check=True, capture_output=True, text=True, **apart())
    assert done.stdout.split() == [str(paths[0])], "but one of its own"


@pytest.mark.skipif(os.geteuid() != 0, reason="root's alone")
def test_a_machine_where_no_user_can_be_held_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walproof.lab.privileges._USERS", "/proc/walproof-users.lock")
    with pytest.raises(MachineError, match=r"/proc/walproof-users.lock cannot be written"), number_of_no_lab():
        pass


def test_a_login_over_the_copys_socket_fills_no_memory(tmp_path: Path) -> None:
    """Of a Unix socket the kernel counts no bytes: 2.7 GB in one login."""
    script = f"""
import resource, socket, struct, threading, psutil, psycopg
from pathlib import Path
from types import SimpleNamespace
from walproof.salvaging.server import Copy, bounded_memory
psutil.virtual_memory = lambda: SimpleNamespace(available=512 << 20)
copied = object.__new__(Copy)
copied.sockets, copied.role, copied.old = Path({str(tmp_path)!r}), "walproof", SimpleNamespace(major=15)
copied.socket.mkdir()
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(copied.socket / ".s.PGSQL.5432"))
listening.listen()
def endless():
    one, _ = listening.accept()
    one.recv(65536)
    one.sendall(b"R" + struct.pack("!II", 8, 0) + b"N" + struct.pack("!I", (1 << 30) - 1) + b"M")
    try:
        while True: one.sendall(bytes(1 << 20).replace(b"\\0", b"x"))
    except OSError: pass
threading.Thread(target=endless, daemon=True).start()
with bounded_memory():
    try: copied.connect("app")
    except psycopg.OperationalError: print("ended", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.startswith("ended "), done.stderr
    assert int(done.stdout.split()[1]) < 1000


def test_programs_in_a_folder_below_the_root_do_not_show_it_the_whole_machine(own_folder: Path) -> None:
    own_folder.chmod(0o711)

    def shows(programs: str) -> str:
        argv = confined_alone(60, [f"{programs}/postgres"], own_folder)
        (view,) = (json.loads(word) for word in argv if word.startswith("{"))
        return " ".join({"/", "/run", "/var", "/tmp", "/home", "/root"} & set(view["shown"]))

    every(["/bin", "/usr/bin", "/walproof-no-such"], shows)


@pytest.mark.skipif(os.geteuid() != 0, reason="salvage is root's")
def test_root_follows_no_link_in_the_place_of_the_copys_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is root's before the first session, in which code of the disk could run."""

    def answers(is_link: bool) -> None:
        work, asked = tmp_path / str(is_link), list[int]()
        (work / "s").mkdir(0o755, parents=True)
        place, copied = work / "s/.s.PGSQL.5432", _a_copy(work)

        def connect(*_: object) -> SimpleNamespace:
            asked.append(os.stat(work / "s").st_uid)
            return SimpleNamespace(close=lambda: None)

        with socket.socket(socket.AF_UNIX) as listening, monkeypatch.context() as patched:
            patched.setattr(Copy, "connect", connect)
            listening.bind(str(work / "elsewhere" if is_link else place))
            if is_link:
                place.symlink_to(work / "elsewhere")
            os.chown(work / "s", 61150, 61150)
            assert copied._answers() == (not is_link)
        assert asked == ([] if is_link else [0])

    every([False, True], answers)
