"""What the lab's user may write, or another user of the machine: root reads no more of it than there can rightly be."""

import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from walproof.errors import MachineError
from walproof.lab import client_access, create, home, members
from walproof.lab.blueprint import Blueprint
from walproof.lab.privileges import access_uid, is_user_of_labs, users_of_lab
from walproof.machine import untrusted

of_root = pytest.mark.skipif(os.geteuid() != 0, reason="labs have users of their own under root alone")
SPARSE = 1 << 36


@pytest.fixture
def a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blueprint:
    """A lab's folder without any process, as number 254."""
    monkeypatch.setenv("WALPROOF_STATE", str(tmp_path))
    blueprint = Blueprint("lab", 254, ("n1",), home.lab_home("lab"), Path("/nowhere"), 17)
    home.store(blueprint)
    (blueprint.home / "up").touch()
    blueprint.access_run_dir.mkdir(parents=True)
    blueprint.member_dir("n1").mkdir()
    return blueprint


def test_a_sparse_log_fills_no_memory(a_home: Blueprint) -> None:
    log = a_home.member_dir("n1") / "etcd.log"
    log.write_text("first\n")
    os.truncate(log, SPARSE)
    with log.open("a") as file:
        file.write("\nlast\n")
    assert members.logs(a_home, "n1", 1).splitlines() == ["==> etcd.log <==", "last"]


def test_a_log_that_is_a_link_is_not_read(a_home: Blueprint) -> None:
    (a_home.member_dir("n1") / "etcd.log").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic link"):
        members.logs(a_home, "n1")


def test_a_sparse_segment_fills_no_disk(tmp_path: Path) -> None:
    (tmp_path / "segment").touch()
    os.truncate(tmp_path / "segment", SPARSE)
    with pytest.raises(OSError, match="larger than 16 MiB"):
        untrusted.copy(tmp_path, tmp_path / "segment", tmp_path / "copy", 16 << 20)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("piece", [b"A" * 65536, b"A"], ids=["endless", "trickling"])
def test_a_runtime_socket_that_never_ends_is_left(piece: bytes, a_home: Blueprint) -> None:
    def send(client: socket.socket) -> None:
        with client, suppress(OSError):
            while not left.wait(0 if len(piece) > 1 else 0.1):
                client.sendall(piece)

    left = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(a_home.access_run_dir / "haproxy.sock"))
        listening.listen()
        threading.Thread(target=lambda: send(listening.accept()[0]), daemon=True).start()
        assert client_access.routed_leader(a_home) is None
        left.set()


@of_root
def test_another_users_lab_is_not_obeyed(a_home: Blueprint) -> None:
    assert home.load("lab") == a_home
    os.chown(a_home.home, 1234, 1234)
    with pytest.raises(MachineError, match="no lab of this user's"):
        home.load("lab")


@pytest.mark.usefixtures("a_home")
def test_who_may_not_write_the_file_of_numbers_does_not_lock_it() -> None:
    with create._numbering() as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        path = os.readlink(f"/proc/self/fd/{file.fileno()}")
        with open(path, "rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_labs_take_numbers_one_after_another(a_home: Blueprint, tmp_path: Path) -> None:
    (tmp_path / "last").write_text("")
    numbers = list[int]()
    for _ in range(3):
        with (tmp_path / "last").open("r+") as last:
            numbers.append(create._numbered(a_home, last).number)
    assert numbers == sorted(set(numbers)), "the file of numbers does not hold the last one"


def sleeping(user: int, **environment: str) -> Iterator[psutil.Process]:
    code = "import os, time; print('up', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-IS", "-c", code], stdout=subprocess.PIPE, user=user, group=user,
                          env=environment) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


@of_root
def test_no_lab_takes_the_number_of_a_user_who_runs_something(a_home: Blueprint, tmp_path: Path) -> None:
    """A container's lab, or a service's that has a network and a /run of its own, has no name that is seen here."""
    (tmp_path / "last").write_text("200")
    for process in sleeping(access_uid(201)):
        with (tmp_path / "last").open("r+") as last:
            assert create._numbered(a_home, last).number == 202, process


@of_root
def test_what_left_its_namespace_and_took_off_the_mark_is_still_the_labs(a_home: Blueprint) -> None:
    assert len(users_of_lab(a_home.number)) == 2
    for uid in users_of_lab(a_home.number):
        assert is_user_of_labs(uid)
        for process in sleeping(uid):
            assert process in members.marked(a_home) and create.is_alive(a_home)
            assert process not in members.marked(replace(a_home, number=0)), "nobody knows whose it is"


@of_root
def test_a_mark_that_a_stranger_put_on_his_own_process_counts_for_nothing(a_home: Blueprint) -> None:
    for process in sleeping(65534, **{home.MARK: str(a_home.home)}):
        assert process not in members.marked(a_home)
        assert str(a_home.home) not in members.marks()


@of_root
def test_of_what_a_process_says_of_itself_a_bounded_head_is_read() -> None:
    """It may name any range of its memory as its variables, or its arguments (prctl(2), PR_SET_MM_MAP)."""
    long = {f"A{number}": "x" * 100_000 for number in range(10)}
    for first in sleeping(0, **{home.MARK: "/first"}, **long):
        assert members._mark(first.pid) == "/first"
        assert sum(map(len, untrusted.of_process(first.pid, "environ"))) <= 1 << 16
    for last in sleeping(0, **long, **{home.MARK: "/last"}):
        assert members._mark(last.pid) == ""
